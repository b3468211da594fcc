"""How many replicas a load asks for: tables, a simulated backend, and what holds for every load."""

from __future__ import annotations

import datetime
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, UnsetType

from penstock_operator.api import BatchPolicySpec, ModelBackend
from penstock_operator.autoscaling import (
    LoadWindow,
    Objective,
    PodLoad,
    Recommendation,
    Sample,
    ScalerState,
    Target,
    recommend,
    target_of,
)
from penstock_wire.control.artifact import ArtifactState
from penstock_wire.control.report import Fit, Items, SidecarReport, State, Totals
from penstock_wire.errors import Reason

NOW = datetime.datetime(2026, 11, 23, 9, tzinfo=datetime.UTC)
FIRST_LOOK = "not lowered before one stable window has been watched"
TARGET = Target(min_replicas=1, max_replicas=10, target_load=10, stable_window=60, downscale_delay=300)


def report(pod: str = "p", seq: int = 1, state: State = "ready", load: int = 0, **more: Any) -> SidecarReport:
    totals = Totals(**{key: more.pop(key) for key in ("arrived", "batches", "batch_items") if key in more})
    return SidecarReport(
        pod=pod,
        uid=more.pop("uid", "u"),
        seq=seq,
        state=state,
        items=Items(queued=load),
        totals=totals,
        **more,
    )


def pod(
    name: str, *loads: tuple[float, int], ready: bool = True, was: bool = True, left: bool = False
) -> PodLoad:
    samples = tuple(Sample(at=at, load=load) for at, load in loads)
    return PodLoad(name=name, ready=ready, was_ready=was, left=left, samples=samples)


def steady(name: str, load: int, *, until: float, seconds: int = 60, **more: Any) -> PodLoad:
    return pod(name, *((until - seconds + second, load) for second in range(seconds + 1)), **more)


class Backend:
    """A backend of which every pod reports each second, scaled as recommended at once."""

    def __init__(self, target: Target, replicas: int) -> None:
        self.target, self.replicas, self.now = target, replicas, 1000.0
        self.window, self.state, self.seq = LoadWindow(target.stable_window), ScalerState(), 0
        self.history: list[int] = []
        self.last: Recommendation | None = None

    def run(self, seconds: int, load: int) -> None:
        """Share a load among the pods for some seconds."""
        for _ in range(seconds):
            self.now += 1
            self.seq += 1
            for index in range(self.replicas):
                share = load // self.replicas + (index < load % self.replicas)
                self.window.record(report(f"p{index}", self.seq, load=share), self.now)
            pods = {f"p{index}": True for index in range(self.replicas)}
            self.last, self.state = recommend(
                self.target,
                current=self.replicas,
                pods=self.window.view(pods, self.now),
                state=self.state,
                now=self.now,
            )
            self.replicas = self.last.replicas
            self.history.append(self.replicas)


# --- one look -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("load", "wanted", "replicas"),
    [
        (0, 0, 1),
        (1, 1, 1),
        (10, 1, 1),
        (11, 2, 2),
        (19, 2, 2),
        (95, 10, 10),
        (101, 11, 10),
        (10_000, 1000, 10),
    ],
)
def test_ceil_of_load_over_target(load: int, wanted: int, replicas: int) -> None:
    """N = ceil(load / target), clamped; up at once, also on the first look."""
    recommended, _ = recommend(
        TARGET, current=1, pods=[steady("a", load, until=100)], state=ScalerState(), now=100
    )
    assert (recommended.inputs.wanted, recommended.replicas) == (wanted, replicas)
    assert recommended.inputs.load == load
    assert recommended.metrics_available


@pytest.mark.parametrize(
    ("current", "load", "verdict", "message"),
    [
        (1, 35, "Scale", "load 35 / targetLoad 10 = 3.5, rounded up to 4"),
        (4, 35, "Steady", "load 35 / targetLoad 10 = 3.5, rounded up to 4"),
        (10, 120, "Limited", "load 120 / targetLoad 10 = 12, limited to maxReplicas 10"),
        (1, 0, "Steady", "load 0 / targetLoad 10 = 0, limited to minReplicas 1"),
        (
            5,
            0,
            "FirstLook",
            f"load 0 / targetLoad 10 = 0, limited to minReplicas 1; {FIRST_LOOK}",
        ),
    ],
)
def test_the_reason_has_the_numbers(current: int, load: int, verdict: str, message: str) -> None:
    """What `status.scaling` and a person read."""
    pods = [steady("a", load, until=100)]
    recommended, _ = recommend(TARGET, current=current, pods=pods, state=ScalerState(), now=100)
    assert (recommended.verdict, recommended.message) == (verdict, message)


