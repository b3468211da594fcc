"""How many pods start at once where those that serve wait for processors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from penstock_operator.autoscaling import PodLoad, RouterHolds, Sample, ScalerState, Target, recommend
from penstock_operator.autoscaling.slow_start import SHORT, processor_wait, step_up

TARGET = Target(min_replicas=1, max_replicas=100, target_load=10, stable_window=60, downscale_delay=300)
NOW = 100.0
SHORTAGE = "; 2 for now, at most twice the 1 that are ready: they wait for processors 42% of the time"

STARTING = "; 3 for now, and more when these are ready (so far 1): pods wait for processors 42% of the time"


def samples(*waits: float | None, load: int = 0, until: float = NOW) -> tuple[Sample, ...]:
    """One a second, the last one just now."""
    first = until - len(waits) + 1
    return tuple(Sample(at=first + n, load=load, processor_wait=wait) for n, wait in enumerate(waits))


def pod(*waits: float | None, ready: bool = True, load: int = 0, **more: Any) -> PodLoad:
    return PodLoad(name="p", ready=ready, was_ready=ready, samples=samples(*waits, load=load), **more)


def router(*waits: float | None, held: int, left: bool = False) -> RouterHolds:
    return RouterHolds(name="r", left=left, samples=samples(*waits, load=held))


@pytest.mark.parametrize(
    ("ready", "current", "least", "load", "asked"),
    [
        # as many new pods as are ready
        (1, 1, 1, 5, 2),
        (2, 2, 1, 5, 4),
        (4, 4, 1, 5, 5),
        (8, 8, 1, 100, 16),
        # those that start count: no more before they are ready
        (1, 2, 1, 5, 2),
        (2, 3, 1, 9, 4),
        (1, 5, 1, 9, 5),
        # none is ready: one
        (0, 0, 1, 5, 1),
        (0, 1, 1, 5, 1),
        # what a user asks for holds at once
        (1, 1, 4, 5, 4),
        # nothing asks for more
        (5, 5, 1, 5, 5),
        (5, 5, 1, 2, 2),
    ],
)
def test_a_step_up_asks_for_at_most_twice_what_is_ready(
    ready: int, current: int, least: int, load: int, asked: int
) -> None:
    """While processors are short; else for all that the load asks for, and nothing is lowered here."""
    ask = {"current": current, "ready": ready, "least": least}
    assert step_up(load, **ask, wait=SHORT + 0.01) == asked
    assert step_up(load, **ask, wait=SHORT) == load
    assert step_up(load, **ask, wait=None) == load


@pytest.mark.parametrize(
    ("pods", "holds", "wait"),
    [
        ([pod(0.4)], [], 0.4),
        # the one that waits most, over the last seconds
        ([pod(0.1), pod(0.4), pod(0.0)], [], 0.4),
        ([pod(1.0, 1.0, *[0.0] * 3, 0.3, 0.3, 0.0)], [], 0.1),
        ([pod(0.2, None, 0.4)], [], 0.3),
        # who is not ready, has left, is silent or does not say counts not
        ([pod(0.4, ready=False), pod(0.4, left=True), pod(None)], [], None),
        ([replace(pod(), samples=samples(0.4, until=NOW - 11))], [], None),
        ([], [], None),
        # a router counts while it holds requests for the backend
        ([pod(0.1)], [router(0.5, held=1)], 0.5),
        ([pod(0.1)], [router(0.5, held=0), router(0.5, held=1, left=True)], 0.1),
        ([], [router(0.5, held=3)], 0.5),
        ([], [router(None, held=3)], None),
    ],
)
def test_who_is_asked(pods: Sequence[PodLoad], holds: Sequence[RouterHolds], wait: float | None) -> None:
    """Ready pods, and routers that hold the backend's requests now."""
    result = processor_wait(pods, holds, NOW)
    assert result == (None if wait is None else pytest.approx(wait))


def test_reports_that_come_seldom_count_until_the_next() -> None:
    """A busy operator asks for one in ten seconds."""
    seldom = tuple(Sample(at=at, load=0, every=10.0, processor_wait=0.4) for at in (82.0, 92.0))
    assert processor_wait([replace(pod(), samples=seldom)], [], NOW) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("wait", "current", "replicas", "verdict", "more"),
    [
        (0.42, 1, 2, "ShortOfProcessors", SHORTAGE),
        (0.42, 2, 2, "ShortOfProcessors", SHORTAGE),
        (0.42, 3, 3, "ShortOfProcessors", STARTING),
        (0.42, 5, 5, "Steady", ""),
        (0.05, 1, 5, "Scale", ""),
        (None, 1, 5, "Scale", ""),
    ],
)
def test_what_holds_it_is_said(
    wait: float | None, current: int, replicas: int, verdict: str, more: str
) -> None:
    """One pod is ready and its load asks for five."""
    pods = [pod(*[wait] * 60, load=50)]
    recommended, _ = recommend(TARGET, current=current, pods=pods, state=ScalerState(), now=NOW)
    assert (recommended.replicas, recommended.verdict) == (replicas, verdict)
    assert recommended.message == "load 50 / targetLoad 10 = 5" + more
    assert recommended.inputs.processor_wait_percent == (None if wait is None else round(100 * wait))


@pytest.mark.parametrize("want", [5, 64, 100])
def test_the_number_doubles_with_each_round_of_pods(want: int) -> None:
    """From one pod to N in log2(N) rounds, each begun when the pods of the last are ready."""
    state, current, rounds = ScalerState(), 1, []
    target = replace(TARGET, max_replicas=want)
    for second in range(0, 100, 10):
        now = NOW + second
        load = want * target.target_load // current
        pods = [
            replace(pod(), name=f"p{n}", samples=samples(*[0.5] * 3, load=load + 1, until=now))
            for n in range(current)
        ]
        recommended, state = recommend(target, current=current, pods=pods, state=state, now=now)
        if recommended.replicas == current:
            break
        assert recommended.replicas <= 2 * current
        current = recommended.replicas
        rounds.append(current)
    assert current == want
    assert len(rounds) == math.ceil(math.log2(want))
