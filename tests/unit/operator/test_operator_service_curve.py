"""The service curve that an operator follows: what pods report, and what noise and broken pods do to it."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from penstock_operator.autoscaling import LoadWindow, PodLoad
from penstock_operator.autoscaling.capacity import Curve, capacity
from penstock_operator.autoscaling.capacity import follow as follow_up_to
from penstock_operator.autoscaling.window import FittedLine
from penstock_sidecar.estimators.latency_model import LatencyModel
from penstock_wire.control.report import Fit, SidecarReport
from tests.support.worlds.measured_pods import CURVE, OBJECTIVE, pod


def line(a: float, b: float, n: int = 100, *, items: float = 8, spread: float = 4) -> FittedLine:
    return FittedLine(a=a, b=b, n=n, items=items, spread=spread)


def follow(before: Curve | None, pods: list[PodLoad], now: float) -> Curve | None:
    return follow_up_to(before, pods, now, most=32)


def started(pods: list[PodLoad]) -> Curve:
    """The first curve, at 100 s, as if it had been followed since 0."""
    curve = follow(None, pods, 100)
    assert curve is not None
    return replace(curve, since=0)


def test_the_curve_is_remembered_and_follows_slowly() -> None:
    """Of a model without work sidecars report none; one that has left counts no more."""
    known = started([pod("a")])
    assert (known.a, known.b) == (pytest.approx(0.1), pytest.approx(0.02))
    assert follow(known, [pod("a", lines=())], 104) == known
    assert follow(None, [pod("a", lines=())], 104) is None
    slower = follow(
        known, [pod("a", lines=(line(0.2, 0.04),)), pod("b", lines=(line(0.5, 0.1),), left=True)], 104
    )
    assert slower is not None
    assert 0.1 < slower.a < 0.2
    assert 0.02 < slower.b < 0.03


def test_a_line_through_batches_of_one_size_says_nothing_of_the_slope() -> None:
    """But what batches of that size take; the first one that has several sizes decides the slope at once."""
    known = started([pod("a")])
    flat = follow(known, [pod("a", lines=(line(0.5, 0.0, items=1, spread=0),), until=160)], 160)
    assert flat is not None
    assert flat.b == 0.02
    assert flat.seconds(1) == pytest.approx(1.05 * (0.12 + 0.63 * 0.38), rel=0.01)
    alone = started([pod("a", lines=(line(0.12, 0.0, items=1, spread=0),))])
    assert (alone.a, alone.b) == (0.12, 0.0)
    told = follow(alone, [pod("a")], 102)
    assert told is not None
    assert told.b == pytest.approx(0.02)


def followed(known: Curve, *lines: FittedLine, seconds: int = 60, gap: int = 2) -> Curve:
    """The curve after a silence, and so many seconds of pods of which each reports one of the lines."""
    curve: Curve | None = known
    for now in range(100 + gap, 100 + gap + seconds, 2):
        curve = follow(curve, [pod(f"p{n}", lines=(each,), until=now) for n, each in enumerate(lines)], now)
    assert curve is not None
    return curve


def rate(curve: Curve) -> float:
    able = capacity(OBJECTIVE, curve, [], 0)
    assert able.rate is not None
    return able.rate


KNOWN = Curve(at=100, items=16, level=0.026, slope=0.001, information=200 * 64, since=0)
"""10 ms + 1 ms an item, from batches of 8 to 24: 726 items a second."""


@pytest.mark.parametrize(
    "steep", [line(0.001, 0.01, 3, items=1.3, spread=0.5), line(0.02, -0.01, 3, items=1.3, spread=0.5)]
)
def test_a_few_small_batches_after_a_long_silence_say_no_more_than_at_any_time(steep: FittedLine) -> None:
    """The slope was known before it; nothing has told otherwise."""
    after = followed(KNOWN, steep, seconds=20, gap=1800)
    assert after.slope == pytest.approx(0.001, rel=0.02)


def test_a_flat_line_whose_sizes_are_unknown_says_nothing_beside_a_known_curve() -> None:
    """An older sidecar's, whose batches are all full: it would seem to be of single items."""
    full = FittedLine(a=0.042, b=0.0, n=100, items=1, spread=0, sized=False)
    assert followed(KNOWN, full, seconds=300) == KNOWN
    assert started([pod("a", lines=(full,))]).level == 0.042


def test_a_line_that_begins_below_zero_is_not_extended_below_it() -> None:
    """A model that takes more than twice as long for twice as many: -50 ms + 6 ms an item, at 28."""
    curve = Curve(at=100, items=28, level=0.118, slope=0.006, information=200 * 16, since=0)
    single = line(0.01, 0.0, items=1, spread=0)
    assert followed(curve, single, seconds=2).level == pytest.approx(0.118 / 28, rel=0.1)


def test_one_line_below_zero_does_not_hide_the_others() -> None:
    """The level is a mean of times; a time is not negative."""
    good = line(0.01, 0.001, 200, items=16, spread=8)
    assert rate(followed(KNOWN, good, good, good, replace(good, a=-1e9))) < 1.5 * rate(KNOWN)


def test_a_spread_that_batches_cannot_have_is_cut() -> None:
    """Else one report would decide the slope for ever."""
    wild = line(0.01, 0.01, 200, items=1e6, spread=1e6)
    once = followed(KNOWN, wild, seconds=2)
    again = followed(replace(once, at=100), line(0.01, 0.001, 200, items=16, spread=8), seconds=600)
    assert again.slope == pytest.approx(0.001, rel=0.05)


