"""How soon callers come back: learned from answers and arrivals that carry no names."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_sidecar.estimators.return_times import BINS, KEPT, REFRESH, SURE, ReturnTimes

BOUND = 0.5e-3


def callers(count: int, batches: int, *, least: float = 0.1e-3, mean: float = 0.05e-3) -> ReturnTimes:
    """So many callers, all in each batch of 1 ms, who come back as soon as they are answered."""
    draw, returns, now = random.Random(1), ReturnTimes(), 0.0
    for _ in range(batches):
        returns.answered(now, count, BOUND)
        back = sorted(now + least + draw.expovariate(1.0 / mean) for _ in range(count))
        for moment in back:
            returns.arrived(moment)
        now = back[-1] + 1e-3
    returns.answered(now, count, BOUND)
    return returns


def independent(rate: float, seconds: float, *, service: float = 1e-3, seed: int = 2) -> list[ReturnTimes]:
    """Arrivals that depend on nothing, in batches of all that waits; what was known after each batch."""
    draw, returns, times = random.Random(seed), ReturnTimes(), []
    arrival, free, waiting = draw.expovariate(rate), 0.0, 0
    while arrival < seconds:
        if not waiting:
            waiting, free = 1, max(free, arrival)
            returns.arrived(arrival)
            arrival += draw.expovariate(rate)
        running, waiting, free = waiting, 0, free + service
        while arrival < free:
            returns.arrived(arrival)
            waiting += 1
            arrival += draw.expovariate(rate)
        returns.answered(free, running, BOUND)
        times.append(returns)
        assert returns.share < SURE
    return times


@pytest.mark.parametrize("count", [1, 2, 16, 64])
def test_callers_who_ask_at_once_are_known_after_some_batches(count: int):
    assert callers(count, REFRESH - 2).share == 0.0
    returns = callers(count, 40)
    assert returns.share >= 0.95
    assert returns.closed
    assert returns.out == count


@pytest.mark.parametrize(("batches", "sure"), [(REFRESH, False), (20 * REFRESH, True)])
def test_a_share_that_few_answers_show_is_no_reason_to_wait(batches: int, sure: bool):
    """Three of four callers come back in time: by chance, or as a rule."""
    returns, now = ReturnTimes(), 0.0
    for _ in range(batches):
        returns.answered(now, 4, BOUND)
        for lag in (0.1e-3, 0.2e-3, 0.3e-3):
            returns.arrived(now + lag)
        now += 1.3e-3
    assert returns.share == pytest.approx(0.75, abs=0.1)
    assert returns.sure is sure


@pytest.mark.parametrize("rate", [50.0, 500.0, 2000.0, 8000.0, 30_000.0])
def test_independent_arrivals_are_nobodys_return_whatever_their_rate(rate: float):
    assert independent(rate, 3.0)[-1].share <= 0.25


@pytest.mark.parametrize("rate", [200.0, 1000.0])
def test_independent_arrivals_are_not_only_those_who_were_answered(rate: float):
    assert not independent(rate, 3.0)[-1].closed


def test_those_who_are_late_are_expected_by_what_is_left_of_the_distribution():
    returns = callers(16, 40)
    now = returns._at[-1]
    assert sum(more for _, more in returns.expected(now, 1e-3)) == pytest.approx(16, rel=0.05)
    assert sum(more for _, more in returns.expected(now, 0.11e-3)) < 4
    # None has come for 0.2 ms: an eighth of them would still be out then, and these come soon.
    late = returns.expected(now + 0.2e-3, 0.3e-3)
    assert sum(more for _, more in late) == pytest.approx(16, rel=0.1)
    assert all(0.0 <= ahead <= 0.3e-3 for ahead, _ in late)


def test_what_callers_did_before_is_forgotten():
    returns = callers(4, 100)
    now = returns._at[-1]
    for _ in range(400):  # now they think for 3 ms
        for _ in range(4):
            now += 0.75e-3
            returns.arrived(now)
        returns.answered(now + 1e-3, 4, BOUND)
        now += 1e-3
    assert returns.share < 0.5


def test_callers_who_are_back_before_their_batch_is_over_are_not_waited_for():
    """As those of streams of which one lasts longer than the others."""
    returns, now = ReturnTimes(), 0.0
    for _ in range(40):
        for _ in range(3):
            returns.arrived(now - 0.2e-3)
        returns.answered(now, 4, BOUND)
        returns.arrived(now + 0.1e-3)
        now += 1.2e-3
    assert returns.share < SURE


EVENTS = st.lists(
    st.tuples(st.sampled_from(["answered", "arrived", "arrived"]), st.floats(0.0, 2e-3), st.integers(1, 9)),
    max_size=120,
)


@given(EVENTS, st.floats(0.0, 1.0), st.floats(0.0, 20.0))
def test_whatever_happens_no_more_are_expected_than_are_out(
    events: list[tuple[str, float, int]], later: float, within: float
):
    returns, now = ReturnTimes(), 5.0
    for what, gap, count in events:
        now += gap
        if what == "answered":
            returns.answered(now, count, BOUND)
        else:
            returns.arrived(now)
        assert returns.out == sum(returns._left) >= 0
        assert min(returns._left, default=0) >= 0
        assert 0.0 <= returns.share <= 1.0
        assert len(returns._at) == len(returns._left) <= KEPT
        assert len(returns._lags) in (0, BINS)
    steps = returns.expected(now + later, within)
    assert steps == sorted(steps)
    assert sum(more for _, more in steps) <= returns.out + 1e-6
    assert all(0.0 <= ahead <= within and more > 0.0 for ahead, more in steps)
