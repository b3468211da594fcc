"""What one batch is while it holds its slot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock_sidecar.estimators.wait_estimator import SlotCycle
from penstock_sidecar.queue.request import Slice
from penstock_wire.http import GiveUp

NEVER: Final = float("inf")


class Batch:
    """What holds one slot.

    Args:
        parts: what it holds.
        items: their items.
        limit: what it could have held.
        began: when it was cut.

    `sent` is when it went to the model first; `give_up` ends that exchange where no `task` waits for it. Of
    the requests that begin here, `waits` has the seconds that they have waited. `turn` is its slot's time
    with it, which the dispatcher notes; `merged` says that some of it came while the slot was held for it.
    `given_up` says that it was ended since nobody waits for it; `drop_departed` is there while its answer is
    a stream, for those that leave before their own part of it has begun.
    """

    __slots__ = (
        "began",
        "begun",
        "done_parts",
        "drop_departed",
        "due",
        "give_up",
        "given_up",
        "in_model",
        "items",
        "limit",
        "merged",
        "parts",
        "sent",
        "task",
        "turn",
        "waits",
    )

    def __init__(self, parts: list[Slice], items: int, limit: int, began: float) -> None:
        self.began = self.sent = began
        self.turn: SlotCycle | None = None
        self.parts = parts
        self.items = items
        self.limit = limit
        self.waits: list[float] = []
        self.begun = self.merged = self.given_up = False
        self.in_model = True
        self.due = NEVER
        self.task: asyncio.Task[None] | None = None
        self.give_up: GiveUp | None = None
        self.drop_departed: Callable[[], None] | None = None
        self.done_parts = 0  # so many at its beginning have their outcomes

    def is_wanted(self) -> bool:
        """Whether one of its requests still waits for its outcome."""
        parts, count = self.parts, self.done_parts
        while count < len(parts) and parts[count].work.done:
            count += 1
        self.done_parts = count
        return count < len(parts)

    def streams(self, drop_departed: Callable[[], None]) -> None:
        """Its answer is a stream that has begun; see `streaming.StreamedSends.send`."""
        self.drop_departed = drop_departed
