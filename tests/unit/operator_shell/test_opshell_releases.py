"""Releases in a whole operator: from a strategy to the last weight, through all that may come between."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from penstock_operator.errors import Unavailable
from penstock_operator.kinds import BACKEND, ENDPOINT, SPLIT
from penstock_operator.prometheus import NoValue, Prometheus
from penstock_operator.releases import machine
from penstock_operator.store import ObjectKey
from tests.support.worlds.operator_harness import backend, endpoint
from tests.support.worlds.operator_harness import split as plain_split
from tests.support.worlds.release_world import Behaviour, World, split

pytestmark = pytest.mark.long

QUICK = {"interval": "10s"}
SCALED = {"autoscaling": {"targetLoad": 10, "maxReplicas": 6, "stableWindow": "6s", "downscaleDelay": "1s"}}


class Scripted(Prometheus):
    """Has the same result for every query."""

    def __init__(self, result: float | NoValue) -> None:
        super().__init__()
        self.result = result
        self.asked: list[str] = []

    async def query(self, text: str) -> float | NoValue:
        self.asked.append(text)
        return self.result


class Slow(Prometheus):
    """Answers each query with 2 once it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.let = asyncio.Event()
        self.asked = self.under_way = self.most = 0

    async def query(self, text: str) -> float | NoValue:
        self.asked, self.under_way = self.asked + 1, self.under_way + 1
        self.most = max(self.most, self.under_way)
        try:
            await self.let.wait()
        finally:
            self.under_way -= 1
        return 2.0


def weights(world: World) -> list[int]:
    """The candidate's weights in the status, each once in a row."""
    return [weight for weight, _ in itertools.groupby(each["release"]["weight"] for each in world.history)]


def condition(world: World, kind: str) -> tuple[str, str]:
    condition_of_split = world.harness.condition(SPLIT, "s", kind)
    assert condition_of_split is not None
    return condition_of_split


async def test_a_release_goes_from_nothing_to_all() -> None:
    """Copies, then requests, judged before each step; the spec stays; status, settings and Events agree."""
    steps: list[dict[str, Any]] = [{"mirror": 50}, {"setWeight": 10}, {"pause": "20s"}, {"setWeight": 50}]
    metrics = [{"name": "mismatch"}, {"name": "errorRatio"}, {"name": "latency"}]
    world = await World.of(split(steps=steps, analysis=QUICK | {"metrics": metrics}))
    assert world.weights == {"old": 100}, "a backend to which requests are copied gets none"
    await world.until(lambda world: world.release["weight"] == 10)
    assert "new: " in world.history[-2]["mirrored"]
    assert "mirrored" not in world.split["status"]
    assert (world.split["status"]["step"], world.split["status"]["stepOf"]) == (1, "2/4")
    assert [(each["desired"], each["applied"]) for each in world.split["status"]["weights"]] == [
        (90, 100),
        (10, 0),
    ]
    await world.second()
    await world.second()
    assert [each["applied"] for each in world.split["status"]["weights"]] == [90, 10]
    assert condition(world, "Reconciling") == ("True", world.release["reason"])
    await world.phase("Promoted")
    assert weights(world) == [0, 10, 50, 100]
    assert world.weights == {"old": 0, "new": 100}
    status = world.split["status"]
    assert status["shares"] == "old 0%, new 100%"
    assert [(each["name"], each["desired"], each["applied"]) for each in status["weights"]] == [
        ("old", 0, 0),
        ("new", 100, 100),
    ]
    assert (status["step"], [each["verdict"] for each in status["verdicts"]]) == (4, ["Pass"] * 3)
    assert status["stepOf"] == "4/4"
    assert condition(world, "Progressing") == ("True", "Promoted")
    assert condition(world, "Ready") == ("True", "Applied")
    assert world.harness.condition(SPLIT, "s", "Reconciling") is None
    assert world.split["spec"] == split(steps=steps, analysis=QUICK | {"metrics": metrics})["spec"]
    reasons = [reason for reason, _ in world.events() if reason != "InsufficientEvidence"]
    moves = ["StepStarted", "WeightSet"]
    assert reasons == ["ReleaseStarted", "WeightSet", *moves, "StepStarted", *moves, *moves, "Promoted"]
    assert world.harness.errors == []


