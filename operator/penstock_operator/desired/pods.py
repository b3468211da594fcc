"""The common parts of all rendered pods: restricted security, the report token, the settings folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock_operator.desired import labels, names
from penstock_operator.desired.config import RenderConfig
from penstock_operator.desired.objects import Object
from penstock_wire import contract

USER = 65532
"""Numeric user and group of Penstock's own images."""

SETTINGS_FOLDER = "/etc/penstock/settings"
SETTINGS_FILE = f"{SETTINGS_FOLDER}/{names.SETTINGS_KEY}"
AUTHORITIES_FILE = f"{SETTINGS_FOLDER}/{names.AUTHORITIES_KEY}"
WARMUP_FOLDER = "/etc/penstock/warmup"
WARMUP_FILE = f"{WARMUP_FOLDER}/warmup.json"
TOKEN_FOLDER = "/var/run/secrets/penstock"  # noqa: S105 - a path
TOKEN_FILE = f"{TOKEN_FOLDER}/token"

SETTINGS_VOLUME = "penstock-settings"
WARMUP_VOLUME = "penstock-warmup"
TOKEN_VOLUME = "penstock-token"  # noqa: S105 - a volume's name

_PROBE_TIMEOUT_S = 10
"""Seconds that the answer to a probe can take."""


def pod_security(own: Mapping[str, Any] | None = None) -> Object:
    """A pod's securityContext: non-root, restricted seccomp, volumes readable by group `USER`.

    A volume whose root already has that group is left alone (`OnRootMismatch`): by default kubelet changes
    the owner of each file at every mount, which takes minutes if the volume holds many weights.

    Args:
        own: the user's fields; they replace ours one by one. With a `fsGroup` of the user, the user's
            `fsGroupChangePolicy` or Kubernetes' default holds.
    """
    own = own or {}
    sparing = {} if "fsGroup" in own else {"fsGroupChangePolicy": "OnRootMismatch"}
    ours = {"runAsNonRoot": True, "fsGroup": USER, "seccompProfile": {"type": "RuntimeDefault"}}
    return {**ours, **sparing, **own}


def container_security(*, user: int | None = None) -> Object:
    """A container's securityContext by the restricted Pod Security standard, with a read-only root.

    Args:
        user: the numeric user and group; None leaves it to the image.
    """
    context: Object = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return context if user is None else context | {"runAsUser": user, "runAsGroup": user}


def settings_volume(configmap: str) -> Object:
    """The settings ConfigMap as a folder; when it changes, each file is replaced atomically."""
    return {"name": SETTINGS_VOLUME, "configMap": {"name": configmap}}


def token_volume(config: RenderConfig) -> Object:
    """The service account token for reports, for the operator's audience only."""
    token = {"audience": config.token_audience, "expirationSeconds": config.token_seconds, "path": "token"}
    return {"name": TOKEN_VOLUME, "projected": {"sources": [{"serviceAccountToken": token}]}}


def warmup_volume() -> Object:
    """The pod's own annotation as a file: it stays that of the pod's template when later templates differ."""
    source = {"fieldPath": f"metadata.annotations['{labels.WARMUP}']"}
    file = WARMUP_FILE.removeprefix(f"{WARMUP_FOLDER}/")
    return {"name": WARMUP_VOLUME, "downwardAPI": {"items": [{"path": file, "fieldRef": source}]}}


def warmup_mount() -> Object:
    """The mount at which a sidecar finds the warm-up requests."""
    return {"name": WARMUP_VOLUME, "mountPath": WARMUP_FOLDER, "readOnly": True}


def reporting(config: RenderConfig) -> dict[str, str]:
    """The arguments for a sidecar's or router's reports, and for its access log if that is asked for."""
    secure = config.report_url.startswith("https:")
    authorities = {"--report-ca": AUTHORITIES_FILE} if secure else {}
    access = {"--access-log": str(config.access_log)} if config.access_log else {}
    return {"--report-to": config.report_url, **authorities, "--token-file": TOKEN_FILE, **access}


def reporter_mounts() -> list[Object]:
    """The mounts at which a sidecar or router finds its settings and its token."""
    return [
        {"name": SETTINGS_VOLUME, "mountPath": SETTINGS_FOLDER, "readOnly": True},
        {"name": TOKEN_VOLUME, "mountPath": TOKEN_FOLDER, "readOnly": True},
    ]


def from_field(name: str, path: str) -> Object:
    """An environment variable that the downward API fills."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def identity_env() -> list[Object]:
    """The environment that identifies the pod in reports."""
    return [
        from_field(contract.POD_ENV, "metadata.name"),
        from_field(contract.POD_UID_ENV, "metadata.uid"),
        from_field(contract.NAMESPACE_ENV, "metadata.namespace"),
    ]


def tracing_env(config: RenderConfig) -> list[Object]:
    """The environment that says where a sidecar or router sends its spans; empty without tracing."""
    return [{"name": name, "value": value} for name, value in sorted(config.tracing.items())]


def pull_secrets(config: RenderConfig, own: Sequence[dict[str, Any]] = ()) -> Object:
    """`imagePullSecrets`, if there are any: the user's, then the installation's."""
    taken = {secret.get("name") for secret in own}
    ours = [{"name": name} for name in config.image_pull_secrets if name not in taken]
    return {"imagePullSecrets": [*own, *ours]} if own or ours else {}


def spread(selector: dict[str, str]) -> list[Object]:
    """`topologySpreadConstraints`: spread over the nodes as evenly as possible, without delaying a pod.

    NB: over nodes only: if nodes have no zone, a soft constraint on zones would turn this one off.
    """
    return [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": selector},
        }
    ]


def probes(port: int) -> Object:
    """The three probes of a sidecar or a router, on its admin port.

    They tolerate a slow answer, but not a negative one: if processors are short, a healthy process answers
    late, and to take it out of service or to kill it makes the shortage worse.
    """

    def probe(path: str, *, period: int, failures: int) -> Object:
        return {
            "httpGet": {"path": path, "port": port},
            "periodSeconds": period,
            "timeoutSeconds": _PROBE_TIMEOUT_S,
            "failureThreshold": failures,
        }

    return {
        "startupProbe": probe(contract.LIVE_PATH, period=1, failures=60),
        "livenessProbe": probe(contract.LIVE_PATH, period=10, failures=6),
        "readinessProbe": probe(contract.READY_PATH, period=1, failures=3),
    }


def pulled(image: str, policy: str | None) -> dict[str, Any]:
    """A container's image, and its pull policy if one is asked for."""
    return {"image": image} | ({"imagePullPolicy": policy} if policy else {})
