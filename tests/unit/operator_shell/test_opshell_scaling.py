"""`status.scaling` has every change that was written through `/scale`, once, in its order."""

from __future__ import annotations

import asyncio
import datetime
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock_operator.errors import Rejected, Unavailable
from penstock_operator.kinds import BACKEND, DEPLOYMENT, POD
from penstock_wire.control.report import Fit
from tests.support.clocks.hand_clock import settle
from tests.support.worlds.observed import HOMELESS
from tests.support.worlds.operator_harness import Harness, backend, backend_key, policy, settings

SCALING = {"targetLoad": 10, "maxReplicas": 9, "stableWindow": "6s", "downscaleDelay": "1s"}


class Gate:
    """Holds the calls of one method of the cluster in memory until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, harness: Harness, name: str) -> None:
        self._opened = asyncio.Event()
        self.entered = asyncio.Event()
        self._call: Callable[..., Awaitable[Any]] = getattr(harness.cluster, name)
        monkeypatch.setattr(harness.cluster, name, self._held)

    async def _held(self, *args: Any, **keywords: Any) -> Any:
        self.entered.set()
        await self._opened.wait()
        return await self._call(*args, **keywords)

    def open(self) -> None:
        self._opened.set()


async def reporting(load: int = 5) -> Harness:
    """An autoscaled backend with one pod whose reports are some seconds old."""
    harness = await Harness().applied(backend(autoscaling=SCALING))
    harness.pods_ready("m-backend", 1)
    for _ in range(10):
        await second(harness, load)
    assert scalings(harness) == []
    return harness


async def second(harness: Harness, load: int) -> None:
    harness.report("m", "m-backend-0", version=1, load=load)
    await harness.turn(1)


def scalings(harness: Harness) -> list[tuple[int, int]]:
    """From and to, the newest first."""
    status = harness.cluster.find(BACKEND, "n", "m")["status"]
    return [(entry["from"], entry["to"]) for entry in status.get("scaling") or ()]


def replicas(harness: Harness) -> int:
    return int(harness.cluster.find(BACKEND, "n", "m")["spec"].get("replicas", 1))


async def test_a_change_made_while_a_status_is_on_its_way_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """That status was made before `/scale` answered: it has the number, but not the change."""
    harness = await reporting()
    for _ in range(6):  # reports alone: the autoscaler's next look finds more load
        harness.report("m", "m-backend-0", version=1, load=40)
        harness.clock.turn(1)
        await settle(1)
    scale, status = (Gate(monkeypatch, harness, name) for name in ("apply_scale", "apply_status"))
    looking = asyncio.create_task(harness.manager.scale(backend_key()))
    await scale.entered.wait()
    writing = asyncio.create_task(harness.manager.reconcile(backend_key()))
    await status.entered.wait()
    scale.open()
    await looking
    status.open()
    await writing
    await harness.run()
    assert replicas(harness) > 1
    assert scalings(harness) == [(1, replicas(harness))]


async def test_changes_before_a_status_could_be_written_are_all_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The apiserver takes the number and refuses statuses for a while, in which autoscaling is taken away."""
    harness = await reporting()
    steps = [replicas(harness)]

    async def refused(*_: Any, **__: Any) -> Any:
        raise Unavailable(500, "no statuses today")

    with monkeypatch.context() as outage:
        outage.setattr(harness.cluster, "apply_status", refused)
        for more in range(60):
            await second(harness, 20 + more)
            if replicas(harness) != steps[-1]:
                steps.append(replicas(harness))
        harness.apply(backend(replicas=steps[-1]))
        await harness.turn(2)
    assert len(steps) > 3
    assert scalings(harness) == []
    await harness.turn(40)  # a key that failed long waits up to 30 s
    assert scalings(harness) == list(itertools.pairwise(steps))[::-1]
    times = [entry["time"] for entry in harness.cluster.find(BACKEND, "n", "m")["status"]["scaling"]]
    assert len(set(times)) == len(times)
    assert times == sorted(times, reverse=True)


