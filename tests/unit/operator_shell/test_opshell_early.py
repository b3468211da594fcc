"""Ready is never claimed for a generation before it holds: whatever fails, in whichever order."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_operator.errors import ClusterError, Conflict, Unavailable
from penstock_operator.kinds import BACKEND, DEPLOYMENT, ENDPOINT, POLICY, SERVICE, SPLIT, Kind
from penstock_operator.reconcile.context import SHOWN_AFTER
from penstock_operator.reconcile.router import router_key
from penstock_operator.store import ObjectKey
from tests.support.worlds.operator_harness import Harness, backend, endpoint, policy, serving, settings, split

IMAGE = {"container": {"image": "model:2"}, "protocol": "instances", "port": 8080, "readyPath": "/"}


def claimed(harness: Harness, kind: Kind, name: str) -> bool:
    """What `kubectl wait --for=condition=Ready` looks at."""
    live = harness.cluster.find(kind, "n", name)
    ready = [each for each in live["status"]["conditions"] if each["type"] == "Ready"]
    return [(each["status"], each["observedGeneration"]) for each in ready] == [
        ("True", live["metadata"]["generation"])
    ]


def refusing(error: ClusterError, kind: str) -> Any:
    def fail(verb: str, a_kind: str, *_: str) -> None:
        if (verb, a_kind) == ("apply", kind):
            raise error

    return fail


@pytest.mark.parametrize("error", [Unavailable(500, "try again"), Conflict(409, "changed")])
async def test_not_while_the_write_of_a_backends_generation_fails(error: ClusterError) -> None:
    """The old Deployment is complete all the time; untold tries claim nothing, nor does a restart."""
    harness = await serving()
    assert claimed(harness, BACKEND, "m")
    harness.cluster.fail = refusing(error, "Deployment")
    harness.apply(backend(batchPolicyRef="p", model=IMAGE))
    for tries in range(1, SHOWN_AFTER + 3):
        await harness.turn(0.0 if tries == 1 else 5.0)
        assert not claimed(harness, BACKEND, "m"), tries
    assert harness.condition(BACKEND, "m", "Ready") == (
        "False",
        "WriteConflict" if error.status == 409 else "WriteFailed",
    )
    fresh = await harness.restart()
    assert not claimed(fresh, BACKEND, "m")
    fresh.cluster.fail = lambda *_: None
    await fresh.turn(30)
    assert fresh.condition(BACKEND, "m", "Ready") == ("False", "RollingOut")
    fresh.pods_ready("m-backend", 1)
    await fresh.run()
    fresh.report("m", "m-backend-0", version=settings(fresh)["version"])
    await fresh.turn(30)
    assert claimed(fresh, BACKEND, "m")


async def test_not_while_the_write_of_an_endpoints_service_fails() -> None:
    """As with backends: the first failures leave the status as it was."""
    harness = await serving()
    harness.cluster.fail = refusing(Unavailable(500, "try again"), "Service")
    harness.cluster.edit(ENDPOINT, "n", "e", lambda live: live["spec"].update(timeout="9s"))
    harness.cluster.edit(SERVICE, "n", "e", lambda live: live["spec"]["ports"][0].update(targetPort=1))
    await harness.run()
    assert not claimed(harness, ENDPOINT, "e")


@pytest.mark.parametrize("first", ["router", "users"])
async def test_not_before_the_routers_have_the_change(first: str) -> None:
    """A changed endpoint and split, in both orders of the queue: Waiting, until the routers report it."""
    harness = await serving()
    harness.apply(endpoint(timeout="9s"))
    harness.apply(split(m=7))
    users = [ObjectKey(ENDPOINT.kind, "n", "e"), ObjectKey(SPLIT.kind, "n", "s")]
    for key in [router_key("n"), *users] if first == "router" else [*users, router_key("n")]:
        await harness.manager.reconcile(key)
        for kind, name in ((ENDPOINT, "e"), (SPLIT, "s")):
            assert not claimed(harness, kind, name), key
    await harness.run()
    assert harness.condition(ENDPOINT, "e", "RouterReady") == ("False", "Waiting")
    assert harness.condition(SPLIT, "s", "Ready") == ("False", "Waiting")
    version = settings(harness, "penstock-router-settings")["version"]
    harness.router_report("penstock-router-0", ["e"], version=version)
    await harness.run()
    assert claimed(harness, ENDPOINT, "e")
    assert claimed(harness, SPLIT, "s")
    weights = harness.cluster.find(SPLIT, "n", "s")["status"]["weights"]
    assert [(weight["desired"], weight["applied"]) for weight in weights] == [(7, 7)]


@pytest.mark.parametrize("first", ["router", "endpoint"])
async def test_a_new_endpoint_beside_a_running_router_has_failed_nowhere(first: str) -> None:
    """A port on which no router listens yet has not failed: no Stalled, no Warning."""
    harness = await serving()
    harness.apply(endpoint("e2"))
    order = [router_key("n"), ObjectKey(ENDPOINT.kind, "n", "e2")]
    for key in order if first == "router" else order[::-1]:
        await harness.manager.reconcile(key)
    await harness.run()
    assert harness.condition(ENDPOINT, "e2", "RouterReady") == ("False", "Waiting")
    assert harness.condition(ENDPOINT, "e2", "Stalled") is None
    events = [live for key, live in harness.cluster.objects.items() if key[0] == "Event"]
    about = [event for event in events if event["regarding"]["name"] == "e2"]
    assert [event["type"] for event in about if event["type"] == "Warning"] == []
    version = settings(harness, "penstock-router-settings")["version"]
    harness.router_report("penstock-router-0", ["e", "e2"], version=version)
    await harness.run()
    assert claimed(harness, ENDPOINT, "e2")


async def test_a_change_that_is_taken_back_before_the_router_is_looked_at_leaves_nobody_waiting() -> None:
    """Whoever saw the router's settings unmade looks again by itself."""
    harness = await serving()
    harness.apply(endpoint("e2"))
    await harness.manager.reconcile(ObjectKey(SPLIT.kind, "n", "s"))
    assert harness.condition(SPLIT, "s", "Ready") == ("False", "Waiting")
    harness.events = False  # what comes now is told to nobody who would tell the split
    harness.cluster.remove(ENDPOINT, "n", "e2")
    harness.ctx.store.forget(ObjectKey(ENDPOINT.kind, "n", "e2"))
    harness.events = True
    again = await harness.manager.reconcile(ObjectKey(SPLIT.kind, "n", "s"))
    assert again is None
    assert claimed(harness, SPLIT, "s")


