"""Bodies that cross the hop piece by piece: sent as credit arrives, read as they arrive.

A body's reader gives credit for the bytes that it has read. So at most `frames.WINDOW` bytes of one body are
on the way or unread, and a slow reader does not hold up other bodies.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable
from typing import Final

from penstock_wire.hop import frames
from penstock_wire.http import ClientGone
from penstock_wire.http.body import next_piece

_PIECE: Final = frames.PIECE_BYTES
_WINDOW: Final = frames.WINDOW
_pack = frames.HEADER.pack


class Outlet:
    """The connection as bodies see it: `link.Link`.

    A base class, not a Protocol, like `http.client.answer.Carrier`. It is never instantiated.

    Attributes:
        choked: the peer accepts no bytes, or many wait to be sent.
    """

    choked: bool

    def send(self, data: bytes) -> None:
        """Send at the end of this turn of the loop."""
        raise NotImplementedError

    def block(self, sender: BodySender) -> None:
        """Call a body's `pump` when the peer accepts bytes again."""
        raise NotImplementedError

    def unblock(self, sender: BodySender) -> None:
        """Cancel `block` for a body that is not sent any further."""
        raise NotImplementedError


class BodySender:
    """An outgoing body.

    Args:
        outlet: the connection.
        number: number of its request.
        over: called when the end of the body was sent.
    """

    __slots__ = (
        "_credit",
        "_finished",
        "_offset",
        "_outlet",
        "_over",
        "_pieces",
        "_waiter",
        "credits",
        "number",
    )

    def __init__(self, outlet: Outlet, number: int, over: Callable[[], object]) -> None:
        self.number = number
        self.credits = 0
        """How often the peer gave credit."""
        self._outlet = outlet
        self._over: Callable[[], object] | None = over
        self._credit = _WINDOW
        self._pieces: collections.deque[bytes] = collections.deque()
        self._offset = 0  # bytes of the first piece that were sent
        self._finished = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_stuck(self) -> bool:
        """Whether bytes wait and the peer has given no credit for them."""
        return bool(self._pieces) and self._credit <= 0

    @property
    def stopped(self) -> bool:
        """Whether sending has ended."""
        return self._over is None

    def kept(self) -> int:
        """Return the bytes that are not sent yet."""
        return sum(map(len, self._pieces)) - self._offset

    def feed(self, piece: bytes) -> bool:
        """Send a piece; return False if some of it must wait for the peer."""
        if piece and self._over is not None:
            self._pieces.append(piece)
            self.pump()
        return not self._pieces

    def finish(self, piece: bytes = b"") -> None:
        """End the body, after a last piece."""
        if piece and self._over is not None:
            self._pieces.append(piece)
        self._finished = True
        self.pump()

    def add(self, size: int) -> None:
        """Add credit that the peer has given.

        Raises:
            ValueError: the credit exceeds the window.
        """
        self._credit += size
        self.credits += 1
        if self._credit > _WINDOW:
            raise ValueError(f"expected credit of at most {_WINDOW} bytes, found {self._credit}")
        self.pump()

    def stop(self) -> None:
        """Stop sending; bytes not yet sent are dropped."""
        self._over = None
        self._pieces.clear()
        self._outlet.unblock(self)
        self._wake()

    def pump(self) -> None:
        """Send as much as credit and connection allow."""
        outlet = self._outlet
        pieces = self._pieces
        over = self._over
        if over is None:
            return
        while pieces:
            if self._credit <= 0:
                return
            if outlet.choked:
                outlet.block(self)
                return
            piece = pieces[0]
            offset = self._offset
            left = len(piece) - offset
            size = min(left, _PIECE, self._credit)
            self._credit -= size
            if size == left:
                pieces.popleft()
                self._offset = 0
            else:
                self._offset = offset + size
            last = self._finished and not pieces
            outlet.send(_pack(size, self.number, 0, frames.BODY, frames.END if last else 0, 0))
            outlet.send(piece if size == len(piece) else piece[offset : offset + size])
            if last:
                self.stop()
                over()
                return
        if self._finished:
            outlet.send(_pack(0, self.number, 0, frames.BODY, frames.END, 0))
            self.stop()
            over()
        else:
            self._wake()

    async def drained(self) -> None:
        """Wait until everything fed is sent, or sending has stopped."""
        while self._pieces:
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
    """

    __slots__ = ("_due", "_left", "_number", "_outlet")

    def __init__(self, outlet: Outlet, number: int) -> None:
        self._outlet = outlet
        self._number = number
        self._left = _WINDOW
        self._due = 0

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
        if self._due >= _WINDOW // 4:
            self._left += self._due
            self._outlet.send(frames.credit(self._number, self._due))
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
