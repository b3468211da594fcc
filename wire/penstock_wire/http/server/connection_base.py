"""The answering half of a connection: its state, writing, and the pausing of reading.

The other half, `connection`, describes the state in words.
"""

from __future__ import annotations

import asyncio
import collections
import socket
import struct
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import Headers
from penstock_wire.http import ClientGone, Request, Response, Tunnel, UpstreamError
from penstock_wire.http.client.peer_liveness import nothing_waits, untaken_bytes
from penstock_wire.http.head_cache import HeadCache, RequestHead
from penstock_wire.http.memory import REQUEST_BYTES, MemoryBound
from penstock_wire.http.messages import LAST_LINES, NO_BODY_STATUS
from penstock_wire.http.server import head as heads
from penstock_wire.http.server import limits, streams
from penstock_wire.process import log

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock_wire.http.server.interfaces import ListenerState, Server

PLAIN: Final = 0
HEAD: Final = 1
BODY: Final = 2

PARSE: Final = 0
BYPASS: Final = 1
TUNNEL: Final = 2
UNDECIDED: Final = 3
DROP: Final = 4

LINE_IS_LONG: Final = 1  # reasons to pause reading
STREAM_IS_FULL: Final = 2
MUCH_BEHIND: Final = 4

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSE: Final = b"connection: close\r\n"
_KEEP: Final = b"connection: keep-alive\r\n"
_LAST_LINES: Final = LAST_LINES
_JOINED_BYTES: Final = 64 * 1024  # up to this size one copy is cheaper than a second buffer to write


class H1Exchange:
    """An `Exchange`; its request is complete, or has a stream."""

    __slots__ = ("complete", "connection", "counted", "expects", "gone", "keep", "old", "plain", "request")

    def __init__(self, connection: AnswerSide, request: Request, *, keep: bool) -> None:
        self.connection: AnswerSide | None = connection
        self.request = request
        self.gone: Callable[[], object] | None = None
        self.keep = keep
        self.old = False  # HTTP/1.0
        self.expects = False  # the client waits for `100 Continue`
        self.counted = 0  # bytes of it in the connection's `_line_bytes`
        self.complete = False  # the whole body was received
        self.plain = False  # complete, of HTTP/1.1, and its answer has a body and is not the last

    def kept(self) -> int:
        """Return the bytes that are kept of its request."""
        request = self.request
        kept = REQUEST_BYTES + heads.size(request.target, request.headers) + len(request.body)
        stream = request.stream
        return kept + stream.kept() if isinstance(stream, streams.Inbound) else kept

    def answer(self, response: Response) -> None:
        connection = self.connection
        if connection is not None:
            self.connection = self.gone = None
            connection.answer(self, response)
        elif response.stream is not None:
            streams.close_in_background(response.stream)

    def fail(self, error: BaseException) -> None:
        """Log an exception of the service, answer 500 and close."""
        log("handler failed", level="error", error=repr(error))
        self.keep = self.plain = False
        self.answer(PenstockError(Reason.INTERNAL, f"{type(error).__name__} in a handler").response())

    def interim(self, status: int, headers: Headers) -> None:
        if self.connection is not None and not self.old:
            self.connection.interim(status, headers)

    def switch(self, headers: Headers) -> Tunnel:
        if self.connection is None:
            raise ClientGone("the client is gone, or was answered")
        if not self.request.upgrade:
            raise ValueError("expected a request that asks to switch protocols")
        connection = self.connection
        tunnel = connection.switch(headers)
        self.connection = self.gone = None
        return tunnel


