"""Pods of others that name a BatchPolicy by a label: their settings, and the policy's status."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_cli.commands import top
from penstock_operator import injected
from penstock_operator.desired import names
from penstock_operator.kinds import CONFIG_MAP, POD, POLICY
from penstock_operator.reconcile.context import LOAD_SETTLES
from penstock_operator.reconcile.manager import LOAD_INTERVAL
from penstock_operator.resource_metrics import ResourceMetrics
from tests.support.worlds.operator_harness import Harness, policy, settings

RECORD = "p-batching"
READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def pod(name: str = "fast-7d4b9c-1", *, sidecar: bool = True, **labels: str) -> dict[str, Any]:
    """A ready pod of the Deployment `fast`, as the apiserver has it."""
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "fast-7d4b9c",
        "uid": "rs",
        "controller": True,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": "n",
            "name": name,
            "labels": {"pod-template-hash": "7d4b9c", "penstock.dev/inject": "p", **labels},
            "ownerReferences": [owner],
        },
        "spec": {"nodeName": "one", "initContainers": [{"name": "penstock-sidecar"}] if sidecar else []},
    }


async def running(*objs: dict[str, Any]) -> Harness:
    """An operator, and these objects; pods are ready, and their ReplicaSet exists."""
    harness = Harness()
    replicaset = {"kind": "ReplicaSet", "metadata": {"uid": "rs", "name": "fast-7d4b9c", "namespace": "n"}}
    harness.cluster.objects["ReplicaSet", "n", "fast-7d4b9c"] = replicaset
    return await then(harness, *objs)


async def then(harness: Harness, *objs: dict[str, Any]) -> Harness:
    """The operator, after these are applied."""
    for obj in objs:
        harness.apply(obj)
        if obj["kind"] == "Pod":
            harness.cluster.edit(POD, "n", obj["metadata"]["name"], lambda pod: pod.update(status=READY))
    await harness.run()
    return harness


def workloads(harness: Harness) -> list[tuple[str, int]]:
    """The workloads in the policy's status, with the pods that obey it."""
    status = harness.cluster.find(POLICY, "n", "p").get("status") or {}
    return [(each["name"], each["pods"]) for each in status.get("workloads") or ()]


def report(harness: Harness, name: str = "fast-7d4b9c-1", load: int = 0) -> None:
    """The sidecar of a pod reports the settings that it would get."""
    made = harness.ctx.memory.made["n", RECORD]
    harness.report("Deployment/fast", name, version=made.version, digest=made.digest, load=load)


async def test_a_policy_that_pods_name_has_settings_for_them() -> None:
    """From the first pod on; a change makes another document; the status says who has taken it up."""
    harness = await running(policy(maxBatchSize=5))
    assert harness.cluster.names(CONFIG_MAP, "n") == []
    await then(harness, pod())
    first = settings(harness, RECORD)
    assert (first["batching"]["maxBatchSize"], first["backend"], first["version"]) == (5, "", 1)
    owners = harness.cluster.find(CONFIG_MAP, "n", RECORD)["metadata"]["ownerReferences"]
    assert [owner["name"] for owner in owners] == ["p"]
    assert workloads(harness) == [("Deployment/fast", 0)]
    assert harness.condition(POLICY, "p", "Ready") == ("False", "Applying")
    report(harness)
    await harness.run()
    assert workloads(harness) == [("Deployment/fast", 1)]
    assert harness.condition(POLICY, "p", "Ready") == ("True", "Applied")
    await then(harness, policy(maxBatchSize=6))
    assert settings(harness, RECORD)["batching"]["maxBatchSize"] == 6
    assert workloads(harness) == [("Deployment/fast", 0)]
    harness.cluster.remove(POD, "n", "fast-7d4b9c-1")
    await harness.run()
    assert workloads(harness) == []
    assert harness.ctx.reports.of_backend("n", "Deployment/fast") == {}
    # NB: pods that come while the operator is away start from it.
    assert settings(harness, RECORD)["batching"]["maxBatchSize"] == 6


