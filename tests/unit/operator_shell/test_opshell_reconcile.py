"""Reconcile on a Kubernetes in memory: what is applied appears, and a second run writes nothing."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from typing import Any

import pytest

from penstock_operator.desired import backend as rendering
from penstock_operator.errors import Rejected
from penstock_operator.kinds import (
    BACKEND,
    CHILDREN,
    CONFIG_MAP,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    ENDPOINT,
    POD,
    POLICY,
    ROLE_BINDING,
    SERVICE,
    SERVICE_ACCOUNT,
    SPLIT,
)
from tests.support.worlds.operator_harness import Harness, backend, endpoint, policy, serving, settings, split


def children(harness: Harness) -> list[tuple[str, str]]:
    kinds = {kind.kind for kind in CHILDREN}
    return sorted((key[0], key[2]) for key in harness.cluster.objects if key[0] in kinds)


async def test_a_backend_gets_its_children_in_one_run() -> None:
    """Deployment, Service, ServiceAccount and settings, owned by the backend, with our label."""
    harness = await Harness().applied(backend())
    assert children(harness) == [
        ("ConfigMap", "m-backend-settings"),
        ("Deployment", "m-backend"),
        ("NetworkPolicy", "m-backend"),
        ("Service", "m-backend"),
        ("ServiceAccount", "m-backend"),
    ]
    uid = harness.uid(BACKEND, "m")
    for kind in (DEPLOYMENT, SERVICE, SERVICE_ACCOUNT):
        metadata = harness.cluster.find(kind, "n", "m-backend")["metadata"]
        assert [ref["uid"] for ref in metadata["ownerReferences"]] == [uid]
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "penstock"
    assert settings(harness)["version"] == 1
    assert harness.errors == []


async def test_everything_becomes_ready_and_says_so() -> None:
    """All four kinds end with Ready=True for their own generation."""
    harness = await serving()
    for kind, name in ((BACKEND, "m"), (ENDPOINT, "e"), (SPLIT, "s"), (POLICY, "p")):
        assert (harness.condition(kind, name, "Ready") or ("", ""))[0] == "True", kind.kind
        status = harness.cluster.find(kind, "n", name)["status"]
        assert status["observedGeneration"] == harness.cluster.find(kind, "n", name)["metadata"]["generation"]
    assert harness.errors == []


async def test_a_second_run_writes_nothing() -> None:
    """Looking at everything again changes nothing, here and in a new process."""
    harness = await serving()
    harness.cluster.writes.clear()
    harness.manager.enqueue_all()
    await harness.run()
    assert harness.cluster.writes == []
    fresh = await harness.restart()
    assert fresh.cluster.writes == []
    routers = [key[2] for key in fresh.cluster.objects if key[0] == "Pod" and "router" in key[2]]
    fresh.report("m", "m-backend-0", version=settings(fresh)["version"])
    fresh.router_report(routers[0], ["e"], version=settings(fresh, "penstock-router-settings")["version"])
    await fresh.turn(9)
    assert fresh.cluster.writes == []
    assert fresh.errors == []


async def test_our_own_status_writes_wake_nobody_and_anybody_elses_is_put_right() -> None:
    """Such as a killed predecessor's that lands late; a run whose only write is a status ends there."""
    harness = await serving()
    queue = harness.manager.queue
    before = harness.cluster.find(BACKEND, "n", "m")["status"]
    harness.cluster.edit(BACKEND, "n", "m", lambda live: live["status"].update(replicas=9))
    assert len(queue) == 1
    key = await queue.get()
    await harness.manager.reconcile(key)
    queue.done(key)
    assert harness.cluster.find(BACKEND, "n", "m")["status"] == before
    assert key not in [await queue.get() for _ in range(len(queue))]


async def test_bookkeeping_of_the_apiserver_wakes_nobody() -> None:
    """A version that differs in nothing that anybody reads, such as its managers."""
    harness = await serving()
    harness.cluster.edit(BACKEND, "n", "m", lambda live: live["metadata"].update(selfLink="/x"))
    assert len(harness.manager.queue) == 0


