"""Requests in the order of a time: a list, and a heap for requests that come out of order."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from itertools import islice

from penstock_sidecar.queue.request import QueuedRequest

_COMPACT = 64


class DeadlineList:
    """Requests in the order of a time, each once; a request that leaves is forgotten at once.

    Most times are the arrival and a constant, so most requests come in order and are kept in a linked list.
    Only a request that comes out of order goes into a heap. Of equal times the first to arrive goes first.
    """

    __slots__ = ("_fifo", "_heap", "_last", "_odd", "_sequence")

    def __init__(self) -> None:
        self._fifo: OrderedDict[QueuedRequest, float] = OrderedDict()
        self._last = 0.0
        # An entry is [time, number, request]; the request is None once it has left.
        self._heap: list[list[object]] = []
        self._odd: OrderedDict[QueuedRequest, list[object]] = OrderedDict()
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._fifo) + len(self._odd)

    @property
    def held(self) -> int:
        """Entries that use memory, including those of departed requests."""
        return len(self._fifo) + len(self._heap)

    def add(self, work: QueuedRequest, due: float) -> bool:
        """Add a request; returns whether it may now be the first."""
        fifo = self._fifo
        if not fifo:
            fifo[work] = self._last = due
            return True
        if due >= self._last:
            fifo[work] = self._last = due
            return False
        self._sequence += 1
        entry: list[object] = [due, self._sequence, work]
        self._odd[work] = entry
        heapq.heappush(self._heap, entry)
        return True

    def first(self) -> QueuedRequest | None:
        """The request with the earliest time."""
        if not self._odd:
            for work in self._fifo:
                return work
            return None
        top = self._top()
        for work, due in self._fifo.items():
            if due <= top[0]:  # type: ignore[operator]
                return work
            break
        return top[2]  # type: ignore[return-value]

    def due(self) -> float | None:
        """The earliest time."""
        due = next(iter(self._fifo.values()), None)
        if self._odd:
            odd: float = self._top()[0]  # type: ignore[assignment]
            if due is None or odd < due:
                return odd
        return due

    def nearest(self, count: int, until: float) -> list[QueuedRequest]:
        """Requests with early times, in order but for those that came out of order.

        Args:
            count: maximum number of each of both kinds.
            until: maximum time.
        """
        fifo = self._fifo
        works = list(islice(fifo, count))
        if works and fifo[works[-1]] > until:
            works = [work for work in works if fifo[work] <= until]
        if self._odd:
            odd = [each for each in self._heap[: 2 * count] if each[2] is not None and each[0] <= until]  # type: ignore[operator]
            works += [each[2] for each in odd[:count]]  # type: ignore[misc]
        return works

    def discard(self, work: QueuedRequest) -> None:
        """Take a request out; no-op if it is not in the list."""
        if self._fifo.pop(work, None) is None and (entry := self._odd.pop(work, None)) is not None:
            entry[2] = None
            heap = self._heap
            if len(heap) > _COMPACT and len(heap) > 2 * len(self._odd):
                heap[:] = self._odd.values()
                heapq.heapify(heap)
            elif not self._odd:
                heap.clear()

    def oldest(self) -> float:
        """The arrival time of the request that was added first.

        Raises:
            StopIteration: the list is empty.
        """
        if not self._odd:
            return next(iter(self._fifo)).arrived
        odd = next(iter(self._odd)).arrived
        return min(odd, next(iter(self._fifo)).arrived) if self._fifo else odd

    def by_arrival(self) -> list[QueuedRequest]:
        """All requests, the oldest first."""
        if not self._odd:
            return list(self._fifo)
        return sorted([*self._fifo, *self._odd], key=lambda work: work.arrived)

    def _top(self) -> list[object]:
        heap = self._heap
        while heap[0][2] is None:
            heapq.heappop(heap)
        return heap[0]


def earlier(time: float | None, other: float | None) -> float | None:
    """Return the earlier of two times, either of which may be None."""
    if time is None or other is None:
        return other if time is None else time
    return min(time, other)
