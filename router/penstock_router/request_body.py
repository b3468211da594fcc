"""A request's body on its way to a pod: whole where it is short, else piece by piece.

What is short is here whole before a pod is asked, and may be sent any number of times. A longer body, or
one of unknown length, goes to the pod as it comes; its beginning is kept, so that the request can be sent to
another pod as long as no more than that was taken from the client. While no pod reads a body, hardly more of
it is taken than that, and a client that asks first (`Expect: 100-continue`) gets no answer to it.

The router asks each pod first, in the same way: where it refuses a request for what its head says (a full
queue, a drain), none of the body has been sent, and another pod may get it, however long it is.
"""

from __future__ import annotations

import asyncio
import contextlib

from penstock_wire.http import BodyReader, ClientGone
from penstock_wire.http.server.streams import Inbound

WHOLE_BYTES = 1024 * 1024
"""A body that is said to have so many bytes or fewer is taken whole, as most items of batches are: a sidecar
that has no room for it can refuse it, and it waits for room."""
KEPT_BYTES = 64 * 1024
"""Of a stream, kept for another try."""
GO_ON_SECONDS = 1.0
"""A pod that says nothing to `Expect: 100-continue` for longer gets the body (RFC 9110 section 10.1.1)."""


class _Kept:
    """What is kept of a body.

    NB: it is an object of its own, since the body's source holds it, and the body holds its source.
    """

    __slots__ = ("last", "pieces")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.last = 0  # bytes of the last piece, which is on its way, where it is not among these

    def kept(self) -> int:
        """See `streams.Beyond`."""
        return self.last + sum(map(len, self.pieces))


class RequestBody:
    """The body of a request that is a stream.

    Args:
        source: what the client sends.
        most: bytes that may come; None for any number.
    """

    __slots__ = ("_kept", "_last", "_most", "_source", "received", "too_long")

    def __init__(self, source: BodyReader, most: int | None) -> None:
        self._source = source
        self._most = most
        self._kept = _Kept()
        if isinstance(source, Inbound):
            source.beyond = self._kept
        self._last: TryBody | None = None
        self.received = 0
        """Bytes that were taken from the client."""
        self.too_long = False
        """More came than may."""

    @property
    def resendable(self) -> bool:
        """Whether all that was taken is kept."""
        return self.received <= KEPT_BYTES

    def begin(self) -> TryBody:
        """The body for a try: what is kept, then what comes. The try before reads no more."""
        self._last = body = TryBody(self)
        return body

    def go_on(self) -> None:
        """The pod of the last try wants the body."""
        if self._last is not None:
            self._last.wanted.set()

    async def piece(self, place: int) -> bytes:
        """The piece at a place, which is kept or the next one.

        Args:
            place: how many were read before it.

        Raises:
            ClientGone: it ended early, or is too long.
        """
        kept = self._kept
        if place < len(kept.pieces):
            return kept.pieces[place]
        piece = await self._source.read()
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
        body: whose.
    """

    __slots__ = ("_body", "_place", "wanted")

    def __init__(self, body: RequestBody) -> None:
        self._body = body
        self._place = 0
        self.wanted = asyncio.Event()

    async def read(self) -> bytes:
        """See `BodyReader.read`."""
        if not self.wanted.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GO_ON_SECONDS):
                    await self.wanted.wait()
            self.wanted.set()
        piece = await self._body.piece(self._place)
        self._place += 1
        return piece
