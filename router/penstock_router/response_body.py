"""A pod's answer on its way to a client: whole where it is short or here already, else piece by piece.

What is short is taken whole, so that a pod that dies in the middle of it is an honest 502 and not half an
answer. A stream (server-sent events, tokens) or a large body is passed on as it comes; when it breaks, the
client's connection is cut before the body's end.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Self

from penstock_wire.http import Response, UpstreamAnswer, UpstreamTimeout
from penstock_wire.http.answer_stream import AnswerStream
from penstock_wire.http.body import read_whole

WHOLE_BYTES = 256 * 1024
"""A body of at most so many bytes, known by its head, is taken whole."""


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
        stream = AnswerStream(answer, lambda _: over())
        return Response(answer.status, answer.headers, stream=stream, length=answer.length)
    try:
        if body is None:
            body = await _rest(answer, seconds)
    except BaseException:  # a cancellation too: the rest is not read any more
        answer.abort()
        raise
    finally:
        over()
    return Response(answer.status, answer.headers, body, length=answer.length if head_only else None)


class EndingStream:
    """An answer's stream that is cut when the time of its request is over, whatever its client takes.

    Args:
        stream: what is passed on.
        ends: when, in seconds of the loop's clock.
    """

    __slots__ = ("__weakref__", "_over", "_sender", "_stream", "_timer")

    def __init__(self, stream: AsyncIterator[bytes], ends: float) -> None:
        self._stream = stream
        self._sender: asyncio.Task[None] | None = None
        self._over = False
        # NB: it must not hold this: a stream that nobody begins to read ends when nothing holds it.
        self._timer = asyncio.get_running_loop().call_at(ends, _end, weakref.ref(self))

    def __del__(self) -> None:
        self._timer.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """The next piece."""
        if self._over:
            raise UpstreamTimeout("the time of the request was over")
        if self._sender is None:
            self._sender = asyncio.current_task()
        return await self._stream.__anext__()

    def kept(self) -> int:
        """Bytes that have come and were not read."""
        kept = getattr(self._stream, "kept", None)
        return 0 if kept is None else int(kept())

    async def aclose(self) -> None:
        """Nobody reads any more."""
        self._timer.cancel()
        aclose = getattr(self._stream, "aclose", None)
        if aclose is not None:
            await aclose()

    def end(self) -> None:
        """Its time is over."""
        # NB: the server's task that sends it may wait for a client that takes nothing: it is ended, too.
        self._over = True
        if self._sender is not None:
            self._sender.cancel()


def _end(reference: weakref.ref[EndingStream]) -> None:
    stream = reference()
    if stream is not None:
        stream.end()


async def _rest(answer: UpstreamAnswer, seconds: float) -> bytes:
    try:
        async with asyncio.timeout(seconds):
            return await read_whole(answer.stream, WHOLE_BYTES)
    except TimeoutError as error:
        raise UpstreamTimeout(f"no complete answer within {seconds:.3f} s") from error
