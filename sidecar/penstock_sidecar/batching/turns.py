"""Schedules the dispatcher's looks at its queue: after each turn of the loop with news, and by a timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from penstock_wire.process import log
from penstock_wire.timers import EarliestTimer

RETRY_SECONDS = 1.0
"""Seconds until the next look after a look that failed, which is a bug of the sidecar."""


class Timer(Protocol):
    """Calls back at a time."""

    def ring_at(self, when: float) -> None:
        """Ring at this time of the clock; it replaces times that were set before."""
        ...

    def cancel(self) -> None:
        """Do not ring."""
        ...


MakeTimer = Callable[[Callable[[], object]], Timer]
"""Makes a timer that calls the given function."""


class Turns:
    """Calls `look` soon after `schedule`, once for several calls, and at the time that `look` last returned.

    Args:
        look: returns when to call it again, in the clock's time; None if only an event can require it.
        clock: the monotonic time in seconds.
        exact_timer: makes a timer for times that must be met to less than the loop's resolution.

    Attributes:
        alive: whether `look` is called at all.
        scheduled: the next look is scheduled.
    """

    __slots__ = (
        "_clock",
        "_exact",
        "_look",
        "_loop",
        "_reads_on",
        "_rings_at",
        "_timer",
        "alive",
        "scheduled",
    )

    def __init__(
        self,
        look: Callable[[], float | None],
        clock: Callable[[], float],
        exact_timer: MakeTimer | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._look = look
        self._clock = clock
        self._timer = EarliestTimer(self.schedule, clock)
        self._exact: Timer = (
            EarliestTimer(self.schedule, clock) if exact_timer is None else exact_timer(self.schedule)
        )
        self._rings_at = 0.0
        self._reads_on = False
        self.alive = False
        self.scheduled = False

    def schedule(self) -> None:
        """Look in the loop's next turn."""
        if not self.scheduled:
            self.scheduled = True
            self._loop.call_soon(self._turn)

    def schedule_after_reading(self) -> None:
        """Look after the loop has read the data that has come to its sockets."""
        self._reads_on = True
        self.schedule()

    def ring_exactly(self, when: float) -> None:
        """Look at this time as well; 0 cancels it."""
        if when == self._rings_at:
            return
        self._rings_at = when
        self._exact.cancel()
        if when:
            self._exact.ring_at(when)

    def _turn(self) -> None:
        self.scheduled = self._reads_on
        if self._reads_on:
            # NB: a `call_soon` from here is called after the loop has read its sockets.
            self._reads_on = False
            self._loop.call_soon(self._turn)
            return
        if not self.alive:
            return
        try:
            again = self._look()
        except Exception as error:
            log("dispatch failed", level="error", error=repr(error))
            again = self._clock() + RETRY_SECONDS
        if again is not None:
            self._timer.ring_at(again)
