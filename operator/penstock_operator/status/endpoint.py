"""The status of a ModelEndpoint, and what was observed of a namespace's router."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock_operator.api import ModelEndpoint
from penstock_operator.desired.objects import Object
from penstock_operator.desired.traffic import EndpointPlan
from penstock_wire.report import RouterReport


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterObserved:
    """What was observed of a namespace's router.

    Args:
        deployment: its live Deployment.
        pods: its live pods.
        reports: the last report of each pod by name, of pods that reported lately (say 10 s).
        settings_version: the version that the routers are told; 0 for none.
        taken: its objects that a stranger holds, as `Service/penstock-router`.
        apply_error: why the apiserver refused one of its objects, if it did.
    """

    deployment: Object | None = None
    pods: Sequence[Object] = ()
    reports: Mapping[str, RouterReport] = field(default_factory=dict)
    settings_version: int = 0
    taken: Sequence[str] = ()
    apply_error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointObserved:
    """What was observed of an endpoint.

    Args:
        plan: what it gets (`traffic.plan`).
        router: its router.
        backends: the backends that exist in the namespace, and whether each has a ready pod.
        port: its port; None if none is left.
        taken: whether a stranger holds the Service of its name.
        apply_error: why the apiserver refused its Service, if it did.
    """

    plan: EndpointPlan
    router: RouterObserved
    backends: Mapping[str, bool]
    port: int | None
    taken: bool = False
    apply_error: str | None = None


def endpoint_status(endpoint: ModelEndpoint, seen: EndpointObserved, *, now: str) -> dict[str, Any]:
    """The whole status of an endpoint (see `backend.backend_status`)."""
    raise NotImplementedError
