"""Which pod takes the next request when some cannot be reached."""

from __future__ import annotations

import random

from penstock_router.endpoint_slices import Address
from penstock_router.pods import AVOID_FIRST_SECONDS, AVOID_MOST_SECONDS, SILENT_FAILURES, Pod, Pods


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
    one, other = pods.ready("b")
    return pods, one, other


def picked(pods: Pods, count: int = 20) -> set[Pod | None]:
    """Who takes requests that are over at once."""
    return {pods.pick("b") for _ in range(count)}


def test_failures_of_requests_that_went_out_together_count_once() -> None:
    """Ten that could not connect in one moment are one failure: the pod is tried again soon."""
    clock = HandClock()
    pods, one, other = two(clock)
    for _ in range(10):
        one.failed(clock(), "x")
    assert picked(pods) == {other}
    clock.advance(AVOID_FIRST_SECONDS)
    assert picked(pods) == {one, other}
    one.failed(clock(), "x")
    clock.advance(AVOID_FIRST_SECONDS)
    assert picked(pods) == {other}


def test_a_pod_that_failed_is_tried_by_one_request_at_a_time() -> None:
    """Whoever tries it may wait for a connection in vain: others do not, however busy the rest is."""
    clock = HandClock()
    pods, one, other = two(clock)
    one.failed(clock(), "x")
    clock.advance(AVOID_FIRST_SECONDS)
    one.begins()
    for _ in range(30):
        other.begins()
    assert picked(pods) == {other}
    one.reached()
    assert picked(pods) == {one}


def test_long_answers_of_a_pod_that_failed_once_do_not_keep_others_from_trying_it() -> None:
    """What it sent before it failed may take an hour more: that tries nothing."""
    clock = HandClock()
    pods, one, other = two(clock)
    for _ in range(3):
        one.begins()
        one.reached()
    one.begins()
    one.failed(clock(), "x")
    one.ends()
    for _ in range(9):
        other.begins()
    assert picked(pods) == {other}
    clock.advance(AVOID_FIRST_SECONDS)
    assert picked(pods) == {one}
    one.begins()
    assert picked(pods) == {other}
    one.ends()
    one.ends()
    one.begins()
    assert picked(pods) == {other}
    one.reached()
    assert picked(pods) == {one}


def test_a_pod_whose_node_seems_lost_is_avoided_for_longer() -> None:
    """Six seconds at first, and never more than ten: it may come back."""
    clock = HandClock()
    pods, one, other = two(clock)
    one.silent(clock())
    clock.advance(AVOID_FIRST_SECONDS * 2**SILENT_FAILURES - 0.01)
    assert picked(pods) == {other}
    clock.advance(0.02)
    assert picked(pods) == {one, other}
    one.silent(clock())
    clock.advance(AVOID_MOST_SECONDS)
    assert picked(pods) == {one, other}


def test_the_only_pod_is_asked_however_it_failed() -> None:
    """There is nobody else."""
    clock = HandClock()
    pods = Pods(clock=clock, random_source=random.Random(1), changed=lambda: None)
    pods.set_slices({"b": (Address(host="10.0.0.1", port=8012),)})
    (one,) = pods.ready("b")
    one.silent(clock())
    one.begins()
    assert picked(pods) == {one}
