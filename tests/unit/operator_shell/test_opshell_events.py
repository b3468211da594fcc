"""Events go out beside the work that they report."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock_operator.errors import Unavailable
from penstock_operator.kinds import BACKEND, DEPLOYMENT, EVENT, POD
from penstock_operator.kube.cluster import NoObserver
from penstock_operator.kube.events import KEPT, Recorder
from tests.support.worlds.memory_cluster import MemoryCluster
from tests.support.worlds.observed import CRASH
from tests.support.worlds.operator_harness import Harness, backend


def event(number: int) -> dict[str, Any]:
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {"namespace": "n", "name": f"e{number:05}"},
        "note": str(number),
    }


def recorder(cluster: MemoryCluster) -> tuple[Recorder, list[str]]:
    messages: list[str] = []
    return Recorder(cluster, NoObserver(), lambda message, **_: messages.append(message)), messages


def ready(harness: Harness) -> str:
    condition = harness.condition(BACKEND, "m", "Ready")
    assert condition is not None
    return condition[0]


async def sent(cluster: MemoryCluster, count: int) -> list[str]:
    """The names of the Events, once there are so many."""
    async with asyncio.timeout(30):
        while len(names := cluster.names(EVENT, "n")) < count:  # noqa: ASYNC110 - it has no signal
            await asyncio.sleep(0)
    return names


async def test_a_reconcile_does_not_wait_for_its_events() -> None:
    """With an apiserver that answers no Event, children and statuses are written all the same."""
    cluster = MemoryCluster()
    gate, create = asyncio.Event(), cluster.create

    async def slow(kind: Any, obj: Any) -> Any:
        await gate.wait()
        return await create(kind, obj)

    cluster.create = slow  # type: ignore[method-assign]  # an apiserver that is slow with one verb
    out = Recorder(cluster, NoObserver(), lambda *_, **__: None)
    harness = Harness(cluster, emit=out.put)
    task = asyncio.create_task(out.run())
    await harness.applied(backend())
    assert harness.condition(BACKEND, "m", "Ready") is not None
    harness.pods_ready("m-backend", 1)
    await harness.run()
    assert ready(harness) == "True"
    assert cluster.names(EVENT, "n") == []
    gate.set()
    assert await sent(cluster, 1)
    task.cancel()


async def test_a_new_resource_on_its_way_is_no_news() -> None:
    """The first Event reports that it serves; a thousand new resources add no more."""
    harness = await Harness().applied(backend())
    assert ready(harness) == "False"
    assert harness.cluster.names(EVENT, "n") == []
    harness.pods_ready("m-backend", 1)
    await harness.run()
    messages = [
        event["note"]
        for name in harness.cluster.names(EVENT, "n")
        if (event := harness.cluster.find(EVENT, "n", name))["action"] == "ReadyTrue"
    ]
    assert len(messages) == 1


async def test_a_new_resource_that_cannot_be_as_asked_is_told_at_once() -> None:
    harness = await Harness().applied(backend(batchPolicyRef="nobody"))
    assert ready(harness) == "False"
    assert harness.cluster.names(EVENT, "n") != []


async def test_events_go_out_in_order_and_one_that_is_refused_is_forgotten() -> None:
    cluster = MemoryCluster()
    refused = iter([None, Unavailable(503, "busy")])

    def fail(verb: str, *_: str) -> None:
        error = next(refused, None)
        if error is not None:
            raise error

    cluster.fail = fail
    out, messages = recorder(cluster)
    for number in range(4):
        await out.put(event(number))
    task = asyncio.create_task(out.run())
    assert await sent(cluster, 3) == ["e00000", "e00002", "e00003"]
    assert messages == ["event not written"]
    task.cancel()


async def test_of_too_many_the_oldest_are_dropped() -> None:
    """A flood takes bounded memory, and the newest Events are sent, and between them another namespace's."""
    cluster = MemoryCluster()
    out, messages = recorder(cluster)
    other = event(0)
    await out.put(other | {"metadata": {"namespace": "other", "name": "first"}})
    for number in range(KEPT):
        await out.put(event(number))
    await out.put(other | {"metadata": {"namespace": "other", "name": "second"}})
    task = asyncio.create_task(out.run())
    names = await sent(cluster, KEPT - 2)
    assert (names[0], names[-1]) == ("e00002", f"e{KEPT - 1:05}")
    assert [key[1] for key in cluster.objects][:4] == ["other", "n", "other", "n"]
    assert messages == ["event dropped"] * 2
    task.cancel()


async def test_one_cause_in_several_conditions_is_one_event() -> None:
    """A crash makes Ready, ModelLoaded and Stalled say the same; the Event is Ready's."""
    harness = await Harness().applied(backend())
    (name,) = harness.pods_ready("m-backend", 1)
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}
    harness.cluster.edit(
        POD, "n", name, lambda live: live.update(status=status | {"containerStatuses": [CRASH]})
    )
    harness.cluster.edit(DEPLOYMENT, "n", "m-backend", lambda live: live["status"].update(readyReplicas=0))
    await harness.run()
    events = [harness.cluster.find(EVENT, "n", name) for name in harness.cluster.names(EVENT, "n")]
    assert [
        (event["reason"], event["action"]) for event in events if event["reason"] == "ContainerCrashed"
    ] == [("ContainerCrashed", "ReadyFalse")]
