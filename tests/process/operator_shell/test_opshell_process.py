"""The operator as a process, on an apiserver on loopback: REST, kopf, Lease, restart, signals."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from penstock_operator.control.metrics_page import MADE_EVERY
from penstock_operator.errors import ConfigError, Conflict, NotFound, Rejected, Unavailable
from penstock_operator.kinds import (
    BACKEND,
    CONFIG_MAP,
    DEPLOYMENT,
    ENDPOINT_SLICE,
    LEASE,
    POD,
    POLICY,
)
from penstock_operator.kube.cluster import KubernetesCluster
from penstock_operator.kube.lease import LEASE_NAME
from penstock_operator.reconcile.manager import watched
from tests.support.clocks.waiting import SECONDS
from tests.support.processes.operator_process import Process, until
from tests.support.processes.tiny_apiserver import TinyApiserver
from tests.support.worlds.operator_harness import backend, endpoint, policy

KINDS = len(watched(None)) + 1
"""Watches of one operator."""


@pytest.fixture
async def server() -> AsyncIterator[TinyApiserver]:
    async with TinyApiserver() as running:
        yield running


def config_map(name: str = "c") -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "n", "name": name,
            "labels": {"a": name}}, "data": {"x": "1"}}  # fmt: skip


async def test_the_client_reads_and_writes(server: TinyApiserver, cluster: KubernetesCluster) -> None:
    """Apply, status, scale, get, list with paging and selector, create, delete: as REST has them."""
    server.page = 2
    for name in "abcde":
        await cluster.apply(CONFIG_MAP, config_map(name))
    listed = await cluster.list(CONFIG_MAP, "n", keep=dict)
    assert [obj["metadata"]["name"] for obj in listed] == list("abcde")
    assert listed[0]["kind"] == "ConfigMap"
    assert listed[0]["apiVersion"] == "v1"
    assert len(await cluster.list(CONFIG_MAP, keep=dict, labels="a=b")) == 1
    assert "data" not in (await cluster.list(CONFIG_MAP, keep=dict, metadata_only=True))[0]
    assert await cluster.get(CONFIG_MAP, "n", "zzz") is None
    server.cluster.user_applies(backend(replicas=1))
    body = {"metadata": {"namespace": "n", "name": "m"}, "status": {"replicas": 2}}
    assert (await cluster.apply_status(BACKEND, body))["status"] == {"replicas": 2}
    for replicas in (3, 3, 0):  # one that changes the scale, one that only owns it
        assert (await cluster.apply_scale(BACKEND, "n", "m", replicas))["spec"] == {"replicas": replicas}
    pod = server.cluster.user_applies(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "n", "name": "p"}, "spec": {}}
    )
    for cost, kept in (("-1", {"cost": "-1"}), (None, {})):
        noted = await cluster.annotate(POD, "n", "p", {"cost": cost}, uid=pod["metadata"]["uid"])
        assert noted["metadata"]["annotations"] == kept
    with pytest.raises(Conflict):
        await cluster.annotate(POD, "n", "p", {"cost": "1"}, uid="another")
    with pytest.raises(Conflict, match="already exists"):
        await cluster.create(CONFIG_MAP, config_map("a"))
    assert not await cluster.delete(CONFIG_MAP, "n", "a", uid="other")
    assert await cluster.delete(CONFIG_MAP, "n", "a")
    assert not await cluster.delete(CONFIG_MAP, "n", "a")


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (404, NotFound), (409, Conflict), (422, Rejected), (403, Rejected), (500, Unavailable),
        (503, Unavailable), (429, Unavailable), (401, Unavailable),
    ],
)  # fmt: skip
async def test_the_client_tells_errors_apart(
    server: TinyApiserver, cluster: KubernetesCluster, status: int, error: type[Exception]
) -> None:
    """The class says whether to try again; the message is the server's."""
    server.fail[("PATCH", "configmaps")] = [status]
    with pytest.raises(error, match="induced") as caught:
        await cluster.apply(CONFIG_MAP, config_map())
    assert getattr(caught.value, "retry_after", None) == (3.0 if status == 429 else None)


async def test_no_answer_is_unavailable(tmp_path: Path) -> None:
    """A closed port raises our own error, not aiohttp's."""
    async with TinyApiserver() as gone:
        config = tmp_path / "kubeconfig"
        config.write_text(gone.kubeconfig())
    cluster = await KubernetesCluster.connect(str(config), timeout=30)
    with pytest.raises(Unavailable):
        await cluster.get(CONFIG_MAP, "n", "c")
    await cluster.close()


