"""NetworkPolicies: who may open connections to our pods, and what routers may open themselves.

What models call is theirs to say, so their pods open what they like. What routers need is known, but for
the API server: no selector selects it, and whether a CNI plugin looks at its Service's address and port or
at those behind it is the plugin's own choice. A rule that is wrong there cuts routers off. So what they open
is limited only where the installation says how the API server is reached.

A policy that selects a pod closes every port that it does not name. So the model's own port is reached by its
own pod only, over the loopback interface, which no policy sees. Nor does one see what kubelet sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from penstock_operator.desired import labels
from penstock_operator.desired.config import RenderConfig
from penstock_operator.desired.objects import Object

DNS_PORT = 53
NAMESPACE_NAME = "kubernetes.io/metadata.name"
"""Label that each namespace has, with its name."""

Ports = Sequence[int | tuple[int, int]]
"""Ports, and ranges of ports, ends included."""


def of_backend(
    metadata: Object, selector: dict[str, str], *, data: int, admin: int, config: RenderConfig
) -> Object:
    """A backend's: its namespace's routers call its sidecars, and whom else the installation names.

    Args:
        metadata: its metadata.
        selector: the labels of the pods.
        data: port of requests.
        admin: port of metrics.
        config: what the installation decides.
    """
    routers = [
        {"podSelector": {"matchLabels": {labels.APP_NAME: app}}}
        for app in (labels.APP_ROUTER, labels.APP_DEDICATED_ROUTER)
    ]
    return _policy(
        metadata,
        selector,
        [_rule([*routers, *config.backends_from], [data]), *_metrics(admin, config)],
    )


def of_router(
    metadata: Object,
    selector: dict[str, str],
    *,
    data: Ports,
    admin: int,
    sidecars: int,
    config: RenderConfig,
) -> Object:
    """A router's: the way in, open to everybody unless the installation names who may; and what it calls.

    Args:
        metadata: its metadata.
        selector: the labels of the pods.
        data: ports of requests.
        admin: port of metrics.
        sidecars: port of requests of model pods.
        config: what the installation decides.
    """
    policy = _policy(metadata, selector, [_rule(config.routers_from, data), *_metrics(admin, config)])
    if config.egress:
        policy["spec"]["policyTypes"].append("Egress")
        policy["spec"]["egress"] = [
            {
                "to": [{"podSelector": {"matchLabels": labels.backends_selector()}}],
                "ports": _ports([sidecars]),
            },
            _reports(config),
            {"ports": [{"protocol": protocol, "port": DNS_PORT} for protocol in ("UDP", "TCP")]},
            *config.egress,
        ]
    return policy


def _reports(config: RenderConfig) -> Object:
    """The rule that leads to whom pods report."""
    url = urlsplit(config.report_url)
    ports = _ports([url.port or (443 if url.scheme == "https" else 80)])
    if not config.operator_namespace:
        return {"ports": ports}
    namespace = {"matchLabels": {NAMESPACE_NAME: config.operator_namespace}}
    operator = {"matchLabels": {labels.APP_NAME: labels.APP_OPERATOR}}
    return {"to": [{"namespaceSelector": namespace, "podSelector": operator}], "ports": ports}


def _metrics(admin: int, config: RenderConfig) -> list[Object]:
    # NB: a rule without peers would be open to everybody.
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
