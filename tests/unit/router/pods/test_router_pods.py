"""Which pod takes the next request when some cannot be reached."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from penstock_router.pods.endpoint_slices import Address
from penstock_router.pods.pod import (
    AVOID_FIRST_SECONDS,
    AVOID_MOST_SECONDS,
    SILENT_FAILURES,
    SLOW_START_SECONDS,
    Pod,
)
from penstock_router.pods.pool import Pods


class HandClock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


def two(clock: HandClock) -> tuple[Pods, Pod, Pod]:
    """A backend `b` of two pods."""
    pods = Pods(clock=clock, random_source=random.Random(1), changed=lambda: None)
    addresses = tuple(Address(host=host, port=8012) for host in ("10.0.0.1", "10.0.0.2"))
    pods.set_slices({"b": addresses})
    first, other = pods.ready("b")
    return pods, first, other


def picked(pods: Pods, count: int = 20) -> set[Pod | None]:
    """Who takes requests that are over at once."""
    return {pods.pick("b") for _ in range(count)}


def test_failures_of_requests_that_went_out_together_count_once() -> None:
    """Ten that could not connect in one moment are one failure: the pod is tried again soon."""
    clock = HandClock()
    pods, first, other = two(clock)
    for _ in range(10):
        first.failed(clock(), "x")
    assert picked(pods) == {other}
    clock.advance(AVOID_FIRST_SECONDS)
    assert picked(pods) == {first, other}
    first.failed(clock(), "x")
    clock.advance(AVOID_FIRST_SECONDS)
    assert picked(pods) == {other}


def test_a_pod_that_failed_is_tried_by_one_request_at_a_time() -> None:
    """Whoever tries it may wait for a connection in vain: others do not, however busy the rest is."""
    clock = HandClock()
    pods, first, other = two(clock)
    first.failed(clock(), "x")
    clock.advance(AVOID_FIRST_SECONDS)
    first.begins()
    for _ in range(30):
        other.begins()
    assert picked(pods) == {other}
    first.reached()
    assert picked(pods) == {first}


def test_long_answers_of_a_pod_that_failed_once_do_not_keep_others_from_trying_it() -> None:
    """What it sent before it failed may take an hour more: that tries nothing."""
    clock = HandClock()
    pods, first, other = two(clock)
    for _ in range(3):
        first.begins()
        first.reached()
    first.begins()
    first.failed(clock(), "x")
    first.ends()
    for _ in range(9):
        other.begins()
    assert picked(pods) == {other}
    clock.advance(AVOID_FIRST_SECONDS)
    assert picked(pods) == {first}
    first.begins()
    assert picked(pods) == {other}
    first.ends()
    first.ends()
    first.begins()
    assert picked(pods) == {other}
    first.reached()
    assert picked(pods) == {first}


def test_a_pod_whose_node_seems_lost_is_avoided_for_longer() -> None:
    """Six seconds at first, and never more than ten: it may come back."""
    clock = HandClock()
    pods, first, other = two(clock)
    first.silent(clock())
    clock.advance(AVOID_FIRST_SECONDS * 2**SILENT_FAILURES - 0.01)
    assert picked(pods) == {other}
    clock.advance(0.02)
    assert picked(pods) == {first, other}
    first.silent(clock())
    clock.advance(AVOID_MOST_SECONDS)
    assert picked(pods) == {first, other}


def test_the_only_pod_is_asked_however_it_failed() -> None:
    """There is nobody else."""
    clock = HandClock()
    pods = Pods(clock=clock, random_source=random.Random(1), changed=lambda: None)
    pods.set_slices({"b": (Address(host="10.0.0.1", port=8012),)})
    (first,) = pods.ready("b")
    first.silent(clock())
    first.begins()
    assert picked(pods) == {first}


def shares(pods: Pods, clock: HandClock, held: int = 1000) -> Counter[Pod]:
    """How many of so many requests, all of which stay, each pod gets."""
    taken: Counter[Pod] = Counter()
    for _ in range(held):
        pod = pods.pick("b")
        assert pod is not None
        pod.begins()
        taken[pod] += 1
    return taken


@pytest.mark.parametrize(
    ("age", "share"),
    [(0.0, 0.1), (0.5, 0.1), (5.0, 0.5), (SLOW_START_SECONDS, 1.0), (99.0, 1.0)],
)
def test_a_new_pods_share_grows_with_its_age(age: float, share: float) -> None:
    """Beside one that has been there; each gets what its share is of both."""
    clock = HandClock()
    pods = Pods(clock=clock, random_source=random.Random(1), changed=lambda: None)
    old, new = Address(host="10.0.0.1", port=8012), Address(host="10.0.0.2", port=8012)
    pods.set_slices({"b": (old,)})
    clock.advance(60)
    pods.set_slices({"b": (old, new)})
    clock.advance(age)
    taken = shares(pods, clock)
    _, added = pods.ready("b")
    assert taken[added] / 1000 == pytest.approx(share / (1 + share), abs=0.01)


def test_pods_that_are_equally_new_share_and_who_comes_back_is_not_new() -> None:
    """A router's first pods are all new to it; one whose readiness flaps keeps its share."""
    clock = HandClock()
    pods, first, other = two(clock)
    assert shares(pods, clock, 100) == {first: 50, other: 50}
    clock.advance(60)
    pods.set_slices({"b": (first.address,)})
    pods.set_slices({"b": (first.address, other.address)})
    back = next(pod for pod in pods.ready("b") if pod.address == other.address)
    for _ in range(50):
        first.ends()
    assert shares(pods, clock, 100) == {first: 50, back: 50}
