"""How much memory all connections of a process keep together, and who makes way where that is too much.

Nothing is counted up and down: whatever comes in by a socket is taken for kept (`MemoryBound.room` is less by
it) until there is no room left; only then all connections are asked what they really keep. So the bound holds
at each moment, a request costs one subtraction, and no way on which memory is let go can be forgotten.

Where too much is kept, those who keep most make way, of those who keep about as much the ones that have kept
it longest, until an eighth of the bound is free: who keeps little, or not for long, is not concerned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Final, Protocol

from penstock_wire.errors import PenstockError, Reason
from penstock_wire.process import log

UNBOUNDED: Final = 1 << 60
"""Bytes that nobody receives."""
RECEIPT_BYTES: Final = 1024
"""What is made of each receipt, beside its bytes: a request with its parts, or a piece of a body."""
PIECE_BYTES: Final = 64
"""Of an object that holds some bytes, beside them."""
CONNECTION_BYTES: Final = 8 * 1024
"""Of a connection that keeps nothing, with the parts of the request that is under way on it."""
REQUEST_BYTES: Final = 512
"""Of each request, beside its head and body."""
LOOK_SHARE: Final = 8
"""Where less than one part in so many is free, some make way until as much is."""
ALIKE_BITS: Final = 2
"""Who keeps less than 4 times as much keeps about as much."""
LOG_SECONDS: Final = 1.0
RETRY_AFTER_SECONDS: Final = 1.0


class Keeper(Protocol):
    """A connection that keeps memory."""

    def kept(self) -> int:
        """Bytes that it keeps, and what is kept elsewhere for it alone."""
        ...

    def kept_since(self) -> float:
        """When what it keeps began to come, in seconds of the monotonic clock."""
        ...

    def give_way(self) -> bool:
        """Let go of what it keeps; False where it ends by itself."""
        ...


class MemoryBound:
    """A bound of what all connections of a process keep together.

    Args:
        most: bytes; 0 = unbounded.
        trim: called at each look; it gives what is free back to the machine.
    """

    __slots__ = ("_logged", "_trim", "connections", "gave_way", "most", "others", "room")

    def __init__(self, most: int = 0, trim: Callable[[], object] = lambda: None) -> None:
        self.most = most
        self.room = most or UNBOUNDED
        """Bytes that may come before there is a look: less than are free, never more."""
        self.connections: Collection[Keeper] = ()
        """Who is asked, and may have to make way."""
        self.others: list[Callable[[], int]] = []
        """What else is asked for bytes that are kept."""
        self.gave_way = 0
        """Connections that had to make way."""
        self._logged = 0.0
        self._trim = trim

    def came(self, size: int) -> None:
        """So many bytes came in by a socket."""
        size += RECEIPT_BYTES
        if size > self.room:
            self.look()  # before these count: nobody keeps them yet
        self.room -= size

    def kept(self) -> int:
        """Bytes that are kept now."""
        kept = sum([connection.kept() for connection in self.connections])
        return kept + sum([other() for other in self.others])

    def look(self) -> None:
        """Look how much is kept; where that is too much, have connections make way."""
        if not self.most:
            self.room = UNBOUNDED
            return
        self._trim()
        sizes = [(connection.kept(), connection) for connection in self.connections]
        kept = sum([size for size, _ in sizes]) + sum([other() for other in self.others])
        wanted = self.most // LOOK_SHARE
        missing = kept + wanted - self.most
        self.room = self.most - kept
        if missing <= 0:
            return
        count = 0
        for size, connection in sorted(sizes, key=_rank):
            if missing <= 0:
                break
            if connection.give_way():
                missing -= size
                count += 1
        self.gave_way += count
        # NB: where too much is kept on nobody's account, the next look is no sooner for that.
        self.room = wanted
        now = time.monotonic()
        if now - self._logged >= LOG_SECONDS:
            self._logged = now
            log("memory is short", level="warning", kept=kept, bound=self.most, gave_way=count)


def _rank(entry: tuple[int, Keeper]) -> tuple[int, float]:
    """By this connections make way: the least first."""
    size, connection = entry
    return -(size.bit_length() // ALIKE_BITS), connection.kept_since()


def no_room() -> PenstockError:
    """The answer to a request that makes way."""
    detail = "all connections together keep too much, and this one was among those that keep most for longest"
    return PenstockError(Reason.NO_MEMORY, detail, retry_after=RETRY_AFTER_SECONDS)