async def test_an_endpoints_own_routers_follow_its_release() -> None:
    world = await World.of(split(analysis=QUICK), dedicated=True)
    await world.phase("Promoted")
    assert (weights(world), world.weights) == ([10, 50, 100], {"old": 0, "new": 100})
    assert world.harness.errors == []


async def test_what_the_status_has_is_what_routers_get() -> None:
    """The settings follow the status that was taken: where it is not, no router gets another weight."""
    world = await World.of(split(analysis={"metrics": []}, steps=[{"pause": "5s"}, {"setWeight": 10}]))
    await world.second()

    def refused(verb: str, kind: str, *_call: str) -> None:
        if (verb, kind) == ("status", SPLIT.kind):
            raise Unavailable(503, "busy")

    world.harness.cluster.fail = refused
    for _ in range(20):
        await world.second()
    assert (world.weights, world.release["weight"]) == ({"old": 100, "new": 0}, 0)
    world.harness.cluster.fail = lambda *_: None
    before = len(world.events())
    await world.phase("Promoted", 60)
    reasons = [reason for reason, _ in world.events()][before:]
    assert reasons == ["StepStarted", "WeightSet", "StepStarted", "WeightSet", "Promoted"], "once each"


@pytest.mark.parametrize(
    ("bad", "steps"),
    [
        (Behaviour(errors=0.05), [{"setWeight": 10}, {"setWeight": 50}]),
        (Behaviour(seconds=0.25), [{"setWeight": 10}, {"setWeight": 50}]),
        (Behaviour(differing=0.05), [{"mirror": 50}, {"setWeight": 50}]),
    ],
    ids=["errors", "slow", "other answers"],
)
async def test_a_bad_candidate_is_taken_back(bad: Behaviour, steps: list[dict[str, Any]]) -> None:
    """Within two intervals, whichever step is under way; and it stays so."""
    metrics = [{"name": "errorRatio"}, {"name": "latency"}]
    if "mirror" in steps[0]:
        metrics.append({"name": "mismatch"})
    world = await World.of(split(steps=steps, analysis={"metrics": metrics}))
    world.behaviour["new"] = bad
    assert await world.phase("RolledBack") <= 63
    await world.second()
    assert world.weights == {"old": 100, "new": 0}
    assert condition(world, "Progressing") == ("False", "RolledBack")
    assert condition(world, "Stalled") == ("True", "RolledBack")
    assert condition(world, "Ready") == ("True", "Applied"), "clients are served"
    failed = [each["message"] for each in world.split["status"]["verdicts"] if each["verdict"] == "Fail"]
    assert failed
    if bad.differing:
        assert all(said.endswith(", above 1%, most at $.p (value: number → number)") for said in failed)
    for _ in range(60):
        await world.second()
    assert world.standing() == ("RolledBack", 0, "RolledBack")
    assert [reason for reason, _ in world.events()].count("RolledBack") == 1


@pytest.mark.parametrize("every", [3, 7, 13])
async def test_another_operator_goes_on_from_what_is_stored(every: int) -> None:
    """Killed again and again, before any interval is over or after: no weight is skipped or taken back."""
    steps = [{"mirror": 10}, {"setWeight": 10}, {"pause": "10s"}, {"setWeight": 50}]
    world = await World.of(split(steps=steps, analysis={"interval": "5s"}, promotion="Manual"))
    for passed in range(200):
        await world.second()
        if passed % every == 0 and world.release["reason"] != "AwaitingPromotion":
            await world.restart()
            assert world.harness.errors == []
        if every == 3 and passed == 60:
            assert world.release["weight"] <= 10, "nothing is judged by less than an interval"
            every = 13
    assert world.standing()[1:] == (50, "AwaitingPromotion")
    assert weights(world) == [0, 10, 50]
    assert condition(world, "Reconciling") == ("True", "AwaitingPromotion")
    reasons = [reason for reason, _ in world.events()]
    assert reasons.count("ReleaseStarted") == 1
    assert reasons.count("WeightSet") == 3
    world.annotate("promote")
    await world.phase("Promoted")


