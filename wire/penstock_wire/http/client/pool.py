"""`Upstream` on httptools: pooled connections, one exchange at a time on each.

A connection goes back to the pool only after a complete answer that allows it, with nothing left over and the
request's body sent whole. A connection is closed and never used again if it was cancelled, timed out, half
closed, answered early or abandoned in the middle of a stream, has answered 5xx (many servers then end the
connection a little later, without a sign in the answer), or has sent a byte more than its answer: a client
that leaves cannot poison the pool. Requests are never sent twice here: a request that is lost on a kept
connection may have run. Instead an idle connection is checked before it is used, and `RequestUnread` reports
that a request cannot have run, for a caller that can send it again.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import Protocol

from penstock_wire.addresses import join
from penstock_wire.http import (
    GivenUp,
    GiveUp,
    Opened,
    PeerSilent,
    Request,
    SenderFailed,
    UpstreamError,
)
from penstock_wire.http.client import peer_liveness
from penstock_wire.http.client.answer import MAX_ANSWER_BYTES
from penstock_wire.http.client.connecting import connect
from penstock_wire.http.client.connection import Connection
from penstock_wire.http.client.head import MAX_HEAD_BYTES, encode_head
from penstock_wire.http.head_cache import HeadCache
from penstock_wire.http.memory import MemoryBound

__all__ = ["MAX_ANSWER_BYTES", "MAX_HEAD_BYTES", "H1Upstream"]

IDLE_SECONDS = 4.0
"""How long an idle connection is kept: less than the 5 s after which uvicorn closes its own."""
CONNECT_SECONDS = 2.0
"""Long enough for TCP to send its first packet a second time, after a second."""
LOOK_FOR_SILENCE_SECONDS = 0.5
STOOD_STILL_SECONDS = 1.0
"""A look that is later by more judges nothing."""
LOOK_SECONDS = 0.05
"""A connection that idled longer is checked for its end: the loop may not have reported it yet."""


class Watched(Protocol):
    """A connection that is watched for its peer's signs of life.

    Attributes:
        key: host and port of the peer.
        reusable: another request can be sent on it.
        transport: the connection's transport.
        where: host and port, for messages.
    """

    key: tuple[str, int]
    reusable: bool
    transport: asyncio.Transport
    where: str

    def fail(self, error: Exception) -> None:
        """End the work under way, and the connection."""
        ...

    def end(self) -> None:
        """Close now."""
        ...

    def kept(self) -> int:
        """Return the bytes that it keeps, without those that a client's connection accounts for."""
        ...


