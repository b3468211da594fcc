"""Resources of many bytes cost their own object alone, and their namespace's room alone, at each start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from penstock_operator.desired import labels
from penstock_operator.kinds import BACKEND, CONFIG_MAP, DEPLOYMENT
from penstock_operator.kube.cluster import KubernetesCluster, login
from penstock_operator.kube.pages import PAGE_BYTES
from penstock_operator.reconcile.relist import relist_kind
from penstock_operator.store import NAMESPACE_BYTES, UNREADABLE, ObjectKey, Store
from tests.support.processes.operator_process import Process, until
from tests.support.processes.tiny_apiserver import TinyApiserver
from tests.support.worlds.operator_harness import Harness, backend, serving

Obj = dict[str, Any]
VALUES = Path(__file__).parents[3] / "helm/penstock/values.yaml"
MIB = 1024 * 1024
TOO_MUCH = "x" * (MIB + MIB // 4)


def child(kind: str, version: str, name: str, namespace: str = "n", **more: Any) -> Obj:
    """An object with our labels that claims to belong to a backend."""
    owner = {"apiVersion": "penstock.dev/v1alpha1", "kind": "ModelBackend", "name": "m", "uid": "forged"}
    metadata = {"namespace": namespace, "name": name, "labels": labels.of_backend("m")}
    metadata |= {"ownerReferences": [owner], "annotations": {"theirs": "x" * 250_000}}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **more}


def peak_of(pid: int) -> int:
    """The most MiB that a process has had resident."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) // 1024


async def test_a_resource_of_too_many_bytes_is_unreadable_and_its_neighbours_serve() -> None:
    """The condition says what was expected and found, and where; made smaller, it is read."""
    harness = await Harness().applied(backend("big", userConfig={"a": TOO_MUCH, "b": 1}), backend("good"))
    assert not harness.errors
    assert harness.condition(BACKEND, "big", "Ready") == ("False", "Unreadable")
    message = harness.cluster.find(BACKEND, "n", "big")["status"]["conditions"][0]["message"]
    assert "spec.userConfig: expected at most 1024 KiB in an object, found 128" in message
    assert harness.cluster.names(DEPLOYMENT, "n") == ["good-backend"]
    await harness.applied(backend("big", userConfig={"a": "x" * (MIB - 10_000)}))
    assert harness.cluster.names(DEPLOYMENT, "n") == ["big-backend", "good-backend"]


async def test_a_child_that_somebody_makes_too_large_is_left_and_named() -> None:
    """It cannot be compared, so it is not written again and again; what it is beside that goes on."""
    harness = await serving()

    def grow(live: Obj) -> None:
        live["spec"]["template"]["spec"]["containers"].append({"name": "theirs", "args": [TOO_MUCH]})

    harness.cluster.edit(DEPLOYMENT, "n", "m-backend", grow)
    writes = len(harness.cluster.writes)
    await harness.run()
    assert not harness.errors
    assert harness.condition(BACKEND, "m", "Ready") == ("False", "WriteRejected")
    message = harness.cluster.find(BACKEND, "n", "m")["status"]["conditions"]
    text = next(each["message"] for each in message if each["type"] == "Ready")
    assert text.startswith(
        "Deployment m-backend: it is not written, as it cannot be compared: spec.template: "
    )
    assert text.endswith("; make it smaller, or delete it")
    assert ("apply", "Deployment") not in {write[:2] for write in harness.cluster.writes[writes:]}
    harness.cluster.edit(
        DEPLOYMENT, "n", "m-backend", lambda live: live["spec"]["template"]["spec"]["containers"].pop()
    )
    await harness.run()
    assert harness.condition(BACKEND, "m", "Ready") != ("False", "WriteRejected")


async def test_a_full_namespace_keeps_stubs_and_others_have_room() -> None:
    """What is left out is said, and read once there is room again, with nothing of its own changed."""
    harness = Harness()
    most = NAMESPACE_BYTES // MIB
    store = harness.ctx.store
    for number in range(most + 2):
        harness.apply(backend(f"b{number:03}", suspend=True, userConfig={"a": "x" * (MIB - 20_000)}))
        if number == 0:
            harness.cluster.user_applies(
                child("ConfigMap", "v1", "c", data={"settings.json": "x" * 4_000_000})
            )
    elsewhere = harness.cluster.user_applies(backend("good"))
    elsewhere["metadata"]["namespace"] = "other"
    store.put(elsewhere)
    left = [obj["metadata"]["name"] for obj in store.all(BACKEND) if UNREADABLE in obj]
    assert left
    assert left == [f"b{number:03}" for number in range(most + 2 - len(left), most + 2)]
    await harness.run()
    assert not harness.errors
    assert harness.condition(BACKEND, left[-1], "Ready") == ("False", "Unreadable")
    message = harness.cluster.find(BACKEND, "n", left[-1])["status"]["conditions"][0]["message"]
    assert "its namespace is full: expected at most 128 MiB" in message
    for number in range(len(left)):
        harness.cluster.remove(BACKEND, "n", f"b{number:03}")
    await relist_kind(harness.cluster, store, BACKEND, harness.manager._changed)
    assert not [obj for obj in store.all(BACKEND) if UNREADABLE in obj]
    await harness.run()
    assert harness.condition(BACKEND, left[-1], "Ready") != ("False", "Unreadable")


