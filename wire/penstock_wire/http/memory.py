"""Bounds the memory that all connections of a process keep together, and chooses which make way beyond it.

There is no running count of kept bytes: all received bytes count as kept (`MemoryBound.room` shrinks by them)
until no room is left; only then are all connections asked for what they really keep. So the bound always
holds, a request costs one subtraction, and no path that frees memory can be forgotten.

If too much is kept, the connections that keep most make way, and among those that keep about as much the ones
that have kept it longest, until an eighth of the bound is free: a connection that keeps little, or not for
long, is not affected. Where a process serves several tenants, each by a front of its own, those of the tenant
that keeps most make way: one that keeps less than its share loses nothing by what others keep.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

from penstock_wire.errors import PenstockError, Reason
from penstock_wire.http.caches import Caches
from penstock_wire.process import log

UNBOUNDED: Final = 1 << 60
"""A number of bytes that is never reached."""
RECEIPT_BYTES: Final = 1024
"""Bytes of the objects made of each receipt, beside its data: a request's parts, or a piece of a body."""
PIECE_BYTES: Final = 64
"""Overhead of an object that holds some bytes."""
CONNECTION_BYTES: Final = 8 * 1024
"""Bytes of an otherwise empty connection, with the parts of the request under way on it."""
REQUEST_BYTES: Final = 512
"""Bytes of each request, beside its head and body."""
LOOK_SHARE: Final = 8
"""If less than one part in this many is free, connections make way until that much is."""
ALIKE_BITS: Final = 2
"""Connections whose sizes differ by less than a factor of 4 keep about as much."""
CACHED_SHARE: Final = 16
"""One part in so many of the bound, beside it, is for caches."""
LOG_SECONDS: Final = 1.0
MEASURE_SECONDS: Final = 0.1
"""Time between two measurements for what is announced, which costs its client nothing, while little comes."""
RETRY_AFTER_SECONDS: Final = 1.0
ONLY_REMEMBERED: Final = 0.0
"""`Keeper.kept_since` of what saves time and no more: nobody loses an answer by it, so nobody gave way."""


class Keeper(Protocol):
    """A connection, or one request of several on it, that keeps memory."""

    def kept(self) -> int:
        """Return the bytes that it keeps, including those kept elsewhere for it alone."""
        ...

    def kept_since(self) -> float:
        """Return when the kept bytes began to come, in seconds of the monotonic clock."""
        ...

    def give_way(self) -> bool:
        """Let go of what it keeps; return False if it is ending already."""
        ...


class Connection(Protocol):
    """A connection, as what bounds memory sees it."""

    def keepers(self) -> Sequence[Keeper]:
        """Return what can give way one by one: itself, and requests of other clients that share it."""
        ...


class MemoryBound:
    """A bound on the memory that all connections of a process keep together.

    Args:
        most: bytes; 0 = unbounded.
        trim: called at each look; it returns free memory to the machine.
    """

    __slots__ = (
        "_logged",
        "_measured",
        "_measured_room",
        "_trim",
        "caches",
        "connections",
        "gave_way",
        "most",
        "others",
        "room",
    )

    def __init__(self, most: int = 0, trim: Callable[[], object] = lambda: None) -> None:
        self.most = most
        self.room = most or UNBOUNDED
        """Bytes that can come before the next look: at most as many as are free."""
        self.connections: list[Collection[Connection]] = []
        """Connections that are asked, and can have to make way: a collection for each front (a tenant's)."""
        self.others: list[Callable[[], int]] = []
        """Functions that return further kept bytes."""
        self.caches = Caches(most // CACHED_SHARE or UNBOUNDED)
        """All caches beyond connections."""
        self.gave_way = 0
        """Connections, and requests on shared ones, that had to make way."""
        self._logged = self._measured = 0.0
        self._measured_room = self.room
        self._trim = trim

    def came(self, size: int) -> None:
        """Count bytes that came in by a socket."""
        size += RECEIPT_BYTES
        if size > self.room:
            self.look()  # before these count: no connection keeps them yet
        self.room -= size

    def fits(self, size: int) -> bool:
        """Whether so many bytes more can be kept, as far as known, with nobody giving way for them."""
        if size <= self.room:
            return True
        now = time.monotonic()
        # What came since the last measurement may be gone again; it cost its clients something.
        came = self._measured_room - self.room
        if now - self._measured >= MEASURE_SECONDS or came >= self.most // LOOK_SHARE:
            self._measured = now
            self.room = self._measured_room = max(self.room, self.most - self.kept())
        return size <= self.room

    def kept(self) -> int:
        """Return the bytes that are kept now."""
        kept = sum([sum([size for size, _ in sizes]) for sizes in self._sizes()])
        return kept + sum([other() for other in self.others])

    def _sizes(self) -> list[list[tuple[int, Keeper]]]:
        """What keeps memory, and how much, for each front."""
        return [
            [(keeper.kept(), keeper) for connection in connections for keeper in connection.keepers()]
            for connections in self.connections
        ]

    def look(self) -> None:
        """Measure how much is kept; if it is too much, make connections give way."""
        if not self.most:
            self.room = UNBOUNDED
            return
        self._trim()
        fronts = self._sizes()
        sums = [sum([size for size, _ in sizes]) for sizes in fronts]
        kept = sum(sums) + sum([other() for other in self.others])
        wanted = self.most // LOOK_SHARE
        missing = kept + wanted - self.most
        self.room = self._measured_room = self.most - kept
        if missing <= 0:
            return
        count = 0
        for sizes in fronts:
            sizes.sort(key=_rank, reverse=True)  # the last gives way first
        most = [(-total, place) for place, total in enumerate(sums) if fronts[place]]
        heapq.heapify(most)
        while missing > 0 and most:
            total, place = most[0]
            size, keeper = fronts[place].pop()
            if fronts[place]:
                heapq.heapreplace(most, (total + size, place))
            else:
                heapq.heappop(most)
            if keeper.give_way():
                missing -= size
                count += keeper.kept_since() != ONLY_REMEMBERED
        self.gave_way += count
        # NB: even if too much is kept outside of connections, the next look must not come sooner.
        self.room = self._measured_room = wanted
        now = time.monotonic()
        if now - self._logged >= LOG_SECONDS:
            self._logged = now
            log("memory is short", level="warning", kept=kept, bound=self.most, gave_way=count)


def _rank(entry: tuple[int, Keeper]) -> tuple[int, float]:
    """Sort key for giving way: the least first."""
    size, keeper = entry
    return -(size.bit_length() // ALIKE_BITS), keeper.kept_since()


def no_room(*, not_admitted: bool = False) -> PenstockError:
    """Return the answer to a request that gives way.

    Args:
        not_admitted: it was surely not executed.
    """
    detail = "all connections together keep too much, and this one was among those that keep most for longest"
    return PenstockError(Reason.NO_MEMORY, detail, retry_after=RETRY_AFTER_SECONDS, not_admitted=not_admitted)


def does_not_fit(length: int) -> PenstockError:
    """Return the answer to a request whose body would have others give way.

    Args:
        length: announced bytes.
    """
    detail = f"expected a body for which there is room now, found one of {length} bytes"
    return PenstockError(Reason.NO_MEMORY, detail, retry_after=RETRY_AFTER_SECONDS, not_admitted=True)
