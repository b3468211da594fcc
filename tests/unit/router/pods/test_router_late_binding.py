"""Requests go to pods that would begin them at once, and what waits at one pod moves to another with room."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from penstock_router.pods.endpoint_slices import Address
from penstock_router.pods.pod import Pod
from penstock_router.pods.pool import FULL_SECONDS, MOST_BROKEN, MOST_UNPROVEN, RECALL_SECONDS, Pods


class Backend:
    """A backend `b` of old pods that say how much room they have."""

    def __init__(self, count: int) -> None:
        self.now = 100.0
        self.pods = Pods(clock=lambda: self.now, random_source=random.Random(1), changed=lambda: None)
        self.recalls: list[tuple[str, int]] = []
        self.kept: list[list[tuple[str, int]]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.pods.recall = self._recall
        self.pods.later = lambda seconds, act: self.timers.append((self.now + seconds, act))
        self.pods.keep = lambda addresses: self.kept.append(sorted(addresses))
        self.have(count)
        self.now += 1000

    def have(self, count: int) -> None:
        """So many pods are ready."""
        self.pods.set_slices({"b": tuple(Address(host=f"10.0.0.{n}", port=8012) for n in range(count))})

    def _recall(self, host: str, port: int, count: int) -> bool:
        self.recalls.append((host, count))
        return True

    def wait(self, seconds: float) -> None:
        """Let so much time pass."""
        self.now += seconds
        due = [act for at, act in self.timers if at <= self.now]
        self.timers = [timer for timer in self.timers if timer[0] > self.now]
        for act in due:
            act()

    def tell(self, number: int, free: int, waiting: int = 0, capacity: int = 0) -> None:
        """A pod says how much room it has; what waits there may be this router's."""
        for pod in self.all:
            if waiting and not pod.in_flight and pod.address.host == f"10.0.0.{number}":
                pod.begins()
        self.pods.on_room((f"10.0.0.{number}", 8012), free, waiting, capacity)

    def send(self, count: int) -> list[int]:
        """The pods that get so many requests, none of which ends."""
        got = []
        for _ in range(count):
            pod = self.pods.pick("b")
            assert pod is not None
            pod.begins()
            got.append(int(pod.address.host.rpartition(".")[2]))
        return got

    @property
    def all(self) -> list[Pod]:
        """The pods."""
        return list(self.pods.ready("b"))


def test_requests_go_where_they_begin_at_once_each_pod_in_turn() -> None:
    """However little the others have: they begin nothing now. Where none does, the less loaded of two."""
    backend = Backend(3)
    backend.tell(0, 0)
    backend.tell(1, 2)
    backend.tell(2, 3)
    assert backend.send(5) == [1, 2, 1, 2, 2]
    assert 0 in backend.send(3)


def test_of_pods_that_would_begin_many_at_once_the_slow_get_fewer() -> None:
    """The faster ones have less to do, and are asked more often."""
    backend = Backend(3)
    slow, *fast = backend.all
    for number in range(3):
        backend.tell(number, 1000)
    got = dict.fromkeys(backend.all, 0)
    for _ in range(300):
        pod = backend.pods.pick("b")
        assert pod is not None
        pod.begins()
        got[pod] += 1
        if pod in fast:
            pod.ends()
    assert got[slow] == 1
    assert min(got[pod] for pod in fast) > 100


@pytest.mark.parametrize(("capacities", "share"), [((8, 2), 0.8), ((8, 0), 0.5), ((0, 0), 0.5)])
def test_where_none_has_room_a_pod_that_takes_more_at_once_gets_more(
    capacities: tuple[int, int], share: float
) -> None:
    """By its slots and batches, as it says. One of an older release does not say."""
    backend = Backend(2)
    for number, capacity in enumerate(capacities):
        backend.tell(number, 0, capacity=capacity)
    assert backend.send(100).count(0) == pytest.approx(100 * share, abs=1)


def test_a_pod_that_drains_or_fails_gets_none_whatever_room_it_has() -> None:
    backend = Backend(3)
    for number in range(3):
        backend.tell(number, 9)
    backend.pods.refuses(backend.all[0])
    backend.pods.failed(backend.all[1], "x")
    assert set(backend.send(5)) == {2}


