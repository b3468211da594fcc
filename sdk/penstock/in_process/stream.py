"""The stream of one caller of a batched generator, independent of the batch's other callers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from penstock.errors import SlowReader

MAX_UNREAD = 65_536
"""The most pieces that a caller can leave unread; beyond it, its stream ends, and the others go on."""

R = TypeVar("R")


class Pieces:
    """The pieces of one stream between the batch and its reader.

    `begun`: the first piece has come; `ended`: no more will come; `error`: the cause, if the stream failed.
    """

    __slots__ = ("_waiter", "begun", "ended", "error", "unread")

    def __init__(self) -> None:
        self.unread: deque[Any] = deque()
        self.begun = self.ended = False
        self.error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, piece: Any) -> None:
        """Add a piece.

        Raises:
            SlowReader: too many pieces are unread.
        """
        if len(self.unread) >= MAX_UNREAD:
            raise SlowReader(f"expected at most {MAX_UNREAD} pieces unread, found one more")
        self.begun = True
        self.unread.append(piece)
        self._wake()

    def end(self, error: Exception | None = None) -> None:
        """End the stream; unread pieces are read first, and then the error is raised."""
        if isinstance(error, SlowReader):
            self.unread.clear()
        self.ended, self.error = True, error
        self._wake()

    async def next(self) -> Any:
        """Wait for the next piece.

        Raises:
            StopAsyncIteration: the stream has ended.
            Exception: the stream has failed with it.
        """
        while not self.unread:
            if self.ended:
                error, self.error = self.error, None
                raise StopAsyncIteration if error is None else error
            if self._waiter is not None:
                raise RuntimeError("penstock.batch: expected one reader of a stream at a time, found two")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self.unread.popleft()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Stream(Generic[R]):
    """An asynchronous iterator of one caller's pieces.

    Its call leaves when its reader is cancelled, closes it or drops it; the batch is cancelled when all calls
    have left.

    Args:
        pieces: the pieces.
        leave: takes the call out of its queue or batch.
    """

    def __init__(self, pieces: Pieces, leave: Callable[[], None]) -> None:
        self._pieces = pieces
        self._leave = leave

    def __aiter__(self) -> Stream[R]:
        return self

    def __reduce__(self) -> Any:
        # This prevents copies, too: two readers would share the pieces of one call.
        raise TypeError("a stream cannot be pickled: read it, and pickle its pieces")

    async def __anext__(self) -> R:
        try:
            piece: R = await self._pieces.next()
        except asyncio.CancelledError:
            self.close()
            raise
        return piece

    async def aclose(self) -> None:
        """Stop reading."""
        self.close()

    def close(self) -> None:
        """Stop reading."""
        self._leave()
        self._pieces.unread.clear()
        self._pieces.end()

    def __del__(self) -> None:
        self._leave()
