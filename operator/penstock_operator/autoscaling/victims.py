"""Chooses the pods that go when replicas fall, the least busy, and the annotations that make them go.

A ReplicaSet removes pods that are not ready first, then those with the lowest
`controller.kubernetes.io/pod-deletion-cost`, which is 0 if unset. So it is enough that each pod that is to go
costs less than each that is to stay. Either those that go get -1 or those that stay get 1, whichever takes
fewer writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MOST = 100
"""Pods that are annotated for one decrease at most; those for which it matters most come first."""

_MUST_GO, _MUST_STAY = "-1", "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A ready pod.

    Args:
        load: items queued and ongoing, by what they cost where that is known; None if it is silent: an
            unknown load is not a small one.
        cost: value of its annotation; 0 if it has none.
    """

    name: str
    load: float | None
    cost: int = 0


def name_victims(pods: Sequence[Candidate], leaving: int) -> dict[str, str | None]:
    """Return the annotations to write so that the least busy pods go.

    Returns:
        The annotation's new value by pod name; None to remove it. Empty if the order is right already.
    """
    if not 0 < leaving < len(pods):
        return {}
    order = sorted(pods, key=lambda pod: (pod.load is None, pod.load or 0, pod.cost, pod.name))
    going, staying = order[:leaving], order[: leaving - 1 : -1]  # those that matter most come first
    by_going: dict[str, str | None] = {pod.name: None for pod in staying if pod.cost < 0}
    by_going |= {pod.name: _MUST_GO for pod in going if pod.cost >= 0}
    by_staying: dict[str, str | None] = {pod.name: None for pod in going if pod.cost > 0}
    by_staying |= {pod.name: _MUST_STAY for pod in staying if pod.cost <= 0}
    fewer = min(by_going, by_staying, key=len)
    return dict(list(fewer.items())[:MOST])
