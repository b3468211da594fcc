"""Sends gRPC calls over HTTP/2 with prior knowledge; an `Upstream`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

from penstock_wire.addresses import join
from penstock_wire.framing.client import FramedClient
from penstock_wire.framing.starting import Starting
from penstock_wire.http import (
    ConnectFailed,
    ConnectTimeout,
    GiveUp,
    Opened,
    Request,
)
from penstock_wire.http.memory import MemoryBound
from penstock_wire.http2.client import H2Client

IDLE_SECONDS = 60.0
"""How long a connection without calls is kept."""
_Key = tuple[str, int]


class H2Upstream:
    """An `Upstream`: one connection to a server, and another one where that takes no more calls at once.

    Args:
        memory: bounds the memory of all connections of the process, these among them; None = unbounded.
    """

    def __init__(self, memory: MemoryBound | None = None) -> None:
        self.memory = memory
        self.open: set[FramedClient] = set()
        if memory is not None:
            memory.others.append(self.kept)
        self._connections: dict[_Key, list[H2Client]] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.TimerHandle | None = None

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
        for connection in self._connections.get((host, port), ()):
            if connection.takes:
                return connection.begin(request, timeout, idle, whole_bytes, opened).give_up
        starting = Starting(opened)
        work = self._begin_on_new((host, port), request, timeout, idle, whole_bytes, starting, connected)
        task = starting.run(work)
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return starting.give_up

    async def _begin_on_new(
        self,
        key: _Key,
        request: Request,
        timeout: float,
        idle: float,
        whole_bytes: int,
        starting: Starting,
        connected: Callable[[], object] | None,
    ) -> None:
        started = time.monotonic()
        for connection in self._connections.get(key, ()):  # made for another call since this one came
            if connection.takes:
                starting.begun = connection.begin(
                    request, timeout, idle, whole_bytes, starting.opened
                ).give_up
                return
        made = _Made(self, key)
        try:
            async with asyncio.timeout(timeout):
                await asyncio.get_running_loop().create_connection(
                    lambda: cast("asyncio.Protocol", made), *key
                )
        except TimeoutError as error:
            raise ConnectTimeout(f"cannot connect to {join(*key)} in time", timeout) from error
        except OSError as error:
            raise ConnectFailed(f"cannot connect to {join(*key)}: {error}") from error
        client = made.client
        if client is None or client.transport.is_closing():
            raise ConnectFailed(f"{join(*key)} ended the connection as soon as it was made")
        if connected is not None:
            try:
                connected()
            except BaseException:  # of any kind: no other call may find this connection
                client.end()
                raise
        self._connections.setdefault(key, []).append(client)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(IDLE_SECONDS / 4, self._close_idle)
        left = timeout - (time.monotonic() - started)
        starting.begun = client.begin(request, left, idle, whole_bytes, starting.opened).give_up

    def _close_idle(self) -> None:
        self._sweep = None
        now = time.monotonic()
        for connections in list(self._connections.values()):
            for client in list(connections):
                if not client.busy and now - client.idle_since >= IDLE_SECONDS:
                    self.leaves(client)
                    client.retire()
        if self._connections:
            self._sweep = asyncio.get_running_loop().call_later(IDLE_SECONDS / 4, self._close_idle)

    def kept(self) -> int:
        """Return the bytes that the connections keep."""
        return sum([connection.kept() for connection in self.open])

    def retire(self, host: str, port: int) -> None:
        for connection in self._connections.pop((host, port), []):
            connection.retire()

    async def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        connecting = list(self._connecting)
        for task in connecting:
            task.cancel()
        for connections in list(self._connections.values()):
            for connection in list(connections):
                connection.end()
        await asyncio.gather(*connecting, return_exceptions=True)

    # -- calls from connections (`framing.client.ClientPool`) -----------------------------------------------

    def leaves(self, connection: FramedClient) -> None:
        connections = self._connections.get(connection.key, [])
        self._connections[connection.key] = [each for each in connections if each is not connection]
        if not self._connections[connection.key]:
            del self._connections[connection.key]

    def forget(self, connection: FramedClient) -> None:
        self.open.discard(connection)
        self.leaves(connection)

    def silent(self, connection: FramedClient) -> None:
        """See `ClientPool.silent`: the connection's calls have failed, and there is none to warn."""


class _Made:
    """A connection until its transport is there; an `asyncio.Protocol` by its methods."""

    def __init__(self, pool: H2Upstream, key: _Key) -> None:
        self.client: H2Client | None = None
        self._pool = pool
        self._key = key

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        loop, whole = asyncio.get_running_loop(), cast("asyncio.Transport", transport)
        self.client = client = H2Client(self._pool, self._key, loop, whole)
        if self._pool.memory is not None:
            client.memory = self._pool.memory
        self._pool.open.add(client)
        whole.set_protocol(cast("asyncio.Protocol", client))
