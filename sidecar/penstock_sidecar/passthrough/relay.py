"""Relays what follows the head of an answer: its body, or a tunnel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

from penstock_wire.http import BodyReader, ClientGone, Tunnel, UpstreamAnswer

Ended = Callable[[Exception | None], None]
"""Called once: None when all went through, else what ended it early."""


class Relay:
    """The body of an answer as a `Response`'s stream: what the client does not take is not read.

    Args:
        answer: whose body.
        ended: called with how it ended.
    """

    __slots__ = ("_answer", "_ended", "_reader")

    def __init__(self, answer: UpstreamAnswer, ended: Ended) -> None:
        self._answer = answer
        self._reader: BodyReader = answer.stream
        self._ended: Ended | None = ended

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """The next piece; raises what ended the exchange, at which the front cuts the client's connection."""
        try:
            piece = await self._reader.read()
        except Exception as error:  # the client's own, too, whose body may still be on the way
            self._end(error)
            raise
        if piece:
            return piece
        self._end(None)
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """The client reads no further: if the answer is not complete, the model's connection is closed."""
        if self._ended is not None:
            self._answer.abort()
            self._end(ClientGone("the client went away before the end of its answer"))

    def _end(self, error: Exception | None) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(error)


class TunnelIdle(Exception):
    """Nothing went either way for too long."""


class _Watch:
    """Ends a tunnel's two halves when nothing has gone either way for so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._heard = self._loop.time()
        self._timer = self._loop.call_later(seconds, self._look)
        self.halves: list[asyncio.Task[None]] = []
        self.idle = False

    def data_passed(self) -> None:
        """Something went."""
        self._heard = self._loop.time()

    def stop(self) -> None:
        """Watch no more."""
        self._timer.cancel()

    def _look(self) -> None:
        # NB: one timer for all the pieces since it was set, of which a busy tunnel has thousands a second.
        left = self._heard + self._seconds - self._loop.time()
        if left > 0.0:
            self._timer = self._loop.call_later(left, self._look)
            return
        self.idle = True
        for half in self.halves:
            half.cancel()


async def join(one: Tunnel, other: Tunnel, idle: float) -> None:
    """Carry bytes both ways until both sides have ended; each half ends by itself.

    Args:
        one: a side.
        other: the other.
        idle: seconds without a byte either way after which both are closed.

    Raises:
        TunnelIdle, ClientGone, UpstreamError: nothing came, or a side is gone; both are closed then, as they
            are when this is cancelled.
    """
    watch = _Watch(idle)
    back = asyncio.get_running_loop().create_task(_carry(other, one, watch))
    try:
        forth = asyncio.get_running_loop().create_task(_carry(one, other, watch))
        watch.halves = [forth, back]
        try:
            done, _ = await asyncio.wait({forth, back}, return_when=asyncio.FIRST_EXCEPTION)
            if watch.idle:
                raise TunnelIdle(f"nothing went either way for {idle:.0f} s")
            for task in done:
                task.result()
        finally:
            await _stop(forth)
    except BaseException:  # a cancellation too: neither side may be left open
        one.abort()
        other.abort()
        raise
    finally:
        watch.stop()
        await _stop(back)


async def _carry(source: Tunnel, sink: Tunnel, watch: _Watch) -> None:
    while data := await source.read():
        watch.data_passed()
        await sink.write(data)
        watch.data_passed()
    sink.end()


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # it is known by now
