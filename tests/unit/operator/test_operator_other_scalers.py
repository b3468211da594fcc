"""Who else sets the replicas: whose number stands, for how long, and who is taken over from at once."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from penstock_operator.kube.cluster import SCALE_MANAGER
from penstock_operator.reconcile.scale_owners import SOMEBODY, OtherScaler, OtherScalers

OURS, GIT, HPA = 1, 4, 3
VERSIONS = itertools.count(1)


def stored(manager: str, subresource: str = "") -> dict[str, Any]:
    """A backend whose replicas somebody owns, or nobody."""
    if not manager:
        return {"metadata": {"resourceVersion": str(next(VERSIONS))}}
    entry = {"manager": manager, "fieldsV1": {"f:spec": {"f:replicas": {}}}}
    entry |= {"subresource": subresource} if subresource else {}
    return {"metadata": {"resourceVersion": str(next(VERSIONS)), "managedFields": [entry]}}


class Fight:
    """The autoscaler wants 1; somebody sets another number at intervals, where it is not there."""

    def __init__(self) -> None:
        self.others = OtherScalers()
        self.live, self.replicas = stored(SCALE_MANAGER, "scale"), OURS
        self.takeovers: list[float] = []
        self.told: dict[float, OtherScaler] = {}

    def run(self, seconds: int, every: int, number: int, *who: str) -> None:
        for now in range(0, seconds, 5):
            if not now % every and self.replicas != number:
                self.live, self.replicas = stored(*who), number
            other = self.others.yields_to(self.live, self.replicas, now)
            if other is not None:
                self.told[now] = other
            elif self.replicas != OURS:
                self.others.took_over(self.live, OURS, now)
                self.live, self.replicas = stored(SCALE_MANAGER, "scale"), OURS
                self.takeovers.append(now)


@pytest.mark.parametrize(("every", "takeovers"), [(5, 12), (180, 8), (600, 10)])
def test_who_applies_a_number_again_and_again_is_not_fought(every: int, takeovers: int) -> None:
    """Two hours of GitOps, which heals itself or looks at intervals: told from its third time on."""
    fight = Fight()
    fight.run(7200, every, GIT, "argocd")
    assert fight.takeovers[:2] == [0, every]
    assert min(fight.told) == 2 * every
    assert {(other.manager, other.applies) for other in fight.told.values()} == {("argocd", True)}
    assert {other.stands for other in fight.told.values()} <= {300.0 * 2**turn for turn in range(6)}
    assert len(fight.takeovers) <= takeovers


def test_a_number_that_is_applied_now_and_then_is_taken_over_at_once() -> None:
    """A manifest that has one by mistake, applied every 31 minutes: its harm lasts until the next look."""
    fight = Fight()
    fight.run(6 * 1860, 1860, GIT, "kubectl-client-side-apply")
    assert fight.takeovers == [0, 1860, 3720, 5580, 7440, 9300]
    assert fight.told == {}


def test_a_number_written_through_scale_stands_from_the_first_time() -> None:
    """For five minutes, and ten when it comes back; GitOps between its writes changes nothing of that."""
    fight = Fight()
    fight.run(1200, 60, HPA, "hpa", "scale")
    assert fight.takeovers == [300, 960]
    stands = [other.stands for other in fight.told.values()]
    assert set(fight.told.values()) == {OtherScaler(manager="hpa", stands=each) for each in set(stands)}
    assert list(dict.fromkeys(stands)) == [300.0, 600.0, 1200.0], "each time for twice as long"


def test_a_zero_that_somebody_wrote_stays() -> None:
    """Until somebody writes another number. It has no owner."""
    fight = Fight()
    assert fight.others.yields_to(fight.live, OURS, -5.0) is None
    fight.run(86_400, 60, 0, "")
    assert fight.takeovers == []
    assert set(fight.told.values()) == {OtherScaler(manager=SOMEBODY)}


@pytest.mark.parametrize(
    ("looks", "stays"),
    [
        ([(1, False), (0, True)], False),
        ([(1, False), (0, True), (0, False)], False),
        ([(1, False), (0, False), (0, False)], True),
        ([(1, False), (0, True), (1, False), (0, False)], True),
        ([(1, False), (0, False), (1, False), (0, True)], False),
        ([(0, False), (2, False)], True),  # nor has the number after a 0 an owner
        ([(0, False), (2, True), (2, False)], False),
        ([(0, False)], False),  # a new leader, and nothing is said in the status
    ],
)
def test_whose_zero_it_is(looks: list[tuple[int, bool]], stays: bool) -> None:
    """The autoscaler's where it asked for it; by the status where another leader may have done so."""
    others, seen = OtherScalers(), None
    for now, (current, asked) in enumerate(looks):
        live = stored(SCALE_MANAGER, "scale") if current == 1 else stored("")
        seen = others.yields_to(live, current, now, asked=asked)
    assert (seen is not None) == stays
    live = stored("")
    live["status"] = {"conditions": [{"type": "ScalingActive", "reason": "ScalingDisabled"}]}
    assert OtherScalers().yields_to(live, 0, 0.0) == OtherScaler(manager=SOMEBODY)


def test_a_store_that_is_behind_is_no_new_write() -> None:
    """What the autoscaler has written over already is not seen as set again."""
    others, theirs = OtherScalers(), stored("hpa", "scale")
    assert others.yields_to(theirs, HPA, 0.0) is not None
    assert others.yields_to(theirs, HPA, 301.0) is None
    others.took_over(theirs, OURS, 301.0)
    assert others.yields_to(theirs, HPA, 303.0) is None
    assert others.number(theirs, HPA) == OURS
    assert others.yields_to(stored("hpa", "scale"), HPA, 305.0) is not None


def test_a_number_that_is_written_again_while_the_store_is_behind_is_one_takeover() -> None:
    """Else the second apply of the number would count as the third, and stand."""
    others = OtherScalers()
    for theirs in (stored("argocd"), stored("argocd")):
        assert others.yields_to(theirs, GIT, 0.0) is None
        others.took_over(theirs, OURS, 0.0)
        others.took_over(theirs, OURS, 2.0)
    assert others.yields_to(stored("argocd"), GIT, 4.0) is not None
