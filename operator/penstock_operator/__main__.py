"""Runs `penstock-operator`: configures, serves health, waits for the Lease, and acts until it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import logging
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from penstock_wire.addresses import join
from penstock_wire.extras import needs

with needs("penstock-operator", "operator"):
    import uvloop

    from penstock_operator import config as configuration
    from penstock_operator import injected
    from penstock_operator.apply import Applier
    from penstock_operator.clock import Clock, LoopClock
    from penstock_operator.config import Config
    from penstock_operator.control.auth import ReportAuthenticator
    from penstock_operator.control.load_monitor import LoadMonitor
    from penstock_operator.control.recommendation import Recommendations
    from penstock_operator.control.server import ControlServer, most_reporters
    from penstock_operator.dry_run import preview, read_file
    from penstock_operator.errors import ConfigError, LeaseLost
    from penstock_operator.handlers import KopfLog, Watches
    from penstock_operator.kinds import BACKEND, POD
    from penstock_operator.kube.cluster import Cluster, Connection, KubernetesCluster, Reader, credentials
    from penstock_operator.kube.dry_cluster import FileCluster
    from penstock_operator.kube.events import Recorder
    from penstock_operator.kube.fence import FencedCluster
    from penstock_operator.kube.lease import LEASE_NAME, Elector
    from penstock_operator.kube.lease_thread import CALL_SECONDS, LeaseThread
    from penstock_operator.leader_endpoint import LeaderEndpoint
    from penstock_operator.metrics import Metrics, QueueMetrics
    from penstock_operator.prometheus import Prometheus
    from penstock_operator.reconcile.context import Memory, ReconcileContext
    from penstock_operator.reconcile.load_turns import LoadTurns
    from penstock_operator.reconcile.manager import Manager, build_queues, watched
    from penstock_operator.reconcile.relist import PERIOD, Relister
    from penstock_operator.reconcile.view import View
    from penstock_operator.reports import Reports
    from penstock_operator.resource_metrics import ResourceMetrics
    from penstock_operator.store import Store
    from penstock_operator.supervision import keep_running, until_done
    from penstock_operator.validation import faults, has_rules
    from penstock_wire.memory_limit import container_limit
    from penstock_wire.process import log, on_signal, raise_file_limit, ready, set_log_level

if TYPE_CHECKING:
    from penstock_operator.control.certificates import Certificates

STOP_SECONDS = 8.0


class Operator:
    """One operator process."""

    def __init__(self, config: Config, cluster: Cluster) -> None:
        self._config = config
        clock = LoopClock()
        self._metrics = metrics = Metrics()
        self._store = store = Store()
        view = View(store, shared=config.router_mode == "Shared")
        self._reports = Reports(
            clock, lambda where, name: store.get(BACKEND, where, name) is not None, view.asked
        )
        self._other = self._refused = self._failing = ""
        observers = (QueueMetrics(metrics, "reconcile"), QueueMetrics(metrics, "scale"))
        workers = None if config.namespace else config.workers
        queue, scale_queue = build_queues(clock, observers, workers=workers)
        self._memory = memory = Memory(render=config.render, load_turns=LoadTurns(clock, queue.add))
        metrics.show(ResourceMetrics(store, self._reports, memory.scaled).text)
        for name, each in (("reconcile", queue), ("scale", scale_queue)):
            metrics.watch_work(name, each.underway)
        self._lease = LeaseThread(
            partial(KubernetesCluster.connect, config.kubeconfig or None, timeout=CALL_SECONDS),
            partial(_elector, config, clock, self._waits_for, self._is_refused),
            clock=clock,
        )
        self._fenced = fenced = FencedCluster(
            cluster, until=lambda: self._lease.until, clock=clock, failed=metrics.write_failed
        )
        self._recorder = recorder = Recorder(fenced, metrics, log)
        context = ReconcileContext(
            cluster=fenced,
            store=store,
            view=view,
            applier=Applier(fenced, store, metrics),
            reports=self._reports,
            memory=memory,
            clock=clock,
            log=log,
            observer=metrics,
            enqueue=queue.add_after,
            failures=queue.failures,
            identity=config.identity,
            home=config.operator_namespace,
            everywhere=not config.namespace,
            emit=recorder.put,
            prometheus=Prometheus(config.prometheus_url, config.prometheus_credentials),
        )
        self._queues = (queue, scale_queue)
        self._manager = Manager(context, queue, scale_queue, metrics, namespace=config.namespace or None)
        self._leader_endpoint = LeaderEndpoint(
            fenced,
            namespace=config.operator_namespace,
            name=config.service,
            address=config.pod_ip,
            ports=config.ports,
            clock=clock,
            log=log,
        )
        self._relister = Relister(
            self._manager.relist,
            self._manager.enqueue_all,
            clock=clock,
            pause=lambda: random.uniform(*PERIOD),  # noqa: S311 - jitter
            log=log,
        )
        reporters = most_reporters(container_limit())
        self._server = ControlServer(
            authenticator=ReportAuthenticator(
                cluster,
                store,
                clock,
                audience=config.render.token_audience,
                check_peer=config.check_peer_address,
                waiting=reporters,
                home=config.operator_namespace,
            ),
            reports=self._reports,
            store=store,
            settings=memory.settings_of,
            clock=clock,
            reported=lambda namespace, backend, notable: self._manager.reported(
                namespace, backend, notable=notable
            ),
            leads=lambda: self._acting,
            interval=lambda: self._load_monitor.interval,
            plain=config.reports_address is None,
            own_addresses=config.check_peer_address,
            reporters=reporters,
            observer=metrics,
            metrics=metrics.text,
            recommendation=Recommendations(memory.scaled).answer,
            alive=self._what_is_wrong,
            waits=self._why_not_ready,
        )
        self._clock = clock
        metrics.certificate_ends.set_function(
            lambda: (self._certificates.ends if self._certificates is not None else None) or 0.0
        )
        metrics.certificate_replaced_by.set_function(
            lambda: (self._certificates.replaced_by if self._certificates is not None else None) or 0.0
        )
        self._load_monitor = LoadMonitor(clock, changed=metrics.report_interval.set)
        self._certificates = self._make_certificates(clock) if config.reports_address else None
        self._watches: list[Watches] = []
        self._acting = False

    def _make_certificates(self, clock: LoopClock) -> Certificates:
        # NB: imported here, since a process that takes only plain reports does not need cryptography.
        from penstock_operator.control.certificates import Certificates

        config = self._config
        return Certificates(
            self._fenced,
            namespace=config.operator_namespace,
            name=config.keys_secret,
            names=config.names,
            lifetimes=config.lifetimes,
            clock=clock,
            changed=self._authorities_changed,
            log=log,
        )

    def _authorities_changed(self, authorities: bytes) -> None:
        """Distribute new authorities: in the answers to reports, and in the ConfigMaps of other pods."""
        self._server.send_authorities(authorities)
        self._memory.render = replace(self._memory.render, authorities=authorities.decode())
        if self._acting:
            self._manager.enqueue_all()

    async def run(self) -> int:
        """Run until a signal or until the Lease is lost.

        Returns:
            The process's exit code.
        """
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            on_signal(number, stop.set)
        host, port = await self._server.start(*self._config.address)
        if self._certificates is not None and self._config.reports_address is not None:
            where = await self._server.start_reports(
                *self._config.reports_address, self._certificates.context
            )
            log("reports come in over TLS", address=join(*where))
        ready(data=(host, port), admin=(host, port))
        lead = asyncio.create_task(self._lead())
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({lead, stopped}, return_when=asyncio.FIRST_COMPLETED)
        self._acting = False
        if lead.done():
            error = _root(lead.exception())
            log("operator ends", level="error", error=f"{type(error).__name__}: {error}")
            stopped.cancel()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await self._lease.release()  # no-op if it is lost
            await self._lease.close()
            return 1
        log("stopping")
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._stop(lead)
        except TimeoutError:
            log("stopping took too long", level="warning")
        return 0

    async def _lead(self) -> None:
        """Wait for the Lease, then act until it is lost.

        Raises:
            LeaseLost: this process leads no longer. It must not act after that: the process ends.
        """
        await self._lease.acquire()
        log("leading", identity=self._config.identity)
        self._metrics.leader.set(1)
        async with asyncio.TaskGroup() as tasks:

            def keep(name: str, loop: Callable[[], Awaitable[None]]) -> None:
                tasks.create_task(keep_running(name, loop, clock=self._clock, log=log))

            tasks.create_task(self._lease.hold())
            keep("load monitor", self._load_monitor.run)
            if self._certificates is not None:
                await self._begin("keys ready", self._certificates.ensure)
                keep("certificates", self._certificates.keep)
            if self._config.pod_ip:
                await self._begin("published", self._leader_endpoint.publish)
                keep("leader endpoint", self._leader_endpoint.keep)
            await self._begin("synced", self._manager.sync)
            gc.collect()  # what the lists' connections left
            gc.freeze()  # the listed objects stay for long, and do not hold cycles
            self._acting = True
            # NB: no selector matches both our pods and those of others, and kopf takes one for a kind.
            for kinds in (watched(self._config.namespace), {POD: injected.SELECTOR}):
                watches = Watches(
                    self._manager,
                    credentials=lambda: credentials(self._config.kubeconfig or None),
                    started=self._metrics.watch_starts.inc,
                    relists=self._relister.soon,
                    kinds=kinds,
                    listed={kind: self._manager.listed.get((kind, of), "") for kind, of in kinds.items()},
                    namespace=self._config.namespace or None,
                    log=log,
                )
                self._watches.append(watches)
                watches.start()
            tasks.create_task(self._manager.run(self._config.workers))
            keep("events", self._recorder.run)
            keep("silence", self._manager.watch_silence)
            keep("relister", self._relister.run)

    async def _stop(self, lead: asyncio.Task[None]) -> None:
        for queue in self._queues:
            queue.shut_down()
        lead.cancel()
        await asyncio.gather(lead, return_exceptions=True)
        await asyncio.gather(*(watches.stop(timeout=2.0) for watches in self._watches))
        await self._lease.release()
        await self._lease.close()
        await self._server.stop()

    async def _begin(self, done: str, act: Callable[[], Awaitable[None]]) -> None:
        def failing(why: str) -> None:
            self._failing = f"it leads, and cannot begin: {why}" if why else ""

        await until_done(act, clock=self._clock, log=log, failing=failing)
        log(done, objects=len(self._store))

    def _waits_for(self, holder: str) -> None:
        """Note that another installation leads, or none any more; called in the Lease's thread."""
        self._other = holder
        self._metrics.waits_for(holder)

    def _is_refused(self, why: str) -> None:
        """Note that the apiserver forbids the Lease, or no longer; called there, too."""
        self._refused = why

    def _why_not_ready(self) -> str | None:
        if self._other:
            return f"another installation leads: {self._other}"
        return self._refused or self._failing or None

    def _what_is_wrong(self) -> str | None:
        if self._acting and not all(watches.alive for watches in self._watches):
            return "the thread that watches has ended"
        return None


