"""One connection of the front: which exchange is under way, which wait in line, and how the connection ends.

Its `reader` makes exchanges of received bytes, the service answers them, its `writer` sends the answers. A
connection has at most one exchange under way (`current`); pipelined ones wait in `_line`, and reading pauses
if the line is long, so the answers leave in order. An exchange with a stream can be under way while it is
still being received.

Except in a tunnel, the end of a client's stream means that the client leaves, whatever is under way.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, cast

from penstock_wire.addresses import unmapped
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import Headers
from penstock_wire.http import ClientGone, Response, Tunnel, UpstreamError
from penstock_wire.http.client.peer_liveness import has_left, nothing_waits
from penstock_wire.http.memory import CONNECTION_BYTES, Keeper, no_room
from penstock_wire.http.messages import NO_BODY_STATUS
from penstock_wire.http.server import head as heads
from penstock_wire.http.server import limits, streams
from penstock_wire.http.server.exchange import H1Exchange, Owner
from penstock_wire.http.server.reader import LINE_IS_LONG, NOT_ITS_TURN, PLAIN, RequestReader
from penstock_wire.http.server.writer import AnswerWriter
from penstock_wire.process import log

if TYPE_CHECKING:
    from penstock_wire.http.server.interfaces import ListenerState, Server, Successor


class H1Connection(Owner):
    """One connection.

    For the loop it is an `asyncio.Protocol` by its methods: it does not inherit from it, as no compiled class
    does (`compile_modules.py` has the reason).

    Args:
        front: its front.
        listener: the address that it came to.
        loop: the running loop.
    """

    __slots__ = (
        "_front",
        "_line",
        "_line_bytes",
        "_lingering",
        "_listener",
        "_loop",
        "_reader",
        "_scheduled",
        "_sender",
        "_service",
        "_stream",
        "_transport",
        "_writer",
    )

    def __init__(self, front: Server, listener: ListenerState, loop: asyncio.AbstractEventLoop) -> None:
        self._front = front
        self._listener = listener
        self._service = listener.service
        self._loop = loop
        self._transport: asyncio.Transport
        self._reader = RequestReader(self, front, listener)
        self._writer: AnswerWriter
        self._lingering = False  # the end was written; bytes that still come are dropped
        self._scheduled = False  # `_advance` will be called
        # requests in line; the last can be a refusal
        self._line: collections.deque[H1Exchange | PenstockError] | None = None
        self._line_bytes = 0  # bytes that these keep, without a stream that still comes
        self.current: H1Exchange | None = None
        self._sender: asyncio.Task[None] | None = None
        self._stream: AsyncIterator[bytes] | None = None  # the stream that `_sender` sends

    # -- the transport's callbacks --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        front = self._front
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not inherit from it
        self._writer = AnswerWriter(front, self._transport)
        name = transport.get_extra_info("peername")
        self._reader.begin(self._transport, unmapped(str(name[0])) if name else "")
        if len(front.connections) >= front.max_connections:
            self._reader.stop()
            self._transport.abort()
            return
        if front.evicting:  # pause writing while any byte is not accepted
            self._transport.set_write_buffer_limits(high=0)
        front.memory.room -= CONNECTION_BYTES
        front.connections.add(self)
        front.connected = self._loop.time()
        front.accepted += 1
        self._listener.connections.add(self)
        self._listener.empty.clear()

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`; calls `gone` of the exchange."""
        self._front.connections.discard(self)
        self._listener.leave(self)
        self._line = None
        incoming = self._reader.let_go("the client went away in the middle of its body")
        if incoming is not None:
            incoming.connection = None
        self._reader.close()
        self._give_up()
        if self._sender is not None:
            self._sender.cancel()
        self._writer.resume()

    def eof_received(self) -> bool:
        """See `asyncio.Protocol`; True keeps the connection, for the other half of a tunnel."""
        # A leaving client looks like a half-closing one, and clients usually leave: the service is called
        # (by connection_lost), or the model would work in vain.
        self._reader.last = True
        tunnel = self._reader.tunnel
        if tunnel is not None:
            tunnel.finish()
            return not tunnel.sent_all
        return False

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        turns = self._front.turns
        if turns is not None:
            turns.took(self._reader, len(data))
        self._reader.feed(data)

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`: the client accepts less than it is sent."""
        self._writer.pause()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`: the client has accepted what it was sent."""
        self._writer.resume()
        if self._line and self.current is None:
            self._soon()

    # -- requests in, from the reader -----------------------------------------------------------------------

    def busy(self) -> bool:
        return self.current is not None or bool(self._line)

    def enqueue(self, exchange: H1Exchange) -> None:
        if self.current is None and not self._line and not self._writer.paused:
            self._serve(exchange)
            return
        if not self._front.pipelining:
            actual = "found one behind another"
            self.refuse(PenstockError(Reason.BAD_REQUEST, f"expected one request at a time, {actual}"))
            return
        self._put_in_line(exchange)
        if self.current is None:
            self._soon()

    def stream_came(self, exchange: H1Exchange, unread: int) -> None:
        if exchange is not self.current and exchange.connection is not None:  # it is in line
            exchange.counted += unread
            self._line_bytes += unread

    def refuse(self, error: PenstockError) -> None:
        reader = self._reader
        reader.stop()
        incoming = reader.incoming
        if incoming is not None and incoming.connection is None:  # its answer has been sent, or begun
            if incoming is self.current:
                self._give_up()
                self._writer.cut()
            else:
                self.end_now()
        elif incoming is not None and incoming is self.current:
            self._give_up()
        elif self._line and self._line[-1] is incoming:
            self._line.pop()
            self._line_bytes -= incoming.counted
        reader.let_go(error.detail)
        if self._lingering or self._transport.is_closing():
            return
        if self.busy():
            self._put_in_line(error)
        else:
            self._end_with(error)

    def hand_over(self, make: Successor, rest: bytes) -> None:
        front, listener, transport = self._front, self._listener, self._transport
        waits = self._reader.holders
        self._reader.resume(waits)  # its successor gets in line instead
        self._reader.close()
        successor = make(front, listener, self._loop, transport, self._reader.peer)
        front.connections.discard(self)
        front.connections.add(successor)
        listener.replace(self, successor)
        transport.set_protocol(successor)
        if rest or waits:
            successor.data_received(rest)

    # -- whose turn it is -----------------------------------------------------------------------------------

    def _serve(self, exchange: H1Exchange) -> None:
        self.current = exchange
        try:
            self._service(exchange)
        except (Exception, asyncio.CancelledError) as error:
            exchange.fail(error)

    def _put_in_line(self, entry: H1Exchange | PenstockError) -> None:
        """Append an entry to the line; reading pauses while the line has many entries, or many bytes."""
        if self._line is None:
            self._line = collections.deque()
        self._line.append(entry)
        if isinstance(entry, H1Exchange):
            entry.counted = entry.kept()
            self._line_bytes += entry.counted
            if len(self._line) > limits.MAX_PIPELINED or self._line_bytes > limits.BUFFER_BYTES:
                self._reader.pause(LINE_IS_LONG)

    def _soon(self) -> None:
        # NB: not at once: a service must not get the next request in the middle of its answering.
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._advance)

    def _advance(self) -> None:
        """Continue after an answer: serve the line, read what was held back."""
        self._scheduled = False
        # NB: an answer within the loop can be the last, which ends the line.
        while self._line and not (self.current or self._writer.paused or self._transport.is_closing()):
            entry = self._line.popleft()
            if isinstance(entry, PenstockError):
                self._end_with(entry)
                return
            self._line_bytes -= entry.counted
            self._serve(entry)
        line = self._line
        if line is not None and len(line) <= limits.MAX_PIPELINED and self._line_bytes <= limits.BUFFER_BYTES:
            self._reader.resume(LINE_IS_LONG)
        if self.current is not None or line or self._lingering or self._transport.is_closing():
            return
        self._reader.continue_in_turn()
        self._reader.decided()

    def _give_up(self) -> None:
        """End the exchange under way early and call its `gone`."""
        current, self.current = self.current, None
        if current is None:
            return
        current.connection = None
        gone, current.gone = current.gone, None
        if gone is not None:
            try:
                gone()
            except Exception as error:
                log("handler failed", level="error", error=repr(error))

    # -- answers out, from the exchange under way -----------------------------------------------------------

    def answer(self, exchange: H1Exchange, response: Response) -> None:
        plain = (
            exchange.plain
            and response.stream is None
            and not self._listener.closing
            and response.status not in NO_BODY_STATUS
        )
        try:
            if not plain:
                self._answer_uncommon(exchange, response)
                return
            self._writer.plain(response)
        except (ValueError, TypeError) as error:
            log("answer cannot be sent", level="error", error=repr(error))
            exchange.keep = False
            if response.stream is not None:
                streams.close_in_background(response.stream)
            detail = f"{type(error).__name__} in a handler"
            self._answer_uncommon(exchange, PenstockError(Reason.INTERNAL, detail).response())
            return
        self.current = None
        reader = self._reader
        reader.since = self._front.now  # the time until here was the service's, not the client's
        if self._line or reader.wants_continue or reader.undecided is not None:
            if reader.undecided is exchange:
                reader.undecided = None
            self._soon()

    def interim(self, status: int, headers: Headers) -> None:
        try:
            head = heads.interim_head(status, headers)
        except ValueError as error:
            log("interim answer cannot be sent", level="warning", error=repr(error))
            return
        if not self._transport.is_closing():
            self._transport.write(head)

    def switch(self, headers: Headers) -> Tunnel:
        if self._transport.is_closing():
            raise ClientGone("the client went away")
        if self._reader.undecided is None:
            raise ValueError("expected a listener whose connections may switch protocols")
        self._transport.write(heads.interim_head(101, headers))
        self.current = None
        tunnel = streams.FrontTunnel(self._reader, self._writer)
        self._reader.into(tunnel)
        return tunnel

    def _answer_uncommon(self, exchange: H1Exchange, response: Response) -> None:
        """Send an answer that is a stream, has no body, or can be the last."""
        stream = response.stream
        bodiless = exchange.request.method == "HEAD" or response.status in NO_BODY_STATUS
        keep = exchange.keep and not self._listener.closing
        if not exchange.complete and (stream is None or bodiless) and not self._may_drain(exchange):
            keep = False
        chunked = self._writer.begin(exchange, response, keep=keep)
        if stream is None:
            self._answered(exchange)
        elif bodiless:
            self._sender = streams.sending(self._loop, self._close_stream(exchange, stream), stream)
        else:
            self._stream = stream
            work = self._send(exchange, stream, response.length, chunked=chunked)
            self._sender = streams.sending(self._loop, work, stream)

    def _may_drain(self, exchange: H1Exchange) -> bool:
        """Whether the rest of the request's body is short enough to be read and dropped."""
        reader = self._reader
        return 0 < reader.left <= limits.DRAIN_BYTES and not (exchange.expects and not reader.body_bytes)

    async def _send(
        self, exchange: H1Exchange, stream: AsyncIterator[bytes], length: int | None, *, chunked: bool
    ) -> None:
        try:
            await streams.send(self._writer, stream, chunked=chunked, length=length)
        except ClientGone:
            self._writer.cut()
        except UpstreamError:
            if chunked or length is not None:  # what is missing shows, so what was sent before may arrive
                exchange.keep = False
                self._streamed(exchange)
            else:
                self._writer.cut()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            self._writer.cut()
            if task is not None and task.cancelling():
                raise
        except Exception as error:
            log("answer's stream failed", level="error", error=repr(error))
            self._writer.cut()
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
        reader = self._reader
        self.current = None
        reader.since = self._front.now
        if reader.undecided is exchange:
            reader.undecided = None
        if reader.inbound is not None and reader.incoming is exchange:  # and not the next one's
            reader.drop_body("the request was answered before its end")
        if exchange.keep:
            self._soon()
        elif exchange.complete and not self._line and reader.resting():
            reader.stop()
            self._transport.close()
        else:
            self.end_now()

    def abort(self) -> None:
        self._transport.abort()

    # -- the end --------------------------------------------------------------------------------------------

    def _end_with(self, error: PenstockError) -> None:
        """Answer a refusal, as the last answer."""
        self._writer.refuse(error)
        self.end_now()

    def end_now(self) -> None:
        if self._lingering:
            return
        self._lingering = True
        self._line = None
        self._line_bytes = 0
        reader = self._reader
        reader.stop()
        reader.since = self._front.now
        if not self._transport.is_closing():
            reader.resume(~NOT_ITS_TURN)
            self._writer.end()

    def send_away(self) -> None:
        """See `ServedConnection.send_away`: no-op, as each answer closes the connection."""

    def close_if_idle(self) -> None:
        """Close now unless a request is read or answered, or is sure to come.

        If closed with a request unread, a connection would be reset, and its client could not know whether
        the request was executed. A new client is about to send; the sweep ends those that do not.
        """
        reader = self._reader
        if not self.busy() and reader.phase == PLAIN and reader.tunnel is None:
            ending = self._transport.is_closing()
            if not ending and not reader.fresh and nothing_waits(self._transport):
                self._transport.close()

    def overdue(self, now: float) -> bool:
        """Whether the peer is late.

        Args:
            now: the value of `H1Front.now`, in seconds.
        """
        reader = self._reader
        if self._writer.paused:
            return self._writer.overdue(now)
        if reader.tunnel is not None:
            return reader.holders > 0 and has_left(self._transport, half=True)
        if reader.holders:  # what would be read does not show it
            return reader.holders != NOT_ITS_TURN and has_left(self._transport, half=False)
        if reader.undecided is not None:
            return False
        if self.current is not None and (reader.inbound is None or reader.wants_continue):
            return False  # the client waits for the service
        if self._lingering:
            return now - reader.since > limits.LINGER_SECONDS + limits.SWEEP_SECONDS
        return reader.overdue(now)

    def expire(self) -> None:
        """Close because the peer is late; answer 408 if it was in the middle of a request."""
        if self._writer.paused or self._lingering:
            self._writer.cut()
        elif self._reader.holders:  # it has left
            self._transport.abort()
        elif self._reader.phase == PLAIN:
            if nothing_waits(self._transport):
                self._transport.close()
        else:
            self.refuse(
                PenstockError(Reason.BAD_REQUEST, "expected the rest of the request in time", status=408)
            )

    # -- its memory, and how it makes way for a new connection or for the memory of others ------------------

    def standing(self) -> tuple[int, float] | None:
        """Return its rank if one connection has to make way: the lowest makes way first.

        Returns:
            0 if the client accepts nothing of its answer, 1 if it waits for a request, 2 if a request or its
            answer is under way; and since when; None if the connection has not begun or has ended.
        """
        if self not in self._front.connections:
            return None
        writer = self._writer
        if writer.paused and self._front.now - writer.stuck_since >= limits.STUCK_SECONDS:
            return (0, writer.stuck_since)
        busy = self.current is not None or self._reader.tunnel is not None or writer.paused
        return (2 if busy else 1, self._reader.since)

    def make_way(self) -> bool:
        """Close now, unless a request has come that the loop has not delivered; return whether it closed."""
        resting = self._reader.phase == PLAIN and self.current is None
        if resting and not (self._lingering or self._writer.paused or nothing_waits(self._transport)):
            return False
        self._front.connections.discard(self)
        self._transport.abort()
        return True

    def keepers(self) -> Sequence[Keeper]:
        """See `memory.Connection.keepers`: it serves one client."""
        return (self,)

    def kept(self) -> int:
        if self._transport.is_closing():
            return 0
        current = self.current
        kept = CONNECTION_BYTES + self._transport.get_write_buffer_size() + self._line_bytes
        kept += self._reader.kept(current)
        if current is not None:
            kept += current.kept()
        unread = getattr(self._stream, "kept", None)
        return kept if unread is None else kept + int(unread())

    def kept_since(self) -> float:
        return self._reader.since

    def give_way(self) -> bool:
        """See `memory.Keeper.give_way`: an unanswered request is answered 503.

        An answer or a tunnel that has begun is cut. The service has to give up a request that waits for it,
        as when a client leaves.
        """
        reader = self._reader
        if self._transport.is_closing() or self._lingering:
            return False
        if reader.tunnel is not None or self._sender is not None or self._writer.paused:
            self._writer.cut()
        elif reader.phase == PLAIN and not self.busy():
            return self.make_way()
        else:
            current, streamed = self.current, reader.inbound is not None
            incoming = reader.let_go("there was no room to keep it")
            answered = incoming is not None and incoming.connection is None
            if incoming is not None:
                incoming.connection = None
            self._give_up()
            if current is not None:
                current.request.body = b""  # now: the service's task ends only when all received data is read
            if answered:
                self.end_now()
            else:
                self._end_with(no_room(not_admitted=current is None and not streamed and not self._line))
        return True
