"""The forecast of an arriving request's answer: from the slots' turns, robust, and forgotten in time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_sidecar.estimators.latency_model import HORIZON, MARGIN, ServiceCurve
from penstock_sidecar.estimators.wait_estimator import Forecast

CLS = "/m"
SERVICE = 0.010


def model(now: float = 100.0, *, items: int = 32) -> tuple[ServiceCurve, Forecast]:
    """A curve that knows batches of 10 ms, and a forecast on it."""
    curve = ServiceCurve()
    for _ in range(20):
        curve.observe(now, CLS, items, SERVICE)
    return curve, Forecast(curve)


def turns(curve: ServiceCurve, forecast: Forecast, seconds: list[float], *, now: float = 100.0) -> float:
    """Turns one after the other in one slot, all with work waiting; returns when the last was cut."""
    turn = forecast.begin(now, CLS, 32, possible=32, waited=32)
    for each in seconds:
        now += each
        curve.observe(now, CLS, 32, SERVICE)
        forecast.end(turn, waiting=True)
        turn = forecast.begin(now, CLS, 32, possible=32, waited=32)
    return now


def test_a_free_slot_takes_it_at_once():
    _, forecast = model()
    assert forecast.finish(100.0, CLS, 32, items=31, lines=1, free=1, slots=1) is None
    assert forecast.finish(100.0, CLS, 32, items=40, lines=1, free=2, slots=2) is None


def test_nothing_is_foretold_of_what_was_not_seen():
    _, forecast = model()
    assert forecast.finish(100.0, "/other", 32, items=500, lines=1, free=0, slots=1) is None


def test_without_turns_it_is_the_models_time_alone():
    """The rest of the batch that runs, one whole one, and its own."""
    _, forecast = model()
    forecast.begin(100.0, CLS, 32, possible=32, waited=32)
    found = forecast.finish(100.004, CLS, 32, items=32, lines=1, free=0, slots=1)
    assert found == pytest.approx(MARGIN * SERVICE - 0.004 + SERVICE + MARGIN * SERVICE)


def test_the_next_slot_is_the_one_that_is_due_first_whatever_ended_before():
    _, forecast = model()
    first = forecast.begin(100.0, CLS, 32, possible=32, waited=32)
    forecast.begin(100.003, CLS, 32, possible=32, waited=32)
    first_due = MARGIN * SERVICE
    found = forecast.finish(100.003, CLS, 32, items=0, lines=1, free=0, slots=2)
    assert found == pytest.approx(first_due - 0.003 + MARGIN * SERVICE)
    forecast.end(first, waiting=False)
    found = forecast.finish(100.003, CLS, 32, items=0, lines=1, free=0, slots=2)
    assert found == pytest.approx(2 * MARGIN * SERVICE)


@pytest.mark.parametrize("extra", [0.0005, 0.002, 0.010])
def test_what_turns_take_beyond_the_model_is_learned(extra: float):
    curve, forecast = model()
    now = turns(curve, forecast, [SERVICE + extra] * 200)
    assert forecast.extra == pytest.approx(extra, rel=0.05)
    found = forecast.finish(now, CLS, 32, items=10 * 32, lines=1, free=0, slots=1)
    assert found == pytest.approx(10 * (SERVICE + extra) + 2 * (MARGIN * SERVICE + extra), rel=0.05)


@given(st.lists(st.floats(0.0, 0.004), min_size=100, max_size=100), st.integers(0, 99), st.floats(0.1, 100.0))
@settings(deadline=None, max_examples=50)
def test_one_outlier_refuses_nobody(extras: list[float], at: int, outlier: float):
    """Whenever and however long: it moves the forecast of one turn by less than a tenth of a batch."""
    usual, hit = (model() for _ in range(2))
    turns(*usual, [SERVICE + extra for extra in extras])
    found = [SERVICE + extra for extra in extras]
    found[at] = outlier
    # NB: without the time that it takes: samples shall not expire here.
    forecast = hit[1]
    turn = forecast.begin(100.0, CLS, 32, possible=32, waited=32)
    for each in found:
        turn.began = 100.0 - each
        forecast.end(turn, waiting=True)
        turn = forecast.begin(100.0, CLS, 32, possible=32, waited=32)
    assert forecast.extra <= usual[1].extra + 0.1 * SERVICE
    assert forecast.spread <= usual[1].spread + 0.1 * SERVICE


def test_a_slot_that_was_free_for_want_of_work_teaches_nothing():
    curve, forecast = model()
    now = 100.0
    for _ in range(50):
        turn = forecast.begin(now, CLS, 32, possible=32, waited=32)
        now += 0.1
        curve.observe(now, CLS, 32, SERVICE)
        forecast.end(turn, waiting=False)
    for _ in range(50):
        turn = forecast.begin(now, CLS, 32, possible=32, waited=32)
        forecast.end(turn, waiting=True)
        forecast.rest()
        now += 0.1
    assert forecast.extra == forecast.spread == 0.0


def test_what_was_learned_expires():
    """A slow sidecar is not held against it for ever, and so cannot lock itself out."""
    curve, forecast = model()
    now = turns(curve, forecast, [3 * SERVICE] * 100)
    assert forecast.extra == pytest.approx(2 * SERVICE, rel=0.05)
    later = now + HORIZON + 1.0
    curve.observe(later, CLS, 32, SERVICE)
    turn = forecast.begin(later, CLS, 32, possible=32, waited=1)
    found = forecast.finish(later, CLS, 32, items=32, lines=1, free=0, slots=1)
    assert found is not None
    assert forecast.extra == 0.0
    forecast.end(turn, waiting=False)


def test_batches_that_cannot_be_filled_count_as_what_they_hold():
    """Requests of 20 items, batches of 32: each holds one, so 100 items are five batches, not three."""
    _, forecast = model(items=20)
    for _ in range(200):
        forecast.end(forecast.begin(100.0, CLS, 20, possible=32, waited=100), waiting=False)
    forecast.begin(100.0, CLS, 20, possible=32, waited=100)
    assert forecast.fill == pytest.approx(20 / 32, rel=0.01)
    full = forecast.finish(100.0, CLS, 32, items=100, lines=1, free=0, slots=1)
    assert full == pytest.approx(2 * MARGIN * SERVICE + 5 * SERVICE)


def test_part_full_batches_for_want_of_items_are_no_measure_of_full_ones():
    _, forecast = model()
    for _ in range(200):
        forecast.end(forecast.begin(100.0, CLS, 3, possible=32, waited=3), waiting=False)
    assert forecast.fill == 1.0
