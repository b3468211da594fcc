"""A proxy between an operator and a real apiserver that does to it what networks and apiservers do.

The operator speaks plain HTTP to it, it speaks TLS to the apiserver as the administrator. While it `rages`, a
part of all calls fails in one of the ways of `CALLS` and every watch ends badly sooner or later (`WATCHES`);
what fails is drawn from a seeded generator. `peace` lets everything pass, and what was stalled go on.

Every write that the operator tries is remembered, with what became of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import ssl
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import aiohttp
from aiohttp import web
from yarl import URL

Obj = dict[str, Any]
SECONDS_OF_GOODBYES = 0.5
"""Twice the wait that aiohttp's documentation requires before a loop is closed."""

CALLS = {
    "error": 8,  # 500, 502, 503 or 504, nothing done
    "late": 10,  # done, up to two seconds later
    "throttled": 4,  # 429 with Retry-After
    "conflict": 4,  # 409 to a write, nothing done
    "rejected": 3,  # 403 or 422 to a write, as webhooks and policies answer
    "lost": 4,  # done, and the connection closed before the answer
    "cut": 4,  # nothing done, connection closed
    "half": 2,  # done, and half of the answer
    "stalled": 1,  # nothing done, no answer for a long time
    "gone": 3,  # 410 to a list
}
"""Ways in which a call fails, with how many of a hundred do."""

WATCHES = {"cut": 5, "gone": 2, "stalled": 3, "ended": 2}
"""Ways in which a watch goes wrong, and how often: cut in mid-line, 410, silent for a while, ended."""

WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_BUSY = frozenset({429, 500, 503, 504})
_BUSY_TRIES = 20
_STALL = 20.0
_WATCH_LIFE = 12.0
_UNKEPT = frozenset({"connection", "host", "content-length", "transfer-encoding", "accept-encoding"})


@dataclass(frozen=True, slots=True)
class Write:
    """One write that was tried.

    Args:
        at: monotonic seconds.
        outcome: the status, or the fault that it met.
    """

    at: float
    method: str
    path: str
    outcome: str


