"""A clock that stands still until a test turns it."""

from __future__ import annotations

import asyncio
import datetime
import heapq
import itertools
from collections.abc import Callable
from typing import Any

_START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class HandTimer:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class HandClock:
    """Implements penstock_operator.clock.Clock; `advance` runs what falls due, in order."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        self._count = itertools.count()
        self._timers: list[tuple[float, int, HandTimer, Callable[[], Any]]] = []

    @property
    def waiting(self) -> int:
        """Calls that wait for their time."""
        return sum(not timer.cancelled for _, _, timer, _ in self._timers)

    def time(self) -> float:
        return self._now

    def now(self) -> datetime.datetime:
        return _START + datetime.timedelta(seconds=self._now)

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any) -> HandTimer:
        timer = HandTimer()
        heapq.heappush(self._timers, (when, next(self._count), timer, lambda: callback(*args)))
        return timer

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.call_at(self._now + seconds, lambda: future.done() or future.set_result(None))
        await future

    def turn(self, seconds: float) -> None:
        """Let time pass and run what falls due, without giving way to tasks."""
        until = self._now + seconds
        while self._timers and self._timers[0][0] <= until:
            when, _, timer, run = heapq.heappop(self._timers)
            self._now = max(self._now, when)
            if not timer.cancelled:
                run()
        self._now = until

    async def advance(self, seconds: float, *, rounds: int = 50) -> None:
        """Let time pass one due callback at a time, giving woken tasks their turn after each."""
        await settle(rounds)
        until = self._now + seconds
        while self._timers and self._timers[0][0] <= until:
            when, _, timer, run = heapq.heappop(self._timers)
            self._now = max(self._now, when)
            if not timer.cancelled:
                run()
            await settle(rounds)
        self._now = until
        await settle(rounds)


async def settle(rounds: int = 50) -> None:
    """Give every ready task its turns."""
    for _ in range(rounds):
        await asyncio.sleep(0)