async def test_hand_edited_children_are_mended() -> None:
    """Drift of any child wakes its owner, which puts it right; what others added stays."""
    harness = await serving()

    def scale_by_hand(live: dict[str, Any]) -> None:
        live["spec"]["replicas"] = 9
        live["metadata"].setdefault("annotations", {})["note"] = "mine"

    harness.cluster.edit(DEPLOYMENT, "n", "m-backend", scale_by_hand)
    harness.cluster.edit(SERVICE, "n", "e", lambda live: live["spec"]["ports"][0].update(targetPort=1))
    harness.cluster.edit(
        CONFIG_MAP, "n", "m-backend-settings", lambda live: live.update(data={"settings.json": "x"})
    )
    await harness.run()
    live = harness.cluster.find(DEPLOYMENT, "n", "m-backend")
    assert live["spec"]["replicas"] == 1
    assert live["metadata"]["annotations"]["note"] == "mine"
    assert harness.cluster.find(SERVICE, "n", "e")["spec"]["ports"][0]["targetPort"] >= 20000
    assert settings(harness)["batching"]["maxBatchSize"] == 8


async def test_children_are_rendered_only_when_something_has_changed_that_they_depend_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not for each report; but also for what comes while others are written, after it was compared."""
    harness = await serving()
    rendered: list[str] = []
    make, apply = rendering.backend_objects, harness.cluster.apply

    def counted(of: Any, **given: Any) -> Any:
        rendered.append(of.name)
        return make(of, **given)

    monkeypatch.setattr(rendering, "backend_objects", counted)
    harness.manager.enqueue_all()
    harness.report("m", "m-backend-0", version=settings(harness)["version"], load=7)
    await harness.run()
    assert rendered == []

    async def beside(kind: Any, obj: dict[str, Any]) -> dict[str, Any]:
        if kind == DEPLOYMENT and rendered == ["m"]:
            harness.cluster.edit(
                SERVICE, "n", "m-backend", lambda live: live["spec"]["ports"][0].update(targetPort=1)
            )
        return await apply(kind, obj)

    wanted = harness.cluster.find(SERVICE, "n", "m-backend")["spec"]
    monkeypatch.setattr(harness.cluster, "apply", beside)
    await harness.applied(backend(batchPolicyRef="p", replicas=2))
    assert harness.cluster.find(SERVICE, "n", "m-backend")["spec"] == wanted
    assert len(rendered) >= 2
    harness.ctx.memory.render = replace(harness.ctx.render, authorities="others")
    harness.manager.enqueue_all()
    await harness.run()
    assert "others" in harness.cluster.find(CONFIG_MAP, "n", "m-backend-settings")["data"].values()


async def test_a_deleted_child_comes_back() -> None:
    """Whoever deletes a child gets it again; the endpoint keeps its port."""
    harness = await serving()
    port = harness.cluster.find(SERVICE, "n", "e")["spec"]["ports"][0]["targetPort"]
    for kind, name in ((DEPLOYMENT, "m-backend"), (SERVICE, "e"), (ROLE_BINDING, "penstock-router")):
        harness.cluster.remove(kind, "n", name)
    await harness.run()
    assert harness.cluster.find(DEPLOYMENT, "n", "m-backend")
    assert harness.cluster.find(ROLE_BINDING, "n", "penstock-router")
    assert harness.cluster.find(SERVICE, "n", "e")["spec"]["ports"][0]["targetPort"] == port


async def test_a_field_taken_out_of_the_spec_leaves_the_child() -> None:
    """An environment variable that is removed from the backend is removed from the container."""
    harness = Harness()
    wanted = backend()
    wanted["spec"]["model"]["container"]["env"] = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    await harness.applied(wanted)

    def env() -> list[str]:
        containers = harness.cluster.find(DEPLOYMENT, "n", "m-backend")["spec"]["template"]["spec"][
            "containers"
        ]
        model = next(each for each in containers if each["name"] == "model")
        return [entry["name"] for entry in model.get("env", [])]

    assert {"A", "B"} <= set(env())
    del wanted["spec"]["model"]["container"]["env"][1]
    await harness.applied(wanted)
    assert "A" in env()
    assert "B" not in env()


async def test_the_disruption_budget_goes_with_the_second_replica() -> None:
    """Objects that are no longer desired are pruned, by owner uid."""
    harness = await Harness().applied(backend(replicas=2))
    assert harness.cluster.names(DISRUPTION_BUDGET, "n") == ["m-backend"]
    await harness.applied(backend(replicas=1))
    assert harness.cluster.names(DISRUPTION_BUDGET, "n") == []


async def test_a_strangers_service_is_left_alone_and_told() -> None:
    """NameTaken, with the name; the stranger's object is as it was; the rest is rendered."""
    harness = Harness()
    foreign = {
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "n", "name": "m-backend"},
        "spec": {"ports": [{"port": 1}]},
    }  # fmt: skip
    harness.apply(foreign)
    before = copy.deepcopy(harness.cluster.find(SERVICE, "n", "m-backend"))
    await harness.applied(backend())
    assert harness.cluster.find(SERVICE, "n", "m-backend") == before
    assert harness.condition(BACKEND, "m", "Ready") == ("False", "NameTaken")
    assert harness.cluster.find(DEPLOYMENT, "n", "m-backend")
    harness.cluster.remove(SERVICE, "n", "m-backend")
    await harness.turn(31)
    assert harness.condition(BACKEND, "m", "Ready") != ("False", "NameTaken")
    assert harness.cluster.find(SERVICE, "n", "m-backend")["spec"]["ports"][0]["port"] != 1


