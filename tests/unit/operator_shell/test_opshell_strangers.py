"""What users write into the objects that the operator made decides nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock_operator.desired.deployment import ROLLS
from penstock_operator.kinds import BACKEND, CONFIG_MAP, DEPLOYMENT, ENDPOINT, ROLE_BINDING
from tests.support.worlds.memory_cluster import failing
from tests.support.worlds.operator_harness import backend, policy, serving, settings


@pytest.mark.parametrize("away", [False, True], ids=["operator there", "operator away"])
@pytest.mark.parametrize("version", [1, 2**53 - 1])
@pytest.mark.parametrize("name", ["m-backend-settings", "penstock-router-settings"])
async def test_a_strangers_settings_reach_no_pod(name: str, version: int, away: bool) -> None:
    """The operator sends what it made, whatever the ConfigMap has; it makes even an immutable one anew."""
    harness = await serving()
    ours = settings(harness, name)

    def diverted(live: dict[str, Any]) -> None:
        theirs = ours | {"version": version, "endpoints": [], "batching": {}}
        live["data"]["settings.json"] = json.dumps(theirs)
        live["immutable"] = True

    harness.events = not away
    harness.cluster.edit(CONFIG_MAP, "n", name, diverted)
    stranger = harness.cluster.find(CONFIG_MAP, "n", name)["metadata"]["uid"]
    if away:
        harness = await harness.restart()
    else:
        assert json.loads(harness.ctx.memory.made["n", name].document) == ours
    await harness.run()
    live = harness.cluster.find(CONFIG_MAP, "n", name)
    assert (live["immutable"], live["metadata"]["uid"] == stranger) == (False, False)
    made = json.loads(harness.ctx.memory.made["n", name].document)
    assert made | {"version": 0} == ours | {"version": 0}
    assert settings(harness, name) == made
    assert harness.errors == []


async def test_what_is_refused_for_another_reason_than_its_immutability_stays() -> None:
    """A policy of the cluster (its refusals are 422, too) costs no ConfigMap and no RoleBinding."""
    harness = await serving()
    kept = [(CONFIG_MAP, "m-backend-settings"), (ROLE_BINDING, "penstock-router")]

    def policy_of_the_cluster(verb: str, kind: str, *_: str) -> None:
        if verb == "apply" and kind in (CONFIG_MAP.kind, ROLE_BINDING.kind):
            raise failing(422, "denied by policy")

    harness.cluster.fail = policy_of_the_cluster
    before = [harness.cluster.find(kind, "n", name)["metadata"]["uid"] for kind, name in kept]
    for kind, name in kept:
        harness.cluster.edit(kind, "n", name, lambda live: live.update(data={}, subjects=[]))
    await harness.run()
    assert [harness.cluster.find(kind, "n", name)["metadata"]["uid"] for kind, name in kept] == before


async def test_a_paused_deployment_rolls_on() -> None:
    """What stops a Deployment's later changes is changed back, as are its replicas."""
    harness = await serving()
    stops = {"paused": True, "minReadySeconds": 2**31 - 2, "progressDeadlineSeconds": 2**31 - 1}
    for name in ("m-backend", "penstock-router"):
        harness.cluster.edit(DEPLOYMENT, "n", name, lambda live: live["spec"].update(stops))
    await harness.run()
    for name in ("m-backend", "penstock-router"):
        spec = harness.cluster.find(DEPLOYMENT, "n", name)["spec"]
        assert {field: spec.get(field) for field in stops}.items() <= ROLLS.items()


async def test_pods_with_a_strangers_settings_are_not_right_whatever_version_they_have() -> None:
    """Neither SettingsApplied nor RouterReady is True of them; of those that report our digest both are."""
    harness = await serving()
    router = next(key[2] for key in harness.cluster.objects if key[0] == "Pod" and "router" in key[2])
    made = harness.ctx.memory.made
    for digests, right in (
        (["x" * 32, "x" * 32], "False"),
        ([made["n", "m-backend-settings"].digest, made["n", "penstock-router-settings"].digest], "True"),
    ):
        harness.report("m", "m-backend-0", version=2**53 - 1, digest=digests[0])
        harness.router_report(router, ["e"], version=2**53 - 1, digest=digests[1])
        await harness.run()
        assert (harness.condition(BACKEND, "m", "SettingsApplied") or ("",))[0] == right
        assert (harness.condition(ENDPOINT, "e", "Ready") or ("",))[0] == right


@pytest.mark.parametrize("changed", [False, True])
async def test_a_suspended_backend_keeps_its_settings_by_their_digest(changed: bool) -> None:
    """A new operator believes the ConfigMap if the status names it; else it makes the spec's, and says so."""
    harness = await serving()
    ours = settings(harness)
    suspended = backend(batchPolicyRef="p", suspend=True)
    await harness.applied(suspended)
    await harness.applied(policy(maxBatchSize=9))
    assert json.loads(harness.ctx.memory.made["n", "m-backend-settings"].document) == ours
    harness.events = False
    if changed:
        bad = json.dumps(ours | {"userConfig": "stranger's"})
        harness.cluster.edit(
            CONFIG_MAP, "n", "m-backend-settings", lambda live: live.update(data={"settings.json": bad})
        )
    fresh = await harness.restart()
    made = json.loads(fresh.ctx.memory.made["n", "m-backend-settings"].document)
    assert (made["userConfig"], made["batching"]["maxBatchSize"]) == (None, 9 if changed else 8)
    await fresh.turn(9)
    status = fresh.cluster.find(BACKEND, "n", "m")["status"]
    said = next(each for each in status["conditions"] if each["type"] == "SettingsApplied")
    assert (said["reason"], "ConfigMap" in said["message"]) == ("Suspended", changed)
