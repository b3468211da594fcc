"""How much of the requests the candidate's ready pods may get, and the pods that both backends keep."""

from __future__ import annotations

from datetime import datetime, timedelta

from penstock_operator.api.strategy import Strategy
from penstock_operator.releases import steps
from penstock_operator.releases.state import BackendSeen, Release

IDLE = timedelta(seconds=30)
"""So long the backend that lost all requests must have answered none before its successor's floor goes."""


def needed(weight: int, replicas: int) -> int:
    """Ready pods without which the candidate does not get a weight: its part of the stable's, at least one.

    Args:
        weight: percent of the requests.
        replicas: pods that served all of them.
    """
    return max(1, -(-weight * replicas // 100)) if weight > 0 else 0


def allowed(ready: int, replicas: int) -> int:
    """The highest weight that the candidate may have, in percent.

    Args:
        ready: its ready pods.
        replicas: pods that served all requests.
    """
    return min(100, 100 * ready // replicas) if replicas > 0 else 100 * min(1, ready)


def size(stable: BackendSeen) -> int:
    """Pods by which the stable serves what it has, without the surplus of a rollout of its own.

    Where none is ready yet, those that it is to have: a candidate that is ready first must not have all
    requests with a pod.
    """
    return min(stable.ready or stable.replicas, stable.replicas or stable.ready)


def whole(stable: BackendSeen, candidate: BackendSeen, weight: int, replicas: int) -> int:
    """Pods that serve all requests: never fewer than before, more where the stable has grown beyond these.

    Where the load has made it grow, its pods serve a part of the requests alone, and all of them need more in
    proportion; yet no more than both backends have, who serve them all, or than it could have alone.

    Args:
        stable: the stable.
        candidate: the candidate.
        weight: the candidate's percent.
        replicas: what this returned last.
    """
    pods = size(stable)
    if pods <= replicas or weight == 100 or stable.most is None:
        return max(pods, replicas)
    return max(pods, min(-(-100 * pods // (100 - weight)), pods + candidate.ready, stable.most))


def floors(strategy: Strategy | None, release: Release | None, now: datetime) -> dict[str, int]:
    """Replicas that the two backends keep at least, by name, beside their `minReplicas`.

    The candidate gets the pods of the next weight before that is set, unless somebody has to promote the
    release first. The stable keeps those for all requests, since they may come back to it at any time. Once
    the release is over, that holds until the backend that lost all requests has answered none for `IDLE`; a
    candidate that was taken back keeps none. `maxReplicas` is not known here: it limits them elsewhere.

    Args:
        strategy: of the split; None where it has none.
        release: how far it has come.
        now: wall time in UTC.
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
    """The candidate's pods: for the weight that it has or waits for, and the next if nobody must promote."""
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
