"""Cancels the calls of a cancelled caller that are still under way.

The caller is the request or batch that a served method runs for (`call_context`), whichever of its tasks or
threads makes the call; elsewhere it is the task. A caller that ends normally does not cancel its calls.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable

from penstock import call_context

_tasks: weakref.WeakKeyDictionary[asyncio.Task[object], set[Callable[[], object]]] = (
    weakref.WeakKeyDictionary()
)


def adopt(cancel: Callable[[], object]) -> Callable[[], None]:
    """Register a call for cancellation with its caller.

    Args:
        cancel: cancels the call.

    Returns:
        A function to call when the call is over.
    """
    context = call_context.current()
    if context is not None:
        calls = context.calls
    else:
        try:
            task = asyncio.current_task()
        except RuntimeError:  # no loop runs in this thread
            return _nothing
        if task is None:
            return _nothing
        calls_of_task = _tasks.get(task)
        if calls_of_task is None:
            calls_of_task = _tasks[task] = set()
            task.add_done_callback(_ended)
        calls = calls_of_task
    calls.add(cancel)
    return lambda: calls.discard(cancel)


def _ended(task: asyncio.Task[object]) -> None:
    calls = _tasks.pop(task, None)
    if calls and task.cancelled():
        for cancel in list(calls):
            cancel()


def _nothing() -> None:
    pass
