"""An `Upstream` on a fake loop: pods that take, refuse or ignore connections, and a ledger of requests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Literal

from penstock_wire.headers import NOT_ADMITTED, REASON, REQUEST_ID, Headers, get
from penstock_wire.http import (
    ConnectFailed,
    ConnectionLost,
    ConnectTimeout,
    GiveUp,
    Opened,
    Request,
    Response,
    SenderFailed,
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
        self.trailers = None

    def whole(self) -> bytes:
        return b"{}"

    def abort(self) -> None:
        pass


class _Try:
    """One try, which calls back once."""

    def __init__(self, whole_bytes: int, opened: Opened) -> None:
        self._whole, self._opened = whole_bytes >= 0, opened
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False
        self.over: Callable[[], object] = lambda: None
        """Called at its end."""

    def ends(
        self, seconds: float, answer: WholeAnswer | UpstreamError, over: Callable[[], object] = lambda: None
    ) -> None:
        """End it after some seconds."""
        self.over = over
        if not seconds and not self._whole:
            self._end(answer)  # a refusal takes a task no time: others do not overtake it
            return
        self._timer = asyncio.get_running_loop().call_later(seconds, self._end, answer)

    def _end(self, answer: WholeAnswer | UpstreamError) -> None:
        over, self.over = self.over, lambda: None
        asyncio.get_running_loop().call_soon(over)  # as soon as a task can see the answer
        self._ended = True
        if self._whole and isinstance(answer, WholeAnswer):
            self._opened(Response(answer.status, answer.headers, answer.whole()))
        else:
            self._opened(answer)

    def give_up(self) -> None:
        """End it in the next turn of the loop; no-op after its end."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._ended:
            self._timer = asyncio.get_running_loop().call_later(0, self._end, ConnectionLost("given up"))


class Network:
    """All pods, by host. Every request makes a connection of its own.

    Args:
        seconds: how long a pod takes for a request.
    """

    def __init__(self, *, seconds: float = 0.01) -> None:
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

    def begin(
        self,
        host: str,
        port: int,
        request: Request,
        timeout: float,
        idle: float,
        whole_bytes: int,
        opened: Opened,
        connected: Callable[[], object] | None = None,
    ) -> GiveUp:
        """See `Upstream.begin`."""
        try_ = _Try(whole_bytes, opened)
        self.asked.append(host)
        self.tried.append(request.headers)
        self.connecting += 1
        self.on_connect()
        way = self.ways.get(host, "up")
        if way == "ignores":
            seconds = min(timeout, CONNECT_SECONDS)
            late = ConnectTimeout(f"cannot connect to {host} within {seconds:.3f} s")
            try_.ends(seconds, late, self._connects_no_more)
            return try_.give_up
        self.connecting -= 1
        if way == "refuses":
            try_.ends(0, ConnectFailed(f"cannot connect to {host}: refused"))
            return try_.give_up
        if connected is not None:
            asyncio.get_running_loop().call_soon(connected)
        if request.stream is None or way == "away":
            self._take(host, request, try_)
        else:
            reading = asyncio.ensure_future(self._read(host, request, try_))
            try_.over = reading.cancel
        return try_.give_up

    def _connects_no_more(self) -> None:
        self.connecting -= 1

    async def _read(self, host: str, request: Request, try_: _Try) -> None:
        """Let a pod read a stream."""
        assert request.stream is not None
        assert request.interim is not None
        request.interim(100, ())
        try:
            while await request.stream.read():
                pass
        except Exception as error:
            try_.ends(0, SenderFailed(host, error))
        else:
            self._take(host, request, try_)

    def _take(self, host: str, request: Request, try_: _Try) -> None:
        """Let a pod answer."""
        identity = (get(request.fields, REQUEST_ID) or b"").decode()
        if self.ways.get(host) == "away":
            self.refused += 1
            try_.ends(0, WholeAnswer(502, AWAY))
        elif self.room is not None and self.busy[host] >= self.room and identity not in self.first:
            self.refused += 1
            try_.ends(0, WholeAnswer(503, FULL))
        elif identity in self.handed_back:
            self.handed_back.remove(identity)
            try_.ends(self.back_after, WholeAnswer(503, MOVED))
        else:
            self.executed.append(identity)
            self.busy[host] += 1
            try_.ends(self.seconds, WholeAnswer(), lambda: self.busy.subtract((host,)))

    def retire(self, host: str, port: int) -> None:
        """See `Upstream.retire`: no connection is kept here."""

    async def close(self) -> None:
        """See `Upstream.close`."""