async def test_a_kubeconfig_that_is_not_there_is_told(tmp_path: Path) -> None:
    """One sentence that names the file."""
    with pytest.raises(ConfigError, match="nowhere"):
        await KubernetesCluster.connect(str(tmp_path / "nowhere"))


@pytest.fixture
async def operators(server: TinyApiserver, tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    running: list[Process] = []

    async def start(pod: str = "op-1", *flags: str) -> Process:
        running.append(await Process.start(server, tmp_path, pod, *flags))
        return running[-1]

    yield start
    for process in running:
        if process.process.returncode is None:
            await process.end(signal.SIGKILL)


async def quiet(process: Process) -> None:
    """Wait until every key that was added has been worked on."""
    end = time.monotonic() + SECONDS
    while True:
        await asyncio.sleep(MADE_EVERY)  # a page may be this old, and asking for it more often is refused
        _, text = await process.get("/metrics")
        pattern = r'^workqueue_(adds_total|work_duration_seconds_count)\{name="reconcile"} (\S+)$'
        counts = dict(re.findall(pattern, text, re.MULTILINE))
        if counts["adds_total"] == counts["work_duration_seconds_count"]:
            return
        assert time.monotonic() < end, counts


def has(server: TinyApiserver, kind: str, name: str) -> bool:
    return (kind, "n", name) in server.cluster.objects


async def test_from_apply_to_deletion(server: TinyApiserver, operators: Any) -> None:
    """Events through kopf, children through REST, a broken watch in between, a clean end."""
    server.cluster.user_applies(policy(maxBatchSize=8))
    process = await operators()
    await until(lambda: "status" in server.cluster.find(POLICY, "n", "p"), "the policy has a status")
    server.cluster.user_applies(backend(batchPolicyRef="p"))
    server.cluster.user_applies(endpoint())
    await until(lambda: has(server, "Deployment", "m-backend"), "a backend of a watch gets its Deployment")
    await until(lambda: has(server, "Deployment", "penstock-router"), "an endpoint gets its router")
    assert server.cluster.find(ENDPOINT_SLICE, "penstock-system", "penstock-operator")["endpoints"] == [
        {"addresses": ["10.9.9.9"], "conditions": {"ready": True}}
    ]
    opened = server.watches
    server.break_watches()
    await until(lambda: server.watches >= opened + 5, "the watches come back")
    server.cluster.edit(DEPLOYMENT, "n", "m-backend", lambda live: live["spec"].update(replicas=7))
    await until(
        lambda: server.cluster.find(DEPLOYMENT, "n", "m-backend")["spec"]["replicas"] == 1, "drift is mended"
    )
    status, text = await process.get("/metrics")
    assert status == 200
    assert "penstock_operator_leader 1.0" in text
    assert await process.get("/livez") == (200, "ok\n")
    server.cluster.remove(BACKEND, "n", "m")
    await until(
        lambda: "BackendMissing" in str(server.cluster.objects[("ModelEndpoint", "n", "e")].get("status")),
        "the endpoint tells of the deletion",
    )
    assert await process.end() == 0
    assert server.cluster.find(LEASE, "kube-system", LEASE_NAME)["spec"]["holderIdentity"] == ""
    assert [line for line in process.lines if line["message"] == "not JSON"] == []
    assert process.said("reconcile failed") == 0, process.lines


async def test_a_restart_writes_nothing(server: TinyApiserver, operators: Any) -> None:
    """A killed operator is replaced by the next, which finds all as it should be."""
    for obj in (policy(), backend(batchPolicyRef="p"), endpoint()):
        server.cluster.user_applies(obj)
    first = await operators()

    def settled() -> bool:
        statuses = [
            live.get("status") for key, live in server.cluster.objects.items() if key[0].startswith("Model")
        ]
        return has(server, "Deployment", "penstock-router") and all(statuses)

    await until(settled, "everything has a status")
    await until(lambda: server.watches >= KINDS, "the first watches")
    await quiet(first)
    await first.end()
    server.cluster.writes.clear()
    watched = server.watches
    second = await operators("op-2")
    await until(lambda: second.said("synced") == 1, "the second leads")
    await until(lambda: server.watches >= watched + KINDS, "the second watches")
    elsewhere = policy("other")  # policies of a namespace name each other
    elsewhere["metadata"]["namespace"] = "m"
    server.cluster.user_applies(elsewhere)
    await until(lambda: "status" in server.cluster.find(POLICY, "m", "other"), "the second works")
    ours = [write for write in server.cluster.writes if write[1] not in ("Lease", "EndpointSlice", "Event")]
    assert [write for write in ours if write[3] != "other"] == []


async def test_a_standby_waits_is_ready_and_takes_no_reports(server: TinyApiserver, operators: Any) -> None:
    """Two processes: one leads; when it ends, the other goes on within moments."""
    first = await operators("op-1")
    await until(lambda: first.said("leading") == 1, "the first leads")
    second = await operators("op-2")
    assert (await second.get("/readyz"))[0] == 200
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{second.address}/reports/sidecar") as answer,
    ):
        assert answer.status == 503
    assert second.said("leading") == 0
    assert await first.end() == 0
    await until(lambda: second.said("leading") == 1, "the second leads")


