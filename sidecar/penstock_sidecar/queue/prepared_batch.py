"""The next batch, prepared while the model has another one.

What a batch holds is decided when a slot falls free. Where a whole batch waits by then, most of the work can
be done before: a draft is what `Queue.cut` would return if it were called now, and what joins its items. It
takes nothing out of the queue and decides nothing. Whatever could change the next cut drops it: a request
that leaves, one that comes with an earlier deadline, other limits.
"""

from __future__ import annotations

from penstock_sidecar.queue.request import Slice
from penstock_sidecar.queue.structures import KeyQueue, SubQueue
from penstock_wire.headers import Headers

MAX_BYTES = 1 << 20
"""Bytes of items beyond which no batch is prepared: copying them for nothing would cost too much."""


class PreparedBatch:
    """A full batch of whole requests, the first ones of a line.

    Args:
        line: the line.
        parts: the requests, in its order.
        items: their items: as many as a batch may have.
        size: the bytes of their items.

    `due` is the earliest of their deadlines, `expires` until when the last of their clients waits. `headers`
    and `body` are what the batch sends, but for the time that is left; None until they are made.
    """

    __slots__ = ("body", "bytes", "due", "expires", "headers", "items", "line", "parts")

    def __init__(self, line: KeyQueue, parts: list[Slice], items: int, size: int) -> None:
        self.line = line
        self.parts = parts
        self.items = items
        self.bytes = size
        self.due = parts[0].work.deadline
        self.expires = max([part.work.expires for part in parts])
        self.headers: Headers | None = None
        self.body = b""

    def take(self) -> None:
        """Note with its requests that they are cut, as `QueuedRequest.take` and the queue do."""
        for part in self.parts:
            work = part.work
            work.parts = 1
            work.taken = work.size
            work.bytes_left = 0
            work.queued = False
            work.subqueue = None


def draw(subqueue: SubQueue, size: int, space: int) -> PreparedBatch | None:
    """The next batch of a line, where it is full to the item and holds several requests.

    Args:
        subqueue: the only one of its line.
        size: items that the batch may hold.
        space: bytes that they may have.
    """
    parts: list[Slice] = []
    space = min(space, MAX_BYTES)
    room, left = size, space
    for work in subqueue.in_order():
        room -= work.size
        left -= work.bytes_left
        if work.taken or room < 0 or left < 0:
            return None
        parts.append(Slice(work, 0, work.items, work.size))
        if not room:
            return PreparedBatch(subqueue.line, parts, size, space - left) if len(parts) > 1 else None
    return None
