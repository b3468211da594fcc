"""The control server: reports in and settings out over TLS on one port, metrics and health on another.

Reports in plain text are taken on the other port, too, where `plain` says so: pods that an older operator
rendered know no better until they are replaced.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Protocol

import msgspec
from aiohttp import web

from penstock_operator.cluster import Obj
from penstock_operator.control.auth import Caller, Gate
from penstock_operator.control.pace import interval_of
from penstock_operator.control.reports import Reports
from penstock_operator.desired import names, settings
from penstock_operator.errors import ReportRefused
from penstock_operator.kinds import BACKEND, CONFIG_MAP, ENDPOINT
from penstock_operator.store import Store
from penstock_wire import report as wire
from penstock_wire.errors import DocumentError
from penstock_wire.trust import HEADER, digest

MAX_SIDECAR_REPORT = 256 * 1024
MAX_ROUTER_REPORT = 8 * 1024 * 1024
"""Bytes of a report at most. A router has at most 10 000 endpoints (they get a port each), and says some 400
bytes of each."""

KEEP_ALIVE_SECONDS = 75
_KINDS = {"/reports/sidecar": "sidecar", "/reports/router": "router"}
_JSON = {"Content-Type": "application/json"}
_CA_HEADER = HEADER.decode()

KEEP_VERSIONS = 256
"""Settings records that are kept read, before those of deleted ConfigMaps are looked for and dropped."""


class ReportObserver(Protocol):
    """Who counts reports."""

    def report(self, kind: str, outcome: str) -> None:
        """A report of this kind was taken, late, or refused with this word."""

    def plain_report(self, kind: str) -> None:
        """One of this kind came in plain text."""


class ControlServer:
    """Answers sidecars, routers, probes and Prometheus.

    Args:
        gate: lets reports in.
        reports: where they go.
        store: has the settings' record, the ConfigMaps.
        reported: told of every report that was taken: namespace, backend (empty for a router), notable.
        leads: whether this process leads; a standby refuses reports.
        interval: seconds between two reports of a pod, now.
        plain: whether reports in plain text are taken.
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
        interval: Callable[[], float] = lambda: 1.0,
        plain: bool = True,
        observer: ReportObserver,
        metrics: Callable[[], bytes],
        alive: Callable[[], str | None],
    ) -> None:
        self._gate = gate
        self._reports = reports
        self._store = store
        self._reported = reported
        self._leads = leads
        self._interval = interval
        self._plain = plain
        self._observer = observer
        self._metrics = metrics
        self._alive = alive
        self._runners: list[web.BaseRunner] = []
        self._authorities = ("", "")
        self._versions: dict[tuple[str, str], tuple[object, settings.Versioned | None]] = {}
        self._prune_at = KEEP_VERSIONS

    def application(self) -> web.Application:
        """The routes of the plain port."""
        app = web.Application()
        app.router.add_post("/reports/{kind:sidecar|router}", self._plain_report)
        app.router.add_get("/metrics", self._metrics_page)
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        return app

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen for probes, Prometheus and plain reports.

        Args:
            host: address to bind.
            port: port to bind, 0 for any.

        Returns:
            The bound address.

        Raises:
            OSError: it cannot be bound.
        """
        runner = web.AppRunner(
            self.application(),
            access_log=None,
            handle_signals=False,
            keepalive_timeout=KEEP_ALIVE_SECONDS,
            shutdown_timeout=2,
        )
        return await self._listen(runner, host, port, None)

    async def start_reports(self, host: str, port: int, context: ssl.SSLContext) -> tuple[str, int]:
        """Listen for reports over TLS (see `start`).

        Args:
            host: address to bind.
            port: port to bind, 0 for any.
            context: has the certificate, or will have it: until then handshakes fail.
        """
        # Without an Application: 2 000 reports a second go through here, to two paths.
        server = web.Server(self._secure_report, access_log=None, keepalive_timeout=KEEP_ALIVE_SECONDS)
        return await self._listen(web.ServerRunner(server, shutdown_timeout=2), host, port, context)

    async def _listen(
        self, runner: web.BaseRunner, host: str, port: int, context: ssl.SSLContext | None
    ) -> tuple[str, int]:
        await runner.setup()
        self._runners.append(runner)
        await web.TCPSite(runner, host, port, backlog=1024, ssl_context=context).start()
        bound = runner.addresses[0]
        return bound[0], bound[1]

    async def stop(self) -> None:
        """Stop listening; requests in flight get two seconds."""
        for runner in self._runners:
            await runner.cleanup()

    def tell_authorities(self, authorities: bytes) -> None:
        """From now on, tell reporters who know others.

        Args:
            authorities: certificates of those who may sign ours, PEM.
        """
        self._authorities = (digest(authorities), authorities.decode())

    # -- reports -----------------------------------------------------------------------------------------

    async def _plain_report(self, request: web.Request) -> web.Response:
        kind = request.match_info["kind"]
        self._observer.plain_report(kind)
        if not self._plain:
            refusal = ReportRefused(403, "plain_text", "expected a report over TLS; restart the pod")
            self._observer.report(kind, refusal.reason)
            return _problem(refusal)
        return await self._report(request, kind)

    async def _secure_report(self, request: web.BaseRequest) -> web.Response:
        kind = _KINDS.get(request.rel_url.raw_path)
        if kind is None or request.method != "POST":
            return web.Response(status=404, text="reports alone: POST /reports/sidecar, /reports/router\n")
        return await self._report(request, kind)

    async def _report(self, request: web.BaseRequest, kind: str) -> web.Response:
        try:
            answer = await self._take(request, kind)
        except ReportRefused as refusal:
            self._observer.report(kind, refusal.reason)
            return _problem(refusal)
        return web.Response(body=wire.encode(answer), headers=_JSON)

    async def _take(self, request: web.BaseRequest, kind: str) -> wire.ReportAnswer:
        if not self._leads():
            raise ReportRefused(503, "standby", "this operator does not lead; report to the leader")
        # First who it is, then what it says: a stranger has nothing read.
        caller = await self._gate.admit(
            authorization=request.headers.get("Authorization"), peer=request.remote, router=kind == "router"
        )
        body = await _body(request, MAX_ROUTER_REPORT if kind == "router" else MAX_SIDECAR_REPORT)
        report: wire.SidecarReport | wire.RouterReport
        try:
            report = wire.decode_router(body) if kind == "router" else wire.decode_sidecar(body)
        except DocumentError as error:
            raise ReportRefused(400, "bad_report", str(error)) from error
        caller.check(pod=report.pod, uid=report.uid)
        every = interval_of(len(body), self._interval())
        if isinstance(report, wire.RouterReport):
            news = self._reports.router(caller.namespace, report, every=every)
            record = names.ROUTER_SETTINGS
        else:
            news = self._reports.sidecar(caller.namespace, caller.backend, report, every=every)
            record = names.backend_settings(caller.backend)
        self._observer.report(kind, "taken" if news.taken else "late")
        if news.taken:
            self._reported(caller.namespace, caller.backend, news.notable)
        told = self._told(caller, record)
        behind = told is not None and report.settings_version < told.version
        known, authorities = self._authorities
        knows = request.headers.get(_CA_HEADER)
        return wire.ReportAnswer(
            next_report_ms=round(every * 1000),
            settings=msgspec.Raw(told.document) if told is not None and behind else None,
            authorities=authorities if authorities and knows is not None and knows != known else None,
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


async def _body(request: web.BaseRequest, limit: int) -> bytes:
    """A request's whole body.

    Raises:
        ReportRefused: it is longer than the limit; no more than that was read.
    """
    body, size = b"", request.content_length or 0
    if size <= limit:
        pieces, size = [], 0
        while size <= limit and (piece := await request.content.readany()):
            pieces.append(piece)
            size += len(piece)
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    if size > limit:
        raise ReportRefused(413, "too_large", f"expected at most {limit} bytes")
    return body


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
