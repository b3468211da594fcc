"""The share of the requests that the candidate's ready pods allow, and the pods that both backends keep."""

from __future__ import annotations

from datetime import datetime, timedelta

from penstock_operator.api.strategy import Strategy
from penstock_operator.releases import steps
from penstock_operator.releases.state import BackendSeen, Release

IDLE = timedelta(seconds=30)
"""Idle time of the backend that lost all requests, after which the floors of both backends end."""


def needed(weight: int, replicas: int) -> int:
    """Ready pods that the candidate needs for a weight: that share of the stable's pods, at least one."""
    return max(1, -(-weight * replicas // 100)) if weight > 0 else 0


def allowed(ready: int, replicas: int) -> int:
    """The highest weight that the candidate may have, in percent."""
    return min(100, 100 * ready // replicas) if replicas > 0 else 100 * min(1, ready)


def size(stable: BackendSeen) -> int:
    """Pods that serve the stable's requests, without the surplus of a rollout of its own.

    If none is ready yet, its `spec.replicas`: a candidate that is ready first must not get all requests with
    one pod.
    """
    return min(stable.ready or stable.replicas, stable.replicas or stable.ready)


def whole(stable: BackendSeen, candidate: BackendSeen, weight: int, replicas: int) -> int:
    """Pods that serve all requests: never fewer than before, more if the stable has grown beyond them.

    If the load has made the stable grow, its pods serve only its part of the requests; all requests need
    proportionally more, but not more than both backends have together, nor than the stable's maximum.
    """
    pods = size(stable)
    if pods <= replicas or weight == 100 or stable.most is None:
        return max(pods, replicas)
    return max(pods, min(-(-100 * pods // (100 - weight)), pods + candidate.ready, stable.most))


def floors(strategy: Strategy | None, release: Release | None, now: datetime) -> dict[str, int]:
    """The fewest replicas that each of the two backends keeps, by name, beside `minReplicas`.

    The candidate gets the pods of the next weight before that is set, unless a user has to promote the
    release first. The stable keeps the pods for all requests, since they can come back to it at any time.
    After the release, both hold until the backend that lost all requests has answered none for `IDLE`; a
    candidate that was rolled back keeps none. `maxReplicas` is unknown here and limits them elsewhere.
    """
    if strategy is None or release is None:
        return {}
    state = release.state
    if (state.stable, state.candidate) != (strategy.stable, strategy.candidate):
        return {}
    both = {state.stable: state.replicas, state.candidate: _ahead(strategy, release)}
    if state.phase in ("Promoted", "RolledBack"):
        if state.idle_since is not None and now - datetime.fromisoformat(state.idle_since) >= IDLE:
            return {}
        if state.phase == "Promoted":
            both[state.candidate] = needed(100, state.replicas)
        else:
            del both[state.candidate]
    return {name: pods for name, pods in both.items() if pods > 0}


def _ahead(strategy: Strategy, release: Release) -> int:
    """The candidate's pods: for its current or awaited weight, or the next unless a user must promote."""
    state, step = release.state, release.step
    if state.phase == "Paused":
        weight = state.target
    else:
        weight = max(state.target, steps.target(strategy, step))
        later = range(step + 1, len(strategy.steps) + 1)
        for ahead in later:
            if steps.is_manual(strategy, ahead):
                break
            if ahead == len(strategy.steps) or strategy.steps[ahead].set_weight is not None:
                weight = max(weight, steps.target(strategy, ahead))
                break
    return max(needed(weight, state.replicas), 1 if steps.mirror(strategy, step) else 0)
