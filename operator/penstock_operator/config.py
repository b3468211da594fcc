"""The operator's own configuration: flags, each also an environment variable `PENSTOCK_<FLAG>`."""

from __future__ import annotations

import argparse
import json
import math
import re
import socket
from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import pydantic
from kubernetes.utils.quantity import parse_quantity
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from penstock_operator import scheduling
from penstock_operator.api.core import QUANTITY
from penstock_operator.control.rotation import Lifetimes
from penstock_operator.desired.config import RenderConfig, RouterAutoscaling
from penstock_operator.errors import ConfigError, words_of
from penstock_wire import contract
from penstock_wire.durations import PATTERN, parse_ms
from penstock_wire.process import Parser, address

Duration = Annotated[str, Field(pattern=PATTERN)]

SHORTEST_AUTHORITY = "1h"
SHORTEST_CERTIFICATE = "10m"
"""Keys are checked every few seconds: much shorter lives end before they are replaced."""
LONGEST = "876000h"
"""A hundred years: a certificate's end has a year of four digits."""


def _lifetime(shortest: str) -> AfterValidator:
    def check(text: str) -> str:
        if parse_ms(text) < parse_ms(shortest):
            raise ValueError(f"expected at least {shortest}")
        if parse_ms(text) > parse_ms(LONGEST):
            raise ValueError(f"expected at most {LONGEST}")
        return text

    return AfterValidator(check)


def _list_of(kind: str) -> AfterValidator:
    def check(text: str) -> str:
        parsed = _parsed(text)
        if not isinstance(parsed, list) or not all(
            isinstance(element, dict) and element for element in parsed
        ):
            raise ValueError(f"expected a JSON list of {kind}s")
        return text

    return AfterValidator(check)


def _tracing(text: str) -> str:
    parsed = _parsed(text)
    if not isinstance(parsed, dict) or not all(isinstance(value, str) for value in parsed.values()):
        raise ValueError("expected a JSON object of strings")
    for name in parsed:
        if not re.match(_OTEL, name):
            raise ValueError(f"expected names of OpenTelemetry's variables, OTEL_…, found {name!r}")
    return text


def _parsed(text: str) -> Any:
    """Parse JSON.

    Raises:
        ValueError: the text is not JSON, or too deep.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"expected JSON: {error}") from None
    except RecursionError:
        raise ValueError("expected JSON of fewer levels") from None


def _resources(text: str) -> str:
    parsed = _parsed(text)
    fits = isinstance(parsed, dict) and parsed.keys() <= {"requests", "limits"}
    if not fits or not all(map(_quantities, parsed.values())):
        raise ValueError("expected a JSON object of requests and limits, each of quantities by name")
    limits = parsed.get("limits", {})
    for name, request in parsed.get("requests", {}).items():
        # NB: each pod would be refused; a request that was set beside a default limit is easily above it.
        if name in limits and _number(request) > _number(limits[name]):
            raise ValueError(f"expected limits.{name} of at least requests.{name} ({request})")
    return text


def _number(quantity: str | float) -> Decimal:
    return Decimal(parse_quantity(quantity))  # type: ignore[no-untyped-call]


def _quantities(part: object) -> bool:
    return isinstance(part, dict) and all(map(_is_quantity, part.values()))


def _is_quantity(value: object) -> bool:
    if isinstance(value, str):
        return re.fullmatch(QUANTITY, value) is not None
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _scheduling(text: str) -> str:
    scheduling.read(text)
    return text


class _Autoscaling(BaseModel):
    """A JSON object: how routers are scaled by their CPU, named as in a HorizontalPodAutoscaler."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    minReplicas: Annotated[int, Field(ge=1, le=100)]  # noqa: N815 - as it is spelled in JSON
    maxReplicas: Annotated[int, Field(ge=1, le=100)]  # noqa: N815
    targetCPUUtilizationPercentage: Annotated[int, Field(ge=1, le=1000)]  # noqa: N815


def _autoscaling(text: str) -> str:
    parsed = _parsed(text)
    if parsed == {}:
        return text
    try:
        read = _Autoscaling.model_validate(parsed)
    except pydantic.ValidationError as error:
        raise ValueError(f"expected a JSON object as a HorizontalPodAutoscaler has it: {error}") from None
    if read.maxReplicas < read.minReplicas:
        raise ValueError(
            f"maxReplicas: expected at least minReplicas ({read.minReplicas}), found {read.maxReplicas}"
        )
    return text


Variables = Annotated[str, AfterValidator(_tracing)]
"""A JSON object: values of OpenTelemetry's environment variables by name."""

