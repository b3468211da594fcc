"""Who is woken by what: late events, ports, routers' pods, users of a backend."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock_operator.errors import Conflict, Rejected
from penstock_operator.kinds import BACKEND, CONFIG_MAP, DEPLOYMENT, ENDPOINT, POD, SERVICE, SPLIT
from tests.support.worlds.operator_harness import Harness, backend, endpoint, policy, split


def document_of(harness: Harness, name: str = "penstock-router-settings") -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        harness.cluster.find(CONFIG_MAP, "n", name)["data"]["settings.json"]
    )
    return document


class Late(Harness):
    """A harness whose watch lags: events wait until `deliver`."""

    def __init__(self) -> None:
        self.waiting: list[tuple[str, dict[str, Any]]] = []
        super().__init__()

    def _event(self, kind: str, obj: dict[str, Any]) -> None:
        self.waiting.append((kind, obj))

    async def deliver(self) -> None:
        """The watch's events arrive, and are worked on, until none is left."""
        while self.waiting:
            events, self.waiting = self.waiting, []
            for kind, obj in events:
                super()._event(kind, obj)
            await self.run()


@pytest.mark.parametrize("written", ["status", "scale"])
async def test_a_change_that_our_own_write_brought_back_is_acted_on(written: str) -> None:
    """The answer to a write may hold a user's newer change; the watch then brings nothing new."""
    harness = Late()
    scaling = {"targetLoad": 10} if written == "scale" else None
    more = {"autoscaling": scaling, "replicas": 1} if scaling else {}
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
    """A Deployment became ready while we wrote it: its endpoint is reconciled."""
    harness = Late()
    harness.apply(backend())
    harness.apply(endpoint())
    await harness.deliver()
    routers = harness.pods_ready("penstock-router", 1)
    await harness.deliver()
    harness.router_report(routers[0], ["e"], version=document_of(harness)["version"])
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


async def test_a_status_that_met_a_conflict_is_written_again() -> None:
    """After a 409 on an object that is still the same one its status is written all the same."""
    harness = await Harness().applied(backend())

    def fail(verb: str, *_call: str) -> None:
        if verb == "status":
            harness.cluster.fail = lambda *_: None
            raise Conflict(409, "the object has been modified")

    harness.cluster.fail = fail
    harness.pods_ready("m-backend", 1)
    await harness.run()
    await harness.turn(1)
    assert harness.condition(BACKEND, "m", "Ready") == ("True", "Serving")


async def test_the_router_follows_the_port_of_an_endpoints_service() -> None:
    """The Service's targetPort is the record: whichever client changes it, the routers get the same port."""
    harness = await Harness().applied(backend(), endpoint())
    harness.cluster.edit(SERVICE, "n", "e", lambda live: live["spec"]["ports"][0].update(targetPort=20007))
    await harness.run()
    live = harness.cluster.find(SERVICE, "n", "e")["spec"]["ports"][0]["targetPort"]
    assert document_of(harness)["endpoints"][0]["port"] == live


async def test_an_endpoint_whose_port_an_older_one_took_moves() -> None:
    """A hand edit puts one endpoint on another's port: both serve, on ports of their own."""
    harness = await Harness().applied(backend(), endpoint("a"))
    await harness.applied(endpoint("b"))
    other = harness.cluster.find(SERVICE, "n", "b")["spec"]["ports"][0]["targetPort"]
    harness.cluster.edit(SERVICE, "n", "a", lambda live: live["spec"]["ports"][0].update(targetPort=other))
    await harness.run()
    live = {name: harness.cluster.find(SERVICE, "n", name)["spec"]["ports"][0]["targetPort"] for name in "ab"}
    assert len(set(live.values())) == 2
    assert {endpoint["name"]: endpoint["port"] for endpoint in document_of(harness)["endpoints"]} == live


async def test_a_router_pod_that_becomes_ready_last_is_told_to_splits_too() -> None:
    """Reports come first, readiness a moment later: endpoint and split do not wait for the next re-list."""
    harness = await Harness().applied(backend(), endpoint(), split(m=1))
    harness.pods_ready("m-backend", 1)
    routers = harness.pods_ready("penstock-router", 1)
    harness.cluster.edit(POD, "n", routers[0], lambda pod: pod["status"].pop("conditions"))
    harness.cluster.edit(DEPLOYMENT, "n", "penstock-router", lambda live: live.pop("status"))
    await harness.run()
    harness.router_report(routers[0], ["e"], version=document_of(harness)["version"])
    await harness.run()
    assert harness.condition(SPLIT, "s", "Ready") == ("False", "RouterStarting")
    harness.pods_ready("penstock-router", 1)
    await harness.run()
    for kind, name in ((ENDPOINT, "e"), (SPLIT, "s")):
        assert (harness.condition(kind, name, "Ready") or ("",))[0] == "True", kind.kind


