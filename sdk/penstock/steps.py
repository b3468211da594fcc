"""The steps of a generator, whether it blocks or not."""

from __future__ import annotations

import collections.abc
import inspect
import types
import typing
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import Executor
from typing import Any

from penstock.errors import AnswerError
from penstock.threads import in_thread
from penstock.user_code import USER_CODE

_OVER = object()
_LAZY = {
    collections.abc.Iterator,
    collections.abc.Generator,
    collections.abc.AsyncIterator,
    collections.abc.AsyncGenerator,
}


def yields(function: Callable[..., Any]) -> bool:
    """Whether a function is a generator, also one behind `functools.wraps`, or is annotated to return one."""
    plain = inspect.unwrap(function)
    forms = (function, plain, getattr(function, "__call__", None))  # noqa: B004 - an object with a method
    if any(inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in forms):
        return True
    try:
        hint = typing.get_type_hints(plain).get("return")
    except Exception:  # a name that is there for type checkers alone
        return False
    return (typing.get_origin(hint) or hint) in _LAZY


def is_steps(result: Any, *, expected: bool) -> bool:
    """Whether what a function returned is to be read step by step: a generator, or an asynchronous iterator.

    Args:
        result: what it returned.
        expected: it `yields`, so any iterator is.
    """
    kinds = (AsyncIterator, Iterator) if expected else (AsyncIterator, types.GeneratorType)
    return isinstance(result, kinds)


def _next(generator: Iterator[Any]) -> Any:
    """The next step, or `_OVER` after the last (raises AnswerError if the generator returns a value)."""
    try:
        return next(generator)
    except StopIteration as stop:
        if stop.value is not None:
            raise AnswerError(
                "expected a generator to yield its answers, found a "
                f"{type(stop.value).__name__} that it returns: yield it"
            ) from None
        return _OVER


async def steps_of(
    generator: AsyncIterator[Any] | Iterator[Any], executor: Executor
) -> AsyncGenerator[Any, None]:
    """The steps of a generator; a blocking generator runs in a thread, and is closed there.

    Args:
        generator: the generator that the method returned.
        executor: the threads of blocking code.

    Raises:
        AnswerError: the generator returned a value, which would be lost.
        Exception: whatever the generator raised.
    """
    if isinstance(generator, AsyncIterator):
        try:
            while True:
                try:
                    with USER_CODE:
                        step = await anext(generator)
                except StopAsyncIteration:
                    return
                yield step
        finally:
            if isinstance(generator, AsyncGenerator):
                with USER_CODE:
                    await generator.aclose()
        return
    try:
        while (step := await in_thread(executor, lambda: _next(generator))) is not _OVER:
            yield step
    finally:
        if inspect.isgenerator(generator):
            await in_thread(executor, generator.close)
