"""A backend that goes to 0 and comes back: what the operator writes, when, and what it says meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_operator.errors import Unavailable
from penstock_operator.kinds import BACKEND, DEPLOYMENT, ENDPOINT
from penstock_operator.reports import Reports
from penstock_wire.control.report import BackendTotals, EndpointReport, RouterReport
from tests.support.hand_clock import HandClock
from tests.support.operator_harness import Harness, backend, endpoint, settings

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
        """Pods come and go as they are asked to; everybody reports."""
        for _ in range(times):
            live = self.operator.cluster.find(DEPLOYMENT, "n", "m-backend")
            for name in self.operator.pods_ready("m-backend", live["spec"]["replicas"]):
                self.operator.report("m", name, version=1, load=self.load)
            if self.routers:
                self.routers_report()
            await self.operator.turn(1)

    def condition(self, name: str = "ScalingActive") -> tuple[str, str] | None:
        return self.operator.condition(BACKEND, "m", name)


async def world(*objects: dict[str, Any], routers: int = 2, **scaling: Any) -> World:
    harness = Harness()
    harness.apply(backend(autoscaling=SCALING | scaling))
    for one in objects or (endpoint(),):
        harness.apply(one)
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
    found = await world()
    await found.second(29)
    assert found.replicas == 1
    await found.second(10)
    assert found.replicas == 0
    await found.second(60)
    operator = found.operator
    assert operator.condition(BACKEND, "m", "Ready") == ("True", "ScaledToZero")
    assert operator.condition(ENDPOINT, "e", "BackendsReady") == ("True", "ScaledToZero")
    assert operator.condition(ENDPOINT, "e", "Ready") == ("True", "Serving")
    assert found.condition() == ("True", "FollowingLoad")
    assert found.condition("MetricsAvailable") == ("True", "ReportsReceived")

    operator.cluster.writes.clear()
    found.held = 1
    found.routers_report()
    await operator.run()  # the clock stands still
    assert found.replicas == 1
    assert operator.cluster.find(DEPLOYMENT, "n", "m-backend")["spec"]["replicas"] == 1
    assert writes(operator) == ["scale"]
    operator.pods_ready("m-backend", 0)
    await operator.run()
    assert operator.condition(BACKEND, "m", "Ready") == ("False", "RollingOut")  # it has none yet
    history = operator.cluster.find(BACKEND, "n", "m")["status"]["scaling"]
    assert [(entry["from"], entry["to"]) for entry in history[:2]] == [(0, 1), (1, 0)]
    assert history[0]["inputs"]["held"] == 1
    assert history[1]["reason"] == "no request for 30s"
    assert operator.errors == []


async def test_a_burst_asks_for_as_many_as_it_needs_before_a_pod_is_ready() -> None:
    """What is held is load at zero and above."""
    found = await asleep()
    found.held = 45
    found.routers_report()
    await found.operator.run()
    assert found.replicas == 5
    found.held = 0
    await found.second(40)
    assert found.replicas == 5  # downscaleDelay


@pytest.mark.parametrize("lost", ["before the write", "with the write", "after the write"])
async def test_an_operator_that_dies_in_the_middle_costs_the_time_of_its_restart(
    lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor learns from the routers' next report, and writes what is not written yet."""
    found = await asleep()
    found.held = 3
    scale = found.operator.cluster.apply_scale

    async def dies(*args: Any, **more: Any) -> Any:
        if lost == "with the write":
            await scale(*args, **more)
        raise Unavailable(0, "the operator is gone")

    if lost != "before the write":
        with monkeypatch.context() as death:
            if lost == "with the write":
                death.setattr(found.operator.cluster, "apply_scale", dies)
            found.routers_report()
            await found.operator.run()
    found.operator = await found.operator.restart()
    assert found.replicas == (0 if lost == "before the write" else 1)
    found.routers_report()
    await found.operator.run()
    assert found.replicas == 1
    assert found.operator.cluster.find(DEPLOYMENT, "n", "m-backend")["spec"]["replicas"] == 1