def test_room_is_given_back_to_the_last_byte() -> None:
    """Replaced, removed, made a stub: a namespace without objects has spent nothing."""
    store = Store()
    for version, size in enumerate((10, 100_000, 2 * MIB, 10), start=1):
        pod = child("Pod", "v1", "p", spec={}, status={"message": "x" * size})
        pod["metadata"] |= {"resourceVersion": str(version), "uid": "u"}
        store.put(pod)
    assert 0 < store._spent["n"] < 10_000
    store.forget(ObjectKey("Pod", "n", "p"), "u")
    assert (store._spent, store._bytes, store._waiting) == ({}, {}, {})


async def test_a_page_of_a_list_has_few_bytes_or_one_object(tmp_path: Path) -> None:
    """Objects of a megabyte come one at a time, small ones by the hundred, each once and in order."""
    async with TinyApiserver() as server:
        names = [f"b{number:03}" for number in range(130)]
        for number, name in enumerate(names):
            size = 1_500_000 if number in (5, 6, 70, 71) else 10
            server.cluster.user_applies(child("ConfigMap", "v1", name, data={"a": "x" * size}))
            server.cluster.objects["ConfigMap", "n", name]["metadata"].pop("annotations")
        config = tmp_path / "kubeconfig"
        config.write_text(server.kubeconfig())
        cluster = KubernetesCluster(await login(str(config)))
        try:
            listed = await cluster.list(CONFIG_MAP, keep=lambda obj: obj["metadata"]["name"])
        finally:
            await cluster.close()
        assert listed == names
        sizes = [int(query["limit"]) for method, _, query, _ in server.requests if method == "GET"]
        assert sizes[0] == 100
        assert min(sizes) == 1
        assert sizes[-1] > 10, "it has grown again behind the large ones"
        assert PAGE_BYTES < 2 * 1_500_000


async def test_a_start_with_the_worst_of_each_kind_needs_little_of_the_charts_memory(tmp_path: Path) -> None:
    """As a real process: half of the limit is left for connections and reports, and a neighbour is served."""
    limit = yaml.safe_load(VALUES.read_text())["operator"]["resources"]["limits"]["memory"]
    assert limit.endswith("Mi")
    async with TinyApiserver() as server:
        pod_spec = {"containers": [{"name": "c", "image": "i", "args": [TOO_MUCH]}]}
        for number in range(8):
            name = f"x{number}"
            for hostile in (
                backend(f"a{name}", suspend=True, userConfig={"a": TOO_MUCH}),
                backend(f"c{name}", suspend=True),
                child("ConfigMap", "v1", name, data={"settings.json": TOO_MUCH[:MIB]}),
                child("Deployment", "apps/v1", name, spec={"template": {"spec": pod_spec}}),
                child("Pod", "v1", name, spec=pod_spec | {"nodeName": "n"}, status={"message": TOO_MUCH}),
            ):
                if hostile["metadata"]["name"][0] == "c":
                    hostile["metadata"]["annotations"] = {"theirs": "x" * 250_000}
                server.cluster.user_applies(hostile)
        for number in range(40):
            for name, value in ((f"d{number}", TOO_MUCH), (f"e{number}", "@many")):
                server.cluster.user_applies(backend(name, suspend=True, userConfig={"a": value}))
        # NB: spelled in the answer; real lists would keep the server from renewing the operator's Lease.
        server.spelled['"@many"'] = json.dumps([0] * 400_000, separators=(",", ":"))
        server.cluster.user_applies(backend("good"))
        process = await Process.start(server, tmp_path)
        try:
            await until(
                lambda: all(
                    "status" in obj and "conditions" in obj["status"]
                    for (kind, _, _), obj in server.cluster.objects.items()
                    if kind == "ModelBackend"
                ),
                "a status of each backend",
                seconds=120,
            )
            assert process.process.returncode is None, "it leads to the end"
            assert ("Deployment", "n", "good-backend") in server.cluster.objects
            assert peak_of(process.process.pid) < int(limit.removesuffix("Mi")) // 2
        finally:
            await process.end()
