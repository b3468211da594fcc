"""Who serves what in a namespace: routes, splits and weights, conflicts decided by age."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock_wire import router_settings

from penstock_operator.api import ModelEndpoint, TrafficSplit


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
    """

    route: str
    route_taken_by: str | None = None
    split: str | None = None
    backends: tuple[Weight, ...] = ()
    missing: tuple[str, ...] = ()


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
        used_by: for each backend name, `ModelEndpoint/NAME` and `TrafficSplit/NAME` that send it requests, sorted.
    """

    endpoints: Mapping[str, EndpointPlan]
    splits: Mapping[str, SplitPlan]
    used_by: Mapping[str, tuple[str, ...]]


def plan(
    endpoints: Sequence[ModelEndpoint], splits: Sequence[TrafficSplit], backends: Mapping[str, bool]
) -> TrafficPlan:
    """Decide who serves what in a namespace.

    An endpoint whose split was deleted keeps the weights in its `status.backends` until `spec.backend` is ready.

    Args:
        endpoints: all endpoints of the namespace.
        splits: all splits of the namespace.
        backends: the backends that exist, and whether each has a ready pod.
    """
    raise NotImplementedError


def router_endpoints(
    endpoints: Sequence[ModelEndpoint], found: TrafficPlan, ports: Mapping[str, int]
) -> tuple[router_settings.Endpoint, ...]:
    """The endpoints as the router is told them, sorted by name; an endpoint without a port is left out."""
    raise NotImplementedError
