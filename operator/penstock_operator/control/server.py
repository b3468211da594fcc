"""The control server: reports and settings over TLS on one port, metrics and health on another.

If `plain` is set, the other port takes reports in plain text, for one machine without TLS.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Protocol, TypedDict

import msgspec

from penstock_operator.clock import Clock
from penstock_operator.control.artifact_turns import ArtifactTurns
from penstock_operator.control.auth import Caller, ReportAuthenticator
from penstock_operator.control.metrics_page import MetricsPage
from penstock_operator.control.rate_limit import RateLimit
from penstock_operator.control.recommendation import PATH as RECOMMENDATION
from penstock_operator.control.report_interval import interval_of
from penstock_operator.control.router_addresses import RouterAddresses
from penstock_operator.desired.settings import Versioned, lacks
from penstock_operator.desired.tenant_settings import TenantSettings
from penstock_operator.errors import ReportRefused
from penstock_operator.kinds import ENDPOINT
from penstock_operator.reports import News, Reports
from penstock_operator.store import Store
from penstock_wire import contract
from penstock_wire.control import report as wire
from penstock_wire.control.artifact import ArtifactTurn
from penstock_wire.control.ca_trust import HEADER, digest
from penstock_wire.errors import DocumentError
from penstock_wire.headers import get
from penstock_wire.http import ClientGone, Exchange, Request, Response, Service
from penstock_wire.http.body import BodyTooLong, read_whole
from penstock_wire.http.server.server import H1Front
from penstock_wire.process import log

MAX_SIDECAR_REPORT = 64 * 1024
MAX_ROUTER_REPORT = 8 * 1024 * 1024
"""The most bytes of a report. A router has at most 10 000 endpoints (each gets a port), and reports some 400
bytes on each."""

ENDPOINT_BYTES = 8 * 1024
"""The most bytes of a router's report for each endpoint of its namespace, in addition to a sidecar's limit:
an endpoint with 32 backends, each with ten statuses."""

BURST = 10.0
PER_SECOND = 2.0
"""Reports that a pod may send at once, and each second after that. It reports once a second, and at once
after a change. As many refusals of an address's requests are sent without delay."""

PATIENCE = 1.0
"""Seconds that an excess report waits for its turn. If it had to wait longer, it is refused after this time,
as is any other request refused too often: so a client that repeats it is slowed by its own connections."""

WHOLE_REPORT = 16 * 1024
"""Bytes up to which a body is received together with its head. Most reports are far smaller; this much is
harmless even from an unauthenticated client."""

CONNECTION_BYTES = 50 * 1024
"""Bytes that a connection to the reports' port takes, from when it is accepted: those of TLS."""

MAX_REPORTERS = 40_000
"""The most connections to that port, which may take half of the memory: 5242 with the chart's 512 MiB."""

MAX_CONNECTIONS = 5000
"""The most connections to the other port: 25 MiB. The unread part of an answer is held by the kernel, up to
64 KiB a connection, except for pages of metrics that are being sent (`metrics_page`): 10 MiB for 1000
backends."""

MAX_PER_ADDRESS = 128
"""The most of these from one address. A pod has one connection, and a second while it reconnects; pods in
their node's network share its address."""

MAX_HEAD_BYTES = 16 * 1024
"""The most bytes of a request's head. A report's has some 2 KiB, most of it the token."""

UNFINISHED_BUDGET = 32 * 1024 * 1024
"""Bytes, on each port, of incomplete heads and bodies up to `WHOLE_REPORT`; nearly all arrive at once. With
the connections and the larger bodies that is 410 MiB, of the 512 MiB that the chart gives."""

BODY_BUDGET = 64 * 1024 * 1024
"""Bytes of larger bodies that are being received, of all pods together; a pod has one at a time, and those of
a namespace begin or grow only while they have no more than is left beside all (see `acceptor`)."""

_KINDS = {contract.REPORTS_PATH + kind: kind for kind in ("sidecar", "router")}
_JSON = ((b"content-type", b"application/json"),)


