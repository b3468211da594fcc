"""Runs a generator method on a request's items, and yields the pieces of their streams step by step."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from penstock.answer_list import listed
from penstock.end import END
from penstock.response import Response
from penstock.signature import Shape
from penstock.steps import steps_of

Events = list[tuple[int, Any]]
"""Item indices, each with a piece or the end of the item's stream (`END`, a `Response`, an exception)."""


def ends(piece: Any) -> bool:
    """Whether a piece ends its stream."""
    return piece is END or isinstance(piece, BaseException | Response)


async def batch_pieces(
    shape: Shape, method: Callable[..., Any], columns: Mapping[str, Any], count: int, executor: Executor
) -> AsyncGenerator[Events, None]:
    """Yield the pieces of a batched generator; an error concerns all streams that have not ended.

    Args:
        shape: the method's shape.
        method: the method.
        columns: its arguments.
        count: number of items.
        executor: the threads of blocking code.

    Raises:
        AnswerError: a step is not a list of `count` entries.
        Exception: whatever the method raised.
    """
    opened = set(range(count))
    async with contextlib.aclosing(steps_of(shape.call(method, columns), executor)) as steps:
        async for step in steps:
            events = [
                (index, piece)
                for index, piece in enumerate(listed(step, count, shape.name, step=True))
                if index in opened
            ]
            opened.difference_update([index for index, piece in events if ends(piece)])
            yield events
            if not opened:
                return
    yield [(index, END) for index in sorted(opened)]


async def single_pieces(
    shape: Shape, method: Callable[..., Any], arguments: Sequence[Mapping[str, Any]], executor: Executor
) -> AsyncGenerator[Events, None]:
    """Run a generator for each item and yield pieces as they come; an exception ends only its own stream.

    Args:
        shape: the method's shape.
        method: the method.
        arguments: the arguments of each item.
        executor: the threads of blocking code.
    """
    # One entry: each item's generator can be at most one step ahead of the reader.
    news: asyncio.Queue[tuple[int, Any]] = asyncio.Queue(1)

    async def send_pieces(index: int, arguments: Mapping[str, Any]) -> None:
        try:
            async with contextlib.aclosing(steps_of(shape.call(method, arguments), executor)) as steps:
                async for piece in steps:
                    await news.put((index, piece))
                    if ends(piece):
                        return
            last: Any = END
        except Exception as error:
            last = error
        await news.put((index, last))

    tasks = [asyncio.ensure_future(send_pieces(index, each)) for index, each in enumerate(arguments)]
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
