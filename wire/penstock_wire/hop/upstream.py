"""Sends requests over hops to pods that have one, and over pooled HTTP/1.1 to all others; an `Upstream`.

A server that is known to be a sidecar (`keep`), or has answered with `x-penstock-queue`, is asked for a hop
on a separate connection. Until it agrees, requests go over HTTP/1.1, as do all requests that a hop does not
carry: those that ask to switch protocols, want a fresh connection, or ask whether to send their body
(`Expect`). Requests never wait for the upgrade.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Collection
from typing import Final

from penstock_wire.headers import QUEUE, Headers, get
from penstock_wire.hop.asking import MEET_SECONDS, ask
from penstock_wire.hop.client import HopClient
from penstock_wire.http import Done, GiveUp, Opened, Request, Response, UpstreamAnswer, UpstreamError
from penstock_wire.http.client.pool import H1Upstream

IDLE_SECONDS = 60.0
"""How long a hop without requests is kept: less than the sidecar keeps it."""
MAX_ASKING: Final = 32
"""Most upgrades under way at once for kept servers; those that an answer triggers are not limited."""
MAX_REFUSED: Final = 4096
"""Most servers without a hop that are remembered."""
_Key = tuple[str, int]


class HopUpstream:
    """An `Upstream`.

    Args:
        plain: sends over HTTP/1.1; it watches hops for silent peers as it does its own connections.
    """

    def __init__(self, plain: H1Upstream) -> None:
        self._plain = plain
        self._hops: dict[_Key, HopClient] = {}
        self._asking: dict[_Key, asyncio.Task[None]] = {}
        self._refused: dict[_Key, float] = {}
        self._retirements = 0
        self._kept: dict[_Key, None] = {}
        self._next_meet: asyncio.TimerHandle | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self.on_room: Callable[[_Key, int, int, int], None] | None = None
        """Called with the numbers of a server's room frame: items that would start at once, items that wait,
        and items that start at once on an idle server (0 = unknown); -1, 0, 0 when they become unknown."""
        self.on_recalled: Callable[[_Key, int], None] | None = None
        """Called when a server has handed requests back (`recall`), with the number of items, after the last
        of their answers."""

    def keep(self, keys: Collection[_Key]) -> None:
        """Keep a hop to each of these sidecars, also before its first request, to learn how much room it has.

        Args:
            keys: hosts and ports; hops to other servers can end when idle.
        """
        self._kept = dict.fromkeys(keys)
        self._meet()

    def recall(self, host: str, port: int, count: int) -> bool:
        """Ask a server to hand back requests that have not started; they are answered as not executed.

        Args:
            host: address of the server.
            port: its port.
            count: how many items; the last request can exceed it.

        Returns:
            Whether it was asked, that is, whether a hop to it exists.
        """
        hop = self._hops.get((host, port))
        if hop is None or hop.ended:
            return False
        hop.recall(count)
        return True

    def begin(self, host: str, port: int, request: Request, timeout: float, done: Done) -> GiveUp | None:
        hop = self._hops.get((host, port))
        if hop is not None and hop.takes(request):
            return hop.begin(request, timeout, done).give_up
        return self._plain.begin(host, port, request, timeout, done)

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
        key = (host, port)
        hop = self._hops.get(key)
        if hop is not None and hop.takes(request):
            return hop.begin_open(request, timeout, idle, whole_bytes, opened).give_up
        if hop is None and self._may_ask(key):

            def learned(answer: Response | UpstreamAnswer | UpstreamError) -> None:
                if not isinstance(answer, UpstreamError):
                    self._learn(key, answer.headers)
                opened(answer)

            return self._plain.begin_open(host, port, request, timeout, idle, whole_bytes, learned)
        return self._plain.begin_open(host, port, request, timeout, idle, whole_bytes, opened)

    async def send(
        self,
        host: str,
        port: int,
        request: Request,
        *,
        timeout: float,
        connected: Callable[[], object] | None = None,
    ) -> Response:
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
        self._retirements += 1
        self._plain.retire(host, port)
        self._refused.pop((host, port), None)
        hop = self._hops.pop((host, port), None)
        if hop is not None:
            self._room_is_unknown((host, port))
            hop.retire()

    async def close(self) -> None:
        for timer in (self._sweep, self._next_meet):
            if timer is not None:
                timer.cancel()
        self._kept.clear()
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        for hop in list(self._hops.values()):
            hop.end()
        await self._plain.close()

    # -- asking for a hop -----------------------------------------------------------------------------------

    def _learn(self, key: _Key, headers: Headers) -> None:
        """Ask a server for a hop if its answer over HTTP/1.1 shows that it is a sidecar."""
        if key in self._hops or not self._may_ask(key):
            return
        if get(headers, QUEUE) is None:
            self._leave_alone(key, MEET_SECONDS)
            return
        self._asking[key] = asyncio.get_running_loop().create_task(self._ask(key))

    def _may_ask(self, key: _Key) -> bool:
        """Whether a server without a hop can be asked for one now."""
        until = self._refused.get(key)
        if until is not None:
            if time.monotonic() < until:
                return False
            del self._refused[key]
        return key not in self._asking

    async def _ask(self, key: _Key) -> None:
        try:
            hop = await ask(self, key, functools.partial(self._made, self._retirements))
        finally:
            del self._asking[key]
            self._meet_soon()
        if isinstance(hop, float):
            self._leave_alone(key, hop)

    def _made(self, retirements: int, hop: HopClient) -> None:
        """Take a new hop into use; `retirements` is their count when the server was asked.

        NB: called in the same turn of the loop in which the hop can already send its room, and end.
        """
        self._plain.adopt(hop)
        if retirements != self._retirements:
            hop.retire()
            return
        hop.memory = self._plain.memory
        self._hops[hop.key] = hop
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(IDLE_SECONDS / 4, self._close_idle)

    def _leave_alone(self, key: _Key, seconds: float) -> None:
        if len(self._refused) >= MAX_REFUSED:
            self._refused.clear()
        self._refused[key] = time.monotonic() + seconds

    def _meet_soon(self) -> None:
        if self._kept and self._next_meet is None:
            self._next_meet = asyncio.get_running_loop().call_later(MEET_SECONDS, self._meet)

    def _meet(self) -> None:
        """Ask the kept servers that have no hop for one."""
        if self._next_meet is not None:
            self._next_meet.cancel()
            self._next_meet = None
        missing = [key for key in self._kept if key not in self._hops]
        for key in missing:
            if len(self._asking) >= MAX_ASKING:
                break
            if self._may_ask(key):
                self._asking[key] = asyncio.get_running_loop().create_task(self._ask(key))
        if missing:
            self._meet_soon()

    def _close_idle(self) -> None:
        self._sweep = None
        now = time.monotonic()
        for key, hop in list(self._hops.items()):
            if key not in self._kept and not hop.busy and now - hop.idle_since >= IDLE_SECONDS:
                del self._hops[key]
                self._room_is_unknown(key)
                hop.retire()
        if self._hops:
            self._sweep = asyncio.get_running_loop().call_later(IDLE_SECONDS / 4, self._close_idle)

    # -- calls from connections (`client.HopPool`) ----------------------------------------------------------

    def forget(self, connection: HopClient) -> None:
        self._plain.disown(connection)
        self.leaves(connection)

    def leaves(self, connection: HopClient) -> None:
        if self._hops.get(connection.key) is connection:
            del self._hops[connection.key]
            self._room_is_unknown(connection.key)
            self._leave_alone(connection.key, MEET_SECONDS)  # it may be about to end
            self._meet_soon()

    def room(self, connection: HopClient, free: int, waiting: int, capacity: int) -> None:
        if self.on_room is not None and connection.reusable:
            self.on_room(connection.key, free, waiting, capacity)

    def recalled(self, connection: HopClient, count: int) -> None:
        if self.on_recalled is not None:
            self.on_recalled(connection.key, count)

    def _room_is_unknown(self, key: _Key) -> None:
        if self.on_room is not None:
            self.on_room(key, -1, 0, 0)

    def silent(self, connection: HopClient) -> None:
        self._plain.silent(connection)
