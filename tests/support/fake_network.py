"""An `Upstream` on a fake loop: pods that take, refuse or ignore connections, and a ledger of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

from penstock_wire.headers import REQUEST_ID, Headers, get
from penstock_wire.http import ConnectFailed, ConnectTimeout, Done, GiveUp, Request, Response

CONNECT_SECONDS = 2.0
Way = Literal["up", "refuses", "ignores"]


class NoMore:
    """A body that has ended."""

    async def read(self) -> bytes:
        return b""


class WholeAnswer:
    """An answer 200 that is here whole."""

    def __init__(self) -> None:
        self.status = 200
        self.headers: Headers = ()
        self.length: int | None = 2
        self.stream = NoMore()
        self.tunnel = None

    def whole(self) -> bytes:
        return b"{}"

    def abort(self) -> None:
        pass


class Network:
    """All pods, by host. Every request makes a connection of its own.

    Args:
        seconds: how long a pod takes for a request.
    """

    def __init__(self, *, seconds: float = 0.01) -> None:
        self.ways: dict[str, Way] = {}
        self.seconds = seconds
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
        self.on_connect()
        try:
            await self._connect(host, timeout)
        finally:
            self.connecting -= 1
        if connected is not None:
            connected()
        self.executed.append((get(request.headers, REQUEST_ID) or b"").decode())
        await asyncio.sleep(self.seconds)
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

    async def send(self, host: str, port: int, request: Request, **more: Any) -> Response:
        """See `Upstream.send`."""
        answer = await self.open(host, port, request, **more)
        return Response(answer.status, answer.headers, answer.whole())

    def retire(self, host: str, port: int) -> None:
        """See `Upstream.retire`: no connection is kept here."""

    async def close(self) -> None:
        """See `Upstream.close`."""