async def test_a_strangers_service_of_an_endpoints_name_stops_that_endpoint_only() -> None:
    """The other endpoint of the namespace serves on."""
    harness = await serving()
    harness.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "n", "name": "taken"},
                   "spec": {"ports": [{"port": 1}]}})  # fmt: skip
    harness.apply(endpoint("taken"))
    await harness.run()
    assert "NameTaken" in str(harness.cluster.find(ENDPOINT, "n", "taken")["status"])
    routers = [key[2] for key in harness.cluster.objects if key[0] == "Pod" and "router" in key[2]]
    version = settings(harness, "penstock-router-settings")["version"]
    harness.router_report(routers[0], ["e", "taken"], version=version)
    await harness.run()
    assert (harness.condition(ENDPOINT, "e", "Ready") or ("",))[0] == "True"


async def test_a_missing_policy_is_told_and_the_last_settings_stay() -> None:
    """The pods keep what they had; with the policy back all is well again, under a higher version."""
    harness = await serving()
    version = settings(harness)["version"]
    harness.cluster.remove(POLICY, "n", "p")
    await harness.run()
    assert settings(harness)["version"] == version
    assert settings(harness)["batching"]["maxBatchSize"] == 8
    assert harness.condition(BACKEND, "m", "Ready") == ("False", "BatchPolicyMissing")
    await harness.applied(policy(maxBatchSize=16))
    assert settings(harness)["version"] == version + 1
    assert settings(harness)["batching"]["maxBatchSize"] == 16


async def test_a_policy_that_was_never_there_leaves_the_defaults() -> None:
    """The pods start; the condition says what is missing."""
    harness = await Harness().applied(backend(batchPolicyRef="nope"))
    assert settings(harness)["batching"]["maxBatchSize"] == 32
    assert harness.condition(BACKEND, "m", "Ready") == ("False", "BatchPolicyMissing")


async def test_a_missing_backend_is_told_by_the_endpoint_and_mended_by_its_arrival() -> None:
    """BackendMissing on the endpoint and on the split, until the backend is there."""
    harness = await Harness().applied(endpoint(), split(m=1, other=1))
    assert "BackendMissing" in str(harness.cluster.find(ENDPOINT, "n", "e")["status"])
    assert "BackendMissing" in str(harness.cluster.find(SPLIT, "n", "s")["status"])
    await harness.applied(backend("m"), backend("other"))
    assert "BackendMissing" not in str(harness.cluster.find(ENDPOINT, "n", "e")["status"])
    assert "BackendMissing" not in str(harness.cluster.find(SPLIT, "n", "s")["status"])


