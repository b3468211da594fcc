"""Requests that wait to be passed through: the earliest deadline first; among equals, the first to come.

Pure: the time is an argument. A request leaves in O(1): the heap drops it when it comes up, or when
half of the heap has left.
"""

from __future__ import annotations

import heapq
from typing import Generic, Protocol, TypeVar

_MIN_COMPACT = 64


class Waiter(Protocol):
    """What waits."""

    arrived: float
    expires: float
    waiting: bool
    """Whether it is in the queue; kept by the queue alone."""


W = TypeVar("W", bound=Waiter)


class DeadlineQueue(Generic[W]):
    """The queue; `by_arrival` has those that wait, the oldest first, to look at."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, W]] = []
        self.by_arrival: dict[W, None] = {}
        self._sequence = 0

    def __len__(self) -> int:
        return len(self.by_arrival)

    @property
    def oldest(self) -> float | None:
        """When the one that waits longest arrived."""
        return next(iter(self.by_arrival)).arrived if self.by_arrival else None

    @property
    def first_expiry(self) -> float | None:
        """The earliest deadline."""
        self._skip()
        return self._heap[0][0] if self._heap else None

    def add(self, waiter: W) -> None:
        """Put one in."""
        waiter.waiting = True
        self._sequence += 1
        self.by_arrival[waiter] = None
        heapq.heappush(self._heap, (waiter.expires, self._sequence, waiter))

    def leave(self, waiter: W) -> None:
        """Take one out, wherever it stands; no-op where it is not in."""
        if not waiter.waiting:
            return
        waiter.waiting = False
        del self.by_arrival[waiter]
        if not self.by_arrival:
            self._heap.clear()
        elif len(self._heap) > _MIN_COMPACT and len(self._heap) > 2 * len(self.by_arrival):
            self._heap = [entry for entry in self._heap if entry[2].waiting]
            heapq.heapify(self._heap)

    def expired(self, now: float) -> list[W]:
        """Take out all whose deadline has come."""
        late: list[W] = []
        while self.by_arrival:
            self._skip()
            if self._heap[0][0] > now:
                break
            late.append(self._pop())
        return late

    def next(self) -> W | None:
        """Take out whose turn it is."""
        self._skip()
        return self._pop() if self._heap else None

    def clear(self) -> list[W]:
        """Take out all, the one that came first first."""
        waiters = list(self.by_arrival)
        for waiter in waiters:
            waiter.waiting = False
        self.by_arrival.clear()
        self._heap.clear()
        return waiters

    def _skip(self) -> None:
        heap = self._heap
        while heap and not heap[0][2].waiting:
            heapq.heappop(heap)

    def _pop(self) -> W:
        waiter = heapq.heappop(self._heap)[2]
        waiter.waiting = False
        del self.by_arrival[waiter]
        return waiter
