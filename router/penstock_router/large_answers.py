"""When a mirror whose answers are too large gets its next copy.

An answer that is too large is given up by its head, and that costs the connection: the next copy needs a new
one, and what was on its way is thrown away. So after such an answer there is a pause; then one copy is a try,
whose answer ends the pause or doubles it. A mirror all of whose answers are too large gets one copy a second.
"""

from __future__ import annotations

FIRST_SECONDS = 1 / 16
"""The pause after a first answer that is too large: one such answer among many costs few copies."""
MOST_SECONDS = 1.0
"""The longest pause."""


class LargeAnswers:
    """What is known of the size of one mirror's answers. All times are seconds of one clock."""

    __slots__ = ("_began", "_next", "_pause")

    def __init__(self) -> None:
        self._pause = 0.0
        """Between two tries; 0 = there is none, and each copy is sent."""
        self._began = 0.0
        """When it began: answers to copies from before say nothing new."""
        self._next = 0.0

    def holds_back(self, now: float) -> bool:
        """Whether a copy is not to be sent now."""
        return now < self._next

    def sent(self, now: float) -> None:
        """A copy is sent: in a pause it is the only one until the next try."""
        if self._pause:
            self._next = now + self._pause

    def too_large(self, sent: float, now: float) -> None:
        """A copy that was sent at `sent` has had an answer that is too large."""
        if sent < self._began:
            return
        self._pause = min(2 * self._pause, MOST_SECONDS) or FIRST_SECONDS
        self._began = now
        self._next = now + self._pause

    def whole(self, sent: float) -> None:
        """A copy that was sent at `sent` has had an answer of the model's that was taken whole."""
        if self._pause and sent >= self._began:
            self._pause = self._next = 0.0
