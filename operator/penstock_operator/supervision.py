"""Retries the first calls of a leader, and restarts loops that fail while it leads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from penstock_operator.clock import Clock
from penstock_operator.errors import ClusterError, LeaseLost, StartError

PAUSE = 1.0
"""Seconds until a loop that failed is started again."""
FIRST_WAIT, LONGEST_WAIT = 0.5, 5.0
REFUSED_SECONDS = 60.0
"""Seconds without the right to begin after which another operator gets its chance."""


async def until_done(
    act: Callable[[], Awaitable[None]],
    *,
    clock: Clock,
    log: Callable[..., None],
    failing: Callable[[str], None],
) -> None:
    """Repeat a call until it succeeds.

    Args:
        failing: called with the reason of each failure, and with "" on success.

    Raises:
        LeaseLost: the call raised it.
        StartError: the apiserver has refused the call for `REFUSED_SECONDS` for want of rights.
    """
    delay, refused_since = FIRST_WAIT, None
    while True:
        try:
            await act()
        except LeaseLost:
            raise
        except Exception as error:
            text = str(error) if isinstance(error, ClusterError) else f"{type(error).__name__}: {error}"
            refused = isinstance(error, ClusterError) and error.status == 403
            now = clock.time()
            refused_since = (now if refused_since is None else refused_since) if refused else None
            if refused_since is not None and now - refused_since >= REFUSED_SECONDS:
                raise StartError(f"refused for {now - refused_since:.0f} s: {text}") from error
            log("start-up call failed", level="warning", error=text, retry_seconds=delay)
            failing(text)
        else:
            failing("")
            return
        await clock.sleep(delay)
        delay = min(delay * 2, LONGEST_WAIT)


async def keep_running(
    name: str, loop: Callable[[], Awaitable[None]], *, clock: Clock, log: Callable[..., None]
) -> None:
    """Run a loop, and start it again whenever it raises; return when it returns.

    Raises:
        LeaseLost: the loop raised it; nothing is written after that.
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
