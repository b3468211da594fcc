"""A backend that goes to 0 and comes back: what the operator writes, when, and what it says meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_operator.errors import Unavailable
from penstock_operator.kinds import BACKEND, DEPLOYMENT, ENDPOINT, POD
from penstock_operator.reports import Reports
from penstock_wire.control.report import BackendTotals, EndpointReport, RouterReport
from tests.support.clocks.hand_clock import HandClock
from tests.support.worlds.observed import CRASH
from tests.support.worlds.operator_harness import Harness, backend, endpoint, settings, split

SCALING = {"minReplicas": 0, "maxReplicas": 5, "targetLoad": 10, "scaleToZero": {"after": "30s"}}


class World:
    """One backend `m` behind an endpoint `e`, with routers and pods that report each second."""

    def __init__(self, operator: Harness, *, routers: int = 2, dedicated: str = "") -> None:
        self.operator = operator
        self.dedicated = dedicated
        name = f"{dedicated}-dedicated-router" if dedicated else "penstock-router"
        self.settings = f"{name}-settings"
        self.routers = operator.pods_ready(name, routers) if routers else []
        self.held = 0
        self.load = 0
        self.rate = self.arrived = 0
        self.version: int | None = None
        self.silent: set[str] = set()
        self.endpoints = ["e"]

    @property
    def replicas(self) -> int:
        return int(self.operator.cluster.find(BACKEND, "n", "m")["spec"].get("replicas", 1))

    def routers_report(self) -> None:
        version = settings(self.operator, self.settings)["version"]
        for name in self.routers:
            if name not in self.silent:
                self.operator.router_report(
                    name,
                    self.endpoints,
                    version=version if self.version is None else self.version,
                    held={"m": self.held} if self.held and name == self.routers[0] else {},
                    dedicated=self.dedicated,
                )

    async def second(self, times: int = 1) -> None:
        """Pods come and go as asked; all of them report."""
        for _ in range(times):
            live = self.operator.cluster.find(DEPLOYMENT, "n", "m-backend")
            self.arrived += self.rate
            for name in self.operator.pods_ready("m-backend", live["spec"]["replicas"]):
                self.operator.report("m", name, version=1, load=self.load, arrived=self.arrived)
            if self.routers:
                self.routers_report()
            await self.operator.turn(1)

    def condition(self, name: str = "ScalingActive") -> tuple[str, str] | None:
        return self.operator.condition(BACKEND, "m", name)


async def world(*objects: dict[str, Any], routers: int = 2, **scaling: Any) -> World:
    harness = Harness()
    harness.apply(backend(autoscaling=SCALING | scaling))
    for obj in objects or (endpoint(),):
        harness.apply(obj)
    await harness.run()
    return World(harness, routers=routers)


async def asleep() -> World:
    made = await world()
    await made.second(40)
    assert made.replicas == 0
    return made


def writes(operator: Harness) -> list[str]:
    return [verb for verb, *_ in operator.cluster.writes if verb == "scale"]


async def test_to_zero_and_awake_with_the_first_held_request() -> None:
    """No time passes between the router's report and the write; the endpoint is Ready all the while."""
    world_ = await world()
    await world_.second(29)
    assert world_.replicas == 1
    await world_.second(10)
    assert world_.replicas == 0
    await world_.second(60)
    operator = world_.operator
    assert operator.condition(BACKEND, "m", "Ready") == ("True", "ScaledToZero")
    assert operator.condition(ENDPOINT, "e", "BackendsReady") == ("True", "ScaledToZero")
    assert operator.condition(ENDPOINT, "e", "Ready") == ("True", "Serving")
    assert world_.condition() == ("True", "FollowingLoad")
    assert world_.condition("MetricsAvailable") == ("True", "ReportsReceived")

    operator.cluster.writes.clear()
    world_.held = 1
    world_.routers_report()
    await operator.run()  # the clock stands still
    assert world_.replicas == 1
    assert operator.cluster.find(DEPLOYMENT, "n", "m-backend")["spec"]["replicas"] == 1
    assert writes(operator) == ["scale"]  # what has been 0 nobody owns, and an apply would be answered 500
    operator.pods_ready("m-backend", 0)
    await operator.run()
    assert operator.condition(BACKEND, "m", "Ready") == ("False", "RollingOut")  # it has none yet
    history = operator.cluster.find(BACKEND, "n", "m")["status"]["scaling"]
    assert [(entry["from"], entry["to"]) for entry in history[:2]] == [(0, 1), (1, 0)]
    assert history[0]["inputs"]["held"] == 1
    assert history[1]["reason"] == "no request for 30s"
    assert operator.errors == []


