"""How the decorated function is run: its arguments as lists; blocking code in a thread."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from penstock.answer_list import listed
from penstock.in_process.settings import MAX_CONCURRENT

Parameter = inspect.Parameter
_NAMED = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_OVER = object()
_threads: ThreadPoolExecutor | None = None


class BatchedCode:
    """A function that takes a list for each of its parameters.

    Args:
        function: as it was written.

    Attributes:
        name: for messages.
        streams: it is a generator.
        blocking: it is no `async def`: it runs in a thread.

    Raises:
        TypeError: it is no function, or has no parameter that could take a list.
    """

    __slots__ = ("_count", "_method", "_signature", "blocking", "function", "name", "streams")

    def __init__(self, function: Callable[..., Any]) -> None:
        if isinstance(function, type) or not callable(function):
            raise TypeError(f"penstock.batch: expected a function or a method, found {function!r}")
        self.function = function
        self.name = getattr(function, "__qualname__", repr(function))
        self.streams = inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function)
        self.blocking = not (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function))
        self._method = False
        self._signature = inspect.signature(function)
        self._read()

    @property
    def method(self) -> bool:
        """Its first parameter is the instance."""
        return self._method

    def become_method(self) -> None:
        """It stands in a class: its first parameter is the instance."""
        self._method = True
        self._signature = inspect.signature(self.function)
        self._read()

    def _read(self) -> None:
        parameters = list(self._signature.parameters.values())
        if self._method and parameters:
            self._signature = self._signature.replace(parameters=parameters[1:])
            parameters = parameters[1:]
        odd = [each for each in parameters if each.kind not in (*_NAMED, Parameter.KEYWORD_ONLY)]
        if odd or not parameters:
            raise TypeError(
                "penstock.batch: expected a function with a parameter for each list and no *args, "
                f"found {self.name}{self._signature}"
            )
        self._count = len(parameters)

    def bind(self, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """One caller's item: its argument, or a tuple of them where there are several.

        Raises:
            TypeError: they do not fit the signature.
        """
        if self._count == 1 and not named and len(args) == 1:
            return args[0]
        try:
            bound = self._signature.bind(*args, **named)
        except TypeError as error:
            raise TypeError(f"{self.name}{self._signature}: {error}") from None
        bound.apply_defaults()
        values = tuple(bound.arguments.values())
        return values[0] if self._count == 1 else values

    def _call(self, owner: object, values: Sequence[Any]) -> Any:
        """Call the function with a list for each parameter."""
        columns = [list(values)] if self._count == 1 else [list(each) for each in zip(*values, strict=True)]
        first = (owner,) if self._method else ()
        named = {
            name: column
            for (name, parameter), column in zip(self._signature.parameters.items(), columns, strict=True)
            if parameter.kind is Parameter.KEYWORD_ONLY
        }
        return self.function(*first, *columns[: len(columns) - len(named)], **named)

    async def answers(self, owner: object, values: Sequence[Any]) -> list[Any]:
        """Run the function, which is no generator, on one batch.

        Args:
            owner: the instance, where it is a method.
            values: what `bind` returned for each call.

        Raises:
            AnswerError: it returned something else than as many answers.
            Exception: whatever it raised.
        """
        if self.blocking:
            result = await in_thread(lambda: self._call(owner, values))
            if inspect.isawaitable(result):  # a partial or a lambda around a coroutine function
                result = await result
        else:
            result = await self._call(owner, values)
        return listed(result, len(values), self.name)

    def steps(self, owner: object, values: Sequence[Any]) -> AsyncGenerator[list[Any], None]:
        """Run the function, which is a generator, on one batch; each step has an entry for each call."""
        return checked_steps(self._call(owner, values), len(values), self.name)


async def checked_steps(
    generator: AsyncIterator[Any] | Iterator[Any], count: int, name: str
) -> AsyncGenerator[list[Any], None]:
    """The steps of a generator, each a list with an entry for each item; a blocking one runs in a thread.

    Args:
        generator: what the method returned.
        count: items of the batch.
        name: how messages call the method.

    Raises:
        AnswerError: a step is no list of that length.
        Exception: whatever the generator raised.
    """
    if isinstance(generator, AsyncIterator):
        try:
            async for step in generator:
                yield listed(step, count, name, step=True)
        finally:
            if isinstance(generator, AsyncGenerator):
                await generator.aclose()
        return
    try:
        while (step := await in_thread(lambda: next(generator, _OVER))) is not _OVER:
            yield listed(step, count, name, step=True)
    finally:
        if inspect.isgenerator(generator):
            await in_thread(generator.close)


async def in_thread(work: Callable[[], Any]) -> Any:
    """Run blocking code in a thread, in the caller's context.

    A thread cannot be stopped: who is cancelled meanwhile waits for its end, so that a slot stays taken.

    Raises:
        Exception: whatever it raised; a StopIteration, which cannot leave a thread, as a RuntimeError.
    """
    global _threads
    if _threads is None:
        _threads = ThreadPoolExecutor(MAX_CONCURRENT, thread_name_prefix="penstock-batch")
    context = contextvars.copy_context()
    running = asyncio.get_running_loop().run_in_executor(_threads, context.run, _without_stop, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait((running,))
        running.exception()
        raise


def _without_stop(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except StopIteration as error:
        raise RuntimeError("the batch raised StopIteration") from error
