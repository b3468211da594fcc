"""NetworkPolicies: who may open connections to our pods. What they open themselves is left alone.

A policy that selects a pod closes every port that it does not name. So the model's own port is reached by its
own pod only, over the loopback interface, which no policy sees. Nor does one see what kubelet sends.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock_operator.desired import labels
from penstock_operator.desired.config import RenderConfig
from penstock_operator.desired.objects import Object

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
    routers = {"podSelector": {"matchLabels": labels.router_selector()}}
    return _policy(
        metadata,
        selector,
        [_rule([routers, *config.backends_from], [data]), *_metrics(admin, config)],
    )


def of_router(
    metadata: Object, selector: dict[str, str], *, data: Ports, admin: int, config: RenderConfig
) -> Object:
    """A router's: the way in, open to everybody unless the installation names who may.

    Args:
        metadata: its metadata.
        selector: the labels of the pods.
        data: ports of requests.
        admin: port of metrics.
        config: what the installation decides.
    """
    return _policy(metadata, selector, [_rule(config.routers_from, data), *_metrics(admin, config)])


def _metrics(admin: int, config: RenderConfig) -> list[Object]:
    # NB: a rule without peers would be open to everybody.
    return [_rule(config.metrics_from, [admin])] if config.metrics_from else []


def _rule(peers: Sequence[Object], ports: Ports) -> Object:
    opened = [
        {"protocol": "TCP", "port": port}
        if isinstance(port, int)
        else {"protocol": "TCP", "port": port[0], "endPort": port[1]}
        for port in ports
    ]
    return ({"from": list(peers)} if peers else {}) | {"ports": opened}


def _policy(metadata: Object, selector: dict[str, str], ingress: list[Object]) -> Object:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata,
        "spec": {"podSelector": {"matchLabels": selector}, "policyTypes": ["Ingress"], "ingress": ingress},
    }
