"""Runs a generator method on a request's items: what each item's stream gets, step by step."""

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
"""Of some items by index: a piece, or what ends the stream: `END`, a `Response` or an exception."""


def ends(piece: Any) -> bool:
    """Whether a piece is the end of its stream."""
    return piece is END or isinstance(piece, Exception | Response)


async def batch_pieces(
    shape: Shape, method: Callable[..., Any], columns: Mapping[str, Any], count: int, executor: Executor
) -> AsyncGenerator[Events, None]:
    """The pieces of a batched generator.

    Args:
        shape: the method's.
        method: the method.
        columns: its arguments.
        count: items that they are of.
        executor: the threads of blocking code.

    Raises:
        AnswerError: a step is no list of so many entries; for all streams that have not ended.
        Exception: whatever the method raised; likewise.
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
    """The pieces of generators that have one item each, as they come; an exception ends its own stream alone.

    Args:
        shape: the method's.
        method: the method.
        arguments: those of each item.
        executor: the threads of blocking code.
    """
    # Of one entry: a model is not to run ahead of who reads it, by more than a step of each item.
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
    """The whole answer to each item: the list of its pieces, or what ended its stream instead of `END`.

    Args:
        streams: the pieces.
        count: items.
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
