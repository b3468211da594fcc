"""Whose calls end with whom: calls that are under way when their caller is cancelled are given up.

The caller is the request or batch that a served method is in (`call_context`), whichever task or thread of it
makes the call; elsewhere it is the task. A caller that ends by itself leaves its calls alone.
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
    """Let a call end with its caller.

    Args:
        cancel: gives the call up.

    Returns:
        What is called when it is over.
    """
    context = call_context.current()
    if context is not None:
        calls = context.calls
    else:
        try:
            task = asyncio.current_task()
        except RuntimeError:  # no loop runs here
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
