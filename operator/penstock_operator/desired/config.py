"""The configuration of an installation that applies to all rendered objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from penstock_wire import contract


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterAutoscaling:
    """The scaling of each namespace's router by its CPU.

    Args:
        target: CPU use to aim at, in percent of the CPU that the pods request.
    """

    min_replicas: int
    max_replicas: int
    target: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderConfig:
    """The part of the operator's configuration on which rendered objects depend.

    Args:
        python_image: image of Python backends that bring code and name no image.
        format_image: image that serves the files of a format, whose name stands for `{format}`.
        image_pull_policy: imagePullPolicy of these; "" leaves it to Kubernetes.
        report_url: where sidecars and routers report, such as
            `https://penstock-operator.penstock-system.svc:8016`.
        authorities: certificates by which they verify the operator, PEM; they change while it runs.
        router_replicas: pods of each namespace's router, if it is not autoscaled.
        router_autoscaling: its scaling by CPU; None = `router_replicas`.
        router_cluster_role: name of the ClusterRole that lets a router read EndpointSlices.
        router_resources: resources of the router container, as in core/v1.
        router_scheduling: placement and priority of routers, as members of core/v1's PodSpec; its
            `topologySpreadConstraints`, if any, replace the spread over nodes.
        sidecar_resources: resources of a sidecar that names none, as in core/v1.
        backends_from: NetworkPolicyPeers that may call backends, beside the routers of their namespace.
        routers_from: NetworkPolicyPeers that may call routers; none given: all may.
        metrics_from: NetworkPolicyPeers that may scrape the admin ports of both; none given: none may.
        egress: NetworkPolicyEgressRules of routers in addition to what Penstock itself needs; one leads to
            the API server. None given: their connections are not limited.
        operator_namespace: where the operator's pods are; empty if reports go to something else.
        tracing: environment of each sidecar and router for OpenTelemetry, by name; none: no tracing.
        access_log: share of the requests that routers and sidecars log.
        image_pull_secrets: names of the Secrets, in the namespace of each pod, with which images are pulled.
    """

    sidecar_image: str
    router_image: str
    python_image: str = "localhost/penstock/python-model"
    format_image: str = "localhost/penstock/{format}-model"
    image_pull_policy: str = ""
    report_url: str = f"https://penstock-operator.penstock-system.svc:{contract.REPORTS_PORT}"
    authorities: str = ""
    router_replicas: int = 2
    router_autoscaling: RouterAutoscaling | None = None
    router_cluster_role: str = "penstock-router"
    router_resources: dict[str, Any] = field(
        default_factory=lambda: {
            "requests": {"cpu": "200m", "memory": "128Mi"},
            "limits": {"cpu": "1", "memory": "1Gi"},
        }
    )
    router_scheduling: dict[str, Any] = field(default_factory=dict)
    sidecar_resources: dict[str, Any] = field(
        default_factory=lambda: {
            "requests": {"cpu": "100m", "memory": "64Mi"},
            "limits": {"cpu": "1", "memory": "1Gi"},
        }
    )
    network_policies: bool = True
    backends_from: tuple[dict[str, Any], ...] = ({"podSelector": {}},)
    routers_from: tuple[dict[str, Any], ...] = ()
    metrics_from: tuple[dict[str, Any], ...] = ()
    egress: tuple[dict[str, Any], ...] = ()
    operator_namespace: str = "penstock-system"
    tracing: dict[str, str] = field(default_factory=dict)
    access_log: float = 0.0
    image_pull_secrets: tuple[str, ...] = ()
    token_audience: str = "penstock-operator"  # noqa: S105 - an audience, not a token
    token_seconds: int = 3600
