"""The sidecar: a native sidecar (an init container that stays) in every pod of a backend."""

from __future__ import annotations

import hashlib
import json

from penstock_operator.api import ModelBackend
from penstock_operator.api.defaults import reconfigure_path
from penstock_operator.api.warmup import Warmup
from penstock_operator.desired import artifact, names, pods
from penstock_operator.desired.config import RenderConfig
from penstock_operator.desired.objects import Object
from penstock_wire import contract, headers

DATA_PORT = contract.SIDECAR_PORT
ADMIN_PORT = contract.SIDECAR_ADMIN_PORT


def arguments(backend: ModelBackend, config: RenderConfig) -> list[str]:
    """The sidecar's command line: all that rolls pods; hot fields are in its settings."""
    spec = backend.spec
    words = {
        "--listen": f"[::]:{DATA_PORT}",
        "--admin": f"[::]:{ADMIN_PORT}",
        "--model": f"http://127.0.0.1:{spec.model.port}",
        "--settings": pods.SETTINGS_FILE,
        "--protocol": spec.model.protocol,
        "--ready-path": spec.model.ready_path,
        "--drain-timeout": spec.drain.timeout,
        "--propagation-delay": spec.drain.propagation_delay,
        **pods.reporting(config),
        "--log-level": spec.sidecar.log_level,
    }
    if spec.model.grpc_port is not None:
        words["--model-grpc-port"] = str(spec.model.grpc_port)
    if (path := reconfigure_path(backend)) is not None:
        words["--reconfigure-path"] = path
    if spec.model.artifact is not None and spec.model.artifact.is_downloaded:
        words["--artifact"] = artifact.STATE_FILE
    if spec.warmup is not None:
        words |= {"--warmup": pods.WARMUP_FILE, "--warmup-timeout": spec.warmup.timeout}
    return [word for pair in words.items() for word in pair]


def container(backend: ModelBackend, *, config: RenderConfig, drain_secret: str) -> Object:
    """The sidecar container of a backend (arguments as in `deployment.pod_template`).

    It has a startup probe only if a first step is to ask it: all that follows, the model too, would start
    only once that succeeds, a second or two later. The pod is ready when /readyz succeeds, which waits for
    the model and for settings.
    """
    wanted, brought = backend.spec.sidecar, backend.spec.model.artifact
    probes = pods.probes(ADMIN_PORT)
    if brought is None or not brought.is_downloaded:
        del probes["startupProbe"]
    return {
        "name": names.SIDECAR_CONTAINER,
        **pods.pulled(config.sidecar_image, config.image_pull_policy),
        "restartPolicy": "Always",
        "args": arguments(backend, config),
        "env": [
            *pods.identity_env(),
            {"name": contract.BACKEND_ENV, "value": backend.name},
            {"name": contract.DRAIN_SECRET_ENV, "value": drain_secret},
            *reconfigure_env(backend, drain_secret),
            *pods.tracing_env(config),
        ],
        "ports": [
            {"name": "http", "containerPort": DATA_PORT, "protocol": "TCP"},
            {"name": "admin", "containerPort": ADMIN_PORT, "protocol": "TCP"},
            *(
                {"name": "artifact", "containerPort": port, "protocol": "TCP"}
                for port in artifact.ports(backend)
            ),
        ],
        **probes,
        "resources": config.sidecar_resources if wanted.resources is None else wanted.resources.document(),
        "securityContext": pods.container_security(user=pods.USER),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            *pods.reporter_mounts(),
            *([pods.warmup_mount()] if backend.spec.warmup else []),
            *artifact.sidecar_mounts(backend),
        ],
    }


def reconfigure_env(backend: ModelBackend, drain_secret: str) -> list[Object]:
    """The secret that shows a model that its sidecar reconfigures it; none if it takes no userConfig.

    It is a hash of the drain secret, which it does not reveal: a model must not be able to drain its pod.
    """
    if reconfigure_path(backend) is None:
        return []
    secret = hashlib.sha256(f"reconfigure {drain_secret}".encode()).hexdigest()[:32]
    return [{"name": contract.RECONFIGURE_SECRET_ENV, "value": secret}]


def warmup_requests(warmup: Warmup) -> str:
    """The content of the sidecar's warm-up file: the requests as a JSON list."""
    requests = [
        {"path": request.path, "method": request.method, "headers": request.headers, "body": request.body}
        for request in warmup.requests
    ]
    return json.dumps(requests, separators=(",", ":"), ensure_ascii=False)


def pre_stop(drain_secret: str) -> Object:
    """The model container's preStop: kubelet signals the model only after the sidecar answered the drain."""
    fields = [{"name": headers.DRAIN.decode(), "value": drain_secret}]
    return {"preStop": {"httpGet": {"path": contract.DRAIN_PATH, "port": ADMIN_PORT, "httpHeaders": fields}}}