async def test_a_new_operator_watches_for_the_whole_time_and_wakes_nothing() -> None:
    """What was before it is unknown; who sleeps sleeps on."""
    found = await world()
    await found.second(20)
    found.operator = await found.operator.restart()
    await found.second(29)
    assert found.replicas == 1
    await found.second(10)
    assert found.replicas == 0
    found.operator.cluster.writes.clear()
    found.operator = await found.operator.restart()
    await found.second(20)
    assert found.replicas == 0
    assert writes(found.operator) == []


@pytest.mark.parametrize("cause", ["behind", "silent", "deaf", "none"])
async def test_the_last_pod_stays_while_a_router_would_not_hold(cause: str) -> None:
    """Every ready router must listen for the endpoint and have the current settings."""
    found = await world(routers=0 if cause == "none" else 2)
    if cause == "behind":
        found.version = 0
    elif cause == "deaf":
        found.endpoints = ["another"]
    elif cause == "silent":
        found.silent = {found.routers[1]}
    await found.second(60)
    assert found.replicas == 1
    found.version, found.silent, found.endpoints = None, set(), ["e"]
    if not found.routers:
        found.routers = found.operator.pods_ready("penstock-router", 2)
    await found.second(5)
    assert found.replicas == 0


async def test_an_endpoints_own_routers_hold_its_requests() -> None:
    """They are those that must be there, not the namespace's; and what they hold wakes the backend."""
    harness = Harness()
    harness.apply(backend(autoscaling=SCALING))
    harness.apply(endpoint(router={"dedicated": True}))
    await harness.run()
    found = World(harness, dedicated="e")
    await found.second(40)
    assert found.replicas == 0
    found.held = 1
    found.routers_report()
    await harness.run()
    assert found.replicas == 1


async def test_it_stays_while_no_endpoint_names_it_and_says_so() -> None:
    """NoHolder; at 0, too, where the last endpoint has gone: nothing can wake it."""
    found = await world(endpoint(backend="another"))
    await found.second(40)
    assert found.replicas == 1
    assert found.condition() == ("True", "NoHolder")
    found.operator.apply(endpoint())
    await found.second(5)
    assert found.replicas == 0
    assert found.condition() == ("True", "FollowingLoad")
    found.operator.cluster.remove(ENDPOINT, "n", "e")
    found.routers = []
    await found.second(5)
    assert found.replicas == 0
    assert found.condition() == ("True", "NoHolder")


async def test_an_endpoint_that_waits_for_its_first_pod_wakes_it() -> None:
    """An endpoint that moves to a backend without a ready pod keeps the last one until then: none is held."""
    found = await asleep()
    found.operator.apply({**backend(), "metadata": {"namespace": "n", "name": "other"}})
    await found.operator.run()
    found.operator.pods_ready("other-backend", 1)
    found.operator.apply(endpoint(backend="other"))
    await found.second(5)
    found.operator.apply(endpoint(backend="m"))
    await found.second(5)
    assert found.replicas == 1


@pytest.mark.parametrize("least", [0, 1])
async def test_a_zero_that_somebody_else_has_set_stays(least: int) -> None:
    """Whatever is held: until he sets another number."""
    scaling = {} if least == 0 else {"minReplicas": 1}
    found = await world(**scaling)
    if least:
        one = {name: value for name, value in SCALING.items() if name != "scaleToZero"} | scaling
        found.operator.apply(backend(autoscaling=one))
    await found.second(2)
    found.operator.cluster.scale(BACKEND, "n", "m", 0)
    found.held = 7
    await found.second(400)
    assert found.replicas == 0
    assert found.condition() == ("False", "ScalingDisabled")
    assert found.operator.condition(ENDPOINT, "e", "BackendsReady") == ("False", "BackendNotReady")
    found.operator.cluster.scale(BACKEND, "n", "m", 1)
    await found.second(2)
    assert found.condition() == ("False", "ForeignScaler")
    found.held = 0
    await found.second(400)
    assert found.replicas == least


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
    assert [one.held(0) for one in reports.window("n", "m").holds(0)] == [1]
    assert reports.silent(-1) == []
