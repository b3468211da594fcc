"""Whether the router is short of processors: then what no client waits for is left undone."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock_wire.control.processor_wait import ProcessorWait

SHARE = 0.9
"""Of a core, which is all that one thread can use: busy or waiting for one for longer, it is short."""
SAMPLE_SECONDS = 0.2


class Pressure:
    """How much of the time the calling thread, which serves, ran or waited for a processor.

    Args:
        clock: seconds, monotonic.
        used: seconds of CPU that the thread has used.
        waited: the share of the time in which it waited; see `ProcessorWait.share`.
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
        """Whether it was short of processors lately."""
        now = self._clock()
        span = now - self._since
        if span >= SAMPLE_SECONDS:
            used = self._used()
            self._short = (used - self._before) / span + (self._waited() or 0.0) >= SHARE
            self._since, self._before = now, used
        return self._short
