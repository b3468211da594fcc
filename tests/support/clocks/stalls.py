"""Measures how long the machine kept a runnable thread from running, which no program can make up for.

A time that is promised is measured on a machine that may do much else beside the test. What is lost so
meanwhile is the machine's.
"""

from __future__ import annotations

import threading
import time
from typing import Self

TICK = 0.02
LATE = 0.05
"""Seconds by which a tick is late before it counts: a scheduler's usual turn."""


class Stalls:
    """A context manager that watches the machine as long as it is open."""

    def __init__(self) -> None:
        self.lost = 0.0
        """Seconds that were lost so far, together."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        due = time.monotonic() + TICK
        while not self._ended.wait(TICK):
            late = time.monotonic() - due
            if late > LATE:
                self.lost += late
            due = time.monotonic() + TICK

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