@pytest.mark.parametrize(
    ("load", "target_load", "shown"),
    [
        (1, 30_000, "0.000033"),
        (200_001, 100_000, "2.00001"),
        (299_999, 100_000, "2.99999"),
        (10, 3, "3.3333"),
    ],
)
def test_a_quotient_that_is_rounded_up_does_not_read_as_an_integer(
    load: int, target_load: int, shown: str
) -> None:
    target = replace(TARGET, target_load=target_load)
    pods = [steady("a", load, until=100)]
    recommended, _ = recommend(target, current=1, pods=pods, state=ScalerState(), now=100)
    wanted = -(-load // target_load)
    words = f"load {load} / targetLoad {target_load} = {shown}, rounded up to {wanted}"
    assert recommended.message.startswith(words)


@pytest.mark.parametrize(("current", "replicas"), [(0, 1), (1, 1), (10, 10), (12, 10), (500, 10)])
def test_the_limits_hold_at_once(current: int, replicas: int) -> None:
    """A lowered maxReplicas or a raised minReplicas waits for nothing, not even for reports."""
    recommended, _ = recommend(TARGET, current=current, pods=[], state=ScalerState(), now=0)
    assert (recommended.replicas, recommended.verdict, recommended.metrics_available) == (
        replicas,
        "NoReports",
        False,
    )


def test_the_average_is_over_time() -> None:
    """Half the window at 40 and half at 0 is a load of 20."""
    samples = [(at, 40 if at < 70 else 0) for at in range(40, 101)]
    recommended, _ = recommend(TARGET, current=1, pods=[pod("a", *samples)], state=ScalerState(), now=100)
    assert recommended.inputs.load == 20


def test_a_sample_counts_as_long_as_it_stood() -> None:
    """Reports do not come at an even pace; a load of 60 for 10 of 60 s is 10."""
    pods = [pod("a", (40, 60), (50, 0), (99, 0))]
    recommended, _ = recommend(TARGET, current=1, pods=pods, state=ScalerState(), now=100)
    assert recommended.inputs.load == 10


def test_a_pod_that_left_counts_up_to_its_end() -> None:
    """Its past load was real; it has none now."""
    pods = [steady("here", 0, until=100), replace(steady("gone", 30, until=70, seconds=30), left=True)]
    recommended, _ = recommend(TARGET, current=1, pods=pods, state=ScalerState(), now=100)
    assert recommended.inputs.load == 15
    assert recommended.inputs.silent_pods == 0


def test_pods_that_never_were_ready_are_coming_capacity() -> None:
    """They have no load, are not silent, and do not breed more."""
    pods = [steady("a", 25, until=100), *(pod(f"new{index}", ready=False, was=False) for index in range(9))]
    recommended, _ = recommend(TARGET, current=10, pods=pods, state=ScalerState(), now=100)
    assert (recommended.inputs.wanted, recommended.inputs.ready_pods, recommended.inputs.silent_pods) == (
        3,
        1,
        0,
    )


# --- silence --------------------------------------------------------------------------------------------


def test_a_silent_pod_counts_as_its_last_load() -> None:
    """Its queue did not go away with its voice."""
    pods = [
        steady("a", 5, until=100),
        steady("b", 5, until=100),
        steady("mute", 30, until=80, seconds=60),
    ]
    recommended, _ = recommend(TARGET, current=3, pods=pods, state=ScalerState(), now=100)
    assert (recommended.inputs.load, recommended.inputs.silent_pods, recommended.inputs.ready_pods) == (
        40,
        1,
        2,
    )


@pytest.mark.parametrize("samples", [((10.0, 300),), ()])
def test_long_silence_counts_as_a_usual_load(samples: tuple[tuple[float, int], ...]) -> None:
    """After a stable window, and for a ready pod that never spoke: targetLoad."""
    pods = [steady("a", 5, until=100), steady("b", 5, until=100), pod("mute", *samples)]
    recommended, _ = recommend(TARGET, current=3, pods=pods, state=ScalerState(), now=100)
    assert recommended.inputs.load == 20


@pytest.mark.parametrize(
    ("talking", "silent", "load", "held"),
    [
        (1, 0, 100, False),
        (1, 1, 100, False),
        (1, 2, 100, True),
        (2, 2, 100, False),
        (0, 1, 100, True),
        (2, 1, 0, False),
        (1, 1, 0, True),  # of half of them the number may rise, but does not fall
        (1, 1, 20, True),
        (2, 2, 0, True),
    ],
)
def test_held_while_half_or_more_are_unknown(talking: int, silent: int, load: int, held: bool) -> None:
    """The little that is known is no ground to go down, and less than half none to go up."""
    pods = [steady(f"t{index}", load, until=100) for index in range(talking)]
    pods += [pod(f"s{index}", (20.0, load)) for index in range(silent)]
    state = ScalerState(first_look=0, wanted=((99, 1),))
    recommended, _ = recommend(TARGET, current=4, pods=pods, state=state, now=100)
    assert (recommended.verdict == "TooManyUnknown") == held
    assert (recommended.replicas == 4) == held
    assert recommended.metrics_available != held
    if held:
        assert recommended.message == f"kept at 4: {silent} of {talking + silent} pods are silent"


# --- over time ------------------------------------------------------------------------------------------


def test_up_at_once_down_after_the_delay() -> None:
    """A burst is met within seconds; the replicas stay for `downscaleDelay` after it, then go at once."""
    target = replace(TARGET, stable_window=10, downscale_delay=30)
    backend = Backend(target, 1)
    backend.run(20, 5)
    assert backend.history == [1] * 20
    backend.run(3, 40)
    assert backend.replicas == 4
    backend.run(20, 40)
    assert backend.replicas == 4
    backend.history.clear()
    backend.run(60, 5)
    last_four = max(index for index, count in enumerate(backend.history) if count == 4)
    assert 29 <= last_four <= 40
    assert backend.history[-1] == 1


def test_down_only_to_the_most_that_was_wanted_within_the_delay() -> None:
    """A second, smaller peak keeps what it needs."""
    target = replace(TARGET, stable_window=5, downscale_delay=60)
    backend = Backend(target, 1)
    backend.run(20, 80)
    backend.run(40, 5)
    backend.run(10, 30)
    backend.run(35, 5)
    assert backend.replicas == 3
    assert backend.last is not None
    assert (backend.last.verdict, backend.last.message) == (
        "Delayed",
        "load 5 / targetLoad 10 = 0.5, rounded up to 1; 3 were wanted within the last 60s",
    )
    backend.run(40, 5)
    assert backend.replicas == 1


def test_a_short_peak_within_reach_is_averaged_away() -> None:
    """Less than twice what is ready, for a moment, changes nothing."""
    backend = Backend(replace(TARGET, stable_window=60), 2)
    backend.run(120, 18)
    backend.run(2, 28)
    backend.run(120, 18)
    assert set(backend.history) == {2}


def test_a_burst_of_twice_the_capacity_counts_at_once() -> None:
    """The short window decides (and holds): the stable one alone would take most of a minute."""
    backend = Backend(TARGET, 2)
    backend.run(120, 15)
    backend.run(7, 80)
    assert backend.replicas == 8
    backend.run(30, 5)
    assert backend.replicas == 8
    assert backend.last is not None
    assert (backend.last.verdict, backend.last.limit) == ("Panic", "not lowered within 60s of a burst")


def test_a_new_leader_never_lowers_on_its_first_look() -> None:
    """What it has not seen may have been busy; without any delay it still watches one stable window."""
    target = replace(TARGET, stable_window=20, downscale_delay=0)
    backend = Backend(target, 6)
    backend.run(19, 5)
    assert set(backend.history) == {6}
    backend.run(5, 5)
    assert backend.replicas == 1


def test_a_new_leader_takes_what_it_finds_for_wanted() -> None:
    """The replicas that are there count as wanted at the first look: for the whole `downscaleDelay`."""
    backend = Backend(replace(TARGET, stable_window=5, downscale_delay=50), 6)
    backend.run(50, 5)
    assert set(backend.history) == {6}
    backend.run(3, 5)
    assert backend.replicas == 1


def test_no_delay() -> None:
    """`downscaleDelay: 0s` follows the average down."""
    backend = Backend(replace(TARGET, stable_window=5, downscale_delay=0), 1)
    backend.run(10, 25)
    assert backend.replicas == 3
    backend.run(12, 5)
    assert backend.replicas == 1


loads = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 200)), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(
    loads=loads,
    begin=st.integers(0, 20),
    limits=st.tuples(st.integers(1, 6), st.integers(0, 10)),
    stable=st.integers(1, 20),
    delay=st.integers(0, 40),
)
def test_what_holds_for_every_load(
    loads: list[tuple[int, int]], begin: int, limits: tuple[int, int], stable: int, delay: int
) -> None:
    """Always within the limits, never below what the load asks for, never down in the first window."""
    target = Target(
        min_replicas=limits[0],
        max_replicas=limits[0] + limits[1],
        target_load=10,
        stable_window=stable,
        downscale_delay=delay,
    )
    backend = Backend(target, target.clamp(begin))
    for seconds, load in loads:
        for _ in range(seconds):
            before, began = backend.replicas, backend.state.first_look
            backend.run(1, load)
            last = backend.last
            assert last is not None
            assert target.min_replicas <= last.replicas <= target.max_replicas
            assert last.replicas >= target.clamp(last.inputs.wanted)
            if began is None or backend.now - began < stable:
                assert last.replicas >= before
            assert last.replicas <= max(before, target.clamp(last.inputs.wanted))
            assert len(backend.state.wanted) <= target.max_replicas
    backend.run(stable * 2 + delay + 3, 10 * target.min_replicas)
    assert backend.replicas == target.min_replicas