async def test_killed_between_status_and_settings_nothing_is_lost() -> None:
    """The next operator renders the settings from the status."""
    world = await World.of(split(analysis={"metrics": []}, steps=[{"pause": "5s"}, {"setWeight": 10}]))

    def refused(verb: str, kind: str, *_call: str) -> None:
        if kind == "ConfigMap" and verb == "apply":
            raise Unavailable(503, "busy")

    world.harness.cluster.fail = refused
    await world.until(lambda world: world.release["weight"] == 10)
    assert world.weights == {"old": 100, "new": 0}
    world.harness.cluster.fail = lambda *_: None
    await world.restart()
    assert world.weights == {"old": 90, "new": 10}
    await world.phase("Promoted")
    assert weights(world) == [0, 10, 100]


async def test_a_release_that_is_over_writes_nothing() -> None:
    """Nor does one that waits: a look with nothing new changes nothing."""
    world = await World.of(split(analysis={"metrics": []}, steps=[{"setWeight": 10}, {"pause": "Manual"}]))
    world.rate = 0  # observed shares come and go
    for reason in ("Paused", "Promoted"):
        await world.reason(reason)
        for _ in range(80):
            await world.second()
        before = len(world.harness.cluster.writes)
        for _ in range(60):
            await world.second()
        made = [write for write in world.harness.cluster.writes[before:] if write[1] == SPLIT.kind]
        assert made == []
        world.annotate("promote")


async def test_a_lost_pod_lowers_the_weight_at_once() -> None:
    """Without a second passing; it comes back with the pod, and the message has both numbers."""
    world = await World.of(
        split(steps=[{"setWeight": 60}, {"pause": "Manual"}]), replicas={"old": 5, "new": 3}
    )
    await world.reason("Paused")
    world.harness.pods_ready("new-backend", 1)
    await world.harness.run()
    assert (world.weights, world.release["weight"]) == ({"old": 80, "new": 20}, 20)
    assert world.split["status"]["shares"] == "old 80%, new 20%"
    await world.second()
    await world.second()
    assert world.weights == {"old": 40, "new": 60}


async def test_pods_that_come_and_go_hide_no_bad_candidate() -> None:
    """What is counted of one weight is judged when another is set; a query is asked by the interval alone."""
    query = {"name": "prometheus", "query": "up", "threshold": 1, "failureLimit": 2}
    world = await World.of(
        split(steps=[{"setWeight": 60}], analysis={"metrics": [query, {"name": "errorRatio"}]}),
        replicas={"old": 5, "new": 3},
    )
    prometheus = Scripted(2.0)
    world.harness.asks(prometheus)
    world.behaviour["new"] = Behaviour(errors=0.1)
    for passed in range(60):
        world.most["new"] = 1 if passed % 10 > 6 else 3
        await world.second()
        if world.release["phase"] == "RolledBack":
            break
    assert "errorRatio" in world.release["message"]
    assert prometheus.asked == []