class H1Upstream:
    """An `Upstream` on httptools.

    Args:
        idle_seconds: how long an idle connection is kept.
        connect_seconds: time limit for connecting, including the handshake if there is one.
        tls: called at each new connection for the context to check the server with; None = plain text.
        silence_seconds: how long a server's machine can be silent before its connections end; None = as long
            as TCP allows.
        memory: bounds the memory of all connections of the process; None = unbounded.
    """

    def __init__(
        self,
        *,
        idle_seconds: float = IDLE_SECONDS,
        connect_seconds: float = CONNECT_SECONDS,
        tls: Callable[[], ssl.SSLContext] | None = None,
        silence_seconds: float | None = None,
        memory: MemoryBound | None = None,
    ) -> None:
        self.memory = MemoryBound() if memory is None else memory
        if memory is not None:
            memory.others.append(self.kept)
        self._silence_seconds = silence_seconds
        self._next_look: asyncio.TimerHandle | None = None
        self._look_at = 0.0
        self._stood_still = False
        self._idle_seconds = idle_seconds
        self._connect_seconds = connect_seconds
        self._tls = tls
        # By address; the most recently used last.
        self._idle: dict[tuple[str, int], list[Connection]] = {}
        self._open: set[Watched] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._retirements = 0
        self.known = HeadCache(self.memory.caches)
        self.on_idle_lost: Callable[[tuple[str, int]], None] | None = None
        """Called with the address when a server ends an idle connection: the server may have ended, too."""

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
        connection = self._idle_for(key, request)
        sending = _Sending(connection, opened)
        if connection is None:
            encode_head(request, join(host, port))  # what cannot be sent costs no connection
            task = asyncio.get_running_loop().create_task(
                self._begin_on_new(sending, key, request, timeout, idle, whole_bytes, connected)
            )
            sending.task = task
            self._connecting.add(task)
            task.add_done_callback(sending.connected)
            task.add_done_callback(self._connecting.discard)
            return sending
        try:
            connection.begin(request, timeout, idle, whole_bytes, opened)
        except UpstreamError:
            self.put(connection)
            raise
        return sending

    async def _begin_on_new(
        self,
        sending: _Sending,
        key: tuple[str, int],
        request: Request,
        timeout: float,
        idle: float,
        whole_bytes: int,
        connected: Callable[[], object] | None,
    ) -> None:
        connection, left = await self._connect(key, timeout, connected)
        connection.begin(request, left, idle, whole_bytes, sending.opened)
        sending.connection = connection

    def _idle_for(self, key: tuple[str, int], request: Request) -> Connection | None:
        if not request.fresh:
            return self._take(key)
        # NB: the new connection replaces an idle one, or a search for a bad request would use up a server's
        # limit of connections.
        if idle := self._idle.get(key):
            idle.pop(0).end()
        return None

    def _take(self, key: tuple[str, int]) -> Connection | None:
        """Return the most recently used connection that is still good; bad ones are closed."""
        idle = self._idle.get(key)
        if not idle:
            return None
        now = time.monotonic()
        chosen: Connection | None = None
        while idle and chosen is None:
            connection = idle.pop()
            age = now - connection.idle_since
            if (
                connection.reusable
                and age < self._idle_seconds
                and not connection.transport.is_closing()
                and (age < LOOK_SECONDS or peer_liveness.nothing_waits(connection.transport))
            ):
                chosen = connection
            else:
                connection.end()
        while idle and now - idle[0].idle_since >= self._idle_seconds:
            idle.pop(0).end()
        return chosen

    async def _connect(
        self, key: tuple[str, int], timeout: float, connected: Callable[[], object] | None
    ) -> tuple[Connection, float]:
        """Make a connection; also return the time that is left."""
        started, retirements = time.monotonic(), self._retirements
        tls = None if self._tls is None else self._tls()
        connection = Connection(self, key)
        await connect(connection, seconds=min(timeout, self._connect_seconds), tls=tls)
        self.adopt(connection)
        # NB: it can date from an earlier turn of the loop; if any server was retired since, use it only once.
        connection.reusable = retirements == self._retirements
        if connected is not None:
            try:
                connected()
            except BaseException:  # of any kind: nothing else refers to this connection
                connection.end()
                raise
        return connection, timeout - (time.monotonic() - started)

    def put(self, connection: Connection) -> None:
        connection.idle_since = time.monotonic()
        idle = self._idle.get(connection.key)
        if idle is None:
            idle = self._idle[connection.key] = []
        idle.append(connection)

    def adopt(self, connection: Watched) -> None:
        """Watch a connection's signs of life, and close it with all others."""
        self._open.add(connection)
        if self._silence_seconds is not None:
            peer_liveness.probe(connection.transport, self._silence_seconds)
            if self._next_look is None:
                self._look_later()

    def kept(self) -> int:
        """Return the bytes that its connections keep, without those that clients' connections account for."""
        return sum([connection.kept() for connection in self._open])

    def disown(self, connection: Watched) -> None:
        """Remove an adopted connection that has ended."""
        self._open.discard(connection)

    def forget(self, lost: Connection) -> None:
        """See `connection.Pool`: a pod that is gone leaves no entry behind."""
        self._open.discard(lost)
        idle = self._idle.get(lost.key)
        if idle is None:
            return
        rested = lost in idle
        if rested:
            idle.remove(lost)
        if not idle:
            del self._idle[lost.key]  # `put` makes it again for connections that are busy now
        if rested and self.on_idle_lost is not None:
            self.on_idle_lost(lost.key)

    def silent(self, lost: Watched) -> None:
        """See `connection.Pool`: one silent connection ends all, unless another has received since.

        NB: otherwise those that are used later would each wait for the time of a silence, one after another.
        """
        if self._silence_seconds is None:
            return
        others = [other for other in self._open if other.key == lost.key and not other.transport.is_closing()]
        # Half: the last data sent on the others may have been acknowledged a little later.
        if all(peer_liveness.look(other.transport).heard_ago > self._silence_seconds / 2 for other in others):
            for other in others:
                other.fail(
                    PeerSilent(f"nothing has come from {other.where} for some time, on any connection")
                )

    def look_for_silence(self) -> None:
        """End connections on which sent data has been unacknowledged for the time of a silence."""
        most = self._silence_seconds
        for connection in list(self._open):
            if most is None or connection.transport.is_closing():
                continue
            signs = peer_liveness.look(connection.transport)
            if signs.unacknowledged and signs.heard_ago >= most:
                connection.fail(
                    PeerSilent(f"{connection.where} has given no sign of life for {signs.heard_ago:.1f} s")
                )
                self.silent(connection)

    def _look_later(self) -> None:
        self._look_at = time.monotonic() + LOOK_FOR_SILENCE_SECONDS
        self._next_look = asyncio.get_running_loop().call_later(LOOK_FOR_SILENCE_SECONDS, self._look)

    def _look(self) -> None:
        self._next_look = None
        # NB: this late, the machine may have stood still, and what came meanwhile waits for its kernel. Only
        # one look in two is left out: the process may be as busy all the time.
        self._stood_still = not self._stood_still and time.monotonic() - self._look_at > STOOD_STILL_SECONDS
        if not self._stood_still:
            self.look_for_silence()
        if self._open:
            self._look_later()

    def retire(self, host: str, port: int) -> None:
        key = (host, port)
        self._retirements += 1
        for connection in list(self._idle.pop(key, ())):
            connection.end()
        for each in self._open:
            if each.key == key:
                each.reusable = False

    async def close(self) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
        self._idle.clear()
        connecting = list(self._connecting)
        for task in connecting:
            task.cancel()
        for each in list(self._open):
            each.end()
        await asyncio.gather(*connecting, return_exceptions=True)


class _Sending:
    """A `GiveUp` for a request.

    Args:
        connection: the connection that sent it; None while one is made, by `task`.
        opened: the callback for its answer.
    """

    __slots__ = ("connection", "opened", "task")

    def __init__(self, connection: Connection | None, opened: Opened) -> None:
        self.connection = connection
        self.opened = opened
        self.task: asyncio.Task[None] | None = None

    def __call__(self) -> None:
        """End the exchange; see `Connection.give_up`."""
        if self.connection is not None:
            self.connection.give_up(self.opened)
        elif self.task is not None:
            self.task.cancel()

    def connected(self, task: asyncio.Task[None]) -> None:
        """Report why nothing was sent, if the task that was to make a connection has failed."""
        if task.cancelled():
            self.opened(GivenUp("the exchange was given up before there was a connection"))
            return
        error = task.exception()
        if isinstance(error, UpstreamError):
            self.opened(error)
        elif isinstance(error, Exception):
            self.opened(SenderFailed("no request was sent", error))