async def test_why_a_router_does_not_start_is_told_at_once() -> None:
    """An image that cannot be pulled, pods that a quota refuses: the endpoint says so."""
    harness = await Harness().applied(backend(), endpoint())
    refused = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}
    harness.cluster.edit(
        DEPLOYMENT, "n", "penstock-router",
        lambda live: live.update(
            status={"observedGeneration": live["metadata"]["generation"], "conditions": [refused]}
        ),
    )  # fmt: skip
    await harness.run()
    assert harness.condition(ENDPOINT, "e", "RouterReady") == ("False", "PodsRefused")
    harness.cluster.edit(DEPLOYMENT, "n", "penstock-router", lambda live: live.pop("status"))
    routers = harness.pods_ready("penstock-router", 1)
    await harness.run()
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    harness.cluster.edit(
        POD, "n", routers[0],
        lambda pod: pod.update(
            status={"phase": "Pending", "containerStatuses": [{"name": "router", "state": waiting}]}
        ),
    )  # fmt: skip
    await harness.run()
    assert harness.condition(ENDPOINT, "e", "RouterReady") == ("False", "ImagePullFailed")


async def test_used_by_follows_splits_that_come_and_go() -> None:
    """Also of the backend that a split displaces, and of those that a younger split brings in its place."""
    harness = Harness()
    for name in ("m", "one", "two"):
        harness.apply(backend(name))
    await harness.applied(endpoint())

    def used_by() -> dict[str, list[str]]:
        return {
            name: harness.cluster.find(BACKEND, "n", name)["status"].get("usedBy", [])
            for name in ("m", "one", "two")
        }

    await harness.applied(split("s", one=1))
    assert used_by() == {"m": ["ModelEndpoint/e"], "one": ["TrafficSplit/s"], "two": []}
    await harness.applied(split("younger", two=1))
    harness.cluster.remove(SPLIT, "n", "s")
    await harness.run()
    assert used_by() == {"m": ["ModelEndpoint/e"], "one": [], "two": ["TrafficSplit/younger"]}


async def test_used_by_follows_the_weights_that_a_deleted_split_left() -> None:
    """They end when the endpoint's own backend is ready: its former users are reconciled."""
    harness = Harness()
    for name in ("m", "one"):
        harness.apply(backend(name))
    await harness.applied(endpoint(), split(one=1))
    harness.pods_ready("one-backend", 1)
    await harness.run()
    harness.cluster.remove(SPLIT, "n", "s")
    await harness.run()
    assert harness.cluster.find(BACKEND, "n", "one")["status"]["usedBy"] == ["ModelEndpoint/e"]
    harness.pods_ready("m-backend", 1)
    await harness.run()
    assert harness.cluster.find(BACKEND, "n", "one")["status"].get("usedBy", []) == []
    assert harness.cluster.find(BACKEND, "n", "m")["status"]["usedBy"] == ["ModelEndpoint/e"]


async def test_an_endpoint_whose_new_backend_is_not_there_says_so() -> None:
    """The old one serves on; Ready would be a claim about the new one, which is missing, or not ready yet."""
    harness = await Harness().applied(backend(), endpoint())
    harness.pods_ready("m-backend", 1)
    routers = harness.pods_ready("penstock-router", 1)
    await harness.run()
    harness.router_report(routers[0], ["e"], version=document_of(harness)["version"])
    await harness.run()
    assert harness.condition(ENDPOINT, "e", "Ready") == ("True", "Serving")
    await harness.applied(endpoint(backend="new"))
    assert harness.condition(ENDPOINT, "e", "Ready") == ("False", "BackendMissing")
    assert [backend["name"] for backend in document_of(harness)["endpoints"][0]["backends"]] == ["m"]
    await harness.applied(backend("new"))
    assert harness.condition(ENDPOINT, "e", "Ready") == ("False", "BackendNotReady")
    harness.pods_ready("new-backend", 1)
    await harness.run()
    harness.router_report(routers[0], ["e"], version=document_of(harness)["version"])
    await harness.run()
    assert harness.condition(ENDPOINT, "e", "Ready") == ("True", "Serving")
    assert [backend["name"] for backend in document_of(harness)["endpoints"][0]["backends"]] == ["new"]


