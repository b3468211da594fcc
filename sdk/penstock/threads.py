"""Runs blocking code in a thread, for callers on the event loop."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from penstock.user_code import USER_CODE


async def in_thread(executor: Executor, work: Callable[[], Any]) -> Any:
    """Run blocking code in a thread, in the caller's context.

    A thread cannot be stopped: a caller that is cancelled waits for its end, so that its data stays in place.

    Args:
        executor: the threads.
        work: the code.

    Raises:
        Exception: whatever it raised (`user_code`); for a StopIteration, which cannot leave a thread, a
            RuntimeError.
    """
    context = contextvars.copy_context()
    running = asyncio.get_running_loop().run_in_executor(executor, context.run, _without_stop, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait((running,))
        running.exception()
        raise


def _without_stop(work: Callable[[], Any]) -> Any:
    try:
        with USER_CODE:
            return work()
    except StopIteration as error:
        raise RuntimeError("blocking code raised StopIteration") from error
