"""Code of a Python backend that is not in its image: a first step of the pod unpacks it from a ConfigMap.

Whoever may change ConfigMaps may not run code in a model's pod for that: the step, which runs in the model's
image, compares the archive with the digest in the backend's spec. It also installs the requirements that the
archive lists, into the same folder, so that the model container needs neither an index nor a writable root.
"""

from __future__ import annotations

from penstock_operator.api.model import ModelPython
from penstock_operator.desired import pods
from penstock_operator.desired.config import RenderConfig
from penstock_operator.desired.objects import Object
from penstock_wire import contract

CONTAINER = "penstock-code"
ARCHIVE_VOLUME = "penstock-code-archive"
FOLDER_VOLUME = "penstock-code"
ARCHIVE_FOLDER = "/penstock/archive"


def image(python: ModelPython, config: RenderConfig) -> Object:
    """Image and pull policy of a Python model; the installation's where only code is given."""
    if python.image is not None:
        return pods.pulled(python.image, python.image_pull_policy)
    return pods.pulled(config.python_image, python.image_pull_policy or config.image_pull_policy)


def first_step(
    python: ModelPython, config: RenderConfig, *, tmp: Object, artifact: list[Object]
) -> list[Object]:
    """The init container that unpacks the code; none without code.

    Args:
        tmp: the mount of a writable /tmp.
        artifact: the mounts of the artifact, which may hold wheels.
    """
    if python.code is None:
        return []
    given = python.document()
    archive = f"{ARCHIVE_FOLDER}/{contract.CODE_KEY}"
    return [
        {
            "name": CONTAINER,
            **image(python, config),
            "command": ["python", "-m", "penstock_wire.unpack", archive, contract.CODE_FOLDER],
            "args": ["--digest", python.code.digest],
            **{key: given[key] for key in ("env", "envFrom", "resources") if given.get(key)},
            "securityContext": pods.container_security() | (python.security_context or {}),
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [
                tmp,
                {"name": ARCHIVE_VOLUME, "mountPath": ARCHIVE_FOLDER, "readOnly": True},
                {"name": FOLDER_VOLUME, "mountPath": contract.CODE_FOLDER},
                *artifact,
            ],
        }
    ]


def volumes(python: ModelPython) -> list[Object]:
    """The volumes of the archive and of what it holds; none without code."""
    if python.code is None:
        return []
    return [
        {"name": ARCHIVE_VOLUME, "configMap": {"name": python.code.config_map_ref.name}},
        {"name": FOLDER_VOLUME, "emptyDir": {}},
    ]


def of_model_container(python: ModelPython) -> Object:
    """Fields of the model container: it runs in the code's folder, as on a laptop; none without code."""
    if python.code is None:
        return {}
    return {
        "workingDir": contract.CODE_FOLDER,
        "env": [{"name": contract.CODE_ENV, "value": contract.CODE_FOLDER}],
        "volumeMounts": [{"name": FOLDER_VOLUME, "mountPath": contract.CODE_FOLDER, "readOnly": True}],
    }