# --- the window -----------------------------------------------------------------------------------------


def test_a_pod_of_another_uid_starts_afresh() -> None:
    """A StatefulSet-like reuse of a name does not inherit a queue."""
    window = LoadWindow()
    window.record(report(uid="old", seq=9, load=50), 1)
    window.record(report(uid="new", seq=1, load=2), 2)
    (seen,) = window.view({"p": True}, 3)
    assert [sample.load for sample in seen.samples] == [2]


def test_a_report_that_comes_twice_counts_once() -> None:
    """The sender tries again when an answer is lost."""
    window = LoadWindow()
    window.record(report(seq=1, load=5), 1)
    window.record(report(seq=1, load=5), 2)
    (seen,) = window.view({"p": True}, 3)
    assert len(seen.samples) == 1


@pytest.mark.parametrize(
    ("last", "shown", "seconds"),
    [
        ({"load": 1}, {"queued": 1}, 0),
        ({"oldest_age_ms": 9}, {"oldestAgeMs": 9}, 0),
        ({"arrived": 6}, {"arrivalsPerMinute": 6}, 60),
        ({"batches": 1, "batch_items": 8}, {"batchFillPercent": 100}, 60),
    ],
)
def test_a_load_is_shown_as_long_as_it_counts(
    last: dict[str, int], shown: dict[str, int], seconds: int
) -> None:
    """And then for no longer: a backend that has slept for a minute shows 0 of everything."""
    window, nothing = LoadWindow(), LoadWindow().load(0, 8).document()
    for second in range(60):
        window.record(report(seq=second + 1), second)
    window.record(report(seq=100, **last), 60)
    assert window.load(60, 8).document() == nothing | shown
    now = last | dict.fromkeys({"load", "oldest_age_ms"} & last.keys(), 0)
    for second in range(61, 180):
        window.record(report(seq=second + 40, **now), second)
        assert (window.load(second, 8).document() != nothing) == (second <= 60 + seconds)


