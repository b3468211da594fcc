"""A batcher around any model object, for callers in any thread; on `@penstock.batch`, in a few lines.

The model has `run_batch`, which takes a list for each of its arguments, or only `run`, which is then called
for each item of a batch. `Batcher.run` is called with one of each, from as many threads as there are; an
argument that a caller leaves out has its default: that of the model's `run`, where it has both.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from concurrent.futures import CancelledError
from typing import Any

import penstock


class Batcher:
    """Gathers calls from threads into calls of `model.run_batch`.

    Args:
        model: has a blocking `run_batch`, or a blocking `run`, or both, with the same arguments.
        batch_size: calls of a batch at most.
        batch_collect_delay_s: seconds that a part-full batch may wait for more.
    """

    def __init__(self, model: Any, batch_size: int, batch_collect_delay_s: float = 0.0) -> None:
        settings = penstock.batch(max_batch_size=batch_size, batch_wait_timeout=batch_collect_delay_s)
        self._run = settings(in_lists(model) if hasattr(model, "run_batch") else one_by_one(model.run))
        self._stopped = False
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, *args: Any, **named: Any) -> Any:
        """Run one call in some batch, and wait for its answer.

        Raises:
            InterruptedError: the batcher was stopped before there was one.
        """

        async def call() -> Any:
            return await self._run(*args, **named)

        with self._lock:
            if self._stopped:
                raise InterruptedError("expected a batcher that runs, found a stopped one")
            future = asyncio.run_coroutine_threadsafe(call(), self._loop)
        try:
            return future.result()
        except CancelledError as error:
            raise InterruptedError("the batcher was stopped before this call had an answer") from error

    def stop(self) -> None:
        """End all calls that wait, at once, and then the loop, when the model has ended what it runs."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
        asyncio.run_coroutine_threadsafe(cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def in_lists(model: Any) -> Any:
    """The model's `run_batch`; where it has a `run`, too, with that one's arguments and defaults."""
    if not hasattr(model, "run"):
        return model.run_batch
    names = list(inspect.signature(model.run).parameters)

    @functools.wraps(model.run)
    def run_batch(*columns: list[Any], **named: list[Any]) -> Any:
        return model.run_batch(**dict(zip(names, columns, strict=False)), **named)

    return run_batch


def one_by_one(run: Any) -> Any:
    """A `run_batch` of a model that has none; an exception is that of its own item."""

    @functools.wraps(run)
    def run_batch(*columns: list[Any], **named: list[Any]) -> list[Any]:
        answers = []
        for row in zip(*columns, *named.values(), strict=True):
            try:
                args, rest = row[: len(columns)], row[len(columns) :]
                answers.append(run(*args, **dict(zip(named, rest, strict=True))))
            except Exception as error:
                answers.append(error)
        return answers

    return run_batch


async def cancel_others() -> None:
    """Cancel all tasks of this loop but the one that runs this, and wait for their end."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
