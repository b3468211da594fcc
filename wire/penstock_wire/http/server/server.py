"""`Front` on httptools: one protocol object a connection, no framework between.

Whoever does not send is not waited for: one sweep a second closes connections whose head, body or next
request is overdue, or whose reader takes nothing. `close_keepalive` ends idle connections at once and each
other one with its current answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Mapping
from typing import Any, cast

from penstock_wire.addresses import ANY, bind_any
from penstock_wire.http import Exchange, Handler, Listener, Service, Streams
from penstock_wire.http.head_cache import HeadCache
from penstock_wire.http.memory import Keeper, MemoryBound
from penstock_wire.http.server import acceptor, limits
from penstock_wire.http.server.acceptor import Acceptor
from penstock_wire.http.server.connection import H1Connection
from penstock_wire.http.server.connection_base import H1Exchange
from penstock_wire.http.server.head import AnswerHead
from penstock_wire.http.server.interfaces import ServedConnection, Successor

TURNS = 3
"""Of a loop, until a connection that it has accepted is known here."""


class H1Front:
    """A `Front` on httptools.

    Args:
        max_body_bytes: a larger body that is not a stream is answered 413 `too_large`.
        max_connections: connections open at once; a further one is closed at once.
        max_per_address: where it is set, of these from one address; then they are counted when they are
            accepted (`acceptor`), not when they have shaken hands.
        evicting: at a limit, close an older connection and not the new one; with `max_per_address` and
            without TLS only.
        max_head_bytes: of a request's target and fields; a larger head is answered 431, or 414.
        max_unfinished_bytes: where it is set, of all requests together that have begun to come and not ended,
            but for bodies that are streams; one beyond that is answered 503. What comes whole is not counted.
        memory: what all connections of the process may keep; None for any amount.
        backlog: connections that may wait to be accepted.
        pipelining: take requests behind one that is not answered yet; else they are 400, and the last.
    """

    def __init__(
        self,
        *,
        max_body_bytes: int = limits.MAX_BODY_BYTES,
        max_connections: int = limits.MAX_CONNECTIONS,
        max_per_address: int | None = None,
        evicting: bool = False,
        max_head_bytes: int = limits.MAX_HEAD_BYTES,
        max_unfinished_bytes: int = 0,
        memory: MemoryBound | None = None,
        backlog: int = 1024,
        pipelining: bool = True,
    ) -> None:
        self.pipelining = pipelining
        self.max_body_bytes = max_body_bytes
        self.max_connections = max_connections
        self.max_head_bytes = max_head_bytes
        self.max_unfinished_bytes = max_unfinished_bytes
        self.unfinished_bytes = 0
        self.closing = False
        self.connections: set[ServedConnection] = set()
        self.memory = MemoryBound() if memory is None else memory
        if memory is not None:
            memory.connections = cast("set[Keeper]", self.connections)
        self.heads = AnswerHead()
        self.now = time.monotonic()
        """The time in seconds, as of the last sweep: what a connection notes at each request."""
        self.max_per_address = max_per_address
        self.evicting = evicting
        self.backlog = backlog
        self._listeners: set[H1Listener] = set()
        self._sweeper: asyncio.Task[None] | None = None

    async def listen(self, host: str, port: int, handler: Handler, *, reuse_port: bool = False) -> Listener:
        """See `Front.listen`."""
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
            host: see there, as the following four.
            port: see there.
            service: see there.
            streams: see there.
            whole_bytes: see there.
            reuse_port: see there.
            tls: speak TLS. A certificate that is loaded into it later is shown from the next handshake on;
                connections that are open stay.
            successors: protocols of ours that a connection may switch to, by the name in `Upgrade`.
        """
        loop = asyncio.get_running_loop()
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
            self._sweeper = loop.create_task(self._sweep())
        return listener

    def close_keepalive(self, *, idle: bool = True) -> None:
        """See `Front.close_keepalive`."""
        self.closing = True
        for listener in self._listeners:
            listener.closing = True
        for connection in list(self.connections):
            if idle:
                connection.close_if_idle()
            else:
                connection.send_away()

    def open_keepalive(self) -> None:
        """See `Front.open_keepalive`."""
        self.closing = False
        for listener in self._listeners:
            listener.open_keepalive()

    async def close(self, grace: float) -> None:
        """See `Front.close`."""
        self.close_keepalive()
        await asyncio.gather(*(listener.close(grace) for listener in list(self._listeners)))
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    def forget(self, listener: H1Listener) -> None:
        """A listener has closed."""
        self._listeners.discard(listener)

    def sweep(self) -> None:
        """Take up the time, and end the connections whose peers are late."""
        self.now = now = time.monotonic()
        self.heads.tick()
        for connection in [each for each in self.connections if each.overdue(now)]:
            connection.expire()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(limits.SWEEP_SECONDS)
            self.sweep()


class H1Listener:
    """A `Listener`.

    Args:
        front: its front.
        service: takes the exchanges.
        streams: which bodies are streams.
        whole_bytes: bodies of up to so many bytes are none.
        successors: protocols that a connection may switch to.

    `whole_bytes` is then up to where a body of known length is taken whole without a question.
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
        self.whole_bytes = front.max_body_bytes if streams is None else min(whole_bytes, front.max_body_bytes)
        self.known = HeadCache()
        self.successors: Mapping[bytes, Successor] = successors or {}
        self.closing = front.closing  # each answer is the last of its connection
        self.server: asyncio.Server | Acceptor
        self.acceptor: Acceptor | None = None
        self.plain: asyncio.Server | None = None  # the server, where no hands are shaken
        self.connections: set[ServedConnection] = set()
        self.empty = asyncio.Event()
        self.empty.set()
        self._front = front

    @property
    def address(self) -> tuple[str, int]:
        """See `Listener.address`."""
        host, port = self.server.sockets[0].getsockname()[:2]
        return str(host), int(port)

    def replace(self, connection: Any, successor: Any) -> None:
        """A connection is served by another object from here on."""
        self.connections.discard(connection)
        self.connections.add(successor)
        if self.acceptor is not None:
            self.acceptor.replace(connection, successor)

    def leave(self, connection: Any) -> None:
        """A connection has ended."""
        self.connections.discard(connection)
        if not self.connections:
            self.empty.set()
        if self.acceptor is not None:
            self.acceptor.release(connection)

    def close_keepalive(self) -> None:
        """See `Listener.close_keepalive`."""
        self.closing = True
        for connection in list(self.connections):
            connection.send_away()

    def open_keepalive(self) -> None:
        """See `Listener.open_keepalive`."""
        self.closing = self._front.closing or not self.server.is_serving()

    async def close(self, grace: float | None = None) -> None:
        """See `Listener.close`; after `grace` seconds what is still under way is cut."""
        self.closing = True
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
    """A `Service` that gives each request a task of its own, cancelled when the client goes away."""

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
            exchange.fail(error)  # something that the handler waited for was cancelled, not the handler
        except Exception as error:
            exchange.fail(error)
        else:
            exchange.answer(answer)
        finally:
            exchange.request.interim = None  # or each would keep the other
