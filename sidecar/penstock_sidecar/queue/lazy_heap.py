"""A heap of members with ranks that mostly rise; a rank is updated when its member reaches the top."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Generic, TypeVar

_COMPACT = 64

T = TypeVar("T")


class LazyHeap(Generic[T]):
    """Members by rank, the lowest first; ranks may rise without a call.

    A rank that rose is read when its member reaches the top, so the many changes that only postpone a member
    need no call. `touch` must be called when a rank fell, and when a member entered.

    Args:
        rank: returns the present rank of a member; None if it does not belong here any more.
    """

    __slots__ = ("_heap", "_listed", "_rank", "_sequence")

    def __init__(self, rank: Callable[[T], float | None]) -> None:
        self._rank = rank
        self._heap: list[tuple[float, int, T]] = []
        self._listed: dict[T, float] = {}
        self._sequence = 0

    def touch(self, member: T, rank: float) -> None:
        """Record that a member entered, or that its rank fell to `rank`."""
        listed = self._listed.get(member)
        if listed is None or rank < listed:
            self._push(rank, member)

    def discard(self, member: T) -> None:
        """Remove a member."""
        self._listed.pop(member, None)
        if not self._listed:
            self._heap.clear()

    def first(self) -> T | None:
        """The member of the lowest rank; of equal ranks, the one that was listed first."""
        heap, listed = self._heap, self._listed
        while heap:
            rank, _, member = heap[0]
            if listed.get(member) != rank:
                heapq.heappop(heap)
                continue
            now = self._rank(member)
            if now is None:
                heapq.heappop(heap)
                del listed[member]
            elif now > rank:
                heapq.heappop(heap)
                self._push(now, member)
            else:
                return member
        return None

    def _push(self, rank: float, member: T) -> None:
        self._sequence += 1
        self._listed[member] = rank
        heap = self._heap
        heapq.heappush(heap, (rank, self._sequence, member))
        if len(heap) > _COMPACT and len(heap) > 2 * len(self._listed):
            listed = self._listed
            heap[:] = [entry for entry in heap if listed.get(entry[2]) == entry[0]]
            heapq.heapify(heap)
