"""A faulty apiserver and a restless user: afterwards everything is as if nothing had ever failed.

The operator runs as a process of its own behind `tests.support.cluster.fault_proxy` and is killed now and
then; what ends is started again, as kubelet would. `--fault-seconds` says how long it goes on,
`--fault-seed` repeats a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from devcluster.cluster import Cluster
from tests.cluster.conftest import INSTALLED_IN
from tests.support.cluster.changing_user import CHILDREN, GROUP, ChangingUser
from tests.support.cluster.circumstances import tail
from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.fault_proxy import FaultProxy, Obj, Write
from tests.support.cluster.k8s import ROOT
from tests.support.cluster.release import OPERATOR_PODS, TAKE_BACK, upgrade

NAMESPACE = "faults"
CONVERGED_WITHIN = 60.0
QUIET = 6.0
"""Seconds without a write after which the operator counts as done, where nothing waits in its queue."""

HOT = (10.0, 40)
"""More tries of one object's write than this in so many seconds are a hot loop. The first backoff is 0.1 s,
and doubles: what always fails is tried some seven times in ten seconds; but each change of the resource and
of each of its pods makes one at once. A loop without backoff makes hundreds."""

COLLECTED_WITHIN = 240.0
"""Seconds that Kubernetes' garbage collector may take; what the operator writes it has written by then."""

PATIENCE = 40.0
"""Seconds after which every try that was put off has been made: the longest backoff is 30 s."""

NO_IMAGE = "127.0.0.1:9/penstock/router:none"
"""Nothing answers there: the kubelet retries for ever, with alternating messages."""

HASH = "penstock.dev/desired-hash"
"""The annotation of everything that was rendered."""


class Operator:
    """The operator's process, started again when it ends."""

    def __init__(self, kubeconfig: Path, log: Path) -> None:
        self.command = (
            *(sys.executable, "-m", "penstock_operator", f"--kubeconfig={kubeconfig}"),
            *(f"--namespace={NAMESPACE}", f"--operator-namespace={NAMESPACE}", "--pod=under-test"),
            *("--listen=127.0.0.1:0", "--report-to=http://127.0.0.1:9", "--log-level=info"),
            f"--router-image={NO_IMAGE}",
        )
        self.log = log
        self.starts = 0
        self._url = ""
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start it, and again whenever it ends."""
        self._keeper = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """End it for good."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def kill(self) -> None:
        """End it at once, whatever it is doing."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)

    async def waiting(self) -> float | None:
        """Keys that wait in its queues now, None while it does not answer or does not lead."""
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session,
                session.get(f"{self._url}/metrics") as answer,
            ):
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return None
        samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        if samples.get("penstock_operator_leader") != "1.0" or "workqueue_adds_total" not in text:
            return None
        return sum(float(value) for name, value in samples.items() if name.startswith("workqueue_depth"))

    async def _keep(self) -> None:
        while True:
            self.starts += 1
            with self.log.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *self.command, stdout=asyncio.subprocess.PIPE, stderr=log, cwd=ROOT, env=dict(os.environ)
                )
            assert self._process.stdout is not None
            with self.log.open("ab") as log:
                async for line in self._process.stdout:
                    log.write(line)
                    log.flush()
                    if line.startswith(b"ready "):
                        self._url = "http://" + line.split(b"admin=")[1].split()[0].decode()
            await self._process.wait()
            await asyncio.sleep(0.5)


def delete_namespace(cluster: Cluster) -> None:
    """Delete the namespace with all that is in it; after minutes, print what keeps it."""
    cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=false")
    left = ("get", "namespace", NAMESPACE, "--ignore-not-found", "-o", "json")
    deadline = time.monotonic() + 300
    while remaining := cluster.kubectl(*left).stdout:
        assert time.monotonic() < deadline, remaining
        time.sleep(1)


@pytest.fixture
def alone(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with CRDs and without the chart's operator, which comes back afterwards."""
    where = ("-n", INSTALLED_IN, "deployment/penstock-operator")
    there = cluster.kubectl("get", *where, check=False).returncode == 0
    if not there:
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
    else:
        upgrade(cluster)  # with its CRDs, which stay the release's
        cluster.kubectl("scale", *where, "--replicas=0")
        selector = ("-n", INSTALLED_IN, "pods", "-l", OPERATOR_PODS, "-o", "name")
        wait_for("no operator", lambda: not cluster.kubectl("get", *selector).stdout.strip())
    delete_namespace(cluster)  # of a killed run
    cluster.kubectl("create", "namespace", NAMESPACE)
    yield cluster
    try:
        delete_namespace(cluster)
    finally:
        if there:
            upgrade(cluster, TAKE_BACK)


