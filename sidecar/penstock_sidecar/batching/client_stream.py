"""One client's stream: a buffer between the model and the client's connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock_wire.errors import PenstockError, Reason

MAX_BUFFER = 2**20
"""Maximum bytes that a client may leave unread."""


def too_slow() -> PenstockError:
    """Make the error of a client that is disconnected because it has left too much unread."""
    return PenstockError(Reason.SLOW_READER, f"the client left more than {MAX_BUFFER} bytes unread")


class ClientStream:
    """The stream that one client reads (an `AsyncIterator[bytes]`)."""

    def __init__(self, left: Callable[[], None]) -> None:
        self._left = left
        self._unread = bytearray()
        self._ended = False
        self._failure: PenstockError | None = None
        self._news = asyncio.Event()

    def put(self, data: bytes) -> bool:
        """Add data from the model; False if that is more than a client may leave unread."""
        if self._unread and len(self._unread) + len(data) > MAX_BUFFER:
            return False
        self._unread += data
        self._news.set()
        return True

    def end(self) -> None:
        """Mark it as complete."""
        self._ended = True
        self._news.set()

    def cut(self, failure: PenstockError) -> None:
        """End it so that no client takes it for complete; a slow reader's buffer is dropped."""
        if failure.reason is Reason.SLOW_READER:
            self._unread.clear()
        self._failure = failure
        self._news.set()

    def __aiter__(self) -> ClientStream:
        return self

    async def __anext__(self) -> bytes:
        while not self._unread:
            if self._failure is not None:
                raise self._failure
            if self._ended:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        data = bytes(self._unread)
        self._unread.clear()
        return data

    async def aclose(self) -> None:
        """Note that the client went away, or has all."""
        self._left()
