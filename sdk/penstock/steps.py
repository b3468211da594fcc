"""The steps of a generator, whether it blocks or not."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from concurrent.futures import Executor
from typing import Any

from penstock.threads import in_thread

_OVER = object()


async def steps_of(
    generator: AsyncIterator[Any] | Iterator[Any], executor: Executor
) -> AsyncGenerator[Any, None]:
    """The steps of a generator; one that blocks runs in a thread, and is closed there.

    Args:
        generator: what the method returned.
        executor: the threads of blocking code.

    Raises:
        Exception: whatever the generator raised.
    """
    if isinstance(generator, AsyncIterator):
        try:
            async for step in generator:
                yield step
        finally:
            if isinstance(generator, AsyncGenerator):
                await generator.aclose()
        return
    try:
        while (step := await in_thread(executor, lambda: next(generator, _OVER))) is not _OVER:
            yield step
    finally:
        if inspect.isgenerator(generator):
            await in_thread(executor, generator.close)
