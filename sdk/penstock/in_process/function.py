"""Runs the decorated function: passes its arguments as lists, and runs blocking code in a thread."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from penstock.answer_list import listed
from penstock.in_process.settings import MAX_CONCURRENT
from penstock.item_pieces import Events
from penstock.steps import steps_of, yields
from penstock.threads import in_thread
from penstock.user_code import USER_CODE

Parameter = inspect.Parameter
_NAMED = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_threads: ThreadPoolExecutor | None = None


class BatchedCode:
    """A function that takes a list for each of its parameters.

    Args:
        function: the undecorated function.

    Attributes:
        name: its name in messages.
        shown: its name in metrics, with its module's.
        blocking: it is not an `async def`, so it runs in a thread.

    Raises:
        TypeError: it is not a function, or has no parameter for a list.
    """

    __slots__ = ("_count", "_method", "_signature", "_streams", "blocking", "function", "name", "shown")

    def __init__(self, function: Callable[..., Any]) -> None:
        if isinstance(function, type) or not callable(function):
            raise TypeError(f"penstock.batch: expected a function or a method, found {function!r}")
        self.function = function
        self.name = getattr(function, "__qualname__", repr(function))
        self.shown = f"{getattr(function, '__module__', '')}.{self.name}"
        self._streams = yields(function)
        self.blocking = not (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function))
        self._method = False
        self._signature = inspect.signature(function)
        self._read()

    @property
    def streams(self) -> bool:
        """Whether it is a generator."""
        return self._streams

    @property
    def method(self) -> bool:
        """Whether it is a method, so that its first parameter is the instance."""
        return self._method

    def become_method(self) -> None:
        """Treat it as a method: its first parameter is the instance."""
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
        """Make one caller's item: its argument, or a tuple if there are several.

        Raises:
            TypeError: the arguments do not fit the signature.
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
        """Run the function, which is not a generator, on one batch.

        Args:
            owner: the instance, if it is a method.
            values: the values from `bind`, one for each call.

        Raises:
            AnswerError: it did not return a list of as many answers.
            Exception: whatever it raised.
        """
        if self.blocking:
            result = await in_thread(_executor(), lambda: self._call(owner, values))
            if inspect.isawaitable(result):  # a partial or a lambda around a coroutine function
                with USER_CODE:
                    result = await result
        else:
            with USER_CODE:
                result = await self._call(owner, values)
        return listed(result, len(values), self.name)

    async def pieces(self, owner: object, values: Sequence[Any]) -> AsyncGenerator[Events, None]:
        """Run the function, which is a generator, on one batch.

        Returns:
            For each step, the pieces of all calls by index.

        Raises:
            AnswerError: a step is not a list of that length.
            Exception: whatever it raised.
        """
        if inspect.isgeneratorfunction(self.function) or not self.blocking:
            generator = self._call(owner, values)
        else:  # a wrapper of a generator runs code of its own
            generator = await in_thread(_executor(), lambda: self._call(owner, values))
        if inspect.isawaitable(generator):
            with USER_CODE:
                generator = await generator
        async with contextlib.aclosing(steps_of(generator, _executor())) as steps:
            async for step in steps:
                yield list(enumerate(listed(step, len(values), self.name, step=True)))


def _executor() -> ThreadPoolExecutor:
    """The threads of blocking functions."""
    global _threads
    if _threads is None:
        _threads = ThreadPoolExecutor(MAX_CONCURRENT, thread_name_prefix="penstock-batch")
    return _threads


def _forget_threads() -> None:
    """Forget the parent process's threads: a fork copies the pool, which counts on them, without them."""
    global _threads
    _threads = None


os.register_at_fork(after_in_child=_forget_threads)