async def test_the_queues_of_workloads_are_in_the_status_the_metrics_and_top() -> None:
    """As a backend's: when they have moved, and not before a new operator knows them."""
    harness = await running(policy(maxBatchSize=5), pod(), pod("fast-7d4b9c-2"))

    def shown() -> list[str]:
        stored = harness.cluster.find(POLICY, "n", "p")
        lines = top.page([], [stored], everywhere=True, width=200)
        return [dict(zip(lines[0].split(), line.split(), strict=True))["QUEUED"] for line in lines[1:]]

    def load(items: int) -> None:
        for name in ("fast-7d4b9c-1", "fast-7d4b9c-2"):
            report(harness, name, load=items)

    assert shown() == ["0"]
    await harness.turn(LOAD_SETTLES)
    load(3)
    await harness.run()
    load(20)
    await harness.turn(LOAD_INTERVAL)
    load(20)
    await harness.run()
    assert shown() == ["40"]
    metrics = ResourceMetrics(harness.ctx.store, harness.ctx.reports, harness.ctx.memory.scaled).text()
    series = 'penstock_operator_workload_items{namespace="n",kind="Deployment",name="fast",state="queued"} 40'
    assert series in metrics.splitlines()
    harness = await harness.restart()
    load(0)
    await harness.run()
    assert shown() == ["40"]
    await harness.turn(LOAD_SETTLES)
    load(0)
    await harness.run()
    assert shown() == ["0"]
    for name in ("fast-7d4b9c-1", "fast-7d4b9c-2"):
        harness.cluster.remove(POD, "n", name)
    await harness.run()
    assert shown() == []


async def test_pods_outlive_their_policy() -> None:
    """They keep its settings, also of a new operator, if these can be read; with the last pod they go."""
    harness = await running(policy(maxBatchSize=5), pod(), pod("fast-7d4b9c-2"))
    harness.cluster.remove(POLICY, "n", "p")
    await harness.run()
    assert settings(harness, RECORD)["batching"]["maxBatchSize"] == 5
    assert not harness.cluster.find(CONFIG_MAP, "n", RECORD)["metadata"].get("ownerReferences")
    harness = await harness.restart()
    assert settings(harness, RECORD)["batching"]["maxBatchSize"] == 5
    torn = {names.SETTINGS_KEY: '{"v": 1, "version": 7, "batching": {"maxBatchSize": 0}}'}
    harness.cluster.edit(CONFIG_MAP, "n", RECORD, lambda live: live.update(data=torn))
    harness = await harness.restart()
    assert settings(harness, RECORD)["batching"]["maxBatchSize"] == 32
    writes = len(harness.cluster.writes)
    harness = await harness.restart()
    assert len(harness.cluster.writes) == writes
    for name in ("fast-7d4b9c-1", "fast-7d4b9c-2"):
        assert (CONFIG_MAP.kind, "n", RECORD) in harness.cluster.objects
        harness.cluster.remove(POD, "n", name)
        await harness.run()
    assert (CONFIG_MAP.kind, "n", RECORD) not in harness.cluster.objects


async def test_a_policy_that_is_not_there_is_said_at_the_pod_once() -> None:
    """With the names that there are; `default` needs none."""
    other = policy(maxBatchSize=5) | {"metadata": {"namespace": "n", "name": "q"}}
    harness = await running(other, pod())
    assert settings(harness, RECORD)["batching"]["maxBatchSize"] == 32
    await then(harness, pod("fast-7d4b9c-2"), pod("plain", **{"penstock.dev/inject": "default"}))
    events = [obj for (kind, *_), obj in harness.cluster.objects.items() if kind == "Event"]
    (event,) = [event for event in events if event["regarding"]["kind"] == "Pod"]
    assert (event["regarding"]["name"], event["type"]) == ("fast-7d4b9c-1", "Warning")
    assert event["note"] == (
        "there is no BatchPolicy p (there are: q): until there is, the sidecar has the defaults"
    )


