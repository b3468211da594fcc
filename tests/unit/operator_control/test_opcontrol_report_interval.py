"""A busy operator asks for reports less often, an idle one more often; no pod counts as silent for that."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_operator.autoscaling import LoadWindow, ScalerState, Target, recommend
from penstock_operator.autoscaling.window import silent_after
from penstock_operator.control.load_monitor import LoadMonitor
from penstock_operator.control.report_interval import LONGEST, ROUTERS, SHORTEST, interval_of, next_interval
from penstock_wire.control.report import Items, SidecarReport
from tests.support.clocks.hand_clock import HandClock


def settled(
    base: float, cost: float, pods: int, interval: float = SHORTEST, seconds: int = 200
) -> list[float]:
    """The intervals that follow, where CPU is what lies at the bottom and what each report costs."""
    intervals = []
    for _ in range(seconds):
        interval = next_interval(interval, busy=min(1.0, base + cost * pods / interval), late=0.0)
        intervals.append(interval)
    return intervals


@pytest.mark.parametrize(
    ("base", "pods", "least", "most"),
    [
        (0.05, 2000, 1.0, 1.0),  # 2 000 pods at 150 µs: once a second
        (0.05, 4000, 1.0, 1.6),
        (0.05, 20_000, 4.0, 10.0),
        (0.05, 200_000, 10.0, 10.0),
        (1.0, 1, 10.0, 10.0),  # busy with something else: reports give way
    ],
)
def test_it_settles_where_the_process_is_not_busy(base: float, pods: int, least: float, most: float) -> None:
    """Within the bounds, and without swinging."""
    last = settled(base, 150e-6, pods)[-50:]
    assert least <= last[-1] <= most
    assert max(last) == min(last)


def test_it_comes_down_when_the_load_has_gone() -> None:
    """From the longest interval to the shortest within half a minute of quiet; a late loop counts as load."""
    assert settled(0.05, 0.0, 0, interval=LONGEST, seconds=30)[-1] == SHORTEST
    assert next_interval(1.0, busy=0.0, late=0.5) > 1.0
    assert next_interval(4.0, busy=0.0, late=0.2) == 4.0


@given(
    interval=st.floats(SHORTEST, LONGEST), busy=st.floats(0.0, 4.0), late=st.floats(0.0, 60.0),
    size=st.integers(0, 10**9),
)  # fmt: skip
def test_it_stays_within_its_bounds(interval: float, busy: float, late: float, size: int) -> None:
    """Whatever is measured; also for one whose report is large."""
    assert SHORTEST <= next_interval(interval, busy=busy, late=late) <= LONGEST
    assert interval <= interval_of(size, interval) <= LONGEST
    assert interval_of(size, interval) >= interval_of(size, interval, router=True) >= interval * ROUTERS


async def test_the_pacer_measures_each_second() -> None:
    """CPU of the process by the clock; the gauge gets each value."""
    clock, used, intervals = HandClock(), [0.0], list[float]()
    monitor = LoadMonitor(clock, cpu=lambda: used[0], changed=intervals.append)
    task = asyncio.create_task(monitor.run())
    for seconds in (0.9, 0.9, 0.1):
        await clock.advance(0)
        used[0] += seconds
        await clock.advance(1.0)
    task.cancel()
    assert intervals == [1.25, 1.5625, pytest.approx(1.40625)]
    assert monitor.interval == intervals[-1]


def test_a_pod_that_was_told_to_come_later_is_silent_later() -> None:
    """Its load counts on; the rates of a minute are what they are."""
    window = LoadWindow(60)
    for second in range(0, 31, 10):
        report = SidecarReport(pod="p", uid="u", seq=second + 2, state="ready", items=Items(queued=6))
        window.record(report, float(second), every=10.0)
    assert silent_after(10.0) == 25.0
    assert silent_after(1.0) == 10.0
    assert window.load(54.0, 8).queued == 6
    assert window.load(56.0, 8).queued == 0


@pytest.mark.parametrize(("every", "verdict"), [(1.0, "TooManyUnknown"), (10.0, "Steady")])
def test_the_autoscaler_waits_for_who_was_told_to_come_later(every: float, verdict: str) -> None:
    """Twenty seconds without a word are silence for one who is to report each second, not for the other."""
    window = LoadWindow(60)
    for pod in ("p", "q"):
        report = SidecarReport(pod=pod, uid=pod, seq=1, state="ready", items=Items(queued=4))
        window.record(report, 100.0, every=every)
    target = Target(min_replicas=1, max_replicas=9, target_load=4, stable_window=60, downscale_delay=300)
    pods = window.view({"p": True, "q": True}, 120.0)
    recommended, _ = recommend(target, current=2, pods=pods, state=ScalerState(), now=120.0)
    assert (recommended.verdict, recommended.replicas) == (verdict, 2)