@pytest.mark.parametrize("cause", ["suspended", "refused", "taken"])
async def test_settings_that_are_not_recorded_do_not_count_on(cause: str) -> None:
    """Pods get settings whose ConfigMap cannot be written, too, and no look raises their version."""
    harness = Harness()

    def refuse(verb: str, kind: str, *_call: str) -> None:
        if cause == "refused" and (verb, kind) == ("apply", "ConfigMap"):
            raise Rejected(403, "exceeded quota: configmaps=1")

    harness.cluster.fail = refuse
    if cause == "taken":
        harness.apply({"apiVersion": "v1", "kind": "ConfigMap", "data": {"settings.json": "mine"},
                       "metadata": {"namespace": "n", "name": "m-backend-settings"}})  # fmt: skip
    await harness.applied(backend(suspend=cause == "suspended"))
    harness.cluster.writes.clear()
    for _ in range(5):
        harness.manager.enqueue_all()
        await harness.turn(31)
    assert [write for write in harness.cluster.writes if write[0] == "status"] == []
    assert harness.cluster.find(BACKEND, "n", "m")["status"]["settingsVersion"] == 1
    assert harness.ctx.memory.made["n", "m-backend-settings"].version == 1


async def test_a_shared_object_that_lost_its_label_is_mended() -> None:
    """Owner references decide that it is one of our objects, whatever its labels."""
    harness = await Harness().applied(backend(), endpoint())
    harness.cluster.edit(SERVICE, "n", "penstock-router", lambda live: live["metadata"].pop("labels"))
    await harness.run()
    labels = harness.cluster.find(SERVICE, "n", "penstock-router")["metadata"].get("labels") or {}
    assert labels.get("app.kubernetes.io/managed-by") == "penstock"
    assert (harness.condition(ENDPOINT, "e", "RouterReady") or ("", ""))[1] != "NameTaken"


async def test_nothing_is_kept_of_a_namespace_that_is_gone() -> None:
    """Namespaces come and go for weeks: neither plans nor parsed resources of them stay."""
    harness = await Harness().applied(backend(), endpoint(), split(m=1))
    for kind, name in ((SPLIT, "s"), (ENDPOINT, "e"), (BACKEND, "m")):
        harness.cluster.remove(kind, "n", name)
    await harness.run()
    view = harness.ctx.view
    assert (view._plans, view._backends, view._parsed, view._written) == ({}, {}, {}, {})


async def test_a_backend_has_its_share_from_its_first_ready_pod_on() -> None:
    """Before, the others have it; afterwards it keeps its share, whatever becomes of its pods."""

    def shares() -> dict[str, int]:
        return {
            backend["name"]: backend["weight"] for backend in document_of(harness)["endpoints"][0]["backends"]
        }

    harness = Harness()
    for obj in (backend(), backend("canary"), endpoint(), split(m=90, canary=10)):
        harness.apply(obj)
    await harness.run()
    assert shares() == {"m": 90, "canary": 10}  # none is ready: requests wait for the first
    harness.pods_ready("m-backend", 1)
    await harness.run()
    assert shares() == {"m": 90}
    (router,) = harness.pods_ready("penstock-router", 1)
    await harness.run()
    harness.router_report(router, ["e"], version=document_of(harness)["version"])
    await harness.run()
    assert harness.condition(SPLIT, "s", "Ready") == ("False", "WaitingForBackend")
    assert harness.condition(ENDPOINT, "e", "BackendsReady") == ("False", "BackendNotReady")
    again = await harness.restart()
    assert shares() == {"m": 90}
    again.pods_ready("canary-backend", 1)
    await again.run()
    assert shares() == {"m": 90, "canary": 10}
    await again.turn(9)  # an operator that has just started gives pods time to report before it writes
    again.pods_ready("canary-backend", 0)
    await again.run()
    last = await again.restart()
    assert shares() == {"m": 90, "canary": 10}
    last.router_report(router, ["e"], version=document_of(last)["version"])
    await last.run()
    assert last.condition(SPLIT, "s", "Ready") == ("True", "Applied")


