"""A connection of HTTP/2, from the client's preface to its end (RFC 9113): any number of exchanges at once.

A fault of one request is answered, or resets its stream; a violation of the protocol ends the connection,
with the reason in its GOAWAY. An end is announced: first "open no more streams", while those on the way are
still taken, then "nothing beyond this stream is taken"; the client closes.

What a client can make it keep is bounded by `limits`, as on HTTP/1.1: heads, bodies, streams, the time for
each. Of frames that ask for nothing (PING, SETTINGS, PRIORITY, empty DATA) and of streams that are reset it
may send only so many (`_CHEAP_FRAMES`, `_RESETS`), since each costs time and none is a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Final

from penstock_wire.errors import PenstockError, Reason
from penstock_wire.framing.bodies import PieceSender
from penstock_wire.framing.served import LEFT, Served
from penstock_wire.http.client.peer_liveness import look
from penstock_wire.http.memory import PIECE_BYTES, REQUEST_BYTES, Keeper
from penstock_wire.http.server import limits, streams
from penstock_wire.http.server.turns import TakesTurns
from penstock_wire.http2 import frames
from penstock_wire.http2.call import Call
from penstock_wire.http2.end import CREDIT_BYTES, H2End, expect_stream, unpadded
from penstock_wire.http2.exchange import Carrier, H2Exchange
from penstock_wire.http2.head import NO_TABLE, Head, HeadReader
from penstock_wire.http2.passed_call import PassedCall
from penstock_wire.process import log

if TYPE_CHECKING:
    from penstock_wire.http.server.interfaces import ListenerState, Server

_CHEAP_FRAMES: Final = 10_000
"""Most frames in a row that are no part of a request; one more for each byte of an answer."""
_RESETS: Final = 4 * frames.MAX_STREAMS
"""Most unanswered streams that the client resets in a second."""
_PING: Final = frames.header(8, frames.PING, 0, 0) + b"alive?\0\0"
_REMEMBERED: Final = 128
"""Most streams that were reset here and whose late frames are ignored; beyond it the oldest is forgotten."""


class H2Connection(Carrier, H2End, Served, TakesTurns):
    """One connection. For the loop it is an `asyncio.Protocol` by its methods.

    Args:
        front: its front.
        listener: the address that it came to.
        loop: the running loop.
        transport: the connection; its preface was read.
        peer: the client's address.
    """

    def __init__(
        self,
        front: Server,
        listener: ListenerState,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        peer: str,
    ) -> None:
        super().__init__(loop, transport, frames.HEADER_BYTES)
        self.memory = front.memory
        self.max_body_bytes = front.max_body_bytes
        self._service = listener.service
        self._exchanges: dict[int, H2Exchange] = {}
        self._cut: dict[int, None] = {}  # streams that were ended here before their request was complete
        self._last = 0
        self._heads = HeadReader(front.max_head_bytes)
        self._first = NO_TABLE
        self._cheap = 0
        self._sent = 0  # bytes of answers' bodies when `_cheap` was too large last
        self._resets = 0
        self._resets_since = front.now
        self._heard = 0  # frames that had come when it was looked at last
        self._heard_at = front.now
        self._pinged = False  # a sign of life was asked for since
        self._in_line = False  # it is not read before its turn
        self._begin_end(front.max_head_bytes)
        self._serve_in(front, listener, peer)
        self.send(
            frames.settings(
                [
                    (frames.MAX_CONCURRENT_STREAMS, frames.MAX_STREAMS),
                    (frames.INITIAL_WINDOW_SIZE, frames.STREAM_WINDOW),
                    (frames.MAX_HEADER_LIST_SIZE, front.max_head_bytes),
                ]
            )
            + frames.window_update(0, frames.CONNECTION_WINDOW - frames.USUAL_WINDOW)
        )
        if listener.closing:
            self.send_away()

    # -- frames in ------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        turns = self._front.turns
        if turns is not None:
            turns.took(self, len(data))
        super().data_received(data)

    def await_turn(self) -> None:
        self._in_line = True
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def take_turn(self) -> None:
        self._in_line = False
        if not (self._paused or self.transport.is_closing()):
            self.transport.resume_reading()

    def _may_read(self) -> bool:
        return not self._in_line

    def _take_frame(self, data: bytes, offset: int, size: int) -> int:
        return self._take_h2_frame(data, offset, size)

    def _bodies(self) -> list[PieceSender]:
        self._cheap += len(self._exchanges)
        return list(self._exchanges.values())

    def _body_of(self, stream: int) -> PieceSender | None:
        return self._exchanges.get(stream)

    def _cut_stream(self, stream: int, code: int) -> None:
        self.cut(self._exchanges[stream], code, of_client=True)

    def _leave(self, last: int, code: int, why: bytes) -> None:
        """See `H2End._leave`: a client that leaves ends its connection itself."""

    def _count_cheap(self) -> None:
        self._cheap += 1
        if self._cheap > _CHEAP_FRAMES:
            # NB: clients of Go send a PING, and credit, for each frame of an answer that they receive.
            sent, self._sent = self._sent, self._granted - self.window
            self._cheap -= min(self._cheap, self._sent - sent)
        if self._cheap > _CHEAP_FRAMES:
            raise frames.BrokenError(
                frames.ENHANCE_YOUR_CALM,
                f"expected a request, or progress of one, within {_CHEAP_FRAMES} frames",
            )

    def _reset(self, stream: int, size: int, code: int) -> None:
        expect_stream(stream)
        if size != 4:
            raise frames.BrokenError(frames.FRAME_SIZE_ERROR, "expected an RST_STREAM of 4 bytes")
        exchange = self._exchanges.get(stream)
        if exchange is None:
            self._count_cheap()
            self._expect_past(stream)
            return
        self._count_reset()
        self._drop(exchange)

    def _count_reset(self) -> None:
        """Count a stream that ends by its client, or because of it, before its answer."""
        now = self._front.now
        if now != self._resets_since:
            self._resets_since, self._resets = now, 0
        self._resets += 1
        if self._resets > _RESETS:
            raise frames.BrokenError(frames.ENHANCE_YOUR_CALM, f"expected at most {_RESETS} resets a second")

    def _expect_past(self, stream: int) -> None:
        """Refuse a stream that was never opened (RFC 9113 section 5.1)."""
        if self._leaving == LEFT and stream & 1:
            return  # its head came behind our GOAWAY
        if stream > self._last or not stream & 1:
            raise frames.BrokenError(
                frames.PROTOCOL_ERROR, f"expected a stream that was opened, found {stream}"
            )

    # -- requests in ----------------------------------------------------------------------------------------

    def _head(self, stream: int, block: bytes) -> None:
        """Take a complete header block: a request's head, or its trailers."""
        exchange = self._exchanges.get(stream)
        if exchange is not None or stream <= self._last:
            well_formed = self._heads.read_trailers(block)
            if exchange is None:
                self._count_cheap()
                if stream not in self._cut:
                    raise frames.BrokenError(
                        frames.STREAM_CLOSED, f"expected no head of the ended stream {stream}"
                    )
            elif exchange.complete:
                raise frames.BrokenError(
                    frames.STREAM_CLOSED, f"expected no head behind the end of stream {stream}"
                )
            elif not well_formed or not self._block_ends:
                self.cut(exchange, frames.PROTOCOL_ERROR, of_client=True)
            else:
                self._complete(exchange)
            return
        if not stream & 1:
            raise frames.BrokenError(frames.PROTOCOL_ERROR, f"expected an odd stream, found {stream}")
        head = self._heads.read(block)
        if self._leaving == LEFT:
            return  # it was sent before the client read our GOAWAY
        self._last = stream
        self._progress.since = now = self._front.now
        if head.fault or len(self._exchanges) >= frames.MAX_STREAMS:
            self._reset_stream(stream, frames.PROTOCOL_ERROR if head.fault else frames.REFUSED_STREAM)
            if not self._block_ends:
                self._ignore(stream)
            self._count_reset()
            return
        self._cheap = 0
        self.memory.room -= REQUEST_BYTES + self._heads.size
        own, window = self._heads.own, self._stream_window

        if not Call.is_one(head):
            exchange = H2Exchange(self, stream, head, own, self._peer, window, now)
        elif not Call.passes(head):
            exchange = Call(self, stream, head, own, self._peer, window, now)
        else:
            exchange = PassedCall(self, stream, head, own, self._peer, window, now)
        self._exchanges[stream] = exchange
        try:
            exchange.begun()
        except Exception as error:
            exchange.fail(error)
        if self._block_ends and stream in self._exchanges:
            self._complete(exchange)

    def _data(self, flags: int, stream: int, data: bytes, start: int, end: int) -> None:
        expect_stream(stream)
        size = end - start
        self._receive(size)
        exchange = self._exchanges.get(stream)
        if exchange is None:
            self._expect_past(stream)
            if stream <= self._last and stream not in self._cut:
                self._reset_stream(stream, frames.STREAM_CLOSED)
            self._count_cheap()
            return
        if exchange.complete:
            self.cut(exchange, frames.STREAM_CLOSED, of_client=True)
            return
        ended = bool(flags & frames.END_STREAM)
        if flags & frames.PADDED:
            start, end = unpadded(data, start, end)
            if size > end - start and not ended:
                self.send(frames.window_update(stream, size - (end - start)))
        exchange.due += end - start
        if exchange.due > frames.STREAM_WINDOW:
            self.cut(exchange, frames.FLOW_CONTROL_ERROR, of_client=True)
            return
        if end > start:
            self._cheap = 0
            exchange.since = self._front.now
            self.memory.room -= PIECE_BYTES
            try:
                exchange.take(data[start:end])
            except Exception as error:
                exchange.fail(error)
        elif not ended:
            self._count_cheap()
        if stream not in self._exchanges:
            return
        if ended:
            self._complete(exchange)
        elif exchange.due >= CREDIT_BYTES and not isinstance(exchange, PassedCall):
            self.send(frames.window_update(stream, exchange.due))
            exchange.due = 0

    def _complete(self, exchange: H2Exchange) -> None:
        """Take the end of a request."""
        exchange.complete = True
        if exchange.stopped:
            self._remove(exchange)
            return
        try:
            exchange.ended()
        except Exception as error:
            exchange.fail(error)

    def start(self, exchange: H2Exchange) -> None:
        try:
            self._service(exchange)
        except (Exception, asyncio.CancelledError) as error:
            exchange.fail(error)

    def fits(self, size: int) -> bool:
        return self.memory.fits(size)

    def grew(self, head: Head) -> None:
        self._heads.grew(head)

    @property
    def closing(self) -> bool:
        return self._listener.closing

    # -- answers out ----------------------------------------------------------------------------------------

    def send_head(self, exchange: H2Exchange, block: bytes, *, ended: bool) -> None:
        if self._first:
            block, self._first = self._first + block, b""
        self.send(frames.head(block, exchange.number, ended=ended, most=self.max_frame))

    def run(self, exchange: H2Exchange, stream: AsyncIterator[bytes], length: int | None) -> None:
        exchange.since = self._front.now
        work = streams.send_all(exchange, stream, length, exchange.sent, exchange.break_off)
        exchange.task = streams.sending(self._loop, work, stream)

    def over(self, exchange: H2Exchange) -> None:
        """Remove an exchange whose answer was sent; what may still come of its request is not read."""
        if exchange.complete:
            self._remove(exchange)
        else:  # RFC 9113 section 8.1
            self._reset_stream(exchange.number, frames.NO_ERROR)
            self._remember(exchange)

    def cut(self, exchange: H2Exchange, code: int, *, of_client: bool = False) -> None:
        """Reset a stream.

        Args:
            exchange: its exchange.
            code: why.
            of_client: the service has to be told.
        """
        if exchange.number not in self._exchanges:
            return
        self._reset_stream(exchange.number, code)
        self._remember(exchange)
        if of_client:
            self._drop(exchange)
            self._count_reset()  # CVE-2025-8671
            return
        exchange.stop()
        if exchange.task is not None:
            exchange.task.cancel()

    def _remember(self, exchange: H2Exchange) -> None:
        if not exchange.complete:
            self._ignore(exchange.number)
        self._remove(exchange)

    def _ignore(self, stream: int) -> None:
        """Ignore what still comes of a stream."""
        if len(self._cut) >= _REMEMBERED:
            del self._cut[next(iter(self._cut))]
        self._cut[stream] = None

    def _reset_stream(self, stream: int, code: int) -> None:
        self.send(frames.reset(stream, code))

    def _remove(self, exchange: H2Exchange) -> None:
        self._exchanges.pop(exchange.number, None)
        self._progress.since = self._front.now

    def _drop(self, exchange: H2Exchange) -> None:
        """End an exchange because its client left, and tell its service."""
        self._remove(exchange)
        exchange.stop()
        exchange.answered = True
        exchange.pieces.clear()
        if exchange.task is not None:
            exchange.task.cancel()
        gone, exchange.gone = exchange.gone, None
        if gone is not None:
            try:
                gone()
            except Exception as error:
                log("handler failed", level="error", error=repr(error))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._pause_reading()

    def resume_writing(self) -> None:
        self._resume_reading()
        super().resume_writing()

    # -- memory ---------------------------------------------------------------------------------------------

    def keepers(self) -> Sequence[Keeper]:
        """See `memory.Connection.keepers`: clients of a gateway share it; requests give way one by one."""
        return [self, self._heads, *self._exchanges.values()]

    def kept(self) -> int:
        own = super().kept()
        return own + self._block_bytes if own else 0

    # -- time and the end -----------------------------------------------------------------------------------

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`; calls `gone` of each exchange."""
        self.ended = True
        self._front.connections.discard(self)
        self._listener.leave(self)
        for exchange in list(self._exchanges.values()):
            self._drop(exchange)

    def _break(self, code: int, why: str) -> None:
        log("a client does not keep to HTTP/2", level="warning", peer=self._peer, error=why)
        self.send(frames.goaway(self._last, code, why))
        self.ended = True
        self._leaving = LEFT
        for exchange in list(self._exchanges.values()):
            self._drop(exchange)
        self._flush()
        # NB: closed while the client sends, the connection would be reset before it reads why.
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()

    def _busy(self) -> bool:
        return bool(self._exchanges)

    def _half_read(self) -> bool:
        return bool(self._parts or self._block_of)

    def _any_late(self, now: float) -> bool:
        return self._is_silent(now) or any(
            self._late(exchange, now) for exchange in list(self._exchanges.values())
        )

    def _is_silent(self, now: float) -> bool:
        """Whether the client's machine, or its network, is gone: then no end of the connection comes.

        A stream that is open for as long as its client likes would keep its place at the model. Called in
        each sweep while streams are under way. A process that is busy, or stopped, does not answer a PING:
        its kernel acknowledges it.
        """
        if self._frames != self._heard:
            self._heard, self._heard_at, self._pinged = self._frames, now, False
        elif not self._pinged and now - self._heard_at > limits.PING_SECONDS:
            self.send(_PING)
            self._cheap -= 1  # its reply
            self._heard_at, self._pinged = now, True
        elif self._pinged and now - self._heard_at > limits.PING_SECONDS + limits.SWEEP_SECONDS:
            signs = look(self.transport)
            if signs.unacknowledged and signs.heard_ago >= limits.PING_SECONDS:
                return True
            self._heard_at, self._pinged = now, False
        return False

    def _late(self, exchange: H2Exchange, now: float) -> bool:
        """Whether the client keeps one exchange waiting too long, for its body or for credit."""
        if exchange.is_stuck:
            if exchange.credits != exchange.credits_seen:
                exchange.credits_seen, exchange.since = exchange.credits, now
            return now - exchange.since > limits.WRITE_SECONDS + limits.SWEEP_SECONDS
        if exchange.complete or exchange.answered:
            return False
        patience = limits.BODY_SECONDS
        if exchange.open_ended or exchange.receiver is not None:  # its client sends when it likes
            patience = limits.IDLE_SECONDS
        return now - exchange.since > patience + limits.SWEEP_SECONDS

    def _end_late(self) -> None:
        if self._busy() and self._is_silent(self._front.now):
            self.abort()
            return
        for exchange in list(self._exchanges.values()):
            if not self._late(exchange, self._front.now):
                continue
            if exchange.answered:
                self.cut(exchange, frames.CANCEL)
            else:
                late = "expected the rest of the body in time"
                exchange.refuse(PenstockError(Reason.BAD_REQUEST, late, status=408))

    def _say_goodbye(self, *, last: bool) -> None:
        self.send(frames.goaway(self._last if last else frames.LARGEST_WINDOW, frames.NO_ERROR))
        if last:
            for exchange in [each for each in self._exchanges.values() if each.open_ended]:
                self.cut(exchange, frames.CANCEL)
