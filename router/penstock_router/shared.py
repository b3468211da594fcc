"""A router that serves several namespaces: a `Router` for each of them, over the same sockets and memory.

Two namespaces share no name, no pod, no route and no counter, since each has its own `Router`. What they
share is the process: its event loop, its connections to pods, and the bound on its memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from prometheus_client import metrics_core as core

from penstock_router.metrics import Metrics, collect
from penstock_router.pods.endpoint_slices import Address
from penstock_router.router import Router
from penstock_wire.build import BUILD
from penstock_wire.control import report
from penstock_wire.control.report import State, TenantReport
from penstock_wire.control.router_settings import RouterSettings, Tenant
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.hop.upstream import HopUpstream
from penstock_wire.http import Exchange
from penstock_wire.http.memory import MemoryBound
from penstock_wire.http.server.limits import SWEEP_SECONDS
from penstock_wire.http.server.server import H1Front
from penstock_wire.process import log

FORGOTTEN = 1000
"""Addresses of former pods that are kept beside those of the present ones."""

QUIET_TURNS = 16
"""A namespace at whose ports nothing happens is looked at for one in so many reports."""

KEEP_SECONDS = 0.05
"""Seconds after a change of pods until connections to them are kept, and others are not."""


class SharedRouter:
    """The routers of all namespaces that share a process; it stands in for a `Router`.

    Args:
        make: makes the router of one namespace, and the front by which it listens; it gets the namespace, and
            what the router calls on changes that must be reported at once.
        upstream: what they send requests with.
        pod: as for `Router`, as are `uid`, `slices_synced`, `news`, `processor_wait` and `memory`.
    """

    def __init__(
        self,
        make: Callable[[str, Callable[[], None]], tuple[Router, H1Front]],
        *,
        upstream: HopUpstream,
        pod: str,
        uid: str,
        slices_synced: Callable[[], bool],
        news: Callable[[], None],
        processor_wait: Callable[[], float | None],
        memory: MemoryBound,
    ) -> None:
        self.settings: RouterSettings | None = None
        self.ready = asyncio.Event()
        self.draining = False
        self.metrics = SharedMetrics(self, memory)
        self.tenants: dict[str, Router] = {}
        """The router of each namespace."""
        self.fronts: list[H1Front] = []
        """All by which it listens."""
        self.front_of: dict[str, H1Front] = {}
        """By which a namespace's router listens."""
        self._stirred: dict[str, int] = {}  # by namespace, the next reports for which it is looked at
        self._turn = 0
        self._reported: tuple[int, dict[str, TenantReport]] = (0, {})  # number and tenants
        self._base = self._reported  # of the report that the next one builds on
        self._memory = memory
        self._make = make
        self._upstream = upstream
        self._pod, self._uid = pod, uid
        self._slices_synced = slices_synced
        self._news = news
        self._processor_wait = processor_wait
        self._slices: dict[str, Mapping[str, tuple[Address, ...]]] = {}
        self._kept: dict[str, Collection[tuple[str, int]]] = {}
        self._tenant_of: dict[tuple[str, int], Router] = {}  # by the address of a pod
        self._unready: set[str] = set()
        self._keeping: asyncio.TimerHandle | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        upstream.on_room, upstream.on_recalled = self._on_room, self._on_recalled

    def apply(self, settings: RouterSettings) -> None:
        """Replace the settings; namespaces that they do not change are left alone."""
        before = {} if self.settings is None else self.settings.tenants or {}
        tenants = settings.tenants or {}
        self.settings = settings
        for name in self.tenants.keys() - tenants.keys():
            self._end(name)
        for name, tenant in tenants.items():
            known = before.get(name)
            if name not in self.tenants:
                self._begin(name)
            elif known is tenant or known == tenant:
                continue
            self._apply(name, tenant)
        self.check_ready()

    def _apply(self, name: str, tenant: Tenant) -> None:
        self._stirred[name] = 2
        self.tenants[name].apply(RouterSettings(endpoints=tenant.endpoints), door=tenant.port)

    def _begin(self, name: str) -> None:
        router, front = self._make(name, lambda: self._tenant_news(name))
        self.tenants[name], self.front_of[name] = router, front
        self._unready.add(name)
        self.fronts.append(front)
        router.pods.recall = self._upstream.recall
        router.pods.keep = lambda addresses: self._keep(name, addresses)
        router.pods.later = asyncio.get_running_loop().call_later
        router.pods.set_slices(self._slices.get(name, {}))
        task = asyncio.create_task(self._serve(router, front))
        self._running.add(task)
        task.add_done_callback(self._ended)

    async def _serve(self, router: Router, front: H1Front) -> None:
        await router.run()
        await front.close(0)
        self.fronts.remove(front)
        bounded = self._memory.connections
        bounded[:] = [each for each in bounded if each is not front.connections]

    def _end(self, name: str) -> None:
        router = self.tenants.pop(name)
        del self.front_of[name]
        self._stirred.pop(name, None)
        self._unready.discard(name)
        router.end()
        self._keep(name, ())
        del self._kept[name]
        self._tenant_of = {at: of for at, of in self._tenant_of.items() if of is not router}

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._broken.done():
            self._broken.set_exception(error)

    async def run(self) -> None:
        """Listen as the settings say, until cancelled.

        Raises:
            Exception: what no router of a namespace should raise.
        """
        sweeps = asyncio.create_task(self._sweep())
        try:
            await self._broken
        finally:
            sweeps.cancel()
            for task in self._running:
                task.cancel()

    async def _sweep(self) -> None:
        """Sweep all fronts, each of which would else wake the process once a second."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            for front in self.fronts:
                front.sweep()

    # -- pods ----------------------------------------------------------------------------------------------

    def set_slices(self, namespace: str, backends: Mapping[str, tuple[Address, ...]]) -> None:
        """Replace all addresses of a namespace from EndpointSlices."""
        if backends:
            self._slices[namespace] = backends
        else:
            self._slices.pop(namespace, None)
        if namespace in self.tenants:
            self._stirred[namespace] = 2
            self.tenants[namespace].pods.set_slices(backends)
        if not namespace:  # the first call after a list
            self.check_ready()

    def _keep(self, namespace: str, addresses: Collection[tuple[str, int]]) -> None:
        self._kept[namespace] = addresses
        if namespace in self.tenants:
            self._tenant_of.update(dict.fromkeys(addresses, self.tenants[namespace]))
        if self._keeping is None:  # once for the changes of many namespaces: it takes time for each pod
            self._keeping = asyncio.get_running_loop().call_later(KEEP_SECONDS, self._keep_all)

    def _keep_all(self) -> None:
        self._keeping = None
        kept = [address for each in self._kept.values() for address in each]
        if len(self._tenant_of) > len(kept) + FORGOTTEN:
            self._tenant_of = {at: self._tenant_of[at] for at in kept if at in self._tenant_of}
        self._upstream.keep(kept)

    def _on_room(self, address: tuple[str, int], free: int, waiting: int, capacity: int) -> None:
        router = self._tenant_of.get(address)
        if router is not None:
            router.pods.on_room(address, free, waiting, capacity)

    def _on_recalled(self, address: tuple[str, int], count: int) -> None:
        router = self._tenant_of.get(address)
        if router is not None:
            router.pods.on_recalled(address, count)

    def _tenant_news(self, name: str) -> None:
        """Take up that the router of a namespace has something to report."""
        self._stirred[name] = 2
        if name in self._unready and self.tenants[name].ready.is_set():
            self._unready.remove(name)
            self._check_all_ready()
        self._news()

    # -- as a router ---------------------------------------------------------------------------------------

    def front_door(self, exchange: Exchange) -> None:
        """Refuse a request: only a namespace has a front door, at a port of its own."""
        error = PenstockError(Reason.NO_ROUTE, "this router serves namespaces, each at ports of its own")
        exchange.answer(error.response())

    def report(self, sequence: int, *, settings_version: int, settings_digest: str = "") -> bytes:
        tenants = self._tenant_reports()
        number, base = self._base
        builds = number > 0 and tenants.keys() == base.keys()
        self._reported = (sequence, tenants)
        if builds:
            tenants = {name: each for name, each in tenants.items() if each is not base[name]}
        document = report.RouterReport(
            pod=self._pod,
            uid=self._uid,
            seq=sequence,
            state=self.state(),
            settings_version=settings_version,
            settings_digest=settings_digest,
            tenants=tenants,
            changes=True,
            base=number if builds else 0,
            processor_wait=self._processor_wait(),
        )
        return report.encode(document)

    def taken(self, number: int) -> None:
        """Take the number of the report on which the next one can build; 0 for none."""
        self._base = self._reported if number == self._reported[0] else (0, {})

    def _tenant_reports(self) -> dict[str, TenantReport]:
        """What a report says of each namespace: the same object as before if nothing has changed.

        Most namespaces sleep. One without a connection is looked at after it was last used, and now and then.
        """
        self._turn = (self._turn + 1) % QUIET_TURNS
        before, made = self._reported[1], {}
        for place, (name, router) in enumerate(self.tenants.items()):
            front, known = self.front_of[name], before.get(name)
            if front.connections or front.accepted:
                front.accepted, self._stirred[name] = 0, 2
            left = self._stirred.get(name, 0)
            if known is None or left or place % QUIET_TURNS == self._turn:
                fresh = TenantReport(door=router.door_listens, endpoints=router.endpoints_report())
                known = known if fresh == known else fresh
                if left > 1:
                    self._stirred[name] = left - 1
                else:
                    self._stirred.pop(name, None)
            made[name] = known
        return made

    def state(self) -> State:
        if self.draining:
            return "draining"
        if self.settings is None:
            return "starting"
        return "ready" if self.ready.is_set() else "loading"

    def end_holds(self) -> None:
        """Answer all held requests 503, since the router shuts down."""
        for router in self.tenants.values():
            router.end_holds()

    def check_ready(self) -> None:
        """Set `ready` once the settings are there, and every namespace's router is ready."""
        if self.settings is None or self.ready.is_set() or not self._slices_synced():
            return
        for name in list(self._unready):
            self.tenants[name].check_ready()  # NB: its news remove it
        self._check_all_ready()

    def _check_all_ready(self) -> None:
        if self.settings is not None and not (self._unready or self.ready.is_set()) and self._slices_synced():
            self.ready.set()
            log("ready", namespaces=len(self.tenants), build=BUILD)
            self._news()


class SharedMetrics:
    """The metrics of all namespaces, or of one.

    Args:
        router: whose.
        memory: the memory that all connections keep.
        only: the namespace; empty for all.
    """

    def __init__(self, router: SharedRouter, memory: MemoryBound, only: str = "") -> None:
        self._router = router
        self._memory = memory
        self._only = only

    def of(self, namespace: str) -> SharedMetrics:
        """Those of one namespace, for who shows that alone: a router may have series of a thousand.

        Args:
            namespace: its name.
        """
        return SharedMetrics(self._router, self._memory, namespace)

    def collect(self) -> Iterator[Any]:
        """Yield all metrics, for `prometheus_client`."""
        scopes: dict[str, Metrics] = {
            name: each.metrics for name, each in self._router.tenants.items() if self._only in ("", name)
        }
        yield from collect(scopes, self._memory)
        connections = core.GaugeMetricFamily(
            "penstock_router_connections", "Open connections of clients.", labels=["namespace"]
        )
        for name, front in self._router.front_of.items():
            if front.connections and self._only in ("", name):
                connections.add_metric([name], len(front.connections))
        yield connections
