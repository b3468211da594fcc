"""Runs the reconcilers: turns events and reports into queued keys, and works the queues off."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Protocol

from penstock_operator import injected
from penstock_operator.clock import Clock
from penstock_operator.desired.labels import MANAGED, MANAGED_BY, ROUTER_MODE, SLICE_MANAGED_BY
from penstock_operator.errors import LeaseLost, OperatorError, Outdated
from penstock_operator.kinds import (
    BACKEND,
    ENDPOINT,
    ENDPOINT_SLICE,
    NAMESPACE,
    PARENTS,
    POD,
    POLICY,
    SPLIT,
    WATCHED_CHILDREN,
    Kind,
)
from penstock_operator.kube.cluster import Obj
from penstock_operator.reconcile import backend, endpoint, parent, policy, router, shared, split
from penstock_operator.reconcile.context import SHOWN_AFTER, ReconcileContext
from penstock_operator.reconcile.relist import Found, relist_kind
from penstock_operator.reconcile.scaling import Scaler
from penstock_operator.reconcile.status_writer import same_status, write_status
from penstock_operator.reconcile.watch_mapping import keys_for
from penstock_operator.store import Change, ObjectKey, key_of, parent_changed
from penstock_operator.supervision import keep_running
from penstock_operator.workqueue import QueueObserver, WorkQueue, work

LOAD_INTERVAL = 2.0
"""Seconds between two looks at whether a backend's load has moved. With a report a second, its status shows
that within 3 s if there are turns for all (see `load_turns`)."""

TRAFFIC_INTERVAL = 10.0
"""Seconds between two looks at the routers' counts for the splits of a namespace."""

SCALERS = 4
"""Backends scaled at once: if the apiserver takes seconds for one, the others must not wait."""

SCALE_AGAIN = 5.0
"""Seconds at most before a failed write of a number is tried again: requests can be waiting for it."""

SILENCE_INTERVAL = 2.0
"""Seconds between two looks for pods that fell silent."""

_FATAL = (LeaseLost,)
_PARENTS = frozenset(kind.kind for kind in PARENTS)

CHILD_SELECTOR = f"{MANAGED_BY}={MANAGED}"

WATCHED: dict[Kind, str | None] = {
    **dict.fromkeys(PARENTS),
    **dict.fromkeys(WATCHED_CHILDREN, CHILD_SELECTOR),
    # NB: those of the EndpointSlice controller have the labels of our Services, too.
    ENDPOINT_SLICE: f"{SLICE_MANAGED_BY}={MANAGED}",
    NAMESPACE: ROUTER_MODE,
}
"""What is watched: kinds with their label selectors; namespaces only by who sees all of them."""


def watched(namespace: str | None) -> dict[Kind, str | None]:
    """Return what is watched in a namespace, or in all."""
    return {kind: selector for kind, selector in WATCHED.items() if not namespace or kind != NAMESPACE}


Reconcile = Callable[[ReconcileContext, ObjectKey], Awaitable[float | None]]

RECONCILERS: dict[str, Reconcile] = {
    BACKEND.kind: backend.reconcile,
    ENDPOINT.kind: endpoint.reconcile,
    SPLIT.kind: split.reconcile,
    POLICY.kind: policy.reconcile,
    shared.ROUTER_KIND: router.reconcile,
    shared.KIND: shared.reconcile,
}


class RunObserver(Protocol):
    """Counts runs."""

    def ran(self, kind: str, seconds: float, *, ok: bool) -> None:
        """Count a run of a reconciler of this kind."""


