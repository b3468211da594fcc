"""Time as an argument: the loop's clock in production, a fake clock in tests."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Timer(Protocol):
    """The result of `Clock.call_at`."""

    def cancel(self) -> None:
        """Cancel the callback."""


class Clock(Protocol):
    """Monotonic time for intervals, wall time for objects in the cluster."""

    def time(self) -> float:
        """Monotonic seconds."""

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any) -> Timer:
        """Call back once `time()` has reached `when`.

        Args:
            callback: called without waiting.
        """

    async def sleep(self, seconds: float) -> None:
        """Wait.

        Args:
            seconds: how long; 0 yields once to other tasks.
        """

    def now(self) -> datetime.datetime:
        """Wall time, UTC."""


class LoopClock:
    """The running event loop's clock."""

    def time(self) -> float:
        """Monotonic seconds of the loop."""
        return time.monotonic()

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any) -> Timer:
        loop = asyncio.get_running_loop()
        return loop.call_at(loop.time() + max(0.0, when - self.time()), callback, *args)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def now(self) -> datetime.datetime:
        """Wall time, UTC."""
        return datetime.datetime.now(datetime.UTC)


async def run_until(clock: Clock, work: Coroutine[Any, Any, T], deadline: Callable[[], float]) -> T:
    """Run a coroutine, and cancel it at a deadline that can move while it runs.

    Args:
        deadline: returns monotonic seconds; called again when that time has come.

    Raises:
        TimeoutError: the deadline came first.
    """
    task = asyncio.ensure_future(work)
    late = False
    timer: Timer | None = None

    def look() -> None:
        nonlocal late, timer
        when = deadline()
        if clock.time() < when:
            timer = clock.call_at(when, look)
        else:
            late = True
            task.cancel()

    look()
    try:
        await asyncio.wait({task})
    finally:
        if timer is not None:
            timer.cancel()
        task.cancel()
    if late and task.cancelled():
        raise TimeoutError
    return task.result()


def rfc3339(moment: datetime.datetime) -> str:
    """Format a time as Kubernetes does, in whole seconds."""
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(moment: datetime.datetime) -> str:
    """Format a time as Kubernetes' MicroTime."""
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
