"""Replicas that follow `latencyObjective`: what a pod can do, the terms, and what holds for every load."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_operator.autoscaling import (
    LoadWindow,
    PodLoad,
    Recommendation,
    RouterHolds,
    Sample,
    ScalerState,
    Target,
    recommend,
)
from penstock_operator.autoscaling.capacity import Arrivals, arrivals, capacity
from penstock_operator.autoscaling.forecast import Rates, expected, remember, trend
from penstock_wire.control.report import Fit, Items, SidecarReport, Totals
from tests.support.worlds.measured_pods import CURVE, LINE, OBJECTIVE, pod

TARGET = Target(
    min_replicas=1,
    max_replicas=100,
    target_load=None,
    stable_window=60,
    downscale_delay=300,
    objective=OBJECTIVE,
)


def starting(count: int) -> list[PodLoad]:
    return [PodLoad(name=f"new{index}", ready=False, was_ready=False) for index in range(count)]


def look(
    pods: list[PodLoad], *, current: int = 1, target: Target = TARGET, now: float = 100, **more: Any
) -> Recommendation:
    state = ScalerState(first_look=0, wanted=((99, current),))
    return recommend(target, current=current, pods=pods, state=more.pop("state", state), now=now, **more)[0]


# --- what a pod can do ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("latency", "size", "keeps"),
    [
        (1.0, 26, True),  # 1.05 · (0.1 + 0.02 · W) <= 1 / 1.5
        (None, 32, True),
        (9.0, 32, True),  # never more than maxBatchSize
        (0.2, 1, True),  # one item keeps 0.2 / 1.5
        (0.188, 1, True),  # no batch keeps 0.188 / 1.5: as small as can be, not larger than with 0.2
        (0.126, 1, True),  # L(1)
        (0.12, 32, False),  # L(1) = 0.126: nothing is lost by full ones
    ],
)
def test_the_largest_batch_that_keeps_the_objective(latency: float | None, size: int, keeps: bool) -> None:
    """As the sidecar chooses its batches; one that arrives waits half a batch's time."""
    able = capacity(replace(OBJECTIVE, latency=latency), CURVE, [pod("a", slots=2)], 100)
    assert (able.batch_size, able.keeps_objective, able.slots) == (size, keeps, 2)
    assert able.load == 1.5 * 2 * size
    assert able.rate == pytest.approx(2 * size / (1.05 * (0.1 + 0.02 * size)))


def test_without_a_curve_batches_are_full() -> None:
    """And there is no rate; slots are those of the policy until a pod says otherwise."""
    able = capacity(replace(OBJECTIVE, slots=3), None, [], 100)
    assert (able.batch_size, able.slots, able.load, able.rate) == (32, 3, 144, None)


# --- the terms ------------------------------------------------------------------------------------------


def test_by_rate() -> None:
    """Arrivals by 76 % of what a pod answers; what is shown has every term."""
    recommendation = look([pod("a", rate=120, load=30)], current=1)
    assert (recommendation.replicas, recommendation.verdict) == (4, "Scale")
    assert recommendation.message == "arrivals 120/s / (0.76 x 39.9/s) = 4; load 30 / 39 = 1"
    inputs = recommendation.inputs
    assert (inputs.by_rate, inputs.by_load, inputs.batch_size, inputs.batch_ms) == (4, 1, 26, 651)
    assert (inputs.arrivals_per_minute, inputs.target_load) == (7200, 39)
    assert (inputs.expected_per_minute, inputs.reserve_per_minute) == (7200, 0)


def test_before_a_curve_is_known_the_load_decides() -> None:
    """T* is then that of full batches."""
    recommendation = look([pod("a", rate=120, load=100, lines=())])
    inputs = recommendation.inputs
    assert (recommendation.replicas, inputs.by_rate, inputs.by_load) == (3, None, 3)