async def test_an_operator_of_another_installation_is_not_ready_and_names_the_one_that_leads(
    server: TinyApiserver, operators: Any
) -> None:
    """In its log, its metrics and its readiness; it writes nothing."""
    first = await operators("op-1")
    await until(lambda: first.said("leading") == 1, "the first leads")
    other = await operators("op-2", "--report-to=http://127.0.0.1:8015", "--operator-namespace=elsewhere")
    await until(lambda: other.said("another installation leads") == 1, "the other says so")
    holder = "penstock-system/penstock-operator/op-1"
    assert await other.get("/readyz") == (503, f"another installation leads: {holder}\n")
    assert (await other.get("/livez"))[0] == 200
    metrics = (await other.get("/metrics"))[1]
    assert f'penstock_operator_waits_for_installation{{holder="{holder}"}} 1.0' in metrics
    assert "penstock_operator_leader 0.0" in metrics
    assert (await first.get("/readyz"))[0] == 200
    assert [write for write in server.cluster.writes if write[2] == "elsewhere"] == []
    assert other.said("leading") == 0


async def test_a_lost_lease_ends_the_process(server: TinyApiserver, operators: Any) -> None:
    """Nobody acts without the Lease."""
    process = await operators()
    await until(lambda: process.said("leading") == 1, "it leads")
    server.cluster.edit(
        LEASE,
        "kube-system",
        LEASE_NAME,
        lambda live: live["spec"].update(holderIdentity="other"),
    )
    code = await asyncio.wait_for(process.process.wait(), SECONDS)
    assert code == 1
    await process.end()
    assert "LeaseLost: the Lease kube-system/penstock-installation is held by other" in str(process.lines)


async def test_kopf_that_api_faults_ended_is_started_again_in_the_process(
    server: TinyApiserver, operators: Any
) -> None:
    """Refused lists end it by design; the same process watches again and misses nothing."""
    process = await operators()
    await until(lambda: server.watches >= KINDS, "the first watches")
    server.fail[("GET", "modelbackends")] = [403] * 3
    server.break_watches()
    await until(lambda: process.said("watches ended") >= 1, "kopf ends")
    server.cluster.user_applies(backend())
    await until(lambda: has(server, "Deployment", "m-backend"), "a backend of that time gets its Deployment")
    server.cluster.user_applies(backend("after"))
    await until(lambda: has(server, "Deployment", "after-backend"), "and so does a later one")
    _, text = await process.get("/metrics")
    starts = re.search(r"^penstock_operator_watch_starts_total (\S+)$", text, re.MULTILINE)
    assert starts is not None
    assert float(starts[1]) >= 2
    assert await process.get("/livez") == (200, "ok\n")
    assert process.said("synced") == 1
    assert await process.end() == 0


async def test_missing_crds_are_waited_for(server: TinyApiserver, operators: Any) -> None:
    """An operator that comes before its CRDs starts when they are there."""
    server.fail[("GET", "modelbackends")] = [404, 404]
    process = await operators()
    await until(lambda: process.said("start-up call failed") >= 1, "it tells")
    await until(lambda: process.said("synced") == 1, "it goes on")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--listen", "nonsense"], "--listen"), (["--workers", "0"], "--workers"),
        (["--log-level", "loud"], "--log-level"), (["--namespace", "No_Name"], "--namespace"),
        (["--authority-overlap", "soon"], "--authority-overlap"), (["--report-to", "x:1"], "--report-to"),
        (["--reports-listen", "8016"], "--reports-listen"),
    ],
)  # fmt: skip
async def test_nonsense_flags_are_refused_by_name(flags: list[str], message: str) -> None:
    """Before anything is started, with a non-zero exit."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "penstock_operator", *flags, stderr=asyncio.subprocess.PIPE
    )
    _, text = await asyncio.wait_for(process.communicate(), SECONDS)
    assert process.returncode == 2
    assert message in text.decode()