class FaultProxy:
    """See the module."""

    def __init__(self, server: str, pki: Path, *, seed: int) -> None:
        self._server = server
        self._context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._context.load_cert_chain(str(pki / "admin.crt"), str(pki / "admin.key"))
        self._draw = random.Random(seed)
        self._peace = asyncio.Event()
        self._peace.set()
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None
        self.writes: list[Write] = []
        self.faults: Counter[str] = Counter()
        self.calls = 0
        self.url = ""

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(ssl=self._context, limit=0)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=None, connect=30)
        )
        app = web.Application(client_max_size=32 * 2**20)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._peace.set()
        assert self._runner is not None
        assert self._session is not None
        await self._runner.cleanup()
        connector = self._session.connector
        assert isinstance(connector, aiohttp.TCPConnector)
        await connector.close(abort_ssl=True)
        await self._session.close()
        # NB: connections that were being made still end over TLS, and nothing waits for that. A loop that is
        # closed before it leaves sockets behind, which the collector finds in another test.
        await asyncio.sleep(SECONDS_OF_GOODBYES)

    def kubeconfig(self) -> str:
        """A kubeconfig that leads through the proxy."""
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": self.url}}],
                "users": [{"name": "u", "user": {"token": "unused"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            }
        )

    @property
    def rages(self) -> bool:
        """Whether the proxy injects faults."""
        return not self._peace.is_set()

    def rage(self) -> None:
        """From now on things fail."""
        self._peace.clear()

    def peace(self) -> None:
        """From now on everything passes; what is stalled goes on."""
        self._peace.set()

    async def direct(
        self, method: str, path: str, body: Any = None, *, form: str = "application/json"
    ) -> tuple[int, Obj]:
        """A call that meets no fault: what users do and tests look at. A busy apiserver is asked again."""
        assert self._session is not None
        data = None if body is None else json.dumps(body)
        url, headers = URL(self._server + path, encoded=True), {"content-type": form}
        for last in (False,) * _BUSY_TRIES + (True,):
            async with self._session.request(method, url, data=data, headers=headers) as answer:
                status, text = answer.status, await answer.text()
            if last or status not in _BUSY:
                break
            await asyncio.sleep(0.5)
        try:
            document: Obj = json.loads(text)
        except ValueError:
            document = {"message": text}
        return status, document

    # -- serving -----------------------------------------------------------------------------------------

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.calls += 1
        watch = request.query.get("watch") in ("true", "1")
        fault = self._fault(request.method, watch=watch) if self.rages else None
        if fault is not None:
            self.faults[fault] += 1
        answer = await (self._watch if watch else self._call)(request, body, fault)
        if request.method in WRITES:
            outcome = fault if fault not in (None, "late") else str(answer.status)
            self.writes.append(Write(time.monotonic(), request.method, request.path, str(outcome)))
        return answer

    def _fault(self, method: str, *, watch: bool) -> str | None:
        ways = {**CALLS, "": 100 - sum(CALLS.values())}
        name = self._draw.choices(list(ways), list(ways.values()))[0]
        if name in ("conflict", "rejected") and method not in WRITES:
            return None
        if name == "gone" and method != "GET":
            return None
        # A watch that opens goes wrong later, in its own ways.
        return name if name and (not watch or name in ("error", "throttled", "cut", "gone")) else None

    async def _call(self, request: web.Request, body: bytes, fault: str | None) -> web.StreamResponse:
        refused = await self._refuse(request, fault)
        if refused is not None:
            return refused
        if fault == "late":
            await self._or_peace(self._draw.uniform(0.05, 2.0))
        async with self._forward(request, body) as answer:
            data = await answer.read()
            status, form = answer.status, answer.headers.get("content-type", "application/json")
        if fault == "lost":
            return _hang_up(request)
        if fault == "half":
            short = web.StreamResponse(status=status, headers={"content-type": form})
            short.content_length = len(data) + 1
            with contextlib.suppress(ConnectionError):
                await short.prepare(request)
                await short.write(data[: len(data) // 2])
            _hang_up(request)
            return short
        return web.Response(status=status, body=data, headers={"content-type": form})

    async def _refuse(self, request: web.Request, fault: str | None) -> web.StreamResponse | None:
        """The answer of a fault that does nothing of what was asked for."""
        if fault == "stalled":
            await self._or_peace(_STALL)
        if fault in ("stalled", "cut"):
            return _hang_up(request)
        if fault == "error":
            return _status(self._draw.choice((500, 502, 503, 504)), "etcdserver: request timed out")
        if fault == "throttled":
            return _status(429, "too many requests", retry_after=1)
        if fault == "conflict":
            return _status(
                409, "the object has been modified; please apply your changes to the latest version"
            )
        if fault == "rejected":
            if self._draw.random() < 0.5:
                return _status(403, 'admission webhook "faults" denied the request: so it was drawn')
            return _status(422, "invalid: so it was drawn")
        if fault == "gone":
            return _status(410, "The provided continue parameter is too old", reason="Expired")
        return None

    async def _watch(self, request: web.Request, body: bytes, fault: str | None) -> web.StreamResponse:
        refused = await self._refuse(request, fault)
        if refused is not None:
            return refused
        async with self._forward(request, body) as answer:
            stream = web.StreamResponse(
                status=answer.status,
                headers={"content-type": answer.headers.get("content-type", "application/json")},
            )
            with contextlib.suppress(ConnectionError):
                await stream.prepare(request)
                await self._pass_on(request, answer.content, stream)
            return stream

    async def _pass_on(
        self, request: web.Request, source: aiohttp.StreamReader, stream: web.StreamResponse
    ) -> None:
        ends = time.monotonic() + self._draw.expovariate(1 / _WATCH_LIFE)
        while request.transport is not None and not request.transport.is_closing():
            if self.rages and time.monotonic() >= ends:
                way = self._draw.choices(list(WATCHES), list(WATCHES.values()))[0]
                self.faults[f"watch {way}"] += 1
                if way == "stalled":
                    await self._or_peace(self._draw.uniform(1.0, _STALL))
                    ends = time.monotonic() + self._draw.expovariate(1 / _WATCH_LIFE)
                    continue
                if way == "gone":
                    event = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}
                    await stream.write(json.dumps(event).encode() + b"\n")
                elif way == "cut":
                    await stream.write(b'{"type":"MODIFIED","obj')
                    _hang_up(request)
                return
            try:
                data = await asyncio.wait_for(source.readany(), 0.5)
            except TimeoutError:
                continue
            if not data:
                return
            await stream.write(data)

    def _forward(self, request: web.Request, body: bytes) -> Any:
        assert self._session is not None
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _UNKEPT}
        headers.pop("Authorization", None)
        return self._session.request(
            request.method,
            URL(self._server + request.raw_path, encoded=True),
            data=body or None,
            headers=headers,
        )

    async def _or_peace(self, seconds: float) -> None:
        """Wait so long, or until there is peace."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._peace.wait(), seconds)


def _hang_up(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


def _status(code: int, message: str, *, reason: str = "", retry_after: int | None = None) -> web.Response:
    document = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return web.json_response(document | ({"reason": reason} if reason else {}), status=code, headers=headers)
