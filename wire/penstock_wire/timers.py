"""A timer for the earliest of many times, such as deadlines, most of which are cancelled before they come."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

TIMER_SLACK = 0.0005
"""uvloop's timers have a resolution of 1 ms and can fire this early."""
STALL = 0.1
"""A timer that is late by more seconds has been kept up, with all else of the process."""


class EarliestTimer:
    """Calls `ring` at the earliest of the times asked for since it rang last, and at no other.

    After a stall of the process, it first lets the loop read its sockets: an answer may have come in time.

    Args:
        ring: handles what is due, and asks for the next time.
        clock: monotonic time in seconds, the clock of these times.
    """

    __slots__ = ("_clock", "_handle", "_loop", "_ring", "_when")

    def __init__(self, ring: Callable[[], object], clock: Callable[[], float]) -> None:
        self._ring = ring
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.Handle | None = None
        self._when = math.inf

    def ring_at(self, when: float) -> None:
        """Ring at this time, or at an earlier one asked for before."""
        if when < self._when:
            self.cancel()
            self._when = when
            # NB: not `call_at`: uvloop's time is cached and in whole milliseconds, so clocks can differ.
            self._handle = self._loop.call_later(max(0.0, when - self._clock()), self._rang)

    def cancel(self) -> None:
        """Do not ring."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
            self._when = math.inf

    def _rang(self) -> None:
        if self._clock() - self._when > STALL:
            # NB: uvloop calls what is due, then what is called soon, and reads only then.
            self._handle = self._loop.call_soon(self._read_first)
        else:
            self._ring_now()

    def _read_first(self) -> None:
        self._handle = self._loop.call_soon(self._ring_now)

    def _ring_now(self) -> None:
        self._handle = None
        self._when = math.inf
        self._ring()