Peers = Annotated[str, _list_of("NetworkPolicyPeer")]
"""A JSON list of NetworkPolicyPeers, as in networking.k8s.io/v1."""

ResourcesText = Annotated[str, AfterValidator(_resources)]
"""A JSON object: compute resources of a container, as in core/v1."""

AutoscalingText = Annotated[str, AfterValidator(_autoscaling)]
"""A JSON object: minReplicas, maxReplicas and targetCPUUtilizationPercentage; an empty one scales nothing."""

SchedulingText = Annotated[str, AfterValidator(_scheduling)]
"""A JSON object: members of core/v1's PodSpec for the placement and priority of a pod."""

Egress = Annotated[str, _list_of("NetworkPolicyEgressRule")]
"""A JSON list of NetworkPolicyEgressRules, as in networking.k8s.io/v1."""

_NAME = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
_OTEL = r"^OTEL_[A-Z0-9_]+\Z"
_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


class Config(BaseModel):
    """The configuration of one operator process.

    Every field is a flag of the same name, with dashes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kubeconfig: Annotated[
        str, Field(description="Kubeconfig to log in with; empty: the pod's own account.")
    ] = ""
    namespace: Annotated[
        str, Field(pattern=rf"^$|{_NAME}", description="Watch this namespace only; empty: all.")
    ] = ""
    listen: Annotated[str, Field(description="Address of health and metrics, HOST:PORT.")] = (
        f"[::]:{contract.OPERATOR_PORT}"
    )
    reports_listen: Annotated[str, Field(description="Address that takes reports over TLS, HOST:PORT.")] = (
        f"[::]:{contract.REPORTS_PORT}"
    )
    check_peer_address: Annotated[
        bool,
        Field(description="Take a pod's reports from its own address alone; off where a mesh rewrites it."),
    ] = True
    authority_lifetime: Annotated[
        Duration,
        _lifetime(SHORTEST_AUTHORITY),
        Field(description="Life of the authority that signs the server's certificate."),
    ] = "8760h"
    certificate_lifetime: Annotated[
        Duration, _lifetime(SHORTEST_CERTIFICATE), Field(description="Life of the server's certificate.")
    ] = "720h"
    authority_overlap: Annotated[
        Duration,
        Field(description="How long a new authority is published before it signs, and an old one after."),
    ] = "1h"
    workers: Annotated[int, Field(ge=1, le=64, description="Keys reconciled at once.")] = 8
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Field(description="How much is logged.")
    ] = "info"
    operator_namespace: Annotated[
        str, Field(pattern=_NAME, description="Namespace of the operator itself and its Service.")
    ] = "penstock-system"
    lease_namespace: Annotated[
        str, Field(pattern=_NAME, description="Namespace of the Lease by which one operator acts.")
    ] = "kube-system"
    service: Annotated[str, Field(pattern=_NAME, description="Name of the operator's Service.")] = (
        "penstock-operator"
    )
    pod: Annotated[str, Field(description="Name of the operator's pod; default: the host name.")] = ""
    pod_ip: Annotated[
        str, Field(description="Address of the operator's pod, for its Service; empty: not published.")
    ] = ""
    report_to: Annotated[
        str,
        Field(
            pattern=r"^(https?://[^/\s]+)?$",
            description="Where pods report; default: the operator's Service. http: no TLS, for one machine.",
        ),
    ] = ""
    sidecar_image: Annotated[str, Field(min_length=1, description="Image of the sidecar.")] = (
        "localhost/penstock/sidecar"
    )
    router_image: Annotated[str, Field(min_length=1, description="Image of the router.")] = (
        "localhost/penstock/router"
    )
    python_image: Annotated[
        str, Field(min_length=1, description="Image of Python backends that bring code and name no image.")
    ] = "localhost/penstock/python-model"
    format_image: Annotated[
        str,
        Field(
            pattern=r"^[^\s{}]*\{format\}[^\s{}]*$",
            description="Image that serves the files of a format, whose name stands for {format}.",
        ),
    ] = "localhost/penstock/{format}-model"
    image_pull_policy: Annotated[
        Literal["", "Always", "IfNotPresent", "Never"],
        Field(description="Pull policy of these; empty: Kubernetes' own."),
    ] = ""
    image_pull_secrets: Annotated[
        str, Field(description="Names, by commas, of Secrets in each pod's namespace to pull images with.")
    ] = ""
    network_policies: Annotated[bool, Field(description="Render NetworkPolicies.")] = True
    backends_from: Annotated[
        Peers, Field(description="NetworkPolicyPeers that may call backends, beside routers; a JSON list.")
    ] = '[{"podSelector": {}}]'
    routers_from: Annotated[
        Peers, Field(description="NetworkPolicyPeers that may call routers, a JSON list; empty: all may.")
    ] = "[]"
    metrics_from: Annotated[
        Peers, Field(description="NetworkPolicyPeers that may scrape metrics, a JSON list; empty: none may.")
    ] = "[]"
    egress: Annotated[
        Egress,
        Field(
            description="NetworkPolicyEgressRules that lead routers to the API server, a JSON list; none:"
            " what routers open is not limited."
        ),
    ] = "[]"
    tracing_endpoint: Annotated[
        str,
        Field(
            pattern=r"^(https?://[^\s]+)?$",
            description="Where sidecars and routers send spans by OTLP over HTTP, http[s]://HOST:PORT; "
            "empty: they send none.",
        ),
    ] = ""
    tracing_environment: Annotated[
        Variables, Field(description="Further variables of OpenTelemetry for both, a JSON object.")
    ] = "{}"
    prometheus_url: Annotated[
        str,
        Field(
            pattern=r"^(https?://[^/\s?#@]+(/[^\s?#]*)?)?$",
            description="Prometheus server that the queries of releases are put to, http[s]://HOST:PORT, "
            "with a path where its API has one; empty: none.",
        ),
    ] = ""
    prometheus_credentials: Annotated[
        str,
        Field(
            description="Folder with a bearer token for it (token) and the certificates of those who may "
            "sign its own (ca.crt), each where it is there; needs https; empty: none."
        ),
    ] = ""
    access_log: Annotated[
        float, Field(ge=0, le=1, description="Share of the requests that routers and sidecars log.")
    ] = 0.0
    router_mode: Annotated[
        Literal["PerNamespace", "Shared"],
        Field(
            description="Which router a namespace has whose label penstock.dev/router (own, shared) does not "
            "say it: its own, or the one that all such namespaces share."
        ),
    ] = "PerNamespace"
    router_replicas: Annotated[int, Field(ge=1, le=100, description="Pods of each router.")] = 2
    router_autoscaling: Annotated[
        AutoscalingText,
        Field(
            description="How each namespace's router is scaled by its CPU: minReplicas, maxReplicas, "
            "targetCPUUtilizationPercentage; a JSON object, {}: it is not."
        ),
    ] = "{}"
    router_resources: Annotated[
        ResourcesText, Field(description="Resources of a router, as in core/v1; a JSON object.")
    ] = '{"requests": {"cpu": "200m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}}'
    sidecar_resources: Annotated[
        ResourcesText,
        Field(description="Resources of a sidecar whose backend sets none, as in core/v1; a JSON object."),
    ] = '{"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}}'
    router_scheduling: Annotated[
        SchedulingText,
        Field(
            description="Where routers run, as in core/v1: priorityClassName, nodeSelector, tolerations, "
            "affinity, topologySpreadConstraints; a JSON object."
        ),
    ] = "{}"
    router_cluster_role: Annotated[
        str, Field(description="ClusterRole that lets routers read EndpointSlices.")
    ] = "penstock-router"

    dry_run: Annotated[
        bool,
        Field(description="Print what would be written, as YAML, and exit; needs no right but to read."),
    ] = False
    file: Annotated[
        str,
        Field(description="With --dry-run: resources of this YAML file (- for standard input), no cluster."),
    ] = ""

    @field_validator("router_mode")
    @classmethod
    def _sees_all(cls, mode: str, info: ValidationInfo) -> str:
        if mode == "Shared" and info.data.get("namespace"):
            raise ValueError("expected PerNamespace where one namespace alone is watched, found Shared")
        return mode

    @field_validator("authority_overlap")
    @classmethod
    def _overlaps(cls, text: str, info: ValidationInfo) -> str:
        life = info.data.get("authority_lifetime")
        # NB: a rotation takes two overlaps, and begins with a third of the life left.
        if life is not None and 6 * parse_ms(text) > parse_ms(life):
            raise ValueError(f"expected at most a sixth of the authority's lifetime ({life})")
        return text

    @field_validator("prometheus_credentials")
    @classmethod
    def _is_secret(cls, text: str, info: ValidationInfo) -> str:
        if text and not info.data.get("prometheus_url", "https:").startswith("https:"):
            raise ValueError("expected https in --prometheus-url where credentials are sent")
        return text

    @field_validator("router_resources")
    @classmethod
    def _has_cpu(cls, text: str, info: ValidationInfo) -> str:
        scaled = json.loads(info.data.get("router_autoscaling", "{}"))
        # NB: without it the autoscaler cannot compute a utilization, and scales nothing.
        if scaled and not json.loads(text).get("requests", {}).get("cpu"):
            raise ValueError("expected requests.cpu where routers are autoscaled by it, found none")
        return text

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the control server."""
        return address(self.listen)

    @property
    def reports_address(self) -> tuple[str, int] | None:
        """Host and port for reports over TLS; None if pods report in plain text."""
        return address(self.reports_listen) if self._report_url.startswith("https:") else None

    @property
    def ports(self) -> dict[str, int]:
        """The ports of the operator's Service by name."""
        reports = self.reports_address
        return {"control": self.address[1]} | ({"reports": reports[1]} if reports is not None else {})

    @property
    def names(self) -> tuple[str, ...]:
        """The DNS names and addresses by which pods reach the reports' port."""
        host = urlsplit(self._report_url).hostname or ""
        service = f"{self.service}.{self.operator_namespace}"
        return tuple(dict.fromkeys((host, f"{service}.svc", service, self.service)))

    @property
    def keys_secret(self) -> str:
        """Name of the Secret with the keys of the reports' port, in the operator's namespace."""
        return f"{self.service}-tls"

    @property
    def lifetimes(self) -> Lifetimes:
        """The lifetimes of the report channel's keys."""
        return Lifetimes(
            authority=parse_ms(self.authority_lifetime) / 1000,
            certificate=parse_ms(self.certificate_lifetime) / 1000,
            overlap=parse_ms(self.authority_overlap) / 1000,
        )

    @property
    def _report_url(self) -> str:
        port = address(self.reports_listen)[1]
        return self.report_to or f"https://{self.service}.{self.operator_namespace}.svc:{port}"

    @property
    def _tracing(self) -> dict[str, str]:
        variables: dict[str, str] = json.loads(self.tracing_environment)
        return variables | ({_ENDPOINT: self.tracing_endpoint} if self.tracing_endpoint else {})

    @property
    def _router_autoscaling(self) -> RouterAutoscaling | None:
        values: dict[str, int] = json.loads(self.router_autoscaling)
        if not values:
            return None
        return RouterAutoscaling(
            min_replicas=values["minReplicas"],
            max_replicas=values["maxReplicas"],
            target=values["targetCPUUtilizationPercentage"],
        )

    @property
    def identity(self) -> str:
        """The name of this process in the Lease and in Events."""
        return self.pod or socket.gethostname()

    @property
    def render(self) -> RenderConfig:
        """The part of the configuration that affects rendered objects."""
        return RenderConfig(
            sidecar_image=self.sidecar_image,
            router_image=self.router_image,
            python_image=self.python_image,
            format_image=self.format_image,
            image_pull_policy=self.image_pull_policy,
            report_url=self._report_url,
            router_replicas=self.router_replicas,
            router_autoscaling=self._router_autoscaling,
            router_resources=json.loads(self.router_resources),
            router_scheduling=scheduling.read(self.router_scheduling),
            sidecar_resources=json.loads(self.sidecar_resources),
            router_cluster_role=self.router_cluster_role,
            network_policies=self.network_policies,
            backends_from=tuple(json.loads(self.backends_from)),
            routers_from=tuple(json.loads(self.routers_from)),
            metrics_from=tuple(json.loads(self.metrics_from)),
            egress=tuple(json.loads(self.egress)),
            operator_namespace="" if self.report_to else self.operator_namespace,
            tracing=self._tracing,
            access_log=self.access_log,
            image_pull_secrets=tuple(name for name in self.image_pull_secrets.split(",") if name),
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
        switch = {"action": argparse.BooleanOptionalAction} if field.annotation is bool else {}
        parser.flag(name.replace("_", "-"), default=field.default, help=field.description, **switch)
    parser.add_argument("-f", dest="file", default=argparse.SUPPRESS, help="Same as --file.")
    values: dict[str, Any] = vars(parser.parse_args(argv))
    try:
        for flag in ("listen", "reports_listen"):
            try:
                address(values[flag])
            except Exception as error:  # argparse's own error type, outside of its parser
                raise ConfigError(f"--{flag.replace('_', '-')}: {error}") from None
        config = Config.model_validate(values)
    except pydantic.ValidationError as error:
        faults = "; ".join(
            f"--{re.sub('_', '-', str(fault['loc'][0]))}: {words_of(fault)}, found {fault['input']!r}"
            for fault in error.errors(include_url=False)
        )
        raise ConfigError(faults) from None
    if config.file and not config.dry_run:
        raise ConfigError("--file: only with --dry-run")
    return config
