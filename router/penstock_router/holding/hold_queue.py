"""Holds requests that wait for a pod, in order of their turns.

Held requests of a backend leave in order of their deadlines, which is the order of arrival if clients set
none; newcomers are queued among them. `release_window` limits how many are released at once.

Requests are also held for lack of room: when every pod of the backend has refused them for a full queue. From
then on, each request that a pod has finished releases the first one in the queue to that pod, whatever the
window. Newcomers are then not queued at once: the sidecars decide which request has more right to a slot (by
priority, by share), so each newcomer is sent to a pod before it waits.

Requests are also held if pods are ready and none of them takes a connection. Then one request at a time is
released to try again (the probe); when it gets its connection, the others follow: as many at once as the pods
had before, since those pods are not cold.
"""

from __future__ import annotations

import asyncio
import bisect
import dataclasses
import operator

from penstock_router.choice.steering import Steering
from penstock_router.holding.release_window import Permit

MAX_HELD_BYTES = 256 * 1024 * 1024
"""Bytes of bodies that one endpoint may hold."""


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Waiter:
    """One held request.

    Args:
        future: resolved when it is released; fails with the error that it is answered with.
        backend: the backend whose pods it waits for; None while the endpoint has no backend at all.
        size: bytes of its body that are kept meanwhile.
        since: when it came, in seconds of the router's clock.
        until: when its time in the hold is over, likewise.
        sequence: its number by arrival among all requests. NB: `since` does not give the order: the clock of
            uvloop has whole milliseconds.
        steering: its steering; None for none.
    """

    future: asyncio.Future[Permit]
    backend: str | None
    size: int
    since: float
    until: float
    sequence: int
    steering: Steering | None = None

    @property
    def turn(self) -> tuple[float, int]:
        """The sort key by which requests leave: the earliest deadline first, then by arrival."""
        return self.until, self.sequence


_turn = operator.attrgetter("turn")


class HoldQueue:
    """The held requests of one endpoint, by backend and turn."""

    def __init__(self) -> None:
        self._queues: dict[str | None, list[Waiter]] = {}  # by turn
        self.count = 0
        self.bytes = 0

    def join(self, waiter: Waiter) -> None:
        bisect.insort(self._queues.setdefault(waiter.backend, []), waiter, key=_turn)
        self.count += 1
        self.bytes += waiter.size

    def leave(self, waiter: Waiter) -> bool:
        """Take a request out; returns whether it was there."""
        queue = self._queues.get(waiter.backend, [])
        at = bisect.bisect_left(queue, waiter.turn, key=_turn)
        if at == len(queue) or queue[at] is not waiter:
            return False
        del queue[at]
        if not queue:
            del self._queues[waiter.backend]
        self.count -= 1
        self.bytes -= waiter.size
        return True

    def head(self, backend: str | None) -> Waiter | None:
        """The request whose turn is next at a backend; None if none waits."""
        queue = self._queues.get(backend)
        return queue[0] if queue is not None else None

    def backends(self) -> list[str | None]:
        return list(self._queues)

    def waiters(self, backend: str | None) -> list[Waiter]:
        """The requests that wait for a backend, in order of their turns."""
        return list(self._queues.get(backend, ()))

    def length(self, backend: str | None) -> int:
        return len(self._queues.get(backend, ()))

    def oldest(self) -> float | None:
        """When the request that has waited longest arrived; None if none waits."""
        everybody = (waiter for queue in self._queues.values() for waiter in queue)
        return min((waiter.since for waiter in everybody), default=None)
