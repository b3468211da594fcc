"""L(W): exact on exact data, robust on bad, never optimistic about what was seen, and forgetful."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock_sidecar.estimators.latency_model import (
    BUCKET_SAMPLES,
    CLASSES,
    HORIZON,
    LAST,
    LONG,
    MARGIN,
    REFIT,
    FittedLine,
    LatencyModel,
    p80,
)
from penstock_sidecar.estimators.robust_line import fit_line

SIZES = st.integers(1, 256)
SECONDS = st.floats(0.0, LONG * HORIZON)
POINTS = st.lists(st.tuples(SIZES, SECONDS), min_size=1, max_size=LAST)


def taught(points: Sequence[tuple[int, float]], cls: str = "/m", now: float = 100.0) -> LatencyModel:
    latency_model = LatencyModel()
    for items, seconds in points:
        latency_model.observe(now, cls, items, seconds)
    return latency_model


LATER = 100.0 + REFIT
"""The time at which all observations of `taught` count."""


@given(st.floats(0.0, 1.0), st.floats(1e-6, 0.1), st.lists(SIZES, min_size=2, max_size=LAST))
def test_exact_on_exact_data(a: float, b: float, sizes: list[int]):
    assume(len(set(sizes)) > 1)
    fitted = fit_line([(size, a + b * size) for size in sizes])
    # In a sum, the smaller term is only as exact as the larger one is written.
    assert fitted == pytest.approx((a, b), rel=1e-6, abs=1e-9)


@given(st.lists(SECONDS, min_size=1, max_size=LAST), SIZES)
def test_of_one_size_the_line_is_flat(seconds: list[float], size: int):
    a, b = fit_line([(size, taken) for taken in seconds])
    assert b == 0.0
    assert min(seconds) <= a <= max(seconds)


@given(POINTS, st.randoms())
def test_the_order_of_samples_does_not_matter(points: list[tuple[int, float]], shuffler: random.Random):
    shuffled = list(points)
    shuffler.shuffle(shuffled)
    assert fit_line(shuffled) == fit_line(points)


@given(POINTS)
def test_neither_term_is_negative(points: list[tuple[int, float]]):
    a, b = fit_line(points)
    assert a >= 0.0
    assert b >= 0.0
    assert math.isfinite(a + b)


@given(
    a=st.floats(0.001, 0.1),
    b=st.floats(0.0001, 0.01),
    share=st.floats(0.0, 0.2),
    factor=st.floats(0.0, 1000.0),
    seed=st.integers(0, 2**32),
)
@settings(deadline=None)
def test_a_fifth_of_outliers_does_not_move_the_line(
    a: float, b: float, share: float, factor: float, seed: int
):
    """Each size has its outliers; what the line says of any size seen stays within 15 %."""
    source = random.Random(seed)
    sizes = [1 + 8 * (number % 20) for number in range(200)]
    source.shuffle(sizes)
    points = [(size, (a + b * size) * source.uniform(0.97, 1.03)) for size in sizes]
    for index in source.sample(range(200), int(share * 200)):
        size, seconds = points[index]
        points[index] = (size, seconds * factor)
    found_a, found_b = fit_line(points)
    for size in (40, 80, 153):
        assert found_a + found_b * size == pytest.approx(a + b * size, rel=0.15)


def test_outliers_of_one_size_alone_do_not_move_the_line():
    points = [(size, 0.010 + 0.001 * size) for size in range(1, 101) for _ in range(2)]
    bad = [(size, 9.0) if size > 80 else (size, seconds) for size, seconds in points]
    a, b = fit_line(bad)
    assert (a, b) == pytest.approx((0.010, 0.001), rel=0.25)


@given(POINTS, SIZES, SIZES)
@settings(deadline=None)
def test_a_larger_batch_never_is_predicted_to_be_faster(
    points: list[tuple[int, float]], smaller: int, other: int
):
    latency_model = taught(points)
    small, large = (latency_model.predict(LATER, "/m", size) for size in sorted((smaller, other)))
    assert small is not None
    assert large is not None
    assert 0.0 <= small <= large


@given(st.lists(SECONDS, min_size=BUCKET_SAMPLES, max_size=LAST // 2), POINTS.map(lambda p: p[:100]), SIZES)
@settings(deadline=None)
def test_never_below_what_four_of_five_batches_of_that_size_took(
    alike: list[float], others: list[tuple[int, float]], size: int
):
    """Whatever else was seen, of other sizes."""
    others = [(2 * items + 600, seconds) for items, seconds in others]
    predicted = taught([(size, seconds) for seconds in alike] + others).predict(LATER, "/m", size)
    assert predicted is not None
    assert predicted >= MARGIN * p80(alike) * (1 - 1e-12)


def test_the_line_has_a_margin():
    latency_model = taught([(size, 0.010 + 0.001 * size) for size in (1, 2, 4, 8)])
    assert latency_model.predict(LATER, "/m", 16) == pytest.approx(1.05 * 0.026)


def test_p80_is_by_nearest_rank():
    assert p80([float(n) for n in range(1, 101)]) == 80.0
    assert p80([1.0, 2.0, 3.0]) == 3.0


def test_nothing_is_known_of_what_was_not_seen():
    latency_model = taught([(4, 0.1)])
    assert latency_model.predict(LATER, "/other", 4) is None
    assert latency_model.lines(LATER) == {"/m": FittedLine(0.1, 0.0, 1, 4.0, 0.0)}


def test_a_line_that_falls_by_chance_is_told_as_it_is():
    """The forecast takes a flat one; a mean of many lines needs both kinds, or it is too steep."""
    latency_model = taught([(1, 0.3), (1, 0.3), (3, 0.1), (3, 0.1)])
    line = latency_model.lines(LATER)["/m"]
    assert (line.a, line.b) == (pytest.approx(0.4), pytest.approx(-0.1))
    assert (line.n, line.items, line.spread) == (4, 2.0, 1.0)
    assert latency_model.predict(LATER, "/m", 1) == latency_model.predict(LATER, "/m", 9) == 0.2 * MARGIN


USUAL = ((100.0, 0.4),) * 3


@pytest.mark.parametrize(
    ("batches", "known"),
    [
        (((100.0, 9.0),), None),
        (((100.0, 9.0), (100.1, 9.0), (100.2, 6.0)), None),
        ((*USUAL, *((120.0, 19.9),) * 8), 0.4),
        ((*USUAL, (160.0, 9.0)), None),
        (((100.0, 9.0), (109.0, 9.0)), 9.0),
        ((*USUAL, *((109.0, 9.0),) * 2, *((118.0, 9.0),) * 2), 9.0),
        ((*USUAL, (120.0, 20.0), (130.0, 20.0), (140.0, 20.0)), 20.0),
        (((100.0, 9.0), (160.0, 9.0)), 9.0),
        (((100.0, 9.0), *((160.0, 9.0),) * 2), 9.0),
    ],
    ids=[
        "the first", "the first ones at once", "at once, among usual ones", "after a pause",
        "two in a row", "two in a row in each slot", "staggered", "always", "always, at once",
    ],
)  # fmt: skip
def test_long_batches_that_one_stall_may_have_kept_up_do_not_count(
    batches: Sequence[tuple[float, float]], known: float | None
):
    """When a batch ended, and the seconds that it took."""
    latency_model = LatencyModel()
    for now, seconds in batches:
        latency_model.observe(now, "/m", 1, seconds)
    predicted = latency_model.predict(now + REFIT, "/m", 1)
    assert predicted == (None if known is None else pytest.approx(MARGIN * known))


def test_a_line_rests_on_no_batch_that_does_not_count():
    latency_model = LatencyModel()
    for now, seconds in (*USUAL, *((120.0, 19.9),) * 8):
        latency_model.observe(now, "/m", 2, seconds)
    line = latency_model.lines(120.0 + REFIT)["/m"]
    assert (line.a, line.n, line.items) == (pytest.approx(0.4), 3, 2.0)


def test_samples_expire_together_and_one_by_one():
    latency_model = LatencyModel()
    for second in range(5):
        latency_model.observe(100.0 + second, "/m", 1, 2.0 if second == 0 else 1.0)
    assert latency_model.lines(109.9)["/m"].n == 5
    assert latency_model.lines(110.1)["/m"].n == 4
    assert latency_model.predict(110.1, "/m", 1) == pytest.approx(MARGIN)
    assert latency_model.predict(104.0 + HORIZON - 0.01, "/m", 1) == pytest.approx(MARGIN)
    assert latency_model.predict(104.1 + HORIZON, "/m", 1) is None
    assert latency_model.largest(104.1 + HORIZON, "/m", 32, 1.0) == 1
    assert latency_model.lines(104.1 + HORIZON) == {}
    latency_model.observe(200.0, "/m", 1, 0.5)
    assert latency_model.predict(200.0, "/m", 1) == pytest.approx(MARGIN * 0.5)


def test_only_the_latest_batches_count():
    latency_model = LatencyModel()
    for number in range(3 * LAST):
        latency_model.observe(100.0 + number / 1000, "/m", 1, 9.0 if number < 2 * LAST else 1.0)
    assert latency_model.predict(101.0, "/m", 1) == pytest.approx(MARGIN)
    assert latency_model.lines(101.0)["/m"].n == LAST


def test_the_fit_follows_within_a_tenth_of_a_second():
    latency_model = taught([(1, 1.0)] * 50)
    assert latency_model.predict(LATER, "/m", 1) == pytest.approx(MARGIN)
    for _ in range(150):
        latency_model.observe(LATER, "/m", 1, 2.0)
    assert latency_model.predict(LATER + REFIT, "/m", 1) == pytest.approx(2 * MARGIN)


def test_classes_are_apart_and_bounded():
    latency_model = LatencyModel()
    for number in range(CLASSES):
        latency_model.observe(100.0, f"/{number}", 1, float(number))
    latency_model.observe(100.0, "/0", 1, 0.0)
    latency_model.observe(100.0, "/new", 1, 5.0)
    assert len(latency_model.lines(100.0)) == CLASSES
    assert latency_model.predict(100.0, "/1", 1) is None
    assert latency_model.predict(100.0, "/0", 1) == 0.0
    assert latency_model.predict(100.0, "/new", 1) == pytest.approx(5 * MARGIN)


def test_nothing_is_learned_before_the_model_is_loaded_nor_kept_when_it_is_gone():
    latency_model = LatencyModel()
    latency_model.learning = False
    latency_model.observe(100.0, "/m", 1, 9.0)
    assert latency_model.predict(100.0, "/m", 1) is None
    latency_model.learning = True
    latency_model.observe(100.0, "/m", 1, 1.0)
    assert latency_model.predict(100.0, "/m", 1) is not None
    latency_model.forget()
    assert latency_model.predict(100.0, "/m", 1) is None


def test_from_a_cold_start_the_batch_doubles():
    latency_model, sizes = LatencyModel(), []
    for _ in range(7):
        size = latency_model.largest(100.0, "/m", 48, 1.0)
        sizes.append(size)
        latency_model.observe(100.0, "/m", size, 0.010 + 0.001 * size)
    assert sizes == [1, 2, 4, 8, 16, 32, 48]


@given(POINTS, st.integers(1, 4096), st.floats(0.0, 20.0))
@settings(deadline=None)
def test_largest_is_the_largest(points: list[tuple[int, float]], limit: int, seconds: float):
    latency_model = taught(points)
    most = latency_model.largest(LATER, "/m", limit, seconds)
    top = min(limit, 2 * max(items for items, _ in points))
    assert 1 <= most <= top

    def fits(size: int) -> bool:
        predicted = latency_model.predict(LATER, "/m", size)
        return predicted is not None and predicted <= seconds

    assert most == 1 or fits(most)
    assert most == top or not fits(most + 1)
    assert latency_model.largest(LATER, "/m", limit, seconds) == most


def test_where_no_batch_keeps_it_none_is_made_small_for_it():
    """Of 60 ms + 1 ms an item, 50 ms keeps none: those of up to 80 ms do, and of 55 ms at most, any."""
    latency_model = taught([(size, 0.060 + 0.001 * size) for size in (1, 8, 32, 64)])
    assert latency_model.largest(LATER, "/m", 64, 0.050) == 1
    assert latency_model.largest(LATER, "/m", 64, 0.050, 0.080) == int(80 / MARGIN - 60)
    assert latency_model.largest(LATER, "/m", 64, 0.050, 0.055) == 64
    assert latency_model.largest(LATER, "/m", 64, 0.070, 0.500) == int(70 / MARGIN - 60)


@given(POINTS, SIZES)
@settings(deadline=None)
def test_the_middle_is_below_what_is_predicted(points: list[tuple[int, float]], size: int):
    latency_model = taught(points)
    middle, predicted = latency_model.middle(LATER, "/m", size), latency_model.predict(LATER, "/m", size)
    assert middle is not None
    assert predicted is not None
    assert 0.0 <= MARGIN * middle <= predicted * (1 + 1e-12)
    assert latency_model.middle(LATER, "/other", size) is None
    assert latency_model.middle(LATER + HORIZON + 1, "/m", size) is None
