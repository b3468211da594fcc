"""Logs a line for each answer of 500 or above that a client gets, the router's own and the model's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from penstock_wire.process import log

MOST_LINES: Final = 20
"""Lines that may be written at once."""
LINES_A_SECOND: Final = 2.0
"""Lines a second beyond these."""


class ErrorLog:
    """A router's log of errors; its lines are bounded in rate, and the next line counts what was left out.

    Args:
        clock: seconds, monotonic.
        where: fields of each line.
    """

    def __init__(self, clock: Callable[[], float], where: Mapping[str, str]) -> None:
        self._clock = clock
        self._where = where
        self._lines = float(MOST_LINES)
        self._since = clock()
        self._left_out = 0

    def write(
        self, *, request_id: str, status: int, reason: str, endpoint: str, backend: str, pod: str
    ) -> None:
        """Log an answer, unless too many were logged just before.

        Args:
            request_id: the request's `x-request-id`.
            reason: why; `MODEL_ANSWER` for a model's own error.
            backend: the backend that was asked, or is to be; empty for none.
            pod: the pod that was asked last; empty for none.
        """
        now = self._clock()
        self._lines = min(float(MOST_LINES), self._lines + LINES_A_SECOND * (now - self._since))
        self._since = now
        if self._lines < 1.0:
            self._left_out += 1
            return
        self._lines -= 1.0
        log(
            "an error was answered",
            level="warning",
            request_id=request_id,
            status=status,
            reason=reason,
            endpoint=endpoint,
            backend=backend or None,
            pod=pod or None,
            left_out=self._left_out or None,
            **self._where,
        )
        self._left_out = 0
