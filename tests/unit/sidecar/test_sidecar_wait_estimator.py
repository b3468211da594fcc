"""The forecast of an arriving request's answer: from the slots' turns, robust, and forgotten in time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_sidecar.estimators.latency_model import HORIZON, MARGIN, LatencyModel
from penstock_sidecar.estimators.wait_estimator import WaitEstimator

CLS = "/m"
SERVICE = 0.010


def model(now: float = 100.0, *, items: int = 32) -> tuple[LatencyModel, WaitEstimator]:
    """A curve with batches of 10 ms, and an estimator on it."""
    latency_model = LatencyModel()
    for _ in range(20):
        latency_model.observe(now, CLS, items, SERVICE)
    return latency_model, WaitEstimator(latency_model)


def turns(
    latency_model: LatencyModel, wait_estimator: WaitEstimator, seconds: list[float], *, now: float = 100.0
) -> float:
    """Turns one after the other in one slot, all with work waiting; returns when the last was cut."""
    turn = wait_estimator.begin(now, CLS, 32, possible=32, waited=32, came=32)
    for each in seconds:
        now += each
        latency_model.observe(now, CLS, 32, SERVICE)
        wait_estimator.end(turn, waiting=True)
        turn = wait_estimator.begin(now, CLS, 32, possible=32, waited=32, came=32)
    return now


def test_a_free_slot_takes_it_at_once():
    _, wait_estimator = model()
    assert wait_estimator.finish(100.0, CLS, 32, items=31, waiting=32, lines=1, free=1, slots=1) is None
    assert wait_estimator.finish(100.0, CLS, 32, items=40, waiting=41, lines=1, free=2, slots=2) is None


def test_nothing_is_foretold_of_what_was_not_seen():
    _, wait_estimator = model()
    assert (
        wait_estimator.finish(100.0, "/other", 32, items=500, waiting=501, lines=1, free=0, slots=1) is None
    )


def test_without_turns_it_is_the_models_time_alone():
    """The rest of the batch that runs, one whole one, and its own."""
    _, wait_estimator = model()
    wait_estimator.begin(100.0, CLS, 32, possible=32, waited=32, came=32)
    finish = wait_estimator.finish(100.004, CLS, 32, items=32, waiting=33, lines=1, free=0, slots=1)
    assert finish == pytest.approx(MARGIN * SERVICE - 0.004 + SERVICE + MARGIN * SERVICE)


def test_the_next_slot_is_the_one_that_is_due_first_whatever_ended_before():
    _, wait_estimator = model()
    first = wait_estimator.begin(100.0, CLS, 32, possible=32, waited=32, came=32)
    wait_estimator.begin(100.003, CLS, 32, possible=32, waited=32, came=32)
    first_due = MARGIN * SERVICE
    finish = wait_estimator.finish(100.003, CLS, 32, items=0, waiting=1, lines=1, free=0, slots=2)
    assert finish == pytest.approx(first_due - 0.003 + MARGIN * SERVICE)
    wait_estimator.end(first, waiting=False)
    finish = wait_estimator.finish(100.003, CLS, 32, items=0, waiting=1, lines=1, free=0, slots=2)
    assert finish == pytest.approx(2 * MARGIN * SERVICE)


@pytest.mark.parametrize("extra", [0.0005, 0.002, 0.010])
def test_what_turns_take_beyond_the_model_is_learned(extra: float):
    latency_model, wait_estimator = model()
    now = turns(latency_model, wait_estimator, [SERVICE + extra] * 200)
    assert wait_estimator.extra == pytest.approx(extra, rel=0.05)
    finish = wait_estimator.finish(now, CLS, 32, items=10 * 32, waiting=321, lines=1, free=0, slots=1)
    assert finish == pytest.approx(10 * (SERVICE + extra) + 2 * (MARGIN * SERVICE + extra), rel=0.05)


@given(st.lists(st.floats(0.0, 0.004), min_size=100, max_size=100), st.integers(0, 99), st.floats(0.1, 100.0))
@settings(deadline=None, max_examples=50)
def test_one_outlier_refuses_nobody(extras: list[float], at: int, outlier: float):
    """Whenever and however long: it moves the forecast of one turn by less than a tenth of a batch."""
    usual, hit = (model() for _ in range(2))
    turns(*usual, [SERVICE + extra for extra in extras])
    times = [SERVICE + extra for extra in extras]
    times[at] = outlier
    # NB: without the time that it takes: samples shall not expire here.
    wait_estimator = hit[1]
    turn = wait_estimator.begin(100.0, CLS, 32, possible=32, waited=32, came=32)
    for each in times:
        turn.began = 100.0 - each
        wait_estimator.end(turn, waiting=True)
        turn = wait_estimator.begin(100.0, CLS, 32, possible=32, waited=32, came=32)
    assert wait_estimator.extra <= usual[1].extra + 0.1 * SERVICE
    assert wait_estimator.spread <= usual[1].spread + 0.1 * SERVICE


def test_a_slot_that_was_free_for_want_of_work_teaches_nothing():
    latency_model, wait_estimator = model()
    now = 100.0
    for _ in range(50):
        turn = wait_estimator.begin(now, CLS, 32, possible=32, waited=32, came=32)
        now += 0.1
        latency_model.observe(now, CLS, 32, SERVICE)
        wait_estimator.end(turn, waiting=False)
    for _ in range(50):
        turn = wait_estimator.begin(now, CLS, 32, possible=32, waited=32, came=32)
        wait_estimator.end(turn, waiting=True)
        wait_estimator.rest()
        now += 0.1
    assert wait_estimator.extra == wait_estimator.spread == 0.0


def test_what_was_learned_expires():
    """A slow sidecar is not held against it for ever, and so cannot lock itself out."""
    latency_model, wait_estimator = model()
    now = turns(latency_model, wait_estimator, [3 * SERVICE] * 100)
    assert wait_estimator.extra == pytest.approx(2 * SERVICE, rel=0.05)
    later = now + HORIZON + 1.0
    latency_model.observe(later, CLS, 32, SERVICE)
    turn = wait_estimator.begin(later, CLS, 32, possible=32, waited=1, came=1)
    finish = wait_estimator.finish(later, CLS, 32, items=32, waiting=33, lines=1, free=0, slots=1)
    assert finish is not None
    assert wait_estimator.extra == 0.0
    wait_estimator.end(turn, waiting=False)


def test_batches_that_cannot_be_filled_count_as_what_they_hold():
    """Requests of 20 items, batches of 32: each holds one, so 100 items are five batches, not three."""
    _, wait_estimator = model(items=20)
    for _ in range(200):
        wait_estimator.end(
            wait_estimator.begin(100.0, CLS, 20, possible=32, waited=100, came=100), waiting=False
        )
    wait_estimator.begin(100.0, CLS, 20, possible=32, waited=100, came=100)
    assert wait_estimator.fill == pytest.approx(20 / 32, rel=0.01)
    full = wait_estimator.finish(100.0, CLS, 32, items=100, waiting=101, lines=1, free=0, slots=1)
    assert full == pytest.approx(2 * MARGIN * SERVICE + 5 * SERVICE)


def test_part_full_batches_for_want_of_items_are_no_measure_of_full_ones():
    _, wait_estimator = model()
    for _ in range(200):
        wait_estimator.end(wait_estimator.begin(100.0, CLS, 3, possible=32, waited=3, came=3), waiting=False)
    assert wait_estimator.fill == 1.0


def test_large_items_that_go_alone_are_no_measure_of_full_batches():
    """One request of many large items must not have what comes after it refused as late."""
    _, wait_estimator = model()
    for _ in range(40):
        wait_estimator.end(
            wait_estimator.begin(100.0, CLS, 1, possible=32, waited=40, came=0, work=60.0), waiting=False
        )
    assert (wait_estimator.fill, wait_estimator.load) == (1.0, 1.0)


def test_what_batches_hold_is_forgotten_in_time():
    _, wait_estimator = model()
    for _ in range(40):
        wait_estimator.begin(100.0, CLS, 20, possible=32, waited=100, came=100, work=80.0)
    assert wait_estimator.fill < 0.8
    assert wait_estimator.load > 1.5
    wait_estimator.begin(100.0 + HORIZON, CLS, 3, possible=32, waited=3, came=3)
    assert wait_estimator.fill < 0.8
    wait_estimator.begin(101.0 + HORIZON, CLS, 3, possible=32, waited=3, came=3)
    assert (wait_estimator.fill, wait_estimator.load) == (1.0, 1.0)


BASE, ITEM = 0.100, 0.020


def arriving(*, came: int = 8, refused: int = 0, cuts: int = 200, every: float = 0.2) -> WaitEstimator:
    """Batches of 8 items take 260 ms, and one was cut at 100 s; so many items came between two cuts."""
    latency_model = LatencyModel()
    for items in range(1, 33):
        latency_model.observe(100.0, CLS, items, BASE + ITEM * items)
    wait_estimator = WaitEstimator(latency_model)
    for number in range(cuts + 1):
        now = 100.0 - (cuts - number) * every
        wait_estimator.refused += refused
        turn = wait_estimator.begin(now, CLS, 8, possible=32, waited=8, came=came)
        if number < cuts:
            wait_estimator.end(turn, waiting=False)
    return wait_estimator


def answered(wait_estimator: WaitEstimator, *, now: float = 100.0, **more: float) -> float:
    """When a request is answered that comes at a time, in seconds from 100 s on."""
    fields = {"items": 2, "waiting": 3, "lines": 1, "free": 0, "slots": 1} | more
    finish = wait_estimator.finish(now, CLS, 32, **fields)  # type: ignore[arg-type]
    assert finish is not None
    return now - 100.0 + finish


def took(items: int) -> float:
    return MARGIN * (BASE + ITEM * items)


@pytest.mark.parametrize(
    ("now", "waiting", "own"),
    [
        # The next cut is at 273 ms. Of 40 items a second, 10.9 come until then, and 0.84 · √10.9 = 2.8.
        (100.0, 3, 17),
        (100.0, 1, 15),
        # In the last 23 ms, 0.9 + 0.8.
        (100.250, 9, 11),
        (100.250, 31, 32),
        (100.250, 60, 32),
        # The cut is overdue: what comes now may still be in it, but need not.
        (100.400, 9, 9),
    ],
)
def test_a_requests_own_batch_holds_what_waits_and_what_comes_until_it_is_cut(
    now: float, waiting: int, own: int
):
    cut = max(now - 100.0, took(8))
    assert answered(arriving(), now=now, waiting=waiting) == pytest.approx(cut + took(own))


@pytest.mark.parametrize(
    ("estimator", "more", "turns"),
    [
        ({"cuts": 0}, {}, 0),
        ({"every": HORIZON + 1.0}, {}, 0),
        ({}, {"items": 40, "waiting": 41}, 1),
        ({}, {"lines": 2}, 1),
    ],
    ids=["nothing known of arrivals", "known long ago", "behind a whole batch", "behind another line"],
)
def test_where_that_is_not_known_it_is_full(estimator: dict[str, float], more: dict[str, float], turns: int):
    full = took(8) + turns * (BASE + ITEM * 32) + took(32)
    assert answered(arriving(**estimator), **more) == pytest.approx(full)  # type: ignore[arg-type]


def test_what_was_refused_as_late_has_arrived_too():
    """Else each refusal would make room in the forecast for more than the batch can take."""
    admitted, refused = arriving(came=8), arriving(came=2, refused=6)
    assert answered(refused) == pytest.approx(answered(admitted))


def test_a_pause_does_not_hide_what_comes_after_it():
    """Cuts 9 s apart count as 2 · 273 ms: 8 items each are 15 a second, and not one."""
    came = 8 / 0.546 * 0.273
    own = math.ceil(3 + came + 0.84 * math.sqrt(came))
    assert answered(arriving(every=9.0)) == pytest.approx(took(8) + took(own))


@given(
    st.integers(0, 40),
    st.integers(0, 31),
    st.floats(0.0, 0.4),
    st.floats(0.0, 1.0),
    st.integers(0, 5),
)
@settings(deadline=None, max_examples=100)
def test_a_lower_bound_holds_for_all_that_come_while_half_of_the_time_is_left(
    came: int, waiting: int, elapsed: float, later: float, more: int
):
    """And no forecast is beyond that of a full batch."""
    wait_estimator = arriving(came=came, cuts=20)
    now = 100.0 + elapsed
    bound = answered(wait_estimator, now=now, waiting=waiting + 1, until=0.5)
    left = max(0.0, wait_estimator.next_release - now)
    then = now + later * left / 2
    answer = answered(wait_estimator, now=then, waiting=waiting + 1 + more)
    assert bound <= answer + 1e-9
    assert answer <= max(then - 100.0, took(8)) + took(32) + 1e-9
