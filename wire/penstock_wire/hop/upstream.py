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
from typing import Any, Final

from penstock_wire.addresses import join
from penstock_wire.framing.client import FramedClient
from penstock_wire.framing.starting import Starting
from penstock_wire.headers import QUEUE, Headers, get
from penstock_wire.hop.asking import MEET_SECONDS, NoHop, ask
from penstock_wire.hop.client import HopClient
from penstock_wire.http import (
    ConnectFailed,
    ConnectTimeout,
    GiveUp,
    NotAdmitted,
    NotCarried,
    Opened,
    Request,
    Response,
    UpstreamAnswer,
    UpstreamError,
)
from penstock_wire.http.client.pool import H1Upstream

IDLE_SECONDS = 60.0
"""How long a hop without requests is kept: less than the sidecar keeps it."""
MAX_ASKING: Final = 32
"""Most upgrades under way at once for kept servers; those that an answer triggers are not limited."""
MAX_REFUSED: Final = 4096
"""Most servers without a hop that are remembered."""
_TURNS: Final = 8
"""Turns of the loop in which an idle hop's waiting bytes are delivered."""
_LEAST_SECONDS: Final = 0.001
_Key = tuple[str, int]


class HopUpstream:
    """An `Upstream`.

    Args:
        plain: sends over HTTP/1.1; it watches hops for silent peers as it does its own connections.
    """

    def __init__(self, plain: H1Upstream) -> None:
        self._plain = plain
        self._hops: dict[_Key, HopClient] = {}
        self._asking: dict[_Key, asyncio.Task[NoHop | None]] = {}
        self._starting: set[asyncio.Task[None]] = set()
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
        key = (host, port)
        hop = self._hops.get(key)
        if request.trailers:
            request.fresh = False  # only a hop carries it
        if hop is not None and hop.takes(request):
            return hop.begin(request, timeout, idle, whole_bytes, opened).give_up
        if request.trailers:
            starting = Starting(opened)
            begin = self._begin_on_hop(key, request, timeout, idle, whole_bytes, starting, connected)
            self._starting.add(task := starting.run(begin))
            task.add_done_callback(self._starting.discard)
            return starting.give_up
        if hop is None and self._may_ask(key):

            def learned(answer: Response | UpstreamAnswer | UpstreamError) -> None:
                if not isinstance(answer, UpstreamError):
                    self._learn(key, answer.headers)
                opened(answer)

            return self._plain.begin(host, port, request, timeout, idle, whole_bytes, learned, connected)
        return self._plain.begin(host, port, request, timeout, idle, whole_bytes, opened, connected)

    async def _begin_on_hop(
        self,
        key: _Key,
        request: Request,
        timeout: float,
        idle: float,
        whole_bytes: int,
        starting: Starting,
        connected: Callable[[], object] | None,
    ) -> None:
        """Wait for a hop, and send a request that only a hop can carry.

        Raises:
            ConnectFailed: no connection could be made.
            NotAdmitted: the server is closing, or takes nothing on its hop now.
            NotCarried: the server makes no hops.
        """
        started = time.monotonic()
        hop = self._hops.get(key)
        for _ in range(_TURNS):
            if hop is None or hop.is_full or hop.takes(request):
                break
            await asyncio.sleep(0)  # the loop has yet to deliver its bytes, or its end
            hop = self._hops.get(key)
        if hop is None or not hop.takes(request):
            hop = await self._new_hop(key, timeout)
            if connected is not None:
                connected()
            if not hop.takes(request):
                raise NotAdmitted(f"{join(*key)} takes nothing on its hop now")
        left = max(timeout - (time.monotonic() - started), _LEAST_SECONDS)
        starting.begun = hop.begin(request, left, idle, whole_bytes, starting.opened).give_up

    async def _new_hop(self, key: _Key, timeout: float) -> HopClient:
        """Wait for a new hop to a server."""
        asking = self._asking.get(key)
        if asking is None:
            if self._refused.get(key, 0.0) - time.monotonic() > MEET_SECONDS:
                raise NotCarried(
                    f"expected a server that makes hops, which alone carry gRPC calls: {join(*key)}"
                )
            asking = self._asking[key] = asyncio.get_running_loop().create_task(self._ask(key))
        await asyncio.wait({asking}, timeout=timeout)
        if not asking.done():
            raise ConnectTimeout(f"no hop to {join(*key)} was made in time", timeout)
        if asking.cancelled() or asking.exception() is not None:
            raise ConnectFailed(f"no hop to {join(*key)} could be made")
        refusal = asking.result()
        if refusal is not None:
            raise refusal.error
        hop = self._hops.get(key)
        if hop is None:
            raise NotAdmitted(f"the hop to {join(*key)} ended as soon as it was made")
        return hop

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
        asking: list[asyncio.Task[Any]] = [*self._asking.values(), *self._starting]
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

    async def _ask(self, key: _Key) -> NoHop | None:
        """Ask a server for a hop; returns why it makes none."""
        try:
            answer = await ask(self, key, functools.partial(self._made, self._retirements))
        finally:
            del self._asking[key]
            self._meet_soon()
        if not isinstance(answer, NoHop):
            return None
        self._leave_alone(key, answer.seconds)
        return answer

    def _made(self, retirements: int, hop: HopClient) -> None:
        """Take a new hop into use; `retirements` is their count when the server was asked.

        NB: called in the same turn of the loop in which the hop can already send its room, and end.
        """
        self._plain.adopt(hop)
        if retirements != self._retirements:
            hop.retire()
            return
        hop.memory = self._plain.memory
        before = self._hops.get(hop.key)
        self._hops[hop.key] = hop
        if before is not None:  # it was full
            before.retire()
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

    def forget(self, connection: FramedClient) -> None:
        self._plain.disown(connection)
        self.leaves(connection)

    def leaves(self, connection: FramedClient) -> None:
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

    def silent(self, connection: FramedClient) -> None:
        self._plain.silent(connection)