@pytest.mark.parametrize("scaled", [False, True], ids=["fixed", "autoscaled"])
async def test_weight_never_runs_ahead_of_capacity(scaled: bool) -> None:
    """Without autoscaling a step waits; with it the candidate has its pods before its weight."""
    new = SCALED | {"replicas": 1} if scaled else {"replicas": 1}
    world = await World.of(split(analysis=QUICK), replicas={"old": 4}, new=new)
    for _ in range(120):
        await world.second()
        allowed = 100 * world.ready("new") // 4
        served = world.weights.get("new", 0)
        assert served <= allowed or world.release["phase"] == "Promoted"
    if scaled:
        assert world.standing() == ("Promoted", 100, "Promoted")
        return
    assert world.standing() == ("Progressing", 10, "CapacityShort")
    assert "expected 2 ready pods of new for 50%" in world.release["message"]
    assert "its replicas are 1, and nothing scales it" in world.release["message"]
    world.harness.apply(backend("new", replicas=4))
    await world.phase("Promoted")


def replicas(world: World, name: str) -> int:
    return int(world.harness.cluster.find(BACKEND, "n", name)["spec"]["replicas"])


async def test_floors_outlive_the_operator_and_end_with_the_release() -> None:
    """The stable keeps what it had until it has answered nothing for a while; then it follows its load."""
    old, new = SCALED | {"replicas": 3}, SCALED | {"replicas": 1}
    steps = [{"setWeight": 10}, {"pause": "Manual"}]
    world = await World.of(split(steps=steps, analysis={"metrics": []}), old=old, new=new)
    await world.reason("Paused")
    for _ in range(30):
        await world.second()
    await world.restart()
    for _ in range(30):
        await world.second()
    assert (replicas(world, "old"), replicas(world, "new")) == (3, 1)
    assert world.harness.condition(BACKEND, "old", "ScalingActive") == ("True", "Release")
    recommended = world.harness.cluster.find(BACKEND, "n", "old")["status"]["recommendation"]
    assert "the release of TrafficSplit s needs 3" in recommended["message"]
    world.annotate("promote")
    await world.phase("Promoted")
    assert replicas(world, "new") == 3
    passed = await world.until(lambda world: replicas(world, "old") == 1, 100)
    assert 30 <= passed <= 50, "30 s without an answer, and what a look or two and a scale-down take"
    await world.until(lambda world: replicas(world, "new") == 1, 100)
    assert world.release["idleSince"]


async def test_a_candidate_at_zero_is_woken_by_the_release() -> None:
    sleeping = {"autoscaling": SCALED["autoscaling"] | {"minReplicas": 0, "scaleToZero": {"after": "20s"}}}
    world = await World.of(split(analysis={"metrics": []}), new=sleeping | {"replicas": 0})
    assert world.release["weight"] == 0
    await world.phase("Promoted", 100)


async def test_a_zero_by_hand_is_what_a_release_says_that_it_waits_for() -> None:
    """It stays, whatever autoscaling allows: nobody but a person can give the release its pods."""
    world = await World.of(split(analysis=QUICK), new=SCALED, old=SCALED)
    await world.until(lambda world: world.release["weight"] == 10)
    world.harness.cluster.scale(BACKEND, "n", "new", 0, manager="kubectl")
    await world.reason("CapacityShort")
    await world.until(
        lambda world: world.release["message"].endswith("replicas are 0, and nothing scales it")
    )
    world.harness.cluster.scale(BACKEND, "n", "new", 1, manager="kubectl")
    await world.until(lambda world: world.release["weight"] == 50)


async def test_without_its_candidate_a_release_is_taken_back_and_begins_anew_with_it() -> None:
    world = await World.of(split(analysis=QUICK))
    await world.until(lambda world: world.release["weight"] == 50)
    await world.delete("new")
    assert world.weights == {"old": 100}
    assert world.standing() == ("RolledBack", 0, "CandidateMissing")
    assert condition(world, "Ready") == ("False", "BackendMissing")
    world.harness.apply(backend("new", replicas=2))
    await world.until(lambda world: world.release["weight"] == 10)
    assert world.split["status"]["step"] == 0
    await world.phase("Promoted")


