"""One library's batching in one process: `python in_process_load.py LIBRARY JSON`; it prints figures as JSON.

It imports nothing but the library that is measured, so that it also runs in a peer's environment
(peers/serve_ray_batch.py). LIBRARY: `penstock` (`@penstock.batch`), `future` (callers that await a bare
future, which each 32nd of them resolves) or `model` (the model alone, full batches back to back). JSON:
`callers`, `seconds`, `batch`, `a_ms`, `b_ms`; the model sleeps a + b an item in a thread of its own, and with
a = b = 0 returns at once.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any


class Model:
    """Echoes, after as long as a device would take."""

    def __init__(self, a_ms: float, b_ms: float) -> None:
        self.a, self.b = a_ms / 1000, b_ms / 1000
        self.device = concurrent.futures.ThreadPoolExecutor(1)

    async def run(self, items: list[Any]) -> list[Any]:
        """Answer a batch."""
        if self.a or self.b:
            seconds = self.a + self.b * len(items)
            await asyncio.get_running_loop().run_in_executor(self.device, time.sleep, seconds)
        return items


class Futures:
    """The least that a caller who waits for others costs: a future, and nothing around it."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.waiting: list[tuple[asyncio.Future[Any], Any]] = []

    async def call(self, item: Any) -> Any:
        """Wait for as many others."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self.waiting.append((future, item))
        if len(self.waiting) == self.batch:
            loop.call_soon(self.resolve)
        return await future

    def resolve(self) -> None:
        """Answer all who wait."""
        waiting, self.waiting = self.waiting, []
        for future, item in waiting:
            future.set_result(item)


def function_of(library: str, model: Model, batch: int) -> Callable[[Any], Awaitable[Any]]:
    """The function that callers call with one item; it calls `model` with a batch."""
    if library == "model":
        return model.run
    if library == "future":
        return Futures(batch).call
    import penstock

    batched: Callable[[Any], Awaitable[Any]] = penstock.batch(max_batch_size=batch)(model.run)
    return batched


async def load(
    function: Callable[[Any], Awaitable[Any]],
    callers: int,
    seconds: float,
    batch: int,
    *,
    whole: bool = False,
) -> dict[str, float]:
    """A closed loop: each caller calls again once it was answered.

    Args:
        function: what is called.
        callers: how many call at once.
        seconds: how long, after a quarter of it to warm up.
        batch: items of a batch at most.
        whole: a call is a whole batch.
    """
    item: Any = list(range(batch)) if whole else 7
    done = wrong = 0
    end = 0.0

    async def caller() -> None:
        nonlocal done, wrong
        while time.perf_counter() < end:
            wrong += await function(item) != item
            done += 1

    for length in (seconds / 4, seconds):
        done, began, cpu = 0, time.perf_counter(), time.process_time()
        end = began + length
        await _until_done([asyncio.ensure_future(caller()) for _ in range(1 if whole else callers)], function)
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
    count = done * (batch if whole else 1)
    return {"rate": count / took, "cpu_us": cpu / count * 1e6, "wrong": wrong}


async def _until_done(tasks: Sequence[asyncio.Future[None]], function: object) -> None:
    futures = getattr(function, "__self__", None)
    while not all(task.done() for task in tasks):
        await asyncio.wait(tasks, timeout=0.05)
        if isinstance(futures, Futures):
            futures.resolve()  # they are resolved by other callers: the last ones of a run have none
    for task in tasks:
        task.result()


if __name__ == "__main__":
    library, options = sys.argv[1], json.loads(sys.argv[2])
    called = function_of(library, Model(options.pop("a_ms"), options.pop("b_ms")), options["batch"])
    import uvloop

    print(json.dumps(uvloop.run(load(called, **options, whole=library == "model"))))
