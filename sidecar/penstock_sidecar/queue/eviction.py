"""Eviction: which waiting request leaves a full queue so that another can enter. Pure.

Requests are evicted in the reverse order of service: the least urgent level first, for any more urgent one.
Within a level, the heaviest share loses a request if the newcomer's share stays within its fair part: the
level's room divided by the shares that wait there. Within a level and share, the newest request is evicted,
since it has waited least; a request that was cut in part is never evicted.

(Drop from the longest queue: Suter, Lakshman, Stiliadis, Choudhury, INFOCOM 1998; FQ-CoDel, RFC 8290, does
the same.) Items and bytes are counted separately, since each has a limit.

Cost: O(log n) for each request that enters or leaves, and a look at the levels for each that finds no room.
Kept only if a policy has levels or fairness.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_sidecar.queue.lazy_heap import LazyHeap
from penstock_sidecar.queue.request import QueuedRequest
from penstock_sidecar.queue.structures import PriorityClass

if TYPE_CHECKING:  # the SDK uses the queue alone, which must not need the packages that read settings
    from penstock_wire.control.settings import Batching

LEVELS = 8
ITEMS, BYTES = 0, 1
"""The measure that has a limit."""


def may_evict(batching: Batching) -> bool:
    """Whether a policy allows that requests are evicted for others."""
    return batching.priority.levels > 1 or batching.fairness is not None


class EvictionIndex:
    """The waiting requests by level and share.

    The totals are lists indexed by level, from 1; index 0 stays 0.
    """

    __slots__ = ("_active", "_by_bytes", "_by_items", "_bytes", "_items")

    def __init__(self) -> None:
        self._active = [0] * (LEVELS + 1)
        self._items = [0] * (LEVELS + 1)
        self._bytes = [0] * (LEVELS + 1)
        self._by_items = [LazyHeap(_by_items) for _ in range(LEVELS + 1)]
        self._by_bytes = [LazyHeap(_by_bytes) for _ in range(LEVELS + 1)]

    def enter(self, group: PriorityClass, work: QueuedRequest) -> None:
        """Add a request to its group; it can be evicted, unless a part of it was cut."""
        if not work.taken:
            group.newest.add(work, -work.arrived)

    def count(self, group: PriorityClass, items: int, size: int) -> None:
        """Add to a group's waiting items and bytes; both may be negative."""
        level = group.level
        before = group.items
        group.items += items
        group.bytes += size
        self._items[level] += items
        self._bytes[level] += size
        if items > 0:
            self._by_items[level].touch(group, -group.items)
            self._by_bytes[level].touch(group, -group.bytes)
            if not before:
                self._active[level] += 1
        elif not group.items:
            self._active[level] -= 1
            self._by_items[level].discard(group)
            self._by_bytes[level].discard(group)

    def can_evict(
        self, measure: int, level: int, group: PriorityClass | None, amount: int, limit: int
    ) -> bool:
        """Whether others can be evicted for a request, by a quick check.

        Args:
            measure: the limit that is exceeded: `ITEMS` or `BYTES`.
            level: the request's level.
            group: the group of its level and share, if there is one.
            amount: its items or bytes.
            limit: how many may wait.
        """
        totals = self._bytes if measure else self._items
        if sum(totals) + amount - limit <= sum(totals[level + 1 :]):
            return True
        return self._heavier(measure, level, group, amount, limit) is not None

    def next(
        self, measure: int, level: int, group: PriorityClass | None, amount: int, limit: int
    ) -> QueuedRequest | None:
        """The request to evict next, None if there is none; arguments as for `can_evict`."""
        rankings = self._by_bytes if measure else self._by_items
        for least in range(LEVELS, level, -1):
            candidate = rankings[least].first()
            if candidate is not None:
                return candidate.newest.first()
        candidate = self._heavier(measure, level, group, amount, limit)
        return None if candidate is None else candidate.newest.first()

    def _heavier(
        self, measure: int, level: int, group: PriorityClass | None, amount: int, limit: int
    ) -> PriorityClass | None:
        """The heaviest group of a level, if it exceeds its fair part and the request's group would not."""
        held = 0 if group is None else (group.bytes if measure else group.items)
        shares = self._active[level] + (not held)
        part = max(1, (limit - sum((self._bytes if measure else self._items)[:level])) / shares)
        if held + amount > part:
            return None
        candidate = (self._by_bytes if measure else self._by_items)[level].first()
        if candidate is None or (candidate.bytes if measure else candidate.items) <= part:
            return None
        return candidate


def _by_items(group: PriorityClass) -> float | None:
    return -group.items if len(group.newest) else None


def _by_bytes(group: PriorityClass) -> float | None:
    return -group.bytes if len(group.newest) else None
