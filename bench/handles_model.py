"""What `bench.handles` calls, for the SDK's server: echoes, at once or after a while."""

from __future__ import annotations

import asyncio
from typing import Any

import penstock


class Echo:
    """Answers with its items."""

    @penstock.batched
    async def echo(self, items: list[Any]) -> list[Any]:
        """At once."""
        return items

    async def __call__(self, milliseconds: float) -> float:
        """After so many milliseconds, those of one batch beside each other."""
        await asyncio.sleep(milliseconds / 1000)
        return milliseconds
