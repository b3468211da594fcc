"""Measures whether the router is short of CPU: if so, work that no client waits for is skipped."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock_wire.control.processor_wait import ProcessorWait

SHARE = 0.9
"""A thread that runs or waits for a core for this share of the time is short of CPU: it can use only one."""
SAMPLE_SECONDS = 0.2


class Pressure:
    """The share of time for which the calling thread, which serves requests, ran or waited for a core.

    Args:
        clock: seconds, monotonic.
        used: seconds of CPU that the thread has used.
        waited: the share of time for which it waited; see `ProcessorWait.share`.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.thread_time,
        waited: Callable[[], float | None] | None = None,
    ) -> None:
        self._clock = clock
        self._used = used
        self._waited = ProcessorWait().share if waited is None else waited
        self._since = clock()
        self._before = used()
        self._short = False

    def short(self) -> bool:
        """Whether the thread was short of CPU lately."""
        now = self._clock()
        span = now - self._since
        if span >= SAMPLE_SECONDS:
            used = self._used()
            self._short = (used - self._before) / span + (self._waited() or 0.0) >= SHARE
            self._since, self._before = now, used
        return self._short
