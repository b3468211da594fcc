"""A whole operator on a Kubernetes in memory: everything but kopf, HTTP and time."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Self

from msgspec import UNSET

from penstock_operator import injected
from penstock_operator.apply import Applier
from penstock_operator.desired.config import RenderConfig
from penstock_operator.kinds import BACKEND, CONFIG_MAP, DEPLOYMENT, POD, Kind
from penstock_operator.kube.cluster import Cluster
from penstock_operator.prometheus import Prometheus
from penstock_operator.reconcile.context import Memory, ReconcileContext
from penstock_operator.reconcile.load_turns import LoadTurns
from penstock_operator.reconcile.manager import Manager, build_queues
from penstock_operator.reconcile.view import View
from penstock_operator.reports import Reports
from penstock_operator.store import ObjectKey, Store
from penstock_operator.workqueue import WorkQueue
from penstock_wire.control.artifact import ArtifactState
from penstock_wire.control.report import (
    BackendTotals,
    EndpointReport,
    Fit,
    Items,
    Reconfigure,
    RouterReport,
    SidecarReport,
    Totals,
)
from penstock_wire.errors import Reason
from tests.support.clocks.hand_clock import HandClock, settle
from tests.support.worlds.memory_cluster import MemoryCluster

Obj = dict[str, Any]
API = "penstock.dev/v1alpha1"
RENDER = RenderConfig(sidecar_image="sidecar:1", router_image="router:1")


class _Ignore:
    def wrote(self, verb: str, kind: str) -> None:
        pass


WORKERS = 8
"""Of `Manager.run`, as by default; a test that steps by hand has one."""


class Harness:
    """Events flow into the manager as a watch would bring them; `run` works until nothing is left to do.

    Args:
        cluster: a cluster that outlives this operator; None for a fresh one.
        emit: takes Events; None has each sent at once.
        fenced: what the operator writes through; None for the cluster itself.
        shared: whether namespaces without a label use the shared router.
        everywhere: whether it is an operator of all namespaces.
    """

    def __init__(
        self,
        cluster: MemoryCluster | None = None,
        clock: HandClock | None = None,
        render: RenderConfig = RENDER,
        emit: Callable[[Obj], Awaitable[None]] | None = None,
        fenced: Cluster | None = None,
        *,
        shared: bool = False,
        everywhere: bool = True,
    ) -> None:
        self.cluster = cluster or MemoryCluster()
        self.clock = clock or HandClock()
        self.log: list[tuple[str, dict[str, Any]]] = []
        self.errors: list[tuple[str, str]] = []
        written = fenced or self.cluster
        store = Store()
        queue, scale_queue = build_queues(self.clock, workers=WORKERS)
        memory = Memory(render=render, load_turns=LoadTurns(self.clock, queue.add))
        view = View(store, shared=shared)
        context = ReconcileContext(
            cluster=written,
            store=store,
            view=view,
            applier=Applier(written, store),
            reports=Reports(
                self.clock, lambda where, name: store.get(BACKEND, where, name) is not None, view.asked
            ),
            memory=memory,
            clock=self.clock,
            log=lambda message, **fields: self.log.append((message, fields)),
            observer=_Ignore(),
            enqueue=queue.add_after,
            everywhere=everywhere,
            failures=queue.failures,
            emit=emit,
        )
        self.manager = Manager(context, queue, scale_queue)
        self.ctx = self.manager.ctx
        self.events = True
        self.stalled: set[str] = set()
        """Kinds whose watch is stalled: their events do not arrive."""
        self.cluster.watchers.append(self._event)
        self._seq = 0
        self._silence: asyncio.Task[None] | None = None

    def _event(self, kind: str, obj: Obj) -> None:
        if not self.events or obj["kind"] in ("Event", "Lease") or obj["kind"] in self.stalled:
            return
        own = obj["metadata"].get("labels") or {}
        ours = obj["apiVersion"] == API or own.get("app.kubernetes.io/managed-by") == "penstock"
        ours = ours or (obj["kind"] == "Pod" and injected.policy_of(obj) != "")
        if not ours and self.ctx.store.get(_kind(obj), obj["metadata"]["namespace"], obj["metadata"]["name"]):
            kind, ours = "DELETED", True  # as a watch with a label selector reports it
        if ours:
            (self.manager.remove if kind == "DELETED" else self.manager.put)(obj)

    def asks(self, prometheus: Prometheus) -> None:
        """Who answers queries from now on."""
        self.manager.ctx = self.ctx = replace(self.ctx, prometheus=prometheus)

    def stop(self) -> None:
        """The process is gone: no events reach it any more."""
        self.events = False
        self.cluster.watchers.remove(self._event)
        if self._silence is not None:
            self._silence.cancel()

    async def run(self, limit: int = 2000) -> None:
        """Reconcile until both queues are empty; delayed keys stay delayed."""
        for queue, handle in (
            (self.manager.queue, self.manager.reconcile),
            (self.manager.scale_queue, self.manager.scale),
        ) * 3:
            while len(queue):
                limit -= 1
                assert limit > 0, "a hot loop"
                await self.step(queue, handle)

    async def step(
        self, queue: WorkQueue[ObjectKey], handle: Callable[[ObjectKey], Awaitable[float | None]]
    ) -> None:
        """Work on one key, as the manager's workers do: whatever goes wrong, it is tried again."""
        key = await queue.get()
        try:
            again = await handle(key)
        except Exception as error:
            self.errors.append((str(key), f"{type(error).__name__}: {error}"))
            queue.add_failed(key)
        else:
            queue.forget(key)
            if again is not None:
                queue.add_after(key, again)
        finally:
            queue.done(key)

    async def turn(self, seconds: float) -> None:
        """Let time pass and do what falls due; meanwhile the operator looks for pods that fell silent."""
        if self._silence is None:
            self._silence = asyncio.get_running_loop().create_task(self.manager.watch_silence())
            await settle(1)
        self.clock.turn(seconds)
        await settle(2)
        await self.run()

    async def restart(self) -> Harness:
        """A new operator process on the same cluster: it lists, and looks at everything."""
        self.stop()
        fresh = Harness(self.cluster, self.clock, self.ctx.render)
        await fresh.manager.sync()
        await fresh.run()
        return fresh

    # -- users ---------------------------------------------------------------------------------------------

    def apply(self, obj: Obj) -> Obj:
        """Kubectl apply."""
        return self.cluster.user_applies(copy.deepcopy(obj))

    async def applied(self, *objs: Obj) -> Self:
        """Kubectl apply, then `run`."""
        for obj in objs:
            self.apply(obj)
        await self.run()
        return self

    def condition(
        self, kind: Kind, name: str, condition: str, namespace: str = "n"
    ) -> tuple[str, str] | None:
        """Status and reason of a condition; None if it does not exist."""
        status = self.cluster.find(kind, namespace, name).get("status") or {}
        for entry in status.get("conditions") or ():
            if entry["type"] == condition:
                return entry["status"], entry["reason"]
        return None

    # -- kubelet and the Deployment controller -------------------------------------------------------------

    def pods_ready(self, deployment: str, count: int, namespace: str = "n") -> list[str]:
        """Give a Deployment so many ready pods (pods beyond that go)."""
        live = self.cluster.find(DEPLOYMENT, namespace, deployment)
        labels = live["spec"]["template"]["metadata"]["labels"]
        names = [f"{deployment}-{number}" for number in range(count)]
        for name in self.cluster.names(POD, namespace):
            if name.startswith(f"{deployment}-") and name not in names:
                self.cluster.remove(POD, namespace, name)
        for number, name in enumerate(names):
            if (POD.kind, namespace, name) not in self.cluster.objects:
                self.cluster.user_applies(
                    {
                        "apiVersion": "v1",
                        "kind": "Pod",
                        "metadata": {"namespace": namespace, "name": name, "labels": dict(labels)},
                        "spec": {"nodeName": "one"},
                    }
                )
            self.cluster.edit(
                POD, namespace, name, lambda pod, number=number: pod.update(status=_ready(number))
            )  # type: ignore[misc]
        self.cluster.edit(
            DEPLOYMENT,
            namespace,
            deployment,
            lambda obj: obj.update(
                status={
                    "observedGeneration": obj["metadata"]["generation"],
                    "replicas": count,
                    "readyReplicas": count,
                    "updatedReplicas": count,
                    "availableReplicas": count,
                }
            ),
        )
        return names

    def uid(self, kind: Kind, name: str, namespace: str = "n") -> str:
        """The uid of a live object."""
        return str(self.cluster.find(kind, namespace, name)["metadata"]["uid"])

    def report(
        self,
        backend: str,
        pod: str,
        *,
        version: int = 0,
        digest: str = "",
        load: int = 0,
        work: float | None = None,
        reconfigure: Reconfigure | None = None,
        processor_wait: float | None = None,
        arrived: int = 0,
        refused: int = 0,
        fit: Mapping[str, Fit] = MappingProxyType({}),
        message: str = "",
        artifact: ArtifactState | None = None,
        namespace: str = "n",
    ) -> None:
        """A sidecar's report arrives; with a message, of a model that is not ready."""
        self._seq += 1
        report = SidecarReport(
            pod=pod, uid=self.uid(POD, pod, namespace), seq=self._seq,
            state="loading" if message else "ready", message=message,
            settings_version=version, settings_digest=digest,
            items=Items(queued=load, work=UNSET if work is None else work),
            totals=Totals(arrived=arrived, refused={Reason.QUEUE_FULL: refused}),
            fit=dict(fit), reconfigure=reconfigure, processor_wait=processor_wait,
            artifact=artifact,
        )  # fmt: skip
        news = self.ctx.reports.sidecar(namespace, backend, report)
        self.manager.reported(namespace, backend, notable=news.notable)

    def router_report(
        self,
        pod: str,
        endpoints: list[str],
        *,
        version: int,
        digest: str = "",
        held: Mapping[str, int] = MappingProxyType({}),
        processor_wait: float | None = None,
        namespace: str = "n",
        dedicated: str = "",
        answered: Mapping[str, BackendTotals] = MappingProxyType({}),
    ) -> None:
        """A router's report arrives; each of its endpoints holds or answered so many requests by backend.

        It is of an endpoint's own router where one is named.
        """
        self._seq += 1
        report = RouterReport(
            pod=pod, uid=self.uid(POD, pod, namespace), seq=self._seq, state="ready",
            settings_version=version, settings_digest=digest,
            endpoints={
                name: EndpointReport(
                    listening=True,
                    held=sum(held.values()),
                    backends={backend: BackendTotals(held=count) for backend, count in held.items()}
                    | dict(answered),
                )
                for name in endpoints
            },
            processor_wait=processor_wait,
        )  # fmt: skip
        news = self.ctx.reports.router(namespace, report, endpoint=dedicated)
        self.manager.reported(namespace, "", notable=news.notable)


