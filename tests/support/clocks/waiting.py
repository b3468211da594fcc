"""Waits for states without an event: looks now and then, with a deadline that a busy machine keeps."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

SECONDS = 20.0 if "PENSTOCK_MUTANT_FOLDER" in os.environ else 120.0
"""Reached where what is waited for never comes, and nowhere else; a mutant may be caught by just that."""


async def until(look: Callable[[], bool]) -> None:
    """Let the loop turn until `look` is true (raises TimeoutError after `SECONDS`)."""
    async with asyncio.timeout(SECONDS):
        while not look():  # noqa: ASYNC110 - the state does not have an event
            await asyncio.sleep(0.005)
