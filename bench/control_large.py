"""`python -m bench.control_large`: the operator's process among 10 000 endpoints of 2000 namespaces.

The apiserver is one in memory (`tests.support.processes.tiny_apiserver`): no etcd, no TLS, no admission, so
two cores carry it. It also plays the Deployment controller, with two pods for each backend, and two shared
routers that report. Each namespace has five endpoints of 2.5 backends. An operator in memory has made
everything before (`bench.control_growth` has its cost). In order:

- start: an operator finds everything, and one backend that is new. The bare loop lists the same, parses it,
  renders each child and compares it, in one go and without watches, conditions or statuses;
- rest, then changes of a knob, `--rate` a second, each until its settings are written;
- churn (`--soak MINUTES`): each minute one object in a hundred is deleted and made anew (those pods do not
  report).

With `--reporters N`, so many of the backends' pods report beside that from the end of the start on, each over
a TLS connection of its own (`bench.control_reports`); `--busy N` of them have a load.

`--backends 100 --namespaces 40 --rest 5` takes a minute; the default needs three minutes of CPU before its
operator starts. CPU and memory hold on a busy machine, times do not.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import json
import os
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop

from bench import control_resources as made
from bench.control_api import Operator
from bench.control_growth import endpoint, report
from bench.control_reports import Played, players, reviewed, token
from bench.processes import free_port
from penstock_operator import injected
from penstock_operator.api import ModelBackend, ModelEndpoint
from penstock_operator.clock import LoopClock
from penstock_operator.config import Config
from penstock_operator.control.certificates import Certificates
from penstock_operator.desired import backend as backends
from penstock_operator.desired import deployment, names, router, settings
from penstock_operator.desired.config import RenderConfig
from penstock_operator.desired.drift import needs_write
from penstock_operator.desired.labels import BACKEND as BACKEND_LABEL
from penstock_operator.desired.labels import DESIRED_HASH
from penstock_operator.desired.objects import stamped
from penstock_operator.kinds import BACKEND, CONFIG_MAP, DEPLOYMENT, ENDPOINT, ENDPOINT_SLICE, POD, SERVICE
from penstock_operator.kube.cluster import KubernetesCluster, login
from penstock_operator.reconcile.manager import watched
from penstock_operator.store import ObjectKey, key_of
from penstock_wire.control import router_settings
from penstock_wire.control.report import EndpointReport, RouterReport, TenantReport, encode
from penstock_wire.control.reporter import Reporter
from penstock_wire.process import set_log_level

Obj = dict[str, Any]
# NB: not by an import, as in `control_growth`.
Harness: Any = importlib.import_module("tests.support.worlds.operator_harness").Harness
TinyApiserver: Any = importlib.import_module("tests.support.processes.tiny_apiserver").TinyApiserver
HOME = "penstock-system"
PODS_OF_A_BACKEND = 2
QUIET_SECONDS = 12.0
"""Longer than a status waits for reports after a start."""
LOOKS = 20
IDLE = 0.2
"""The share of looks at which an idle operator may have something to do: routers report to it."""


class World:
    """The cluster: what users, the Deployment controller and kubelets do in it."""

    def __init__(self, server: Any) -> None:
        self.cluster = server.cluster
        self.pods = 0
        self.settled: deque[tuple[str, float]] = deque()
        """ConfigMaps as they are written, and when."""
        self.made: dict[str, float] = {}
        """When Deployments were made."""
        self._gone: set[str] = set()
        """Uids of parents."""
        self.cluster.watchers.append(self._event)
        self.cluster.answer["TokenReview"] = reviewed

    def _event(self, event: str, obj: Obj) -> None:
        if obj["kind"] == CONFIG_MAP.kind and event == "MODIFIED":
            self.settled.append((obj["metadata"]["name"], time.monotonic()))
        if event == "ADDED" and set() < _owners(obj) <= self._gone:
            # Its apply was on the way while its parent was deleted: the garbage collector's.
            asyncio.get_running_loop().call_soon(
                self.cluster._remove,  # noqa: SLF001
                (obj["kind"], obj["metadata"]["namespace"], obj["metadata"]["name"]),
            )
        elif obj["kind"] == DEPLOYMENT.kind and event == "ADDED":
            self.made[obj["metadata"]["name"]] = time.monotonic()
            asyncio.get_running_loop().call_soon(self._run, obj)

    def _run(self, of: Obj) -> None:
        """Give a Deployment its pods."""
        where, name = of["metadata"]["namespace"], of["metadata"]["name"]
        count = of["spec"]["replicas"]
        if (DEPLOYMENT.kind, where, name) not in self.cluster.objects:
            return
        for number in range(count):
            self.pods += 1
            self.cluster.user_applies(_pod(of, number))
            status = _running(self.pods, of["spec"]["template"]["spec"])
            self.cluster.edit(POD, where, f"{name}-{number}", lambda pod, now=status: pod.update(status=now))
        replicas = dict.fromkeys(("replicas", "readyReplicas", "updatedReplicas", "availableReplicas"), count)
        self.cluster.edit(
            DEPLOYMENT, where, name,
            lambda obj: obj.update(status={"observedGeneration": obj["metadata"]["generation"], **replicas}),
        )  # fmt: skip

    def remove(self, where: str, number: int) -> None:
        """Delete a backend with its endpoints, and what they own."""
        parents = [(BACKEND.kind, f"model-{number:04}"), *[(ENDPOINT.kind, f"{a}-{number}") for a in "ab"]]
        gone = {self.cluster.objects[kind, where, name]["metadata"]["uid"] for kind, name in parents}
        own = [
            key
            for key, obj in self.cluster.objects.items()
            if key[1] == where and (obj["metadata"]["uid"] in gone or set() < _owners(obj) <= gone)
        ]
        pods = {f"model-{number:04}-backend-{each}" for each in range(PODS_OF_A_BACKEND)}
        for key in own + [(POD.kind, where, name) for name in pods]:
            self.cluster._remove(key)  # noqa: SLF001 - without a search for orphans among all objects
        self._gone |= gone

    def make(self, where: str, number: int) -> None:
        """Make a backend and two endpoints."""
        obj = made.backend(f"model-{number:04}", where)
        obj["spec"]["replicas"] = PODS_OF_A_BACKEND
        self.cluster.user_applies(obj)
        for which in "ab":
            self.cluster.user_applies(endpoint(where, f"{which}-{number}", f"model-{number:04}"))


def _owners(obj: Obj) -> set[str]:
    return {ref["uid"] for ref in obj["metadata"].get("ownerReferences") or ()}


def _pod(of: Obj, number: int) -> Obj:
    name = of["metadata"]["name"]
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{name}-5d8f7", "uid": f"rs-{name}"}
    metadata = {
        "namespace": of["metadata"]["namespace"],
        "name": f"{name}-{number}",
        "generateName": f"{name}-5d8f7-",
        "labels": {**of["spec"]["template"]["metadata"]["labels"], "pod-template-hash": "5d8f7"},
        "annotations": of["spec"]["template"]["metadata"].get("annotations") or {},
        "ownerReferences": [owner | {"controller": True, "blockOwnerDeletion": True}],
    }
    spec = {**of["spec"]["template"]["spec"], "nodeName": f"node-{number}"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _running(number: int, spec: Obj) -> Obj:
    """Return the status of a pod that runs, as a kubelet writes it."""
    address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
    at = f"2026-01-01T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}Z"
    types = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")

    def each(place: str) -> list[Obj]:
        return [
            {
                "name": container["name"], "ready": True, "restartCount": 0, "started": True, "lastState": {},
                "image": container["image"], "imageID": f"{container['image']}@sha256:{'0' * 64}",
                "containerID": f"containerd://{number:064}", "state": {"running": {"startedAt": at}},
            }
            for container in spec.get(place) or ()
        ]  # fmt: skip

    return {
        "phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "startTime": at,
        "hostIP": "192.168.1.1", "hostIPs": [{"ip": "192.168.1.1"}], "qosClass": "Burstable",
        "conditions": [{"type": one, "status": "True", "lastTransitionTime": at} for one in types],
        "initContainerStatuses": each("initContainers"), "containerStatuses": each("containers"),
    }  # fmt: skip


class HollowRouter:
    """A shared router's reports: it listens for all that its settings have.

    Args:
        url: where the operator takes them.
        folder: for its token; `ca.crt` in it verifies the operator.
    """

    def __init__(self, pod: str, uid: str, url: str, folder: Path) -> None:
        self._pod, self._uid = pod, uid
        self._settings: router_settings.RouterSettings | None = None
        self._tenants: dict[str, TenantReport] = {}
        self._sent: tuple[int, dict[str, TenantReport]] = (0, {})
        self._base = self._sent
        file = folder / pod
        file.write_text(token(HOME, pod, uid))
        self._reporter = Reporter(
            url=url, kind="router", token_file=file, make=self._make, on_settings=self._take,
            on_taken=self._taken, authorities=folder / "ca.crt",
        )  # fmt: skip
        self.run = self._reporter.run

    def _take(self, data: bytes) -> None:
        before = self._settings
        news = router_settings.decode(data)
        name = "" if before is None else str(before.digest)
        self._settings = whole = router_settings.changed(news, before, name)
        had = {} if before is None else before.tenants or {}
        self._tenants = {
            name: self._tenants[name]
            if tenant is had.get(name)
            else TenantReport(
                door=True, endpoints={each.name: EndpointReport(listening=True) for each in tenant.endpoints}
            )
            for name, tenant in (whole.tenants or {}).items()
        }
        self._reporter.report_now()

    def _make(self, seq: int) -> bytes:
        number, base = self._base
        builds = number > 0 and self._tenants.keys() == base.keys()
        news = {name: each for name, each in self._tenants.items() if each is not base.get(name)}
        self._sent = (seq, self._tenants)
        known = self._settings
        report = RouterReport(
            pod=self._pod, uid=self._uid, seq=seq, changes=True, base=number if builds else 0,
            state="starting" if known is None else "ready",
            settings_version=0 if known is None else known.version or 0,
            settings_digest="" if known is None else str(known.digest),
            tenants=news if builds else self._tenants,
        )  # fmt: skip
        return encode(report)

    def _taken(self, number: int) -> None:
        self._base = self._sent if number == self._sent[0] else (0, {})


class Run:
    """One run.

    Args:
        asked: the command line's.
        folder: for logs, the kubeconfig and tokens.
    """

    def __init__(self, asked: argparse.Namespace, server: Any, folder: Path) -> None:
        self._asked, self._server, self._folder = asked, server, folder
        self._world = World(server)
        self._spaces = [f"tenant-{number:04}" for number in range(asked.namespaces)]
        self._config = folder / "kubeconfig"
        self._config.write_text(server.kubeconfig())
        self._routers: list[asyncio.Task[None]] = []
        self._url = f"https://127.0.0.1:{free_port()}"
        self._idle = IDLE
        self._resting = 0.0
        """CPU seconds a second without changes."""
        self.found: dict[str, Any] = {}

    def say(self, name: str, value: object) -> None:
        """Keep a figure and print it."""
        self.found[name] = value = round(value, 3) if isinstance(value, float) else value
        print(f"{name:45} {value}", flush=True)

    async def all(self) -> None:
        """Everything, in order."""
        world, asked = self._world, self._asked
        await self._keys()
        harness = Harness(world.cluster, render=_render(self._folder, self._url), shared=True)
        gc.disable()
        for number in range(asked.backends):
            world.make(self._where(number), number)
        await harness.run(limit=10**9)
        await asyncio.sleep(0.1)  # pods are made
        harness.clock.turn(15.0)
        await asyncio.sleep(0.1)
        await harness.run(limit=10**9)
        report(harness, 1)
        await harness.run(limit=10**9)
        assert not harness.errors, harness.errors[:5]
        harness.stop()
        del harness
        gc.collect()
        gc.freeze()
        gc.enable()
        await self._bare()
        world.make(self._where(0), asked.backends)
        with ExitStack() as stack:
            async with self._operator() as operator:
                await self._start(operator)
                if asked.reporters:
                    await self._report(operator, stack)
                await self._rest(operator)
                await self._knobs(operator)
                if asked.soak:
                    await self._soak(operator)
        await self._end_routers()

    def _where(self, number: int) -> str:
        return self._spaces[number % len(self._spaces)]

    async def _keys(self) -> None:
        """Make the keys of the reports' port, as the operator finds them."""
        config = _config(self._url)

        def changed(authorities: bytes) -> None:
            (self._folder / "ca.crt").write_bytes(authorities)

        await Certificates(
            self._world.cluster, namespace=HOME, name=config.keys_secret, names=config.names,
            lifetimes=config.lifetimes, clock=LoopClock(), changed=changed,
            log=lambda *_args, **_fields: None,
        ).ensure()  # fmt: skip

    def _operator(self) -> Operator:
        listen = f"127.0.0.1:{free_port()}"
        command = [
            *(sys.executable, "-m", "penstock_operator", "--kubeconfig", str(self._config)),
            *("--listen", listen, "--report-to", self._url, "--reports-listen", self._url[len("https://") :]),
            *("--router-mode", "Shared", "--no-check-peer-address", "--operator-namespace", HOME),
        ]
        self._begin_routers(self._url)
        log = self._folder / "operator.log"
        return Operator(command, url=f"http://{listen}", log=log, env=dict(os.environ))

    def _begin_routers(self, url: str) -> None:
        async def play(number: int) -> None:
            pod = f"{names.SHARED_ROUTER}-{number}"
            uid = self._world.cluster.objects[POD.kind, HOME, pod]["metadata"]["uid"]
            await HollowRouter(pod, uid, url, self._folder).run()

        self._routers = [asyncio.create_task(play(number)) for number in range(2)]

    async def _report(self, operator: Operator, stack: ExitStack) -> None:
        """Have pods report from now on."""
        objects = self._world.cluster.objects
        pods: list[Played] = []
        for (kind, where, name), obj in objects.items():
            of = obj["metadata"].get("labels", {}).get(BACKEND_LABEL)
            if kind == POD.kind and of and len(pods) < self._asked.reporters:
                made = settings.recorded_version(objects[CONFIG_MAP.kind, where, names.backend_settings(of)])
                assert made is not None
                pods.append(
                    Played(
                        namespace=where, pod=name, uid=obj["metadata"]["uid"], version=made.version,
                        digest=made.digest, busy=len(pods) < self._asked.busy,
                    )
                )  # fmt: skip
        there, begin = stack.enter_context(players(pods, self._url, self._folder))
        await _in_a_thread(there, operator)
        began, cpu, writes = time.monotonic(), operator.cpu(), self._writes()
        await _in_a_thread(begin, operator)
        self.say("reporters", len(pods))
        self.say("reporters, s until each has reported", time.monotonic() - began)
        self.say("reporters, s of CPU until then", operator.cpu() - cpu)
        self._idle = 1.0  # it is never idle from now on: the end of its writes shows the end of a task
        await self._ended(operator)
        self.say("reporters, s of CPU until nothing is written", operator.cpu() - cpu)
        self.say("reporters, writes", dict(self._writes() - writes))

    async def _end_routers(self) -> None:
        for task in self._routers:
            task.cancel()
        await asyncio.gather(*self._routers, return_exceptions=True)

    async def _quiet(self, operator: Operator, when: str) -> None:
        """Wait until it has nothing to do, and nothing is missing."""
        ended = await self._ended(operator)
        objects = self._world.cluster.objects
        slices = [obj for key, obj in objects.items() if key[0] == ENDPOINT_SLICE.kind]
        wanted = sum(key[0] == ENDPOINT.kind for key in objects)
        behind = [
            key
            for key, obj in objects.items()
            if key[0] in (BACKEND.kind, ENDPOINT.kind) and not obj.get("status")
        ]
        served = sum(len(obj["endpoints"]) == 2 for obj in slices)
        assert served >= wanted, f"{served} slices with both routers for {wanted} endpoints"
        assert not behind, f"without a status: {behind[:5]}"
        self.say(f"{when}, s", ended - operator.began)
        self.say(f"{when}, s of CPU", operator.cpu())
        self.say(f"{when}, objects", len(objects))
        self.say(f"{when}, memory now and highest, MB", operator.memory())
        self.say(f"{when}, CPU by thread", operator.threads())

    def _writes(self) -> Counter[str]:
        """The operator's writes so far, by verb and kind, but those of its Lease."""
        each = Counter(f"{verb} {kind}" for verb, kind, _, _ in self._world.cluster.writes)
        return Counter({what: count for what, count in each.items() if not what.endswith("Lease")})

    async def _ended(self, operator: Operator) -> float:
        """Wait until the operator has done nothing for a while; returns when it last did something.

        Its metrics do not say it: with 5000 backends, to make them costs it a tenth of a second each time.
        Nor does its CPU time on a busy machine: its threads may wait for a processor.
        """
        last, writes = time.monotonic(), -1
        while time.monotonic() < last + QUIET_SECONDS:
            busy = 0
            for _ in range(LOOKS):
                await asyncio.sleep(1.0 / LOOKS)
                busy += operator.runnable()
            if busy > self._idle * LOOKS or sum(self._writes().values()) != writes:
                last, writes = time.monotonic(), sum(self._writes().values())
        return last

    async def _rest(self, operator: Operator) -> None:
        cpu, began, writes, taken = operator.cpu(), time.monotonic(), self._writes(), await _reports(operator)
        await asyncio.sleep(self._asked.rest)
        took = time.monotonic() - began
        self._resting = (operator.cpu() - cpu) / took
        self.say("rest, % of a core", self._resting * 100)
        self.say("rest, writes", dict(self._writes() - writes))
        self.say("rest, reports a second", (await _reports(operator) - taken) / took)
        self.say("rest, memory now and highest, MB", operator.memory())

    async def _knobs(self, operator: Operator) -> None:
        """Change a knob of one backend after the other, at a fixed rate."""
        rate, count = self._asked.rate, min(self._asked.backends, int(self._asked.rate * self._asked.rest))
        asked: dict[str, float] = {}
        self._world.settled.clear()
        cpu, began = operator.cpu(), time.monotonic()
        for turn in range(count):
            number = turn * 7919 % self._asked.backends
            await asyncio.sleep(max(0.0, began + turn / rate - time.monotonic()))
            asked[names.backend_settings(f"model-{number:04}")] = time.monotonic()
            self._world.cluster.edit(
                BACKEND, self._where(number), f"model-{number:04}",
                lambda obj, size=17 + turn % 100: obj["spec"]["batching"].update(maxBatchSize=size),
            )  # fmt: skip
        took = time.monotonic() - began
        await self._ended(operator)
        waits = sorted(at - asked[name] for name, at in self._world.settled if name in asked)
        assert len(waits) >= len(asked), f"{len(waits)} of {len(asked)} changes were written"
        self.say("knobs, changes a second", count / took)
        self.say("knobs, median ms", waits[len(waits) // 2] * 1e3)
        self.say("knobs, p95 ms", waits[len(waits) * 95 // 100] * 1e3)
        own = operator.cpu() - cpu - self._resting * (time.monotonic() - began)
        self.say("knobs, ms of CPU a change beyond rest", own / count * 1e3)

    async def _soak(self, operator: Operator) -> None:
        """Delete and make anew one object in a hundred a minute; a backend and its endpoints at a time."""
        every, number = 60 / (self._asked.backends / 100), 0
        memory, cpu, began = [operator.memory()[0]], operator.cpu(), time.monotonic()
        for minute in range(1, self._asked.soak + 1):
            while (now := time.monotonic()) < began + minute * 60:
                await asyncio.sleep(max(0.0, min(began + number * every, began + minute * 60) - now))
                at = number % self._asked.backends
                where = self._where(at)
                self._world.remove(where, at)
                self._world.make(where, at)
                number += 1
            memory.append(operator.memory()[0])
            print(f"  minute {minute}: {memory[-1]:.0f} MB, {number} backends made anew", flush=True)
        self.say("soak, % of a core", (operator.cpu() - cpu) / (time.monotonic() - began) * 100)
        self.say("soak, MB by the minute", [round(each) for each in memory])
        await self._quiet(operator, "after the soak")

    async def _start(self, operator: Operator) -> None:
        self._world.made.clear()
        before = self._writes()
        while not self._world.made:
            await asyncio.sleep(0.05)
            operator.runnable()  # raises if it has ended
        self.say("start, s until the new one's Deployment", min(self._world.made.values()) - operator.began)
        self.say("start, s of CPU until then", operator.cpu())
        await self._quiet(operator, "start")
        self.say("start, writes", dict(self._writes() - before))
        self.say("start / bare loop, CPU", self.found["start, s of CPU"] / self.found["bare, s of CPU"])

    async def _bare(self) -> None:
        command = [sys.executable, "-m", "bench.control_large", "--bare", str(self._folder)]
        process = await asyncio.create_subprocess_exec(*command, self._url, stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
        for name, value in json.loads(out).items():
            self.say(name, value)


async def _in_a_thread(wait: Callable[[], None], operator: Operator) -> None:
    """Wait for players; meanwhile the operator's Lease needs an apiserver that answers."""
    waiting = asyncio.create_task(asyncio.to_thread(wait))
    while not waiting.done():
        operator.runnable()  # raises if it has ended
        await asyncio.sleep(0.1)
    await waiting


async def _reports(operator: Operator) -> float:
    """The reports of sidecars that it has taken."""
    mark = ("penstock_operator_reports_total", 'kind="sidecar",outcome="taken"')
    return (await operator.metrics()).get(mark, 0.0)


def _config(url: str) -> Config:
    """The operator's configuration, where pods report to this URL."""
    return Config(report_to=url, operator_namespace=HOME)


def _render(folder: Path, url: str) -> RenderConfig:
    return replace(_config(url).render, authorities=(folder / "ca.crt").read_text())


async def bare(folder: Path, url: str) -> dict[str, float]:
    """List, parse, render and compare, and nothing else; returns seconds, CPU and what it went through."""
    began = time.monotonic()
    cluster = KubernetesCluster(await login(str(folder / "kubeconfig")), timeout=600)
    live: dict[ObjectKey, Obj] = {}
    for kind, selector in [*watched(None).items(), (POD, injected.SELECTOR)]:
        await cluster.list(kind, keep=lambda obj: live.update({key_of(obj): obj}), labels=selector)
    config = _render(folder, url)
    children: list[Obj] = []
    for key, obj in live.items():
        if key.kind == BACKEND.kind:
            parsed = ModelBackend.parse(obj)
            own = live.get(ObjectKey(DEPLOYMENT.kind, key.namespace, names.backend(key.name)))
            record = live.get(ObjectKey(CONFIG_MAP.kind, key.namespace, names.backend_settings(key.name)))
            document = settings.next_version(
                settings.for_sidecar(parsed, None), recorded=record, status_version=0, reported=0
            ).document
            pinned = deployment.pinned_template(parsed, config=config, new_secret="0" * 32, live=own)
            children += backends.backend_objects(parsed, document=document, pinned=pinned, config=config)
        elif key.kind == ENDPOINT.kind:
            end, service = ModelEndpoint.parse(obj), names.endpoint(key.name)
            there = live.get(ObjectKey(ENDPOINT_SLICE.kind, key.namespace, names.shared_slice(service))) or {}
            targets = [each["targetRef"] for each in there.get("endpoints") or ()]
            pods = dict(zip(router.slice_addresses(there), (each["name"] for each in targets), strict=True))
            port = live.get(ObjectKey(SERVICE.kind, key.namespace, service)) or {"spec": {"ports": [{}]}}
            children.append(router.endpoint_service(end, port["spec"]["ports"][0].get("targetPort", 1)))
            children.append(
                router.shared_slice(
                    service, [end], endpoint=key.name, port=(there.get("ports") or [{}])[0].get("port", 1),
                    pods=pods, home=targets[0]["namespace"] if targets else "", family="IPv4",
                )
            )  # fmt: skip
    different = 0
    for child in children:
        known, hashed = live.get(key_of(child)), stamped(child)["metadata"]["annotations"][DESIRED_HASH]
        different += known is None or needs_write(child, known, hashed=hashed) is not None
    await cluster.close()
    return {
        "bare, s": time.monotonic() - began,
        "bare, s of CPU": time.process_time(),
        "bare, objects": len(live),
        "bare, children compared": len(children),
        "bare, children that differ": different,
    }


async def measure(asked: argparse.Namespace) -> dict[str, Any]:
    """Run everything; returns the figures."""
    with tempfile.TemporaryDirectory(prefix="penstock-large-") as folder:
        async with TinyApiserver() as server:
            run = Run(asked, server, Path(folder))
            await run.all()
        return run.found


def main() -> int:
    """Print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--backends", type=int, default=5000, help="each has two endpoints and two pods")
    parser.add_argument("--namespaces", type=int, default=2000)
    parser.add_argument("--rest", type=float, default=20.0, help="seconds of rest, and of changes")
    parser.add_argument("--rate", type=float, default=50.0, help="changes of a knob a second")
    parser.add_argument("--soak", type=int, default=0, help="minutes of churn")
    parser.add_argument("--reporters", type=int, default=0, help="pods that report, over TLS")
    parser.add_argument("--busy", type=int, default=0, help="of them, have a load")
    parser.add_argument("--bare", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.bare:
        print(json.dumps(asyncio.run(bare(Path(asked.bare[0]), asked.bare[1]))))
        return 0
    set_log_level("error")
    uvloop.run(measure(asked))
    return 0


if __name__ == "__main__":
    sys.exit(main())
