"""A client's end of HTTP/2: gRPC calls to a model, many at once on one connection."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Final

from penstock_wire.framing.bodies import Allowance, PieceSender
from penstock_wire.framing.call import FramedCall
from penstock_wire.framing.client import ClientPool, FramedClient
from penstock_wire.framing.connection import Framed
from penstock_wire.headers import IN_VALUES, PER_CONNECTION, Headers, get
from penstock_wire.http import (
    AnswerUnreadable,
    Opened,
    Request,
    RequestNotTaken,
    UpstreamError,
)
from penstock_wire.http.client.head import MAX_HEAD_BYTES
from penstock_wire.http.client.peer_liveness import nothing_waits
from penstock_wire.http.client.pool import LOOK_SECONDS
from penstock_wire.http2 import frames
from penstock_wire.http2.end import H2End, expect_stream, unpadded
from penstock_wire.http2.exchange import DataSender
from penstock_wire.http2.fields import FieldReader
from penstock_wire.http2.head import NO_TABLE, is_name, is_value, literal
from penstock_wire.process import log

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_LAST: Final = 2**31 - 3
"""The last stream but one: a connection takes no call behind it."""
_MAX_UNREAD: Final = 16 * 1024 * 1024
"""Most bytes that wait for a model that sends frames to be acknowledged; bodies stop far below it."""
_MAX_TRAILERS: Final = 128 * 1024
"""Most bytes of the fields behind an answer: one frame of a hop holds them."""


class _StreamAllowance(Allowance):
    """Credit for an answer's body."""

    __slots__ = ()

    def __init__(self, outlet: Framed, stream: int) -> None:
        super().__init__(outlet, stream, frames.STREAM_WINDOW)

    def credit(self, size: int) -> bytes:
        return frames.window_update(self.number, size)


