"""A pod's answer on its way to a client: whole where it is short or here already, else piece by piece.

What is short is taken whole, so that a pod that dies in the middle of it is an honest 502 and not half an
answer. A stream (server-sent events, tokens) or a large body is passed on as it comes; when it breaks, the
client's connection is cut before the body's end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

from penstock_wire.http import Response, UpstreamAnswer, UpstreamTimeout

WHOLE_BYTES = 256 * 1024
"""A body of at most so many bytes, told beforehand, is taken whole."""


class Passed:
    """The body of an answer as an async iterator of its pieces.

    Args:
        answer: the answer.
        over: called once, when the body's end came, it broke, or nobody wants more of it.
    """

    __slots__ = ("_answer", "_over")

    def __init__(self, answer: UpstreamAnswer, over: Callable[[], None]) -> None:
        self._answer = answer
        self._over: Callable[[], None] | None = over

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            piece = await self._answer.stream.read()
        except BaseException:  # a cancellation too: the pod's slot is given back, whatever ends the reading
            self._end()
            raise
        if not piece:
            self._end()
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        """The client is gone."""
        self._end()

    def __del__(self) -> None:
        # NB: a client may leave between the answer's head and its first piece, when nobody iterates yet.
        self._end()

    def _end(self) -> None:
        over, self._over = self._over, None
        if over is not None:
            self._answer.abort()
            over()


async def receive(
    answer: UpstreamAnswer, *, head_only: bool, seconds: float, over: Callable[[], None]
) -> Response:
    """The answer for the client, its body whole or a stream.

    Args:
        answer: an answer whose head has come.
        head_only: it answers HEAD, and its length is that of a body which does not come.
        seconds: what is left for a body that is taken whole.
        over: called when there is nothing more to come of the pod; for a stream that is later.

    Raises:
        UpstreamError: the body ended early, or did not come in time.
    """
    body = answer.whole()
    if body is None and (answer.length is None or answer.length > WHOLE_BYTES):
        stream = Passed(answer, over)
        return Response(answer.status, answer.headers, stream=stream, length=answer.length)
    try:
        if body is None:
            body = await _rest(answer, seconds)
    except BaseException:  # a cancellation too: nobody reads the rest any more
        answer.abort()
        raise
    finally:
        over()
    return Response(answer.status, answer.headers, body, length=answer.length if head_only else None)


async def _rest(answer: UpstreamAnswer, seconds: float) -> bytes:
    pieces = []
    try:
        async with asyncio.timeout(seconds):
            while piece := await answer.stream.read():
                pieces.append(piece)
    except TimeoutError as error:
        raise UpstreamTimeout(f"no complete answer within {seconds:.3f} s") from error
    return b"".join(pieces)
