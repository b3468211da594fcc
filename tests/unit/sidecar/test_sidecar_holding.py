"""What holding a slot does to callers of all kinds: the real cutter in a simulation without noise.

The tables of docs/adr/0014-hold-for-returning-callers.md and docs/explanation/batching.md are of such cases.
"""

from __future__ import annotations

import dataclasses
import functools

import pytest

from penstock_sidecar.estimators.hold_policy import BOUND
from tests.support.worlds.simulated_holding import (
    EAGER,
    HOLD,
    ORACLE,
    Case,
    Result,
    Simulation,
    poisson,
    run,
    soon,
    thinking,
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.interpreted,  # a simulated model stands where a compiled class is expected
]

CYCLE = 1.15e-3
"""Seconds of a batch of the model of 1 ms."""
FULL_RATE = 32 / (CYCLE + 32e-5)


@functools.cache
def closed(callers: int, policy: str, scale: float = 1.0) -> Result:
    """Callers who ask again as soon as they are answered, of a model that is slower by `scale`."""
    case = Case(callers=callers, base=1e-3 * scale, item=1e-5 * scale, seconds=max(0.8, 0.3 * scale))
    return run(case, policy)


def versus(case: Case) -> tuple[Result, Result]:
    """With holding and without."""
    return run(case, HOLD), run(case, EAGER)


def no_worse(held: Result, eager: Result, share: float) -> None:
    """In rate, p50, p99 and calls."""
    assert held.rate >= (1.0 - share) * eager.rate
    assert held.percentile(0.5) <= (1.0 + share) * eager.percentile(0.5)
    assert held.percentile(0.99) <= (1.0 + share) * eager.percentile(0.99)
    assert held.per_call >= (1.0 - share) * eager.per_call


@pytest.mark.parametrize("scale", [1.0, 10.0, 100.0])
@pytest.mark.parametrize(
    ("callers", "rate"), [(2, 1.5), (4, 1.5), (8, 1.3), (12, 1.08), (16, 1.08), (24, 1.08), (32, 1.08)]
)
def test_callers_who_ask_again_at_once_share_one_batch(callers: int, rate: float, scale: float):
    held, eager = closed(callers, HOLD, scale), closed(callers, EAGER, scale)
    assert held.rate >= rate * eager.rate
    assert held.percentile(0.5) <= (0.65 if callers <= 8 else 0.70) * eager.percentile(0.5)
    assert held.percentile(0.99) <= (0.82 if scale == 1.0 else 0.65) * eager.percentile(0.99)
    assert held.per_call >= 0.95 * callers
    assert held.rate >= 0.95 * closed(callers, ORACLE, scale).rate
    # Each of them would have gone in two calls.
    assert held.counts.saved_calls >= 0.9 * held.counts.batches
    assert held.counts.saved_calls <= held.counts.merged_batches <= held.counts.held_batches


@pytest.mark.parametrize("callers", [1, 33, 48, 64, 256])
def test_one_caller_and_more_than_a_batch_are_as_without(callers: int):
    held, eager = closed(callers, HOLD), closed(callers, EAGER)
    no_worse(held, eager, 0.01)
    assert held.counts.held_batches == 0


@pytest.mark.parametrize("callers", [2, 4, 16, 32, 64])
@pytest.mark.parametrize("batches", [0.5, 1.0, 3.0])
def test_callers_who_think_are_as_without(batches: float, callers: int):
    no_worse(*versus(Case(callers=callers, think=thinking(batches * CYCLE), seconds=1.0)), share=0.01)


@pytest.mark.parametrize("load", [0.1, 0.5, 0.95])
@pytest.mark.parametrize(
    ("burst", "spread"),
    [(1, 0.0), (8, 0.0), (8, 0.5e-3), (16, 5e-3)],
    ids=["poisson", "8", "short", "long"],
)
def test_independent_callers_are_never_held(load: float, burst: int, spread: float):
    arrivals = poisson(load * FULL_RATE, 1.0, burst=burst, spread=spread)
    held, eager = versus(Case(arrivals=arrivals, seconds=1.0))
    no_worse(held, eager, 0.0)
    assert held.counts.held_batches == 0


@pytest.mark.parametrize("rate", [20.0, 200.0])
def test_a_lone_open_loop_caller_is_never_held(rate: float):
    held, eager = versus(Case(arrivals=poisson(rate, 20.0), seconds=20.0))
    assert held.all == eager.all


@pytest.mark.parametrize("slots", [2, 3])
@pytest.mark.parametrize("callers", [2, 4, 8, 32])
def test_only_the_last_free_slot_is_held(callers: int, slots: int):
    case = Case(callers=callers, seconds=1.0, batching={"max_concurrent_batches": slots})
    held, eager = versus(case)
    no_worse(held, eager, 0.0)
    if callers > slots:
        assert held.rate >= 1.05 * eager.rate


def test_urgent_callers_gain_as_all_do():
    held, eager = versus(Case(callers=16, levels=(1, 2, 2, 2), seconds=1.0))
    for level in (1, 2):
        assert held.percentile(0.5, level) <= 0.7 * eager.percentile(0.5, level)
        assert held.percentile(0.99, level) <= 0.82 * eager.percentile(0.99, level)


