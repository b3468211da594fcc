"""Holds requests that wait for a pod, and limits how many are released at once.

Held requests of a backend leave in order of their deadlines, which is the order of arrival if clients set
none; newcomers are queued among them. The window, the number that may be out at once, begins small for each
pod that can be reached and grows by one with each answer (so it doubles with each round), as a TCP sender
probes the capacity of a path: the first pod of a backend is not buried under all that piled up. A pod that
goes and comes again widens the window once. If new pods replace all others, the window starts again, and
requests that are still at the former pods no longer count. If a pod still refuses for a full queue, the
request returns to its place in the queue, and the window shrinks to the number that is out.

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
import dataclasses
import heapq
import itertools

from penstock_router.endpoint_slices import Address
from penstock_router.pod import Pod
from penstock_router.steering import Steering

FIRST_WINDOW = 8
"""Held requests that are released at once for each ready pod, before any answer."""
PAUSE_SECONDS = 0.1
"""How long no request is released after a pod refused one for a full queue."""
MAX_HELD_BYTES = 256 * 1024 * 1024
"""Bytes of bodies that one endpoint may hold."""

MAX_SEEN = 10_000
"""Pod addresses that a window remembers; if there are more, absent pods' are forgotten."""


class ReleaseWindow:
    """The limit on released requests that may be at a backend's pods at once."""

    __slots__ = ("_pods", "_seen", "epoch", "full", "limit", "opened", "out", "paused_until", "probe")

    def __init__(self) -> None:
        self.epoch = 0
        """How often new pods have replaced all others; permits of a former epoch no longer count."""
        self.limit = 0
        self.out = 0
        self.paused_until = 0.0
        self.full = False
        """Whether a pod refused for a full queue since requests are held, so that they wait for room."""
        self.opened = False
        """Whether a pod could be reached since requests are held."""
        self.probe: Permit | None = None
        """The permit of the request that probes a backend without a reachable pod; None for none."""
        self._pods: list[Pod] = []
        self._seen: set[Address] = set()  # pods that the window was widened for

    def see_pods(self, pods: list[Pod]) -> None:
        """Update the pods that can be reached; each pod that was not seen before widens the window.

        Args:
            pods: all that can be reached.
        """
        if pods == self._pods:
            return
        self._pods = pods
        fresh = [pod for pod in pods if pod.address not in self._seen]
        if fresh and len(fresh) == len(pods) and self._seen:
            # What other pods could bear does not apply to these, nor do requests that are still there.
            self.epoch += 1
            self.out = self.limit = 0
            self.full = False
        if len(self._seen) > MAX_SEEN:
            self._seen.intersection_update([pod.address for pod in pods])
        for pod in fresh:
            self.limit += max(FIRST_WINDOW, pod.borne)
            self._seen.add(pod.address)

    def see_warm_pods(self, pods: list[Pod], now: float) -> None:
        """Start with pods that are full but not cold: they do not widen the window.

        Args:
            pods: all that can be reached.
            now: seconds of the router's clock.
        """
        self._pods = pods
        self._seen.update([pod.address for pod in pods])
        self.limit = 1
        self.paused_until = now + PAUSE_SECONDS

    def may_pass(self, now: float) -> bool:
        """Whether one more request may be released now."""
        return self.out < self.limit and now >= self.paused_until

    def passed(self) -> None:
        """Count a request that is released."""
        self.out += 1

    def answered(self, permit: Permit, now: float) -> None:
        """Count a released request that was answered."""
        if permit.epoch == self.epoch:
            self.out -= 1
            if now >= self.paused_until:
                self.limit += 1

    def ended(self, permit: Permit) -> None:
        """Count a released request that ended without an answer (it failed, or its client left)."""
        if permit.epoch == self.epoch:
            self.out -= 1

    def refused(self, permit: Permit, now: float) -> None:
        """Count a released request that was refused for a full queue: the pods bear those still out."""
        if permit.epoch == self.epoch:
            self.full = True
            self.out -= 1
            self.limit = max(1, self.out)
            self.paused_until = now + PAUSE_SECONDS


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Permit:
    """The right to send to a backend.

    Args:
        backend: the backend that a request may be sent to.
        window: the window that released the request; None for a request that was not held.
        epoch: the window's epoch at that time.
        pod: the pod to ask, which has just finished another request; None for any.
    """

    backend: str
    window: ReleaseWindow | None = None
    epoch: int = 0
    pod: Pod | None = None

    @property
    def probes(self) -> bool:
        """Whether the request was released to find out if a pod can be reached again."""
        return self.window is not None and self.window.probe is self


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


class _BackendQueue:
    """The requests that wait for one backend, by turn; one that left is skipped when it becomes the head."""

    __slots__ = ("_entries", "_heap", "waiting")

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[float, int], int, Waiter]] = []
        self._entries = itertools.count()  # breaks ties: a returned request may meet its former entry
        self.waiting: set[Waiter] = set()

    def add(self, waiter: Waiter) -> None:
        self.waiting.add(waiter)
        heapq.heappush(self._heap, (waiter.turn, next(self._entries), waiter))

    def remove(self, waiter: Waiter) -> None:
        self.waiting.remove(waiter)
        if len(self._heap) > 2 * len(self.waiting) + 16:  # seldom enough to cost O(1) each
            self._heap = [entry for entry in self._heap if entry[2] in self.waiting]
            heapq.heapify(self._heap)

    def head(self) -> Waiter:
        while self._heap[0][2] not in self.waiting:
            heapq.heappop(self._heap)
        return self._heap[0][2]


class HoldQueue:
    """The held requests of one endpoint, by backend and turn."""

    def __init__(self) -> None:
        self._queues: dict[str | None, _BackendQueue] = {}
        self.count = 0
        self.bytes = 0

    def join(self, waiter: Waiter) -> None:
        """Put a request into its backend's queue."""
        self._queues.setdefault(waiter.backend, _BackendQueue()).add(waiter)
        self.count += 1
        self.bytes += waiter.size

    def leave(self, waiter: Waiter) -> bool:
        """Take a request out; returns whether it was there."""
        queue = self._queues.get(waiter.backend)
        if queue is None or waiter not in queue.waiting:
            return False
        queue.remove(waiter)
        if not queue.waiting:
            del self._queues[waiter.backend]
        self.count -= 1
        self.bytes -= waiter.size
        return True

    def head(self, backend: str | None) -> Waiter | None:
        """The request whose turn is next at a backend; None if none waits."""
        queue = self._queues.get(backend)
        return queue.head() if queue is not None else None

    def backends(self) -> list[str | None]:
        """The backends that requests wait for."""
        return list(self._queues)

    def waiters(self, backend: str | None) -> list[Waiter]:
        """The requests that wait for a backend, in order of their turns."""
        queue = self._queues.get(backend)
        return sorted(queue.waiting, key=lambda waiter: waiter.turn) if queue is not None else []

    def length(self, backend: str | None) -> int:
        """How many requests wait for a backend."""
        queue = self._queues.get(backend)
        return len(queue.waiting) if queue is not None else 0

    def oldest(self) -> float | None:
        """When the request that has waited longest arrived; None if none waits."""
        everybody = (waiter for queue in self._queues.values() for waiter in queue.waiting)
        return min((waiter.since for waiter in everybody), default=None)
