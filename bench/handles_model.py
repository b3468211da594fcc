"""What `bench.handles` calls, for the SDK's server: echoes, at once or after a while, and what calls it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import penstock


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
