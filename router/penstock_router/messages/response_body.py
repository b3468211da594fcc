"""Passes a pod's answer to a client: whole if it is short or complete already, else piece by piece.

A short body is read whole, so if a pod dies in the middle of it, the client gets a 502, not half an answer.
A stream (server-sent events, tokens) or a large body is passed on as it arrives; if it breaks, the client's
connection is cut before the body's end.
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
"""A body whose head declares at most so many bytes is read whole."""


async def receive(
    answer: UpstreamAnswer, *, head_only: bool, seconds: float, over: Callable[[], None]
) -> Response:
    """Make the answer for the client, its body whole or a stream.

    Args:
        answer: an answer whose head has arrived.
        head_only: whether it answers HEAD, so that its length is that of a body which is not sent.
        seconds: the time left for a body that is read whole.
        over: called when nothing more comes from the pod; for a stream, after this returns.

    Raises:
        UpstreamError: the body ended early, or did not arrive in time.
    """
    body = answer.whole()
    if body is None and (answer.length is None or answer.length > WHOLE_BYTES):
        stream = AnswerStream(answer, lambda _: over())
        passed = Response(answer.status, answer.headers, stream=stream, length=answer.length)
        passed.trailers = answer.trailers
        return passed
    try:
        if body is None:
            body = await _rest(answer, seconds)
    except BaseException:  # a cancellation too: the rest is not read
        answer.abort()
        raise
    finally:
        over()
    whole = Response(answer.status, answer.headers, body, length=answer.length if head_only else None)
    whole.trailers = answer.trailers
    return whole


class EndingStream:
    """An answer's stream that is cut when its request's time is over, whether or not its client reads.

    Args:
        stream: the stream that is passed on.
        ends: when it is cut, in seconds of the loop's clock.
    """

    __slots__ = ("__weakref__", "_over", "_sender", "_stream", "_timer")

    def __init__(self, stream: AsyncIterator[bytes], ends: float) -> None:
        self._stream = stream
        self._sender: asyncio.Task[None] | None = None
        self._over = False
        # NB: a weak reference: a stream that is never read ends when nothing refers to it.
        self._timer = asyncio.get_running_loop().call_at(ends, _end, weakref.ref(self))

    def __del__(self) -> None:
        self._timer.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._over:
            raise UpstreamTimeout("the time of the request was over")
        if self._sender is None:
            self._sender = asyncio.current_task()
        return await self._stream.__anext__()

    def kept(self) -> int:
        """Count the bytes that have arrived and were not read."""
        kept = getattr(self._stream, "kept", None)
        return 0 if kept is None else int(kept())

    async def aclose(self) -> None:
        self._timer.cancel()
        aclose = getattr(self._stream, "aclose", None)
        if aclose is not None:
            await aclose()

    def end(self) -> None:
        """Cut the stream, since its time is over."""
        # NB: the server's task that sends it may wait for a client that does not read: it is cancelled, too.
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