class Manager:
    """Runs the reconcilers."""

    def __init__(
        self,
        ctx: ReconcileContext,
        queue: WorkQueue[ObjectKey],
        scale_queue: WorkQueue[ObjectKey],
        observer: RunObserver | None = None,
        *,
        namespace: str | None = None,
    ) -> None:
        self.ctx = ctx = replace(ctx, changed=self._changed, hurried=lambda: queue.has_urgent)
        self._namespace = namespace
        self.queue = queue
        self.scale_queue = scale_queue
        self._observer = observer
        self._scaler = Scaler(ctx)
        self.listed: dict[tuple[Kind, str | None], str] = {}
        """The versions of the lists of `sync`, by kind and selector; empty of one that was begun twice."""
        self._load_looked: dict[ObjectKey, float] = {}
        self._traffic_looked: dict[str, float] = {}

    # -- what comes in -----------------------------------------------------------------------------------

    def is_stored(self, kind: Kind, obj: Obj) -> bool:
        """Whether the store has this very version, as for most of what watches list after a start.

        Any thread can call this: it is one look into a dict.
        """
        metadata = obj["metadata"]
        known = self.ctx.store.get(kind, metadata.get("namespace") or "", metadata["name"])
        if known is None:
            return False
        mine = known["metadata"]
        return all(mine.get(name) == metadata.get(name) for name in ("uid", "resourceVersion"))

    def put(self, obj: Obj) -> None:
        """Take up an object that was created or changed."""
        self._guarded(self.ctx.store.put, obj)

    def remove(self, obj: Obj) -> None:
        """Take up that an object is gone."""
        self._guarded(self.ctx.store.remove, obj)

    def _guarded(self, take: Callable[[Obj], Change], obj: Obj) -> None:
        """Take up a change; an error with one object is logged, and its key is queued all the same."""
        try:
            self._changed(take(obj))
        except Exception as error:
            key = key_of(obj)
            self.ctx.log(
                "change not followed", level="error", key=str(key), error=f"{type(error).__name__}: {error}"
            )
            if key.kind in RECONCILERS:
                self.queue.add(key)

    def reported(self, namespace: str, backend_name: str, *, notable: bool) -> None:
        """Queue what a new report concerns.

        Args:
            backend_name: the backend of its pod, or the workload if it was injected; empty for a router.
            notable: whether it has anything that a status must show at once.
        """
        if not backend_name:
            for name in self.ctx.reports.take_newly_held(namespace):
                self.scale_queue.add(ObjectKey(BACKEND.kind, namespace, name), urgent=True)
            if notable:
                self.queue.add(router.router_key(namespace))
                router.enqueue_reported(self.ctx, namespace)
            self._look_at_traffic(namespace)
            return
        key = ObjectKey(BACKEND.kind, namespace, backend_name)
        now = self.ctx.clock.time()
        if injected.is_workload(backend_name):
            if notable:
                for name in self.ctx.view.policies_of(namespace, backend_name):
                    self.queue.add(ObjectKey(POLICY.kind, namespace, name))
            elif now - self._load_looked.get(key, float("-inf")) >= LOAD_INTERVAL:
                self._load_looked[key] = now
                for name in self.ctx.view.policies_of(namespace, backend_name):
                    policy.look_at_load(self.ctx, ObjectKey(POLICY.kind, namespace, name), backend_name)
            return
        if notable:
            self.queue.add(key)
            self._policy_of(key)
        elif self.ctx.view.backend(namespace, backend_name) is None:
            pass  # its pods can report for a while after it is gone
        elif now - self._load_looked.get(key, float("-inf")) >= LOAD_INTERVAL:
            self._load_looked[key] = now
            backend.look_at_load(self.ctx, key)

    def _look_at_traffic(self, namespace: str) -> None:
        """Queue what shows the routers' counts every `TRAFFIC_INTERVAL`: splits, and backends with errors."""
        now = self.ctx.clock.time()
        if now - self._traffic_looked.get(namespace, float("-inf")) < TRAFFIC_INTERVAL:
            return
        self._traffic_looked.pop(namespace, None)
        # Without pods, no report of a sidecar shows what its clients get.
        for name in self.ctx.reports.failing(namespace):
            self._traffic_looked[namespace] = now
            backend.look_at_load(self.ctx, ObjectKey(BACKEND.kind, namespace, name))
        for stored in self.ctx.store.all(SPLIT, namespace):
            self._traffic_looked[namespace] = now
            self.queue.add(key_of(stored))

    def _changed(self, change: Change) -> None:
        self._forget_namesake(change)
        version = change.new or change.old
        # NB: a user waits for this; all else is the cluster's own, and far more.
        urgent = version is not None and version["kind"] in _PARENTS and parent_changed(change)
        for key in keys_for(self.ctx.view, change):
            self.queue.add(key, urgent=urgent)
            if key.kind == BACKEND.kind and version is not None and version["kind"] == POLICY.kind:
                self.scale_queue.add(key)  # its objective may be another one
        if not change.happened or version is None:
            return
        if self._status_overwritten(change):
            self.queue.add(key_of(version))
        if version["kind"] == BACKEND.kind and change.new is not None:
            if urgent:
                self.scale_queue.add(key_of(version), urgent=True)
        elif version["kind"] == POD.kind and change.new is None:
            metadata = version["metadata"]
            self.ctx.reports.forget_pod(metadata["namespace"], metadata["name"], metadata["uid"])
            workload = injected.workload_of(version)
            if injected.policy_of(version) and not self.ctx.view.policies_of(metadata["namespace"], workload):
                self.ctx.reports.forget_backend(metadata["namespace"], workload)
                self._load_looked.pop(ObjectKey(BACKEND.kind, metadata["namespace"], workload), None)

    def _status_overwritten(self, change: Change) -> bool:
        """Whether another writer has changed the status of a resource.

        A write of a killed operator can land after its successor has looked: whichever the writer, a status
        that differs from ours must not stay.
        """
        old, new = change.old, change.new
        if old is None or new is None or new["kind"] not in _PARENTS or parent_changed(change):
            return False
        written = new.get("status") or {}
        if same_status(written, old.get("status") or {}):
            return False
        in_flight = self.ctx.memory.status_in_flight.get(key_of(new))
        return in_flight is None or not same_status(written, in_flight)

    def _forget_namesake(self, change: Change) -> None:
        """Forget a backend that is gone: nothing of it holds for the next one of its name."""
        old, new = change.old, change.new
        if old is None or old["kind"] != BACKEND.kind:
            return
        if new is None or new["metadata"].get("uid") != old["metadata"].get("uid"):
            key = key_of(old)
            self._load_looked.pop(key, None)
            self._scaler.forget(key)
            backend.forget(self.ctx, key)

    def _policy_of(self, key: ObjectKey) -> None:
        backend = self.ctx.view.backend(key.namespace, key.name)
        if backend is not None and backend.spec.batch_policy_ref:
            self.queue.add(ObjectKey(POLICY.kind, key.namespace, backend.spec.batch_policy_ref))

    # -- what runs ---------------------------------------------------------------------------------------

    async def reconcile(self, key: ObjectKey) -> float | None:
        """Run one key once.

        Returns:
            Seconds after which to look again, if any.

        Raises:
            ClusterError: a call failed that can succeed when tried again.
        """
        began, ok = self.ctx.clock.time(), False
        try:
            again = await RECONCILERS[key.kind](self.ctx, key)
        except Outdated:
            ok, again = True, None  # what it found is in the store, and the keys concerned are queued
        except OperatorError:
            raise
        except Exception as error:
            await self._cannot_follow(key, error)
            raise
        else:
            ok = True
        finally:
            if self._observer is not None:
                self._observer.ran(key.kind, self.ctx.clock.time() - began, ok=ok)
        return again

    async def _cannot_follow(self, key: ObjectKey, error: Exception) -> None:
        """Show in the status that reconciling an object fails for an unforeseen reason."""
        kind = next((kind for kind in PARENTS if kind.kind == key.kind), None)
        stored = self.ctx.store.get(kind, key.namespace, key.name) if kind is not None else None
        if stored is not None and self.ctx.failures(key) >= SHOWN_AFTER:
            why = f"{key}: it cannot be followed: {type(error).__name__}: {error}"
            unreadable = backend.unreadable if kind is BACKEND else parent.unreadable
            await write_status(self.ctx, stored, unreadable(self.ctx, stored, why))

    async def scale(self, key: ObjectKey) -> float | None:
        """Run the autoscaler for one backend once (see `reconcile`)."""
        return await self._scaler.look(key)

    def failed(self, key: ObjectKey, error: Exception, delay: float) -> None:
        """Log a failed run.

        Args:
            delay: seconds until it is tried again.
        """
        self.ctx.log(
            "reconcile failed", level="warning", key=str(key), error=f"{type(error).__name__}: {error}",
            retry_seconds=round(delay, 1),
        )  # fmt: skip

    async def run(self, workers: int) -> None:
        """Work until cancelled or until the queues are shut down.

        Raises:
            LeaseLost: a write was refused because we do not lead any more (in an exception group).
        """

        async def reconciling() -> None:
            await work(self.queue, self.reconcile, self.failed, fatal=_FATAL)

        async def scaling() -> None:
            await work(self.scale_queue, self.scale, self.failed, fatal=_FATAL)

        async with asyncio.TaskGroup() as tasks:
            for loop in (reconciling,) * workers + (scaling,) * SCALERS:
                kept = keep_running(loop.__name__, loop, clock=self.ctx.clock, log=self.ctx.log)
                tasks.create_task(kept)

    async def watch_silence(self) -> None:
        """Queue backends and routers with pods that stopped reporting; run until cancelled."""
        ctx = self.ctx
        looked = ctx.clock.time()
        while True:
            await ctx.clock.sleep(SILENCE_INTERVAL)
            # NB: take the time first: a pod that falls silent in between is then returned twice, not never.
            since, looked = looked, ctx.clock.time()
            for namespace, name in ctx.reports.silent(since):
                self.reported(namespace, name, notable=True)

    def _watched(self) -> list[tuple[Kind, str | None]]:
        return [*watched(self._namespace).items(), (POD, injected.SELECTOR)]

    # -- lists -------------------------------------------------------------------------------------------

    async def sync(self) -> None:
        """List everything once, so that the first reconcile sees all that exists.

        Raises:
            ClusterError: a list failed.
        """
        # NB: lists make no cycles; the collector's scans of ever more objects took two fifths of the time.
        gc.disable()
        try:
            for kind, selector in self._watched():
                # NB: straight into the store, so that only one page of a list is in memory.
                put = self.ctx.store.put
                began = partial(self._begins, (kind, selector))
                await self.ctx.cluster.list(kind, self._namespace, keep=put, labels=selector, began=began)
        finally:
            gc.enable()
        self.ctx.memory.started = self.ctx.clock.time()
        self.enqueue_all()

    def _begins(self, of: tuple[Kind, str | None], version: str) -> None:
        # NB: what was deleted since an earlier list is in the store, and in no event after this one. So kopf
        # lists then, and what is gone is looked for.
        self.listed[of] = "" if of in self.listed else version

    async def relist(self) -> Found:
        """List metadata; drop what was deleted while there was no watch, and fetch what changed meanwhile.

        Returns:
            The numbers of these objects; the keys that depend on them are queued.

        Raises:
            ClusterError: a call failed.
        """
        relisted = Found()
        for kind, selector in self._watched():
            relisted += await relist_kind(
                self.ctx.cluster,
                self.ctx.store,
                kind,
                self._changed,
                namespace=self._namespace,
                selector=selector,
            )
        return relisted

    def enqueue_all(self) -> None:
        """Queue every key, first those of what users have changed since it was last reconciled."""
        urgent: set[str] = set()
        for kind in PARENTS:
            for stored in self.ctx.store.all(kind):
                behind = _is_behind(stored)
                if behind and kind is ENDPOINT:
                    urgent.add(stored["metadata"]["namespace"])
                self.queue.add(key_of(stored), urgent=behind)
                if kind is BACKEND:
                    self.scale_queue.add(key_of(stored))
        for namespace in self.ctx.store.namespaces(ENDPOINT):
            self.queue.add(router.router_key(namespace), urgent=namespace in urgent)
        self.queue.add(shared.KEY, urgent=bool(urgent))
        for pod in self.ctx.store.all(POD):
            if named := injected.policy_of(pod):
                self.queue.add(ObjectKey(POLICY.kind, pod["metadata"]["namespace"], named))


def _is_behind(stored: Obj) -> bool:
    """Whether the status of a parent is of an earlier spec, or it has none."""
    metadata, status = stored["metadata"], stored.get("status") or {}
    return bool(status.get("observedGeneration") != metadata.get("generation"))


def build_queues(
    clock: Clock, observers: Iterable[QueueObserver | None] = (None, None), *, workers: int | None = None
) -> tuple[WorkQueue[ObjectKey], WorkQueue[ObjectKey]]:
    """Make the two queues: keys to reconcile, and backends to scale.

    Args:
        workers: of the first; a namespace may have three of four of these. None if there is one namespace
            alone, which may have all.
    """
    first, second = observers
    namespace = attrgetter("namespace")
    most = (None, None) if workers is None else (max(1, workers * 3 // 4), SCALERS - 1)
    return WorkQueue[ObjectKey](clock, observer=first, tenant=namespace, most=most[0]), WorkQueue[ObjectKey](
        clock, cap=SCALE_AGAIN, observer=second, tenant=namespace, most=most[1]
    )
