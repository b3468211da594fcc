"""The model's throughput in its latest batches: for `Retry-After`, and for how long a batch may wait."""

from __future__ import annotations

_WEIGHT = 0.2
MAX_RETRY_AFTER = 60.0
"""Maximum seconds that a refused caller is asked to wait."""


class Throughput:
    """Exponentially weighted means over the batches that the model answered."""

    def __init__(self) -> None:
        self.items = 0.0
        self.seconds = 0.0

    def observe(self, items: int, seconds: float) -> None:
        """Learn from an answered batch.

        Args:
            items: items it held.
            seconds: the time it took.
        """
        if not self.items:
            self.items, self.seconds = float(items), seconds
            return
        self.items += _WEIGHT * (items - self.items)
        self.seconds += _WEIGHT * (seconds - self.seconds)

    def drain_seconds(self, items: int, slots: int) -> float:
        """How many seconds `items` items take, with `slots` concurrent batches; 0 while unknown."""
        if not self.items:
            return 0.0
        return items / self.items * self.seconds / slots

    def retry_after(self, items: int, slots: int) -> float:
        """How many seconds until a refused caller may find room: by then half the queue has been answered."""
        return min(MAX_RETRY_AFTER, max(1.0, self.drain_seconds(items, slots) / 2))
