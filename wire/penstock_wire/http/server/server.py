"""A `Front` on httptools: one protocol object per connection, no framework in between.

Slow clients are disconnected: one sweep a second closes connections whose head, body or next request is
overdue, or whose client accepts nothing, or has left while reading was paused. `close_keepalive` ends idle
connections at once and each other one with its current answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import operator
import os
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

from penstock_wire.addresses import ANY, bind_any
from penstock_wire.contract import LOCAL_ONLY_ENV
from penstock_wire.http import Exchange, Handler, Listener, Service, Streams
from penstock_wire.http.head_cache import HeadCache
from penstock_wire.http.memory import Connection, MemoryBound
from penstock_wire.http.server import acceptor, limits
from penstock_wire.http.server.acceptor import Acceptor
from penstock_wire.http.server.connection import H1Connection
from penstock_wire.http.server.exchange import H1Exchange
from penstock_wire.http.server.head import AnswerHead
from penstock_wire.http.server.interfaces import ServedConnection, Successor
from penstock_wire.http.server.local_clients import local_only
from penstock_wire.http.server.reader import RequestReader
from penstock_wire.http.server.turns import Turns

TURNS = 3
"""Turns of the loop until it has handed over a connection that it has accepted."""


class H1Front:
    """A `Front` on httptools.

    Args:
        max_body_bytes: a larger body that is not a stream is answered 413 `too_large`.
        max_connections: most connections open at once; a further one is closed at once.
        max_per_address: most of these from one address; if set, connections are counted when they are
            accepted (`acceptor`), not after the handshake.
        evicting: at a limit, close an older connection instead of the new one; only with `max_per_address`
            and without TLS.
        group: the group of an address: one has at most half of the connections, and each further one half of
            what is left (see `acceptor`); only with `max_per_address` and without `evicting`.
        max_head_bytes: limit for a request's target and fields; a larger head is answered 431, or 414.
        max_unfinished_bytes: if set, limit for all incompletely received requests together, without bodies
            that are streams; one beyond it is answered 503. Requests that come whole are not counted.
        memory: bounds the memory of all connections of the process; None = unbounded.
        backlog: connections that can wait to be accepted.
        pipelining: accept requests behind an unanswered one; else they are answered 400, and are the last.
        http2: makes the object that serves a connection which begins with HTTP/2's preface; None = such a
            connection is answered 505.
        turns: by which its connections are read, where the process has other fronts that must not wait.
        sweeps: sweep once a second; if not, its user does, from its first listener on.
    """

    def __init__(
        self,
        *,
        max_body_bytes: int = limits.MAX_BODY_BYTES,
        max_connections: int = limits.MAX_CONNECTIONS,
        max_per_address: int | None = None,
        evicting: bool = False,
        group: Callable[[str], str] | None = None,
        max_head_bytes: int = limits.MAX_HEAD_BYTES,
        max_unfinished_bytes: int = 0,
        memory: MemoryBound | None = None,
        backlog: int = 1024,
        pipelining: bool = True,
        http2: Successor | None = None,
        turns: Turns | None = None,
        sweeps: bool = True,
    ) -> None:
        self._sweeps = sweeps
        self.pipelining = pipelining
        self.http2 = http2
        self.turns = turns
        self.max_body_bytes = max_body_bytes
        self.max_connections = max_connections
        self.max_head_bytes = max_head_bytes
        self.max_unfinished_bytes = max_unfinished_bytes
        self.unfinished_bytes = 0
        self.closing = False
        self.connections: set[ServedConnection] = set()
        self.unread: set[RequestReader] = set()
        self.connected = -math.inf
        self.accepted = 0
        """Connections that were accepted, until its user sets it back."""
        self.memory = MemoryBound() if memory is None else memory
        if memory is not None:
            memory.connections.append(cast("set[Connection]", self.connections))
        self.heads = AnswerHead()
        self.now = time.monotonic()
        """The time in seconds, as of the last sweep, which a connection notes at each request."""
        self.max_per_address = max_per_address
        self.evicting = evicting
        self.group = group
        self.backlog = backlog
        self._listeners: set[H1Listener] = set()
        self._sweeper: asyncio.Task[None] | None = None

    async def listen(self, host: str, port: int, handler: Handler, *, reuse_port: bool = False) -> Listener:
        return await self.serve(host, port, _Tasks(handler), reuse_port=reuse_port)

    async def serve(
        self,
        host: str,
        port: int,
        service: Service,
        *,
        streams: Streams | None = None,
        whole_bytes: int = 0,
        reuse_port: bool = False,
        tls: ssl.SSLContext | None = None,
        successors: Mapping[bytes, Successor] | None = None,
    ) -> Listener:
        """See `Front.serve`.

        Args:
            host: see `Front.serve`, also for the next five.
            port: see there.
            service: see there.
            streams: see there.
            whole_bytes: see there.
            reuse_port: see there.
            tls: speak TLS. A certificate that is loaded into it later is used from the next handshake on;
                open connections stay.
            successors: Penstock protocols that a connection can switch to, by the name in `Upgrade`.
        """
        loop = asyncio.get_running_loop()
        if os.environ.get(LOCAL_ONLY_ENV):
            service = local_only(service)
        listener = H1Listener(self, service, streams, whole_bytes, successors)
        every = bind_any(port, backlog=self.backlog, reuse_port=reuse_port) if host == ANY else None
        if self.max_per_address is not None:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            bound = every or socket.create_server(
                (host, port), family=family, backlog=self.backlog, reuse_port=reuse_port
            )
            listener.server = listener.acceptor = Acceptor(
                loop,
                bound,
                lambda: H1Connection(self, listener, loop),
                tls=tls,
                most=self.max_connections,
                per_address=self.max_per_address,
                backlog=self.backlog,
                evicting=self.evicting,
                group=self.group,
            )
        else:
            where: dict[str, Any] = {"host": host, "port": port, "reuse_port": reuse_port or None}
            if every is not None:
                where = {"sock": every}
            server = listener.server = await loop.create_server(
                lambda: cast("asyncio.Protocol", H1Connection(self, listener, loop)),
                **where,
                backlog=self.backlog,
                ssl=tls,
                ssl_handshake_timeout=limits.HANDSHAKE_SECONDS if tls else None,
                ssl_shutdown_timeout=limits.LINGER_SECONDS if tls else None,
            )
            listener.plain = None if tls else server
        self._listeners.add(listener)
        if self._sweeper is None:
            self.sweep()
            if self._sweeps:
                self._sweeper = loop.create_task(self._sweep())
        return listener

    def close_keepalive(self, *, idle: bool = True) -> None:
        self.closing = True
        for listener in self._listeners:
            listener.closing = True
            listener.closes_idle = listener.closes_idle or idle
        for connection in list(self.connections):
            if idle:
                connection.close_if_idle()
            else:
                connection.send_away()

    def open_keepalive(self) -> None:
        self.closing = False
        for listener in self._listeners:
            listener.open_keepalive()

    async def close(self, grace: float) -> None:
        self.close_keepalive()
        await asyncio.gather(*(listener.close(grace) for listener in list(self._listeners)))
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    def forget(self, listener: H1Listener) -> None:
        """Remove a listener that has closed."""
        self._listeners.discard(listener)

    def sweep(self) -> None:
        """Update the time, and end the connections of late clients."""
        self.now = now = time.monotonic()
        self.heads.tick()
        for connection in [each for each in self.connections if each.overdue(now)]:
            connection.expire()
        if self.unread:
            self._read_on()

    def _read_on(self) -> None:
        """Read bodies on that stand still, the least first: behind what is unread, the client may have left.

        A sweep takes an eighth of the bounded memory, while half of that is free.
        """
        if not self.memory.fits(self.memory.most // 2):
            return
        room = self.memory.most // 8
        bodies = [(each.inbound.kept(), each) for each in self.unread if each.inbound is not None]
        for size, reader in sorted(bodies, key=operator.itemgetter(0)):
            if room < limits.FURTHER_BYTES or size >= limits.MOST_FURTHER_BYTES:
                break
            if reader.inbound is not None and self.now - reader.since > limits.STILL_SECONDS:
                room -= limits.FURTHER_BYTES
                reader.inbound.read_on()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(limits.SWEEP_SECONDS)
            self.sweep()


class H1Listener:
    """A `Listener`.

    Args:
        front: its front.
        service: takes the exchanges.
        streams: decides which bodies are streams.
        whole_bytes: bodies of at most this many bytes are never streams.
        successors: protocols that a connection can switch to.

    The attribute `whole_bytes` is the longest body of known length that is taken whole without a question.
    """

    def __init__(
        self,
        front: H1Front,
        service: Service,
        streams: Streams | None,
        whole_bytes: int = 0,
        successors: Mapping[bytes, Successor] | None = None,
    ) -> None:
        self.service = service
        self.streams = streams
        most = limits.UNASKED_BYTES if streams is None else whole_bytes
        self.whole_bytes = min(most, front.max_body_bytes)
        self.known = HeadCache(front.memory.caches)
        self.successors: Mapping[bytes, Successor] = successors or {}
        self.closing = front.closing  # each answer is the last of its connection
        self.closes_idle = False  # also those on which no request has come
        self.server: asyncio.Server | Acceptor
        self.acceptor: Acceptor | None = None
        self.plain: asyncio.Server | None = None  # the server, if it is without TLS and `Acceptor`
        self.connections: set[ServedConnection] = set()
        self.empty = asyncio.Event()
        self.empty.set()
        self._front = front

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.server.sockets[0].getsockname()[:2]
        return str(host), int(port)

    def replace(self, connection: Any, successor: Any) -> None:
        """Replace a connection by the object that serves it from here on."""
        self.connections.discard(connection)
        self.connections.add(successor)
        if self.acceptor is not None:
            self.acceptor.replace(connection, successor)

    def leave(self, connection: Any) -> None:
        """Remove a connection that has ended."""
        self.connections.discard(connection)
        if not self.connections:
            self.empty.set()
        if self.acceptor is not None:
            self.acceptor.release(connection)

    def close_keepalive(self) -> None:
        self.closing = True
        for connection in list(self.connections):
            connection.send_away()

    def open_keepalive(self) -> None:
        self.closing = self._front.closing or not self.server.is_serving()
        self.closes_idle = self.closing and self.closes_idle

    async def close(self, grace: float | None = None) -> None:
        """See `Listener.close`; after `grace` seconds the remaining connections are cut."""
        self.closing = self.closes_idle = True
        loop = asyncio.get_running_loop()
        made: list[socket.socket] = []
        if self.plain is None:
            self.server.close()
        else:
            made = acceptor.close(self.plain, self._front.backlog)
        for connection in list(self.connections):
            connection.close_if_idle()
        for each in made:
            with contextlib.suppress(OSError):
                await loop.connect_accepted_socket(
                    lambda: cast("asyncio.Protocol", H1Connection(self._front, self, loop)), each
                )
        for _ in range(TURNS):
            await asyncio.sleep(0)
        try:
            async with asyncio.timeout(grace):
                await self.empty.wait()
        except TimeoutError:
            for connection in list(self.connections):
                connection.abort()
        self._front.forget(self)


class _Tasks:
    """A `Service` that runs each request in its own task, which is cancelled when the client leaves."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    def __call__(self, exchange: Exchange) -> None:
        exchange.request.interim = exchange.interim
        exchange.gone = asyncio.ensure_future(self._run(cast("H1Exchange", exchange))).cancel

    async def _run(self, exchange: H1Exchange) -> None:
        try:
            answer = await self._handler(exchange.request)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            exchange.fail(error)  # the handler awaited something that was cancelled; it was not itself
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            exchange.fail(error)
        else:
            exchange.answer(answer)
        finally:
            exchange.request.interim = None  # breaks the reference cycle between the two