@contextlib.asynccontextmanager
async def proxied(cluster: Cluster, seed: int) -> AsyncIterator[FaultProxy]:
    """A proxy to the cluster's apiserver."""
    server = f"https://127.0.0.1:{cluster.require_alive().api_port}"
    async with FaultProxy(server, cluster.state.pki, seed=seed) as proxy:
        yield proxy


def real_writes(proxy: FaultProxy, since: float) -> list[Write]:
    """Writes tried since then, but for the Lease, which is renewed for ever, and Events."""
    kept = ("/leases/", "/events")
    return [
        write for write in proxy.writes if write.at >= since and not any(word in write.path for word in kept)
    ]


async def settled(proxy: FaultProxy, operator: Operator, *, since: float, patience: float) -> float:
    """Wait until the operator has nothing left to do; returns when it last wrote.

    Args:
        operator: whose queues must be empty.
        since: look at writes from then on, monotonic.
    """
    within = CONVERGED_WITHIN
    deadline = time.monotonic() + within + QUIET
    while True:
        waiting = await operator.waiting()
        last = max([since, *(write.at for write in real_writes(proxy, since))])
        if waiting == 0 and time.monotonic() - last >= QUIET and time.monotonic() - since >= patience:
            return last
        if time.monotonic() > deadline:
            late = Counter(
                f"{write.method} {write.path} {write.outcome}" for write in real_writes(proxy, since)
            )
            raise AssertionError(
                f"not converged within {within} s: {waiting} keys wait, written since: {late.most_common(10)}"
            )
        await asyncio.sleep(0.25)


async def live(proxy: FaultProxy, path: str) -> list[Obj]:
    """A collection of the namespace as the apiserver has it."""
    group, _, plural = path.rpartition("/")
    status, answer = await proxy.direct("GET", f"{group}/namespaces/{NAMESPACE}/{plural}")
    assert status == 200, answer
    items: list[Obj] = answer["items"]
    return items


async def orphans(proxy: FaultProxy) -> list[str]:
    """Objects that were rendered for deleted resources."""
    uids = {
        obj["metadata"]["uid"]
        for plural in ("modelbackends", "modelendpoints")
        for obj in await live(proxy, f"{GROUP}/{plural}")
    }
    return [
        f"{kind} {name}"
        for (kind, name), obj in (await rendered(proxy)).items()
        if not {ref["uid"] for ref in obj["metadata"].get("ownerReferences") or ()} & uids
    ]


async def rendered(proxy: FaultProxy) -> dict[tuple[str, str], Obj]:
    """Everything in the namespace that was rendered, of all kinds, by kind and name."""
    return {
        (kind, obj["metadata"]["name"]): obj
        for kind, path in CHILDREN.items()
        for obj in await live(proxy, f"{path}/{kind}")
        if HASH in (obj["metadata"].get("annotations") or {})
    }


async def out_of_place(proxy: FaultProxy) -> list[str]:
    """Missing objects, and superfluous ones: duplicates and lost deletions."""
    wanted, allowed = set(), set()
    for backend in await live(proxy, f"{GROUP}/modelbackends"):
        name, spec = f"{backend['metadata']['name']}-backend", backend["spec"]
        own = {(kind, name) for kind in ("deployments", "services", "serviceaccounts", "networkpolicies")}
        own |= {("configmaps", f"{name}-settings")}
        budget = {("poddisruptionbudgets", name)}
        if spec.get("suspend"):
            allowed |= own | budget  # left as they were
        else:
            wanted |= own | (budget if spec["replicas"] > 1 else set())
    endpoints = await live(proxy, f"{GROUP}/modelendpoints")
    wanted |= {("services", endpoint["metadata"]["name"]) for endpoint in endpoints}
    if endpoints:
        kinds = (
            *("deployments", "services", "serviceaccounts", "networkpolicies", "rolebindings"),
            "poddisruptionbudgets",  # of two routers, as by default
        )
        wanted |= {(kind, "penstock-router") for kind in kinds}
        wanted |= {("configmaps", "penstock-router-settings")}
    there = set(await rendered(proxy))
    return [f"missing: {name}" for name in wanted - there] + [
        f"too many: {name}" for name in there - wanted - allowed
    ]


def hottest(writes: list[Write]) -> tuple[int, str]:
    """The most tries of one object's writes within the time that `HOT` names, and what became of them."""
    seconds, _ = HOT
    recent: dict[str, deque[Write]] = {}
    most: tuple[int, str] = (0, "")
    for write in writes:
        tries = recent.setdefault(write.path, deque())
        tries.append(write)
        while tries[0].at < write.at - seconds:
            tries.popleft()
        if len(tries) > most[0]:
            when = " ".join(f"{each.at - writes[0].at:.2f}:{each.outcome}" for each in tries)
            most = (len(tries), f"{write.method} {write.path} {when}")
    return most