@pytest.mark.parametrize("keys", [2, 3])
def test_no_slot_is_held_while_another_key_waits(keys: int):
    """Callers of several keys take turns as without holding."""
    no_worse(*versus(Case(callers=8 * keys, keys=keys, seconds=1.0)), share=0.02)


@pytest.mark.parametrize("pods", [2, 3])
@pytest.mark.parametrize("callers", [4, 8, 24])
def test_pods_behind_a_router_are_no_worse(callers: int, pods: int):
    """Callers return to any of them; a caller that is not waited for in vain costs nothing."""
    held, eager = versus(Case(callers=callers, pods=pods, seconds=1.0))
    assert held.rate >= 0.99 * eager.rate
    assert held.per_call >= 0.99 * eager.per_call
    assert held.percentile(0.5) <= 1.01 * eager.percentile(0.5)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.3])
def test_others_who_come_in_between_cost_nothing(share: float):
    case = Case(callers=8, arrivals=poisson(share * FULL_RATE, 1.5), seconds=1.0)
    held, eager = versus(case)
    assert held.rate >= 0.99 * eager.rate
    assert held.per_call >= eager.per_call
    assert held.percentile(0.5) <= 1.01 * eager.percentile(0.5)


@pytest.mark.parametrize("jitter", [0.05, 0.2])
@pytest.mark.parametrize("callers", [2, 16])
def test_a_model_whose_batches_differ(callers: int, jitter: float):
    held, eager = versus(Case(callers=callers, jitter=jitter, seconds=1.0))
    assert held.rate >= 1.4 * eager.rate


class Watched(Simulation):
    """Notes each hold with what bounds it."""

    def start(self, pod, parts, items, limit):  # type: ignore[no-untyped-def]
        batch = super().start(pod, parts, items, limit)
        oldest = max(self.freed, min(part.work.arrived for part in parts))
        deadline = min(part.work.deadline for part in parts)
        self.notes.append((self.now - oldest, self.now, deadline, items))
        return batch

    def _end(self, pod, batch):  # type: ignore[no-untyped-def]
        super()._end(pod, batch)
        self.freed = self.now

    freed = 0.0

    def run(self) -> Result:
        self.notes: list[tuple[float, float, float, int]] = []
        return super().run()


@pytest.mark.parametrize("timeout", [30.0, 3.2e-3])
@pytest.mark.parametrize(
    "think",
    [soon(), soon(0.3e-3, 0.2e-3), thinking(0.3e-3)],
    ids=["soon", "later", "thinking"],
)
@pytest.mark.parametrize("callers", [2, 7, 30])
def test_no_batch_is_held_beyond_half_its_time_or_a_deadline(callers: int, think, timeout: float):  # type: ignore[no-untyped-def]
    case = Case(callers=callers, think=think, timeout=timeout, seconds=0.5)
    watched = Watched(case, HOLD)
    watched.run()
    for held, now, deadline, _ in watched.notes:
        assert held <= BOUND * (case.base + case.item * callers + case.beside) * 1.02 + 1e-6
        if held > 1e-6:
            assert now + case.base + case.beside <= deadline


# What a user says of waiting


def waited(case: Case, milliseconds: float) -> Result:
    """With `batchWaitTimeout`."""
    return run(dataclasses.replace(case, batching={"batch_wait_timeout_ms": milliseconds}), HOLD)


@pytest.mark.parametrize("beside", [0.0, 0.2e-3], ids=["quick", "slow"])
@pytest.mark.parametrize("callers", [1, 2, 4, 16, 64])
def test_no_wait_makes_a_model_slower_whose_callers_ask_again(callers: int, beside: float):
    """With any setting: the 3 % include the time to learn that nobody returns."""
    seconds = 4.0 if callers <= 4 else 1.0
    case = Case(callers=callers, beside=beside, think=thinking(2 * beside or 1e-4), seconds=seconds)
    eager = run(case, EAGER).rate
    assert [wait for wait in (1, 5, 10) if waited(case, wait).rate < 0.97 * eager] == []


@pytest.mark.parametrize("rate", [200.0, 1000.0])
def test_batches_of_independent_callers_are_fuller_with_a_wait(rate: float):
    case = Case(arrivals=poisson(rate, 6.0), seconds=6.0, beside=0.2e-3)
    lone = run(case, EAGER)
    for wait in (2, 5, 10):
        waiting = waited(case, wait)
        assert waiting.per_call >= 1.05 * lone.per_call
        assert waiting.per_call >= 0.35 * (1.0 + rate * wait / 1000)
        assert max(waiting.all) <= wait / 1000 + 3 * CYCLE


@pytest.mark.parametrize(
    ("rate", "items"),
    [(200, (1.0, 1.1, 1.7, 4.3)), (1000, (1.5, 1.9, 4.2, 8.8)), (10_000, (13, 13, 13, 13))],
)
def test_the_table_of_waits_for_independent_callers(rate: int, items: tuple[float, ...]):
    """docs/explanation/batching.md: items in a batch without a wait, and with 1, 5 and 20 ms."""
    seconds = min(6.0, 15_000 / rate)
    case = Case(arrivals=poisson(rate, seconds), seconds=seconds)
    found = [waited(case, wait).per_call for wait in (0, 1, 5, 20)]
    assert found == pytest.approx(items, rel=0.06)


def test_no_wait_is_no_hold():
    case = Case(callers=4, seconds=0.5)
    assert waited(case, 0).all == run(case, EAGER).all
