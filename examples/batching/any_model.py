"""A batcher around any model object, for callers in any thread; on `@penstock.batch`, in a few lines.

The model has `run_batch`, which takes a list for each of its arguments. `Batcher.run` is called with one of
each, from as many threads as there are; an argument that a caller leaves out has its default.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import penstock


class Batcher:
    """Gathers calls from threads into calls of `model.run_batch`.

    Args:
        model: has a blocking `run_batch`.
        batch_size: calls of a batch at most.
        batch_collect_delay_s: seconds that a part-full batch may wait for more.
    """

    def __init__(self, model: Any, batch_size: int, batch_collect_delay_s: float = 0.0) -> None:
        settings = penstock.batch(max_batch_size=batch_size, batch_wait_timeout=batch_collect_delay_s)
        self._run = settings(model.run_batch)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, *args: Any, **named: Any) -> Any:
        """Run one call in some batch, and wait for its answer."""

        async def call() -> Any:
            return await self._run(*args, **named)

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    def stop(self) -> None:
        """End the loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
