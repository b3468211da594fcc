"""Comparisons that wait for a moment of the router's loop.

They run in the loop itself, in pieces of some tenths of a millisecond, a turn of the loop each: in a thread
they would hold up the loop for longer, since a thread that computes gives the interpreter away only every
5 ms. What all of them may use in a second is bounded, and so is what waits; beyond, pairs of answers are not
compared, and that is counted.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from penstock_router.compare import Comparison
from penstock_router.mirror_totals import MirrorSeries
from penstock_wire.process import log

SHARE = 0.05
"""Of a core's time for all comparisons of a router; so many seconds of it at once."""
MAX_WAITING = 16
A_STEP = 1000
"""Values that are compared in one piece."""
BUDGET, BROKEN = "budget", "broken"
"""Why two answers were not compared: too many were; our own mistake."""


class CompareQueue:
    """All comparisons of a router.

    Args:
        clock: seconds, monotonic and finer than a millisecond.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._left = SHARE
        self._since = clock()
        self._queue: deque[tuple[Comparison, MirrorSeries]] = deque()

    def add(self, comparison: Comparison, series: MirrorSeries) -> None:
        """Do a comparison, now where that costs nothing.

        Args:
            comparison: has not begun.
            series: where it is counted.
        """
        if comparison.settled:
            _count(comparison, series)
            return
        now = self._clock()
        self._left = min(SHARE, self._left + SHARE * (now - self._since))
        self._since = now
        if self._left <= 0 or len(self._queue) >= MAX_WAITING:
            series.skip(BUDGET)
            return
        self._queue.append((comparison, series))
        if len(self._queue) == 1:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        """Do a piece of the first."""
        comparison, series = self._queue[0]
        begun = self._clock()
        try:
            over = comparison.step(A_STEP)
            if over:
                _count(comparison, series)
        except Exception as unforeseen:  # the others go on
            log("comparison failed", level="error", error=repr(unforeseen), mirror=series.copies.backend)
            series.skip(BROKEN)
            over = True
        self._left -= self._clock() - begun
        if over:
            self._queue.popleft()
        if self._queue:
            asyncio.get_running_loop().call_soon(self._go_on)


def _count(comparison: Comparison, series: MirrorSeries) -> None:
    if comparison.skipped:
        series.skip(comparison.skipped)
    else:
        series.compare(comparison.difference)
