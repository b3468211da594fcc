"""The queue and its pure decisions: which request is next, and what the next batch holds.

The time is an argument. Requests of one key form a line (`KeyQueue`). The order, within a line and among
lines, is:

1. by level, 1 first. A request rises one level each `AGEING` seconds that it waits, so none waits for ever;
2. within a level, the share that was served least goes first (`fair_queueing`); without fairness there
   is one share;
3. within a share, the earliest deadline; of equal deadlines, the first to arrive.

A batch begins with the first request of this order, and continues with requests of its key in the same
order, less urgent requests included. So a line has a `SubQueue` for each level and share; all sub-queues of
one level and share form a `PriorityClass`.

Cost: a request is appended to one linked list and leaves it, however many others wait; all other work is
done once a batch. A request that leaves is forgotten at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from penstock_sidecar.queue.batch_limits import Limits, fit
from penstock_sidecar.queue.deadline_list import DeadlineList
from penstock_sidecar.queue.eviction import BYTES, ITEMS, LEVELS, EvictionIndex
from penstock_sidecar.queue.fair_queueing import Flow, Flows
from penstock_sidecar.queue.grouping import group
from penstock_sidecar.queue.key import BatchKey
from penstock_sidecar.queue.lazy_heap import LazyHeap
from penstock_sidecar.queue.request import QueuedRequest, Slice
from penstock_sidecar.queue.structures import KeyQueue, PriorityClass, SubQueue, group_rank
from penstock_sidecar.work import WorkFormula

AGEING = 5.0
"""Seconds of waiting that raise a request by one level."""

GROUPED = 8
"""Requests that are looked at for a group, in batches of the maximum size."""
MOST_GROUPED = 512
"""Maximum requests that are looked at for a group."""

Finish = Callable[[float], float]
"""Returns when a batch of so much work would be answered if it were sent now, in the clock's time."""