@pytest.mark.parametrize(("serving", "refused"), [(1, 0), (1, 30), (4, 0), (4, 30)])
def test_pods_that_start_are_not_asked_for_again(serving: int, refused: int) -> None:
    """However long they load, and though queues grow meanwhile and refuse: the arrivals ask for 10."""
    queue = 2000 // serving
    pods = [pod(f"p{index}", rate=290 / serving, load=queue, refused=refused) for index in range(serving)]
    recommendation = look([*pods, *starting(10 - serving)], current=10)
    assert recommendation.replicas == 10, recommendation.message
    again = [
        replace(load, samples=tuple(replace(sample, at=sample.at + 600) for sample in load.samples))
        for load in pods
    ]
    later = look([*again, *starting(10 - serving)], current=10, now=700)
    assert later.replicas == 10


def test_a_queue_is_cleared_within_a_stable_window() -> None:
    """Little arrives, but much waits: one more than are ready, or as many as clear it."""
    pods = [pod("a", rate=10, load=2400), pod("b", rate=10, load=2400)]
    found = look(pods, current=2)
    assert found.inputs.by_load == 3  # (20 + 4800 / 60) / 39.9
    assert "but 3 can clear it within 60s" in found.message
    assert look([pod("a", rate=10, load=100)]).inputs.by_load == 2
    assert look([pod("a", rate=10, load=39)]).inputs.by_load == 1


def test_what_no_longer_waits_asks_for_nothing() -> None:
    """A queue of a minute ago is no reason for a pod now."""
    before, now = pod("a", rate=10, load=900, until=90, seconds=60), pod("a", rate=10, until=100, seconds=9)
    recommendation = look([replace(now, samples=before.samples + now.samples)])
    assert (recommendation.replicas, recommendation.inputs.load) == (1, 0)


@pytest.mark.parametrize(("rate", "replicas"), [(303, 10), (306, 10), (314, 11)])
def test_the_replicas_rise_by_more_than_chance(rate: float, replicas: int) -> None:
    """10 pods have 303.5 a second at 76 %; two deviations of what a minute counts more are no reason."""
    pods = [pod(f"p{index}", rate=rate / 10, load=20) for index in range(10)]
    assert look(pods, current=10).replicas == replicas


def changing(rates: list[float], *, until: float = 100, count: int = 4) -> list[PodLoad]:
    """Pods to which so many items a second come together, a second each, the last one just now."""
    total = [0.0]
    for rate in rates:
        total.append(total[-1] + rate / count)
    whole = [round(items) for items in total]
    samples = tuple(
        Sample(at=until - len(rates) + at, arrived=whole[at] - whole[at - 1], load=5, slots=1, lines=(LINE,))
        for at in range(1, len(rates) + 1)
    )
    return [PodLoad(name=f"p{index}", ready=True, was_ready=True, samples=samples) for index in range(count)]


RISE = [100 + 2.0 * at for at in range(61)]


def test_a_rise_is_extrapolated_until_pods_are_ready() -> None:
    """2/s more each second: as many as arrive when pods that start now have come, by their start-up time."""
    pods = changing(RISE)
    recommendation = look(pods, current=5, startup=20)
    assert recommendation.inputs.arrivals_per_minute == pytest.approx(60 * 201, abs=90)
    # The middle of the last third is 10 s ago; then 20 s to start, and 2 s until the next look.
    assert recommendation.inputs.expected_per_minute == pytest.approx(60 * (201 + 32 * 2), rel=0.05)
    assert ", rising to 259/s in 22s," in recommendation.message
    assert ", rising to 235/s in 9.02s," in look(pods, current=5, startup=7.01847).message
    short = look(pods, current=5, startup=5).inputs.expected_per_minute
    unknown = look(pods, current=5).inputs.expected_per_minute
    assert recommendation.inputs.expected_per_minute > (unknown or 0) > (short or 0) > 60 * 201


@pytest.mark.parametrize(
    "rates",
    [
        [200.0] * 61,
        [150.0] * 41 + [200.0] * 20,
        [150.0] * 20 + [200.0] * 41,
        [200.0 + (at % 2) * 10 for at in range(61)],
        [220.0 - 2 * at for at in range(61)],
    ],
    ids=["steady", "a late jump", "an early jump", "noise", "a fall"],
)
def test_only_a_trend_is_extrapolated(rates: list[float]) -> None:
    """Chance, a jump and a fall ask for nothing beside what arrives, but for what chance may hide of it."""
    assert trend(changing(rates), window=60, now=100) <= 0.35
    assert trend(changing(RISE), window=60, now=100) > 1.5


