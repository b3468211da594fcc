"""Runs a model on the items of one request: binds each, calls the model, checks its answers."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from types import MappingProxyType
from typing import Any

from penstock.answer_list import listed
from penstock.errors import AnswerError, ArgumentsError
from penstock.item_pieces import Events, batch_pieces, collected, single_pieces
from penstock.signature import Shape
from penstock.steps import is_steps, steps_of
from penstock.target import Served
from penstock.threads import in_thread
from penstock.user_code import USER_CODE, as_exception, log_raised

_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclasses.dataclass(frozen=True, slots=True)
class Raised:
    """An exception of the model as a value, since a StopIteration cannot leave a thread as an exception."""

    error: Exception


class Model:
    """A served method.

    Args:
        served: the method and its shape.
        executor: where blocking code runs.
    """

    def __init__(self, served: Served, executor: Executor) -> None:
        self._shape = served.shape
        self._method = served.method
        self._reconfigure = served.reconfigure
        self._executor = executor
        self.tensors = served.tensors

    @property
    def shape(self) -> Shape:
        """The shape of the method: how it takes items."""
        return self._shape

    async def run(
        self, items: Sequence[Any], shared: Mapping[str, Any] = _NONE, *, arrays: bool = False
    ) -> list[Any]:
        """Answer the items of one request.

        Args:
            items: their values; for a method that takes requests, a `Request` for each.
            shared: arguments for all of them (`Shape.bind_shared`).
            arrays: leave answers that are arrays as they are, rather than make lists of them.

        Returns:
            An answer for each item, in order: values, `Response` objects or exception objects. An item that
            does not fit the signature has an ArgumentsError, or what its validator raised, and the model runs
            the others.

        Raises:
            AnswerError: a batched method did not return a list of as many answers as items.
            Exception: whatever a batched method raised.
        """
        if not items:
            return []
        arguments, misfits = self._bind(items, shared)
        if not any(misfits):
            return await self._answers(arguments, shared, arrays=arrays)
        if not arguments:
            return list(misfits)
        answers = iter(await self._answers(arguments, shared, arrays=arrays))
        return [next(answers) if misfit is None else misfit for misfit in misfits]

    async def _answers(
        self, arguments: list[dict[str, Any]], shared: Mapping[str, Any], *, arrays: bool
    ) -> list[Any]:
        """The answers to items that fit the signature; arguments and errors as for `run`."""
        if not self._shape.batched:
            return await self._one_by_one(arguments, arrays=arrays)
        result = await self._call(self._columns(arguments, shared), arrays=arrays)
        if isinstance(result, Raised):
            raise result.error
        if self._is_steps(result):
            return await self._collected(
                batch_pieces(steps_of(result, self._executor), len(arguments), self._shape.name),
                len(arguments),
            )
        answers = _tried(lambda: _listed(result, len(arguments), self._shape.name, arrays=arrays))
        if isinstance(answers, Raised):
            raise answers.error
        _log_exceptions(answers)
        return list(answers)

    async def stream(
        self, items: Sequence[Any], shared: Mapping[str, Any] = _NONE
    ) -> AsyncGenerator[Events, None]:
        """Answer each item of one request by a stream; the method is a generator.

        Args:
            items: their values.
            shared: as for `run`.

        Returns:
            The events of all streams, step by step; an item that does not fit the signature has an
            ArgumentsError in the first step.

        Raises:
            AnswerError: a step is not a list with an entry for each item that fits.
            Exception: whatever a batched method raised.
        """
        arguments, misfits = self._bind(items, shared)
        fits = [index for index, misfit in enumerate(misfits) if misfit is None]
        before: Events = [(index, misfit) for index, misfit in enumerate(misfits) if misfit is not None]
        if fits:
            async with contextlib.aclosing(self._pieces(arguments, shared)) as pieces:
                async for events in pieces:
                    yield before + [(fits[index], piece) for index, piece in events]
                    before = []
        if before:
            yield before

    async def _pieces(
        self, arguments: list[dict[str, Any]], shared: Mapping[str, Any]
    ) -> AsyncGenerator[Events, None]:
        """Yield the pieces for the items that fit the signature; arguments and errors as for `stream`."""
        if self._shape.batched:
            result = await self._call(self._columns(arguments, shared))
            if isinstance(result, Raised):
                raise result.error
            if not self._is_steps(result):  # a wrapper has read them all
                result = _once(_listed(result, len(arguments), self._shape.name))
            steps = steps_of(result, self._executor)
            pieces = batch_pieces(steps, len(arguments), self._shape.name)
        else:
            pieces = single_pieces([self._steps(result) for result in await self._results(arguments)])
        async with contextlib.aclosing(_logged(pieces)) as logged:
            async for events in logged:
                yield events

    async def _steps(self, result: Any) -> AsyncGenerator[Any, None]:
        """The steps of an unmarked method's result; a result that is not a generator is the only one."""
        if isinstance(result, Raised):
            raise result.error
        if not self._is_steps(result):
            yield result
            return
        async with contextlib.aclosing(steps_of(result, self._executor)) as steps:
            async for step in steps:
                yield step

    def _is_steps(self, result: Any) -> bool:
        return is_steps(result, expected=self._shape.generator)

    async def _collected(self, pieces: AsyncGenerator[Events, None], count: int) -> list[Any]:
        async with contextlib.aclosing(_logged(pieces)) as logged:
            return await collected(logged, count)

    def _columns(self, arguments: list[dict[str, Any]], shared: Mapping[str, Any]) -> dict[str, Any]:
        # A method that does not take columns has one parameter: the list of items.
        names = [parameter.name for parameter in self._shape.parameters]
        if self._shape.request is not None:
            names.append(self._shape.request)
        return {**{name: [item[name] for item in arguments] for name in names}, **shared}

    @property
    def takes_config(self) -> bool:
        """Whether the served object has a method `reconfigure`."""
        return self._reconfigure is not None

    async def reconfigure(self, config: Any) -> None:
        """Give the served object a userConfig; a blocking `reconfigure` runs in a thread.

        Args:
            config: any JSON value.

        Raises:
            Exception: whatever the method raised.
        """
        method = self._reconfigure
        if method is None:
            raise TypeError("expected a method reconfigure, found none")
        result = await self._awaited(await self._in_thread(lambda: _tried(lambda: method(config))))
        if isinstance(result, Raised):
            raise result.error

    def _bind(
        self, items: Sequence[Any], shared: Mapping[str, Any]
    ) -> tuple[list[dict[str, Any]], list[Exception | None]]:
        beside = _NONE if self._shape.batched else shared
        arguments: list[dict[str, Any]] = []
        misfits: list[Exception | None] = [None] * len(items)
        for index, item in enumerate(items):
            try:
                if isinstance(item, ArgumentsError):  # from `decode`, for a value it cannot make
                    raise item
                request = self._shape.request
                if request is None:
                    arguments.append(self._shape.bind(item, beside))
                else:
                    arguments.append(self._shape.bind(item.item, beside) | {request: item})
            except ArgumentsError as error:
                misfits[index] = error
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a validator of the annotated type
                misfits[index] = _raised(as_exception(error)).error
        return arguments, misfits

    async def _one_by_one(self, arguments: list[dict[str, Any]], *, arrays: bool) -> list[Any]:
        results = await self._results(arguments, arrays=arrays)
        streams = {index: result for index, result in enumerate(results) if self._is_steps(result)}
        if streams:
            pieces = single_pieces([steps_of(result, self._executor) for result in streams.values()])
            for index, answer in zip(streams, await self._collected(pieces, len(streams)), strict=True):
                results[index] = answer
        return [result.error if isinstance(result, Raised) else result for result in results]

    async def _results(self, arguments: list[dict[str, Any]], *, arrays: bool = False) -> list[Any]:
        """What the method returns for each item, or `Raised`."""
        if self._shape.asynchronous:
            return await asyncio.gather(*(self._call(item) for item in arguments))
        # One hop to a thread for the whole request: its items run there one after another.
        results = await self._in_thread(lambda: [self._try(item, arrays=arrays) for item in arguments])
        return [await self._awaited(result) for result in results]

    async def _call(self, arguments: dict[str, Any], *, arrays: bool = False) -> Any:
        if self._shape.asynchronous:
            return await self._awaited(self._shape.call(self._method, arguments))
        return await self._awaited(await self._in_thread(lambda: self._try(arguments, arrays=arrays)))

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        # NB: a call waits for the thread's end even after its client has left: the thread uses its data.
        return await in_thread(self._executor, work)

    def _try(self, arguments: dict[str, Any], *, arrays: bool) -> Any:
        def call() -> Any:
            result = self._shape.call(self._method, arguments)
            tolist = getattr(result, "tolist", None)
            # Make lists of arrays here, in the thread, and not on the loop.
            return tolist() if callable(tolist) and not arrays else result

        return _tried(call)

    async def _awaited(self, result: Any) -> Any:
        """Await a method's return value if it is awaitable, such as that of a lambda or a partial."""
        if not inspect.isawaitable(result):
            return result
        try:
            with USER_CODE:
                return await result
        except Exception as error:
            return _raised(error)


def _once(step: Any) -> Iterator[Any]:
    yield step


async def _logged(pieces: AsyncGenerator[Events, None]) -> AsyncGenerator[Events, None]:
    """The pieces; exceptions among them, and one that ends them, are logged."""
    try:
        async with contextlib.aclosing(pieces):
            async for events in pieces:
                _log_exceptions([piece for _, piece in events])
                yield events
    except Exception as error:
        log_raised("the model raised an exception", error)
        raise


def _tried(call: Callable[[], Any]) -> Any:
    try:
        with USER_CODE:
            return call()
    except Exception as error:
        return _raised(error)


def _raised(error: Exception) -> Raised:
    # The one is the client's error, the other is logged with the answer that it makes.
    if not isinstance(error, ArgumentsError | AnswerError):
        log_raised("the model raised an exception", error)
    return Raised(error)


def _log_exceptions(answers: Sequence[Any]) -> None:
    for answer in answers:
        if isinstance(answer, BaseException):
            log_raised("the model returned an exception", answer)


def _listed(result: Any, count: int, name: str, *, arrays: bool = False) -> list[Any]:
    tolist = getattr(result, "tolist", None)
    return listed(tolist() if callable(tolist) and not arrays else result, count, name)
