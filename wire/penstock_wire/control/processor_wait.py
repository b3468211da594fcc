"""Measures how long the serving thread waits for a processor, as Linux counts it; part of each report."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Three numbers of the calling thread: nanoseconds run, nanoseconds runnable without running, time slices."""
SHORTEST_SECONDS = 0.5
"""The shortest span that a share is taken over; a call before its end gets the last share."""


class ProcessorWait:
    """The share of time in which the calling thread was runnable and not running.

    The kernel counts a thread as waiting while others have the processors, and also while its control group
    is throttled (its CPU limit is used up): in both cases it is short of processors. A sleeping thread does
    not wait, however full its node is.

    Args:
        path: the kernel's counters; must be read in the thread that they describe.
        clock: seconds, monotonic.
    """

    def __init__(self, path: Path = SCHEDSTAT, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._last: float | None = None
        self._since = clock()
        self._waited = self._read()

    def share(self) -> float | None:
        """Return the share since the last one was taken, 0 to 1; None if the kernel has no counters."""
        now = self._clock()
        span = now - self._since
        if span < SHORTEST_SECONDS:
            return self._last
        before, waited = self._waited, self._read()
        self._since, self._waited = now, waited
        if before is None or waited is None:
            self._last = None
        else:
            # NB: a wait that began before the span counts when it ends, so it can exceed the span.
            self._last = min(1.0, max(0.0, (waited - before) / 1e9 / span))
        return self._last

    def _read(self) -> int | None:
        try:
            return int(self._path.read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return None
