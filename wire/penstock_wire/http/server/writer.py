"""Writes the answers of one connection, and notes whether its client accepts them."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING, Final

from penstock_wire.errors import PenstockError
from penstock_wire.http import ClientGone, Response
from penstock_wire.http.client.peer_liveness import untaken_bytes
from penstock_wire.http.messages import LAST_LINES, NO_BODY_STATUS
from penstock_wire.http.server import head as heads
from penstock_wire.http.server import limits
from penstock_wire.http.server.exchange import H1Exchange

if TYPE_CHECKING:
    from penstock_wire.http.server.interfaces import Server

_CLOSE: Final = b"connection: close\r\n"
_KEEP: Final = b"connection: keep-alive\r\n"
_LAST_LINES: Final = LAST_LINES
_JOINED_BYTES: Final = 64 * 1024  # up to this size one copy is cheaper than a second buffer to write


class AnswerWriter:
    """Writes on one connection; a `streams.TunnelSink`.

    Args:
        front: its front.
        transport: where it writes.
    """

    __slots__ = ("_front", "_heads", "_stuck_bytes", "_transport", "_writable", "paused", "stuck_since")

    def __init__(self, front: Server, transport: asyncio.Transport) -> None:
        self._front = front
        self._heads: heads.AnswerHead = front.heads
        self._transport = transport
        self._writable: asyncio.Future[None] | None = None
        self.paused = False
        """The client accepts less than it is sent."""
        self.stuck_since = 0.0
        """While paused: when the client last accepted anything, in seconds of `H1Front.now`."""
        self._stuck_bytes = 0

    # -- answers --------------------------------------------------------------------------------------------

    def plain(self, response: Response) -> None:
        """Write a complete answer that has a body and is not the last.

        Raises:
            ValueError: its head cannot be sent; nothing was written. Likewise TypeError.
        """
        beginning = self._heads.beginning(response.status, response.headers)
        body = response.body
        length = len(body)
        last = _LAST_LINES[length] if length < 2048 else b"content-length: %d\r\n\r\n" % length
        if length <= _JOINED_BYTES:
            self._transport.write(b"".join((beginning, response.lines, last, body)))
        else:
            self._transport.write(b"".join((beginning, response.lines, last)))
            self._transport.write(body)

    def begin(self, exchange: H1Exchange, response: Response, *, keep: bool) -> bool:
        """Write an answer's head, and its body if that is not a stream.

        Args:
            exchange: what is answered; its `keep` is set.
            response: the answer.
            keep: the client can send further requests, as far as its answer's framing allows.

        Returns:
            Whether the stream's pieces are to be framed as chunks.

        Raises:
            ValueError: its head cannot be sent; nothing was written. Likewise TypeError.
        """
        stream = response.stream
        to_head = exchange.request.method == "HEAD"
        body = response.body
        # An answer to HEAD can describe a body that it leaves out.
        length = len(body) if stream is None and response.length is None else response.length
        chunked = False
        if response.status in NO_BODY_STATUS or (
            # The length that the body would have is unknown.
            to_head and not length and response.length is None
        ):
            tail = b""
        elif length is not None:
            tail = b"content-length: %d\r\n" % length
        elif exchange.old:
            tail = b""
            keep = False
        else:
            tail = b"transfer-encoding: chunked\r\n"
            chunked = True
        if not keep:
            tail += _CLOSE
        elif exchange.old:
            tail += _KEEP
        beginning = self._heads.beginning(response.status, response.headers)
        head = b"".join((beginning, response.lines, tail, b"\r\n"))
        exchange.keep = keep
        bodiless = to_head or response.status in NO_BODY_STATUS
        self._transport.write(head if bodiless or stream is not None else head + body)
        return chunked

    def refuse(self, error: PenstockError) -> None:
        """Write a refusal, which is the last answer."""
        answer = error.response()
        tail = b"content-length: %d\r\n%b\r\n" % (len(answer.body), _CLOSE)
        self._transport.write(self._heads.beginning(answer.status, answer.headers) + tail + answer.body)

    # -- the client's pace (`streams.Sink`) -----------------------------------------------------------------

    def write(self, data: bytes) -> bool:
        if self._transport.is_closing():
            raise ClientGone("the client went away")
        self._transport.write(data)
        return not self.paused

    async def writable(self) -> None:
        if self._writable is None or self._writable.done():
            self._writable = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._writable)
        if self._transport.is_closing():
            raise ClientGone("the client went away")

    def pause(self) -> None:
        """Note that the client accepts less than it is sent."""
        self.paused = True
        self.stuck_since = self._front.now
        self._stuck_bytes = untaken_bytes(self._transport)

    def resume(self) -> None:
        """Note that the client has accepted what it was sent, or is gone."""
        self.paused = False
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def overdue(self, now: float) -> bool:
        """While paused, whether the client has accepted nothing for too long.

        Args:
            now: the value of `H1Front.now`, in seconds.
        """
        untaken = untaken_bytes(self._transport)
        if untaken != self._stuck_bytes:
            self._stuck_bytes, self.stuck_since = untaken, now
        return now - self.stuck_since > limits.WRITE_SECONDS + limits.SWEEP_SECONDS

    # -- the end --------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Write no more; the client can read what was written."""
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()  # TLS has no half-close: it sends its end, and waits for the client's

    def end_tunnel(self, *, both: bool) -> None:
        if self._transport.is_closing():
            return
        if both:
            self._transport.close()
        else:
            self._transport.write_eof()

    def abort(self) -> None:
        self._transport.abort()

    def cut(self) -> None:
        """End the connection so that no client takes the part that was sent for the whole."""
        if self._transport.is_closing():
            return
        sock = self._transport.get_extra_info("socket")
        if sock is not None:  # a reset: in HTTP/1.0 an orderly end would be the body's end
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()