async def test_an_endpoint_stays_ready_while_its_backend_wakes_and_not_when_that_fails() -> None:
    """Also where the endpoint is looked at meanwhile, or the operator restarts."""
    world_ = await asleep()
    world_.held = 1
    world_.routers_report()
    await world_.operator.run()

    def said(operator: Harness) -> tuple[object, ...]:
        return (
            operator.condition(BACKEND, "m", "Available"),
            operator.condition(ENDPOINT, "e", "BackendsReady"),
            operator.condition(ENDPOINT, "e", "Ready"),
        )

    waking = (("False", "Waking"), ("True", "ScaledToZero"), ("True", "Serving"))
    assert world_.replicas == 1
    assert said(world_.operator) == waking
    operator = world_.operator = await world_.operator.restart()
    operator.apply(endpoint(coldStart={"maxPending": 7}))
    await operator.turn(1)
    world_.routers_report()
    await operator.turn(1)
    assert said(operator) == waking

    [name] = operator.pods_ready("m-backend", 1)
    unready = {"conditions": [{"type": "Ready", "status": "False"}], "containerStatuses": [CRASH]}
    operator.cluster.edit(POD, "n", name, lambda pod: pod.update(status={"phase": "Running"} | unready))
    operator.cluster.edit(DEPLOYMENT, "n", "m-backend", lambda obj: obj["status"].update(readyReplicas=0))
    await operator.turn(1)
    assert said(operator) == (
        ("False", "NoReadyPod"),
        ("False", "BackendNotReady"),
        ("False", "BackendNotReady"),
    )
    world_.held = 0
    await world_.second()
    assert said(operator) == (("True", "PodsReady"), ("True", "PodsReady"), ("True", "Serving"))
    # Without a pod it is no waking backend now: it was not at 0.
    operator.pods_ready("m-backend", 0)
    await operator.turn(1)
    assert said(operator)[:2] == (("False", "NoReadyPod"), ("False", "BackendNotReady"))
    assert operator.errors == []


async def test_a_backend_without_pods_shows_no_load() -> None:
    """What arrived before it fell to 0 does not stand there for as long as it sleeps."""
    world_ = await world(scaleToZero={"after": "10s"})

    def shown() -> dict[str, Any]:
        return dict(world_.operator.cluster.find(BACKEND, "n", "m")["status"]["load"])

    world_.rate = 7
    await world_.second(30)
    world_.rate = 0
    while world_.replicas:
        assert shown()["arrivalsPerMinute"] > 60
        await world_.second()
    await world_.second(5)
    assert not any(shown().values())
    stale = {"arrivalsPerMinute": 59, "batchFillPercent": 21}  # of an operator that ended just then
    world_.operator.cluster.edit(BACKEND, "n", "m", lambda obj: obj["status"]["load"].update(stale))
    await (await world_.operator.restart()).turn(5)
    assert not any(shown().values())


async def test_a_burst_asks_for_as_many_as_it_needs_before_a_pod_is_ready() -> None:
    """What is held is load at zero and above."""
    world_ = await asleep()
    world_.held = 45
    world_.routers_report()
    await world_.operator.run()
    assert world_.replicas == 5
    world_.held = 0
    await world_.second(40)
    assert world_.replicas == 5  # downscaleDelay


