"""The steps of generators as the pieces of a request's streams, item by item."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

from penstock.answer_list import listed
from penstock.end import END
from penstock.response import Response

Events = list[tuple[int, Any]]
"""Item indices, each with a piece or the end of the item's stream (`END`, a `Response`, an exception)."""


def ends(piece: Any) -> bool:
    """Whether a piece ends its stream."""
    return piece is END or isinstance(piece, BaseException | Response)


async def batch_pieces(
    steps: AsyncGenerator[Any, None], count: int, name: str
) -> AsyncGenerator[Events, None]:
    """Yield the pieces of a batched generator; an error concerns all streams that have not ended.

    Args:
        steps: its steps.
        count: number of items.
        name: the method's name in messages.

    Raises:
        AnswerError: a step is not a list of `count` entries.
        Exception: whatever the method raised.
    """
    opened = set(range(count))
    async with contextlib.aclosing(steps):
        async for step in steps:
            events = [
                (index, piece)
                for index, piece in enumerate(listed(step, count, name, step=True))
                if index in opened
            ]
            opened.difference_update([index for index, piece in events if ends(piece)])
            yield events
            if not opened:
                return
    yield [(index, END) for index in sorted(opened)]


async def single_pieces(streams: Sequence[AsyncGenerator[Any, None]]) -> AsyncGenerator[Events, None]:
    """Run each item's generator and yield pieces as they come; an exception ends only its own stream.

    Args:
        streams: the steps of each.
    """
    # One entry: each item's generator can be at most one step ahead of the reader.
    news: asyncio.Queue[tuple[int, Any]] = asyncio.Queue(1)

    async def send_pieces(index: int, stream: AsyncGenerator[Any, None]) -> None:
        try:
            async with contextlib.aclosing(stream):
                async for piece in stream:
                    await news.put((index, piece))
                    if ends(piece):
                        return
            last: Any = END
        except Exception as error:
            last = error
        await news.put((index, last))

    tasks = [asyncio.ensure_future(send_pieces(index, each)) for index, each in enumerate(streams)]
    left = len(tasks)
    try:
        while left:
            event = await news.get()
            left -= ends(event[1])
            yield [event]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def collected(streams: AsyncIterator[Events], count: int) -> list[Any]:
    """The answers to all items: each a list of pieces, or the error or `Response` that ended its stream.

    Args:
        streams: the events of all streams.
        count: number of items.
    """
    answers: list[Any] = [[] for _ in range(count)]
    async for events in streams:
        for index, piece in events:
            if piece is END:
                continue
            if ends(piece):
                answers[index] = piece
            else:
                answers[index].append(piece)
    return answers
