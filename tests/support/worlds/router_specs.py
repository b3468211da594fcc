"""Random inputs of a namespace's router: its endpoints, and the installation's values.

All of it is valid, as `tests.support.worlds.pod_specs`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from penstock_operator.desired.config import RouterAutoscaling
from tests.support.worlds.pod_specs import POSITIVE, RESOURCES, SCHEDULING, SMALL, Obj, some


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """The inputs from a namespace's endpoints and from the installation.

    Args:
        endpoints: spec of each endpoint by its name, of `e` and `f` one or both.
    """

    endpoints: dict[str, Obj]
    ports: dict[str, int]
    config: dict[str, Any]


_ENDPOINT = some(
    route=st.sampled_from(["", "/", "/v1/x"]),
    methods=st.lists(st.sampled_from(["GET", "POST", "PUT"]), max_size=3, unique=True),
    timeout=st.sampled_from(["1ms", "1m", "60s"]),
    timeouts=some(firstByte=st.just("1ms"), idle=st.sampled_from(["1m", "90s"]), total=st.just("2h")),
    maxBodyBytes=st.sampled_from([1, 2**40]),
    retries=SMALL,
    coldStart=some(timeout=st.sampled_from(["0s", "5m"]), maxPending=SMALL),
    sessionAffinity=st.sampled_from([{"header": "x-user"}, {"cookie": {"name": "pod", "ttl": "1h"}}]),
    static=st.sampled_from([[{"path": "/healthz"}, {"path": "/b", "status": 204}]]),
    cors=st.sampled_from(
        [{"origins": ["*"]}, {"origins": ["http://a:1", "null-x://b"], "credentials": True}]
    ),
).map(lambda fields: {"backend": "b", **fields})

_PEERS = st.lists(
    st.sampled_from(
        [
            {"podSelector": {}},
            {"podSelector": {"matchLabels": {"team": ""}}, "namespaceSelector": {}},
            {"namespaceSelector": {"matchLabels": {}, "matchExpressions": []}},
            {"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": []}]}},
            {"podSelector": {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b", ""]}]}},
            {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16", "10.2.0.0/16"]}},
            {"ipBlock": {"cidr": "2001:db8::/64", "except": []}},
        ]
    ),
    max_size=3,
).map(tuple)

_INSTALLED = some(
    router_image=st.sampled_from(["r:1", "r:2"]),
    image_pull_policy=st.sampled_from(["", "Always", "Never"]),
    authorities=st.sampled_from(["", "PEM\nPEM\n"]),
    router_replicas=POSITIVE,
    router_autoscaling=st.sampled_from(
        [RouterAutoscaling(min_replicas=1, max_replicas=most, target=70) for most in (1, 3)]
    ),
    router_resources=RESOURCES,
    router_scheduling=SCHEDULING,
    network_policies=st.sampled_from([True, True, False]),
    egress=st.sampled_from(
        [
            (),
            ({"ports": [{"port": 443}]},),
            ({"to": [{"ipBlock": {"cidr": "10.0.0.1/32"}}], "ports": [{"port": 6443, "endPort": 6444}]},),
            (
                {"to": [{"ipBlock": {"cidr": "2001:db8::1/128"}}]},
                {"ports": [{"protocol": "UDP", "port": 5353}]},
            ),
        ]
    ),
    image_pull_secrets=st.sampled_from([(), ("one",), ("two", "one")]),
    token_seconds=st.sampled_from([600, 3600]),
)
_CONFIG = st.tuples(_INSTALLED, st.fixed_dictionaries({"routers_from": _PEERS, "metrics_from": _PEERS})).map(
    lambda parts: parts[0] | parts[1]
)

ROUTERS = st.builds(
    lambda specs, ports, config: Router(
        endpoints=specs, ports=dict(zip("ef", ports, strict=True)), config=config
    ),
    st.one_of(
        st.fixed_dictionaries({"e": _ENDPOINT, "f": _ENDPOINT}),
        st.dictionaries(st.sampled_from("ef"), _ENDPOINT, min_size=1, max_size=1),
    ),
    st.lists(st.integers(min_value=20000, max_value=29999), min_size=2, max_size=2, unique=True),
    _CONFIG,
)