@pytest.mark.parametrize(
    ("first", "second", "arrived"),
    [
        ({"seq": 1, "arrived": 4}, {"seq": 2, "arrived": 10}, 10),
        ({"seq": 70, "arrived": 400}, {"seq": 71, "arrived": 410}, 10),
        ({"seq": 70, "arrived": 400}, {"seq": 73, "arrived": 430}, 30),
        ({"seq": 70, "arrived": 400}, {"seq": 1, "arrived": 3}, 3),
        ({"seq": 5, "arrived": 400}, {"seq": 9, "arrived": 3}, 3),  # its first reports were lost
        ({"seq": 5, "arrived": 4, "batches": 9}, {"seq": 9, "arrived": 7, "batches": 1}, 7),
    ],
)
def test_totals_become_rates(first: dict[str, int], second: dict[str, int], arrived: int) -> None:
    """Lost reports lose nothing; what came before we listened is not now; a restart counts from zero."""
    window = LoadWindow()
    window.record(report(**first), 0)
    window.record(report(**second), 60)
    assert window.load(60, 32).arrivals_per_minute == arrived


def test_load_status() -> None:
    """Sums over the pods that talk, the oldest of all, arrivals and fill over a minute."""
    window = LoadWindow()
    for second in range(61):
        for name, share in (("a", 1), ("b", 3)):
            window.record(
                report(
                    name,
                    second + 1,
                    load=share,
                    oldest_age_ms=share * 100,
                    arrived=share * second,
                    batches=second,
                    batch_items=second * 4 * share,
                ),
                second,
            )
    load = window.load(60, 16)
    assert load.document() == {
        "queued": 4,
        "ongoing": 0,
        "oldestAgeMs": 300,
        "arrivalsPerMinute": 240,
        "batchFillPercent": 50,
    }
    assert window.load(60, 4).batch_fill_percent == 100  # maxBatchSize was larger when they were made
    assert window.load(75, 16).queued == 0
    assert window.load(1000, 16).document() == LoadWindow().load(0, 16).document()