def _elector(
    config: Config,
    clock: Clock,
    waits_for: Callable[[str], None],
    refused: Callable[[str], None],
    cluster: Connection,
    working: Callable[[], bool],
) -> Elector:
    """Make this pod's candidate for the Lease; `waits_for` gets a holder of another installation."""
    installation = f"{config.operator_namespace}/{config.service}"
    name = f"{LEASE_NAME}.{config.namespace}" if config.namespace else LEASE_NAME
    lease = f"{config.lease_namespace}/{name}"

    def waiting(holder: str) -> None:
        another = bool(holder) and holder.rpartition("/")[0] != installation
        waits_for(holder if another else "")
        if another:
            log("another installation leads", level="warning", holder=holder, lease=lease)
        elif holder:
            log("standing by", holder=holder, lease=lease)

    return Elector(
        cluster,
        namespace=config.lease_namespace,
        name=name,
        identity=f"{installation}/{config.identity}",
        clock=clock,
        log=log,
        working=working,
        waiting=waiting,
        refused=refused,
    )


async def run(config: Config) -> int:
    """Run an operator.

    Returns:
        The process's exit code.
    """
    set_log_level(config.log_level)
    if config.dry_run and config.file:
        resources = read_file(config.file)
        if not has_rules():
            log("rules not checked: penstock-serving[validate] is not installed", level="warning")
        bad = 0
        for resource in resources:
            for fault in faults(copy.deepcopy(resource), rules=has_rules()):
                bad += 1
                key = f"{resource['kind']}/{resource['metadata']['name']}"
                log("resource is not valid", level="error", key=key, error=fault)
        if bad:
            return 1
        return await _preview(config, FileCluster(resources, namespace=config.namespace or "default"))
    logging.basicConfig(handlers=[KopfLog(log)], level=logging.WARNING, force=True)
    try:
        cluster = await KubernetesCluster.connect(config.kubeconfig or None)
    except ConfigError as error:
        log("cannot log in", level="error", error=str(error))
        return 2
    try:
        if config.dry_run:
            return await _preview(config, cluster)
        return await Operator(config, cluster).run()
    except OSError as error:
        log("cannot listen", level="error", address=config.listen, error=str(error))
        return 2
    finally:
        await cluster.close()


async def _preview(config: Config, there: Reader) -> int:
    return await preview(
        there,
        render=config.render,
        clock=LoopClock(),
        log=log,
        namespace=config.namespace or None,
        home=config.operator_namespace,
        shared=config.router_mode == "Shared",
    )


def _root(error: BaseException | None) -> BaseException | None:
    while isinstance(error, BaseExceptionGroup):
        lost = error.subgroup(LeaseLost)
        error = (lost or error).exceptions[0]
    return error


def main() -> int:
    """Run `penstock-operator`."""
    try:
        config = configuration.parse()
    except ConfigError as error:
        return _complain(error)
    # NB: kopf's thread computes, too. After each wait for the network, ours requests the interpreter, and by
    # default gets it 5 ms later: in a cold start that adds up, also for the renewal of the Lease.
    sys.setswitchinterval(0.0005)
    # NB: most garbage is documents, which reference counting frees. By default the collector traverses the
    # whole store each time that it has grown by a quarter: a sixth of a start's CPU.
    gc.set_threshold(10_000, 20, 20)
    raise_file_limit()
    try:
        return uvloop.run(run(config))
    except ConfigError as error:
        return _complain(error)


def _complain(error: ConfigError) -> int:
    print(f"penstock-operator: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
