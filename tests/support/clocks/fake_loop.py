"""An event loop whose time jumps to the next timer when nothing else is left to do: sleeps cost nothing.

`run(main())` runs a coroutine on it. Real I/O does not belong here: while a socket is awaited, time would
jump past every timeout. When every task waits and no timer is set, `Stuck` says so instead of hanging.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Stuck(AssertionError):
    """Every task waits for something that nothing is going to do."""


class _Selector(selectors.SelectSelector):
    """Never sleeps; returns to the loop how long it would have slept."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise Stuck("every task waits and no timer is set")
        self.skipped += timeout
        return ready


class _DueNow(asyncio.TimerHandle):
    """What uvloop gives for a timer that is due in less than half a millisecond: it has no time."""

    __slots__ = ()

    def when(self) -> float:
        raise AttributeError("'Handle' object has no attribute 'when'")


class FakeLoop(asyncio.SelectorEventLoop):
    """See the module's first lines; begins at `start` seconds."""

    def __init__(self, start: float = 1000.0) -> None:
        self._start = start
        self._fake_selector = _Selector()
        super().__init__(self._fake_selector)
        # NB: a timer is due when it is closer than this. 0 would never be closer: time jumps exactly to it.
        self._clock_resolution = 1e-9

    def call_at(self, when: float, *arguments: Any, **context: Any) -> asyncio.TimerHandle:
        timer = super().call_at(when, *arguments, **context)
        if when - self.time() < 0.0005:
            timer.__class__ = _DueNow
        return timer

    def time(self) -> float:
        return self._start + self._fake_selector.skipped


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a new `FakeLoop` and close it."""
    with asyncio.Runner(loop_factory=FakeLoop) as runner:
        return runner.run(main)


async def settle(turns: int = 20) -> None:
    """Let everything that is ready run, without letting time pass."""
    for _ in range(turns):
        await asyncio.sleep(0)
