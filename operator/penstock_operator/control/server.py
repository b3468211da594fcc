"""The control server: reports in, settings out, metrics and health. Plain HTTP on one port."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec
from aiohttp import web

from penstock_operator.cluster import Obj
from penstock_operator.control.auth import Caller, Gate
from penstock_operator.control.reports import Reports
from penstock_operator.desired import names, settings
from penstock_operator.errors import ReportRefused
from penstock_operator.kinds import BACKEND, CONFIG_MAP, ENDPOINT
from penstock_operator.store import Store
from penstock_wire import report as wire
from penstock_wire.errors import DocumentError

MAX_REPORT = 256 * 1024
"""Bytes of a report at most."""

NEXT_REPORT_MS = 1000

KEEP_VERSIONS = 256
"""Settings records that are kept read, before those of deleted ConfigMaps are looked for and dropped."""


class ReportObserver(Protocol):
    """Who counts reports."""

    def report(self, kind: str, outcome: str) -> None:
        """A report of this kind was taken, late, or refused with this word."""


class ControlServer:
    """Answers sidecars, routers, probes and Prometheus.

    Args:
        gate: lets reports in.
        reports: where they go.
        store: has the settings' record, the ConfigMaps.
        reported: told of every report that was taken: namespace, backend (empty for a router), notable.
        leads: whether this process leads; a standby refuses reports.
        observer: counts.
        metrics: makes the text of /metrics.
        alive: why the process should be restarted, None while all is well.
    """

    def __init__(
        self,
        *,
        gate: Gate,
        reports: Reports,
        store: Store,
        reported: Callable[[str, str, bool], None],
        leads: Callable[[], bool],
        observer: ReportObserver,
        metrics: Callable[[], bytes],
        alive: Callable[[], str | None],
    ) -> None:
        self._gate = gate
        self._reports = reports
        self._store = store
        self._reported = reported
        self._leads = leads
        self._observer = observer
        self._metrics = metrics
        self._alive = alive
        self._runner: web.AppRunner | None = None
        self._versions: dict[tuple[str, str], tuple[object, settings.Versioned | None]] = {}
        self._prune_at = KEEP_VERSIONS

    def application(self) -> web.Application:
        """The routes."""
        app = web.Application(client_max_size=MAX_REPORT)
        app.router.add_post("/reports/sidecar", self._sidecar)
        app.router.add_post("/reports/router", self._router)
        app.router.add_get("/metrics", self._metrics_page)
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        return app

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen.

        Args:
            host: address to bind.
            port: port to bind, 0 for any.

        Returns:
            The bound address.

        Raises:
            OSError: it cannot be bound.
        """
        self._runner = web.AppRunner(
            self.application(),
            access_log=None,
            handle_signals=False,
            keepalive_timeout=75,
            shutdown_timeout=2,
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, backlog=1024)
        await site.start()
        bound = self._runner.addresses[0]
        return bound[0], bound[1]

    async def stop(self) -> None:
        """Stop listening; requests in flight get two seconds."""
        if self._runner is not None:
            await self._runner.cleanup()

    # -- reports -----------------------------------------------------------------------------------------

    async def _sidecar(self, request: web.Request) -> web.Response:
        return await self._report(request, "sidecar")

    async def _router(self, request: web.Request) -> web.Response:
        return await self._report(request, "router")

    async def _report(self, request: web.Request, kind: str) -> web.Response:
        try:
            answer = await self._take(request, kind)
        except ReportRefused as refusal:
            self._observer.report(kind, refusal.reason)
            return _problem(refusal)
        return web.Response(body=wire.encode(answer), content_type="application/json")

    async def _take(self, request: web.Request, kind: str) -> wire.ReportAnswer:
        if not self._leads():
            raise ReportRefused(503, "standby", "this operator does not lead; report to the leader")
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge as error:
            raise ReportRefused(413, "too_large", f"expected at most {MAX_REPORT} bytes") from error
        report: wire.SidecarReport | wire.RouterReport
        try:
            report = wire.decode_router(body) if kind == "router" else wire.decode_sidecar(body)
        except DocumentError as error:
            raise ReportRefused(400, "bad_report", str(error)) from error
        caller = await self._gate.admit(
            authorization=request.headers.get("Authorization"),
            peer=request.remote,
            pod=report.pod,
            uid=report.uid,
            router=kind == "router",
        )
        if isinstance(report, wire.RouterReport):
            news = self._reports.router(caller.namespace, report)
            record = names.ROUTER_SETTINGS
        else:
            news = self._reports.sidecar(caller.namespace, caller.backend, report)
            record = names.backend_settings(caller.backend)
        self._observer.report(kind, "taken" if news.taken else "late")
        if news.taken:
            self._reported(caller.namespace, caller.backend, news.notable)
        told = self._told(caller, record)
        behind = told is not None and report.settings_version < told.version
        return wire.ReportAnswer(
            next_report_ms=NEXT_REPORT_MS,
            settings=msgspec.Raw(told.document) if told is not None and behind else None,
        )

    def _told(self, caller: Caller, name: str) -> settings.Versioned | None:
        """The settings as the ConfigMap records them, read once a version of it."""
        namespace = caller.namespace
        live = self._store.get(CONFIG_MAP, namespace, name)
        if live is not None and not self._is_record(live, caller):
            live = None
        known = self._versions.get((namespace, name))
        if known is None or known[0] is not live:
            if live is None:
                self._versions.pop((namespace, name), None)
                return None
            known = (live, settings.recorded_version(live))
            self._versions[(namespace, name)] = known
            if len(self._versions) > self._prune_at:
                self._drop_deleted()
        return known[1]

    def _is_record(self, live: Obj, caller: Caller) -> bool:
        """Whether a ConfigMap of the right name is ours: a stranger's, or a deleted namesake's, is none."""
        kind = BACKEND if caller.backend else ENDPOINT
        for ref in live["metadata"].get("ownerReferences") or ():
            owner = self._store.get(kind, caller.namespace, ref["name"])
            if owner is not None and owner["metadata"]["uid"] == ref["uid"]:
                return ref["name"] == caller.backend or not caller.backend
        return False

    def _drop_deleted(self) -> None:
        self._versions = {
            at: known for at, known in self._versions.items() if self._store.get(CONFIG_MAP, *at) is not None
        }
        self._prune_at = max(KEEP_VERSIONS, 2 * len(self._versions))

    # -- the rest ----------------------------------------------------------------------------------------

    async def _metrics_page(self, _request: web.Request) -> web.Response:
        return web.Response(
            body=self._metrics(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    async def _livez(self, _request: web.Request) -> web.Response:
        wrong = self._alive()
        return web.Response(status=200 if wrong is None else 500, text=(wrong or "ok") + "\n")

    async def _readyz(self, _request: web.Request) -> web.Response:
        # A standby is ready too: it is ready to take over.
        return web.Response(text="ok\n")


def _problem(refusal: ReportRefused) -> web.Response:
    body = {
        "type": "about:blank",
        "title": "report refused",
        "status": refusal.status,
        "reason": refusal.reason,
        "detail": refusal.detail,
    }
    return web.Response(
        status=refusal.status, body=msgspec.json.encode(body), content_type="application/problem+json"
    )
