"""Paces the copies for a mirror whose answers are too large.

An answer that is too large is dropped when its head arrives, which costs the connection: the next copy needs
a new connection, and data on its way is lost. So a pause follows; then a single copy is sent as a try, and
its answer ends the pause or doubles it. A mirror whose answers are all too large gets one copy a second.
"""

from __future__ import annotations

FIRST_SECONDS = 1 / 16
"""The pause after a first answer that is too large: short, so that a rare large answer costs few copies."""
MOST_SECONDS = 1.0
"""The longest pause."""


class LargeAnswers:
    """The pause of one mirror due to large answers. All times are seconds of the same clock."""

    __slots__ = ("_began", "_next", "_pause")

    def __init__(self) -> None:
        self._pause = 0.0
        """The time between two tries; 0 = no pause, each copy is sent."""
        self._began = 0.0
        """When the pause began: answers to copies sent before are ignored."""
        self._next = 0.0

    def holds_back(self, now: float) -> bool:
        """Whether no copy is to be sent now."""
        return now < self._next

    def sent(self, now: float) -> None:
        """Note that a copy is sent: during a pause, it is the only one until the next try."""
        if self._pause:
            self._next = now + self._pause

    def too_large(self, sent: float, now: float) -> None:
        """Note that the answer to a copy sent at `sent` is too large."""
        if sent < self._began:
            return
        self._pause = min(2 * self._pause, MOST_SECONDS) or FIRST_SECONDS
        self._began = now
        self._next = now + self._pause

    def whole(self, sent: float) -> None:
        """Note that the model's answer to a copy sent at `sent` was read whole."""
        if self._pause and sent >= self._began:
            self._pause = self._next = 0.0
