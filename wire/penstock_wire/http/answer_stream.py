"""The body of an upstream's answer on its way to a client, for a router or a sidecar that forwards it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from penstock_wire.http import ClientGone, UpstreamAnswer


class AnswerStream:
    """A `Response`'s stream of an answer's pieces: it reads only as fast as the client accepts bytes.

    Args:
        answer: the answer; it is aborted if its body is read no further.
        ended: called once: with None at the body's end, else with the error that ended it early:
            `ClientGone` if the client left, or if the rest is no longer wanted.
    """

    __slots__ = ("_answer", "_ended")

    def __init__(self, answer: UpstreamAnswer, ended: Callable[[Exception | None], None]) -> None:
        self._answer = answer
        self._ended: Callable[[Exception | None], None] | None = ended

    def then(self, ended: Callable[[Exception | None], None]) -> None:
        """Call a further function at the end.

        NB: it must not hold the stream: a stream that is never iterated ends when nothing refers to it.

        Args:
            ended: called after the stream's own `ended`; at once if the stream has ended.
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
        """Return the next piece; raise the error that ended the exchange: the server then cuts the client."""
        try:
            piece = await self._answer.stream.read()
        except Exception as error:  # also the client's own, as its body can still be on the way
            self._end(error)
            raise
        except BaseException:  # cancelled: `ended` is called however the reading ends
            self._give_up()
            raise
        if not piece:
            self._end(None)
            raise StopAsyncIteration
        return piece

    def kept(self) -> int:
        """Return the number of received and unread bytes."""
        return self._answer.kept()

    async def aclose(self) -> None:
        """Stop: the stream is read no further; no-op if it has ended."""
        self._give_up()

    def __del__(self) -> None:
        # NB: a client can leave between the answer's head and its first piece, before the iteration begins.
        self._give_up()

    def _give_up(self) -> None:
        if self._ended is not None:
            self._answer.abort()
            self._end(ClientGone("the client went away before the end of its answer"))

    def _end(self, error: Exception | None) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(error)
