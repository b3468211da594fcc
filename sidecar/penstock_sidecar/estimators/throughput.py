"""How fast the model works, by its latest batches: for `Retry-After`, and for how long a batch may wait."""

from __future__ import annotations

_WEIGHT = 0.2
MAX_RETRY_AFTER = 60.0
"""Seconds that a refused caller is asked to wait at most."""


class Throughput:
    """Exponentially weighted means over the batches that the model answered."""

    def __init__(self) -> None:
        self.items = 0.0
        self.seconds = 0.0

    def observe(self, items: int, seconds: float) -> None:
        """Take in one answered batch.

        Args:
            items: items it held.
            seconds: what it took.
        """
        if not self.items:
            self.items, self.seconds = float(items), seconds
            return
        self.items += _WEIGHT * (items - self.items)
        self.seconds += _WEIGHT * (seconds - self.seconds)

    def drain_seconds(self, items: int, slots: int) -> float:
        """Seconds until so many items are through, with `slots` batches at once; 0 while nothing is known."""
        if not self.items:
            return 0.0
        return items / self.items * self.seconds / slots

    def retry_after(self, items: int, slots: int) -> float:
        """Seconds after which a refused caller may find room: half the queue is through by then."""
        return min(MAX_RETRY_AFTER, max(1.0, self.drain_seconds(items, slots) / 2))
