"""Which pods go when replicas fall: the least busy, by the annotation that ReplicaSets order their pods by.

A ReplicaSet takes away the pods that are not ready first, then those of the lowest
`controller.kubernetes.io/pod-deletion-cost`, which is 0 where none is set. So it is enough that each pod that
is to go costs less than each that is to stay. Either those that go get -1 or those that stay get 1, whichever
takes fewer writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MOST = 100
"""Pods that are annotated for one decrease at most: of more, those for which it matters most."""

_MUST_GO, _MUST_STAY = "-1", "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A ready pod.

    Args:
        name: its name.
        load: items queued and ongoing; None where it is silent: what is unknown is not little.
        cost: what its annotation says; 0 where it has none.
    """

    name: str
    load: int | None
    cost: int = 0


def name_victims(pods: Sequence[Candidate], leaving: int) -> dict[str, str | None]:
    """The annotations to write, so that the least busy pods go.

    Args:
        pods: the pods that are ready.
        leaving: how many of them are to go.

    Returns:
        The annotation's new value by pod, None where it is to be taken away. Empty where the order is right.
    """
    if not 0 < leaving < len(pods):
        return {}
    order = sorted(pods, key=lambda pod: (pod.load is None, pod.load or 0, pod.cost, pod.name))
    going, staying = order[:leaving], order[: leaving - 1 : -1]  # who matters most comes first
    by_going: dict[str, str | None] = {pod.name: None for pod in staying if pod.cost < 0}
    by_going |= {pod.name: _MUST_GO for pod in going if pod.cost >= 0}
    by_staying: dict[str, str | None] = {pod.name: None for pod in going if pod.cost > 0}
    by_staying |= {pod.name: _MUST_STAY for pod in staying if pod.cost <= 0}
    fewer = min(by_going, by_staying, key=len)
    return dict(list(fewer.items())[:MOST])
