"""The queue and its pure decisions: whose turn it is, and what the next batch holds. The time is an argument.

One line for each key. In a line, and among the lines, the earliest deadline goes first; the oldest arrival
of a line says how long a part-full batch may still wait. A request leaves a line in O(1): heaps forget it
when it comes up, or when they are half full of such.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator

from penstock_sidecar.work import Key, Part, Work

_MIN_COMPACT = 64


class DeadlineHeap:
    """Requests by deadline; those that are no longer `alive` are skipped.

    Args:
        alive: whether a request still belongs here.
    """

    __slots__ = ("_alive", "_dead", "_heap", "_sequence")

    def __init__(self, alive: Callable[[Work], bool]) -> None:
        self._alive = alive
        self._heap: list[tuple[float, int, Work]] = []
        self._sequence = 0
        self._dead = 0

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, work: Work) -> None:
        """Add a request."""
        self._sequence += 1
        heapq.heappush(self._heap, (work.deadline, self._sequence, work))

    def first(self) -> Work | None:
        """The request with the earliest deadline; among equals, the one that came first."""
        heap = self._heap
        while heap:
            work = heap[0][2]
            if self._alive(work):
                return work
            heapq.heappop(heap)
            self._dead -= 1
        return None

    def forget(self) -> None:
        """Note that one request here is no longer alive, so that memory stays in proportion to the living."""
        self._dead += 1
        if self._dead > _MIN_COMPACT and self._dead * 2 > len(self._heap):
            alive = self._alive
            self._heap = [entry for entry in self._heap if alive(entry[2])]
            heapq.heapify(self._heap)
            self._dead = 0


def _queued(work: Work) -> bool:
    return work.queued


class Line:
    """The queued requests of one key."""

    __slots__ = ("by_arrival", "by_deadline", "bytes", "items", "lone")

    def __init__(self, *, lone: bool) -> None:
        self.by_arrival: OrderedDict[Work, None] = OrderedDict()
        self.by_deadline = DeadlineHeap(_queued)
        self.items = 0
        self.bytes = 0
        self.lone = lone

    @property
    def oldest(self) -> float:
        """When the oldest request of the line arrived."""
        return next(iter(self.by_arrival)).arrived


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a batch may hold, and how long a part-full one may wait.

    Args:
        size: items at most.
        bytes: bytes of items at most; one larger item goes alone.
        wait: seconds from the arrival of a line's oldest request.
        service: seconds before the earliest deadline beyond which a part-full batch waits no longer.
    """

    size: int
    bytes: int
    wait: float = 0.0
    service: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """Whose turn it is: the key to cut now, or when to ask again (None: when something arrives)."""

    key: Key | None = None
    again: float | None = None


class Queue:
    """All queued requests."""

    def __init__(self) -> None:
        self._lines: dict[Key, Line] = {}
        self._by_deadline = DeadlineHeap(_queued)
        self.items = 0
        self.bytes = 0

    def __iter__(self) -> Iterator[Work]:
        """All queued requests, line by line, the oldest first."""
        for line in list(self._lines.values()):
            yield from list(line.by_arrival)

    @property
    def lines(self) -> dict[Key, Line]:
        """The lines by key, to look at."""
        return self._lines

    @property
    def oldest(self) -> float | None:
        """When the oldest queued request arrived."""
        return min((line.oldest for line in self._lines.values()), default=None)

    def add(self, work: Work) -> None:
        """Put a request at the end of its line."""
        line = self._lines.get(work.key)
        if line is None:
            line = self._lines[work.key] = Line(lone=bool(work.key.lone))
        work.queued = True
        line.by_arrival[work] = None
        line.by_deadline.push(work)
        self._by_deadline.push(work)
        self._count(line, work.left, work.bytes_left)

    def leave(self, work: Work) -> None:
        """Take a request out of its line, with the items not cut yet; no-op where it is in none."""
        if work.queued:
            line = self._lines[work.key]
            self._count(line, -work.left, -work.bytes_left)
            self._remove(line, work)

    def choose(self, now: float, limits: Limits) -> Choice:
        """Whose turn it is, a slot being free.

        Of the lines that may go, the one that holds the earliest deadline. Without a wait every line may go;
        with one, a line goes when it fills a batch, when its oldest request has waited long enough, or when
        its earliest deadline allows no further wait.
        """
        if limits.wait <= 0.0:
            first = self._by_deadline.first()
            return Choice(None if first is None else first.key)
        best: Work | None = None
        again: float | None = None
        for line in self._lines.values():
            head = line.by_deadline.first()
            if head is None:
                continue
            due = min(line.oldest + limits.wait, head.deadline - limits.service)
            if due <= now or line.lone or line.items >= limits.size or line.bytes >= limits.bytes:
                if best is None or head.deadline < best.deadline:
                    best = head
            elif again is None or due < again:
                again = due
        return Choice(None if best is None else best.key, again)

    def cut(self, key: Key, limits: Limits) -> list[Part]:
        """The next batch of a line, the earliest deadline first.

        Requests stay whole where they fit into a batch; one that is larger than a whole batch is split, and
        its rest opens the next batch.
        """
        line = self._lines[key]
        parts: list[Part] = []
        room, space = limits.size, limits.bytes
        while room > 0 and (work := line.by_deadline.first()) is not None:
            count = work.left
            if count > room or work.bytes_left > space:
                if parts:
                    break
                count = self._fit(work, room, space)
            before = work.bytes_left
            part = work.take(count)
            self._count(line, -count, work.bytes_left - before)
            parts.append(part)
            room -= count
            space -= before - work.bytes_left
            if work.left:
                break
            self._remove(line, work)
        return parts

    def rekey(self, change: Callable[[Work], None]) -> None:
        """Sort all queued requests anew.

        Args:
            change: sets a request's key.
        """
        works = sorted(self, key=lambda work: work.arrived)
        self._lines = {}
        self._by_deadline = DeadlineHeap(_queued)
        self.items = self.bytes = 0
        for work in works:
            change(work)
            self.add(work)

    def _count(self, line: Line, items: int, size: int) -> None:
        line.items += items
        line.bytes += size
        self.items += items
        self.bytes += size

    def _remove(self, line: Line, work: Work) -> None:
        work.queued = False
        del line.by_arrival[work]
        line.by_deadline.forget()
        self._by_deadline.forget()
        if not line.by_arrival:
            del self._lines[work.key]

    @staticmethod
    def _fit(work: Work, room: int, space: int) -> int:
        """How many of the next items fit into an empty batch; at least one."""
        count = 0
        for item in work.items[work.taken : work.taken + room]:
            space -= len(item)
            if space < 0:
                break
            count += 1
        return max(1, count)
