"""Eviction: which waiting request leaves a full queue so that another one may enter. Pure.

Requests are evicted in the reverse order of service: the least urgent level first, for any more urgent one.
Within a level, the heaviest share loses a request, if the newcomer's share stays within its fair part:
the level's room divided by the shares that wait there. Within a level and share, the newest request goes,
since it has waited least; never a request of which a part was cut already.

(To drop from the longest queue: Suter, Lakshman, Stiliadis, Choudhury, INFOCOM 1998; FQ-CoDel, RFC 8290, does
the same.) Items and bytes are counted, each by itself, since each has a limit.

Cost: O(log n) for each request that comes or goes, a look at the levels for each that finds no room. Kept
only where a policy has levels or fairness.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_sidecar.queue.lazy_heap import LazyHeap
from penstock_sidecar.queue.request import QueuedRequest
from penstock_sidecar.queue.structures import PriorityClass

if TYPE_CHECKING:  # the queue alone, which the SDK stands on, needs no package to read settings
    from penstock_wire.control.settings import Batching

LEVELS = 8
ITEMS, BYTES = 0, 1
"""What is measured."""


def may_evict(batching: Batching) -> bool:
    """Whether requests may have to give way to others of a policy."""
    return batching.priority.levels > 1 or batching.fairness is not None


class EvictionIndex:
    """What waits, by level and share.

    Its totals are lists by level, 1 first; those of level 0 stay 0.
    """

    __slots__ = ("_active", "_by_bytes", "_by_items", "_bytes", "_items")

    def __init__(self) -> None:
        self._active = [0] * (LEVELS + 1)
        self._items = [0] * (LEVELS + 1)
        self._bytes = [0] * (LEVELS + 1)
        self._by_items = [LazyHeap(_by_items) for _ in range(LEVELS + 1)]
        self._by_bytes = [LazyHeap(_by_bytes) for _ in range(LEVELS + 1)]

    def enter(self, group: PriorityClass, work: QueuedRequest) -> None:
        """A request has come into a group; it may have to give way, unless a part of it was cut."""
        if not work.taken:
            group.newest.add(work, -work.arrived)

    def count(self, group: PriorityClass, items: int, size: int) -> None:
        """So many more items and bytes of a group wait; fewer, where they are negative."""
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
        """Whether others can be evicted for a request, as far as a quick look shows.

        Args:
            measure: what there is too little room for: `ITEMS` or `BYTES`.
            level: the request's.
            group: what waits of its level and share already, if any.
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
        """The request that gives way next, None where none must; arguments as for `can_evict`."""
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
        """The group of a level that has most, where that is more than its part and the request's is not."""
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
