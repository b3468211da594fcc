"""Who is woken by what: late events, ports, routers' pods, users of a backend."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock_operator.errors import Rejected
from penstock_operator.kinds import BACKEND, CONFIG_MAP, DEPLOYMENT, ENDPOINT, SERVICE
from tests.support.operator_harness import Harness, backend, endpoint


def told(harness: Harness, name: str = "penstock-router-settings") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(harness.cluster.find(CONFIG_MAP, "n", name)["data"]["settings.json"])
    return found


class Late(Harness):
    """A harness whose watch lags: events wait until `deliver`."""

    def __init__(self) -> None:
        self.waiting: list[tuple[str, dict[str, Any]]] = []
        super().__init__()

    def _event(self, kind: str, obj: dict[str, Any]) -> None:
        self.waiting.append((kind, obj))

    async def deliver(self) -> None:
        """What the watch has to tell arrives, and is worked on, until nothing is left."""
        while self.waiting:
            events, self.waiting = self.waiting, []
            for kind, obj in events:
                super()._event(kind, obj)
            await self.run()


@pytest.mark.parametrize("written", ["status", "scale"])
async def test_a_change_that_our_own_write_brought_back_is_acted_on(written: str) -> None:
    """The answer to a write may hold a user's newer change; the watch then has nothing new to tell of it."""
    harness = Late()
    scaling = {"targetLoad": 10} if written == "scale" else None
    more = {"autoscaling": scaling} if scaling else {}
    harness.apply(backend(**more))
    changed = backend(**more)
    changed["spec"]["model"]["container"]["image"] = "model:2"

    def meanwhile(verb: str, kind: str, *_call: str) -> None:
        if (verb, kind) == (written, "ModelBackend"):
            harness.cluster.fail = lambda *_: None
            harness.apply(changed)

    harness.cluster.fail = meanwhile
    await harness.deliver()
    containers = harness.cluster.find(DEPLOYMENT, "n", "m-backend")["spec"]["template"]["spec"]["containers"]
    assert containers[0]["image"] == "model:2"


async def test_autoscaling_that_our_own_write_brought_back_begins() -> None:
    """As above, for the other queue."""
    harness = Late()
    harness.apply(backend())

    def meanwhile(verb: str, kind: str, *_call: str) -> None:
        if (verb, kind) == ("status", "ModelBackend"):
            harness.cluster.fail = lambda *_: None
            harness.apply(backend(autoscaling={"targetLoad": 10}))

    harness.cluster.fail = meanwhile
    await harness.deliver()
    assert harness.condition(BACKEND, "m", "ScalingActive") is not None


async def test_readiness_that_our_own_apply_brought_back_is_told() -> None:
    """A Deployment became ready while we wrote it: the endpoint hears of it."""
    harness = Late()
    harness.apply(backend())
    harness.apply(endpoint())
    await harness.deliver()
    routers = harness.pods_ready("penstock-router", 1)
    await harness.deliver()
    harness.router_report(routers[0], ["e"], version=told(harness)["version"])
    await harness.deliver()
    assert harness.condition(ENDPOINT, "e", "BackendsReady") == ("False", "BackendNotReady")
    changed = backend()
    changed["spec"]["rollout"] = {"maxSurge": 2}
    harness.apply(changed)

    def meanwhile(verb: str, kind: str, *_call: str) -> None:
        if (verb, kind) == ("apply", "Deployment"):
            harness.cluster.fail = lambda *_: None
            harness.pods_ready("m-backend", 1)

    harness.cluster.fail = meanwhile
    await harness.deliver()
    assert harness.condition(ENDPOINT, "e", "BackendsReady") == ("True", "PodsReady")


@pytest.mark.parametrize("cause", ["suspended", "refused", "taken"])
async def test_settings_that_are_not_recorded_do_not_count_on(cause: str) -> None:
    """A version that no ConfigMap holds is in no status: else each look would raise it and write again."""
    harness = Harness()

    def refuse(verb: str, kind: str, *_call: str) -> None:
        if cause == "refused" and (verb, kind) == ("apply", "ConfigMap"):
            raise Rejected(403, "exceeded quota: configmaps=1")

    harness.cluster.fail = refuse
    if cause == "taken":
        harness.apply({"apiVersion": "v1", "kind": "ConfigMap", "data": {"settings.json": "mine"},
                       "metadata": {"namespace": "n", "name": "m-backend-settings"}})  # fmt: skip
    harness.apply(backend(suspend=cause == "suspended"))
    await harness.run()
    harness.cluster.writes.clear()
    for _ in range(5):
        harness.manager.enqueue_all()
        await harness.turn(31)
    assert [write for write in harness.cluster.writes if write[0] == "status"] == []
    assert harness.cluster.find(BACKEND, "n", "m")["status"].get("settingsVersion") is None


async def test_a_shared_object_that_lost_its_label_is_mended() -> None:
    """Its owners say that it is ours, whatever its labels."""
    harness = Harness()
    harness.apply(backend())
    harness.apply(endpoint())
    await harness.run()
    harness.cluster.edit(SERVICE, "n", "penstock-router", lambda live: live["metadata"].pop("labels"))
    await harness.run()
    labels = harness.cluster.find(SERVICE, "n", "penstock-router")["metadata"].get("labels") or {}
    assert labels.get("app.kubernetes.io/managed-by") == "penstock"
    assert (harness.condition(ENDPOINT, "e", "RouterReady") or ("", ""))[1] != "NameTaken"