LIKE_OTHERS = line(0.1, 0.02, 25, items=8, spread=3)
FROM_OTHERS = [
    line(0.001, 0, 200, items=16, spread=16),  # answers at once, and so has the most batches
    line(0, 0, 200, items=1, spread=0),
    line(1e9, 0, 200, items=16, spread=16),
    line(1e9, 1e9, 200, items=16, spread=16),
    line(1.0, 0.2, 200, items=16, spread=16),
    line(0, -1e6, 200, items=32, spread=16),
    line(0, 1e9, 1, items=1, spread=0.001),
]


@pytest.mark.parametrize("lines", [1, 64])
@pytest.mark.parametrize("broken", FROM_OTHERS)
def test_one_pod_against_nine_moves_the_number_by_little(broken: FittedLine, lines: int) -> None:
    """Neither while it reports nor afterwards: what it says of the slope is not remembered for hours."""
    known = followed(started([pod("a", lines=(LIKE_OTHERS,))]), *[LIKE_OTHERS] * 10)
    others = [pod(f"p{n}", lines=(LIKE_OTHERS,), until=500) for n in range(9)]
    curve: Curve | None = known
    for now in range(402, 502, 2):
        curve = follow(curve, [*others, pod("b", lines=(broken,) * lines, until=500)], now)
    assert curve is not None
    assert rate(known) / 1.5 < rate(curve) < 1.5 * rate(known)
    assert rate(followed(replace(curve, at=100), *[LIKE_OTHERS] * 9, seconds=300)) == pytest.approx(
        rate(known), rel=0.05
    )


@pytest.mark.parametrize("broken", FROM_OTHERS)
def test_one_pod_against_nine_decides_no_first_curve(broken: FittedLine) -> None:
    """A new leader has nothing else to compare it with."""
    pods = [pod(f"p{n}", lines=(LIKE_OTHERS,)) for n in range(9)]
    without, with_it = follow(None, pods, 100), follow(None, [*pods, pod("b", lines=(broken,))], 100)
    assert without is not None
    assert with_it is not None
    assert rate(without) / 1.6 < rate(with_it) < 1.6 * rate(without)


def test_pods_of_two_speeds_count_alike() -> None:
    """Each third of the pods takes three times as long as the others, and all of them count as they are."""
    slow = line(0.3, 0.06, 25, items=8, spread=3)
    pods = [pod(f"p{n}", lines=(slow if n % 3 == 0 else LIKE_OTHERS,)) for n in range(9)]
    curve = follow(None, pods, 100)
    assert curve is not None
    assert curve.level == pytest.approx((2 * 0.26 + 0.78) / 3)
    assert curve.slope == pytest.approx((2 * 0.02 + 0.06) / 3)


def test_slots_that_one_pod_alone_has_count_as_three_times_the_others() -> None:
    """Pods of nine do not become useless because the tenth reports a hundred thousand slots."""
    nine = [pod(f"p{n}", slots=2) for n in range(9)]
    assert capacity(OBJECTIVE, CURVE, [*nine, pod("b", slots=100_000)], 100).slots == 2.4
    assert capacity(OBJECTIVE, CURVE, [*nine, pod("b", slots=4)], 100).slots == 2.2
    assert capacity(OBJECTIVE, CURVE, [*nine[:1], pod("b", slots=20)], 100).slots == 11


def test_the_first_line_is_one_of_many() -> None:
    """One that is far off, as a line through a few batches may be, decides nothing for the next minutes."""
    odd = follow(None, [pod("a", lines=(line(0.1, 0.04, 9),))], 100)
    for now in range(102, 110, 2):
        odd = follow(odd, [pod("a", until=now)], now)
    assert odd is not None
    assert odd.b == pytest.approx(0.02)
    for now in range(110, 210, 2):
        odd = follow(odd, [pod("a", lines=(line(0.1, 0.015 + 0.01 * (now % 4 == 0)),), until=now)], now)
        assert odd is not None
        assert odd.b == pytest.approx(0.02, abs=0.0015)


def reported(model: LatencyModel, now: float) -> tuple[FittedLine, ...]:
    """What a sidecar reports of its model, as the operator's window takes it."""
    window = LoadWindow()
    fit = {
        cls: Fit(a_ms=each.a * 1000, b_ms=each.b * 1000, n=each.n, items=each.items, spread=each.spread)
        for cls, each in model.lines(now).items()
    }
    window.record(SidecarReport(pod="a", uid="a", seq=1, state="ready", fit=fit), now)
    return window.view({"a": True}, now)[0].samples[-1].lines


def test_small_batches_on_a_noisy_machine_make_no_steep_curve() -> None:
    """A pod that answers in 12 ms + 0.5 ms an item, which by chance takes half or twice as long.

    A mean of lines that never fall comes to 1.1 ms, one that leaves out flat lines to several.
    """
    slopes = []
    for seed in range(6):
        chance, model, curve = random.Random(seed), LatencyModel(), None
        for now in range(1, 301):
            for part in range(30):
                items = chance.choice((1, 1, 1, 1, 2, 2, 3))
                seconds = (0.012 + 0.0005 * items) * math.exp(chance.gauss(0, 0.8))
                model.observe(now - 1 + part / 30, "/", items, seconds)
            curve = follow(curve, [pod("a", lines=reported(model, now), until=now)], now)
        assert curve is not None
        slopes.append(curve.slope)
        # With a slope that is known from full batches, these say nothing of it.
        known: Curve | None = started([pod("a", lines=(line(0.012, 0.0005, items=20, spread=8),))])
        for now in range(101, 200):
            known = follow(known, [pod("a", lines=reported(model, 300), until=now)], now)
        assert known is not None
        assert known.slope == pytest.approx(0.0005, rel=0.3)
    assert sum(slopes) / 6 == pytest.approx(0.0005, abs=0.0003)
