"""Runs comparisons of answers in the router's event loop, bit by bit.

They run in the loop itself, in pieces of some tenths of a millisecond, one per turn of the loop: a thread
would block the loop for longer, since a computing thread releases the interpreter only every 5 ms. The time
that they use per second is bounded, and so is the queue; beyond these bounds, pairs of answers are not
compared, and are counted as skipped.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from penstock_router.mirroring.compare import Comparison
from penstock_router.mirroring.totals import MirrorSeries
from penstock_wire.process import log

SHARE = 0.05
"""The share of a core's time for all comparisons of a process; also the seconds that can be used at once."""
LATELY_SECONDS = 10.0
"""For so long after its last comparison a queue has a part of that."""
MAX_WAITING = 16
A_STEP = 1000
"""Values that are compared in one piece."""
BUDGET, BROKEN = "budget", "broken"
"""Why two answers were not compared: the budget was used up; a bug in the router."""


class Shares:
    """Divides the time for comparisons among the queues of a process that had some lately."""

    def __init__(self) -> None:
        self._used: dict[int, float] = {}  # when last, by the queue's id; the latest comes last

    def of(self, queue: CompareQueue, now: float) -> float:
        """Return the share of a core's time that a queue has, which it uses now."""
        used = self._used
        used.pop(id(queue), None)
        used[id(queue)] = now
        while now - used[first := next(iter(used))] > LATELY_SECONDS:
            del used[first]
        return SHARE / len(used)


class CompareQueue:
    """All comparisons of a router.

    Args:
        clock: seconds, monotonic and finer than a millisecond.
        shares: of the process; None = it is alone.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, *, shares: Shares | None = None
    ) -> None:
        self._shares = Shares() if shares is None else shares
        self._clock = clock
        self._left = SHARE
        self._since = clock()
        self._queue: deque[tuple[Comparison, MirrorSeries]] = deque()

    def add(self, comparison: Comparison, series: MirrorSeries) -> None:
        """Count a comparison that is settled already, else queue it.

        Args:
            comparison: not begun, or settled.
        """
        if comparison.settled:
            _count(comparison, series)
            return
        now = self._clock()
        share = self._shares.of(self, now)
        self._left = min(share, self._left + share * (now - self._since))
        self._since = now
        if self._left <= 0 or len(self._queue) >= MAX_WAITING:
            series.skip(BUDGET)
            return
        self._queue.append((comparison, series))
        if len(self._queue) == 1:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        """Do a piece of the first comparison."""
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
