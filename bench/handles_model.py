"""What `bench.handles` and `bench.sdk` call: echoes, at once or after a while, their caller, and streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import penstock

STEPS = 8
"""Of a stream."""


class Echo:
    """Answers with its items."""

    def __init__(self) -> None:
        self.hanging = 0
        self.ended = 0.0

    @penstock.batched
    async def echo(self, items: list[Any]) -> list[Any]:
        """At once."""
        return items

    async def __call__(self, milliseconds: float) -> float:
        """After so many milliseconds, those of one batch beside each other."""
        await asyncio.sleep(milliseconds / 1000)
        return milliseconds

    @penstock.batched
    async def hang(self, items: list[Any]) -> list[Any]:
        """Until it is cancelled."""
        self.hanging += 1
        try:
            await asyncio.sleep(3600)
        finally:
            self.hanging -= 1
            self.ended = time.monotonic()
        return items

    @penstock.batched
    async def state(self, items: list[Any]) -> list[tuple[int, float]]:
        """How many calls hang, and when the last one has ended, by the machine's monotonic clock."""
        return [(self.hanging, self.ended) for _ in items]


class Caller:
    """Calls another endpoint for each request.

    Args:
        echo: the endpoint of `Echo`.
    """

    def __init__(self, echo: penstock.Handle) -> None:
        self._echo = echo

    async def __call__(self, item: Any) -> Any:
        """Hangs as long as what it calls."""
        return await self._echo.hang(item)


class Stamps:
    """Streams to many clients when it wrote, and to how many."""

    @penstock.batched
    def write(self, items: list[Any]) -> Iterator[list[Any]]:
        """A step takes 20 ms, as that of a language model; each piece is the time at its end."""
        for _ in range(STEPS):
            time.sleep(0.02)
            yield [[time.monotonic(), len(items)]] * len(items)
