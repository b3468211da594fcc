"""Measures once a second how busy the process is, and sets the interval of reports accordingly."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock_operator.clock import Clock
from penstock_operator.control.report_interval import SHORTEST, next_interval

PERIOD = 1.0


class LoadMonitor:
    """Holds the current interval of reports.

    Args:
        cpu: CPU seconds of the process so far, all threads.
        changed: called with the interval in seconds after each measurement.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        cpu: Callable[[], float] = time.process_time,
        changed: Callable[[float], None] = lambda _interval: None,
    ) -> None:
        self._clock = clock
        self._cpu = cpu
        self._changed = changed
        self.interval = SHORTEST
        """Seconds between two reports of a pod, now."""

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            began, used = self._clock.time(), self._cpu()
            await self._clock.sleep(PERIOD)
            took = max(self._clock.time() - began, PERIOD)
            busy = (self._cpu() - used) / took
            self.interval = next_interval(self.interval, busy=busy, late=took - PERIOD)
            self._changed(self.interval)