async def test_a_split_changes_the_routers_settings_and_not_its_pods() -> None:
    """Weights are hot: a higher version, the same Deployment."""
    harness = await serving()
    await harness.applied(backend("other"))
    harness.pods_ready("other-backend", 1)
    await harness.run()
    version = settings(harness, "penstock-router-settings")["version"]
    generation = harness.cluster.find(DEPLOYMENT, "n", "penstock-router")["metadata"]["generation"]
    await harness.applied(split(m=90, other=10))
    document = settings(harness, "penstock-router-settings")
    assert document["version"] == version + 1
    assert {backend["name"]: backend["weight"] for backend in document["endpoints"][0]["backends"]} == {
        "m": 90,
        "other": 10,
    }
    assert harness.cluster.find(DEPLOYMENT, "n", "penstock-router")["metadata"]["generation"] == generation
    status = harness.cluster.find(BACKEND, "n", "other")["status"]
    assert "TrafficSplit/s" in status["usedBy"]


async def test_every_endpoint_owns_the_router_and_the_last_one_takes_it_along() -> None:
    """Deletion is by owner references alone."""
    harness = await Harness().applied(endpoint("a"), endpoint("b"))
    refs = harness.cluster.find(DEPLOYMENT, "n", "penstock-router")["metadata"]["ownerReferences"]
    assert [ref["name"] for ref in refs] == ["a", "b"]
    harness.cluster.remove(ENDPOINT, "n", "a")
    await harness.run()
    refs = harness.cluster.find(DEPLOYMENT, "n", "penstock-router")["metadata"]["ownerReferences"]
    assert [ref["name"] for ref in refs] == ["b"]
    assert harness.cluster.names(SERVICE, "n") == ["b", "penstock-router"]
    harness.cluster.remove(ENDPOINT, "n", "b")
    await harness.run()
    assert children(harness) == []


async def test_deleting_an_endpoint_leaves_the_backend() -> None:
    """References run only from a resource to what was rendered for it."""
    harness = await serving()
    harness.cluster.remove(ENDPOINT, "n", "e")
    await harness.run()
    assert harness.cluster.find(DEPLOYMENT, "n", "m-backend")
    assert harness.cluster.find(BACKEND, "n", "m")
    harness.cluster.remove(BACKEND, "n", "m")
    await harness.run()
    assert children(harness) == []
    assert harness.errors == []


async def test_the_drain_secret_survives_and_the_pods_are_not_rolled() -> None:
    """A new process takes the secret from the live Deployment."""
    harness = await serving()
    template = copy.deepcopy(harness.cluster.find(DEPLOYMENT, "n", "m-backend")["spec"]["template"])
    await harness.applied(policy(maxBatchSize=4))
    fresh = await harness.restart()
    assert fresh.cluster.find(DEPLOYMENT, "n", "m-backend")["spec"]["template"] == template
    assert "PENSTOCK_DRAIN_SECRET" in json.dumps(template)


async def test_a_suspended_backend_is_left_as_it_is() -> None:
    """Neither drift nor changes of the spec are acted on, until it is resumed."""
    harness = await serving()
    await harness.applied(backend(batchPolicyRef="p", suspend=True, replicas=3))
    harness.cluster.edit(DEPLOYMENT, "n", "m-backend", lambda live: live["spec"].update(replicas=5))
    await harness.run()
    assert harness.cluster.find(DEPLOYMENT, "n", "m-backend")["spec"]["replicas"] == 5
    await harness.applied(backend(batchPolicyRef="p", replicas=3))
    assert harness.cluster.find(DEPLOYMENT, "n", "m-backend")["spec"]["replicas"] == 3


async def test_an_unreadable_resource_is_told_and_stops_nobody() -> None:
    """A stored object that the schema would refuse has Ready=False with the path."""
    harness = await serving()
    await harness.applied({**backend("bad"), "spec": {"model": {"port": "many"}}}, endpoint("e2"))
    assert harness.condition(BACKEND, "bad", "Ready") == ("False", "Unreadable")
    assert harness.cluster.find(SERVICE, "n", "e2")
    assert harness.errors == []


