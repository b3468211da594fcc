"""The router's command line: parses, listens, follows settings and pods, reports, drains."""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import random
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock_wire.extras import needs

if TYPE_CHECKING:
    from penstock_router.pods.endpoint_slices import Address
    from penstock_router.pods.watch import SliceWatch

with needs("penstock-router", "router"):
    from penstock_router.admin.admin import Admin
    from penstock_router.admin.thread import AdminThread
    from penstock_router.mirroring.mirrors import CopyBounds
    from penstock_router.mirroring.pressure import Pressure
    from penstock_router.pods.api_server import SERVICE_ACCOUNT, ApiServer
    from penstock_router.ports import serve
    from penstock_router.router import Router, decode_settings, without_targets
    from penstock_router.shared import SharedRouter
    from penstock_router.tracing import Tracing
    from penstock_wire import contract
    from penstock_wire.access_log import AccessLog, share
    from penstock_wire.control.processor_wait import ProcessorWait
    from penstock_wire.control.reporter import Reporter
    from penstock_wire.control.router_settings import RouterSettings
    from penstock_wire.control.router_settings import changed as changed_settings
    from penstock_wire.control.settings_source import SettingsSource
    from penstock_wire.hop.upstream import HopUpstream
    from penstock_wire.http.client.pool import H1Upstream
    from penstock_wire.http.server import limits
    from penstock_wire.http.server.server import H1Front
    from penstock_wire.http.server.turns import Turns
    from penstock_wire.http2.connection import H2Connection
    from penstock_wire.memory_limit import bound
    from penstock_wire.process import (
        NOWHERE,
        Parser,
        address,
        duration,
        keep_what_is_here,
        log,
        log_libraries,
        on_signal,
        ready,
        run,
        set_log_level,
    )
    from penstock_wire.tracing import Unavailable, started

SILENCE_SECONDS = 3.0
"""A pod's node that sends nothing for this long is considered lost."""
HOLD_ANSWER_SECONDS = 0.5
"""Requests that are still held this long before the end of a drain are answered 503."""

TENANT_CONNECTIONS = limits.MAX_CONNECTIONS // 4
"""The most connections of a namespace to a router that serves several."""


def parser() -> Parser:
    """Make the parser of the flags; each is also an environment variable."""
    flags = Parser(prog="penstock-router", description="Shares requests among backends and their pods.")
    flags.flag(
        "listen", type=address, default=f"127.0.0.1:{contract.ROUTER_PORT}", help="the front door, HOST:PORT"
    )
    flags.flag(
        "admin",
        type=address,
        default=f"127.0.0.1:{contract.ROUTER_ADMIN_PORT}",
        help="health and metrics, HOST:PORT",
    )
    flags.flag("settings", type=Path, default=None, help="settings file, JSON or YAML")
    flags.flag("report-to", default="", help="URL of the operator's control server")
    flags.flag("report-ca", type=Path, default=None, help="authorities that may sign its certificate")
    flags.flag("token-file", type=Path, default=None, help="token for the reports")
    flags.flag("propagation-delay", type=duration, default="5s", help="how long to accept after SIGTERM")
    flags.flag("drain-timeout", type=duration, default="30s", help="time for requests under way then")
    flags.flag("kube-api", default="", help="URL of the apiserver, where it is not that of the pod")
    flags.flag("service-account", type=Path, default=SERVICE_ACCOUNT, help="folder of token and CA")
    flags.flag(
        "memory-limit",
        type=int,
        default=0,
        help="bytes for this process; 0 = its cgroup's, else 1 GiB",
    )
    flags.flag("log-level", choices=("debug", "info", "warning", "error"), default="info", help="least level")
    flags.switch("shared", help="serve the namespaces that the settings name, instead of one")
    flags.switch("tracing", help="export spans as the OTEL_* environment says; needs the extra `tracing`")
    flags.flag("access-log", type=share, default=0.0, help="share of the requests that are logged, as 0.01")
    return flags