@pytest.mark.parametrize("late", [0.0, 0.25, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("apart", [0.0, 0.1])
def test_a_trend_is_the_same_whenever_pods_report(late: float, apart: float) -> None:
    """Seconds that are not reported yet are no fall, and a report more or less in a part of them is no rise.

    (198: 200/s more each second, less what chance makes of it.)
    """
    pods = [
        _later(load, -late - index * apart)
        for index, load in enumerate(changing([100 * rate for rate in RISE]))
    ]
    assert trend(pods, window=60, now=100) == pytest.approx(198, rel=0.01)


def _later(load: PodLoad, seconds: float) -> PodLoad:
    samples = (replace(sample, at=sample.at + seconds) for sample in load.samples)
    return replace(load, samples=tuple(samples))


def test_a_trend_is_not_carried_beyond_the_last_crest() -> None:
    """Before the rate itself has passed that."""
    rates = Rates(highest=((50, 250.0),))
    for rate, ahead in ((200, 250), (249, 250), (300, 300 + 27 * 4)):
        assert expected(rates, Arrivals(rate, 20), trend=4, lead=17) == ahead
    assert expected(Rates(), Arrivals(200, 20), trend=4, lead=17) == 200 + 27 * 4


def test_the_rates_that_are_remembered() -> None:
    """The greatest rise within the span, the highest rate before it; both for the memory, and bounded."""
    rates = Rates()
    for at in range(0, 1000, 2):
        rates = remember(rates, 100.0 + 50 * (400 <= at < 420), span=30, memory=300, now=at)
        assert rates.reserve == (50 if 400 <= at < 718 else 0)
        assert rates.top == (0 if at < 30 else 150 if 430 <= at < 718 else 100)
    assert len(rates.lately) <= 16
    assert len(rates.highest) + len(rates.rises) <= 3
    for at in range(1000, 11000, 2):
        rates = remember(rates, 1200.0 - at / 10, span=30, memory=86400, now=at)
    assert len(rates.highest) < 150, "a long memory is coarse"
    assert rates.top == 1100


def test_rates_are_watched_anew_after_a_gap() -> None:
    """At zero, and while nobody reports, there are no rates: what was watched before says nothing of it."""
    rates = Rates()
    for at in (*range(0, 400, 2), *range(1000, 1010, 2)):
        rates = remember(rates, 100.0, span=30, memory=300, now=at)
        assert rates.watched(at) == (at if at < 1000 else at - 1000)
        assert rates.watched(at + 2) == 0


def test_a_second_counts_as_a_second() -> None:
    """What a new leader has counted in its first second is less sure than what it counts in twenty."""
    begun = [pod(name, rate=33, load=5, seconds=1, since=99.0) for name in ("a", "b")]
    assert look(begun, current=2).replicas == 2
    watched = [pod(name, rate=33, load=5, seconds=60, since=40.0) for name in ("a", "b")]
    assert look(watched, current=2).replicas == 3


@pytest.mark.parametrize(("seconds", "replicas"), [(1, 3), (19, 3), (20, 2)])
def test_the_first_of_a_load_counts_as_it_is(seconds: int, replicas: int) -> None:
    """Of pods that were heard from their first item on; after a third of the window, what exceeds chance.

    (2 pods have 60.7 a second at 76 %; two deviations of 64 a second in 20 s are 3.6.)
    """
    pods = [pod(name, rate=32, load=5, seconds=seconds) for name in ("a", "b")]
    assert look(pods, current=2).replicas == replicas


@pytest.mark.parametrize("window", [12, 60])
@pytest.mark.parametrize("apart", [0, 3])
def test_pods_that_a_new_leader_hears_one_after_the_other_are_no_rise(window: float, apart: int) -> None:
    """They ran before: what each of them counted until then arrived, but nobody knows when."""
    target, reports, state = replace(TARGET, stable_window=window), LoadWindow(window), ScalerState()
    names = ["a", "b", "c", "d"]
    for now in range(100, 200):
        for index, name in enumerate(names):
            if now >= 100 + index * apart:
                reports.record(_running(name, seq=now, arrived=20 * now), now)
        pods = reports.view(dict.fromkeys(names, True), now)
        recommendation, state = recommend(target, current=3, pods=pods, state=state, now=now)
        assert recommendation.inputs.wanted <= 3, recommendation.message
        rate = recommendation.inputs.arrivals_per_minute
        # 80/s, but for those that have not said a word.
        assert now < 104 + 3 * apart or rate == pytest.approx(4800, rel=0.02)
    assert trend(pods, window=window, now=now) <= 0.35


def _running(name: str, *, seq: int, arrived: int) -> SidecarReport:
    return SidecarReport(
        pod=name,
        uid=name,
        seq=seq,
        state="ready",
        items=Items(ongoing=5),
        totals=Totals(arrived=arrived),
        fit={"/predict": Fit(a_ms=100, b_ms=20, n=100)},
        slots=1,
    )


@pytest.mark.parametrize(
    ("rise", "since", "near", "replicas", "why"),
    [
        (0.0, 0, 1, 4, "4 leave room for the greatest rise of the last 300s"),
        (60.0, 0, 1, 6, "6 leave room for the greatest rise of the last 300s"),
        (0.0, 0, 9, 9, "9 were wanted within the last 30s"),
        (500.0, 0, 1, 12, "12 were wanted within the last 300s"),
        (0.0, 101, 1, 12, "12 were wanted within the last 300s"),  # not watched for 300 s yet
    ],
    ids=["no rise", "a rise", "wanted just now", "a greater rise", "a short memory"],
)
def test_replicas_fall_early_where_the_reserve_allows_it(
    rise: float, since: float, near: int, replicas: int, why: str
) -> None:
    """Before `downscaleDelay` has passed, but never below what would take the greatest rise again."""
    rates = Rates(lately=((398, 100.0),), rises=((150, rise),), since=since)
    state = ScalerState(first_look=0, wanted=((200, 12), (390, near)), rates=rates)
    pods = changing([100.0] * 61, until=400)
    falls = look(pods, current=12, now=400, state=state)
    assert falls.replicas == replicas
    # The message says why it falls no further, where it is not the load.
    assert falls.message.partition("; load")[2].partition("; ")[2] == ("" if replicas == 4 else why)
    held = look(pods, current=replicas, now=400, state=state)
    assert (held.replicas, held.verdict) == (replicas, "Steady" if replicas == 4 else "Delayed")
    assert replicas == 4 or why in held.message


@pytest.mark.parametrize(("rate", "replicas"), [(60, 3), (57, 2)])
def test_what_chance_would_ask_for_again_is_kept(rate: float, replicas: int) -> None:
    """2 pods have 60.7 a second at 76 %; one deviation of what 20 s count is no reason to fall."""
    target = replace(TARGET, downscale_delay=1)
    recommendation = look([pod(name, rate=rate / 3, load=5) for name in "abc"], current=3, target=target)
    assert (recommendation.inputs.wanted, recommendation.replicas) == (2, replicas)


def test_two_reports_of_a_burst_are_enough() -> None:
    """Many more than chance makes of them: as many pods as the burst asks for, two seconds after it began."""
    pods = changing([30.0] * 59 + [600.0] * 2, count=1)
    recommendation = look(pods, current=1)
    assert (recommendation.verdict, recommendation.replicas) == (
        "Scale",
        19,
    )  # (600 - 3 * sqrt(600 / 2)) / 30.4
    assert look(changing([30.0] * 59 + [60.0, 30.0], count=2), current=2).replicas == 2


def test_held_requests_count_as_arrivals() -> None:
    """From zero, with what is remembered of the curve: as many pods as clear them in a stable window."""
    samples = tuple(Sample(at=at, load=load) for at, load in ((98, 0), (99, 2400), (100, 2400)))
    holds, state = [RouterHolds(name="r", samples=samples)], ScalerState(curve=CURVE)
    assert arrivals([], holds, window=60, now=100, unknown=9) == Arrivals(1200, 2)
    recommendation = look([], current=0, holds=holds, state=state)
    assert recommendation.inputs.held == 2400
    assert recommendation.inputs.by_load == 32
    assert look([], current=0, holds=holds).inputs.by_load == 50  # nothing is known: 2400 / 48


def test_an_objective_below_one_item_is_told() -> None:
    """With the time of one item, whatever decides the number of pods; nothing before that is measured."""
    short = replace(TARGET, objective=replace(OBJECTIVE, latency=0.05))
    for target in (short, replace(short, target_load=3)):
        found = look([pod("a")], target=target)
        assert (found.item_seconds, found.unreachable) == (pytest.approx(0.126), True)
    assert not look([pod("a")]).unreachable
    assert look([pod("a", lines=())], target=short).item_seconds is None


# --- a blackout ---------------------------------------------------------------------------------------


def report(name: str, second: int, rate: float) -> SidecarReport:
    """What a pod says in a second, at a steady rate."""
    return SidecarReport(
        pod=name, uid=name, seq=second, state="ready", items=Items(ongoing=8),
        totals=Totals(arrived=round(rate * second)), fit={"/": Fit(a_ms=100, b_ms=20, n=100)}, slots=1,
    )  # fmt: skip


@pytest.mark.parametrize("target_load", [None, 10])
@pytest.mark.parametrize("stable_window", [4.0, 60.0])
@pytest.mark.parametrize("silence", [2, 5, 9, 30, 200])
@pytest.mark.parametrize("mute", [2, 4])
def test_a_blackout_of_reports_changes_nothing(
    mute: int, silence: int, stable_window: float, target_load: int | None
) -> None:
    """Half of the pods or all fall silent under a steady load: the number stays, then and after it."""
    target = replace(TARGET, stable_window=stable_window, downscale_delay=4, target_load=target_load)
    window, state, current = LoadWindow(stable_window), ScalerState(), 4
    names = [f"p{index}" for index in range(current)]
    began = 200
    for second in range(100, began + silence + 60):
        for index, name in enumerate(names):
            if index >= mute or not began < second <= began + silence:
                window.record(report(name, second, rate=27), second)
        now = second + 0.5
        pods = window.view(dict.fromkeys(names, True), now)
        recommended, state = recommend(target, current=current, pods=pods, state=state, now=now)
        assert recommended.replicas == current, (second, recommended)
        if began + 11 < second <= began + silence:
            assert (recommended.verdict, recommended.metrics_available) == ("TooManyUnknown", False)


# --- what holds for every load --------------------------------------------------------------------------


@given(
    rate=st.floats(0, 3000), load=st.integers(0, 5000), ready=st.integers(1, 12), pending=st.integers(0, 30)
)
def test_never_less_for_more(rate: float, load: int, ready: int, pending: int) -> None:
    """More arrivals, or a longer queue, never ask for fewer; and pods that start change nothing."""

    def wanted(rate: float, load: int, pending: int) -> int:
        pods = [pod(f"p{index}", rate=rate / ready, load=load // ready, seconds=65) for index in range(ready)]
        return look([*pods, *starting(pending)], current=1).inputs.wanted

    least = wanted(rate, load, 0)
    assert wanted(rate, load, pending) == least
    assert wanted(rate * 1.5 + ready, load, pending) >= least
    assert wanted(rate, load * 2, pending) >= least


@settings(max_examples=25)
@given(
    rates=st.lists(st.floats(0, 40), min_size=2, max_size=12),
    mute=st.integers(1, 6),
    silence=st.floats(0, 400),
    never=st.booleans(),
)
def test_silence_lowers_nothing(rates: list[float], mute: int, silence: float, never: bool) -> None:
    """Up to half of the pods fall silent, or never say a word to a new leader: the number stays or rises."""
    now, mute = 1000 + silence, min(mute, len(rates) // 2)
    pods = [
        pod(f"p{index}", rate=32, load=20, until=1000 if index < mute else now, ready_for=now)
        for index in range(len(rates))
    ]
    if never:
        pods = [replace(load, samples=()) if index < mute else load for index, load in enumerate(pods)]
    state = ScalerState(first_look=0, curve=CURVE)
    assert look(pods, current=len(pods), now=now, state=state).replicas >= len(pods)


def test_pods_that_were_asked_for_may_have_come_since() -> None:
    """The words are true before and after it, whenever a status is written."""
    for pods in ([], starting(1)):
        assert look(pods, current=1).message == "kept at 1: it has no ready pod"
