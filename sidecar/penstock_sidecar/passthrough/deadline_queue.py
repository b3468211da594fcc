"""The queue of requests that pass through: the earliest deadline first; among equals, the first to arrive.

Pure: the time is an argument. A request leaves in O(1): the heap drops it when it is at the top, or when
half of the heap's entries have left.
"""

from __future__ import annotations

import heapq
from typing import Generic, Protocol, TypeVar

_MIN_COMPACT = 64


class Waiter(Protocol):
    """A waiting request."""

    arrived: float
    expires: float
    waiting: bool
    """Whether it is in the queue; only the queue sets it."""


W = TypeVar("W", bound=Waiter)


class DeadlineQueue(Generic[W]):
    """The queue; `by_arrival` has the waiting requests, the oldest first, for reading."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, W]] = []
        self.by_arrival: dict[W, None] = {}
        self._sequence = 0

    def __len__(self) -> int:
        return len(self.by_arrival)

    @property
    def oldest(self) -> float | None:
        """Arrival time of the request that waits longest."""
        return next(iter(self.by_arrival)).arrived if self.by_arrival else None

    @property
    def first_expiry(self) -> float | None:
        """The earliest deadline."""
        self._skip()
        return self._heap[0][0] if self._heap else None

    def add(self, waiter: W) -> None:
        """Add a request."""
        waiter.waiting = True
        self._sequence += 1
        self.by_arrival[waiter] = None
        heapq.heappush(self._heap, (waiter.expires, self._sequence, waiter))

    def leave(self, waiter: W) -> None:
        """Remove a request, wherever it is in the queue; no-op if it is not in it."""
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
        """Remove and return all requests whose deadline has come."""
        late: list[W] = []
        while self.by_arrival:
            self._skip()
            if self._heap[0][0] > now:
                break
            late.append(self._pop())
        return late

    def next(self) -> W | None:
        """Remove and return the next request."""
        self._skip()
        return self._pop() if self._heap else None

    def clear(self) -> list[W]:
        """Remove and return all requests, in order of arrival."""
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
