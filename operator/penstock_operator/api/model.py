"""`spec.model` of a ModelBackend: how the model runs and how it is called."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, WithJsonSchema

from penstock_operator.api.artifact import DIGEST, ModelArtifact
from penstock_operator.api.base import Part
from penstock_operator.api.core import Env, EnvFrom, ResourcesWithClaims, VolumeMounts, Words
from penstock_operator.api.fields import (
    ANY_OBJECT,
    Form,
    Path,
    cel,
    gone,
    rules,
)

_IMAGE = Form(r"^\S+$", "expected an image without blanks, such as registry.example/digits:2")
_TARGET = Form(
    r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$",
    "expected module:Class, such as digits.model:Digits",
)

_PROTOCOLS = "expected instances, v2, openai or none"
_FOR_ENVELOPE = "with instances a model answers and streams by item, and with none it gets each request whole"

Protocol = Annotated[
    Literal["instances", "v2", "openai", "none"],
    gone("envelope", _FOR_ENVELOPE),
    # NB: not an enum, whose error cannot have a word about a value that is gone.
    WithJsonSchema(
        {
            "type": "string",
            "maxLength": 16,
            **rules(
                cel(
                    "self in ['instances', 'v2', 'openai', 'none']",
                    _PROTOCOLS,
                    expression=f"'{_PROTOCOLS}, found ' + self + (self == 'envelope' ? "
                    f"', which is gone: {_FOR_ENVELOPE}' : '')",
                )
            ),
        }
    ),
]
"""What a model speaks."""

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
    resources: Annotated[
        ResourcesWithClaims | None, Field(description="Compute resources of the model container.")
    ] = None
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
            json_schema_extra=rules(DIGEST.rule),
            description="SHA-256 of the archive. A pod runs no other code, whoever changes the ConfigMap.",
        ),
        AfterValidator(DIGEST.check),
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


class ModelFormat(ModelBase):
    """A class and an image of Penstock's that serve the files of a format."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "self.name in ['sklearn', 'mlflow'] || !self.allowPickle",
                "expected allowPickle only with sklearn and mlflow",
                expression="'expected allowPickle only with sklearn and mlflow, found it with ' + self.name",
            ),
            cel(
                "self.name in ['sklearn', 'mlflow'] || self.onVersionMismatch == 'Refuse'",
                "expected onVersionMismatch Warn only with sklearn and mlflow",
                expression="'expected onVersionMismatch Warn only with sklearn and mlflow, found it with ' + "
                "self.name",
            ),
        )
    )

    name: Annotated[
        Literal["sklearn", "xgboost", "lightgbm", "onnx", "mlflow", "huggingface"],
        Field(
            description="What the files are: sklearn, an estimator or pipeline in a .skops file or a pickle; "
            "xgboost or lightgbm, a booster in their own form; onnx, a model for onnxruntime; mlflow, a "
            "model that MLflow saved in one of these forms; huggingface, an encoder of the Hub with an ONNX "
            "file."
        ),
    ]
    allow_pickle: Annotated[
        bool,
        Field(
            description="Whether a pickle may be opened, joblib's too: it runs whatever code its writer put "
            "into it. Default false."
        ),
    ] = False
    on_version_mismatch: Annotated[
        Literal["Refuse", "Warn"],
        Field(
            description="What happens to files that another version of the library wrote: Refuse, the "
            "default, or Warn in the log, as predictions may differ."
        ),
    ] = "Refuse"
    init_kwargs: Annotated[
        dict[str, Any] | None,
        Field(
            json_schema_extra=ANY_OBJECT,
            description="Further keyword arguments of the format's class, such as {method: predict_proba}. "
            "Default none.",
        ),
    ] = None


class Model(Part):
    """The model: how it runs and how it is called."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "[has(self.container), has(self.python), has(self.format)].filter(given, given).size() == 1",
                "expected exactly one of container, python and format",
                expression="'expected exactly one of container, python and format, found ' + "
                "(has(self.container) || has(self.python) || has(self.format) ? 'several' : 'none')",
            ),
            cel(
                "!has(self.format) || has(self.artifact)",
                "expected artifact with format: the files that it serves",
            ),
            cel(
                "!(has(self.python) || has(self.format)) || self.protocol == 'instances'",
                "expected protocol instances with python and format: the SDK serves it, and v2 beside it",
                expression="'expected protocol instances with python and format, found ' + self.protocol + "
                "': the SDK serves it, and v2 beside it'",
            ),
            cel(
                "!has(self.artifact) || self.port != 8014",
                "expected a port other than 8014, at which the sidecar serves the artifact to other pods",
            ),
        )
    )

    container: Annotated[
        ModelContainer | None,
        Field(description="Serve from a container of your own. Exactly one of container, python and format."),
    ] = None
    python: Annotated[
        ModelPython | None,
        Field(description="Serve a Python class. Exactly one of container, python and format."),
    ] = None
    format: Annotated[
        ModelFormat | None,
        Field(
            description="Serve the files of artifact by a class and an image of Penstock's. Exactly one of "
            "container, python and format."
        ),
    ] = None
    artifact: Annotated[
        ModelArtifact | None,
        Field(
            description="Files of the model that are not in its image, such as weights in a bucket. They are "
            "there before the model starts. Default none."
        ),
    ] = None
    protocol: Annotated[
        Protocol,
        Field(
            description='What the model speaks. instances, the default: POST {"instances": [...]} is '
            'answered {"predictions": [...]}, one for each instance, in order. v2: the Open Inference '
            "Protocol over REST, tensors joined along their first axis. openai: /v1/embeddings and /classify "
            "are batched by input, /score by pairs of texts; all else passes through. none: "
            "requests pass through one by one, streams and WebSocket included."
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
    grpc_port: Annotated[
        int | None,
        Field(
            ge=1,
            le=65535,
            description="The port at which the model takes gRPC calls. Those of other services than "
            "inference.GRPCInferenceService, and its ModelStreamInfer, go there as they are. The same as "
            "port if the model speaks gRPC alone: with protocol v2, batches then go there as ModelInfer, and "
            "readiness is ServerReady, or ModelReady by a readyPath of v2; with others, it is that of "
            "grpc.health.v1. Default: none, such calls are UNIMPLEMENTED.",
        ),
    ] = None
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