def test_memory_is_bounded() -> None:
    """Samples older than `keep` go, but for the one in force when the window began; so do pods that left."""
    window = LoadWindow(60)
    for second in range(500):
        window.record(report("a", second + 1), second)
        window.record(report("b", second + 1), second)
        window.view({"a": True}, second)
    (a, b) = window.view({"a": True}, 499)
    assert 60 <= len(a.samples) <= 63
    assert b.left
    assert [each.name for each in window.view({"a": True}, 600)] == ["a"]
    assert len(window.view({"a": True}, 9999)[0].samples) == 1
    assert list(window.latest()) == ["a"]


@pytest.mark.parametrize("target_load", [None, 1])
@pytest.mark.parametrize("seconds", [2, 70])
def test_the_largest_numbers_of_a_report_stay_within_those_of_a_status(
    target_load: int | None, seconds: int
) -> None:
    """Of many pods that seem to start anew all the time: the apiserver takes no larger integer."""
    most, window = 2**53 - 1, LoadWindow()
    slow = Fit(a_ms=1e12, b_ms=1e12, n=most)
    names = [f"p{index}" for index in range(20)]
    for second in range(2 * seconds):
        for name in names:
            window.record(
                SidecarReport(
                    pod=name,
                    uid="u",
                    seq=1 + second % 2,
                    state="ready",
                    items=Items(queued=most, ongoing=most),
                    totals=Totals(
                        arrived=most, batches=most, batch_items=most, refused={Reason.QUEUE_FULL: most}
                    ),
                    fit={"/": slow},
                    slots=most,
                    oldest_age_ms=most,
                ),
                second / 2,
            )
    target, state = replace(TARGET, target_load=target_load), ScalerState()
    pods = window.view(dict.fromkeys(names, True), seconds)
    for _ in range(3):
        recommended, state = recommend(target, current=1, pods=pods, state=state, now=seconds)
    assert recommended.replicas == 10
    shown = recommended.inputs.document() | window.load(seconds, 1).document()
    assert {name: number for name, number in shown.items() if not 0 <= number < 2**63} == {}


