"""Whatever fails, dies or is missed on the way: the end is the same; and what is reported meanwhile."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock_operator.errors import ClusterError, Conflict, Rejected, Unavailable
from penstock_operator.kinds import (
    BACKEND,
    ENDPOINT,
    POLICY,
)
from tests.support.worlds.operator_harness import Harness, backend, endpoint, policy, serving, split


def world() -> list[dict[str, Any]]:
    return [policy(maxBatchSize=8), backend(batchPolicyRef="p", replicas=2), backend("other"), endpoint(),
            endpoint("e2", backend="other"), split(m=90, other=10)]  # fmt: skip


def shape(harness: Harness) -> dict[tuple[str, str, str], Any]:
    """What the world looks like, without what differs from run to run."""

    def clean(obj: dict[str, Any]) -> Any:
        text = json.dumps(
            {"spec": obj.get("spec"), "data": obj.get("data"), "labels": obj["metadata"].get("labels")}
        )
        return json.loads(text)

    shapes = {}
    for key, live in harness.cluster.objects.items():
        if key[0] == "Event":
            continue
        cleaned = clean(live)
        if key[0] == "Deployment":  # its drain secret is drawn at random
            cleaned = {"replicas": live["spec"]["replicas"], "labels": live["metadata"]["labels"]}
        if key[0] == "ConfigMap":  # versions count the changes on the way
            cleaned = {**json.loads(live["data"]["settings.json"]), "version": None}
        shapes[key] = cleaned
    return shapes


async def converge(harness: Harness) -> None:
    for _ in range(40):
        await harness.turn(5)


@pytest.mark.parametrize(
    "error",
    [
        Unavailable(500, "induced"),
        Unavailable(0, "no answer"),
        Conflict(409, "induced"),
        Rejected(403, "induced"),
    ],
    ids=["500", "silence", "409", "403"],
)
async def test_every_call_may_fail_once_and_the_end_is_the_same(error: ClusterError) -> None:
    """Induced failure on every call, one run each: converged, nothing twice, no trace left."""
    calm = Harness()
    for obj in world():
        calm.apply(obj)
    await converge(calm)
    wanted = shape(calm)
    calls = len(calm.cluster.writes) + calm.cluster.reads
    assert calls > 20
    for failing in range(1, calls + 1):
        harness = Harness()
        count = 0

        def fail(*_call: str, at: int = failing) -> None:
            nonlocal count
            count += 1
            if count == at:
                raise error

        harness.cluster.fail = fail
        for obj in world():
            harness.apply(obj)
        await converge(harness)
        assert shape(harness) == wanted, failing
        stalled = [
            key for key, live in harness.cluster.objects.items() if "induced" in str(live.get("status"))
        ]
        assert stalled == [], failing


async def test_an_operator_that_dies_between_two_writes_leaves_nothing_undone() -> None:
    """Killed after each write in turn; a fresh process ends where an undisturbed one does."""
    calm = Harness()
    for obj in world():
        calm.apply(obj)
    await converge(calm)
    wanted, writes = shape(calm), len(calm.cluster.writes)
    for last in range(1, writes, 3):
        harness = Harness()

        class Killed(BaseException):
            pass

        count = 0

        def kill(verb: str, *_call: str, at: int = last, died: type[BaseException] = Killed) -> None:
            nonlocal count
            count += verb not in ("get", "list")
            if count > at:
                raise died

        harness.cluster.fail = kill
        for obj in world():
            harness.apply(obj)
        with pytest.raises(Killed):
            await converge(harness)
        harness.cluster.fail = lambda *_: None
        fresh = await harness.restart()
        await converge(fresh)
        assert shape(fresh) == wanted, last


async def test_what_was_deleted_while_nobody_watched_is_found_by_the_re_list() -> None:
    """A deletion without an event: the store drops the object, and its dependents are reconciled."""
    harness = await serving()
    harness.events = False
    harness.cluster.remove(BACKEND, "n", "m")
    harness.events = True
    assert harness.ctx.store.get(BACKEND, "n", "m") is not None
    relisted = await harness.manager.relist()
    await harness.run()
    assert relisted.dropped >= 4
    assert harness.ctx.store.get(BACKEND, "n", "m") is None
    assert "BackendMissing" in str(harness.cluster.find(ENDPOINT, "n", "e")["status"])


async def test_events_tell_of_transitions_only() -> None:
    """A healthy start is reported once; a failure and its end once each; re-runs are silent."""
    harness = await serving()

    def events() -> list[tuple[str, str]]:
        return [(live["reason"], live["type"]) for key, live in harness.cluster.objects.items()
                if key[0] == "Event" and live["regarding"]["name"] == "m"]  # fmt: skip

    before = len(events())
    harness.manager.enqueue_all()
    await harness.run()
    assert len(events()) == before
    harness.cluster.remove(POLICY, "n", "p")
    await harness.run()
    assert ("BatchPolicyMissing", "Warning") in events()
    count = len(events())
    harness.manager.enqueue_all()
    await harness.run()
    assert len(events()) == count


@pytest.mark.parametrize(
    ("knob", "reason"),
    [
        (policy(maxBatchSize=9), "Applied"),
        (backend(batchPolicyRef="p", batching={"maxBatchSize": 9}), "Serving"),
    ],
)
async def test_a_changed_knob_is_one_event_once_all_pods_have_it(knob: dict[str, Any], reason: str) -> None:
    """Not three: that they wait for it, that they have it, and that the backend is ready again."""
    harness = await serving()

    def events() -> list[tuple[str, str]]:
        return [(live["reason"], live["note"]) for key, live in harness.cluster.objects.items()
                if key[0] == "Event" and live["regarding"]["name"] == "m"]  # fmt: skip

    before = events()
    await harness.applied(knob)
    assert events() == before
    harness.report("m", "m-backend-0", version=2)
    await harness.run()
    assert events()[len(before) :] == [(reason, "1 of 1 ready pods have settings version 2")]


async def test_a_pod_that_falls_silent_is_told_of_soon() -> None:
    """Silence has no event: the operator looks for it, also in the moment when a report's time ends."""
    harness = await serving()
    for _ in range(6):
        assert harness.condition(BACKEND, "m", "SettingsApplied") == ("True", "Applied")
        await harness.turn(2)
    assert harness.condition(BACKEND, "m", "SettingsApplied") == ("Unknown", "NoReports")


async def test_a_pod_that_dies_without_a_last_word_has_no_model() -> None:
    """Its last report said ready a moment ago; with the pod gone, that says nothing of a model."""
    harness = await serving()
    assert harness.condition(BACKEND, "m", "ModelLoaded") == ("True", "Loaded")
    harness.pods_ready("m-backend", 0)
    await harness.run()
    assert harness.condition(BACKEND, "m", "ModelLoaded") == ("False", "NoPod")
