"""The status of a TrafficSplit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock_operator.api import Condition, TrafficSplit
from penstock_operator.api.trafficsplit import SplitWeight, TrafficSplitStatus
from penstock_operator.desired.shares import mirrors_of, weights_of
from penstock_operator.desired.traffic import SplitPlan
from penstock_operator.releases.look import text
from penstock_operator.releases.standing import TRUTHS
from penstock_operator.releases.state import Release
from penstock_operator.status import conditions
from penstock_operator.status.conditions import condition
from penstock_operator.status.endpoint import RouterObserved, router_ready
from penstock_operator.status.mirrors import line, states

STALLED = frozenset(
    {
        "AnalysisFailed",
        "RolledBack",
        "CandidateMissing",
        "StableMissing",
        "StableNotReady",
        "InvalidStrategy",
    }
)
"""Reasons with which a release does not continue until a user changes something."""


def split_status(
    split: TrafficSplit,
    plan: SplitPlan,
    router: RouterObserved,
    backends: Mapping[str, bool],
    *,
    now: str,
    served: Mapping[str, int] | None = None,
    release: Release | None = None,
    faults: Sequence[str] = (),
) -> dict[str, Any]:
    """Make the whole status of a split (see `backend.backend_status`).

    Args:
        backends: the backends that exist in the namespace, and whether each has a ready pod.
        served: requests of its endpoint within the last minute, by backend.
        release: the new state of its release, for the status; the router has that of the live status.
    """
    old, generation = split.status, split.metadata.generation
    after = with_release(split, release)
    moving = weights_of(after) != weights_of(split) or mirrors_of(after) != mirrors_of(split)
    accepted = _accepted(split, plan, faults)
    routers = router_ready(None, router)
    stood = conditions.stands(conditions.find(old.conditions, "Ready"), generation)
    ready = _summary(accepted, plan, routers, stood=stood, releasing=release is not None)
    # NB: while the split is not accepted, its release is not evaluated: its state may be of another spec.
    progressing = _progressing(release) if plan.accepted else []
    status_conditions = [accepted, ready, *progressing]
    stalled = accepted.status == "False" or bool(plan.missing or plan.faults)
    if stalled or ready.status != "True" or release is None:
        status_conditions += conditions.flags(ready, reconciling=ready.status != "True", stalled=stalled)
    else:
        status_conditions += _release_flags(release, progressing)
    taken_up = plan.accepted and routers.status == "True" and not moving
    before = {weight.name: weight.applied for weight in old.weights}
    parts = {share.name: (served or {}).get(share.name, 0) for share in split.spec.backends}
    total = sum(parts.values()) if plan.accepted else 0
    observed = {name: f"{round(100 * count / total)}%" for name, count in parts.items()} if total else {}
    mirrors = states(
        split.spec.endpoint,
        mirrors_of(split) if plan.accepted else (),
        router.reports.values(),
        backends,
    )
    return TrafficSplitStatus(
        observed_generation=generation,
        shares=conditions.shares((share.name, share.weight) for share in weights_of(after)),
        weights=tuple(
            SplitWeight(
                name=share.name,
                desired=share.weight,
                applied=(share.weight if _serves(share.name, plan, backends) else 0)
                if taken_up
                else before.get(share.name),
                observed=observed.get(share.name),
            )
            for share in weights_of(after)
        ),
        observed=", ".join(f"{name} {part}" for name, part in observed.items()) or None,
        mirrors=mirrors,
        mirrored=line(mirrors),
        step=None if release is None else release.step,
        step_of=_step_of(split, release),
        step_started=None if release is None else text(release.step_started),
        release=None if release is None else release.state,
        verdicts=() if release is None else release.verdicts,
    ).document() | {
        "conditions": conditions.merge(old.conditions, status_conditions, generation=generation, now=now)
    }


def with_release(split: TrafficSplit, release: Release | None) -> TrafficSplit:
    """Return the split with this release in its status."""
    state = None if release is None else release.state
    return split.model_copy(update={"status": split.status.model_copy(update={"release": state})})


def _step_of(split: TrafficSplit, release: Release | None) -> str | None:
    if release is None or split.spec.strategy is None:
        return None
    count = len(split.spec.strategy.steps)
    return f"{min(release.step + 1, count)}/{count}"


def _progressing(release: Release | None) -> list[Condition]:
    if release is None:
        return []
    state = release.state
    return [condition("Progressing", TRUTHS.get(state.reason, "Unknown"), state.reason, state.message)]


def _release_flags(release: Release, progressing: list[Condition]) -> list[Condition]:
    """Make `Reconciling` until the release is over, and `Stalled` if it needs a user to continue."""
    (condition,) = progressing
    stalled = condition.reason in STALLED
    return conditions.flags(condition, reconciling=release.state.phase != "Promoted", stalled=stalled)


def _serves(name: str, plan: SplitPlan, backends: Mapping[str, bool]) -> bool:
    """Whether a backend has its desired share, even if its requests fail."""
    return (name in backends or plan.on_missing == "Fail") and name not in plan.left_out


def _accepted(split: TrafficSplit, plan: SplitPlan, faults: Sequence[str]) -> Condition:
    endpoint = split.spec.endpoint
    if plan.conflict_with is not None:
        why = "it is older, or as old and first by name"
        text = f"TrafficSplit {plan.conflict_with} splits ModelEndpoint {endpoint} already: {why}"
        return condition("Accepted", "False", "Conflict", text)
    if plan.endpoint_missing:
        return condition("Accepted", "False", "EndpointMissing", f"no such ModelEndpoint: {endpoint}")
    if faults:
        return condition("Accepted", "False", "InvalidStrategy", "; ".join(faults))
    return condition("Accepted", "True", "Accepted")


def _summary(
    accepted: Condition, plan: SplitPlan, routers: Condition, *, stood: bool, releasing: bool
) -> Condition:
    if accepted.status == "False":
        return condition("Ready", "False", accepted.reason, accepted.message)
    if plan.missing:
        then = "the others share its weight" if plan.on_missing == "Share" else "its requests fail"
        text = f"no such ModelBackend: {conditions.some(plan.missing)}; {then}"
        return condition("Ready", "False", "BackendMissing", text)
    if plan.faults:
        text = f"rules that cannot be used, and match nothing: {'; '.join(plan.faults[:3])}"
        return condition("Ready", "False", "InvalidMatch", text)
    # The steps of a release are the operator's own: meanwhile the user's spec counts as applied.
    passing = releasing and stood and routers.reason == "Waiting"
    if routers.status == "False" and not passing:
        return condition("Ready", "False", routers.reason, routers.message)
    if plan.untried:
        then = "until then the others have its part" if plan.left_out else "requests wait for the first"
        text = f"no pod was ready yet of: {conditions.some(plan.untried)}; {then}"
        return condition("Ready", "False", "WaitingForBackend", text)
    if routers.status == "Unknown" and not stood:
        return condition("Ready", "Unknown", routers.reason, routers.message)
    return condition("Ready", "True", "Applied")