def test_what_waits_at_the_fullest_pod_is_asked_back_once_as_much_as_others_begin() -> None:
    backend = Backend(3)
    backend.tell(0, 0, 5)
    backend.tell(1, 0, 20)
    assert backend.recalls == []
    backend.tell(2, 8)
    assert backend.recalls == [("10.0.0.1", 8)]
    backend.tell(2, 9)
    assert len(backend.recalls) == 1  # one that was asked is waited for
    backend.pods.on_recalled(("10.0.0.1", 8012), 8)
    backend.tell(1, 0, 12)
    assert backend.recalls[1:] == [("10.0.0.1", 9)]


def test_a_pod_that_had_nothing_to_hand_back_is_not_asked_again_at_once() -> None:
    """What waits there is another router's: each answer would be the next question."""
    backend = Backend(2)
    backend.tell(0, 0, 5)
    backend.tell(1, 1)
    for waiting in range(6, 9):
        backend.pods.on_recalled(("10.0.0.0", 8012), 0)
        backend.tell(0, 0, waiting)
    assert backend.recalls == [("10.0.0.0", 1)]
    backend.now += RECALL_SECONDS
    backend.tell(0, 0, 9)
    assert backend.recalls == [("10.0.0.0", 1)] * 2


@pytest.mark.parametrize(("stays", "recalls"), [(False, 2), (True, 1)])
def test_a_pod_that_had_nothing_is_asked_again_once_it_has_got_what_it_can_hand_back(
    *, stays: bool, recalls: int
) -> None:
    backend = Backend(2)
    backend.tell(0, 0, 5)
    backend.tell(1, 1)
    backend.pods.on_recalled(("10.0.0.0", 8012), 0)
    backend.all[0].begins(stays=stays)
    backend.tell(0, 0, 6)
    assert backend.recalls == [("10.0.0.0", 1)] * recalls


def test_a_pod_that_has_nothing_of_ours_is_not_asked_however_much_waits_there() -> None:
    backend = Backend(3)
    backend.tell(0, 0, 9)
    backend.all[0].ends()
    backend.tell(1, 0, 1)
    backend.tell(2, 1)
    assert backend.recalls == [("10.0.0.1", 1)]


def test_an_answer_that_does_not_come_is_not_waited_for() -> None:
    backend = Backend(2)
    backend.tell(0, 0, 5)
    backend.tell(1, 1)
    backend.now += RECALL_SECONDS
    backend.tell(1, 1)
    assert backend.recalls == [("10.0.0.0", 1)] * 2


def test_requests_that_are_bound_to_the_fullest_pod_keep_no_others_where_they_wait() -> None:
    """Those with a key stay; each time one is to be asked, it is who was asked in vain longest ago."""
    backend = Backend(4)
    backend.tell(0, 0, 50)
    backend.tell(1, 0, 40)
    backend.tell(2, 0, 5)
    backend.tell(3, 1)
    for number, waiting in ((0, 50), (1, 40)):
        backend.pods.on_recalled((f"10.0.0.{number}", 8012), 0)
        backend.tell(number, 0, waiting)
    assert [host for host, _ in backend.recalls] == ["10.0.0.0", "10.0.0.1", "10.0.0.2"]
    for left in (4, 3, 2):
        backend.wait(RECALL_SECONDS)  # so that the first two might be asked again
        backend.pods.on_recalled(("10.0.0.2", 8012), 1)
        backend.tell(2, 0, left)
        backend.tell(3, 1)
        assert backend.recalls[-1] == ("10.0.0.2", 1)


def test_a_pod_that_does_not_answer_keeps_no_requests_waiting_at_others() -> None:
    """However little happens meanwhile: no other pod says anything until it has answered a request."""
    backend = Backend(3)
    backend.tell(0, 0, 50)
    backend.tell(1, 0, 5)
    backend.tell(2, 1)
    backend.wait(RECALL_SECONDS / 2)
    assert backend.recalls == [("10.0.0.0", 1)]
    backend.wait(RECALL_SECONDS)
    assert backend.recalls[1:] == [("10.0.0.1", 1)]


def test_a_pod_that_only_says_it_hands_requests_back_is_asked_seldom() -> None:
    """Each such word would be the next question, as fast as the two can talk."""
    backend = Backend(2)
    backend.tell(1, 1)

    def talk(count: int) -> int:
        before = len(backend.recalls)
        for _ in range(count):
            backend.tell(0, 0, 5)
            backend.pods.on_recalled(("10.0.0.0", 8012), 1)
        return len(backend.recalls) - before

    assert talk(100) == MOST_UNPROVEN + 1
    backend.wait(RECALL_SECONDS)
    assert talk(100) == 1