def _kind(obj: Obj) -> Kind:
    from penstock_operator.kinds import kind_of

    return kind_of(obj)


def _ready(number: int) -> Obj:
    return {
        "phase": "Running",
        "podIP": f"10.0.0.{number + 1}",
        "podIPs": [{"ip": f"10.0.0.{number + 1}"}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }


def backend(name: str = "m", **spec: Any) -> Obj:
    """A ModelBackend as the apiserver stores it."""
    model = {"container": {"image": "model:1"}, "protocol": "instances", "port": 8080, "readyPath": "/"}
    return {
        "apiVersion": API,
        "kind": "ModelBackend",
        "metadata": {"namespace": "n", "name": name},
        "spec": {"model": model} | spec,
    }


def endpoint(name: str = "e", **spec: Any) -> Obj:
    """A ModelEndpoint."""
    return {
        "apiVersion": API,
        "kind": "ModelEndpoint",
        "metadata": {"namespace": "n", "name": name},
        "spec": {"backend": "m"} | spec,
    }


def split(name: str = "s", endpoint_name: str = "e", **weights: int) -> Obj:
    """A TrafficSplit."""
    backends = [{"name": backend_name, "weight": weight} for backend_name, weight in weights.items()]
    return {
        "apiVersion": API,
        "kind": "TrafficSplit",
        "metadata": {"namespace": "n", "name": name},
        "spec": {"endpoint": endpoint_name, "backends": backends},
    }


def policy(name: str = "p", **spec: Any) -> Obj:
    """A BatchPolicy."""
    return {
        "apiVersion": API,
        "kind": "BatchPolicy",
        "metadata": {"namespace": "n", "name": name},
        "spec": spec,
    }


def backend_key(name: str = "m") -> ObjectKey:
    """The key of a backend in namespace n."""
    return ObjectKey(BACKEND.kind, "n", name)


def settings(harness: Harness, name: str = "m-backend-settings") -> dict[str, Any]:
    """The settings document in a ConfigMap."""
    document: dict[str, Any] = json.loads(
        harness.cluster.find(CONFIG_MAP, "n", name)["data"]["settings.json"]
    )
    return document


async def serving() -> Harness:
    """A backend with a policy, an endpoint and a split, all ready and reported."""
    harness = Harness()
    harness.apply(policy(maxBatchSize=8))
    harness.apply(backend(batchPolicyRef="p"))
    harness.apply(endpoint())
    harness.apply(split(m=100))
    await harness.run()
    for pod in harness.pods_ready("m-backend", 1):
        harness.report("m", pod, version=settings(harness)["version"])
    routers = harness.pods_ready("penstock-router", 1)
    await harness.run()
    harness.router_report(routers[0], ["e"], version=settings(harness, "penstock-router-settings")["version"])
    await harness.run()
    return harness
