"""Loops that are to run for as long as the process leads, whatever goes wrong in one of their rounds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from penstock_operator.clock import Clock
from penstock_operator.errors import LeaseLost

PAUSE = 1.0
"""Seconds until a loop that failed is started again."""


async def keep_running(
    name: str, loop: Callable[[], Awaitable[None]], *, clock: Clock, log: Callable[..., None]
) -> None:
    """Run a loop, and start it again whenever it raises; returns when it does.

    Args:
        name: the loop's, for the log.
        loop: runs until cancelled or done.
        clock: time.
        log: called with a constant message and fields.

    Raises:
        LeaseLost: the loop did: nobody acts after that.
    """
    while True:
        try:
            return await loop()
        except LeaseLost:
            raise
        except Exception as error:
            log(
                "loop failed", level="error", loop=name, error=f"{type(error).__name__}: {error}",
                retry_seconds=PAUSE,
            )  # fmt: skip
        await clock.sleep(PAUSE)
