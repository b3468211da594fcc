"""Bodies that cross a connection piece by piece: sent as credit arrives, read as they arrive.

A body's reader gives credit for the bytes that it has read. So a bounded number of bytes of one body are on
the way or unread, and a slow reader does not hold up other bodies.
"""

from __future__ import annotations

import asyncio
import collections

from penstock_wire.framing.connection import Framed, Waiting
from penstock_wire.http import ClientGone
from penstock_wire.http.body import next_piece


class PieceSender(Waiting):
    """An outgoing body.

    Args:
        outlet: the connection.
        number: number of its request.
        window: bytes that the peer accepts.
        piece_bytes: most bytes of a frame.
        largest_window: most bytes that the peer can accept.
    """

    __slots__ = (
        "_finished",
        "_largest_window",
        "_last",
        "_offset",
        "_out",
        "_piece_bytes",
        "_waiter",
        "credits",
        "number",
        "outlet",
        "stopped",
        "window",
    )

    def __init__(
        self, outlet: Framed, number: int, window: int, piece_bytes: int, largest_window: int
    ) -> None:
        self.outlet = outlet
        self.number = number
        self.window = window
        self.credits = 0  # how often the peer gave credit, or took bytes
        self.stopped = False  # nothing more is sent
        self._piece_bytes = piece_bytes
        self._largest_window = largest_window
        self._out: collections.deque[bytes] | None = None
        self._offset = 0  # bytes of the first piece that were sent
        self._finished = False
        self._last = b""
        self._waiter: asyncio.Future[None] | None = None

    def frame(self, size: int, *, ended: bool) -> bytes:
        """Render the header of a frame with `size` bytes of the body."""
        raise NotImplementedError

    def over(self) -> None:
        """Take note that all was sent."""
        raise NotImplementedError

    @property
    def is_stuck(self) -> bool:
        """Whether bytes wait and the peer has given no credit for them."""
        return bool(self._out) and (self.window <= 0 or self.outlet.window <= 0)

    def unsent(self) -> int:
        """Return the bytes that are not sent yet."""
        return sum(map(len, self._out)) - self._offset if self._out else 0

    def feed(self, piece: bytes) -> bool:
        """Send a piece; return False if some of it must wait for the peer."""
        if piece and not self.stopped:
            self._put(piece)
            self.pump()
        return not self._out

    def finish(self, piece: bytes = b"", last: bytes = b"") -> None:
        """End the body.

        Args:
            piece: its last piece.
            last: frames that end it; a frame of the body does if empty.
        """
        if piece and not self.stopped:
            self._put(piece)
        self._finished = True
        self._last = last
        self.pump()

    def _put(self, piece: bytes) -> None:
        if self._out is None:
            self._out = collections.deque()
        self._out.append(piece)

    def add(self, size: int) -> None:
        """Add credit that the peer has given.

        Raises:
            ValueError: the credit exceeds the largest window.
        """
        self.window += size
        self.credits += 1
        if self.window > self._largest_window:
            raise ValueError(f"expected credit of at most {self._largest_window} bytes, found {self.window}")
        self.pump()

    def stop(self) -> None:
        """Stop sending; bytes not yet sent are dropped."""
        self.stopped = True
        self._offset = 0
        if self._out:
            self._out.clear()
        self.outlet.unblock(self)
        self._wake()

    def pump(self) -> None:
        outlet, out = self.outlet, self._out
        if self.stopped:
            return
        while out:
            if self.window <= 0:
                return
            if outlet.choked or outlet.window <= 0:
                outlet.block(self)
                return
            self.credits += 1
            piece, offset = out[0], self._offset
            left = len(piece) - offset
            size = min(left, self._piece_bytes, self.window, outlet.window)
            self.window -= size
            outlet.window -= size
            if size == left:
                out.popleft()
                self._offset = 0
            else:
                self._offset = offset + size
            ended = self._finished and not out and not self._last
            outlet.send(self.frame(size, ended=ended))
            outlet.send(piece if size == len(piece) else piece[offset : offset + size])
            if ended:
                self._sent()
                return
        if self._finished:
            outlet.send(self._last or self.frame(0, ended=True))
            self._sent()
        else:
            self._wake()

    def _sent(self) -> None:
        self.stopped = True
        self.over()
        self.stop()

    async def drained(self) -> None:
        """Wait until everything fed is sent, or sending has stopped."""
        while self._out:
            if self._waiter is None or self._waiter.done():
                self._waiter = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._waiter)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Allowance:
    """Credit for a body that the peer sends.

    Args:
        outlet: the connection.
        number: number of its request.
        window: most bytes that are on the way or unread.
    """

    __slots__ = ("_due", "_left", "_outlet", "_window", "number")

    def __init__(self, outlet: Framed, number: int, window: int) -> None:
        self.number = number
        self._outlet = outlet
        self._window = window
        self._left = window
        self._due = 0

    def credit(self, size: int) -> bytes:
        """Render a frame that gives credit."""
        raise NotImplementedError

    def take(self, size: int) -> None:
        """Count received bytes against the credit.

        Raises:
            ValueError: they exceed the credit.
        """
        self._left -= size
        if self._left < 0:
            raise ValueError(f"expected no more of a body than there was credit for, found {-self._left}")

    def give(self, size: int) -> None:
        """Give credit for bytes that were read, at least a quarter of the window at a time."""
        self._due += size
        if self._due >= self._window // 4:
            self._left += self._due
            self._outlet.send(self.credit(self._due))
            self._due = 0


class BodyReceiver:
    """A request's body that is read as it arrives; a `BodyReader`.

    Args:
        allowance: gives credit for what is read.
    """

    __slots__ = ("_allowance", "_ended", "_error", "_pieces", "_waiter")

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._pieces: collections.deque[bytes] = collections.deque()
        self._ended = False
        self._error = ""
        self._waiter: asyncio.Future[None] | None = None

    async def read(self) -> bytes:
        while not self._pieces:
            if self._error:
                raise ClientGone(self._error)
            if self._ended:
                return b""
            if self._waiter is not None:
                raise RuntimeError("expected one reader at a time")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        piece = next_piece(self._pieces)
        if not self._ended and not self._error:
            self._allowance.give(len(piece))
        return piece

    def kept(self) -> int:
        """Return the bytes that are not read yet."""
        return sum(map(len, self._pieces))

    @property
    def waited_for(self) -> bool:
        """Whether a reader waits for the next piece."""
        return self._waiter is not None

    def feed(self, piece: bytes) -> None:
        """Add a piece that arrived."""
        if piece and not self._error:
            self._pieces.append(piece)
            self._wake()

    def finish(self) -> None:
        """Mark the end of the body."""
        self._ended = True
        self._wake()

    def fail(self, why: str) -> None:
        """Mark that the body ended early; unread pieces are dropped."""
        if not self._ended and not self._error:
            self._error = why
            self._pieces.clear()
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