class Queue:
    """All queued requests, with their totals `items`, `bytes` and `requests`.

    Args:
        evicting: maintain the index that `evict_for` needs; see `rekey`.

    `epoch` changes whenever the queue gets shorter.
    """

    def __init__(self, *, evicting: bool = False) -> None:
        self._eviction = EvictionIndex() if evicting else None
        self._lines: dict[BatchKey, KeyQueue] = {}
        self._spare: KeyQueue | None = None
        self._flows = Flows()
        self._groups: dict[tuple[int, bytes], PriorityClass] = {}
        self._levels: list[LazyHeap[PriorityClass]] = [LazyHeap(group_rank) for _ in range(LEVELS)]
        # Items of each level above 1 (those of level 1 are the rest), and items with a share.
        self._level_items = [0] * (LEVELS + 1)
        self._shared_items = 0
        self._by_deadline: LazyHeap[SubQueue] = LazyHeap(DeadlineList.due)
        self._ageing = DeadlineList()
        self.latest = 0.0
        self.items = 0
        self.epoch = 0
        self.bytes = 0
        self.requests = 0

    def __iter__(self) -> Iterator[QueuedRequest]:
        """All queued requests, line by line, the oldest first."""
        for line in list(self._lines.values()):
            yield from line.by_arrival

    @property
    def lines(self) -> dict[BatchKey, KeyQueue]:
        """The lines by key; callers must not change them."""
        return self._lines

    @property
    def oldest(self) -> float | None:
        """When the oldest queued request arrived."""
        return min([line.oldest for line in self._lines.values()], default=None)

    def add(self, work: QueuedRequest) -> None:
        """Put a request into its line. Levels beyond 1..`LEVELS` count as the nearest."""
        line = self._lines.get(work.key)
        if line is None:
            line = self._open(work.key)
        work.queued = True
        left, size = work.size - work.taken, work.bytes_left
        line.requests += 1
        line.items += left
        line.bytes += size
        self.requests += 1
        self.items += left
        self.bytes += size
        self._enter(line, work, work.level)
        if work.level > 1:
            self._ageing.add(work, work.arrived + AGEING)
        if work.deadline > self.latest:
            self.latest = work.deadline

    def leave(self, work: QueuedRequest) -> None:
        """Take a request out of its line, with the items not cut yet; no-op if it is not queued."""
        if work.queued:
            subqueue: SubQueue = work.subqueue
            self._part(subqueue, work)
            self._count(subqueue, 1, work.size - work.taken, work.bytes_left)

    def first(self) -> QueuedRequest | None:
        """The request with the earliest deadline, whichever line's turn it is."""
        subqueue = self._by_deadline.first()
        return None if subqueue is None else subqueue.first()

    def ahead(self, work: QueuedRequest) -> tuple[int, int]:
        """About how many items, in how many lines, go before a request that arrives now; O(1).

        Counts all items of more urgent levels, and the items of its own level with earlier deadlines: unless
        its deadline is the latest, the deadlines of the others are assumed to be spread evenly from now on.
        With fairness, it counts at most the items of the request's share, for each active share.

        Args:
            work: the request, not in the queue yet.
        """
        ahead, own = 0, self.items
        if len(self._ageing):
            level, items = min(work.level, LEVELS), self._level_items
            first = own - sum(items)
            ahead, own = (0, first) if level == 1 else (first + sum(items[2:level]), items[level])
        now, latest = work.arrived, self.latest
        if work.deadline < latest and latest > now:
            own = int(own * max(0.0, work.deadline - now) / (latest - now))
        ahead += own
        flows = self._flows
        if self._shared_items or work.share:
            if not work.share:
                mine = self.items - self._shared_items
            else:
                flow = flows.get(work.share)
                mine = 0 if flow is None else flow.items
            ahead = min(ahead, mine * flows.active)
        return ahead, min(ahead, len(self._lines))

    def choose(self, now: float) -> BatchKey | None:
        """The key of the line whose turn it is; None if nothing is queued."""
        if len(self._ageing):
            self._age(now)
        subqueue = self._next()
        return None if subqueue is None else subqueue.line.key

    def cut(
        self,
        key: BatchKey,
        limits: Limits,
        finish: Finish | None = None,
        dropped: list[QueuedRequest] | None = None,
    ) -> list[Slice]:
        """Cut the next batch of a line.

        A request that fits into a batch stays whole. A request larger than a batch is split, and its rest
        opens the next batch.

        With `finish`, requests that the batch would answer too late are dropped from the head of the line,
        so that they do not delay requests that can still be answered in time (the sliding window of Nexus:
        Shen et al., SOSP 2019, doi:10.1145/3341301.3359658, §6.3). But the last request of the whole queue is
        never dropped: a free slot runs it, because only a batch that runs can show that the model is fast
        again.

        Args:
            key: the key of the line.
            limits: the batch's limits.
            finish: returns when a batch would be answered.
            dropped: receives the dropped requests, taken out of the queue, without an answer yet.

        Returns:
            The parts; empty only if all of the line was dropped and other lines wait.
        """
        line = self._lines[key]
        formula, left = limits.formula, limits.work
        if formula is not None and formula.pads and not line.lone:
            return self._cut_group(line, limits, formula, finish, dropped)
        parts: list[Slice] = []
        room, space = limits.size, limits.bytes
        doom = None if finish is None else finish(min(room, line.items))
        while room > 0 and (subqueue := line.next()) is not None and (work := subqueue.first()) is not None:
            if doom is not None and work.deadline < doom and (parts or self.requests > 1):
                self.leave(work)
                if dropped is not None:
                    dropped.append(work)
                if finish is not None and line.items < room:
                    doom = finish(max(1, limits.size - room + line.items))
                continue
            done, items, size, amount = self._fill(subqueue, parts, room, space, doom, limits, left)
            if not items:
                break
            room -= items
            space -= size
            left -= amount
            self._flows.served(subqueue.group.flow, amount)
            self._count(subqueue, done, items, size)
            if parts[-1].work.queued:
                break
        return parts

    def _fill(
        self,
        subqueue: SubQueue,
        parts: list[Slice],
        room: int,
        space: int,
        doom: float | None,
        limits: Limits,
        left: float,
    ) -> tuple[int, int, int, float]:
        """Cut requests of one sub-queue: all that fit if its line has no other sub-queue, else one.

        Returns:
            The requests that left the queue, the items cut, their bytes, and their work; the totals still
            include them.
        """
        line, formula = subqueue.line, limits.formula
        sole = len(line.subqueues) == 1
        done = items = size = longest = 0
        amount = 0.0
        most_cost = math.inf if line.lone else limits.cost
        bounded = most_cost < math.inf
        if bounded:
            longest = max([part.longest for part in parts], default=0)
        while (work := subqueue.first()) is not None:
            if items and (not sole or items >= room or (doom is not None and work.deadline < doom)):
                break
            count = work.size - work.taken
            before = work.bytes_left
            over = (count > room - items or before > space - size) and not line.lone
            if formula is not None and not (over or line.lone):
                over = amount + formula.of(count, work.cost_left, work.longest) > left
            if bounded and not over:
                over = (limits.size - room + items + count) * max(longest, work.longest) > most_cost
            if over:
                if parts:
                    break
                count = min(fit(work, limits, left), count)
            part = work.take(count)
            parts.append(part)
            longest = max(longest, part.longest)
            items += count
            if formula is not None:
                amount += formula.of(count, part.cost, part.longest)
            size += before - work.bytes_left
            if work.size > work.taken:
                if self._eviction is not None:
                    subqueue.group.newest.discard(work)
                break
            self._part(subqueue, work)
            done += 1
        return done, items, size, items if formula is None else amount

    def _cut_group(
        self,
        line: KeyQueue,
        limits: Limits,
        formula: WorkFormula,
        finish: Finish | None,
        dropped: list[QueuedRequest] | None,
    ) -> list[Slice]:
        """As `cut`, where items are padded to the longest of their batch.

        Requests of like cost share a batch, see `grouping`. The first of the queue is always in it, so a
        request waits for a batch of each one before it at most. None overtakes it whose deadline is more than
        `Limits.reach` later, while there are as many others as a batch can have.
        """
        while (subqueue := line.next()) is not None and (first := subqueue.first()) is not None:
            chosen, parts = self._chosen(line, first, limits, formula), list[Slice]()
            cost = longest = items = size = 0
            for work in chosen:
                items += work.left
                cost += work.cost_left
                longest = max(longest, work.longest)
            total = formula.of(items, cost, longest)
            if items > limits.size:
                total *= limits.size / items
            total = min(total, max(limits.work, formula.of(1, first.longest, first.longest)))
            ends = -math.inf if finish is None else finish(total)
            if first.deadline < ends and self.requests > 1:
                self.leave(first)
                if dropped is not None:
                    dropped.append(first)
                continue
            items = cost = longest = 0
            for work in self._in_turn(line, first, chosen):
                count, most = work.left, max(longest, work.longest)
                after = formula.of(items + count, cost + work.cost_left, most)
                over = items + count > limits.size or size + work.bytes_left > limits.bytes
                over = over or (items + count) * most > limits.cost
                if over or after > limits.work or (work.deadline < ends and parts):
                    if parts:
                        continue
                    count = min(fit(work, limits, limits.work), count)
                home, before = work.subqueue, work.bytes_left
                part = work.take(count)
                parts.append(part)
                items += count
                size += before - work.bytes_left
                cost += part.cost
                longest = max(longest, part.longest)
                self._flows.served(home.group.flow, formula.alone(count, part.cost, part.longest))
                if work.size > work.taken:
                    if self._eviction is not None:
                        home.group.newest.discard(work)
                    self._count(home, 0, count, before - work.bytes_left)
                    break
                self._part(home, work)
                self._count(home, 1, count, before - work.bytes_left)
            return parts
        return []

    def _chosen(
        self, line: KeyQueue, first: QueuedRequest, limits: Limits, formula: WorkFormula
    ) -> list[QueuedRequest]:
        """The requests that share the batch of `first`, if they fit."""
        others = self._others(line, first, limits)
        if len(line.subqueues) == 1:
            return group([first], others, limits, formula)
        level = first.subqueue.level
        own = [work for work in others if work.subqueue.level == level]
        less = [work for work in others if work.subqueue.level != level]
        chosen = group([first], own, limits, formula)
        return group(chosen, less, limits, formula) if less else chosen

    def _others(self, line: KeyQueue, first: QueuedRequest, limits: Limits) -> list[QueuedRequest]:
        """The requests that may share the batch of `first`: those within reach, or all if few are."""
        count = min(MOST_GROUPED, GROUPED * limits.size)
        each = max(1, count // len(line.subqueues))
        for until in (first.deadline + limits.reach, math.inf):
            others: list[QueuedRequest] = []
            for subqueue in islice(line.subqueues.values(), count):
                others += subqueue.nearest(each, until)
            if len(others) > limits.size:
                break
        if others and others[0] is first:  # as where there is one sub-queue
            return others[1:]
        return [work for work in others if work is not first]

    def _in_turn(
        self, line: KeyQueue, first: QueuedRequest, works: list[QueuedRequest]
    ) -> Iterator[QueuedRequest]:
        """Requests of a line in the queue's order, as that is while they are served one by one."""
        yield first
        if len(line.subqueues) == 1:
            for work in works:
                if work is not first:
                    yield work
            return
        by_subqueue: dict[SubQueue, list[QueuedRequest]] = {}
        for work in reversed(works):
            if work is not first:
                by_subqueue.setdefault(work.subqueue, []).append(work)
        while by_subqueue:
            subqueue = min(by_subqueue, key=lambda each: (each.level, each.group.flow.tag))
            yield by_subqueue[subqueue].pop()
            if not by_subqueue[subqueue]:
                del by_subqueue[subqueue]

    def charge(self, share: bytes, items: float) -> None:
        """Count a share's use of the model beyond its items; see `fair_queueing.Flows.charge`."""
        self._flows.charge(share, items)

    def measured(self, parts: Sequence[Slice], beyond: float) -> None:
        """Charge the shares of a batch for what it took beyond what its items claimed to cost.

        Args:
            parts: its parts.
            beyond: the difference, in items of the usual cost.
        """
        self._flows.measured({part.work.share for part in parts}, beyond)

    def move(self, share: bytes, line: BatchKey, to: BatchKey) -> None:
        """Move the waiting requests of a share from one line to another.

        Args:
            share: the share.
            line: the key of the line to move from.
            to: the key of the line to move to.
        """
        moved = self._lines.get(line)
        for work in [] if moved is None else moved.of_share(share):
            self.leave(work)
            work.key = to
            self.add(work)

    def rekey(self, change: Callable[[QueuedRequest], None], *, evicting: bool = False) -> None:
        """Sort all queued requests again.

        Args:
            change: sets a request's key, level and share.
            evicting: maintain the index that `evict_for` needs: levels or shares matter.
        """
        works = sorted(self, key=lambda work: work.arrived)
        for work in works:
            self.leave(work)
        self._eviction = EvictionIndex() if evicting else None
        for work in works:
            change(work)
            self.add(work)

    # A full queue

    def can_evict(self, level: int, share: bytes, now: float, measure: int, amount: int, limit: int) -> bool:
        """Whether others can be evicted for a request that finds no room, by a quick check.

        Args:
            level: its level.
            share: the share that it uses.
            now: the time.
            measure: the limit that is exceeded: `ITEMS` or `BYTES`.
            amount: its items or bytes.
            limit: how many may wait.
        """
        eviction = self._eviction
        if eviction is None:
            return False
        self._age(now)
        group = self._groups.get((level, share))
        held = self.bytes if measure else self.items
        return eviction.can_evict(measure, level, group, amount, max(limit, held))

    def evict_for(self, work: QueuedRequest, now: float, *, limit: int, space: int) -> list[QueuedRequest]:
        """Take out the requests that must leave for a request that finds no room, see `eviction`.

        A queue above its limit (which was lowered) stays as long as it is.

        Args:
            work: the request, not in the queue yet.
            now: the time.
            limit: items that may wait.
            space: bytes that may wait.

        Returns:
            The requests that were taken out, without an answer yet; none if the newcomer must be rejected.
        """
        eviction = self._eviction
        if eviction is None:
            return []
        self._age(now)
        level, size, length = min(work.level, LEVELS), work.size, work.bytes_left
        limit, space = max(limit, self.items), max(space, self.bytes)
        gone: list[QueuedRequest] = []
        while (over := self.items + size > limit) or self.bytes + length > space:
            group = self._groups.get((level, work.share))
            wanted = (ITEMS, level, group, size, limit) if over else (BYTES, level, group, length, space)
            victim = eviction.next(*wanted) if gone or eviction.can_evict(*wanted) else None
            if victim is None:
                for each in reversed(gone):
                    self.add(each)
                return []
            self.leave(victim)
            gone.append(victim)
        return gone

    # Lines, sub-queues, groups

    def _open(self, key: BatchKey) -> KeyQueue:
        line = self._spare
        if line is not None and line.key is key:
            self._spare = None
        else:
            line = KeyQueue(key)
        self._lines[key] = line
        return line

    def _enter(self, line: KeyQueue, work: QueuedRequest, level: int) -> None:
        """Put a request into its sub-queue."""
        share = work.share
        subqueue = line.common if level == 1 and not share else line.subqueues.get((level, share))
        if subqueue is None:
            level = min(level, LEVELS)
            subqueue = line.subqueues.get((level, share))
            if subqueue is None:
                subqueue = self._new_subqueue(line, level, share)
        work.subqueue = subqueue
        if subqueue.add(work, work.deadline):
            self._rise(subqueue, work.deadline)
        eviction = self._eviction
        if level > 1 or share or eviction is not None:
            if eviction is not None:
                eviction.enter(subqueue.group, work)
            self._mark(subqueue, work.size - work.taken, work.bytes_left)

    def _new_subqueue(self, line: KeyQueue, level: int, share: bytes) -> SubQueue:
        group = self._groups.get((level, share))
        if group is None:
            group = self._groups[level, share] = PriorityClass(level, Flow(share, 0.0))
        subqueue = SubQueue(line, group)
        if level == 1 and not share:
            line.common = subqueue
        return subqueue

    def _rise(self, subqueue: SubQueue, deadline: float) -> None:
        """Update the ranks of a sub-queue after a request was added that may be its first."""
        group = subqueue.group
        if len(subqueue) == 1:
            group.filled += 1
            group.flow = self._flows.enter(subqueue.share)
            subqueue.line.enter(subqueue)
        self._by_deadline.touch(subqueue, deadline)
        group.subqueues.touch(subqueue, deadline)
        self._levels[group.level - 1].touch(group, group.flow.tag)

    def _part(self, subqueue: SubQueue, work: QueuedRequest) -> None:
        """Take a request out of its sub-queue; the caller counts its items."""
        work.queued = False
        work.subqueue = None
        if work.level > 1:
            self._ageing.discard(work)
        subqueue.discard(work)
        if self._eviction is not None:
            subqueue.group.newest.discard(work)
        if not subqueue:
            self._empty(subqueue)

    def _empty(self, subqueue: SubQueue) -> None:
        """Remove a sub-queue that has fallen empty."""
        group = subqueue.group
        group.filled -= 1
        group.subqueues.discard(subqueue)
        self._by_deadline.discard(subqueue)
        subqueue.line.drop(subqueue)
        self._flows.leave(group.flow)
        if not group.filled and group.flow.share:
            self._levels[group.level - 1].discard(group)
            del self._groups[group.level, group.flow.share]

    def _mark(self, subqueue: SubQueue, items: int, size: int) -> None:
        """Count items and bytes of a level above 1 or with a share; count all if some may be evicted."""
        if self._eviction is not None:
            self._eviction.count(subqueue.group, items, size)
        if subqueue.level > 1:
            self._level_items[subqueue.level] += items
        if subqueue.share:
            subqueue.group.flow.items += items
            self._shared_items += items

    def _count(self, subqueue: SubQueue, requests: int, items: int, size: int) -> None:
        """Subtract requests and items that left a sub-queue from the totals."""
        line = subqueue.line
        line.requests -= requests
        line.items -= items
        line.bytes -= size
        self.requests -= requests
        self.items -= items
        self.epoch += 1
        self.bytes -= size
        if subqueue.level > 1 or subqueue.share or self._eviction is not None:
            self._mark(subqueue, -items, -size)
        if not line.requests:
            del self._lines[line.key]
            gone: KeyQueue | None = line
            if not line.lone:
                # Kept for the next request of this key: a line that falls empty at each batch costs nothing.
                gone, self._spare = self._spare, line
            if gone is not None:
                gone.common = None  # without this cycle, nothing keeps it and its key until a collection
            if not self.requests:
                self.latest = 0.0

    def _next(self) -> SubQueue | None:
        """The sub-queue whose turn it is."""
        for heap in self._levels:
            group = heap.first()
            if group is not None:
                return group.subqueues.first()
        return None

    def _age(self, now: float) -> None:
        """Raise the requests that have waited long enough by one level."""
        ageing = self._ageing
        while (due := ageing.due()) is not None and due <= now:
            work = ageing.first()
            if work is None:
                return
            ageing.discard(work)
            old: SubQueue = work.subqueue
            level = old.level - 1
            if old.level > 1:
                self._mark(old, work.taken - work.size, -work.bytes_left)
                old.group.newest.discard(work)
            # NB: added before it is removed, so that neither the line nor the share falls empty in between.
            self._enter(old.line, work, level)
            old.discard(work)
            if not old:
                self._empty(old)
            if level > 1:
                ageing.add(work, due + AGEING)
