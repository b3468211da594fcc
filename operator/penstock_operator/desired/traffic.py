"""Who serves what in a namespace: routes, splits and weights, conflicts decided by age."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock_operator.api import ModelEndpoint, TrafficSplit
from penstock_operator.api.defaults import route
from penstock_wire import durations, router_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A backend's share of an endpoint."""

    name: str
    weight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointPlan:
    """What an endpoint gets.

    Args:
        route: its path prefix at the front door; "" for none, and for one that lost a conflict.
        route_taken_by: the endpoint that serves its route instead.
        split: the TrafficSplit that decides its weights.
        backends: who serves, as told to the router: backends that do not exist are left out while another
            one of weight > 0 exists.
        missing: backends that are named and do not exist.
        waits_for: the endpoint's own backend, if the last weights stand in until it is ready.
    """

    route: str
    route_taken_by: str | None = None
    split: str | None = None
    backends: tuple[Weight, ...] = ()
    missing: tuple[str, ...] = ()
    waits_for: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPlan:
    """What a split gets.

    Args:
        accepted: whether it decides its endpoint's weights.
        conflict_with: the older split on the same endpoint, if that is why not.
        endpoint_missing: whether its endpoint does not exist.
        missing: backends that are named and do not exist.
    """

    accepted: bool
    conflict_with: str | None = None
    endpoint_missing: bool = False
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficPlan:
    """The plan of a namespace: endpoints and splits by name, and who uses each backend.

    Args:
        endpoints: plan of each endpoint that is not being deleted.
        splits: plan of each split that is not being deleted.
        used_by: for each backend name, who uses it, sorted: `TrafficSplit/NAME` of a split that decides, and
            `ModelEndpoint/NAME` of an endpoint that names it (also while a split overrides that: when the
            split goes, the endpoint falls back to it) or that the last weights of a split stand in for.
    """

    endpoints: Mapping[str, EndpointPlan]
    splits: Mapping[str, SplitPlan]
    used_by: Mapping[str, tuple[str, ...]]


def plan(
    endpoints: Sequence[ModelEndpoint], splits: Sequence[TrafficSplit], backends: Mapping[str, bool]
) -> TrafficPlan:
    """Decide who serves what in a namespace.

    An endpoint keeps the weights in its `status.backends`, those of a split that was deleted, until
    `spec.backend` is ready.

    Args:
        endpoints: all endpoints of the namespace.
        splits: all splits of the namespace.
        backends: the backends that exist, and whether each has a ready pod.
    """
    there = sorted((item for item in endpoints if not item.deleting), key=lambda item: item.age_key)
    asked = sorted((item for item in splits if not item.deleting), key=lambda item: item.age_key)
    chosen: dict[str, TrafficSplit] = {}
    for split in asked:
        chosen.setdefault(split.spec.endpoint, split)
    routes: dict[str, str] = {}
    for endpoint in there:
        routes.setdefault(route(endpoint), endpoint.name)
    used: dict[str, set[str]] = {}
    plans: dict[str, EndpointPlan] = {}
    for endpoint in there:
        decided = chosen.get(endpoint.name)
        user = f"TrafficSplit/{decided.name}" if decided else f"ModelEndpoint/{endpoint.name}"
        weights = _weights(endpoint, decided, backends)
        for share in weights:
            used.setdefault(share.name, set()).add(user)
        own = endpoint.spec.backend
        used.setdefault(own, set()).add(f"ModelEndpoint/{endpoint.name}")
        waits_for = own if decided is None and own not in {share.name for share in weights} else None
        named = (*weights, Weight(name=waits_for, weight=1)) if waits_for else weights
        wanted = route(endpoint)
        lost = wanted != "" and routes[wanted] != endpoint.name
        plans[endpoint.name] = EndpointPlan(
            route="" if lost else wanted,
            route_taken_by=routes[wanted] if lost else None,
            split=decided.name if decided else None,
            backends=_present(weights, backends),
            missing=_missing(named, backends),
            waits_for=waits_for,
        )
    return TrafficPlan(
        endpoints=plans,
        splits={
            split.name: _split_plan(split, chosen[split.spec.endpoint], plans, backends) for split in asked
        },
        used_by={name: tuple(sorted(users)) for name, users in sorted(used.items())},
    )


def _weights(
    endpoint: ModelEndpoint, split: TrafficSplit | None, backends: Mapping[str, bool]
) -> tuple[Weight, ...]:
    """The shares that are asked for, before those of missing backends are dealt out."""
    if split is not None:
        return tuple(Weight(name=share.name, weight=share.weight) for share in split.spec.backends)
    if not backends.get(endpoint.spec.backend, False):
        last = tuple(
            Weight(name=share.name, weight=share.weight)
            for share in endpoint.status.backends
            if share.name in backends
        )
        if any(backends[share.name] and share.weight > 0 for share in last):
            return last
    return (Weight(name=endpoint.spec.backend, weight=1),)


def _present(weights: tuple[Weight, ...], backends: Mapping[str, bool]) -> tuple[Weight, ...]:
    """Without backends that do not exist, so that the others share their weight; all if none is left."""
    left = tuple(share for share in weights if share.name in backends)
    return left if any(share.weight > 0 for share in left) else weights


def _missing(weights: tuple[Weight, ...], backends: Mapping[str, bool]) -> tuple[str, ...]:
    return tuple(sorted(share.name for share in weights if share.name not in backends))


def _split_plan(
    split: TrafficSplit,
    chosen: TrafficSplit,
    endpoints: Mapping[str, EndpointPlan],
    backends: Mapping[str, bool],
) -> SplitPlan:
    endpoint_missing = split.spec.endpoint not in endpoints
    conflict = chosen.name if chosen.name != split.name else None
    return SplitPlan(
        accepted=conflict is None and not endpoint_missing,
        conflict_with=conflict,
        endpoint_missing=endpoint_missing,
        missing=tuple(sorted(share.name for share in split.spec.backends if share.name not in backends)),
    )


def router_endpoints(
    endpoints: Sequence[ModelEndpoint], found: TrafficPlan, ports: Mapping[str, int]
) -> tuple[router_settings.Endpoint, ...]:
    """The endpoints as the router is told them, sorted by name.

    Args:
        endpoints: all endpoints of the namespace.
        found: the namespace's plan.
        ports: port by endpoint name; an endpoint without one is left out.
    """
    return tuple(
        router_settings.Endpoint(
            name=endpoint.name,
            port=ports[endpoint.name],
            route=found.endpoints[endpoint.name].route,
            methods=endpoint.spec.methods,
            timeout_ms=durations.parse_ms(endpoint.spec.timeout),
            retries=endpoint.spec.retries,
            cold_start=router_settings.ColdStart(
                timeout_ms=durations.parse_ms(endpoint.spec.cold_start.timeout),
                max_pending=endpoint.spec.cold_start.max_pending,
            ),
            backends=tuple(
                router_settings.WeightedBackend(name=share.name, weight=share.weight)
                for share in found.endpoints[endpoint.name].backends
            ),
        )
        for endpoint in sorted(endpoints, key=lambda endpoint: endpoint.name)
        if endpoint.name in found.endpoints and endpoint.name in ports
    )