async def test_a_retired_stable_gets_no_requests_where_the_promoted_version_is_made_anew() -> None:
    """The requests wait for the version that serves; no release begins that would go back to nothing."""
    world = await World.of(split(analysis={"metrics": []}))
    await world.phase("Promoted")
    world.harness.apply(backend("old", replicas=0))
    await world.until(lambda world: world.ready("old") == 0)
    await world.delete("new")
    assert world.weights == {"old": 0, "new": 100}
    assert condition(world, "Ready") == ("False", "BackendMissing")
    world.harness.apply(backend("new", replicas=2))
    await world.until(lambda world: world.ready("new") == 2)
    for _ in range(5):
        await world.second()
    assert world.standing() == ("Promoted", 100, "Promoted")
    assert condition(world, "Ready") == ("True", "Applied")
    assert {entry["release"]["weight"] for entry in world.history[-10:]} == {100}


async def test_without_its_stable_a_release_stands_still() -> None:
    """The others have its part, by the split's rule; nothing is judged or set."""
    world = await World.of(split(analysis=QUICK))
    await world.until(lambda world: world.release["weight"] == 10)
    await world.delete("old")
    for _ in range(30):
        await world.second()
    assert world.standing() == ("Progressing", 10, "StableMissing")
    assert world.weights == {"new": 10}
    assert condition(world, "Stalled")[0] == "True"


async def test_a_rollback_waits_for_a_stable_that_somebody_scaled_to_zero() -> None:
    """Users keep the answers that they get; an Event says why; it ends with the first pod of the stable."""
    world = await World.of(split(steps=[{"setWeight": 50}, {"pause": "Manual"}], analysis={"metrics": []}))
    await world.reason("Paused")
    world.harness.apply(backend("old", replicas=0))
    await world.until(lambda world: world.ready("old") == 0)
    world.annotate("abort")
    await world.reason("StableNotReady")
    for _ in range(40):
        await world.second()
    assert world.standing() == ("RolledBack", 50, "StableNotReady")
    assert world.weights == {"old": 50, "new": 50}
    assert condition(world, "Stalled")[0] == "True"
    assert "StableNotReady" in [reason for reason, _ in world.events()]
    world.harness.apply(backend("old", replicas=1))
    await world.until(lambda world: world.weights == {"old": 100, "new": 0})
    assert world.standing() == ("RolledBack", 0, "RolledBack")


async def test_a_manual_pause_that_is_edited_goes_on_and_a_refusal_is_an_event() -> None:
    world = await World.of(split(steps=[{"setWeight": 50}, {"pause": "Manual"}], analysis={"metrics": []}))
    await world.reason("Paused")
    world.annotate("pause@1")
    await world.until(lambda world: "ActionRefused" in dict(world.events()))
    world.harness.apply(split(steps=[{"setWeight": 50}, {"pause": "5s"}], analysis={"metrics": []}))
    await world.phase("Promoted")
    assert [note for reason, note in world.events() if reason == "ActionRefused"] == [
        "pause: the release is paused already"
    ]


async def test_a_watch_that_stood_still_sets_no_release_back() -> None:
    """A status is written on top of the one that it follows from; the next look is at what there is."""
    world = await World.of(split(steps=[{"setWeight": 10}, {"pause": "20s"}], analysis={"metrics": []}))
    await world.until(lambda world: world.split["status"].get("step") == 1)
    harness, key = world.harness, ObjectKey(SPLIT.kind, "n", "s")
    harness.stalled.add(SPLIT.kind)

    def taken_back(obj: dict[str, Any]) -> None:
        obj["status"]["release"] |= {"phase": "RolledBack", "weight": 0, "target": 0, "reason": "RolledBack"}

    harness.cluster.edit(SPLIT, "n", "s", taken_back)  # by another operator
    harness.clock.turn(25)  # the pause is over, as far as this one knows
    assert await harness.manager.reconcile(key) == machine.AT_ONCE
    assert world.standing() == ("RolledBack", 0, "RolledBack")
    harness.stalled.clear()
    await harness.manager.reconcile(key)
    assert world.standing() == ("RolledBack", 0, "RolledBack")


