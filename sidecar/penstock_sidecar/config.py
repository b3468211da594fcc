"""The sidecar's command line; each flag is also the environment variable `PENSTOCK_<FLAG>`."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from penstock_sidecar.model import warmup
from penstock_sidecar.passthrough.passthrough import NONE
from penstock_sidecar.protocols import PROTOCOLS
from penstock_wire import contract, process
from penstock_wire.access_log import share
from penstock_wire.errors import DocumentError
from penstock_wire.http import Request


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Configuration that does not change while the process runs; durations in seconds.

    Args:
        listen: address of the data port.
        admin: address of the admin port.
        model: address of the model.
        model_grpc_port: the model's port for gRPC calls that pass as they are; 0 = it takes none. If it is
            that of `model`, that speaks gRPC alone.
        settings: the settings file, if any.
        protocol: name of the protocol by which requests are joined.
        ready_path: path of the model's readiness.
        ready_status: highest status there of a model that is ready.
        reconfigure_path: path at which the model takes its userConfig, if any.
        warmup: requests that the model must answer before the pod is ready.
        warmup_timeout: time limit of each warm-up request.
        artifact: file with the state of the model's artifact, if it has one.
        drain_timeout: time until queued requests are refused.
        propagation_delay: time until all senders have noticed that the pod is leaving.
        grace: time that the pod is given to end; None for the sum of both and 30 s.
        report_to: base URL of the operator, if any.
        report_ca: certificates of the authorities that may sign the operator's; `https` needs them.
        token_file: file with the token that reports carry, if any.
        log_level: debug, info, warning or error.
        access_log: share of the requests that are logged.
        tracing: whether spans are exported by OpenTelemetry.
        debug: whether `/debug/tasks` is served.
        memory_limit: bytes that the process may use; 0 for its cgroup's limit.
        pod: name of the pod.
        pod_uid: uid of the pod.
        backend: name of the backend, until settings bring it.
        drain_secret: secret that requests to `/drain` must carry; empty = none.
        reconfigure_secret: secret that is sent to the model with its userConfig; empty = none.
    """

    listen: tuple[str, int]
    admin: tuple[str, int]
    model: tuple[str, int]
    model_grpc_port: int = 0
    settings: Path | None = None
    protocol: str = "instances"
    ready_path: str = "/"
    ready_status: int = 399
    reconfigure_path: str | None = None
    warmup: tuple[Request, ...] = ()
    warmup_timeout: float = 60.0
    artifact: Path | None = None
    drain_timeout: float = 30.0
    propagation_delay: float = 5.0
    grace: float | None = None
    report_to: str | None = None
    report_ca: Path | None = None
    token_file: Path | None = None
    log_level: str = "info"
    access_log: float = 0.0
    tracing: bool = False
    debug: bool = False
    memory_limit: int = 0
    pod: str = ""
    pod_uid: str = ""
    backend: str = ""
    drain_secret: str = ""
    reconfigure_secret: str = ""


def _model(text: str) -> tuple[str, int]:
    parts = urlsplit(text)
    try:
        port = parts.port or 80
    except ValueError:
        port = 0
    if parts.scheme != "http" or not parts.hostname or not port or parts.path not in ("", "/") or parts.query:
        raise argparse.ArgumentTypeError(f"expected a URL such as http://127.0.0.1:8080, found {text!r}")
    return parts.hostname, port


def _path(text: str) -> str:
    if not text.startswith("/"):
        raise argparse.ArgumentTypeError(f"expected a path that begins with /, found {text!r}")
    return text


def _warmup(text: str) -> tuple[Request, ...]:
    try:
        return warmup.read(Path(text))
    except DocumentError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def parse(arguments: Sequence[str] | None = None) -> Config:
    """Read the command line and the environment; ends the process with a message if they are not valid."""
    parser = process.Parser(
        prog="penstock-sidecar", description="Gathers single requests into batches for one model server."
    )
    flag = parser.flag
    flag(
        "listen",
        type=process.address,
        default=("127.0.0.1", contract.SIDECAR_PORT),
        help="data address, HOST:PORT",
    )
    flag(
        "admin",
        type=process.address,
        default=("127.0.0.1", contract.SIDECAR_ADMIN_PORT),
        help="admin address, HOST:PORT",
    )
    flag("model", type=_model, default=("127.0.0.1", contract.MODEL_PORT), help="the model server's URL")
    flag("model-grpc-port", type=int, default=0, help="the model's port for gRPC, its only one or another")
    flag("settings", type=Path, help="settings file, JSON or YAML; read again when it changes")
    flag("protocol", choices=sorted((*PROTOCOLS, NONE)), default="instances", help="how requests are joined")
    flag(
        "ready-path", type=_path, default="/", help="path that the model answers 200 to 399 when it is ready"
    )
    flag("ready-status", type=int, default=399, help="highest status there of a model that is ready")
    flag("reconfigure-path", type=_path, help="path that takes userConfig by POST; closed to clients")
    flag(
        "warmup",
        type=_warmup,
        default=(),
        help="file of requests that the model must answer before the pod is ready",
    )
    flag(
        "warmup-timeout",
        type=process.duration,
        default=60.0,
        help="time limit of each warm-up request, as 60s",
    )
    flag("artifact", type=Path, help="file in which the pod's first step says how far the model's files are")
    flag(
        "drain-timeout",
        type=process.duration,
        default=30.0,
        help="time until queued requests are refused, as 30s",
    )
    flag(
        "propagation-delay",
        type=process.duration,
        default=5.0,
        help="time until routers have removed the pod, as 5s",
    )
    flag(
        "grace",
        type=process.duration,
        help="time until the process is killed; by default both of these and 30s",
    )
    flag("report-to", help="the operator's URL; without it the sidecar runs alone")
    flag("report-ca", type=Path, help="file with the authorities that may sign the operator's certificate")
    flag("token-file", type=Path, help="file with the token that reports carry")
    flag("log-level", choices=("debug", "info", "warning", "error"), default="info", help="what is logged")
    flag("access-log", type=share, default=0.0, help="share of the requests that are logged, as 0.01")
    flag("memory-limit", type=int, default=0, help="bytes for this process; 0 = its cgroup's, else 1 GiB")
    parser.switch("tracing", help="export spans as the OTEL_* environment says; needs the extra `tracing`")
    parser.switch("debug", help="serve /debug/tasks on the admin port")
    values = vars(parser.parse_args(arguments))
    return Config(
        **values,
        pod=os.environ.get(contract.POD_ENV, ""),
        pod_uid=os.environ.get(contract.POD_UID_ENV, ""),
        backend=os.environ.get(contract.BACKEND_ENV, ""),
        drain_secret=os.environ.get(contract.DRAIN_SECRET_ENV, ""),
        reconfigure_secret=os.environ.get(contract.RECONFIGURE_SECRET_ENV, ""),
    )
