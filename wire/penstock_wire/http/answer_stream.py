"""The body of an upstream's answer on its way to a client, for a router or a sidecar that passes it on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from penstock_wire.http import ClientGone, UpstreamAnswer


class AnswerStream:
    """A `Response`'s stream of an answer's pieces: what the client does not take is not read.

    Args:
        answer: whose body; it is aborted where it is read no further.
        ended: called once: with None when the body's end came, else with what ended it early: `ClientGone`
            where the client did, or where no more of it is wanted.
    """

    __slots__ = ("_answer", "_ended")

    def __init__(self, answer: UpstreamAnswer, ended: Callable[[Exception | None], None]) -> None:
        self._answer = answer
        self._ended: Callable[[Exception | None], None] | None = ended

    def then(self, ended: Callable[[Exception | None], None]) -> None:
        """Call this at the end, too, as the stream's own is called.

        NB: it must not hold the stream: one that nobody begins to read ends when nothing holds it.

        Args:
            ended: called after the stream's own; at once where that was.
        """
        first = self._ended
        if first is None:
            ended(None)
            return

        def both(error: Exception | None) -> None:
            first(error)
            ended(error)

        self._ended = both

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """The next piece; raises what ended the exchange, so that the server cuts the client's connection."""
        try:
            piece = await self._answer.stream.read()
        except Exception as error:  # the client's own, too, whose body may still be on the way
            self._end(error)
            raise
        except BaseException:  # cancelled: whatever ends the reading, `ended` is called
            self._give_up()
            raise
        if not piece:
            self._end(None)
            raise StopAsyncIteration
        return piece

    def kept(self) -> int:
        """Bytes that have come and were not read."""
        return self._answer.kept()

    async def aclose(self) -> None:
        """Nobody reads any more; no-op where it has ended."""
        self._give_up()

    def __del__(self) -> None:
        # NB: a client may leave between the answer's head and its first piece, before the iteration begins.
        self._give_up()

    def _give_up(self) -> None:
        if self._ended is not None:
            self._answer.abort()
            self._end(ClientGone("the client went away before the end of its answer"))

    def _end(self, error: Exception | None) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(error)