async def test_edited_steps_go_on_from_what_is_applied() -> None:
    world = await World.of(split(analysis=QUICK))
    await world.until(lambda world: world.release["weight"] == 50)
    world.harness.apply(split(steps=[{"setWeight": 20}, {"setWeight": 70}], analysis=QUICK))
    await world.harness.run()
    assert world.split["status"]["step"] == 1
    await world.phase("Promoted")
    assert weights(world) == [10, 50, 70, 100]


async def test_a_strategy_that_goes_leaves_the_specs_weights() -> None:
    """And so does the split itself: the endpoint has its own backend then."""
    world = await World.of(split(analysis=QUICK))
    await world.until(lambda world: world.release["weight"] == 10)
    without = split()
    del without["spec"]["strategy"]
    world.harness.apply(without)
    await world.second()
    status = world.split["status"]
    assert world.weights == {"old": 100, "new": 0}
    assert not {"release", "step", "stepOf", "stepStarted"} & status.keys()
    assert not status.get("verdicts")
    assert world.harness.condition(SPLIT, "s", "Progressing") is None
    world.harness.apply(split(analysis=QUICK))
    await world.until(lambda world: world.release.get("weight") == 10)
    world.harness.cluster.remove(SPLIT, "n", "s")
    await world.harness.run()
    assert world.weights == {"old": 1}
    assert (world.harness.ctx.memory.trials, world.harness.ctx.memory.followed) == ({}, {})


async def test_without_its_endpoint_a_release_waits_where_it_is() -> None:
    """A promoted one does not go back to a stable that may have no pods any more."""
    world = await World.of(split(analysis=QUICK))
    await world.phase("Promoted")
    world.harness.cluster.remove(ENDPOINT, "n", "e")
    await world.harness.run()
    assert condition(world, "Accepted") == ("False", "EndpointMissing")
    assert world.standing() == ("Promoted", 100, "Promoted")
    world.harness.apply(endpoint(backend="old"))
    await world.second()
    assert world.weights == {"old": 0, "new": 100}


async def test_of_two_splits_the_younger_ones_strategy_does_nothing() -> None:
    """It is not accepted; when the older one goes, it begins."""
    world = await World.of(split("a", analysis=QUICK))
    world.harness.clock.turn(5)
    world.harness.apply(split(analysis=QUICK | {"metrics": []}))
    for _ in range(10):
        await world.second()
    assert "release" not in world.split["status"]
    assert condition(world, "Accepted") == ("False", "Conflict")
    assert world.harness.cluster.find(SPLIT, "n", "a")["status"]["release"]["weight"] == 10
    world.harness.cluster.remove(SPLIT, "n", "a")
    await world.phase("Promoted")


async def test_a_strategy_that_cannot_be_followed_is_not_accepted() -> None:
    """The weights stay."""
    world = await World.of(split(analysis=QUICK))
    await world.until(lambda world: world.release["weight"] == 10)
    world.harness.apply(split(steps=[{"setWeight": 10}, {"mirror": 5}], analysis=QUICK))
    for _ in range(40):
        await world.second()
    for kind in ("Accepted", "Progressing", "Ready"):
        assert condition(world, kind) == ("False", "InvalidStrategy")
    assert world.weights == {"old": 90, "new": 10}


@pytest.mark.parametrize("seconds", [0, 60], ids=["once", "also of old"])
async def test_an_annotation_is_carried_out_once(seconds: int) -> None:
    world = await World.of(
        split(steps=[{"setWeight": 10}, {"pause": "1h"}, {"setWeight": 50}], analysis=QUICK)
    )
    await world.until(lambda world: world.split["status"]["step"] == 1)
    world.annotate("pause")
    await world.second()
    assert world.standing() == ("Paused", 10, "Paused")
    for _ in range(seconds):
        await world.second()
    await world.restart()
    world.annotate("promote@1")
    await world.second()
    assert world.release["phase"] == "Progressing"
    world.annotate("promote@2")
    await world.until(lambda world: world.release["weight"] == 50)
    world.annotate("abort")
    await world.second()
    assert (world.weights, world.standing()) == ({"old": 100, "new": 0}, ("RolledBack", 0, "RolledBack"))