async def test_a_change_whose_answer_was_lost_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made, and the watch brings it; only `status.scaling` says why."""
    harness = await reporting()
    made, lost = harness.cluster.apply_scale, 0

    async def unanswered(*args: Any, **keywords: Any) -> Any:
        nonlocal lost
        await made(*args, **keywords)
        if args[3] > 1 and not lost:
            lost += 1
            raise Unavailable(0, "the connection was lost")

    monkeypatch.setattr(harness.cluster, "apply_scale", unanswered)
    for _ in range(8):
        await second(harness, 40)
    assert lost == 1
    assert scalings(harness) == [(1, replicas(harness))]


async def test_a_change_that_the_store_does_not_know_yet_is_written_and_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = await reporting()
    scale, written = harness.cluster.apply_scale, 0

    async def counted(*args: Any, **keywords: Any) -> Any:
        nonlocal written
        written += args[3] == 4
        return await scale(*args, **keywords)

    async def refused(*_: Any, **__: Any) -> Any:
        raise Unavailable(503, "busy")

    harness.stalled.add(BACKEND.kind)
    status = harness.cluster.apply_status  # whose answer would bring the number, too
    monkeypatch.setattr(harness.cluster, "apply_status", refused)
    monkeypatch.setattr(harness.cluster, "apply_scale", counted)
    for _ in range(12):
        await second(harness, 40)
    assert written == 1
    monkeypatch.setattr(harness.cluster, "apply_status", status)
    await harness.turn(40)
    assert scalings(harness) == [(1, 4)]


async def test_a_store_that_is_behind_does_not_shorten_the_downscale_delay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The autoscaler goes by the number that it has written, which neither watch nor status bring."""
    harness = await reporting()
    harness.apply(backend(autoscaling={**SCALING, "downscaleDelay": "300s"}))

    async def refused(*_: Any, **__: Any) -> Any:
        raise Unavailable(503, "busy")

    harness.stalled.add(BACKEND.kind)
    monkeypatch.setattr(harness.cluster, "apply_status", refused)
    for _ in range(8):
        await second(harness, 60)
    assert replicas(harness) == 6
    for _ in range(20):
        await second(harness, 25)
        assert replicas(harness) == 6
    for _ in range(8):
        await second(harness, 80)
    assert replicas(harness) == 8


async def test_a_change_that_was_refused_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else makes it: it is his."""
    harness = await reporting()

    async def refused(*_: Any, **__: Any) -> Any:
        raise Rejected(403, "no more than one today")

    with monkeypatch.context() as policy:
        policy.setattr(harness.cluster, "apply_scale", refused)
        for _ in range(8):
            await second(harness, 40)
        harness.apply(backend(autoscaling=SCALING, replicas=4))
        await second(harness, 40)
    for _ in range(4):
        await second(harness, 40)
    assert replicas(harness) == 4
    assert scalings(harness) == []


async def test_pods_start_step_by_step_while_processors_are_short() -> None:
    """Five are wanted: two, four, five, each when the last one's pods are ready; the condition says so."""
    harness = await reporting()
    steps = [1]
    for _ in range(40):
        for number in range(steps[-1]):
            load = 50 // steps[-1]
            harness.report("m", f"m-backend-{number}", version=1, load=load, processor_wait=0.3)
        await harness.turn(1)
        if replicas(harness) != steps[-1]:
            steps.append(replicas(harness))
            assert (scaling_active(harness) == "ShortOfProcessors") == (steps[-1] < 5)
            await harness.turn(5)
            assert replicas(harness) == steps[-1]  # its pods still start
            harness.pods_ready("m-backend", steps[-1])
    assert steps == [1, 2, 4, 5]
    assert scaling_active(harness) == "FollowingLoad"
    reasons = [entry["reason"] for entry in harness.cluster.find(BACKEND, "n", "m")["status"]["scaling"]]
    assert "4 for now, at most twice the 2 that are ready: they wait for processors 30%" in reasons[1]