async def test_with_the_report_channel_cut_a_change_is_not_ready_at_once() -> None:
    """Silence keeps Ready for the generation that it was said of, and for no newer one."""
    harness = await serving()
    harness.clock.turn(60)  # all reports are old by now
    harness.manager.enqueue_all()
    await harness.run()
    for kind, name in ((ENDPOINT, "e"), (SPLIT, "s")):
        assert claimed(harness, kind, name), kind.kind
    await harness.applied(endpoint(timeout="9s"), split(m=7))
    for kind, name in ((ENDPOINT, "e"), (SPLIT, "s")):
        assert harness.condition(kind, name, "Ready") == ("Unknown", "NoReports"), kind.kind


async def test_a_backends_hot_change_is_ready_when_its_pods_have_it() -> None:
    """For its own generation; a change of its policy leaves Ready, and changes SettingsApplied."""
    harness = await serving()
    await harness.applied(policy(maxBatchSize=4))
    assert harness.condition(BACKEND, "m", "Ready") == ("True", "Serving")
    assert harness.condition(BACKEND, "m", "SettingsApplied") == ("False", "Waiting")
    assert harness.condition(POLICY, "p", "Ready") == ("False", "Applying")
    harness.report("m", "m-backend-0", version=settings(harness)["version"])
    await harness.run()
    await harness.applied(backend(batching={"maxBatchSize": 2}))
    assert harness.condition(BACKEND, "m", "Ready") == ("False", "Waiting")
    harness.report("m", "m-backend-0", version=settings(harness)["version"])
    await harness.run()
    assert claimed(harness, BACKEND, "m")


@pytest.mark.parametrize(
    ("change", "waits"),
    [
        ({"model": IMAGE}, "a change of the pods waits"),
        ({"replicas": 3}, "1 of 3 pods are ready"),
        ({"userConfig": 1}, "a change of the settings waits"),
        ({}, ""),
    ],
)
async def test_a_suspended_backend_is_not_ready_for_a_change_that_waits(change: Any, waits: str) -> None:
    """Without one it stays Ready, whatever edits its Deployment gets."""
    harness = await serving()
    harness.apply(backend(batchPolicyRef="p", suspend=True, **change))
    harness.cluster.edit(DEPLOYMENT, "n", "m-backend", lambda live: live["spec"].update(paused=True))
    harness.pods_ready("m-backend", 1)  # its controller has seen that
    await harness.run()
    if waits:
        assert harness.condition(BACKEND, "m", "Ready") == ("False", "Suspended")
        (text,) = (
            each["message"]
            for each in harness.cluster.find(BACKEND, "n", "m")["status"]["conditions"]
            if each["type"] == "Ready"
        )
        assert waits in text
    else:
        assert claimed(harness, BACKEND, "m")