def test_a_long_window_keeps_no_more_than_its_averages_need() -> None:
    """An hour of reports has the same average, the same arrivals and newest samples."""
    window = LoadWindow(3600)
    for second in range(4000):
        window.record(report("a", second + 1, load=second % 20, arrived=3 * second, batches=second), second)
    (pod,) = window.view({"a": True}, 3999)
    assert len(pod.samples) <= 320
    assert [sample.at for sample in pod.samples[-60:]] == list(range(3940, 4000))
    assert {sample.arrived for sample in pod.samples[-60:]} == {3}
    within = [sample for sample in pod.samples if sample.at > 1000]
    assert sum(sample.arrived for sample in within) == pytest.approx(3 * 3000, rel=0.02)
    assert max(after.at - before.at for before, after in pairwise(pod.samples)) <= 3600 / 64
    target = replace(TARGET, target_load=1, max_replicas=100, stable_window=3600)
    recommended, _ = recommend(target, current=1, pods=[pod], state=ScalerState(), now=3999)
    assert recommended.inputs.load == pytest.approx(9.5, abs=1)


def test_the_lines_of_the_latest_report_alone_are_kept() -> None:
    """Each of 64 classes has one, so that a minute of reports would have thousands."""
    window = LoadWindow()
    line = Fit(a_ms=100, b_ms=10, n=50)
    for second in range(10):
        known = msgspec.structs.replace(report("a", second + 1), fit={f"/{n}": line for n in range(64)})
        window.record(known, second)
    (pod,) = window.view({"a": True}, 9)
    assert [len(sample.lines) for sample in pod.samples] == [0] * 9 + [64]


def test_readiness_is_remembered() -> None:
    """A pod that was ready once is unknown when it falls silent, not coming capacity."""
    window = LoadWindow()
    window.record(report("a", state="loading"), 0)
    assert [each.was_ready for each in window.view({"a": False, "b": False}, 1)] == [False, False]
    window.view({"a": True, "b": False}, 2)
    assert [each.was_ready for each in window.view({"a": False, "b": False}, 3)] == [True, False]


def test_how_long_pods_take_to_start() -> None:
    """The middle of the latest: from first sight to ready; one that was ready before does not start."""
    window = LoadWindow()
    window.view({"old": True}, 0)
    assert window.startup == 0.0
    for begin, seconds in ((10, 14), (100, 15), (200, 90)):
        name = f"p{begin}"
        window.view({"old": True, name: False}, begin)
        window.view({"old": True, name: False}, begin + seconds / 2)
        window.record(report(name), begin + seconds)
        window.view({"old": True, name: True}, begin + seconds)
    assert window.startup == 15.0
    window.view({"old": True, "p200": False}, 400)
    window.view({"old": True, "p200": True}, 900)
    window.view({"old": True, "gone": False}, 1000)
    window.view({"old": True}, 1001)
    window.view({"old": True, "gone": True}, 2000)
    assert window.startup == 15.0
    state = ArtifactState(source="s", here=100, total=700, rate=10)
    window.record(report("coming", artifact=state, state="loading"), 3000)
    window.view({"old": True, "coming": False}, 3000)
    window.view({"old": True, "coming": False}, 3020)
    assert window.startup == 20 + 60
    window.record(
        report("coming", 2, artifact=msgspec.structs.replace(state, rate=0, digest="sha256:a")), 3080
    )
    window.view({"old": True, "coming": False}, 3080)
    assert window.startup == 15.0


@pytest.mark.parametrize(("keep", "kept"), [(5, 61), (600, 201)])
def test_keep_is_never_less_than_a_minute(keep: float, kept: int) -> None:
    """The rates need that much."""
    window = LoadWindow(5)
    window.view({"p": True}, 0, keep=keep)
    for second in range(201):
        window.record(report(seq=second + 1), second)
    assert len(window.view({"p": True}, 200)[0].samples) == kept


# --- the target -----------------------------------------------------------------------------------------


def backend(**spec: Any) -> ModelBackend:
    model = {"container": {"image": "i"}}
    return ModelBackend.parse({"metadata": {"name": "b"}, "spec": {"model": model} | spec})


