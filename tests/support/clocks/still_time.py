"""Time that passes when a test says so, for timers beside real sockets, whatever the machine does."""

from __future__ import annotations

import time

import pytest


class StillTime:
    """The process's monotonic time, and with it the loop's, from now on.

    NB: a deadline of the test's own stands still as well; pytest-timeout's does not.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: self._now)

    def passes(self, seconds: float) -> None:
        """Timers of this time are due in the loop's next turn."""
        self._now += seconds
