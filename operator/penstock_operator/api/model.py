"""`spec.model` of a ModelBackend: how the model runs and how it is called."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from penstock_operator.api.base import Part
from penstock_operator.api.core import Env, EnvFrom, Resources, VolumeMounts, Words
from penstock_operator.api.fields import (
    ANY_OBJECT,
    Form,
    Path,
    cel,
    rules,
)

_IMAGE = Form(r"^\S+$", "expected an image without blanks, such as registry.example/digits:2")
_TARGET = Form(
    r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$",
    "expected module:Class, such as digits.model:Digits",
)

Image = Annotated[
    str, Field(max_length=512, json_schema_extra=rules(_IMAGE.rule)), AfterValidator(_IMAGE.check)
]


class ModelBase(Part):
    """The fields of core/v1 Container that the model container has however it runs."""

    image_pull_policy: Annotated[
        Literal["Always", "IfNotPresent", "Never"] | None,
        Field(
            description="When kubelet pulls the image: Always, IfNotPresent or Never. "
            "Default: Kubernetes' own."
        ),
    ] = None
    env: Annotated[Env, Field(description="Environment variables of the model container.")] = ()
    env_from: Annotated[
        tuple[EnvFrom, ...], Field(max_length=64, description="ConfigMaps and Secrets taken as environment.")
    ] = ()
    resources: Annotated[Resources | None, Field(description="Compute resources of the model container.")] = (
        None
    )
    volume_mounts: Annotated[
        VolumeMounts, Field(description="Volumes of podTemplate.volumes that the model container sees.")
    ] = ()
    security_context: Annotated[
        dict[str, Any] | None,
        Field(
            json_schema_extra=ANY_OBJECT,
            description="The container's securityContext, as in core/v1; its fields replace Penstock's one "
            "by one. Default: restricted (non-root, read-only root with a writable /tmp, no capabilities, "
            "RuntimeDefault seccomp).",
        ),
    ] = None
    startup_probe: Annotated[
        dict[str, Any] | None,
        Field(
            json_schema_extra=ANY_OBJECT,
            description="When the model counts as started, as in core/v1. Default none.",
        ),
    ] = None
    liveness_probe: Annotated[
        dict[str, Any] | None,
        Field(
            json_schema_extra=ANY_OBJECT,
            description="When the model container is restarted, as in core/v1. Default none.",
        ),
    ] = None
    readiness_probe: Annotated[
        dict[str, Any] | None,
        Field(
            json_schema_extra=ANY_OBJECT,
            description="A further condition of the pod's readiness, as in core/v1; the sidecar asks "
            "model.readyPath in any case. Default none.",
        ),
    ] = None


class ModelContainer(ModelBase):
    """A container that serves the model over HTTP, part of core/v1 Container; `lifecycle` is Penstock's."""

    image: Annotated[Image, Field(description="The image that serves the model.")]
    command: Annotated[Words, Field(description="Replaces the image's entrypoint.")] = ()
    args: Annotated[Words, Field(description="Arguments of the entrypoint.")] = ()


_NAME = Form(
    r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "expected the name of a ConfigMap, such as language-code-3f9a27c1"
)
_DIGEST = Form(
    r"^sha256:[0-9a-f]{64}$", "expected sha256: and 64 hexadecimal digits, such as sha256:3f9a27c1…"
)


class CodeConfigMap(Part):
    """A ConfigMap of the backend's namespace."""

    name: Annotated[
        str,
        Field(max_length=253, json_schema_extra=rules(_NAME.rule), description="Its name."),
        AfterValidator(_NAME.check),
    ]


class PythonCode(Part):
    """Code that is not in the image; `penstock deploy` and `penstock export --code` write both fields."""

    config_map_ref: Annotated[
        CodeConfigMap,
        Field(description="The ConfigMap with the code, a ZIP archive under the key code.zip."),
    ]
    digest: Annotated[
        str,
        Field(
            max_length=71,
            json_schema_extra=rules(_DIGEST.rule),
            description="SHA-256 of the archive. A pod runs no other code, whoever changes the ConfigMap.",
        ),
        AfterValidator(_DIGEST.check),
    ]


class ModelPython(ModelBase):
    """A Python class that Penstock's SDK serves."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "has(self.image) || has(self.code)",
                "expected image or code: the class is in one of them, found neither",
            )
        )
    )

    image: Annotated[
        Image | None,
        Field(
            description="The image that holds penstock-serving[sdk], and the class unless code does. "
            "Default, with code: the release's python-model."
        ),
    ] = None
    code: Annotated[
        PythonCode | None,
        Field(description="Code in a ConfigMap, which comes before the image's. Default none."),
    ] = None
    target: Annotated[
        str,
        Field(
            max_length=256,
            json_schema_extra=rules(_TARGET.rule),
            description="What to serve, as module:Class.",
        ),
        AfterValidator(_TARGET.check),
    ]
    init_kwargs: Annotated[
        dict[str, Any] | None,
        Field(
            json_schema_extra=ANY_OBJECT,
            description="Keyword arguments of the class, any JSON. {handle: NAME} becomes a handle of that "
            "ModelEndpoint, by which the class calls it; with namespace beside it, of another namespace's. "
            "Default none.",
        ),
    ] = None


class Model(Part):
    """The model: how it runs and how it is called."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "has(self.container) != has(self.python)",
                "expected exactly one of container and python",
                expression="'expected exactly one of container and python, found ' + "
                "(has(self.container) ? 'both' : 'neither')",
            ),
            cel(
                "!has(self.python) || self.protocol == 'instances'",
                "expected protocol instances with python: it is what the SDK serves",
                expression="'expected protocol instances with python, found ' + self.protocol + ': the SDK "
                "serves instances'",
            ),
        )
    )

    container: Annotated[
        ModelContainer | None,
        Field(description="Serve from a container of your own. Exactly one of container and python."),
    ] = None
    python: Annotated[
        ModelPython | None,
        Field(description="Serve a Python class. Exactly one of container and python."),
    ] = None
    protocol: Annotated[
        Literal["instances", "v2", "openai", "envelope", "none"],
        Field(
            description='What the model speaks. instances, the default: POST {"instances": [...]} is '
            'answered {"predictions": [...]}, one for each instance, in order. v2: the Open Inference '
            "Protocol "
            "over REST, tensors joined along their first axis. openai: /v1/embeddings is batched by "
            "input, all "
            "else passes through. envelope: each request is one item of a list, whole with its path and "
            "headers. none: requests pass through one by one, streams and WebSocket included."
        ),
    ] = "instances"
    port: Annotated[
        int,
        Field(
            ge=1,
            le=65535,
            json_schema_extra=rules(
                cel(
                    "self != 8012 && self != 8013",
                    "expected a port other than 8012 and 8013, which are the sidecar's",
                    expression="'expected a port other than 8012 and 8013, which are the sidecar\\'s, found "
                    "' + (self == 8012 ? '8012' : '8013')",
                )
            ),
            description="The port the model listens on. Default 8080.",
        ),
    ] = 8080
    ready_path: Annotated[
        Path,
        Field(
            description="Path that answers GET with a status from 200 to 399 once the model is loaded. "
            "Default /.",
        ),
    ] = "/"
    reconfigure_path: Annotated[
        Path | None,
        Field(
            description="Path that takes userConfig by POST and answers 2xx once it is in force. "
            "Default: none "
            "for a container, the SDK's own for python.",
        ),
    ] = None
