"""NetworkPolicies: the peers that may connect to Penstock's pods, and the connections that routers may open.

It is unknown what a model calls, so model pods may open any connection. A router's peers are known, except
the API server: no selector selects it, and each CNI plugin decides whether a rule matches its Service's
address and port or those behind it. A wrong rule there cuts routers off. So their connections are limited
only if the installation says how the API server is reached.

A policy that selects a pod closes every port that it does not name. So only its own pod reaches the model's
port, over the loopback interface, to which no policy applies. Nor does one apply to kubelet.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from penstock_operator.desired import labels
from penstock_operator.desired.config import RenderConfig
from penstock_operator.desired.objects import Object

DNS_PORT = 53
NAMESPACE_NAME = "kubernetes.io/metadata.name"
"""Label of each namespace: its name."""

Ports = Sequence[int | tuple[int, int]]
"""Ports, and ranges of ports, both ends included."""


def of_backend(
    metadata: Object,
    selector: dict[str, str],
    *,
    data: int,
    admin: int,
    own: Sequence[int],
    config: RenderConfig,
) -> Object:
    """A backend's policy: its namespace's routers, and the installation's peers, may call its sidecars.

    Args:
        data: port of requests.
        own: ports that its own pods may call.
    """
    routers: list[Object] = [
        {"podSelector": {"matchLabels": {labels.APP_NAME: app}}}
        for app in (labels.APP_ROUTER, labels.APP_DEDICATED_ROUTER)
    ]
    if config.operator_namespace:  # the router that namespaces share
        shared = {"matchLabels": labels.shared_router_selector()}
        home = {"matchLabels": {NAMESPACE_NAME: config.operator_namespace}}
        routers.append({"namespaceSelector": home, "podSelector": shared})
    return _policy(
        metadata,
        selector,
        [
            _rule([*routers, *config.backends_from], [data]),
            *([_rule([{"podSelector": {"matchLabels": dict(selector)}}], own)] if own else []),
            *_metrics(admin, config),
        ],
    )


def of_router(
    metadata: Object,
    selector: dict[str, str],
    *,
    data: Ports,
    admin: int,
    sidecars: int,
    config: RenderConfig,
    everywhere: bool = False,
) -> Object:
    """A router's policy: all peers may call it unless the installation names some; and what it may call.

    Args:
        data: ports of requests.
        sidecars: port of requests of model pods.
        everywhere: whether it may call the backends of all namespaces.
    """
    policy = _policy(metadata, selector, [_rule(config.routers_from, data), *_metrics(admin, config)])
    if config.egress:
        policy["spec"]["policyTypes"].append("Egress")
        policy["spec"]["egress"] = [
            {
                "to": [
                    {"podSelector": {"matchLabels": labels.backends_selector()}}
                    | ({"namespaceSelector": {}} if everywhere else {})
                ],
                "ports": _ports([sidecars]),
            },
            _reports(config),
            {"ports": [{"protocol": protocol, "port": DNS_PORT} for protocol in ("UDP", "TCP")]},
            *config.egress,
        ]
    return policy


def _reports(config: RenderConfig) -> Object:
    """The rule that lets pods report to the operator."""
    url = urlsplit(config.report_url)
    ports = _ports([url.port or (443 if url.scheme == "https" else 80)])
    if not config.operator_namespace:
        return {"ports": ports}
    namespace = {"matchLabels": {NAMESPACE_NAME: config.operator_namespace}}
    operator = {"matchLabels": {labels.APP_NAME: labels.APP_OPERATOR}}
    return {"to": [{"namespaceSelector": namespace, "podSelector": operator}], "ports": ports}


def _metrics(admin: int, config: RenderConfig) -> list[Object]:
    # NB: a rule without peers would be open to all.
    return [_rule(config.metrics_from, [admin])] if config.metrics_from else []


def _rule(peers: Sequence[Object], ports: Ports) -> Object:
    return ({"from": list(peers)} if peers else {}) | {"ports": _ports(ports)}


def _ports(ports: Ports) -> list[Object]:
    return [
        {"protocol": "TCP", "port": port}
        if isinstance(port, int)
        else {"protocol": "TCP", "port": port[0], "endPort": port[1]}
        for port in ports
    ]


def _policy(metadata: Object, selector: dict[str, str], ingress: list[Object]) -> Object:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata,
        "spec": {"podSelector": {"matchLabels": selector}, "policyTypes": ["Ingress"], "ingress": ingress},
    }
