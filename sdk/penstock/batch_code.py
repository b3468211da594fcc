"""Runs the batches of a served method that are formed in its own process (`in_process.batcher`)."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

from penstock import call_context
from penstock.call_context import Context
from penstock.encoding import decode, encode
from penstock.in_process.batcher import Batcher
from penstock.in_process.settings import BatchSettings
from penstock.in_process.stream import Stream
from penstock.item_pieces import Events, ends
from penstock.model import Model
from penstock.request import Request


class Gate:
    """A gate for batches: while it is closed, none are inside, and new ones wait."""

    def __init__(self) -> None:
        self._one_closes = asyncio.Lock()
        self._opened, self._empty = asyncio.Event(), asyncio.Event()
        self._opened.set()
        self._empty.set()
        self._inside = 0

    @contextlib.asynccontextmanager
    async def entered(self) -> AsyncIterator[None]:
        """Wait until it is open, and be inside."""
        while not self._opened.is_set():
            await self._opened.wait()
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    @contextlib.asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """Close it, and wait until nothing is inside."""
        async with self._one_closes:
            self._opened.clear()
            try:
                await self._empty.wait()
                yield
            finally:
                self._opened.set()


class BatchCode:
    """Runs batches of a served method (`in_process.batcher.Code`).

    Args:
        model: the method.
        shared: the arguments for all items.
        limit: the most items of a batch.
        gate: each batch passes it.
        record: gets the items of each batch; None = they are not recorded.
    """

    def __init__(
        self,
        model: Model,
        shared: dict[str, Any],
        *,
        limit: int,
        gate: Gate,
        record: list[list[Any]] | None = None,
    ) -> None:
        self._gate = gate
        self._model = model
        self._limit = limit
        self._shared = shared
        self._record = record

    @property
    def streams(self) -> bool:
        """Whether it is a generator."""
        return self._model.shape.generator

    async def answers(self, owner: object, values: Sequence[Any]) -> list[Any]:
        """Answer a batch; each value is an item with the context of its call."""
        async with self._gate.entered():
            items, context = self._begin(values)
            try:
                return await self._model.run(items, copy.deepcopy(self._shared))
            except asyncio.CancelledError:
                context.cancel_calls()
                raise
            finally:
                context.end()

    async def pieces(self, owner: object, values: Sequence[Any]) -> AsyncGenerator[Events, None]:
        """Stream the answers to a batch."""
        async with self._gate.entered():
            items, context = self._begin(values)
            shared = copy.deepcopy(self._shared)
            try:
                async with contextlib.aclosing(self._model.stream(items, shared)) as steps:
                    async for events in steps:
                        yield [(index, _sent(piece)) for index, piece in events]
            except (asyncio.CancelledError, GeneratorExit):
                context.cancel_calls()
                raise
            finally:
                context.end()

    def _begin(self, values: Sequence[tuple[Any, Context | None]]) -> tuple[list[Any], Context]:
        """Record a batch, and set its context; the method may change its items, as each run is sent anew."""
        items = [item for item, _ in values]
        if self._record is not None:
            self._record.append(items)
        contexts = [context or Context() for _, context in values]
        context = call_context.opened(call_context.of_batch(contexts, self._limit))
        call_context.resume(context)
        made = copy.deepcopy(items)
        if self._model.shape.request is not None:
            made = [
                item if isinstance(item, Request) else Request("POST", "/", own.fields, item=item)
                for item, own in zip(made, contexts, strict=True)
            ]
        return made, context


def _sent(piece: Any) -> Any:
    """Convert a piece to the client's value; bytes are sent as they are."""
    if isinstance(piece, bytes | bytearray | memoryview):
        return bytes(piece)
    return piece if ends(piece) else through_json(piece)


async def steps_of_stream(stream: Stream[Any]) -> AsyncGenerator[Any, None]:
    """The pieces of a caller's stream; it leaves the batch when they are not read any more."""
    try:
        async for piece in stream:
            yield piece
    finally:
        stream.close()


def through_json(value: Any) -> Any:
    """Encode and decode a value, as over a connection (raises AnswerError if it has no JSON form)."""
    (decoded,) = decode([encode(value)])
    if isinstance(decoded, Exception):
        raise decoded
    return decoded


class Gathered:
    """A method for batches, of which requests that no sidecar batches share batches in this process.

    Args:
        model: the method, which takes requests.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._batcher: Batcher | None = None
        self._limit = 0

    def call(self, request: Request, limit: int | None) -> Any:
        """Send one request; return an awaitable answer or, of a generator, a `Stream`.

        Args:
            request: the request.
            limit: the most requests of a batch now; None = the default.
        """
        settings = BatchSettings() if limit is None else BatchSettings(max_batch_size=limit)
        if self._batcher is None or settings.max_batch_size != self._limit:
            self._limit = settings.max_batch_size
            code = BatchCode(self._model, {}, limit=self._limit, gate=Gate())
            self._batcher = Batcher(code, settings)
        context = call_context.current()
        deadline = None if context is None else context.deadline
        if self._model.shape.generator:
            return self._batcher.stream(None, (request, context), deadline)
        return self._batcher.answer(None, (request, context), deadline)