async def test_a_silent_router_holds_a_step() -> None:
    """Nobody knows whether it has taken up the weight, nor what it counts; after a restart likewise."""
    world = await World.of(split(analysis=QUICK))
    await world.second()
    world.reports = False
    for _ in range(60):
        await world.second()
    assert world.standing() == ("Progressing", 10, "StepRunning")
    await world.restart()
    for _ in range(30):
        await world.second()
    assert world.standing()[:2] == ("Progressing", 10)
    world.reports = True
    await world.phase("Promoted")


async def test_a_silent_router_hides_no_bad_candidate() -> None:
    """It holds the steps, and what the other one counts is judged."""
    world = await World.of(split(analysis=QUICK))
    await world.reason("Analyzing")
    world.silent = 1
    for _ in range(40):
        await world.second()
    assert world.standing() == ("Progressing", 10, "StepRunning")
    world.behaviour["new"] = Behaviour(errors=0.1)
    await world.phase("RolledBack", 40)


async def test_a_query_is_asked_at_the_end_of_each_interval() -> None:
    """No result holds the step, and says so; one above the threshold takes the candidate back."""
    metric = {"name": "prometheus", "query": "up", "threshold": 1}
    world = await World.of(split(analysis=QUICK | {"metrics": [metric]}))
    await world.reason("InsufficientEvidence")
    assert "prometheus: no Prometheus is configured" in world.release["message"]
    prometheus = Scripted(NoValue("expected one series, found none"))
    world.harness.asks(prometheus)
    # What it answers is seen a second or two later here, where the next interval begins.
    assert 45 < await world.until(lambda _: prometheus.asked == ["up"] * 5) < 65
    assert "prometheus: expected one series, found none" in world.release["message"]
    prometheus.result = 0.5
    await world.until(lambda world: world.release["weight"] == 50)
    prometheus.result = 1.5
    await world.phase("RolledBack", 30)


async def test_a_slow_query_keeps_nobody_waiting() -> None:
    """No worker waits for Prometheus, and a namespace has few queries under way; they end with the split."""
    metrics = [{"name": "prometheus", "query": f"q{at}", "threshold": 1} for at in range(8)]
    world = await World.of(split(analysis=QUICK | {"metrics": metrics}))
    prometheus = Slow()
    world.harness.asks(prometheus)
    await world.reason("Analyzing")
    async with asyncio.timeout(60):
        for _ in range(40):
            await world.second()
    assert (prometheus.asked, prometheus.most) == (4, 4)
    assert world.standing() == ("Progressing", 10, "InsufficientEvidence")
    prometheus.let.set()
    await world.phase("RolledBack", 5)
    assert (prometheus.asked, prometheus.most) == (8, 4)

    prometheus.let.clear()
    world.annotate("promote")
    await world.until(lambda _: prometheus.under_way == 4, 40)
    world.harness.cluster.remove(SPLIT, "n", "s")
    for _ in range(2):
        await world.harness.turn(1)
    assert prometheus.under_way == 0


async def test_what_routers_count_against_a_candidate_waits_for_no_query() -> None:
    metrics = [{"name": "errorRatio"}, {"name": "prometheus", "query": "q", "threshold": 1}]
    world = await World.of(split(analysis=QUICK | {"metrics": metrics}))
    world.harness.asks(Slow())
    world.behaviour["new"] = Behaviour(errors=0.5)
    await world.phase("RolledBack", 30)


async def test_a_split_with_weights_alone_has_no_release() -> None:
    world = await World.of(plain_split(old=1, new=1))
    for _ in range(3):
        await world.second()
    assert not world.release
    assert world.weights == {"old": 1, "new": 1}