def scaling_active(harness: Harness) -> str:
    """The reason of the condition."""
    conditions = harness.cluster.find(BACKEND, "n", "m")["status"]["conditions"]
    return next(str(entry["reason"]) for entry in conditions if entry["type"] == "ScalingActive")


async def test_without_target_load_the_arrivals_and_the_policys_objective_decide() -> None:
    """From the report to `/scale` and the status: L(26) = 0.65 s, so that a pod answers 40 items a second."""
    harness = Harness()
    batching = {"maxBatchSize": 32, "latencyObjective": "1s"}
    await harness.applied(backend(autoscaling={"maxReplicas": 9}, batching=batching))
    harness.pods_ready("m-backend", 1)
    fit = {"/predict": Fit(a_ms=100, b_ms=20, n=50)}
    for number in range(10):
        harness.report("m", "m-backend-0", version=1, load=30, arrived=120 * number, fit=fit)
        await harness.turn(1)
    assert replicas(harness) == 4
    status = harness.cluster.find(BACKEND, "n", "m")["status"]
    inputs = status["scaling"][0]["inputs"]
    assert (inputs["batchSize"], inputs["byRate"], inputs["targetLoad"]) == (26, 4, 39)
    policy = batching | {"latencyObjective": "100ms"}
    harness.apply(backend(autoscaling={"maxReplicas": 9}, batching=policy, replicas=4))
    for number in range(10, 14):
        harness.report("m", "m-backend-0", version=1, load=30, arrived=120 * number, fit=fit)
        await harness.turn(1)
    await harness.run()
    active = condition(harness, "ScalingActive")
    assert (active["status"], active["reason"]) == ("True", "ObjectiveUnreachable")
    assert active["message"].startswith("latencyObjective is 100ms, but a batch of one item takes 130ms")


@pytest.mark.parametrize("by", ["spec", "policy"])
@pytest.mark.parametrize("scaling", [None, {"targetLoad": 10}])
async def test_an_objective_that_cannot_be_kept_shows_in_ready(
    by: str, scaling: dict[str, Any] | None
) -> None:
    """Without autoscaling, too; until it can be kept, whatever the operator forgets meanwhile."""
    harness = Harness()
    more: dict[str, Any] = {"autoscaling": scaling} if scaling else {}

    def objective(milliseconds: int) -> None:
        batching = {"maxBatchSize": 32, "latencyObjective": f"{milliseconds}ms"}
        if by == "policy":
            harness.apply(policy(**batching))
        harness.apply(
            backend(**more, **({"batching": batching} if by == "spec" else {"batchPolicyRef": "p"}))
        )

    async def ready(*, measured: bool = True) -> tuple[str, str, str]:
        for number in range(4):
            fit = {"/predict": Fit(a_ms=280, b_ms=5, n=50)} if measured else {}
            harness.report(
                "m", pod, version=settings(harness)["version"], load=1, arrived=2 * number, fit=fit
            )
            await harness.turn(1)
        await harness.run()
        shown = condition(harness, "Ready")
        return shown["status"], shown["reason"], shown.get("message", "")

    objective(200)
    await harness.run()
    (pod,) = harness.pods_ready("m-backend", 1)
    assert (await ready(measured=False))[:2] == ("True", "Serving")
    found = await ready()
    assert found[:2] == ("True", "ObjectiveUnreachable")
    assert found[2].startswith("latencyObjective is 200ms, but a batch of one item takes 300ms: ")
    harness.manager._scaler.forget(backend_key())
    assert await ready(measured=False) == found  # a new operator, and no load
    objective(400)
    assert (await ready())[:2] == ("True", "Serving")


