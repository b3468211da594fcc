"""The part of a hop that both ends share: one write per turn of the loop, frames are taken as they arrive.

A server pauses reading while its peer accepts nothing; a client never does, so that they cannot block each
other. A client's memory is bounded by the credit that it gives for each body.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock_wire.hop import frames
from penstock_wire.hop.bodies import BodySender, Outlet
from penstock_wire.http.memory import MemoryBound

_HEADER_BYTES: Final = frames.HEADER_BYTES
_MAX_PAYLOAD: Final = frames.MAX_PAYLOAD
_FLUSH_BYTES: Final = 256 * 1024
_UNBOUNDED: Final = MemoryBound()


class Link(Outlet):
    """One end of a connection.

    For the loop it is an `asyncio.Protocol` by its methods (see `connection_base.AnswerSide`).

    Args:
        loop: the running loop.
        transport: the connection.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.ended = False  # no further frame is read
        self.choked = False  # the peer accepts no bytes, or many wait to be sent
        self.memory: MemoryBound = _UNBOUNDED
        """Bounds the memory of all connections of the process."""
        self._loop = loop
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._scheduled = False  # `_flush` will be called
        self._paused = False
        self._blocked: dict[BodySender, None] = {}  # bodies that wait for the peer to accept bytes
        self._parts: list[bytes] = []  # of an incomplete frame
        self._held = 0  # bytes in them
        self._need = 0  # bytes in them before parsing is worthwhile
        self._frames = 0  # frames received

    # -- out ------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send at the end of this turn of the loop, after all earlier data."""
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes >= _FLUSH_BYTES:
            self.choked = True
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def block(self, sender: BodySender) -> None:
        """Call a body's `pump` when the peer accepts bytes again."""
        self._blocked[sender] = None

    def unblock(self, sender: BodySender) -> None:
        """Cancel `block` for a body that is not sent any further."""
        self._blocked.pop(sender, None)

    def _flush(self) -> None:
        self._scheduled = False
        out = self._out
        if out and not self.transport.is_closing():
            self.transport.write(out[0] if len(out) == 1 else b"".join(out))
        out.clear()
        self._out_bytes = 0
        self.choked = self._paused
        self._pump()

    def _pump(self) -> None:
        """Send a piece of each waiting body, as long as the peer accepts them."""
        while self._blocked and not self.choked:
            sender = next(iter(self._blocked))
            del self._blocked[sender]
            sender.pump()

    def pause_writing(self) -> None:
        self._paused = self.choked = True

    def resume_writing(self) -> None:
        self._paused = False
        self.choked = self._out_bytes >= _FLUSH_BYTES
        self._pump()

    # -- in -------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self.ended:
            return
        self.memory.came(len(data))
        if self._parts:
            self._parts.append(data)
            self._held += len(data)
            if self._held < self._need:
                return
            data = b"".join(self._parts)
            self._parts = []
        offset = 0
        size = len(data)
        need = _HEADER_BYTES
        while size - offset >= _HEADER_BYTES:
            # NB: compiled, this takes a tenth of the time of `HEADER.unpack_from`, which makes six objects.
            length = _number(data, offset)
            own = data[offset + 8] * 256 + data[offset + 9]
            if length > _MAX_PAYLOAD or own > length:
                self.broken(f"expected a frame of at most {_MAX_PAYLOAD} bytes, found {length}, {own} own")
                return
            start = offset + _HEADER_BYTES
            end = start + length
            if end > size:
                need = _HEADER_BYTES + length
                break
            self._frames += 1
            try:
                self.frame_received(
                    data[offset + 10],
                    data[offset + 11],
                    data[offset + 12] * 256 + data[offset + 13],
                    _number(data, offset + 4),
                    own,
                    data,
                    start,
                    end,
                )
            except ValueError as error:
                self.broken(str(error))
            if self.ended:
                return
            offset = end
        if offset < size:
            rest = data[offset:] if offset else data
            self._parts = [rest]
            self._held = len(rest)
            self._need = need
        else:
            self._held = 0

    def frame_received(
        self, kind: int, flags: int, slot: int, number: int, own: int, data: bytes, start: int, end: int
    ) -> None:
        """Take a frame.

        Args:
            kind: as in `frames`.
            flags: as in `frames`.
            slot: as in `frames`.
            number: number of its request.
            own: bytes of own fields in its payload.
            data: the bytes that hold its payload.
            start: start of the payload.
            end: end of the payload.

        Raises:
            ValueError: the peer violates the protocol: the connection ends.
        """
        raise NotImplementedError

    def broken(self, why: str) -> None:
        """End the connection because the peer violates the protocol."""
        raise NotImplementedError


def _number(data: bytes, at: int) -> int:
    """Read the four-byte number at an offset."""
    return ((data[at] * 256 + data[at + 1]) * 256 + data[at + 2]) * 256 + data[at + 3]
