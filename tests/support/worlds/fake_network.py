"""An `Upstream` on a fake loop: pods that take, refuse or ignore connections, and a ledger of requests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

from penstock_wire.headers import NOT_ADMITTED, REASON, REQUEST_ID, Headers, get
from penstock_wire.http import (
    ConnectFailed,
    ConnectionLost,
    ConnectTimeout,
    Done,
    GiveUp,
    Opened,
    Request,
    Response,
    UpstreamError,
)

CONNECT_SECONDS = 2.0
Way = Literal["up", "refuses", "ignores", "away"]
"""`away`: the sidecar answers that it cannot connect to its model."""


class NoMore:
    """A body that has ended."""

    async def read(self) -> bytes:
        return b""


FULL: Headers = ((NOT_ADMITTED, b"1"), (REASON, b"queue_full"), (b"retry-after", b"7"))
"""The fields of a sidecar's refusal when its queue is full."""
AWAY: Headers = ((NOT_ADMITTED, b"1"), (REASON, b"model_unreachable"))
MOVED: Headers = ((NOT_ADMITTED, b"1"), (REASON, b"moved"))
"""The fields with which a sidecar hands a request back."""


class WholeAnswer:
    """An answer that is here whole."""

    def __init__(self, status: int = 200, headers: Headers = ()) -> None:
        self.status = status
        self.headers = headers
        self.length: int | None = 2
        self.stream = NoMore()
        self.tunnel = None

    def whole(self) -> bytes:
        return b"{}"

    def abort(self) -> None:
        pass


class Network:
    """All pods, by host. Unless `keeps`, every request makes a connection of its own.

    Args:
        seconds: how long a pod takes for a request.
        keeps: whether each pod that takes one has a kept connection.
    """

    def __init__(self, *, seconds: float = 0.01, keeps: bool = False) -> None:
        self.keeps = keeps
        self.ways: dict[str, Way] = {}
        self.seconds = seconds
        self.room: int | None = None
        """Requests that a pod takes at once; it refuses those beyond. None for any number."""
        self.busy: Counter[str] = Counter()
        """Requests that each pod has, by host."""
        self.first: set[str] = set()
        """Identities of requests that a pod takes however many it has."""
        self.handed_back: set[str] = set()
        """Identities of requests that the next pod hands back."""
        self.back_after = 0.0
        """Seconds that they wait there before."""
        self.refused = 0
        self.asked: list[str] = []
        """The host of each try that began."""
        self.tried: list[Headers] = []
        """The fields of each try that began."""
        self.executed: list[str] = []
        """Identities of requests, in the order in which pods got them."""
        self.connecting = 0
        self.on_connect: Callable[[], None] = lambda: None
        """Called when a try begins."""

    async def open(
        self,
        host: str,
        port: int,
        request: Request,
        *,
        timeout: float,
        idle: float | None = None,
        connected: Callable[[], object] | None = None,
    ) -> WholeAnswer:
        """See `Upstream.open`."""
        self.connecting += 1
        self.asked.append(host)
        self.tried.append(request.headers)
        self.on_connect()
        try:
            await self._connect(host, timeout)
        finally:
            self.connecting -= 1
        if connected is not None:
            connected()
        identity = (get(request.fields, REQUEST_ID) or b"").decode()
        if self.ways.get(host) == "away":
            self.refused += 1
            return WholeAnswer(502, AWAY)
        if self.room is not None and self.busy[host] >= self.room and identity not in self.first:
            self.refused += 1
            return WholeAnswer(503, FULL)
        if identity in self.handed_back:
            self.handed_back.remove(identity)
            await asyncio.sleep(self.back_after)
            return WholeAnswer(503, MOVED)
        if request.stream is not None and request.interim is not None:
            request.interim(100, ())
            while await request.stream.read():
                pass
        self.executed.append(identity)
        self.busy[host] += 1
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.busy[host] -= 1
        return WholeAnswer()

    async def _connect(self, host: str, timeout: float) -> None:
        way = self.ways.get(host, "up")
        if way == "refuses":
            raise ConnectFailed(f"cannot connect to {host}: refused")
        if way == "ignores":
            seconds = min(timeout, CONNECT_SECONDS)
            await asyncio.sleep(seconds)
            raise ConnectTimeout(f"cannot connect to {host} within {seconds:.3f} s")

    def begin(self, host: str, port: int, request: Request, timeout: float, done: Done) -> GiveUp | None:
        """See `Upstream.begin`."""
        return None

    def begin_open(
        self,
        host: str,
        port: int,
        request: Request,
        timeout: float,
        idle: float,
        whole_bytes: int,
        opened: Opened,
    ) -> GiveUp | None:
        """See `Upstream.begin_open`."""
        if not self.keeps or self.ways.get(host, "up") not in ("up", "away"):
            return None
        ended = False

        def end(answer: Response | UpstreamError) -> None:
            nonlocal ended
            if not ended:
                ended = True
                opened(answer)

        async def run() -> None:
            try:
                answer = await self.open(host, port, request, timeout=timeout)
            except asyncio.CancelledError:
                end(ConnectionLost("given up"))
                raise
            end(Response(answer.status, answer.headers, answer.whole()))

        return asyncio.ensure_future(run()).cancel

    async def send(self, host: str, port: int, request: Request, **more: Any) -> Response:
        """See `Upstream.send`."""
        answer = await self.open(host, port, request, **more)
        return Response(answer.status, answer.headers, answer.whole())

    def retire(self, host: str, port: int) -> None:
        """See `Upstream.retire`: no connection is kept here."""

    async def close(self) -> None:
        """See `Upstream.close`."""