@pytest.mark.parametrize("watch", ["before the answer", "behind it"])
async def test_an_endpoint_whose_backends_service_is_a_strangers_says_so(watch: str) -> None:
    """Its pods are ready, and no router finds them; as soon as the name is free, all is well.

    What the answer to a write has told, the watch does not tell again.
    """
    harness = Harness()
    stranger = {"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "n", "name": "m-backend"}}
    for obj in (stranger | {"spec": {"ports": [{"port": 1}]}}, backend(), backend("other"), endpoint()):
        harness.apply(obj)
    await harness.applied(split(m=1, other=1))
    harness.pods_ready("m-backend", 1)
    harness.pods_ready("other-backend", 1)
    harness.pods_ready("penstock-router", 1)
    await harness.run()
    assert harness.condition(ENDPOINT, "e", "BackendsReady") == ("False", "NoService")
    serving = harness.cluster.find(ENDPOINT, "n", "e")["status"]["backends"]
    assert {pod["name"]: pod["ready"] for pod in serving} == {"m": False, "other": True}
    harness.cluster.remove(SERVICE, "n", "m-backend")
    if watch == "behind it":
        harness.stalled.add(SERVICE.kind)
    await harness.turn(31)  # a name that is free again is not told of: it is looked at
    assert harness.condition(ENDPOINT, "e", "BackendsReady") == ("True", "PodsReady")


async def test_the_router_looks_again_when_a_backends_first_ready_time_is_written() -> None:
    """Its pods may be gone by then: nothing else would say that it has its share now."""
    harness = Harness()
    for obj in (backend(), backend("canary"), endpoint(), split(m=90, canary=10)):
        harness.apply(obj)
    await harness.run()
    harness.pods_ready("m-backend", 1)
    await harness.run()
    assert [backend["name"] for backend in document_of(harness)["endpoints"][0]["backends"]] == ["m"]

    def ready_once(live: dict[str, Any]) -> None:
        live["status"]["firstReadyTime"] = "2026-01-01T00:00:00Z"

    harness.cluster.edit(BACKEND, "n", "canary", ready_once)
    await harness.run()
    assert [backend["name"] for backend in document_of(harness)["endpoints"][0]["backends"]] == [
        "m",
        "canary",
    ]


async def test_the_routers_follow_where_a_model_takes_its_user_config() -> None:
    """They close that path to clients, from the change on and until another."""

    def model(**more: Any) -> dict[str, Any]:
        container = {
            "container": {"image": "model:1"},
            "protocol": "instances",
            "port": 8080,
            "readyPath": "/",
        }
        return {"model": container | more}

    harness = await Harness().applied(backend(), endpoint())
    assert document_of(harness)["endpoints"][0]["closed"] == []
    for path in ("/conf", "/other"):
        await harness.applied(backend(**model(reconfigurePath=path)))
        assert document_of(harness)["endpoints"][0]["closed"] == [path]


async def test_an_events_note_is_cut_in_bytes() -> None:
    """The apiserver refuses a note of more than 1024 bytes, however few characters they are."""
    harness = Harness()

    def refuse(verb: str, kind: str, *_call: str) -> None:
        if (verb, kind) == ("apply", "Deployment"):
            raise Rejected(422, "é" * 2000)

    harness.cluster.fail = refuse
    await harness.applied(backend())
    notes = [live["note"] for key, live in harness.cluster.objects.items() if key[0] == "Event"]
    assert notes
    assert max(len(note.encode()) for note in notes) <= 1024


@pytest.mark.parametrize("source", ["policy", "backend"])
async def test_an_endpoint_follows_the_default_timeout_of_its_backend(source: str) -> None:
    """Whether each request gets its endpoint's time depends on the backend's batching, or on its policy's."""
    harness = Harness()

    def gives(timeout: str) -> dict[str, Any]:
        batching = {"defaultTimeout": timeout}
        return policy(**batching) if source == "policy" else backend(batching=batching)

    harness.apply(gives("30s"))
    if source == "policy":
        harness.apply(backend(batchPolicyRef="p"))
    await harness.applied(endpoint(timeout="2m"))
    for pod in harness.pods_ready("m-backend", 1):
        harness.report("m", pod, version=1)
    harness.pods_ready("penstock-router", 1)
    harness.router_report("penstock-router-0", ["e"], version=1)
    await harness.run()

    def ready() -> dict[str, Any]:
        conditions = harness.cluster.find(ENDPOINT, "n", "e")["status"]["conditions"]
        found: dict[str, Any] = next(each for each in conditions if each["type"] == "Ready")
        return found

    assert ready()["reason"] == "TimeoutUnreachable", ready()
    await harness.applied(gives("2m"))
    assert ready()["reason"] == "Serving", ready()
