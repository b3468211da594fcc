"""The status of a TrafficSplit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock_operator.api import Condition, TrafficSplit
from penstock_operator.api.trafficsplit import SplitWeight, TrafficSplitStatus
from penstock_operator.desired.traffic import SplitPlan
from penstock_operator.status import conditions
from penstock_operator.status.conditions import condition
from penstock_operator.status.endpoint import RouterObserved, router_ready
from penstock_operator.status.mirrors import line, states


def split_status(
    split: TrafficSplit,
    plan: SplitPlan,
    router: RouterObserved,
    backends: Mapping[str, bool],
    *,
    now: str,
    served: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """The whole status of a split (see `backend.backend_status`).

    Args:
        split: the split.
        plan: what it gets (`traffic.plan`).
        router: the namespace's router.
        backends: the backends that exist in the namespace, and whether each has a ready pod.
        now: the time, as RFC 3339 in UTC.
        served: requests of its endpoint within the last minute, by backend.
    """
    old, generation = split.status, split.metadata.generation
    accepted = _accepted(split, plan)
    routers = router_ready(None, router)
    stood = conditions.stands(conditions.find(old.conditions, "Ready"), generation)
    ready = _summary(accepted, plan, routers, stood=stood)
    status_conditions = [accepted, ready]
    stalled = accepted.status == "False" or bool(plan.missing or plan.faults)
    status_conditions += conditions.flags(ready, reconciling=ready.status != "True", stalled=stalled)
    taken_up = plan.accepted and routers.status == "True"
    before = {weight.name: weight.applied for weight in old.weights}
    parts = {share.name: (served or {}).get(share.name, 0) for share in split.spec.backends}
    total = sum(parts.values()) if plan.accepted else 0
    observed = {name: f"{round(100 * count / total)}%" for name, count in parts.items()} if total else {}
    mirrors = states(
        split.spec.endpoint,
        split.spec.mirrors if plan.accepted else (),
        router.reports.values(),
        backends,
    )
    return TrafficSplitStatus(
        observed_generation=generation,
        shares=conditions.shares((share.name, share.weight) for share in split.spec.backends),
        weights=tuple(
            SplitWeight(
                name=share.name,
                desired=share.weight,
                applied=(share.weight if _serves(share.name, plan, backends) else 0)
                if taken_up
                else before.get(share.name),
                observed=observed.get(share.name),
            )
            for share in split.spec.backends
        ),
        observed=", ".join(f"{name} {part}" for name, part in observed.items()) or None,
        mirrors=mirrors,
        mirrored=line(mirrors),
    ).document() | {
        "conditions": conditions.merge(old.conditions, status_conditions, generation=generation, now=now)
    }


def _serves(name: str, plan: SplitPlan, backends: Mapping[str, bool]) -> bool:
    """Whether a backend has the share that the spec asks for, be it that its requests fail."""
    return (name in backends or plan.on_missing == "Fail") and name not in plan.left_out


def _accepted(split: TrafficSplit, plan: SplitPlan) -> Condition:
    endpoint = split.spec.endpoint
    if plan.conflict_with is not None:
        text = f"the older TrafficSplit {plan.conflict_with} splits ModelEndpoint {endpoint} already"
        return condition("Accepted", "False", "Conflict", text)
    if plan.endpoint_missing:
        return condition("Accepted", "False", "EndpointMissing", f"no such ModelEndpoint: {endpoint}")
    return condition("Accepted", "True", "Accepted")


def _summary(accepted: Condition, plan: SplitPlan, routers: Condition, *, stood: bool) -> Condition:
    if accepted.status == "False":
        return condition("Ready", "False", accepted.reason, accepted.message)
    if plan.missing:
        then = "the others share its weight" if plan.on_missing == "Share" else "its requests fail"
        text = f"no such ModelBackend: {conditions.some(plan.missing)}; {then}"
        return condition("Ready", "False", "BackendMissing", text)
    if plan.faults:
        text = f"rules that cannot be used, and match nothing: {'; '.join(plan.faults[:3])}"
        return condition("Ready", "False", "InvalidMatch", text)
    if routers.status == "False":
        return condition("Ready", "False", routers.reason, routers.message)
    if plan.untried:
        then = "until then the others have its part" if plan.left_out else "requests wait for the first"
        text = f"never ready: {conditions.some(plan.untried)}; {then}"
        return condition("Ready", "False", "WaitingForBackend", text)
    if routers.status == "Unknown" and not stood:
        return condition("Ready", "Unknown", routers.reason, routers.message)
    return condition("Ready", "True", "Applied")