async def test_the_status_of_each_policy_has_the_names_of_all() -> None:
    """By which the API server refuses others; not those that go, and none if they are too many."""
    harness = await running(policy("p"), policy("q"), policy("r"))

    def named(*policies: str) -> set[tuple[str, ...] | None]:
        found = [harness.cluster.find(POLICY, "n", name)["status"].get("policies") for name in policies]
        return {each and tuple(each) for each in found}

    assert named("p", "q", "r") == {("p", "q", "r")}
    writes = len(harness.cluster.writes)
    harness = await harness.restart()
    assert len(harness.cluster.writes) == writes
    harness.cluster.edit(POLICY, "n", "r", lambda live: live["metadata"].update(deletionTimestamp="now"))
    await then(harness, policy("q", maxBatchSize=0))
    assert harness.condition(POLICY, "q", "Ready") == ("False", "Unreadable")
    assert (named("p"), named("q")) == ({("p", "q")}, {None})
    harness.cluster.remove(POLICY, "n", "q")
    await harness.run()
    assert named("p") == {("p",)}
    await then(harness, *(policy(f"p-{number}") for number in range(99)))
    (listed,) = named("p", "p-98")
    assert len(listed or ()) == 100
    await then(harness, policy("one-more"))
    assert named("p", "p-98", "one-more") == {None}


async def test_a_policy_that_changed_while_the_operator_was_away_is_there_for_the_next_pods() -> None:
    """They start from its ConfigMap, also if no pod is there at the operator's start."""
    harness = await running(policy(maxBatchSize=5), pod())
    harness.cluster.remove(POD, "n", "fast-7d4b9c-1")
    await harness.run()
    harness.stop()
    harness.cluster.user_applies(policy(maxBatchSize=6))
    harness = Harness(harness.cluster, harness.clock)
    await harness.manager.sync()
    await harness.run()
    assert settings(harness, RECORD)["batching"]["maxBatchSize"] == 6


async def test_a_pod_that_has_ended_or_is_going_does_not_count() -> None:
    """One that waits for a node does: without the ConfigMap it could not start."""
    harness = await running(policy(), pod())
    for change in ({"phase": "Pending"}, {"phase": "Succeeded"}):
        harness.cluster.edit(POD, "n", "fast-7d4b9c-1", lambda live, to=change: live.update(status=to))  # type: ignore[misc]
        await harness.run()
        assert workloads(harness) == ([("Deployment/fast", 0)] if change["phase"] == "Pending" else [])


async def test_a_missed_end_of_such_a_pod_is_found() -> None:
    """A list of metadata drops it, and leaves those that are there."""
    harness = await running(policy(), pod(), pod("fast-7d4b9c-2"))
    harness.stalled.add("Pod")
    harness.cluster.remove(POD, "n", "fast-7d4b9c-1")
    assert (await harness.manager.relist()).dropped == 1
    assert [pod["metadata"]["name"] for pod in harness.ctx.store.all(POD)] == ["fast-7d4b9c-2"]


async def test_somebodys_own_object_of_that_name_stays() -> None:
    """The policy's status says it, and is Ready again once the name is free."""
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "n", "name": RECORD}}
    harness = await running(theirs | {"data": {"a": "b"}}, policy(), pod())
    assert harness.condition(POLICY, "p", "Ready") == ("False", "NameTaken")
    assert harness.cluster.find(CONFIG_MAP, "n", RECORD)["data"] == {"a": "b"}
    harness.cluster.remove(CONFIG_MAP, "n", RECORD)
    await harness.turn(40)
    report(harness)
    await harness.run()
    assert harness.condition(POLICY, "p", "Ready") == ("True", "Applied")


@pytest.mark.parametrize(
    "plain", [pod(sidecar=False), pod(**{"app.kubernetes.io/managed-by": "penstock"})], ids=["plain", "ours"]
)
async def test_a_pod_without_an_injected_sidecar_does_not_count(plain: dict[str, Any]) -> None:
    """The label alone makes no settings, on a pod that is older than it, or one that we render."""
    harness = await running(policy(), plain)
    assert (workloads(harness), harness.cluster.names(CONFIG_MAP, "n")) == ([], [])


async def test_an_injected_pod_is_not_a_backends_whatever_its_labels_say() -> None:
    """The label of a backend alone does not make it one of its pods."""
    harness = await running(policy(), pod(**{"penstock.dev/backend": "m"}))
    assert harness.ctx.view.backend_pods("n", "m") == []


def test_the_workload_of_a_pod() -> None:
    """A Deployment by its ReplicaSet and the hash of the template, any other owner as it is, or the pod."""
    assert injected.workload_of(pod()) == "Deployment/fast"
    assert injected.workload_of(pod(**{"pod-template-hash": "other"})) == "ReplicaSet/fast-7d4b9c"
    bare = pod()
    del bare["metadata"]["ownerReferences"]
    assert injected.workload_of(bare) == "Pod/fast-7d4b9c-1"
