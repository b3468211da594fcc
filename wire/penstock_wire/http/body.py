"""What is read piece by piece: a body, and a connection whose two sides have switched protocols."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class BodyReader(Protocol):
    """A body that is received as it is read."""

    async def read(self) -> bytes:
        """The next piece, of any size but 0; b"" at the end.

        Raises:
            ClientGone: a request's body ended early.
            UpstreamError: an answer's body ended early or came too late.
        """
        ...


class Tunnel(Protocol):
    """A connection whose two sides have switched to a protocol that is theirs alone."""

    async def read(self) -> bytes:
        """The next bytes, of any number but 0; b"" when the peer will send no more."""
        ...

    async def write(self, data: bytes) -> None:
        """Send, and wait while the peer takes nothing.

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


class BodyTooLong(Exception):
    """A body has more bytes than may be taken."""


async def read_whole(
    body: BodyReader, limit: int, *, received: Callable[[int], object] = lambda _: None
) -> bytes:
    """Read a body to its end.

    Args:
        body: what to read.
        limit: bytes of it at most.
        received: called after each piece with the bytes so far; may raise to stop.

    Raises:
        BodyTooLong: it is longer, hardly more than `limit` was read.
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