async def test_a_schedule_raises_the_replicas_when_it_begins() -> None:
    """With no report and no event; and two at the same time are told."""
    harness = Harness()
    start, day = harness.clock.now(), {"end": "59 23 31 12 *", "minReplicas": 3}
    begin = start.replace(second=0) + datetime.timedelta(minutes=2)
    soon = {"name": "soon", "start": f"{begin.minute} {begin.hour} * * *"} | day
    await harness.applied(backend(autoscaling={"targetLoad": 10, "schedules": [soon]}))
    assert (replicas(harness), condition(harness, "Accepted")["status"]) == (1, "True")
    for _ in range(130):
        await harness.turn(1)
    assert replicas(harness) == 3
    harness.apply(
        backend(autoscaling={"targetLoad": 10, "schedules": [soon, soon | {"name": "too"}]}, replicas=3)
    )
    await harness.run()
    assert condition(harness, "Accepted")["reason"] == "ScheduleInvalid"


def condition(harness: Harness, kind: str) -> dict[str, Any]:
    conditions = harness.cluster.find(BACKEND, "n", "m")["status"]["conditions"]
    return next(each for each in conditions if each["type"] == kind)


async def test_who_applies_replicas_again_and_again_is_told() -> None:
    """ForeignScaler: GitOps sets the number anew every minute; from the third time on it stands."""
    harness = Harness()
    manifest = backend(replicas=4, autoscaling={"targetLoad": 10, "maxReplicas": 5, "downscaleDelay": "0s"})
    await harness.applied(manifest)
    for step in range(4 * 8):
        if not step % 4:
            harness.apply(manifest)
        for pod in harness.pods_ready("m-backend", 1):
            harness.report("m", pod, version=1)
        for seconds in (3, 12):
            await harness.turn(seconds)
        # A first look lowers nothing for a minute; what was applied in it stands until then.
        assert harness.cluster.find(BACKEND, "n", "m")["spec"]["replicas"] == 4 or step < 4 * 3
    assert harness.condition(BACKEND, "m", "ScalingActive") == ("False", "ForeignScaler")
    conditions = harness.cluster.find(BACKEND, "n", "m")["status"]["conditions"]
    assert "user applies spec.replicas again and again" in str(conditions)
    assert harness.errors == []


@pytest.mark.parametrize("scaling", [{"targetLoad": 10}, {}], ids=["targetLoad", "objective"])
async def test_pods_that_no_node_takes_are_told_and_not_asked_for_again(scaling: dict[str, Any]) -> None:
    """Four are wanted, and one serves and refuses what it has no room for: four it stays."""
    harness = Harness()
    batching = {"maxBatchSize": 32, "latencyObjective": "1s"}
    await harness.applied(backend(autoscaling={"maxReplicas": 40} | scaling, batching=batching))
    harness.pods_ready("m-backend", 1)
    fit, seen = {"/predict": Fit(a_ms=100, b_ms=20, n=50)}, []
    for number in range(300):
        totals = {"arrived": 120 * number, "refused": 80 * number}
        harness.report("m", "m-backend-0", version=1, load=40, fit=fit, **totals)
        await harness.turn(1)
        if replicas(harness) == 4 and len(harness.cluster.names(POD, "n")) == 1:
            no_node_takes(harness, harness.pods_ready("m-backend", 4)[1:])
        seen.append(replicas(harness))
    assert seen == sorted(seen)
    assert seen[-1] == 4
    assert harness.condition(BACKEND, "m", "Ready") == ("True", "Serving")
    active = condition(harness, "ScalingActive")
    assert (active["status"], active["reason"]) == ("True", "Unschedulable")
    assert active["message"].startswith("1 of 4 pods are ready; pod m-backend-")
    assert active["message"].endswith("0/1 nodes are available")
    harness.pods_ready("m-backend", 4)
    await harness.run()
    assert scaling_active(harness) == "FollowingLoad"


def no_node_takes(harness: Harness, names: list[str]) -> None:
    """These pods of the backend have no node; the others are ready."""
    homeless = {"phase": "Pending", "conditions": HOMELESS}
    for name in names:
        harness.cluster.edit(POD, "n", name, lambda pod: pod.update(status=homeless))
    counts = {"readyReplicas": 1, "availableReplicas": 1}
    harness.cluster.edit(DEPLOYMENT, "n", "m-backend", lambda live: live["status"].update(counts))
