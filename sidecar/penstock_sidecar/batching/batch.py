"""The state of a batch while it holds its slot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock_sidecar.estimators.wait_estimator import SlotCycle
from penstock_sidecar.queue.request import Slice
from penstock_wire.http import GiveUp

NEVER: Final = float("inf")


class Batch:
    """A batch, which holds one slot.

    Args:
        parts: its parts of requests.
        items: the items of all parts.
        limit: the items that it could have held.
        began: when it was cut.

    `sent` is when it was first sent to the model; `give_up` ends that exchange if no `task` waits for it.
    `waits` has the seconds that its requests have waited, for those that begin in this batch. `turn` is the
    slot's turn with it, set by the cutter. `merged`: some of its requests came while the slot was held.
    `given_up`: it was ended since no client waits for it. `drop_departed` is set while its answer is a
    stream; it drops clients that leave before their own part of it has begun.
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
        self.done_parts = 0  # at least this many parts at its beginning have their outcomes

    def is_wanted(self) -> bool:
        """Whether one of its requests still waits for its outcome."""
        parts, count = self.parts, self.done_parts
        while count < len(parts) and parts[count].work.done:
            count += 1
        self.done_parts = count
        return count < len(parts)

    def streams(self, drop_departed: Callable[[], None]) -> None:
        """Record that the answer is a stream that has begun; see `streaming.StreamedSends.send`."""
        self.drop_departed = drop_departed