def test_target_of() -> None:
    """Seconds and numbers out of the spec; none without autoscaling, none while suspended."""
    scaling = {"targetLoad": 7, "stableWindow": "1m30s", "downscaleDelay": "500ms"}
    policy = BatchPolicySpec(max_batch_size=8, max_concurrent_batches=2, latency_objective="250ms")
    assert target_of(backend(autoscaling=scaling), policy, NOW) == Target(
        min_replicas=1, max_replicas=10, target_load=7, stable_window=90, downscale_delay=0.5,
        objective=Objective(max_batch_size=8, slots=2, latency=0.25),
    )  # fmt: skip
    assert target_of(backend(), policy, NOW) is None
    assert target_of(backend(autoscaling=scaling, suspend=True), policy, NOW) is None


def test_a_fresh_state_says_nothing() -> None:
    """No memory is no reason to hold."""
    assert ScalerState() == ScalerState(first_look=None, wanted=(), panic_until=-math.inf)


def test_a_window_that_nobody_scales_by_keeps_no_more_than_it_shows() -> None:
    """A backend without autoscaling reports for weeks: old samples go, and so do pods that are gone."""
    window = LoadWindow()
    for second in range(300):
        window.record(report("p", seq=second + 1, load=1), at=float(second))
    assert len(window.view({"p": True}, 0.0)[0].samples) <= 62
    for number in range(20):
        window.record(report(f"gone-{number}", uid=f"u-{number}"), at=300.0)
        window.leave(f"gone-{number}", f"u-{number}", 300.0)
    assert len(window.latest()) == 21
    window.load(361.0, 32)
    assert list(window.latest()) == ["p"]


def test_a_pod_that_comes_back_under_its_name_is_not_forgotten_with_the_old_one() -> None:
    """The deletion of the old one may be told late."""
    window = LoadWindow()
    window.record(report(uid="old"), at=0.0)
    window.record(report(uid="new"), at=1.0)
    window.leave("p", "old", 2.0)
    window.load(100.0, 32)
    assert list(window.latest()) == ["p"]


def cost_report(
    seq: int, *, items: int, work: float | UnsetType, arrived: int, came: float | UnsetType
) -> SidecarReport:
    totals = Totals(arrived=arrived, arrived_work=came)
    load = Items(queued=items, work=work)
    return SidecarReport(pod="a", uid="a", seq=seq, state="ready", items=load, totals=totals)


def test_loads_and_arrivals_go_by_what_items_cost_where_reports_say_it() -> None:
    """The status counts items all the same; an item that came alone counts by what items cost lately."""
    window = LoadWindow()
    for second in range(1, 41):
        window.record(
            cost_report(second, items=1, work=50.0, arrived=10 * second, came=30.0 * second), float(second)
        )
    (pod,) = window.view({"a": True}, 40.0)
    assert [sample.load for sample in pod.samples] == [50.0] * 40
    assert pod.samples[-1].arrived == pytest.approx(30.0)
    assert window.load(40.0, 32).queued == 1
    assert window.load(40.0, 32).arrivals_per_minute == pytest.approx(600, rel=0.05)
    window.record(cost_report(41, items=1, work=1.0, arrived=410, came=1200.0 + 300.0), 41.0)
    sudden = window.view({"a": True}, 41.0)[0].samples[-1].arrived
    assert 30.0 < sudden < 60.0  # not 300
    window.record(cost_report(42, items=3, work=UNSET, arrived=420, came=UNSET), 42.0)
    plain = window.view({"a": True}, 42.0)[0].samples[-1]
    assert (plain.load, plain.arrived) == (3, 10)


def test_a_pod_with_one_long_item_is_not_idle_by_target_load() -> None:
    """`targetLoad` counts items of the usual cost."""
    asked = []
    for work in (UNSET, 50.0):
        window = LoadWindow()
        for second in range(1, 91):
            window.record(cost_report(second, items=1, work=work, arrived=0, came=UNSET), float(second))
        target = Target(min_replicas=1, max_replicas=9, target_load=16, stable_window=60, downscale_delay=300)
        pods = window.view({"a": True}, 90.0)
        state = ScalerState(first_look=0)
        asked.append(recommend(target, current=1, pods=pods, state=state, now=90.0)[0].replicas)
    assert asked == [1, 4]
