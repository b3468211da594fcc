"""The steps of a generator, whether it blocks or not."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from concurrent.futures import Executor
from typing import Any

from penstock.errors import AnswerError
from penstock.threads import in_thread
from penstock.user_code import USER_CODE

_OVER = object()


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
