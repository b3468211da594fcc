"""A connection of frames: one write per turn of the loop, and frames are taken as they arrive."""

from __future__ import annotations

import asyncio
from typing import Final

from penstock_wire.http.memory import MemoryBound

_FLUSH_BYTES: Final = 256 * 1024
_UNBOUNDED: Final = MemoryBound()
NO_WINDOW: Final = 1 << 62


class Waiting:
    """A body that is sent piece by piece. It is never instantiated."""

    __slots__ = ()

    def pump(self) -> None:
        """Send as much as credit and connection allow."""
        raise NotImplementedError


class Framed:
    """One end of a connection. For the loop it is an `asyncio.Protocol` by its methods (see `H1Connection`).

    Args:
        loop: the running loop.
        transport: the connection.
        header_bytes: bytes of a frame's header.

    Attributes:
        choked: the peer accepts no bytes, or many wait to be sent.
        ended: no further frame is read.
        memory: bounds the memory of all connections of the process.
        window: bytes of bodies that the peer accepts on the connection.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, header_bytes: int
    ) -> None:
        self.transport = transport
        self.choked = False
        self.ended = False
        self.memory: MemoryBound = _UNBOUNDED
        self.window = NO_WINDOW
        self._loop = loop
        self._header_bytes = header_bytes
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._scheduled = False  # `_flush` will be called
        self._paused = False
        self._blocked: dict[Waiting, None] = {}  # bodies that wait for the peer to accept bytes
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

    def block(self, body: Waiting) -> None:
        """Call a body's `pump` when the peer accepts bytes again."""
        self._blocked[body] = None

    def unblock(self, body: Waiting) -> None:
        """Cancel `block` for a body that is not sent any further."""
        self._blocked.pop(body, None)

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
        while self._blocked and not self.choked and self.window > 0:
            body = next(iter(self._blocked))
            del self._blocked[body]
            body.pump()

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
        need = least = self._header_bytes
        while size - offset >= least:
            end = self._take_frame(data, offset, size)
            if self.ended:
                return
            if end > size:
                need = end - offset
                break
            self._frames += 1
            offset = end
        self._held = size - offset
        if offset < size:
            self._parts = [data[offset:] if offset else data]
            self._need = need

    def _take_frame(self, data: bytes, offset: int, size: int) -> int:
        """Take a frame if it is complete; end the connection if the peer violates the protocol.

        Args:
            data: what has come.
            offset: where the frame begins; its header is complete.
            size: bytes of `data`.

        Returns:
            Where it ends.
        """
        raise NotImplementedError
