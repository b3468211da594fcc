"""Auto slots, against simulated models: they find the number that pays, stay there, and follow a change."""

from __future__ import annotations

import dataclasses
import heapq
import random
from collections.abc import Callable

import pytest

from penstock_sidecar.estimators.concurrency_tuner import ConcurrencyTuner

SEEDS = range(1, 7)


@dataclasses.dataclass(kw_only=True)
class Server:
    """A model server with `workers` (of the batch's number), each one batch at a time, the rest queue in it.

    Args:
        workers: side by side, told the number of batches that have ended.
        base: seconds of a batch in the median, log-normal with a deviation of 0.3.
        crowding: a batch takes so much more for each other one in the server.
        gap: seconds in which a serial sender leaves it idle between two batches.
    """

    workers: Callable[[int], int]
    base: float = 0.010
    crowding: float = 0.0
    gap: float = 0.0

    def slots(self, seed: int, batches: int, auto: ConcurrencyTuner | None = None) -> list[int]:
        """The slots after each batch, where there is always work waiting."""
        source = random.Random(seed)
        auto = ConcurrencyTuner() if auto is None else auto
        now, inside, number = 0.0, 0, 0
        waiting: list[float] = []
        running: list[tuple[float, int, float]] = []
        trace: list[int] = []
        while len(trace) < batches:
            while inside < auto.slots:
                inside += 1
                waiting.append(now)
            while waiting and len(running) < self.workers(len(trace)):
                number += 1
                taken = self.base * source.lognormvariate(0.0, 0.3) * (1.0 + self.crowding * (inside - 1))
                heapq.heappush(running, (now + taken, number, waiting.pop(0)))
            now, _, begun = heapq.heappop(running)
            inside -= 1
            trace.append(auto.ended(now, 32, now - begun, pressed=True))
            if not running:
                now += self.gap
        return trace


def mean(values: list[int]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("gap", [0.0, 0.001])
def test_a_serial_model_keeps_one_or_two(seed: int, gap: float):
    trace = Server(workers=lambda _: 1, gap=gap).slots(seed, 3000)
    assert mean(trace) <= 2.5
    assert max(trace) <= 4


@pytest.mark.parametrize("seed", SEEDS)
def test_four_workers_get_four_or_five(seed: int):
    trace = Server(workers=lambda _: 4).slots(seed, 3000)
    assert 3.6 <= mean(trace[300:]) <= 5.0
    assert sum(slots in (4, 5) for slots in trace[300:]) >= 0.85 * len(trace[300:])


@pytest.mark.parametrize("seed", SEEDS)
def test_sixteen_workers_get_about_sixteen(seed: int):
    trace = Server(workers=lambda _: 16).slots(seed, 8000)
    assert 12 <= mean(trace[4000:]) <= 22


@pytest.mark.parametrize("seed", SEEDS)
def test_a_model_that_slows_down_in_proportion_stays_low(seed: int):
    trace = Server(workers=lambda _: 64, crowding=1.0).slots(seed, 3000)
    assert mean(trace) <= 2.0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1)])
def test_it_follows_a_change_within_two_thousand_batches(seed: int, before: int, after: int):
    trace = Server(workers=lambda ended: before if ended < 2500 else after).slots(seed, 6000)
    assert abs(mean(trace[1500:2500]) - before) <= 1.0
    assert abs(mean(trace[4500:]) - after) <= 1.2


def test_without_waiting_work_nothing_is_tried():
    auto = ConcurrencyTuner(start=2)
    for number in range(1000):
        assert auto.ended(number / 100, 32, 0.01, pressed=number % 5 == 0) == 2


def test_a_trial_ends_where_the_work_runs_out():
    auto = ConcurrencyTuner()
    now = 0.0
    while auto.slots == 1:
        now += 0.01
        auto.ended(now, 32, 0.01, pressed=True)
    assert [auto.ended(now + step, 32, 0.01, pressed=False) for step in (0.01, 0.02, 0.03)] == [2, 2, 1]


def test_a_trial_ends_at_the_first_failure():
    auto = ConcurrencyTuner()
    now = 0.0
    while auto.slots == 1:
        now += 0.01
        auto.ended(now, 32, 0.01, pressed=True)
    assert auto.ended(now, 32, 0.01, pressed=True, ok=False) == 1


def test_failures_in_a_row_take_slots_back():
    auto = ConcurrencyTuner(start=8)
    times = [number / 50 for number in range(100)]
    slots = [auto.ended(now, 32, 0.01, pressed=True, ok=False) for now in times]
    assert slots[:6] == [8, 8, 6, 6, 6, 5]
    assert slots[-1] == 1


def test_batches_that_fail_together_are_one_step_down():
    """What ran already when slots were taken back says nothing of the fewer that there are."""
    auto = ConcurrencyTuner(start=8)
    assert [auto.ended(5.0, 32, 1.0, pressed=True, ok=False) for _ in range(8)] == [8, 8, *[6] * 6]
    assert [auto.ended(6.0, 32, 1.0, pressed=True, ok=False) for _ in range(6)] == [6, 6, 5, 5, 5, 5]


@pytest.mark.parametrize("seed", SEEDS)
def test_more_throughput_is_not_bought_with_batches_that_take_too_long(seed: int):
    """Each further slot brings half a worker's throughput; the time of a batch is bounded."""
    auto = ConcurrencyTuner(max_seconds=0.025)
    trace = Server(workers=lambda _: 64, crowding=0.25).slots(seed, 3000, auto)
    # 10 ms · (1 + 0.25 · 6) = 25 ms.
    assert mean(trace[1000:]) <= 7.5


def test_the_bounds_hold():
    auto = ConcurrencyTuner(highest=3)
    trace = Server(workers=lambda _: 64).slots(1, 2000, auto)
    assert max(trace) == 3
    assert min(trace) >= 1
