"""What `sending.open_answer` returns: the beginning of an answer, its body as it is read, a tunnel."""

from __future__ import annotations

import asyncio
import collections

from penstock_wire.headers import Headers
from penstock_wire.http import BodyReader, ConnectionLost, Tunnel
from penstock_wire.http.body import next_piece
from penstock_wire.http.memory import PIECE_BYTES
from penstock_wire.http.messages import Trailers

HIGH_BYTES = 512 * 1024
"""Received and unread bytes above which the peer must wait."""
LOW_BYTES = 128 * 1024
MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""Most bytes of a body that is collected whole."""


class Carrier:
    """The connection, as its bodies and tunnels see it: `connection.Connection`.

    A base class, not a Protocol: mypyc compiles calls of a class's methods directly, but not those of a
    Protocol's. It is never instantiated.

    Attributes:
        where: host and port of the peer, for messages.
        transport: the connection's transport.
        writable: resolved when the peer accepts bytes again; None while it accepts them.
    """

    where: str
    transport: asyncio.Transport
    writable: asyncio.Future[None] | None

    def expect(self) -> None:
        """Note that a reader waits for the next piece."""
        raise NotImplementedError

    def relax(self) -> None:
        """Note that no reader waits any more."""
        raise NotImplementedError

    def pause_reading(self) -> None:
        """Pause receiving."""
        raise NotImplementedError

    def resume_reading(self) -> None:
        """Resume receiving."""
        raise NotImplementedError

    def drop_body(self, body: Body) -> None:
        """End a body that is read no further."""
        raise NotImplementedError


class Body:
    """A `BodyReader` that a connection fills.

    Args:
        connection: the connection that fills it.
    """

    __slots__ = ("_buffered", "_connection", "_ended", "_error", "_pieces", "_waiter")

    def __init__(self, connection: Carrier) -> None:
        self._connection = connection
        self._pieces: collections.deque[bytes] = collections.deque()
        self._buffered = 0
        self._ended = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def read(self) -> bytes:
        while not self._pieces:
            if self._error is not None:
                raise self._error.with_traceback(None)
            if self._ended:
                return b""
            if self._waiter is not None:
                raise RuntimeError("expected one reader of a body, found two")
            self._waiter = asyncio.get_running_loop().create_future()
            self._connection.expect()
            try:
                await self._waiter
            finally:
                self._waiter = None
                self._relax()
        piece = next_piece(self._pieces)
        self._buffered -= len(piece)
        if self._buffered <= LOW_BYTES and not self._ended and self._error is None:
            self._connection.resume_reading()
        return piece

    @property
    def ended(self) -> bool:
        """Whether the end has come; pieces before it can be unread."""
        return self._ended

    def whole(self) -> bytes | None:
        """Take the rest of the body if its end has come already; else return None."""
        if not self._ended:
            return None
        pieces, self._pieces = self._pieces, collections.deque()
        self._buffered = 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _relax(self) -> None:
        # NB: after the end, the connection can serve another exchange with its own deadline.
        if not self._ended and self._error is None:
            self._connection.relax()

    def kept(self) -> int:
        """Return the received and unread bytes."""
        return self._buffered + PIECE_BYTES * len(self._pieces)

    def abort(self) -> None:
        """Drop the body; this gives up the exchange, unless the body's end had come."""
        self._pieces.clear()
        self._buffered = 0
        self._connection.drop_body(self)

    # Calls from the connection

    def feed(self, piece: bytes) -> None:
        if not piece:
            return
        self._pieces.append(piece)
        self._buffered += len(piece)
        # NB: with what each piece costs: a peer may send chunks of a byte or two.
        if self._buffered + PIECE_BYTES * len(self._pieces) >= HIGH_BYTES:
            self._connection.pause_reading()
        self._wake()

    def finish(self) -> None:
        self._ended = True
        self._wake()

    def fail(self, error: Exception) -> None:
        """Mark that no end will come; received pieces can still be read."""
        if not self._ended:
            self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Answer:
    """An `UpstreamAnswer`; after 101 its fields have `connection` and `upgrade`, for a caller that switches.

    Args:
        headers: end-to-end fields.
        length: bytes of the body, by its head.
    """

    __slots__ = ("_body", "headers", "length", "status", "stream", "trailers", "tunnel")

    def __init__(self, status: int, headers: Headers, length: int | None, body: Body) -> None:
        self.status = status
        self.headers = headers
        self.length = length
        self.stream: BodyReader = body
        self.trailers: Trailers | None = None
        self.tunnel: Tunnel | None = None
        self._body = body

    def whole(self) -> bytes | None:
        return self._body.whole()

    def kept(self) -> int:
        return self._body.kept()

    def abort(self) -> None:
        self._body.abort()


class UpstreamTunnel:
    """A `Tunnel` over a connection that has switched protocols."""

    __slots__ = ("_body", "_connection", "_ended")

    def __init__(self, connection: Carrier, body: Body) -> None:
        self._connection = connection
        self._body = body
        self._ended = False

    async def read(self) -> bytes:
        """See `Tunnel.read`; raises ConnectionLost if the peer reset the connection."""
        data = await self._body.read()
        if not data and self._ended:
            self._connection.transport.close()  # both halves are over
        return data

    async def write(self, data: bytes) -> None:
        connection = self._connection
        if connection.transport.is_closing():
            raise ConnectionLost(f"the tunnel to {connection.where} is closed")
        connection.transport.write(data)
        if connection.writable is not None:
            await connection.writable
            if connection.transport.is_closing():
                raise ConnectionLost(f"the tunnel to {connection.where} is closed")

    def end(self) -> None:
        transport = self._connection.transport
        if self._ended or transport.is_closing():
            return
        self._ended = True
        if self._body.ended:
            transport.close()
        else:
            transport.write_eof()

    def kept(self) -> int:
        """Return the bytes under way in it, in both directions."""
        return self._body.kept() + self._connection.transport.get_write_buffer_size()

    def abort(self) -> None:
        self._body.abort()
        self._connection.transport.abort()
