"""The operator's own configuration: flags, each also an environment variable `PENSTOCK_<FLAG>`."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from penstock_operator.desired.config import RenderConfig
from penstock_operator.errors import ConfigError
from penstock_wire.process import Parser, address

_NAME = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"


class Config(BaseModel):
    """What one operator process was told.

    Every field is a flag of the same name, with dashes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kubeconfig: Annotated[
        str, Field(description="Kubeconfig to log in with; empty: the pod's own account.")
    ] = ""
    namespace: Annotated[
        str, Field(pattern=rf"^$|{_NAME}", description="Watch this namespace only; empty: all.")
    ] = ""
    listen: Annotated[str, Field(description="Address of the control server, HOST:PORT.")] = "0.0.0.0:8015"
    workers: Annotated[int, Field(ge=1, le=64, description="Keys reconciled at once.")] = 8
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Field(description="How much is logged.")
    ] = "info"
    operator_namespace: Annotated[
        str, Field(pattern=_NAME, description="Namespace of the operator itself, its Lease and its Service.")
    ] = "penstock-system"
    service: Annotated[
        str, Field(pattern=_NAME, description="Name of the operator's Service, and of its Lease.")
    ] = "penstock-operator"
    pod: Annotated[str, Field(description="Name of the operator's pod; default: the host name.")] = ""
    pod_ip: Annotated[
        str, Field(description="Address of the operator's pod, for its Service; empty: not published.")
    ] = ""
    report_to: Annotated[str, Field(description="Where pods report; default: the operator's Service.")] = ""
    sidecar_image: Annotated[str, Field(min_length=1, description="Image of the sidecar.")] = (
        "penstock/sidecar"
    )
    router_image: Annotated[str, Field(min_length=1, description="Image of the router.")] = "penstock/router"
    image_pull_policy: Annotated[
        Literal["", "Always", "IfNotPresent", "Never"],
        Field(description="Pull policy of both; empty: Kubernetes' own."),
    ] = ""
    router_replicas: Annotated[int, Field(ge=1, le=100, description="Router pods in each namespace.")] = 1
    router_cluster_role: Annotated[
        str, Field(description="ClusterRole that lets routers read EndpointSlices.")
    ] = "penstock-router"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the control server."""
        return address(self.listen)

    @property
    def identity(self) -> str:
        """What this process calls itself in the Lease and in Events."""
        return self.pod or socket.gethostname()

    @property
    def render(self) -> RenderConfig:
        """What of it shows in rendered objects."""
        url = self.report_to or f"http://{self.service}.{self.operator_namespace}.svc:{self.address[1]}"
        return RenderConfig(
            sidecar_image=self.sidecar_image,
            router_image=self.router_image,
            image_pull_policy=self.image_pull_policy,
            report_url=url,
            router_replicas=self.router_replicas,
            router_cluster_role=self.router_cluster_role,
        )


def parse(argv: Sequence[str] | None = None) -> Config:
    """The configuration of this process, from its command line and environment.

    Args:
        argv: the command line without the program's name; None for this process's own.

    Raises:
        ConfigError: a value does not make sense; the message names the flag.
    """
    parser = Parser(prog="penstock-operator", description="The control plane of Penstock.")
    for name, field in Config.model_fields.items():
        parser.flag(name.replace("_", "-"), default=field.default, help=field.description)
    values: dict[str, Any] = vars(parser.parse_args(argv))
    try:
        config = Config.model_validate(values)
        _ = config.address
    except pydantic.ValidationError as error:
        faults = "; ".join(
            f"--{re.sub('_', '-', str(fault['loc'][0]))}: {fault['msg']}, found {fault['input']!r}"
            for fault in error.errors(include_url=False)
        )
        raise ConfigError(faults) from None
    except Exception as error:  # argparse's own error type, outside of its parser
        raise ConfigError(f"--listen: {error}") from None
    return config
