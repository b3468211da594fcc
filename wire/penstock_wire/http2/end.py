"""Both ends of an HTTP/2 connection: frames are taken apart, header blocks put together, windows kept.

Source: RFC 9113.
"""

from __future__ import annotations

from typing import Final

from penstock_wire._mypyc import trait
from penstock_wire.framing.bodies import PieceSender
from penstock_wire.http2 import frames

_CONTINUATIONS: Final = 64
CREDIT_BYTES: Final = 256 * 1024
"""Bytes that are received before credit is given for them."""


@trait
class H2End:
    """One end of a connection, beside its base, a `Framed`."""

    ended: bool
    window: int
    max_frame: int
    _begun: bool  # the peer's first SETTINGS have come
    _block_of: int  # the stream of an incomplete header block
    _block: list[bytes]
    _block_bytes: int
    _block_ends: bool  # its stream ends with it
    _max_head_bytes: int
    _stream_window: int  # of each body sent, by the peer's settings
    _most_streams: int  # that the peer takes
    _granted: int  # bytes of bodies that the peer has taken, or takes, in all
    _receives: int  # bytes of bodies that the peer may send
    _due: int

    def _begin_end(self, max_head_bytes: int) -> None:
        self.window = self._granted = frames.USUAL_WINDOW
        self.max_frame = frames.USUAL_FRAME_BYTES
        self._begun = False
        self._block_of = 0
        self._block = []
        self._block_bytes = 0
        self._block_ends = False
        self._max_head_bytes = max_head_bytes
        self._stream_window = frames.USUAL_WINDOW
        self._most_streams = frames.MAX_STREAMS
        self._receives = frames.CONNECTION_WINDOW
        self._due = 0

    # -- what each end does in its way ----------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """See `Framed.send`."""
        raise NotImplementedError

    def _pump(self) -> None:
        raise NotImplementedError

    def _head(self, stream: int, block: bytes) -> None:
        """Take a complete header block: a head, or trailers."""
        raise NotImplementedError

    def _data(self, flags: int, stream: int, data: bytes, start: int, end: int) -> None:
        """Take a piece of a body."""
        raise NotImplementedError

    def _reset(self, stream: int, size: int, code: int) -> None:
        """Take an RST_STREAM with a payload of `size` bytes."""
        raise NotImplementedError

    def _leave(self, last: int, code: int, why: bytes) -> None:
        """Take a GOAWAY."""
        raise NotImplementedError

    def _bodies(self) -> list[PieceSender]:
        """The bodies that are sent here."""
        raise NotImplementedError

    def _body_of(self, stream: int) -> PieceSender | None:
        """The body that is sent on a stream."""
        raise NotImplementedError

    def _cut_stream(self, stream: int, code: int) -> None:
        """Reset a stream because of a fault of the peer."""
        raise NotImplementedError

    def _expect_past(self, stream: int) -> None:
        """Refuse a stream that was never opened (section 5.1)."""
        raise NotImplementedError

    def _count_cheap(self) -> None:
        """Count a frame that is no part of a request."""
        raise NotImplementedError

    def _break(self, code: int, why: str) -> None:
        """End the connection because the peer violates the protocol."""
        raise NotImplementedError

    # -- frames in ------------------------------------------------------------------------------------------

    def _take_h2_frame(self, data: bytes, offset: int, size: int) -> int:
        """See `Framed._take_frame`."""
        length = (data[offset] * 256 + data[offset + 1]) * 256 + data[offset + 2]
        start = offset + frames.HEADER_BYTES
        end = start + length
        try:
            if length > frames.USUAL_FRAME_BYTES:
                raise frames.BrokenError(
                    frames.FRAME_SIZE_ERROR,
                    f"expected a frame of at most {frames.USUAL_FRAME_BYTES} bytes, found {length}",
                )
            if end <= size:
                self._frame(data[offset + 3], data[offset + 4], number(data, offset + 5), data, start, end)
        except frames.BrokenError as error:
            self._break(error.code, str(error))
        return end

    def _frame(self, kind: int, flags: int, stream: int, data: bytes, start: int, end: int) -> None:
        if not self._begun:
            if kind != frames.SETTINGS or flags & frames.ACK:
                raise frames.BrokenError(frames.PROTOCOL_ERROR, "expected settings behind the preface")
            self._begun = True
        if self._block_of and (kind != frames.CONTINUATION or stream != self._block_of):
            raise frames.BrokenError(frames.PROTOCOL_ERROR, "expected the rest of a header block")
        if kind == frames.DATA:
            self._data(flags, stream, data, start, end)
        elif kind == frames.HEADERS:
            self._headers(flags, stream, data, start, end)
        elif kind == frames.CONTINUATION:
            if not self._block_of:
                raise frames.BrokenError(
                    frames.PROTOCOL_ERROR, "expected a header block before its continuation"
                )
            self._more_of_block(flags, data[start:end])
        elif kind == frames.WINDOW_UPDATE:
            self._credit(stream, data, start, end)
        elif kind == frames.RST_STREAM:
            self._reset(stream, end - start, number(data, start) if end - start == 4 else 0)
        else:
            self._control(kind, flags, stream, data[start:end])

    def _control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        self._count_cheap()
        if kind == frames.PRIORITY:
            expect_stream(stream)
            if len(payload) != 5:
                raise frames.BrokenError(frames.FRAME_SIZE_ERROR, "expected a PRIORITY of 5 bytes")
            if number(payload, 0) == stream:
                raise frames.BrokenError(frames.PROTOCOL_ERROR, "expected a stream that depends on another")
            return
        if kind == frames.PUSH_PROMISE:
            raise frames.BrokenError(frames.PROTOCOL_ERROR, "expected no PUSH_PROMISE")
        if kind not in (frames.SETTINGS, frames.PING, frames.GOAWAY):
            return  # RFC 9113 section 5.5
        if stream:
            raise frames.BrokenError(frames.PROTOCOL_ERROR, f"expected stream 0, found {stream}")
        if kind == frames.PING:
            if len(payload) != 8:
                raise frames.BrokenError(frames.FRAME_SIZE_ERROR, "expected a PING of 8 bytes")
            if not flags & frames.ACK:
                self.send(frames.header(8, frames.PING, frames.ACK, 0) + payload)
        elif kind == frames.SETTINGS:
            if flags & frames.ACK:
                if payload:
                    raise frames.BrokenError(frames.FRAME_SIZE_ERROR, "expected no settings in an ACK")
                return
            self._settings(payload)
            self.send(frames.header(0, frames.SETTINGS, frames.ACK, 0))
        elif len(payload) < 8:
            raise frames.BrokenError(frames.FRAME_SIZE_ERROR, "expected a GOAWAY of 8 bytes at least")
        else:
            self._leave(number(payload, 0), number(payload, 4), payload[8:])

    def _settings(self, payload: bytes) -> None:
        window = before = self._stream_window
        for setting, value in frames.read_settings(payload):
            if setting == frames.MAX_FRAME_SIZE:
                self.max_frame = value
            elif setting == frames.INITIAL_WINDOW_SIZE:
                window = value
            elif setting == frames.MAX_CONCURRENT_STREAMS:
                self._most_streams = value
        self._stream_window = window
        if window == before:
            return
        for body in self._bodies():
            body.window += window - before
            if body.window > frames.LARGEST_WINDOW:
                raise frames.BrokenError(frames.FLOW_CONTROL_ERROR, "expected windows below 2^31")
            body.pump()

    def _credit(self, stream: int, data: bytes, start: int, end: int) -> None:
        if end - start != 4:
            raise frames.BrokenError(frames.FRAME_SIZE_ERROR, "expected a WINDOW_UPDATE of 4 bytes")
        size = number(data, start)
        if not stream:
            if not size:
                raise frames.BrokenError(frames.PROTOCOL_ERROR, "expected a WINDOW_UPDATE above 0")
            self.window += size
            self._granted += size
            if self.window > frames.LARGEST_WINDOW:
                raise frames.BrokenError(frames.FLOW_CONTROL_ERROR, "expected a window below 2^31")
            self._pump()
            return
        body = self._body_of(stream)
        if body is None:
            self._count_cheap()
            self._expect_past(stream)
        elif not size:
            self._cut_stream(stream, frames.PROTOCOL_ERROR)
        elif body.window + size > frames.LARGEST_WINDOW:
            self._cut_stream(stream, frames.FLOW_CONTROL_ERROR)
        else:
            body.add(size)

    def _headers(self, flags: int, stream: int, data: bytes, start: int, end: int) -> None:
        expect_stream(stream)
        if flags & frames.PADDED:
            start, end = unpadded(data, start, end)
        if flags & frames.PRIORITIZED:
            if end - start < 5:
                raise frames.BrokenError(frames.FRAME_SIZE_ERROR, "expected a priority of 5 bytes")
            if number(data, start) == stream:
                raise frames.BrokenError(frames.PROTOCOL_ERROR, "expected a stream that depends on another")
            start += 5
        self._block_ends = bool(flags & frames.END_STREAM)
        block = data[start:end]
        if flags & frames.END_HEADERS:
            self._head(stream, block)
        else:
            self._block_of, self._block, self._block_bytes = stream, [block], len(block)

    def _more_of_block(self, flags: int, piece: bytes) -> None:
        self._block.append(piece)
        self._block_bytes += len(piece)
        if self._block_bytes > self._max_head_bytes or len(self._block) > _CONTINUATIONS:
            raise frames.BrokenError(
                frames.ENHANCE_YOUR_CALM,
                f"expected a head of at most {self._max_head_bytes} bytes in {_CONTINUATIONS} frames",
            )
        if flags & frames.END_HEADERS:
            stream, self._block_of = self._block_of, 0
            block, self._block = b"".join(self._block), []
            self._head(stream, block)

    def _receive(self, size: int) -> None:
        """Count the payload of a DATA frame against the connection's window, and give credit for it."""
        self._receives -= size
        if self._receives < 0:
            raise frames.BrokenError(
                frames.FLOW_CONTROL_ERROR, "expected no more bytes than the connection's window"
            )
        self._due += size
        if self._due >= CREDIT_BYTES:
            self._receives += self._due
            self.send(frames.window_update(0, self._due))
            self._due = 0


def number(data: bytes, at: int) -> int:
    """Read a 31-bit number at an offset."""
    return (((data[at] & 127) * 256 + data[at + 1]) * 256 + data[at + 2]) * 256 + data[at + 3]


def expect_stream(stream: int) -> None:
    """Refuse a frame of the connection where one of a stream is expected."""
    if not stream:
        raise frames.BrokenError(frames.PROTOCOL_ERROR, "expected a stream above 0")


def unpadded(data: bytes, start: int, end: int) -> tuple[int, int]:
    """Return the bounds of a payload without its padding (RFC 9113 section 6.1)."""
    if end == start or data[start] >= end - start:
        raise frames.BrokenError(frames.PROTOCOL_ERROR, "expected less padding than the frame has bytes")
    return start + 1, end - data[start]