class Process:
    """All that runs in the process.

    Args:
        arguments: the parsed command line.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        memory = bound(arguments.memory_limit)
        self._front = H1Front(memory=memory, http2=H2Connection)
        self._upstream = HopUpstream(H1Upstream(silence_seconds=SILENCE_SECONDS, memory=memory))
        self._stop = asyncio.Event()
        self._at_once = asyncio.Event()
        self._reporter: Reporter | None = None
        pod = os.environ.get(contract.POD_ENV, "")
        self._tracing = started(
            lambda processor: Tracing(processor, {"service.instance.id": pod}), by_name=arguments.tracing
        )
        source_of_chance = random.Random()  # noqa: S311 - nothing secret hangs on it
        self._memory = memory
        self._copies = CopyBounds(memory.most)
        self._processor_wait = ProcessorWait().share
        self._pressure = Pressure()
        self._access = AccessLog(arguments.access_log)
        self._pod, self._uid = pod, os.environ.get(contract.POD_UID_ENV, "")
        self._chance = source_of_chance
        self._router: Router | SharedRouter
        changed: Callable[[str, Mapping[str, tuple[Address, ...]]], None]
        if arguments.shared:
            self._router = shared = SharedRouter(
                self._make_tenant,
                upstream=self._upstream,
                pod=self._pod,
                uid=self._uid,
                slices_synced=self._slices_synced,
                news=self._report_now,
                processor_wait=self._processor_wait,
                memory=memory,
            )
            changed = shared.set_slices
        else:
            self._router = router = self._make_router(self._front, self._report_now)
            pods = router.pods
            self._upstream.on_room, self._upstream.on_recalled = pods.on_room, pods.on_recalled
            pods.recall, pods.keep = self._upstream.recall, self._upstream.keep
            pods.later = asyncio.get_running_loop().call_later
            changed = lambda _namespace, backends: pods.set_slices(backends)  # noqa: E731

        api = ApiServer.in_cluster(
            url=arguments.kube_api,
            account=arguments.service_account,
            namespace=os.environ.get(contract.NAMESPACE_ENV, ""),
        )
        self._watch: SliceWatch | None = None
        if api is not None:
            # NB: aiohttp is a third of the cost of a start; a router without a cluster does not import it.
            with needs("penstock-router", "router"):
                from penstock_router.pods.watch import SliceWatch
            self._watch = SliceWatch(
                api, changed=changed, random_source=source_of_chance, everywhere=arguments.shared
            )
        admin = Admin(self._router)
        self._admin = AdminThread(admin.probe, admin.handle)
        self._source = SettingsSource(
            path=arguments.settings,
            # NB: without an operator, a person wrote the file; with one, in a cluster, perhaps a stranger.
            decode=functools.partial(
                self._decode,
                by_hand=not arguments.report_to,
                targets=not arguments.report_to or self._watch is None,
            ),
            apply=self._apply,
            reports=bool(arguments.report_to),
            named=lambda settings: settings.digest or "",
        )
        if arguments.report_to:
            self._reporter = Reporter(
                url=arguments.report_to,
                kind="router",
                token_file=arguments.token_file,
                authorities=arguments.report_ca,
                make=lambda sequence: self._router.report(
                    sequence,
                    settings_version=self._source.version,
                    settings_digest=self._source.digest,
                ),
                on_settings=self._source.offer,
                on_alone=self._source.alone,
                on_taken=self._router.taken if isinstance(self._router, SharedRouter) else lambda _: None,
            )

    def _decode(self, data: bytes, *, by_hand: bool, targets: bool) -> RouterSettings:
        settings = decode_settings(data, by_hand=by_hand, targets=targets)
        return changed_settings(settings, self._source.current, self._source.digest)

    def _make_tenant(self, namespace: str, news: Callable[[], None]) -> tuple[Router, H1Front]:
        front = H1Front(
            memory=self._memory,
            http2=H2Connection,
            max_connections=TENANT_CONNECTIONS,
            turns=Turns(asyncio.get_running_loop()),
            sweeps=False,
        )
        return self._make_router(front, news, {"namespace": namespace}), front

    def _fronts(self) -> list[H1Front]:
        tenants = self._router.fronts if isinstance(self._router, SharedRouter) else ()
        return [self._front, *tenants]

    def _make_router(
        self, front: H1Front, news: Callable[[], None], where: Mapping[str, str] = NOWHERE
    ) -> Router:
        return Router(
            front=front,
            host=self._arguments.listen[0],
            upstream=self._upstream,
            random_source=self._chance,
            clock=asyncio.get_running_loop().time,
            pod=self._pod,
            uid=self._uid,
            where=where,
            slices_synced=self._slices_synced,
            news=news,
            access=self._access,
            processor_wait=self._processor_wait,
            tracing=self._tracing,
            short=self._pressure.short,
            memory=self._memory,
            copies=self._copies,
        )

    def _slices_synced(self) -> bool:
        return self._watch is None or self._watch.synced

    def _apply(self, settings: RouterSettings) -> None:
        self._router.apply(settings)
        if self._watch is None and not self._arguments.report_to:
            for backend, endpoint in without_targets(settings).items():
                log(
                    "backend has no targets", level="warning", backend=backend, endpoint=endpoint,
                    expected="targets: [HOST:PORT, …], since there is no apiserver to say where its pods are",
                )  # fmt: skip

    async def serve(self) -> int:
        """Run until SIGTERM; returns the exit code."""
        self._source.read_file()
        if self._source.refused and not self._arguments.report_to:
            return 2  # without the settings that its user asked for, it would serve nothing
        on_signal(signal.SIGTERM, self._signal)
        on_signal(signal.SIGINT, self._interrupt)
        on_signal(signal.SIGHUP, self._source.reload_now)
        try:
            host, port = self._arguments.listen
            data = await serve(self._front, host, port, self._router.front_door)
            host, port = self._arguments.admin
            admin = await self._admin.listen(host, port)
        except OSError as error:
            log("cannot listen", level="error", error=str(error))
            return 1
        work: list[Coroutine[Any, Any, None]] = [self._source.watch(), self._router.run()]
        if self._watch is not None:
            work.append(self._watch.run())
        if self._reporter is not None:
            work.append(self._reporter.run())
        tasks = {asyncio.create_task(part) for part in work}
        greeting = asyncio.create_task(self._greet(data.address, admin))
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait({*tasks, stop}, return_when=asyncio.FIRST_COMPLETED)
        broken = [task for task in tasks if task.done()]
        for task in broken:
            log("a task ended that never should", level="error", error=repr(task.exception()))
        greeting.cancel()
        stop.cancel()
        if not broken:
            await self._drain()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, greeting, stop, return_exceptions=True)
        await self._admin.close()
        await self._upstream.close()
        if self._tracing is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._tracing.close)
        return 1 if broken else 0

    async def _greet(self, data: tuple[str, int], admin: tuple[str, int]) -> None:
        await self._router.ready.wait()
        keep_what_is_here()
        ready(data=data, admin=admin)

    async def _drain(self) -> None:
        """Accept requests for a while, then stop listening and finish those in progress; or all at once."""
        log("drain begins")
        self._router.draining = True
        self._report_now()
        drained = asyncio.create_task(self._end())
        at_once = asyncio.create_task(self._at_once.wait())
        await asyncio.wait({drained, at_once}, return_when=asyncio.FIRST_COMPLETED)
        log("drain ends", at_once=not drained.done())
        for task in (drained, at_once):
            task.cancel()
        await asyncio.gather(drained, at_once, return_exceptions=True)

    async def _end(self) -> None:
        # Each answer closes its kept connection, so that few are idle at the end.
        for front in self._fronts():
            front.close_keepalive(idle=False)
        await self._propagate()
        grace = self._arguments.drain_timeout
        asyncio.get_running_loop().call_later(max(0, grace - HOLD_ANSWER_SECONDS), self._router.end_holds)
        await asyncio.gather(*(front.close(grace) for front in self._fronts()))

    async def _propagate(self) -> None:
        """Wait until the change has reached all clients and proxies that send requests here."""
        await asyncio.sleep(self._arguments.propagation_delay)

    def _signal(self) -> None:
        if self._stop.is_set():
            self._at_once.set()
        self._stop.set()

    def _interrupt(self) -> None:
        """Handle Ctrl-C: a router without an operator ends at once, without a drain."""
        if not self._arguments.report_to:
            self._at_once.set()
        self._signal()

    def _report_now(self) -> None:
        if self._reporter is not None:
            self._reporter.report_now()


def main() -> int:
    """Run the router; returns its exit code."""
    flags = parser()
    arguments = flags.parse_args()
    if arguments.settings is None and not arguments.report_to:
        flags.error(
            "expected --settings FILE or --report-to URL: a router alone serves what its settings say"
        )
    set_log_level(arguments.log_level)
    log_libraries()

    async def serve() -> int:
        return await Process(arguments).serve()

    try:
        return run(serve)
    except Unavailable as error:
        print(f"penstock-router: --tracing: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
