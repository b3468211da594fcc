"""The queue's structures: a queue for each key, in it a sub-queue for each level and share."""

from __future__ import annotations

from penstock_sidecar.queue.deadline_list import DeadlineList
from penstock_sidecar.queue.fair_queueing import Flow
from penstock_sidecar.queue.key import BatchKey
from penstock_sidecar.queue.lazy_heap import LazyHeap
from penstock_sidecar.queue.request import QueuedRequest

LAST = (1_000_000, 0.0, 0.0)
"""The rank of a line that is empty."""


class PriorityClass:
    """All sub-queues of one level and share; `filled` of them are not empty.

    For `eviction` only: the waiting `items` and `bytes`, and the requests that can be evicted, the `newest`
    first.
    """

    __slots__ = ("bytes", "filled", "flow", "items", "level", "newest", "subqueues")

    def __init__(self, level: int, flow: Flow) -> None:
        self.level = level
        self.flow = flow
        self.filled = 0
        self.subqueues: LazyHeap[SubQueue] = LazyHeap(DeadlineList.due)
        self.items = self.bytes = 0
        self.newest = DeadlineList()


class SubQueue(DeadlineList):
    """The queued requests of one line, level and share, by deadline."""

    __slots__ = ("group", "level", "line", "share")

    def __init__(self, line: KeyQueue, group: PriorityClass) -> None:
        super().__init__()
        self.line = line
        self.group = group
        self.level = group.level
        self.share = group.flow.share


class KeyQueue:
    """The queued requests of one key."""

    __slots__ = (
        "_levels",
        "bytes",
        "common",
        "items",
        "key",
        "lone",
        "requests",
        "subqueues",
    )

    def __init__(self, key: BatchKey) -> None:
        self.key = key
        self.lone = bool(key.lone)
        self.subqueues: dict[tuple[int, bytes], SubQueue] = {}
        self._levels: dict[int, LazyHeap[SubQueue]] = {}
        # The sub-queue of level 1 without a share is kept once it was made: most lines have no other.
        self.common: SubQueue | None = None
        self.requests = 0
        self.items = 0
        self.bytes = 0

    @property
    def oldest(self) -> float:
        """When the oldest request of the line arrived."""
        return min([subqueue.oldest() for subqueue in self.subqueues.values()])

    @property
    def by_arrival(self) -> list[QueuedRequest]:
        """The requests, the oldest first."""
        works = [work for subqueue in self.subqueues.values() for work in subqueue.by_arrival()]
        return works if len(self.subqueues) == 1 else sorted(works, key=lambda work: work.arrived)

    def of_share(self, share: bytes) -> list[QueuedRequest]:
        """The requests of a share, the oldest first."""
        works = [
            work
            for subqueue in self.subqueues.values()
            if subqueue.share == share
            for work in subqueue.by_arrival()
        ]
        return sorted(works, key=lambda work: work.arrived)

    @property
    def deadline(self) -> float:
        """The earliest deadline."""
        return min([due for subqueue in self.subqueues.values() if (due := subqueue.due()) is not None])

    def enter(self, subqueue: SubQueue) -> None:
        """Add a sub-queue that is not empty any more."""
        subqueues = self.subqueues
        subqueues[subqueue.level, subqueue.share] = subqueue
        if len(subqueues) > 1:
            for other in (subqueue,) if self._levels else subqueues.values():
                heap = self._levels.get(other.level)
                if heap is None:
                    heap = self._levels[other.level] = LazyHeap(_share_rank)
                heap.touch(other, other.group.flow.tag)

    def drop(self, subqueue: SubQueue) -> None:
        """Remove a sub-queue that fell empty."""
        del self.subqueues[subqueue.level, subqueue.share]
        if len(self.subqueues) <= 1:
            self._levels.clear()
        elif (heap := self._levels.get(subqueue.level)) is not None:
            heap.discard(subqueue)

    def first(self) -> QueuedRequest | None:
        """The request whose turn it is within this line."""
        subqueue = self.next()
        return None if subqueue is None else subqueue.first()

    def turn(self) -> tuple[int, float, float]:
        """The line's rank among the lines that are not empty: level, tag of its flow, earliest deadline."""
        subqueue = self.next()
        if subqueue is None or (due := subqueue.due()) is None:
            return LAST
        return subqueue.level, subqueue.group.flow.tag, due

    def next(self) -> SubQueue | None:
        """The sub-queue whose turn it is within this line."""
        if not self._levels:
            for subqueue in self.subqueues.values():
                return subqueue
            return None
        for level in sorted(self._levels):
            candidate = self._levels[level].first()
            if candidate is not None:
                return candidate
        return None


def _share_rank(subqueue: SubQueue) -> float | None:
    return subqueue.group.flow.tag if subqueue else None


def group_rank(group: PriorityClass) -> float | None:
    """Return a group's rank within its level, its flow's tag; None if it is empty."""
    return group.flow.tag if group.filled else None
