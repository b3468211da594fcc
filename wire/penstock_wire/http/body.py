"""Readers: a body read piece by piece, and a connection that has switched protocols."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

JOINED_BYTES = 16 * 1024
"""Pieces that wait are read together up to so many bytes."""


class BodyReader(Protocol):
    """A body that is received as it is read."""

    async def read(self) -> bytes:
        """Return the next piece, of any size but 0; b"" at the end.

        Raises:
            ClientGone: a request's body ended early.
            UpstreamError: an answer's body ended early or came too late.
        """
        ...


class Tunnel(Protocol):
    """A connection that has switched to a protocol that only its two sides understand."""

    async def read(self) -> bytes:
        """Return the next bytes, of any number but 0; b"" when the peer will send no more."""
        ...

    async def write(self, data: bytes) -> None:
        """Send, and wait while the peer accepts nothing.

        Raises:
            ClientGone, ConnectionLost: the peer is gone.
        """
        ...

    def end(self) -> None:
        """Send no more; what the peer sends is still read."""
        ...

    def abort(self) -> None:
        """Close now."""
        ...


def next_piece(pieces: deque[bytes]) -> bytes:
    """Take the next piece of those that wait, joined with those behind it if they are small.

    A peer chooses how small its chunks are, and what is under way in chunks of a byte is several hundred
    thousand of them: passed on one by one, they would keep the event loop busy for seconds.

    Args:
        pieces: the pieces that wait, at least one.
    """
    piece = pieces.popleft()
    room = JOINED_BYTES - len(piece)
    if not pieces or len(pieces[0]) > room:
        return piece
    taken = [piece]
    while pieces and len(pieces[0]) <= room:
        piece = pieces.popleft()
        room -= len(piece)
        taken.append(piece)
    return b"".join(taken)


class BodyTooLong(Exception):
    """A body exceeds its limit."""


async def read_whole(
    body: BodyReader, limit: int, *, received: Callable[[int], object] = lambda _: None
) -> bytes:
    """Read a body to its end.

    Args:
        body: what to read.
        limit: most bytes of it.
        received: called after each piece with the bytes so far; can raise to stop.

    Raises:
        BodyTooLong: it is longer; reading stopped at the piece that exceeded `limit`.
        ClientGone, UpstreamError: as `BodyReader.read`.
    """
    pieces = []
    size = 0
    while piece := await body.read():
        pieces.append(piece)
        size += len(piece)
        received(size)
        if size > limit:
            raise BodyTooLong(f"expected at most {limit} bytes")
    return b"".join(pieces)