@pytest.mark.parametrize(
    "queue", [(3, 2), (0, 0), (-1, 0)], ids=["room beside a queue", "nothing", "unknown"]
)
def test_nothing_is_asked_back_where_nothing_waits_in_vain(queue: tuple[int, int]) -> None:
    """A pod that has room for what waits there, as while it gathers a batch, keeps it."""
    backend = Backend(2)
    backend.tell(0, *queue)
    backend.tell(1, 4)
    assert backend.recalls == []


def test_a_pod_that_says_it_has_room_and_has_none_is_believed_only_so_often() -> None:
    """Each such word would be a try. It is believed again after a while, or when it has answered one."""
    backend = Backend(1)
    (liar,) = backend.all
    tries = 0

    def take(_: str, pod: Pod) -> bool:
        nonlocal tries
        tries += 1
        return True

    def lie(count: int) -> int:
        before = tries
        for _ in range(count):
            backend.pods.await_room("b", take)
            backend.tell(0, 1)
            backend.pods.full(liar)
        return tries - before

    assert lie(100) == MOST_BROKEN
    backend.now += FULL_SECONDS
    assert lie(100) == 1
    backend.pods.freed("b", liar)
    assert lie(100) == MOST_BROKEN


def test_who_waits_here_comes_before_who_waits_at_a_pod() -> None:
    """Requests that every pod has refused for want of room."""
    backend = Backend(2)
    held = [1, 2]

    def take(_: str, pod: Pod) -> bool:
        if held:
            held.pop()
            pod.begins()
            return True
        return False

    backend.pods.await_room("b", take)
    backend.tell(0, 0, 5)
    backend.tell(1, 3)
    assert held == []
    assert backend.recalls == [("10.0.0.0", 1)]


def test_a_new_pod_gets_its_share_of_its_room() -> None:
    """One at once, and more as it grows older."""
    backend = Backend(1)
    backend.tell(0, 0)
    backend.have(2)
    backend.tell(1, 8)
    assert backend.send(1) == [1]
    assert backend.send(3).count(1) < 3
    backend.now += 1000
    backend.tell(1, 8)
    assert backend.send(8) == [1] * 8


def test_a_new_pod_with_much_room_gets_its_share_of_that() -> None:
    """However little the others have."""
    backend = Backend(1)
    backend.tell(0, 0)
    backend.have(2)
    backend.tell(1, 100)
    assert backend.send(10) == [1] * 10
    assert not backend.all[1].begins_at_once(backend.now)
    backend.now += 5
    assert backend.all[1].begins_at_once(backend.now)


def test_what_waits_at_a_pod_that_leaves_is_asked_back_whenever_the_pod_says_so() -> None:
    """It may say so only after it has left; it is forgotten once it has none of our requests."""
    backend = Backend(1)
    (leaving,) = backend.all
    backend.send(3)
    backend.pods.set_slices({"b": (Address(host="10.0.0.1", port=8012),)})
    backend.tell(1, 2)
    assert backend.recalls == []
    backend.tell(0, 0, 2)
    assert backend.recalls == [("10.0.0.0", 2)]
    for _ in range(3):
        leaving.ends()
    backend.tell(0, 1, 0)
    assert not backend.pods._leaving


def test_nothing_is_kept_of_backends_that_are_gone() -> None:
    backend = Backend(0)
    for number in range(100):
        for free, waiting in ((2, 0), (0, 2)):
            backend.pods.set_slices({f"b{number}": (Address(host="10.0.0.1", port=8012),)})
            backend.tell(1, free, waiting)
    backend.have(1)
    assert not backend.pods._free
    assert not backend.pods._crowded
    assert backend.pods._level_at.keys() <= {"b"}


def test_pods_of_services_and_fellows_of_sidecars_are_asked_how_much_room_they_have() -> None:
    backend = Backend(2)
    assert backend.kept[-1] == [("10.0.0.0", 8012), ("10.0.0.1", 8012)]
    targets = tuple(Address(host="10.1.0.1", port=port) for port in (1, 2))
    backend.pods.set_targets({"foreign": targets})
    assert len(backend.kept[-1]) == 2
    backend.pods.on_room(("10.1.0.1", 1), 1, 0, 1)
    assert backend.kept[-1][2:] == [("10.1.0.1", 1), ("10.1.0.1", 2)]
    backend.have(1)
    assert ("10.0.0.1", 8012) not in backend.kept[-1]
    backend.pods.on_room(("10.0.0.1", 8012), 5, 0, 5)  # of a pod that is gone
    assert set(backend.send(3)) == {0}