async def test_a_stored_protocol_that_is_gone_serves_on_and_says_what_to_use() -> None:
    """After an upgrade its pods stay as they are, and the router goes on to send to them."""
    harness = await Harness().applied(backend(), endpoint())
    before = harness.cluster.find(CONFIG_MAP, "n", "penstock-router-settings")["data"]
    gone = backend()
    gone["spec"]["model"] = {**gone["spec"]["model"], "protocol": "envelope"}
    await harness.applied(gone)
    assert harness.condition(BACKEND, "m", "Ready") == ("False", "Unreadable")
    assert "envelope is gone: with instances" in str(harness.cluster.find(BACKEND, "n", "m")["status"])
    assert harness.cluster.find(DEPLOYMENT, "n", "m-backend")
    assert harness.cluster.find(CONFIG_MAP, "n", "penstock-router-settings")["data"] == before
    assert harness.errors == []


async def test_a_refused_child_is_told_in_the_servers_words_and_tried_again() -> None:
    """Quota, policy and webhook rejections are conditions."""
    harness = Harness()

    def refuse(verb: str, kind: str, namespace: str, name: str) -> None:
        if (verb, kind) == ("apply", "Deployment"):
            raise Rejected(403, "exceeded quota: pods=10")

    harness.cluster.fail = refuse
    await harness.applied(backend())
    assert harness.condition(BACKEND, "m", "Ready") == ("False", "QuotaExceeded")
    assert "exceeded quota: pods=10" in str(harness.cluster.find(BACKEND, "n", "m")["status"])
    harness.cluster.fail = lambda *_: None
    await harness.turn(31)
    assert harness.cluster.find(DEPLOYMENT, "n", "m-backend")


async def test_a_namespace_that_goes_away_is_left_in_peace() -> None:
    """Nothing can be created there any more; that is not reported as a fault."""
    harness = Harness()

    def refuse(verb: str, *_call: str) -> None:
        if verb == "apply":
            raise Rejected(403, 'services "e" is forbidden: unable to create new content in namespace n '
                                "because it is being terminated")  # fmt: skip

    harness.cluster.fail = refuse
    await harness.applied(backend(), endpoint())
    assert harness.errors == []
    assert [message for message, _ in harness.log if message == "child refused"] == []


# -- settings version rule ---------------------------------------------------------------------------------


async def test_the_settings_version_rises_only_when_the_bytes_change() -> None:
    """Rolling changes and re-runs leave it."""
    harness = await serving()
    version = settings(harness)["version"]
    changed = backend(batchPolicyRef="p")
    changed["spec"]["model"]["container"]["image"] = "model:2"
    await harness.applied(changed)
    assert settings(harness)["version"] == version
    await harness.applied(policy(maxBatchSize=9))
    assert settings(harness)["version"] == version + 1
    assert harness.cluster.find(BACKEND, "n", "m")["status"]["settingsVersion"] == version + 1


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_lost_record_is_made_again(restarted: bool) -> None:
    """The ConfigMap deleted: it holds what pods have; after a restart under a version above the status's."""
    harness = await serving()
    for size in (9, 10, 11):
        await harness.applied(policy(maxBatchSize=size))
    before = settings(harness)
    harness.events = not restarted
    harness.cluster.remove(CONFIG_MAP, "n", "m-backend-settings")
    harness = await harness.restart() if restarted else harness
    await harness.run()
    assert settings(harness) == before | {"version": before["version"] + restarted}


async def test_a_pod_that_knows_a_higher_version_raises_it() -> None:
    """After a restore of the cluster's store the pods still accept our settings."""
    harness = await serving()
    harness.report("m", "m-backend-0", version=40)
    await harness.run()
    assert settings(harness)["version"] == 41


async def test_settings_applied_follows_the_reports() -> None:
    """True only when every ready pod has reported the current version."""
    harness = await serving()
    assert (harness.condition(BACKEND, "m", "SettingsApplied") or ("",))[0] == "True"
    await harness.applied(policy(maxBatchSize=9))
    assert (harness.condition(BACKEND, "m", "SettingsApplied") or ("",))[0] == "False"
    harness.report("m", "m-backend-0", version=settings(harness)["version"])
    await harness.run()
    assert (harness.condition(BACKEND, "m", "SettingsApplied") or ("",))[0] == "True"


# -- replicas -----------------------------------------------------------------------------------------


async def test_replicas_written_through_scale_reach_the_deployment() -> None:
    """Kubectl scale and an HPA have one path."""
    harness = await serving()
    harness.cluster.scale(BACKEND, "n", "m", 4)
    await harness.run()
    assert harness.cluster.find(DEPLOYMENT, "n", "m-backend")["spec"]["replicas"] == 4


