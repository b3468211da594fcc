"""Sends a request's body to a pod: whole if it is short, else piece by piece.

A short body is received whole before a pod is asked, and can be sent any number of times. A longer body, or
one of unknown length, goes to the pod as it arrives; its beginning is kept, so the request can be sent to
another pod as long as no more than that was read from the client. While no pod reads a body, hardly more of
it is received than that, until it stands still (`H1Front._read_on`), and a client that asks first
(`Expect: 100-continue`) gets no answer to that.

The router asks each pod first, in the same way: if the pod refuses the request by its head alone (a full
queue, a drain), none of the body has been sent, and another pod can get it, however long it is.
"""

from __future__ import annotations

import asyncio
import contextlib

from penstock_wire.http import BodyReader, ClientGone
from penstock_wire.http.server.streams import Inbound

WHOLE_BYTES = 1024 * 1024
"""A body with a declared length of at most so many bytes is read whole, as most items of batches are: a
sidecar without room can refuse the request, which then waits for room."""
KEPT_BYTES = 64 * 1024
"""Bytes of a stream that are kept for another try."""
GO_ON_SECONDS = 1.0
"""How long to wait for a pod's answer to `Expect: 100-continue` (RFC 9110 section 10.1.1); then it gets the
body."""


class _Kept:
    """The pieces of a body that are kept.

    NB: a separate object avoids a cycle: the body's source refers to it, and the body to its source.
    """

    __slots__ = ("last", "pieces")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.last = 0  # bytes of the piece that is being sent, if it is not in `pieces`

    def kept(self) -> int:
        return self.last + sum(map(len, self.pieces))


class RequestBody:
    """The body of a request that is a stream.

    Args:
        source: reads from the client.
        most: the most bytes that are allowed; None for any number.
    """

    __slots__ = ("_awaited", "_kept", "_last", "_most", "_since", "_source", "received", "too_long")

    def __init__(self, source: BodyReader, most: int | None) -> None:
        self._source = source
        self._most = most
        self._kept = _Kept()
        if isinstance(source, Inbound):
            source.beyond = self._kept
        self._last: TryBody | None = None
        self._awaited = 0.0
        self._since: float | None = None  # when the wait for the next piece began
        self.received = 0
        """Bytes that were read from the client."""
        self.too_long = False
        """Whether more than `most` bytes arrived."""

    def awaited(self, now: float) -> float:
        """How long the router has waited for its client to send it, in seconds."""
        return self._awaited if self._since is None else self._awaited + now - self._since

    @property
    def resendable(self) -> bool:
        """Whether all bytes that were read are kept."""
        return self.received <= KEPT_BYTES

    def begin(self) -> TryBody:
        """Make the body for a try: the kept pieces, then new ones. The former try must not read any more."""
        self._last = body = TryBody(self)
        return body

    def go_on(self) -> None:
        """Start sending the body: the pod of the last try wants it."""
        if self._last is not None:
            self._last.wanted.set()

    async def piece(self, place: int) -> bytes:
        """Return the piece at a place: a kept one, or the next from the client.

        Args:
            place: the number of pieces before it.

        Raises:
            ClientGone: the body ended early, or is too long.
        """
        kept = self._kept
        if place < len(kept.pieces):
            return kept.pieces[place]
        clock = asyncio.get_running_loop().time
        self._since = clock()
        try:
            piece = await self._source.read()
        finally:
            self._awaited = self.awaited(clock())
            self._since = None
        self.received += len(piece)
        if self._most is not None and self.received > self._most:
            self.too_long = True
            raise ClientGone(f"expected a body of at most {self._most} bytes, found a longer one")
        if self.resendable:
            kept.pieces.append(piece)
        else:
            kept.pieces.clear()
            kept.last = len(piece)
        return piece


class TryBody:
    """The body as one try reads it; a `BodyReader`.

    Args:
        body: the request's body.
    """

    __slots__ = ("_body", "_place", "wanted")

    def __init__(self, body: RequestBody) -> None:
        self._body = body
        self._place = 0
        self.wanted = asyncio.Event()

    async def read(self) -> bytes:
        if not self.wanted.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GO_ON_SECONDS):
                    await self.wanted.wait()
            self.wanted.set()
        piece = await self._body.piece(self._place)
        self._place += 1
        return piece