class AnswerSide:
    """The answering half of a connection.

    For the loop it is an `asyncio.Protocol` by its methods: it does not inherit from it, as no compiled class
    does (`compile_modules.py` has the reason).

    Args:
        front: its front.
        listener: the address that it came to.
        loop: the running loop.
    """

    __slots__ = (
        "_behind",
        "_behind_upgrade",
        "_body_bytes",
        "_bytes_since_progress",
        "_continue",
        "_current",
        "_fields",
        "_fresh",
        "_front",
        "_heads",
        "_held",
        "_holders",
        "_host",
        "_incoming",
        "_known",
        "_last",
        "_last_head",
        "_learning",
        "_left",
        "_line",
        "_line_bytes",
        "_lingering",
        "_listener",
        "_loop",
        "_memory",
        "_mode",
        "_parser",
        "_paused",
        "_peer",
        "_phase",
        "_pieces",
        "_read",
        "_reader",
        "_scheduled",
        "_sender",
        "_service",
        "_since",
        "_special",
        "_stream",
        "_stuck_bytes",
        "_stuck_since",
        "_successor",
        "_transport",
        "_tunnel",
        "_undecided",
        "_url",
        "_writable",
    )

    def __init__(self, front: Server, listener: ListenerState, loop: asyncio.AbstractEventLoop) -> None:
        self._front = front
        self._listener = listener
        self._service = listener.service
        self._heads: heads.AnswerHead = front.heads
        self._known: HeadCache | None = listener.known
        self._loop = loop
        self._memory: MemoryBound = front.memory
        self._transport: asyncio.Transport
        self._parser: Any = None
        self._peer = ""
        self._mode = PARSE
        self._phase = PLAIN
        self._since = front.now  # when the phase began, or its last progress
        self._fresh = True  # no request has come yet
        self._last = False  # no further request is read
        self._lingering = False  # the end was written; bytes that still come are dropped
        self._scheduled = False  # `_advance` will be called
        # the request that is being received
        self._url = b""
        self._fields: heads.Fields = []
        self._special: heads.Fields = []
        self._host = b""  # the last well-formed Host
        self._learning = False  # the request being parsed can be worth keeping
        self._last_head: RequestHead | None = None  # the last head that came again
        self._read: RequestHead | None = None  # the last candidate to keep, while parsing
        self._incoming: H1Exchange | None = None
        self._reader: streams.Inbound | None = None
        self._pieces: list[bytes] = []
        self._body_bytes = 0
        self._left = 0  # bytes of the body to come, -1 = unknown
        self._bytes_since_progress = 0  # received since the last complete head or part of a body
        self._held = 0  # bytes of it that the front counts as unfinished
        self._continue = False  # the client gets 100 Continue when its turn comes
        # requests in line; the last can be a refusal
        self._line: collections.deque[H1Exchange | PenstockError] | None = None
        self._line_bytes = 0  # bytes that these keep, without a stream that still comes
        self._current: H1Exchange | None = None
        self._holders = 0  # reasons to pause reading
        # writing
        self._paused = False
        self._stuck_since = 0.0
        self._stuck_bytes = 0
        self._writable: asyncio.Future[None] | None = None
        self._sender: asyncio.Task[None] | None = None
        self._stream: AsyncIterator[bytes] | None = None  # the stream that `_sender` sends
        # switching protocols
        self._undecided: H1Exchange | None = None
        self._behind = b""
        self._behind_upgrade: tuple[H1Exchange, int] | None = (
            None  # a head with a body that the parser does not read
        )
        self._tunnel: streams.FrontTunnel | None = None
        self._successor = b""  # the Penstock protocol that the client asks for

    def switch(self, headers: Headers) -> Tunnel:
        """Answer 101 and become a tunnel."""
        raise NotImplementedError

    def _advance(self) -> None:
        """Continue after an answer."""
        raise NotImplementedError

    def _count_unfinished(self) -> int:
        """Count the bytes held of an incomplete request, without a stream's body; return `_hold`'s result."""
        held = self._bytes_since_progress + heads.FIELD_BYTES * (len(self._fields) + len(self._special))
        incoming = self._incoming
        if incoming is not None and incoming.connection is not None:
            held += heads.size(incoming.request.target, incoming.request.headers)
            if self._reader is None:
                held += self._body_bytes + max(0, self._left)
        return self._hold(held)

    def _hold(self, held: int) -> int:
        """Set the bytes held of an unfinished request; return those of all connections."""
        self._front.unfinished_bytes += held - self._held
        self._held = held
        return self._front.unfinished_bytes

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`: the client accepts less than it is sent."""
        self._paused = True
        self._stuck_since = self._front.now
        self._stuck_bytes = untaken_bytes(self._transport)

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`: the client has accepted what it was sent."""
        self._paused = False
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        if self._line and self._current is None:
            self._soon()

    def _put_in_line(self, entry: H1Exchange | PenstockError) -> None:
        """Append an entry to the line; reading pauses while the line has many entries, or many bytes."""
        if self._line is None:
            self._line = collections.deque()
        self._line.append(entry)
        if isinstance(entry, H1Exchange):
            entry.counted = entry.kept()
            self._line_bytes += entry.counted
            if len(self._line) > limits.MAX_PIPELINED or self._line_bytes > limits.BUFFER_BYTES:
                self._pause(LINE_IS_LONG)

    def _stream_came(self, exchange: H1Exchange, stream: streams.Inbound) -> None:
        """End a body that is a stream."""
        self._reader = None
        if exchange is not self._current and exchange.connection is not None:  # it is in line
            unread = stream.kept()
            exchange.counted += unread
            self._line_bytes += unread
        stream.finish()

    def _soon(self) -> None:
        # NB: not at once: a service must not get the next request in the middle of its answering.
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._advance)

    def _close_in_background(self) -> None:
        """End the exchange under way early and call its `gone`."""
        current, self._current = self._current, None
        if current is None:
            return
        current.connection = None
        gone, current.gone = current.gone, None
        if gone is not None:
            try:
                gone()
            except Exception as error:
                log("handler failed", level="error", error=repr(error))

    # -- answers out ----------------------------------------------------------------------------------------

    def answer(self, exchange: H1Exchange, response: Response) -> None:
        """Send the answer of the exchange under way, and continue with the next."""
        front = self._front
        status = response.status
        if (
            exchange.plain
            and response.stream is None
            and not self._listener.closing
            and status not in NO_BODY_STATUS
        ):
            body = response.body
            length = len(body)
            last = _LAST_LINES[length] if length < 2048 else b"content-length: %d\r\n\r\n" % length
            try:
                beginning = self._heads.beginning(status, response.headers)
            except (ValueError, TypeError) as error:
                self._unsendable(exchange, response.stream, error)
                return
            if length <= _JOINED_BYTES:
                self._transport.write(b"".join((beginning, response.lines, last, body)))
            else:
                self._transport.write(b"".join((beginning, response.lines, last)))
                self._transport.write(body)
            self._current = None
            self._since = front.now  # the time until here was the service's, not the client's
            if self._line or self._continue or self._undecided is not None:
                if self._undecided is exchange:
                    self._undecided = None
                self._soon()
            return
        try:
            self._answer_uncommon(exchange, response)
        except (ValueError, TypeError) as error:
            self._unsendable(exchange, response.stream, error)

    def _unsendable(
        self, exchange: H1Exchange, stream: AsyncIterator[bytes] | None, error: Exception
    ) -> None:
        log("answer cannot be sent", level="error", error=repr(error))
        exchange.keep = False
        if stream is not None:
            streams.close_in_background(stream)
        detail = f"{type(error).__name__} in a handler"
        self._answer_uncommon(exchange, PenstockError(Reason.INTERNAL, detail).response())

    def interim(self, status: int, headers: Headers) -> None:
        """Send an interim answer of the exchange under way."""
        try:
            head = heads.interim_head(status, headers)
        except ValueError as error:
            log("interim answer cannot be sent", level="warning", error=repr(error))
            return
        if not self._transport.is_closing():
            self._transport.write(head)

    def _answer_uncommon(self, exchange: H1Exchange, response: Response) -> None:
        """Send an answer that is a stream, has no body, or can be the last."""
        keep = exchange.keep and not self._listener.closing
        stream = response.stream
        bodiless = exchange.request.method == "HEAD" or response.status in NO_BODY_STATUS
        body = response.body
        # An answer to HEAD can describe a body that it leaves out.
        length = len(body) if stream is None and response.length is None else response.length
        chunked = False
        if response.status in NO_BODY_STATUS or (
            # The length that the body would have is unknown.
            exchange.request.method == "HEAD" and not length and response.length is None
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
        sending = stream is not None and not bodiless
        if not exchange.complete and not sending and not self._may_drain(exchange):
            keep = False
        if not keep:
            tail += _CLOSE
        elif exchange.old:
            tail += _KEEP
        beginning = self._heads.beginning(response.status, response.headers)
        head = b"".join((beginning, response.lines, tail, b"\r\n"))
        exchange.keep = keep
        self._transport.write(head if bodiless or stream is not None else head + body)
        if stream is None:
            self._answered(exchange)
        elif bodiless:
            self._sender = streams.sending(self._loop, self._close_stream(exchange, stream), stream)
        else:
            self._stream = stream
            work = self._send(exchange, stream, length, chunked=chunked)
            self._sender = streams.sending(self._loop, work, stream)

    def _may_drain(self, exchange: H1Exchange) -> bool:
        """Whether the rest of the request's body is short enough to be read and dropped."""
        return 0 < self._left <= limits.DRAIN_BYTES and not (exchange.expects and not self._body_bytes)

    async def _send(
        self, exchange: H1Exchange, stream: AsyncIterator[bytes], length: int | None, *, chunked: bool
    ) -> None:
        try:
            await streams.send(self, stream, chunked=chunked, length=length)
        except ClientGone:
            self._cut()
        except UpstreamError:
            if chunked or length is not None:  # what is missing shows, so what was sent before may arrive
                exchange.keep = False
                self._streamed(exchange)
            else:
                self._cut()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            self._cut()
            if task is not None and task.cancelling():
                raise
        except Exception as error:
            log("answer's stream failed", level="error", error=repr(error))
            self._cut()
        else:
            self._streamed(exchange)
        finally:
            self._sender = self._stream = None

    async def _close_stream(self, exchange: H1Exchange, stream: AsyncIterator[bytes]) -> None:
        try:
            await streams.close(stream)
        except Exception as error:
            log("answer's stream failed", level="error", error=repr(error))
        self._sender = None
        self._streamed(exchange)

    def _streamed(self, exchange: H1Exchange) -> None:
        if self._transport.is_closing():
            return
        if not exchange.complete and not self._may_drain(exchange):
            exchange.keep = False
        self._answered(exchange)

    def _answered(self, exchange: H1Exchange) -> None:
        """Finish an exchange that has its whole answer written."""
        self._current = None
        self._since = self._front.now
        if self._undecided is exchange:
            self._undecided = None
        reader = self._reader
        if reader is not None and self._incoming is exchange:  # and not the next one's
            self._reader = None
            reader.fail("the request was answered before its end")
            self._body_bytes = 0  # dropped bytes count from here
        if exchange.keep:
            self._soon()
        elif exchange.complete and not self._line and not self._behind and self._phase == PLAIN:
            self._last = True
            self._mode = DROP
            self._transport.close()
        else:
            self._end_now()

    def _end_with(self, error: PenstockError) -> None:
        """Answer a refusal, as the last answer."""
        answer = error.response()
        tail = b"content-length: %d\r\n%b\r\n" % (len(answer.body), _CLOSE)
        self._transport.write(self._heads.beginning(answer.status, answer.headers) + tail + answer.body)
        self._end_now()

    def _end_now(self) -> None:
        """End the connection so that the client can read what was written, even if it is still sending."""
        if self._lingering:
            return
        self._last = self._lingering = True
        self._mode = DROP
        self._line = None
        self._line_bytes = 0
        self._phase = PLAIN
        self._fields, self._special, self._pieces = [], [], []
        self._hold(0)
        self._since = self._front.now
        if not self._transport.is_closing():
            self._resume(self._holders)
            if self._transport.can_write_eof():
                self._transport.write_eof()
            else:
                self._transport.close()  # TLS has no half-close: it sends its end, and waits for the client's

    def _cut(self) -> None:
        """End the connection so that no client takes the part that was sent for the whole."""
        if self._transport.is_closing():
            return
        sock = self._transport.get_extra_info("socket")
        if sock is not None:  # a reset: in HTTP/1.0 an orderly end would be the body's end
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    # -- calls from streams and tunnels -------------------------------------------------------------------

    def _send_continue(self) -> None:
        self._continue = False
        self._since = self._front.now  # until now the service was late, not the client
        if not self._body_bytes:  # RFC 9110 section 10.1.1: not if the body has begun to come
            self._transport.write(_CONTINUE)

    def hold(self, source: streams.Inbound) -> None:
        self._pause(STREAM_IS_FULL)

    def release(self, source: streams.Inbound) -> None:
        self._since = self._front.now
        self._resume(STREAM_IS_FULL)

    def wanted(self) -> None:
        if self._continue and self._current is self._incoming:
            self._send_continue()

    def write(self, data: bytes) -> bool:
        if self._transport.is_closing():
            raise ClientGone("the client went away")
        self._transport.write(data)
        return not self._paused

    async def writable(self) -> None:
        if self._writable is None or self._writable.done():
            self._writable = self._loop.create_future()
        await asyncio.shield(self._writable)
        if self._transport.is_closing():
            raise ClientGone("the client went away")

    def end_tunnel(self) -> None:
        if self._transport.is_closing():
            return
        if self._tunnel is not None and self._tunnel.ended:
            self._transport.close()
        else:
            self._transport.write_eof()

    def abort(self) -> None:
        """Close now, whatever is under way."""
        self._transport.abort()

    # -- the end ------------------------------------------------------------------------------------------

    def send_away(self) -> None:
        """See `ServedConnection.send_away`: no-op, as each answer closes the connection."""

    def close_if_idle(self) -> None:
        """Close now unless a request is read or answered, or is sure to come.

        If closed with a request unread, a connection would be reset, and its client could not know whether
        the request was executed. A new client is about to send; the sweep ends those that do not.
        """
        if self._current is None and not self._line and self._phase == PLAIN and self._tunnel is None:
            ending = self._transport.is_closing()
            if not ending and not self._fresh and nothing_waits(self._transport):
                self._transport.close()

    def _hand_over(self, rest: bytes) -> None:
        """Answer 101, and pass the connection to another Penstock protocol."""
        front, listener, transport, name = self._front, self._listener, self._transport, self._successor
        self._mode = DROP
        self._parser = None  # it refers to this connection
        transport.write(heads.interim_head(101, ((b"connection", b"upgrade"), (b"upgrade", name))))
        successor = listener.successors[name](front, listener, self._loop, transport, self._peer)
        front.connections.discard(self)
        front.connections.add(successor)
        listener.replace(self, successor)
        transport.set_protocol(successor)
        if rest:
            successor.data_received(rest)

    def _pause(self, holder: int) -> None:
        if not self._holders and not self._transport.is_closing():
            self._transport.pause_reading()
        self._holders |= holder

    def _resume(self, holder: int) -> None:
        if self._holders & holder:
            self._holders &= ~holder
            if not self._holders and not self._transport.is_closing():
                self._transport.resume_reading()
