"""`Upstream` over hops where a pod has one, and over pooled HTTP/1.1 everywhere else.

The first requests to a pod go over HTTP/1.1, as all do that a hop does not carry: those that ask to switch
protocols or want a fresh connection. An answer with `x-penstock-queue` is a sidecar's. Then one connection to
that pod is asked, beside its requests, to become a hop; from then on they go there. Whoever is no sidecar is
never asked, and no request waits for the asking.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from penstock_wire.headers import QUEUE, Headers, get
from penstock_wire.hop.asking import ask
from penstock_wire.hop.client import HopClient
from penstock_wire.http import Done, GiveUp, Opened, Request, Response, UpstreamAnswer, UpstreamError
from penstock_wire.http.client.pool import H1Upstream

ASK_AGAIN_SECONDS = 60.0
"""A server that knows no hop, or would have none now, is left alone for so long."""
IDLE_SECONDS = 60.0
"""How long a hop without requests is kept: less than the sidecar does."""
MAX_REFUSED = 4096
"""Servers without a hop that are remembered."""
_Key = tuple[str, int]


class HopUpstream:
    """An `Upstream`.

    Args:
        plain: sends over HTTP/1.1; it looks after the hops' signs of life as after its own connections'.
    """

    def __init__(self, plain: H1Upstream) -> None:
        self._plain = plain
        self._hops: dict[_Key, HopClient] = {}
        self._asking: dict[_Key, asyncio.Task[None]] = {}
        self._refused: dict[_Key, float] = {}
        self._retirements = 0
        self._sweep: asyncio.TimerHandle | None = None

    def begin(self, host: str, port: int, request: Request, timeout: float, done: Done) -> GiveUp | None:
        """See `Upstream.begin`."""
        hop = self._hops.get((host, port))
        if hop is not None and hop.takes(request):
            return hop.begin(request, timeout, done).give_up
        return self._plain.begin(host, port, request, timeout, done)

    def begin_open(
        self, host: str, port: int, request: Request, timeout: float, whole_bytes: int, opened: Opened
    ) -> GiveUp | None:
        """See `Upstream.begin_open`."""
        key = (host, port)
        hop = self._hops.get(key)
        if hop is not None and hop.takes(request):
            return hop.begin_open(request, timeout, whole_bytes, opened).give_up
        if hop is None and self._may_ask(key):

            def learned(answer: Response | UpstreamAnswer | UpstreamError) -> None:
                if not isinstance(answer, UpstreamError):
                    self._learn(key, answer.headers)
                opened(answer)

            return self._plain.begin_open(host, port, request, timeout, whole_bytes, learned)
        return self._plain.begin_open(host, port, request, timeout, whole_bytes, opened)

    async def send(
        self,
        host: str,
        port: int,
        request: Request,
        *,
        timeout: float,
        connected: Callable[[], object] | None = None,
    ) -> Response:
        """See `Upstream.send`."""
        key = (host, port)
        hop = self._hops.get(key)
        if hop is None or not hop.takes(request):
            answer = await self._plain.send(host, port, request, timeout=timeout, connected=connected)
            self._learn(key, answer.headers)
            return answer
        call, waiter = hop.wait(request, timeout)
        try:
            return await waiter
        finally:
            call.abandon()

    async def open(
        self,
        host: str,
        port: int,
        request: Request,
        *,
        timeout: float,
        idle: float | None = None,
        connected: Callable[[], object] | None = None,
    ) -> UpstreamAnswer:
        """See `Upstream.open`."""
        key = (host, port)
        hop = self._hops.get(key)
        if hop is None or not hop.takes(request):
            opened = await self._plain.open(
                host, port, request, timeout=timeout, idle=idle, connected=connected
            )
            self._learn(key, opened.headers)
            return opened
        call, opening = hop.open(request, timeout, timeout if idle is None else idle)
        try:
            return await opening
        except asyncio.CancelledError:
            call.abandon()
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                opening.result().abort()
            raise

    def retire(self, host: str, port: int) -> None:
        """See `Upstream.retire`."""
        self._retirements += 1
        self._plain.retire(host, port)
        self._refused.pop((host, port), None)
        hop = self._hops.pop((host, port), None)
        if hop is not None:
            hop.retire()

    async def close(self) -> None:
        """See `Upstream.close`."""
        if self._sweep is not None:
            self._sweep.cancel()
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        for hop in list(self._hops.values()):
            hop.end()
        await self._plain.close()

    # -- asking for a hop -----------------------------------------------------------------------------------

    def _learn(self, key: _Key, headers: Headers) -> None:
        """A server has answered over HTTP/1.1: where it is a sidecar, ask for a hop."""
        if key in self._hops or get(headers, QUEUE) is None or not self._may_ask(key):
            return
        self._asking[key] = asyncio.get_running_loop().create_task(self._ask(key))

    def _may_ask(self, key: _Key) -> bool:
        """Whether a server that has no hop is to be asked for one, where it is a sidecar."""
        if key in self._asking:
            return False
        until = self._refused.get(key)
        if until is not None and time.monotonic() >= until:
            del self._refused[key]
            until = None
        return until is None

    async def _ask(self, key: _Key) -> None:
        retirements = self._retirements
        try:
            hop = await ask(self, key, self._plain.adopt)
        finally:
            del self._asking[key]
        if hop is None:
            if len(self._refused) >= MAX_REFUSED:
                self._refused.clear()
            self._refused[key] = time.monotonic() + ASK_AGAIN_SECONDS
        elif retirements != self._retirements or hop.ended:
            hop.retire()
        else:
            self._hops[key] = hop
            if self._sweep is None:
                self._sweep = asyncio.get_running_loop().call_later(IDLE_SECONDS / 4, self._close_idle)

    def _close_idle(self) -> None:
        self._sweep = None
        now = time.monotonic()
        for key, hop in list(self._hops.items()):
            if not hop.busy and now - hop.idle_since >= IDLE_SECONDS:
                del self._hops[key]
                hop.retire()
        if self._hops:
            self._sweep = asyncio.get_running_loop().call_later(IDLE_SECONDS / 4, self._close_idle)

    # -- what connections say (`client.HopPool`) ------------------------------------------------------------

    def forget(self, connection: HopClient) -> None:
        """See `HopPool.forget`."""
        self._plain.disown(connection)
        self.leaves(connection)

    def leaves(self, connection: HopClient) -> None:
        """See `HopPool.leaves`."""
        if self._hops.get(connection.key) is connection:
            del self._hops[connection.key]

    def silent(self, connection: HopClient) -> None:
        """See `HopPool.silent`."""
        self._plain.silent(connection)
