"""Files of a model that are not in its image: a first step of the pod downloads them, or a volume has them.

The step runs in the sidecar's image and fills a volume that all others may only read: what the step has found
stays true, and the sidecar reports it.
"""

from __future__ import annotations

from penstock_operator.api.artifact import IMAGE, VOLUME_CLAIM, ModelArtifact
from penstock_operator.api.model import ModelBase
from penstock_operator.api.modelbackend import ModelBackend
from penstock_operator.desired import names, pods
from penstock_operator.desired.config import RenderConfig
from penstock_operator.desired.objects import Object
from penstock_wire import contract
from penstock_wire.control.artifact import source_of

CONTAINER = "penstock-artifact"
VOLUME = "penstock-artifact"
STATE_FILE = f"{contract.ARTIFACT_FOLDER}/state.json"
_FILES = "files"
_STORAGE = {"containerName": names.MODEL_CONTAINER, "resource": "limits.ephemeral-storage", "divisor": "1"}


def source(artifact: ModelArtifact) -> str:
    """The name of what is asked for, in reports and settings."""
    return source_of(artifact.uri, artifact.include, artifact.digest)


def first_step(backend: ModelBackend, model: ModelBase, config: RenderConfig, *, tmp: Object) -> list[Object]:
    """The init container that downloads the files; none without an artifact, or with a volume.

    Args:
        model: the model's container, whose environment it has.
        tmp: the mount of a writable /tmp.
    """
    artifact = backend.spec.model.artifact
    if artifact is None or not artifact.is_downloaded:
        return []
    given, wanted = model.document(), backend.spec.sidecar.resources
    secret = [{"secretRef": {"name": artifact.secret_ref.name}}] if artifact.secret_ref else []
    env_from = [*(given.get("envFrom") or ()), *secret]
    return [
        {
            "name": CONTAINER,
            **pods.pulled(config.sidecar_image, config.image_pull_policy),
            "command": [
                *("python", "-m", "penstock_sidecar.artifact"),
                *(_literal(artifact.uri), contract.ARTIFACT_FOLDER),
            ],
            "args": [
                *("--source", source(artifact), "--settings", pods.SETTINGS_FILE),
                *("--sidecar", f"http://127.0.0.1:{contract.SIDECAR_ADMIN_PORT}"),
                *(f"--include={_literal(pattern)}" for pattern in artifact.include),
                *(("--digest", artifact.digest) if artifact.digest else ()),
            ],
            "env": [
                *(given.get("env") or ()),
                {"name": contract.STORAGE_LIMIT_ENV, "valueFrom": {"resourceFieldRef": _STORAGE}},
            ],
            **({"envFrom": env_from} if env_from else {}),
            "resources": config.sidecar_resources if wanted is None else wanted.document(),
            "securityContext": pods.container_security(user=pods.USER),
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [
                tmp,
                {"name": pods.SETTINGS_VOLUME, "mountPath": pods.SETTINGS_FOLDER, "readOnly": True},
                {"name": VOLUME, "mountPath": contract.ARTIFACT_FOLDER},
            ],
        }
    ]


def _literal(text: str) -> str:
    """A text as a word of a command, in which kubelet puts variables in the place of `$(NAME)`."""
    return text.replace("$", "$$")


def volumes(backend: ModelBackend) -> list[Object]:
    """The volume of the files; none without an artifact."""
    artifact = backend.spec.model.artifact
    if artifact is None:
        return []
    if artifact.is_downloaded:
        return [{"name": VOLUME, "emptyDir": {}}]
    if artifact.uri.startswith(IMAGE):
        return [{"name": VOLUME, "image": {"reference": artifact.uri.removeprefix(IMAGE)}}]
    claim = {"claimName": _claim(artifact)[0], "readOnly": True}
    return [{"name": VOLUME, "persistentVolumeClaim": claim}]


def model_mounts(backend: ModelBackend) -> list[Object]:
    """The mount at which the model finds the files; none without an artifact."""
    artifact = backend.spec.model.artifact
    if artifact is None:
        return []
    if artifact.is_downloaded:
        path = _FILES
    else:
        path = _claim(artifact)[1] if artifact.uri.startswith(VOLUME_CLAIM) else ""
    mount = {"name": VOLUME, "mountPath": artifact.mount_path, "readOnly": True}
    return [mount | ({"subPath": path} if path else {})]


def sidecar_mounts(backend: ModelBackend) -> list[Object]:
    """The mount at which the sidecar finds how far a download is; none without one."""
    artifact = backend.spec.model.artifact
    if artifact is None or not artifact.is_downloaded:
        return []
    return [{"name": VOLUME, "mountPath": contract.ARTIFACT_FOLDER, "readOnly": True}]


def ports(backend: ModelBackend) -> list[int]:
    """The ports at which a pod's sidecar serves the files to others of its backend."""
    artifact = backend.spec.model.artifact
    return [contract.ARTIFACT_PORT] if artifact is not None and artifact.is_downloaded else []


def _claim(artifact: ModelArtifact) -> tuple[str, str]:
    name, _, path = artifact.uri.removeprefix(VOLUME_CLAIM).partition("/")
    return name, path.strip("/")