@pytest.mark.timeout(1500)
async def test_after_faults_everything_is_as_if_nothing_had_failed(
    alone: Cluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Converged within a minute of peace; no hot loop; nothing left over; a fresh run writes nothing."""
    seconds = float(request.config.getoption("--fault-seconds"))
    seed = int(request.config.getoption("--fault-seed"))
    draw, log = random.Random(seed), tmp_path / "operator.log"
    async with proxied(alone, seed) as proxy:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(proxy.kubeconfig())
        operator = Operator(kubeconfig, log)
        user = ChangingUser(proxy.direct, NAMESPACE, seed=seed)
        await user.everything()
        await operator.start()
        try:
            await settled(proxy, operator, since=time.monotonic(), patience=0.0)
            proxy.rage()
            ends, next_kill = time.monotonic() + seconds, time.monotonic() + draw.uniform(15, 30)
            while time.monotonic() < ends:
                await user.change()
                await asyncio.sleep(draw.expovariate(3.0))
                if time.monotonic() >= next_kill:
                    operator.kill()
                    next_kill = time.monotonic() + draw.uniform(20, 60)
            proxy.peace()
            began = time.monotonic()
            last = await settled(proxy, operator, since=began, patience=PATIENCE)
            faults, did = dict(proxy.faults), dict(user.done)
            summary = (
                f"seed {seed}: {proxy.calls} calls, {sum(faults.values())} faults {faults}, "
                f"{operator.starts} starts, user {did}; converged {last - began:.1f} s after peace; log {log}"
            )
            count, where = hottest(real_writes(proxy, 0.0))
            summary = f"{summary}; at most {count} tries of a write in {HOT[0]:.0f} s"
            print(summary)
            assert count <= HOT[1], f"{where}; {summary}"
            await nothing_left_over(proxy, summary)
            await a_fresh_run_writes_nothing(proxy, operator, summary)
        except BaseException:
            print(f"the end of {log}:\n{tail(log)}")
            raise
        finally:
            await operator.stop()


async def nothing_left_over(proxy: FaultProxy, summary: str) -> None:
    """No child without its parent (the collector takes a moment), none missing, none too many."""
    deadline = time.monotonic() + COLLECTED_WITHIN
    while left := await orphans(proxy) + await out_of_place(proxy):
        assert time.monotonic() < deadline, f"{left}; {summary}"
        await asyncio.sleep(0.5)
    services = await live(proxy, "/api/v1/services")
    ports = [
        service["spec"]["ports"][0]["targetPort"]
        for service in services
        if "penstock.dev/endpoint" in (service["metadata"].get("labels") or {})
    ]
    assert len(set(ports)) == len(ports), summary
    for plural in ("modelbackends", "modelendpoints", "trafficsplits", "batchpolicies"):
        for endpoint in await live(proxy, f"{GROUP}/{plural}"):
            seen = (endpoint.get("status") or {}).get("observedGeneration")
            assert seen == endpoint["metadata"]["generation"], (
                f"{plural} {endpoint['metadata']['name']}; {summary}"
            )


async def a_fresh_run_writes_nothing(proxy: FaultProxy, operator: Operator, summary: str) -> None:
    """A new process, with an empty memory, finds every child and every status as it would write it.

    If something else changed meanwhile, another run is examined.
    """
    for _ in range(4):
        before, others = await statuses(proxy), await of_others(proxy)
        began, starts = time.monotonic(), operator.starts
        operator.kill()
        async with asyncio.timeout(CONVERGED_WITHIN):
            while operator.starts == starts:  # noqa: ASYNC110 - another process ends and begins
                await asyncio.sleep(0.1)
        await settled(proxy, operator, since=began, patience=0.0)
        again = [f"{write.method} {write.path} {write.outcome}" for write in real_writes(proxy, began)]
        if not again or await of_others(proxy) == others:
            break
        print(f"written as others wrote, too: {again}")
    now = await statuses(proxy)
    changed = {name: (before.get(name), status) for name, status in now.items() if status != before.get(name)}
    assert again == [], f"{again}; statuses before and after: {changed}; {summary}"


async def of_others(proxy: FaultProxy) -> dict[str, object]:
    """The pods and Deployments that the statuses are about, by Kubernetes' controllers and the kubelet."""
    return {
        f"{plural}/{obj['metadata']['name']}": obj.get("status")
        for group, plural in (("/api/v1", "pods"), ("/apis/apps/v1", "deployments"))
        for obj in await live(proxy, f"{group}/{plural}")
    }


async def statuses(proxy: FaultProxy) -> dict[str, Obj | None]:
    """The status of each resource, by plural and name."""
    plurals = ("modelbackends", "modelendpoints", "trafficsplits", "batchpolicies")
    return {
        f"{plural}/{parent['metadata']['name']}": parent.get("status")
        for plural in plurals
        for parent in await live(proxy, f"{GROUP}/{plural}")
    }