class H2Client(FramedClient, H2End):
    """The client's end of one connection.

    Args:
        pool: the pool that it belongs to.
        key: host and port of the peer.
        loop: the running loop.
        transport: the connection.
    """

    def __init__(
        self,
        pool: ClientPool,
        key: tuple[str, int],
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
    ) -> None:
        super().__init__(pool, key, loop, transport, frames.HEADER_BYTES)
        self._begin_end(MAX_HEAD_BYTES)
        self._number = -1  # a client's streams are odd
        self._reader = FieldReader(2 * MAX_HEAD_BYTES)
        self._first = NO_TABLE
        self._latest: tuple[str, str, Headers] = ("", "", ())
        self._latest_block = b""
        self.send(
            _PREFACE
            + frames.settings(
                [
                    (frames.ENABLE_PUSH, 0),
                    (frames.INITIAL_WINDOW_SIZE, frames.STREAM_WINDOW),
                    (frames.MAX_HEADER_LIST_SIZE, MAX_HEAD_BYTES),
                ]
            )
            + frames.window_update(0, frames.CONNECTION_WINDOW - frames.USUAL_WINDOW)
        )

    # -- calls out ------------------------------------------------------------------------------------------

    @property
    def takes(self) -> bool:
        """Whether a call can be sent here now."""
        if not self.reusable or self.ended or self.transport.is_closing():
            return False
        if len(self._calls) >= min(self._most_streams, frames.MAX_STREAMS) or self._number >= _LAST:
            return False
        return bool(self._calls) or (
            time.monotonic() - self.idle_since < LOOK_SECONDS or nothing_waits(self.transport)
        )

    def begin(
        self, request: Request, timeout: float, idle: float, whole_bytes: int, opened: Opened
    ) -> FramedCall:
        """Send a request; see `Upstream.begin`."""
        try:
            block = self._first + self._block_for(request)
        except ValueError as error:
            raise UpstreamError(f"the request for {self.where} cannot be sent: {error}") from error
        self._first = b""
        self._number = number = self._number + 2
        call = FramedCall(self, self._loop, number, request, timeout, idle, whole_bytes, opened)
        call.allowance = _StreamAllowance(self, number)
        self._calls[number] = call
        stream, body = request.stream, request.body
        ended = stream is None and not body
        self.send(frames.head(block, number, ended=ended, most=self.max_frame))
        if not ended:
            sender = DataSender(self, number, self._stream_window)
            if stream is None:
                call.sender = sender
                sender.finish(body)
            else:
                call.send_stream(sender, stream, request.length)
        call.deadline = deadline = time.monotonic() + timeout
        self._timer.ring_at(deadline)
        return call

    def _block_for(self, request: Request) -> bytes:
        fields = request.headers
        latest = (request.method, request.target, fields)
        if latest[2] is not self._latest[2] or latest != self._latest:
            host = get(fields, b"host") or self.where.encode()
            parts = [
                literal(b":method", request.method.encode()),
                literal(b":scheme", b"http"),
                literal(b":path", request.target.encode("latin-1")),
                literal(b":authority", host),
                literal(b"te", b"trailers"),
            ]
            for name, value in fields:
                if name in PER_CONNECTION or name == b"host":
                    continue
                if (name + value).translate(None, IN_VALUES):
                    raise ValueError("expected header fields of one line each, without control characters")
                parts.append(literal(name, value))
            self._latest, self._latest_block = latest, b"".join(parts)
        if not request.lines:
            return self._latest_block
        lines = [line.partition(b": ") for line in request.lines.split(b"\r\n") if line]
        return self._latest_block + b"".join([literal(name, value) for name, _, value in lines])

    def _cancel(self, call: FramedCall) -> None:
        self.send(frames.reset(call.number, frames.CANCEL))

    def _is_unread(self, number: int) -> bool:
        return False  # unless the model says so (`_is_left`, `_reset`), it may have read all that was sent

    # -- answers in -----------------------------------------------------------------------------------------

    def _take_frame(self, data: bytes, offset: int, size: int) -> int:
        return self._take_h2_frame(data, offset, size)

    def _head(self, stream: int, block: bytes) -> None:
        fields = self._reader.read(block)
        call = self._calls.get(stream)
        if call is None:
            self._expect_past(stream)
            return
        ended = self._block_ends
        status = 0
        if not call.answered:
            first, fields = fields[:1], fields[1:]
            if first and first[0][0] == b":status" and len(first[0][1]) == 3 and first[0][1].isdigit():
                status = int(first[0][1])
        for name, value in fields:
            if not is_name(name) or not is_value(value):
                self._unreadable(call, f"a field {name!r} that cannot be read")
                return
        headers = tuple([field for field in fields if field[0] not in PER_CONNECTION])
        if call.answered:
            if sum([len(name) + len(value) + 4 for name, value in headers]) > _MAX_TRAILERS:
                self._unreadable(call, f"more than {_MAX_TRAILERS} bytes of trailers")
            elif ended:
                call.trailers(headers)
                try:
                    self._ended(call, b"")
                except ValueError as wrong:  # its length was another
                    self._unreadable(call, str(wrong))
            else:
                self._unreadable(call, "a second head")
        elif status < 200:
            if status >= 100 and not ended and status != 101:
                call.interim(status, headers)
            else:
                self._unreadable(call, "no status of an answer")
        elif ended:
            self._is_over(call)
            call.whole(status, headers, b"", None)
        else:
            call.begins(status, headers, _length(fields))

    def _data(self, flags: int, stream: int, data: bytes, start: int, end: int) -> None:
        expect_stream(stream)
        self._receive(end - start)
        call = self._calls.get(stream)
        if call is None:
            self._expect_past(stream)
            return
        size = end - start
        if flags & frames.PADDED:
            start, end = unpadded(data, start, end)
        try:
            allowance = call.allowance
            if allowance is not None and end - start < size:
                allowance.take(size - (end - start))
                allowance.give(size - (end - start))
            if flags & frames.END_STREAM:
                self._ended(call, data[start:end])
            elif end > start:
                call.piece(data[start:end], ended=False)
        except AnswerUnreadable as error:
            self.give_up(call, error)
        except ValueError as wrong:
            self._unreadable(call, str(wrong))

    def _ended(self, call: FramedCall, last: bytes) -> None:
        """Take the end of an answer, with its last piece."""
        call.piece(last, ended=True)
        self._is_over(call)

    def _is_over(self, call: FramedCall) -> None:
        if call.cut_short or call.sends:
            self._cancel(call)
        self._calls.pop(call.number, None)
        call.deadline = math.inf
        self._rest()

    def _unreadable(self, call: FramedCall, what: str) -> None:
        self.give_up(call, AnswerUnreadable(f"{self.where} sent {what}"))

    def _reset(self, stream: int, size: int, code: int) -> None:
        expect_stream(stream)
        if size != 4:
            raise frames.BrokenError(frames.FRAME_SIZE_ERROR, "expected an RST_STREAM of 4 bytes")
        call = self._calls.pop(stream, None)
        if call is None:
            self._expect_past(stream)
            return
        call.deadline = math.inf
        self._rest()
        if code == frames.REFUSED_STREAM and not call.answered:
            call.fail(RequestNotTaken(f"{self.where} refused the call"))
        else:
            call.fail(AnswerUnreadable(f"{self.where} reset the call (error {code} of HTTP/2)"))

    def _leave(self, last: int, code: int, why: bytes) -> None:
        if code:
            text = why.decode("utf-8", "replace")[:500]
            log("a model ends its connection", level="warning", model=self.where, code=code, error=text)
        self._is_left(last)

    # -- see `H2End` ---------------------------------------------------------------------------------------

    def _bodies(self) -> list[PieceSender]:
        return [call.sender for call in self._calls.values() if call.sender is not None]

    def _body_of(self, stream: int) -> PieceSender | None:
        call = self._calls.get(stream)
        return None if call is None else call.sender

    def _cut_stream(self, stream: int, code: int) -> None:
        self._unreadable(self._calls[stream], f"credit that cannot be (error {code} of HTTP/2)")

    def _expect_past(self, stream: int) -> None:
        if stream > self._number or not stream & 1:
            raise frames.BrokenError(
                frames.PROTOCOL_ERROR, f"expected a stream that was opened, found {stream}"
            )

    def _count_cheap(self) -> None:
        """See `H2End._count_cheap`: a model is not held to any number, but has to read what it asks for."""
        unread = self.transport.get_write_buffer_size() + self._out_bytes
        if unread > _MAX_UNREAD:
            why = f"expected at most {_MAX_UNREAD} bytes that it does not read, found {unread}"
            raise frames.BrokenError(frames.ENHANCE_YOUR_CALM, why)

    def _break(self, code: int, why: str) -> None:
        log("a model does not keep to HTTP/2", level="warning", model=self.where, error=why)
        self.send(frames.goaway(0, code, why))
        self._flush()
        self.fail(AnswerUnreadable(f"{self.where} does not keep to HTTP/2: {why}"))


def _length(fields: list[tuple[bytes, bytes]]) -> int | None:
    for name, value in fields:
        if name == b"content-length" and value.isdigit() and len(value) <= 18:
            return int(value)
    return None
