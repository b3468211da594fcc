"""The slots: each is the right to have one batch in the model."""

from __future__ import annotations


class Slots:
    """Slots that batches hold while they are with the model.

    Attributes:
        count: present number of slots.
        busy: slots that are held; more than `count` if there were more slots before.
        paused: no batch may begin, whatever is free.
    """

    __slots__ = ("busy", "count", "paused")

    def __init__(self) -> None:
        self.count = 1
        self.busy = 0
        self.paused = False

    @property
    def free(self) -> int:
        """Batches that may begin now."""
        if self.paused or self.busy >= self.count:
            return 0
        return self.count - self.busy