@pytest.mark.parametrize("lost", ["before the write", "with the write", "after the write"])
async def test_an_operator_that_dies_in_the_middle_costs_the_time_of_its_restart(
    lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor learns from the routers' next report, and writes what is not written yet."""
    world_ = await asleep()
    world_.held = 3
    scale = world_.operator.cluster.apply_scale

    async def dies(*args: Any, **more: Any) -> Any:
        if lost == "with the write":
            await scale(*args, **more)
        raise Unavailable(0, "the operator is gone")

    if lost != "before the write":
        with monkeypatch.context() as death:
            if lost == "with the write":
                death.setattr(world_.operator.cluster, "apply_scale", dies)
            world_.routers_report()
            await world_.operator.run()
    world_.operator = await world_.operator.restart()
    assert world_.replicas == (0 if lost == "before the write" else 1)
    world_.routers_report()
    await world_.operator.run()
    assert world_.replicas == 1
    assert world_.operator.cluster.find(DEPLOYMENT, "n", "m-backend")["spec"]["replicas"] == 1


async def test_after_an_outage_of_the_apiserver_held_requests_wake_within_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long it was: who is held has no time for a long backoff."""
    world_ = await asleep()
    world_.held = 1

    async def fails(*_: Any, **__: Any) -> None:
        raise Unavailable(0, "no answer")

    with monkeypatch.context() as outage:
        outage.setattr(world_.operator.cluster, "apply_scale", fails)
        await world_.second(40)
    assert world_.replicas == 0
    await world_.second(6)
    assert world_.replicas == 1


async def test_a_new_operator_watches_for_the_whole_time_and_wakes_nothing() -> None:
    """What was before it is unknown; who sleeps sleeps on."""
    world_ = await world()
    await world_.second(20)
    world_.operator = await world_.operator.restart()
    await world_.second(29)
    assert world_.replicas == 1
    await world_.second(10)
    assert world_.replicas == 0
    world_.operator.cluster.writes.clear()
    world_.operator = await world_.operator.restart()
    await world_.second(20)
    assert world_.replicas == 0
    assert writes(world_.operator) == []


@pytest.mark.parametrize("cause", ["behind", "silent", "deaf", "none"])
async def test_the_last_pod_stays_while_a_router_would_not_hold(cause: str) -> None:
    """Every ready router must listen for the endpoint and have the current settings."""
    world_ = await world(routers=0 if cause == "none" else 2)
    if cause == "behind":
        world_.version = 0
    elif cause == "deaf":
        world_.endpoints = ["another"]
    elif cause == "silent":
        world_.silent = {world_.routers[1]}
    await world_.second(60)
    assert world_.replicas == 1
    world_.version, world_.silent, world_.endpoints = None, set(), ["e"]
    if not world_.routers:
        world_.routers = world_.operator.pods_ready("penstock-router", 2)
    await world_.second(5)
    assert world_.replicas == 0


async def test_an_endpoints_own_routers_hold_its_requests() -> None:
    """They are those that must be there, not the namespace's; and what they hold wakes the backend."""
    harness = await Harness().applied(backend(autoscaling=SCALING), endpoint(router={"dedicated": True}))
    world_ = World(harness, dedicated="e")
    await world_.second(40)
    assert world_.replicas == 0
    world_.held = 1
    world_.routers_report()
    await harness.run()
    assert world_.replicas == 1


async def test_it_stays_while_no_endpoint_names_it_and_says_so() -> None:
    """NoHolder; at 0, too, where the last endpoint has gone: nothing can wake it."""
    world_ = await world(endpoint(backend="another"))
    await world_.second(40)
    assert world_.replicas == 1
    assert world_.condition() == ("True", "NoHolder")
    world_.operator.apply(endpoint())
    await world_.second(5)
    assert world_.replicas == 0
    assert world_.condition() == ("True", "FollowingLoad")
    world_.operator.cluster.remove(ENDPOINT, "n", "e")
    world_.routers = []
    await world_.second(5)
    assert world_.replicas == 0
    assert world_.condition() == ("True", "NoHolder")


async def test_an_endpoint_that_waits_for_its_first_pod_wakes_it() -> None:
    """An endpoint that moves to a backend without a ready pod keeps the last one until then: none is held."""
    world_ = await asleep()
    world_.operator.apply({**backend(), "metadata": {"namespace": "n", "name": "other"}})
    await world_.operator.run()
    world_.operator.pods_ready("other-backend", 1)
    world_.operator.apply(endpoint(backend="other"))
    await world_.second(5)
    world_.operator.apply(endpoint(backend="m"))
    await world_.second(5)
    assert world_.replicas == 1


@pytest.mark.long
@pytest.mark.parametrize("least", [0, 1])
async def test_a_zero_that_somebody_else_has_set_stays(least: int) -> None:
    """Whatever is held: until he sets another number."""
    scaling = {} if least == 0 else {"minReplicas": 1}
    world_ = await world(**scaling)
    if least:
        scaling_ = {name: value for name, value in SCALING.items() if name != "scaleToZero"} | scaling
        world_.operator.apply(backend(autoscaling=scaling_))
    await world_.second(2)
    world_.operator.cluster.scale(BACKEND, "n", "m", 0)
    world_.held = 7
    await world_.second(400)
    assert world_.replicas == 0
    world_.operator = await world_.operator.restart()  # whose zero it is stands in the status
    await world_.second(5)
    assert world_.replicas == 0
    assert world_.condition() == ("False", "ScalingDisabled")
    assert world_.operator.condition(ENDPOINT, "e", "BackendsReady") == ("False", "BackendNotReady")
    world_.operator.cluster.scale(BACKEND, "n", "m", 1)
    await world_.second(2)
    assert world_.condition() == ("False", "ForeignScaler")
    world_.held = 0
    await world_.second(400)
    assert world_.replicas == least


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_zero_of_another_scaler_is_not_kept_when_that_is_asked_no_more(restarted: bool) -> None:
    """KEDA had it at 0 when its user went back to Builtin: the next request wakes it, as it did before."""
    moved = await world()
    await moved.second(3)
    moved.operator.apply(backend(autoscaling=SCALING | {"mode": "External"}))
    await moved.second(3)
    moved.operator.cluster.scale(BACKEND, "n", "m", 2, manager="keda")
    await moved.second(3)
    moved.operator.cluster.scale(BACKEND, "n", "m", 0, manager="keda")
    await moved.second(3)
    if restarted:
        moved.operator = await moved.operator.restart()
    moved.operator.apply(backend(autoscaling=SCALING))
    await moved.second(3)
    assert (moved.replicas, moved.condition()) == (0, ("True", "FollowingLoad"))
    moved.held = 1
    await moved.second(3)
    assert moved.replicas == 1


async def test_an_endpoint_says_at_once_that_somebody_keeps_its_backend_at_zero() -> None:
    """Though no pod was ready in between, whose readiness would have it looked at."""
    world_ = await asleep()
    for replicas in (1, 0):
        world_.operator.cluster.scale(BACKEND, "n", "m", replicas)
        await world_.operator.run()
        await world_.operator.turn(2)
    assert world_.condition() == ("False", "ScalingDisabled")
    assert world_.operator.condition(ENDPOINT, "e", "BackendsReady") == ("False", "BackendNotReady")


def test_only_what_is_held_for_a_backend_that_exists_is_kept() -> None:
    """A router may name any; each backend is news once, until nothing is held for it."""
    reports = Reports(HandClock(), lambda _namespace, name: name == "m")

    def report(seq: int, held: int) -> frozenset[str]:
        backends = {name: BackendTotals(held=held) for name in ("m", "ghost")}
        endpoints = {"e": EndpointReport(held=held, backends=backends)}
        reports.router("n", RouterReport(pod="r", uid="u", seq=seq, state="ready", endpoints=endpoints))
        return reports.take_newly_held("n")

    news = [set(report(seq, held)) for seq, held in enumerate((0, 3, 4, 0, 1), start=1)]
    assert news == [set(), {"m"}, set(), set(), {"m"}]
    assert [hold.held(0) for hold in reports.window("n", "m").holds(0)] == [1]
    assert reports.silent(-1) == []


async def test_a_backend_that_is_made_at_zero_is_left_alone_until_requests_wait() -> None:
    """Its 0 is not written again, which the apiserver answers with 500 each time."""
    harness = await Harness().applied(backend(replicas=0, autoscaling=SCALING), endpoint())
    made = World(harness)
    await made.second(10)
    assert [write for write in harness.cluster.writes if write[0] == "scale"] == []
    made.held = 1
    await made.second(2)
    assert made.replicas == 1


async def test_a_backend_that_gets_requests_by_a_rule_alone_sleeps_and_wakes() -> None:
    """Its weight of 0 is that of the draw: routers hold what its rule chooses as they do any request."""
    rule = {"name": "m", "weight": 0, "match": [{"header": "x-preview", "value": "1"}]}
    ruled = split(other=100)
    ruled["spec"]["backends"].append(rule)
    world_ = await world(endpoint(backend="other"), backend("other"), ruled)
    world_.operator.pods_ready("other-backend", 1)
    await world_.second(40)
    assert world_.replicas == 0
    assert world_.condition() == ("True", "FollowingLoad")
    world_.held = 1
    world_.routers_report()
    await world_.operator.run()
    assert world_.replicas == 1