async def test_the_autoscaler_follows_the_load_up_and_later_down() -> None:
    """Up at once, down after the delay; each change is in status.scaling with its reason."""
    harness = Harness()
    scaling = {
        "minReplicas": 1,
        "maxReplicas": 4,
        "targetLoad": 10,
        "stableWindow": "10s",
        "downscaleDelay": "30s",
    }
    await harness.applied(backend(autoscaling=scaling))

    async def live_for(seconds: int, load: int) -> int:
        for _ in range(seconds):
            replicas = harness.cluster.find(BACKEND, "n", "m")["spec"]["replicas"]
            pods = harness.pods_ready("m-backend", replicas)
            for pod in pods:
                harness.report("m", pod, version=settings(harness)["version"], load=load // len(pods))
            await harness.turn(1)
        return int(harness.cluster.find(BACKEND, "n", "m")["spec"]["replicas"])

    assert await live_for(20, 30) == 3
    assert harness.cluster.find(DEPLOYMENT, "n", "m-backend")["spec"]["replicas"] == 3
    assert await live_for(90, 0) == 1
    changes = harness.cluster.find(BACKEND, "n", "m")["status"]["scaling"]
    assert changes[0]["to"] == 1
    assert any(entry["to"] == 3 for entry in changes)
    assert all(entry["reason"] for entry in changes)
    assert harness.errors == []


async def test_the_autoscaler_adopts_the_current_number_on_its_first_look() -> None:
    """Taking replicas out of Git afterwards does not drop the backend to one."""
    harness = Harness()
    wanted = backend(replicas=3, autoscaling={"targetLoad": 10, "maxReplicas": 5})
    await harness.applied(wanted)
    assert ("scale", "ModelBackend", "n", "m") in harness.cluster.writes
    del wanted["spec"]["replicas"]
    await harness.applied(wanted)
    assert harness.cluster.find(BACKEND, "n", "m")["spec"]["replicas"] == 3
    harness.cluster.writes.clear()
    await harness.turn(2)
    assert [write for write in harness.cluster.writes if write[0] == "scale"] == []


@pytest.mark.parametrize("pods", [0, 2])
async def test_a_restart_writes_nothing_to_a_backend_that_scales_by_itself(pods: int) -> None:
    """What the autoscaler said stands until it looked again, at reports of the pods that there are."""
    harness = await Harness().applied(backend(replicas=2, autoscaling={"minReplicas": 2, "targetLoad": 10}))

    async def second(operator: Harness) -> None:
        for pod in operator.pods_ready("m-backend", pods) if pods else ():
            operator.report("m", pod, version=settings(operator)["version"])
        await operator.turn(1)

    for _ in range(40):  # a load that is shown has been taken back by then
        await second(harness)
    metrics = harness.condition(BACKEND, "m", "MetricsAvailable")
    assert metrics == (("True", "ReportsReceived") if pods else ("False", "NoReports"))
    harness.cluster.writes.clear()
    fresh = await harness.restart()
    for _ in range(20):
        await second(fresh)
    assert fresh.cluster.writes == []


async def test_another_scaler_is_told_and_not_fought() -> None:
    """ForeignScaler: another client writes /scale, too."""
    harness = await Harness().applied(backend(autoscaling={"targetLoad": 10, "maxReplicas": 5}))
    harness.cluster.scale(BACKEND, "n", "m", 4)
    await harness.turn(4)
    assert harness.condition(BACKEND, "m", "ScalingActive") == ("False", "ForeignScaler")
    live = harness.cluster.find(BACKEND, "n", "m")
    assert live["spec"]["replicas"] == 4
    (said,) = (each for each in live["status"]["conditions"] if each["type"] == "ScalingActive")
    assert said["message"].endswith(
        "writes the scale subresource too: its 4 stands for 5m from when it was seen; keep one of the two"
    )
    for _ in range(160):
        await harness.turn(2)
    assert (harness.condition(BACKEND, "m", "ScalingActive") or ("",))[0] == "True"
    assert harness.errors == []


@pytest.mark.long
async def test_beside_a_scaler_that_insists_the_number_changes_less_and_less() -> None:
    """An HPA writes its 4 within 15 s, a person writes 3 once, GitOps applies now and then; all is told."""
    harness = Harness()
    manifest = backend(autoscaling={"targetLoad": 10, "maxReplicas": 5, "downscaleDelay": "0s"})
    await harness.applied(manifest)
    takeovers: list[int] = []
    reasons = []
    for step in range(2 * 3600 // 15):
        if harness.cluster.find(BACKEND, "n", "m")["spec"]["replicas"] != 4:
            harness.cluster.scale(BACKEND, "n", "m", 4)
        if step == 100:
            harness.cluster.scale(BACKEND, "n", "m", 3, manager="kubectl")
        if not step % 20:
            harness.apply(manifest)
        harness.cluster.writes.clear()
        for pod in harness.pods_ready("m-backend", 1):
            harness.report("m", pod, version=settings(harness)["version"])
        for seconds in (3, 12):
            await harness.turn(seconds)
        takeovers += [step * 15 for write in harness.cluster.writes if write[0] == "scale"]
        reasons.append((harness.condition(BACKEND, "m", "ScalingActive") or ("", ""))[1])
    assert len(takeovers) <= 5  # every five minutes would be 24
    assert sum(at <= 3600 for at in takeovers) <= 4
    assert reasons.count("ForeignScaler") >= 0.95 * len(reasons)
    assert harness.errors == []
    # Once it is gone for as long as it was let stand, it is a new one.
    for _ in range(300):
        await harness.turn(30)
    harness.cluster.scale(BACKEND, "n", "m", 2)
    for _ in range(8):
        await harness.turn(30)
    assert harness.condition(BACKEND, "m", "ScalingActive") == ("False", "ForeignScaler")
    for _ in range(4):
        await harness.turn(30)
    assert harness.condition(BACKEND, "m", "ScalingActive") != ("False", "ForeignScaler")


async def test_an_external_scaler_is_recommended_to_and_never_written_over() -> None:
    """For an hour in which it follows late, or not at all; nothing is said against it."""
    harness = Harness()
    external = {"mode": "External", "targetLoad": 10, "maxReplicas": 5, "minReplicas": 0}
    await harness.applied(backend(autoscaling=external | {"scaleToZero": {"after": "10s"}}))
    for replicas, load in ((1, 35), (4, 35), (2, 0), (0, 0)):
        harness.cluster.scale(BACKEND, "n", "m", replicas)
        await harness.run()
        harness.cluster.writes.clear()
        pods = harness.pods_ready("m-backend", replicas)
        for _ in range(450):
            for number, pod in enumerate(pods):
                harness.report("m", pod, version=settings(harness)["version"], load=0 if number else load)
            await harness.turn(2)
        assert [write for write in harness.cluster.writes if write[0] == "scale"] == []
        assert harness.cluster.find(BACKEND, "n", "m")["spec"]["replicas"] == replicas
        status = harness.cluster.find(BACKEND, "n", "m")["status"]
        assert status["desiredReplicas"] == min(math.ceil(load / 10) or 1, replicas * 4)
        assert "scaling" not in status or status["scaling"] == []
        assert (harness.condition(BACKEND, "m", "ScalingActive") or ("",))[0] == "True"
    assert harness.errors == []


async def test_pods_that_were_evicted_are_no_silent_ones() -> None:
    """They stay as Failed objects for long; counted as silent they would hold the replicas for good."""
    harness = await Harness().applied(backend(replicas=3, autoscaling={"targetLoad": 10, "maxReplicas": 5}))
    pods = harness.pods_ready("m-backend", 3)
    for pod in pods:
        harness.report("m", pod, version=settings(harness)["version"])
    await harness.turn(2)
    for pod in pods[1:]:
        harness.cluster.edit(POD, "n", pod, lambda live: live.update(status={"phase": "Failed"}))
    for _ in range(20):
        harness.report("m", pods[0], version=settings(harness)["version"], load=50)
        await harness.turn(1)
    assert harness.condition(BACKEND, "m", "MetricsAvailable") == ("True", "ReportsReceived")
    assert harness.cluster.find(BACKEND, "n", "m")["spec"]["replicas"] == 5