def most_reporters(limit: int | None) -> int:
    """How many connections the reports' port takes.

    Args:
        limit: bytes that the process may use; None for no limit.
    """
    return MAX_REPORTERS if limit is None else min(MAX_REPORTERS, limit // 2 // CONNECTION_BYTES)


class ReportObserver(Protocol):
    """A counter of reports."""

    def report(self, kind: str, outcome: str) -> None:
        """Count a report of this kind: taken, late, or refused with this word."""


class Credentials(TypedDict):
    """A request's claims about its sender; see `ReportAuthenticator.authenticate`."""

    authorization: str | None
    peer: str
    router: bool


class ControlServer:
    """A server that answers sidecars, routers, probes and Prometheus.

    Args:
        settings: the settings that pods get, by namespace and name of their ConfigMap; None if not known yet.
        reported: called for every report that was taken: namespace, backend (empty for a router), notable.
        own_addresses: whether each pod has its own address; else one address may have all connections, as may
            the pods of one namespace.
        recommendation: answers for one backend (`Recommendations.answer`).
        reporters: most connections to the reports' port.
        alive: why the process should be restarted; None while it is healthy.
        waits: why it is not ready; None while it leads, or could lead once its leader is gone.
    """

    def __init__(
        self,
        *,
        authenticator: ReportAuthenticator,
        reports: Reports,
        store: Store,
        settings: Callable[[str, str], Versioned | TenantSettings | None],
        clock: Clock,
        reported: Callable[[str, str, bool], None],
        leads: Callable[[], bool],
        interval: Callable[[], float] = lambda: 1.0,
        plain: bool = True,
        own_addresses: bool = True,
        reporters: int = MAX_REPORTERS,
        observer: ReportObserver,
        metrics: Callable[[], bytes],
        recommendation: Callable[[str], Response],
        alive: Callable[[], str | None],
        waits: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._authenticator = authenticator
        self._reports = reports
        self._store = store
        self._clock = clock
        self._turns = RateLimit(clock, burst=BURST, per_second=PER_SECOND)
        self._refusals = RateLimit(clock, burst=BURST, per_second=PER_SECOND)
        self._settings = settings
        self._own_addresses = own_addresses
        self._routers = RouterAddresses(store, clock)
        self._artifacts = ArtifactTurns(store, clock)
        self._reported = reported
        self._leads = leads
        self._interval = interval
        self._plain_reports = plain
        self._observer = observer
        self._recommendation = recommendation
        self._metrics_page = MetricsPage(metrics, clock)
        self._alive = alive
        self._waits = waits
        # NB: two, so that each port has connections of its own, however many the other one has.
        # The port of the probes evicts: it accepts each new connection; otherwise a client that fills it
        # could lock the kubelet out and cause a restart of the process.
        self._pages_front, self._reports_front = (
            H1Front(
                max_body_bytes=WHOLE_REPORT,
                max_connections=most,
                max_per_address=per_address,
                evicting=evicting,
                group=group,
                max_head_bytes=MAX_HEAD_BYTES,
                max_unfinished_bytes=UNFINISHED_BUDGET,
                pipelining=False,
            )
            for most, per_address, evicting, group in (
                (MAX_CONNECTIONS, MAX_PER_ADDRESS, True, None),
                (reporters, MAX_PER_ADDRESS, False, store.namespace_of)
                if own_addresses
                else (reporters, reporters, False, None),
            )
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._receiving: dict[tuple[str, str], int] = {}
        """Bytes of the body that a pod is sending, by the pod's namespace and uid."""
        self._probes: dict[str, Callable[[], Response]] = {
            contract.LIVE_PATH: self._livez,
            contract.READY_PATH: self._readyz,
        }
        self._authorities = (b"", "")

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen for probes, Prometheus and plain reports.

        Returns:
            The bound address.

        Raises:
            OSError: it cannot be bound.
        """
        return await _listen(self._pages_front, host, port, self._plain, None)

    async def start_reports(self, host: str, port: int, context: ssl.SSLContext) -> tuple[str, int]:
        """Listen for reports over TLS (see `start`).

        Args:
            context: has the certificate, or will have it: until then handshakes fail.
        """
        return await _listen(self._reports_front, host, port, self._secure, context)

    async def stop(self) -> None:
        """Stop listening; requests in flight get two seconds."""
        await asyncio.gather(self._reports_front.close(2.0), self._pages_front.close(2.0))

    def send_authorities(self, authorities: bytes) -> None:
        """Send these authorities, from now on, to each reporter that has others.

        Args:
            authorities: certificates of the authorities that may sign ours, PEM.
        """
        self._authorities = (digest(authorities).encode(), authorities.decode())

    # -- reports -----------------------------------------------------------------------------------------

    def _plain(self, exchange: Exchange) -> None:
        """Serve the plain port."""
        request = exchange.request
        kind = _KINDS.get(request.path)
        probe = self._probes.get(request.path)
        if kind is not None and request.method == "POST":
            if self._plain_reports:
                self._report(exchange, kind)
            else:
                refusal = ReportRefused(403, "plain_text", "expected a report over TLS; restart the pod")
                self._refuse(exchange, kind, refusal)
        elif probe is not None and request.method in ("GET", "HEAD"):
            exchange.answer(probe())
        elif request.path.startswith(RECOMMENDATION) and request.method in ("GET", "HEAD"):
            try:
                self._check_leads("ask the leader")
                exchange.answer(self._recommendation(request.path))
            except ReportRefused as refusal:
                self._turn_away(exchange, _problem(refusal, "no recommendation"))
        elif request.path == "/metrics" and request.method in ("GET", "HEAD"):
            try:
                exchange.answer(self._metrics_page.answer(request.peer, request.headers))
            except ReportRefused as refusal:
                self._turn_away(exchange, _problem(refusal, "scrape refused"), late=True)
        else:
            self._turn_away(
                exchange,
                _text(
                    404,
                    "expected GET /metrics, /recommendation/NAMESPACE/BACKEND, /livez, /readyz or a report",
                ),
            )

    def _secure(self, exchange: Exchange) -> None:
        """Serve the port that speaks TLS."""
        kind = _KINDS.get(exchange.request.path)
        if kind is not None and exchange.request.method == "POST":
            self._report(exchange, kind)
        else:
            self._turn_away(exchange, _text(404, "reports alone: POST /reports/sidecar, /reports/router"))

    def _report(self, exchange: Exchange, kind: str) -> None:
        # Authentication comes first: of an unknown client, only what came with the head is read.
        request = exchange.request
        try:
            self._check_leads("report to the leader")
            caller = self._authenticator.authenticate_cached(**_credentials(request, kind))
            if caller is not None and request.stream is None and self._turns.take(caller.uid):
                exchange.answer(self._take(request, request.body, caller, kind))
                return
        except ReportRefused as refusal:
            self._refuse(exchange, kind, refusal)
            return
        task = asyncio.create_task(self._wait_and_take(exchange, kind))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        exchange.gone = task.cancel

    def _check_leads(self, instead: str) -> None:
        if not self._leads():
            raise ReportRefused(503, "standby", f"this operator does not lead; {instead}")

    async def _wait_and_take(self, exchange: Exchange, kind: str) -> None:
        """Do as `_report`, if the apiserver has to be asked or the body is not complete."""
        request = exchange.request
        try:
            caller = await self._authenticator.authenticate(**_credentials(request, kind))
            if not await self._turn(caller):
                often = f"expected at most {PER_SECOND:.0f} reports a second from a pod"
                self._refuse(exchange, kind, ReportRefused(429, "too_often", often), late=True)
                return
            answer = self._take(request, await self._body(request, caller, kind), caller, kind)
        except ReportRefused as refusal:
            self._refuse(exchange, kind, refusal)
        except ClientGone:
            pass
        except Exception as error:
            log("report failed", level="error", error=repr(error))
            exchange.answer(_text(500, "internal error"))
        else:
            exchange.answer(answer)

    async def _turn(self, caller: Caller) -> bool:
        """Wait until a pod may report again; return False at once if too many of its reports wait already."""
        wait = self._turns.reserve(caller.uid, patience=PATIENCE)
        if wait:
            await self._clock.sleep(wait)
        return wait is not None

    async def _body(self, request: Request, caller: Caller, kind: str) -> bytes:
        """Read a request's whole body.

        Raises:
            ReportRefused: it is longer than the limit (little more than the limit was read), or there is no
                room for it now.
            ClientGone: it ended early.
        """
        if request.stream is None:
            return request.body
        sender = (caller.namespace, caller.uid)
        if sender in self._receiving:
            raise ReportRefused(429, "too_often", "expected one report at a time, found two")
        limit, announced = self._limit(caller, kind), request.length or 0

        def received(size: int) -> None:
            if max(size, announced) > self._receiving.get(sender, 0):
                self._receiving[sender] = max(size, announced)
                self._check_budget(caller.namespace)

        try:
            if announced > limit:
                raise BodyTooLong
            received(0)
            return await read_whole(request.stream, limit, received=received)
        except BodyTooLong:
            raise ReportRefused(413, "too_large", f"expected at most {limit} bytes") from None
        finally:
            self._receiving.pop(sender, None)

    def _check_budget(self, namespace: str) -> None:
        own = sum(size for (of, _), size in self._receiving.items() if of == namespace)
        if own > BODY_BUDGET - sum(self._receiving.values()):
            raise ReportRefused(503, "no_room", f"too many reports of {namespace} are being received; wait")

    def _limit(self, caller: Caller, kind: str) -> int:
        """The most bytes of a report; a router's by the endpoints that exist, or that it reported last."""
        if kind == "sidecar":
            return MAX_SIDECAR_REPORT
        if caller.shared:
            return MAX_ROUTER_REPORT
        known = self._reports.of_router(caller.namespace, caller.endpoint).get(caller.pod)
        # NB: while many are deleted, it reports more than exist; the answer brings it the new settings.
        endpoints = max(
            self._store.count(ENDPOINT, caller.namespace), len(known.endpoints) if known is not None else 0
        )
        return min(MAX_ROUTER_REPORT, MAX_SIDECAR_REPORT + ENDPOINT_BYTES * endpoints)

    def _refuse(self, exchange: Exchange, kind: str, refusal: ReportRefused, *, late: bool = False) -> None:
        self._observer.report(kind, refusal.reason)
        self._turn_away(exchange, _problem(refusal), late=late)

    def _turn_away(self, exchange: Exchange, answer: Response, *, late: bool = False) -> None:
        """Answer a refused request: at once, or late; always late if its address has many refused."""
        if not late and self._refusals.take(exchange.request.peer):
            exchange.answer(answer)
        else:
            exchange.request.headers, exchange.request.body = (), b""  # frees them during the wait
            exchange.gone = self._clock.call_at(self._clock.time() + PATIENCE, exchange.answer, answer).cancel

    def _take(self, request: Request, body: bytes, caller: Caller, kind: str) -> Response:
        report: wire.SidecarReport | wire.RouterReport
        try:
            report = wire.decode_router(body) if kind == "router" else wire.decode_sidecar(body)
        except DocumentError as error:
            raise ReportRefused(400, "bad_report", str(error)) from error
        caller.check(pod=report.pod, uid=report.uid)
        every = interval_of(len(body), self._interval(), router=kind == "router")
        turn: ArtifactTurn | None = None
        news: News | None
        if isinstance(report, wire.RouterReport) and caller.shared:
            for namespace, part in self._reports.shared_router(report, every=every).items():
                self._routers.note(namespace, caller.namespace, caller.pod)
                self._reported(namespace, "", part.notable)
            news = None
        elif isinstance(report, wire.RouterReport):
            news = self._reports.router(caller.namespace, report, endpoint=caller.endpoint, every=every)
            self._routers.note(caller.namespace, caller.namespace, caller.pod)
        else:
            turn = self._artifacts.of(caller.namespace, caller.backend, report, every=every)
            news = self._reports.sidecar(caller.namespace, caller.backend, report, every=every)
        self._observer.report(kind, "taken" if news is None or news.taken else "late")
        if news is not None and news.taken:
            self._reported(caller.namespace, caller.backend, news.notable)
        current = self._settings(caller.namespace, caller.record)
        document = None if current is None else _document(current, report)
        known, authorities = self._authorities
        present = get(request.headers, HEADER) if authorities else None
        answer = wire.ReportAnswer(
            next_report_ms=round(every * 1000),
            settings=None if document is None else msgspec.Raw(document),
            authorities=authorities if present is not None and present != known else None,
            routers=self._routers.of(caller.namespace) if kind == "sidecar" and self._own_addresses else (),
            artifact=turn or msgspec.UNSET,
            taken=self._reports.taken(caller.uid) if caller.shared else msgspec.UNSET,
        )
        return Response(200, _JSON, wire.encode(answer))

    # -- the rest ----------------------------------------------------------------------------------------

    def _livez(self) -> Response:
        wrong = self._alive()
        return _text(200 if wrong is None else 500, wrong or "ok")

    def _readyz(self) -> Response:
        # A standby is ready too: it can take over. An installation that waits for another one is not.
        wrong = self._waits()
        return _text(200 if wrong is None else 503, wrong or "ok")


def _document(
    current: Versioned | TenantSettings, report: wire.SidecarReport | wire.RouterReport
) -> bytes | None:
    """The settings for a pod: all, or what has changed of those that it has; None if it has these."""
    follows = isinstance(report, wire.RouterReport) and report.changes
    name = current.digest if follows or isinstance(current, Versioned) else current.bytes_digest
    if not lacks(report, current.version, name):
        return None
    return current.since(report.settings_digest) if follows else current.document


async def _listen(
    front: H1Front, host: str, port: int, service: Service, context: ssl.SSLContext | None
) -> tuple[str, int]:
    listener = await front.serve(
        host, port, service, streams=lambda _request: True, whole_bytes=WHOLE_REPORT, tls=context
    )
    return listener.address


def _credentials(request: Request, kind: str) -> Credentials:
    authorization = get(request.headers, b"authorization")
    return {
        "authorization": None if authorization is None else authorization.decode("latin-1"),
        "peer": request.peer,
        "router": kind == "router",
    }


def _text(status: int, text: str) -> Response:
    return Response(status, ((b"content-type", b"text/plain; charset=utf-8"),), f"{text}\n".encode())


def _problem(refusal: ReportRefused, title: str = "report refused") -> Response:
    body = {
        "type": "about:blank",
        "title": title,
        "status": refusal.status,
        "reason": refusal.reason,
        "detail": refusal.detail,
        "error": refusal.detail,
    }
    return Response(
        refusal.status, ((b"content-type", b"application/problem+json"),), msgspec.json.encode(body)
    )
