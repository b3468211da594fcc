"""The two ways to wait for a handle's call: as a coroutine, and as blocking code in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


async def in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(work)


async def awaited(call: Any) -> Any:
    """A call is awaitable but not a coroutine, of which alone a task can be made."""
    return await call
