"""From one pod to none and back: when nothing can be lost by it, and at once when a request is held."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock_operator.autoscaling import (
    NO_HOLDER,
    Holders,
    LoadWindow,
    PodLoad,
    Recommendation,
    RouterHolds,
    Sample,
    ScalerState,
    Target,
    recommend,
)
from penstock_wire.control.report import RouterReport, SidecarReport

TARGET = Target(
    min_replicas=0, max_replicas=10, target_load=10, stable_window=60, downscale_delay=300, zero_after=30
)
ROUTED = Holders(named=True)
NOW = 1000.0
THOUSAND = "load 1000 / targetLoad 10 = 100, 1000 of it"
IDLE = ScalerState(first_look=NOW - 500, active_at=NOW - 30)
STARTING = PodLoad(name="p", ready=False, was_ready=False)


def idle_pod(*, load: int = 0, arrived: int = 0, until: float = NOW, **more: Any) -> PodLoad:
    """A pod with a report a second for a minute, of which the last one may differ."""
    samples = [Sample(at=until - 60 + n, load=0) for n in range(61)]
    samples[-1] = replace(samples[-1], load=load, arrived=arrived)
    return PodLoad(name="p", ready=True, was_ready=True, samples=tuple(samples), **{"ready_for": 60} | more)


def holding(count: int, *, at: float = NOW, **more: Any) -> RouterHolds:
    return RouterHolds(name="r", samples=(Sample(at=at, load=count),), **more)


def look(current: int = 1, state: ScalerState = IDLE, **more: Any) -> Recommendation:
    given = {"pods": [idle_pod()] if current else [], "holders": ROUTED} | more
    return recommend(given.pop("target", TARGET), current=current, state=state, now=NOW, **given)[0]


# --- to none ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "replicas", "verdict"),
    [
        ({}, 0, "Scale"),
        # a request lately: it arrived, waited, was with the model or was held
        ({"state": replace(IDLE, active_at=NOW - 29)}, 1, "Steady"),
        ({"pods": [idle_pod(load=1)]}, 1, "Steady"),
        ({"pods": [idle_pod(arrived=1)]}, 1, "Steady"),
        ({"pods": [idle_pod(), idle_pod(load=1, until=NOW - 20, left=True)]}, 1, "Steady"),
        ({"holds": [holding(1)]}, 1, "Steady"),
        ({"holds": [holding(1, at=NOW - 20)]}, 1, "Steady"),
        # it has not watched for long enough
        ({"state": ScalerState()}, 1, "Steady"),
        ({"state": ScalerState(first_look=NOW - 500)}, 1, "Steady"),
        # no router would hold the next request
        ({"holders": Holders()}, 1, "NoHolder"),
        ({"holders": Holders(named=True, missing="1 of 2 ready routers")}, 1, "Delayed"),
        ({"holders": Holders(named=True, awaited=True)}, 1, "Steady"),
        # a pod whose word is not known
        ({"pods": [idle_pod(until=NOW - 20)]}, 1, "TooManyUnknown"),
        ({"pods": [idle_pod(), idle_pod(), idle_pod(until=NOW - 20)]}, 1, "Steady"),
        # its pod has just come to be ready, or starts still
        ({"pods": [idle_pod(ready_for=29)]}, 1, "Steady"),
        ({"pods": [STARTING]}, 1, "NoReports"),
        ({"pods": [STARTING], "state": replace(IDLE, active_at=NOW - 599)}, 1, "NoReports"),
        # it does not come to be ready, and no request waits any more
        ({"pods": [STARTING], "state": replace(IDLE, active_at=NOW - 600)}, 0, "Scale"),
        # it was ready, and is not
        ({"pods": [replace(STARTING, was_ready=True, samples=(Sample(at=NOW, load=0),))]}, 0, "Scale"),
        # from more than one, `downscaleDelay` decides
        ({"current": 2}, 1, "Scale"),
        # a pod at least, at all times
        ({"target": replace(TARGET, min_replicas=1, zero_after=None)}, 1, "Steady"),
    ],
)
def test_the_last_pod_goes_where_nothing_can_be_lost_by_it(
    given: dict[str, Any], replicas: int, verdict: str
) -> None:
    """Without a request for as long as `after` says, and with every ready router there to hold the next."""
    recommended = look(**given)
    assert (recommended.replicas, recommended.verdict) == (replicas, verdict)
    assert recommended.current == given.get("current", 1)


def test_what_is_said() -> None:
    """For `status.scaling` and the conditions."""
    assert look().message == "no request for 30s"
    lately = look(state=replace(IDLE, active_at=NOW - 29)).message
    assert lately == "load 0 / targetLoad 10 = 0; the last pod goes after 30s without a request"
    works = replace(idle_pod(), samples=tuple(Sample(at=NOW - 60 + n, load=1) for n in range(61)))
    assert look(pods=[works]).message == "load 1 / targetLoad 10 = 0.1, rounded up to 1"
    assert NO_HOLDER in look(holders=Holders()).message
    missing = look(holders=Holders(named=True, missing="1 of 2 ready routers")).message
    assert missing.endswith("not lowered to 0, where routers hold what comes: 1 of 2 ready routers")
    assert "minReplicas" not in look(state=ScalerState()).message


def test_a_busy_backend_is_watched_for_the_whole_time_after_its_last_request() -> None:
    """What is remembered outlives the window of samples."""
    state, target = ScalerState(), replace(TARGET, zero_after=100, stable_window=10)
    seen = []
    for second in range(200):
        now = NOW + second
        samples = (Sample(at=now, load=0, arrived=second == 20),)
        pod = PodLoad(name="p", ready=True, was_ready=True, ready_for=second, samples=samples)
        recommended, state = recommend(target, current=1, pods=[pod], state=state, now=now, holders=ROUTED)
        seen.append(recommended.replicas)
    assert seen == [1] * 120 + [0] * 80


def test_a_model_that_loads_for_longer_than_its_clients_wait_is_loaded_in_the_end() -> None:
    """Each asks once, waits for a minute and leaves; the next one comes when the model is there."""
    window, state, current, replicas = LoadWindow(60), ScalerState(first_look=0, active_at=0), 0, []
    woken = None
    for second in range(400):
        held = second < 60 or 200 <= second < 201
        window.record_held(router_report(), int(held), second)
        woken = None if not current else woken if woken is not None else second
        ready = woken is not None and second - woken >= 180
        if ready:
            report = SidecarReport(pod="p", uid="p", seq=second, state="ready")
            window.record(report, second)
        pods = window.view({"p": ready} if current else {}, second)
        recommended, state = recommend(
            TARGET, current=current, pods=pods, state=state, now=second, holds=window.holds(second),
            holders=ROUTED,
        )  # fmt: skip
        current = recommended.replicas
        replicas.append(current)
    assert replicas == [1] * 230 + [0] * 170


# --- and back ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "replicas", "message"),
    [
        ({}, 0, "0 until a request is held for it"),
        (
            {"holds": [holding(1)]},
            1,
            "load 1 / targetLoad 10 = 0.1, rounded up to 1, 1 of it held by routers",
        ),
        (
            {"holds": [holding(45), replace(holding(6), name="s")]},
            6,
            "load 51 / targetLoad 10 = 5.1, rounded up to 6, 51 of it held by routers",
        ),
        # who left or fell silent holds nothing any more
        ({"holds": [holding(9, left=True), holding(9, at=NOW - 11)]}, 0, "0 until a request is held for it"),
        # it need not be known who is there
        ({"holds": [holding(1)], "holders": Holders(named=True, missing="starting")}, 1, None),
        ({"holds": [holding(1)], "state": ScalerState()}, 1, None),
        ({"holders": Holders()}, 0, NO_HOLDER),
        # a request cannot come before there is a pod
        ({"holders": Holders(awaited=True)}, 1, "an endpoint sends it no request before it has a ready pod"),
        # as many as the user allows
        ({"holds": [holding(1000)]}, 10, f"{THOUSAND} held by routers, limited to maxReplicas 10"),
        # a user who has raised the minimum since
        ({"target": replace(TARGET, min_replicas=2, zero_after=None)}, 2, None),
    ],
)  # fmt: skip
def test_a_held_request_wakes(given: dict[str, Any], replicas: int, message: str | None) -> None:
    """The first one; what is held decides how many there are to be."""
    recommended = look(current=0, **given)
    assert recommended.replicas == replicas
    assert message is None or recommended.message == message


@pytest.mark.parametrize(("current", "held", "replicas"), [(1, 0, 1), (1, 35, 4), (4, 5, 4), (4, 0, 4)])
def test_nothing_is_lowered_before_the_first_pod_is_ready(current: int, held: int, replicas: int) -> None:
    """Pods that start are not taken away when clients give up; more are asked for while more wait."""
    starting = [PodLoad(name=f"p{n}", ready=False, was_ready=False) for n in range(current)]
    state = replace(IDLE, active_at=NOW)
    assert look(current, state, pods=starting, holds=[holding(held)] if held else []).replicas == replicas


def test_held_requests_are_load_beside_that_of_the_pods() -> None:
    """Averaged as that is, as long as they were held; a router that is gone counts up to its end."""
    busy = replace(idle_pod(), samples=tuple(Sample(at=NOW - 60 + n, load=5) for n in range(61)))
    gone = (Sample(at=NOW - 60, load=12), Sample(at=NOW - 30, load=12))
    holds = [
        RouterHolds(name="r", samples=tuple(Sample(at=NOW - 30 + n, load=20) for n in range(31))),
        RouterHolds(name="s", left=True, samples=gone),
    ]
    recommended = look(2, pods=[busy, busy], holds=holds)
    assert recommended.inputs.load == 10 + 20 // 2 + 12 // 2
    assert (recommended.inputs.held, recommended.inputs.wanted) == (20, 3)


# --- the window -------------------------------------------------------------------------------------------


def router_report(uid: str = "u") -> RouterReport:
    return RouterReport(pod="r", uid=uid, seq=1, state="ready", processor_wait=0.25)


def test_what_routers_hold_is_kept_as_long_as_it_counts() -> None:
    """One that holds nothing costs nothing; nor does one whose last word is older than the window."""
    window = LoadWindow(60)
    window.record_held(router_report(), 0, 0)
    assert window.holds(0) == ()
    for second in range(100):
        window.record_held(router_report(), 3, second)
    (hold,) = window.holds(99)
    assert len(hold.samples) <= 63
    assert (hold.held(99), hold.samples[-1].processor_wait) == (3, 0.25)
    window.record_held(router_report(), 0, 100)
    (hold,) = window.holds(100)
    assert hold.held(100) == 0
    assert window.holds(200) == ()


def test_a_router_that_is_gone_holds_nothing() -> None:
    """Nor does its namesake inherit it."""
    window = LoadWindow(60)
    window.record_held(router_report(), 3, 0)
    window.leave("r", "another", 1)
    assert window.holds(1)[0].held(1) == 3
    window.leave("r", "u", 1)
    assert window.holds(1)[0].held(1) == 0
    window.record_held(router_report("new"), 0, 2)
    assert window.holds(2) == ()
