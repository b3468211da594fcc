"""Requests that wait for a pod: how many, for how long, and in what measure they are let go.

Held requests of a backend leave by their deadlines, the first one first, which is the order of their arrival
where clients set none; newcomers queue up among them. How many
of them may be out at once begins small for each pod that can be reached and grows by one with each answer (so
it doubles with each round), as a TCP sender finds out what a path bears: the first pod of a backend is not
buried under all that piled up. A pod that goes and comes again widens the window once; where new ones take
the place of all pods it begins anew, and what is still with those before them counts no more. A pod that
still refuses for a full queue sends the request back to its place among the held, and the window shrinks to
what is out.

Requests are held for want of room, too: when every pod of the backend has refused them for a full queue. From
then on each request that a pod has done with lets the first one in the queue go to that pod, whatever the
window. Newcomers then do not queue up unasked: which request has more right to a slot (by
priority, by share) is for the sidecars to say, so each newcomer asks a pod before it waits.

Requests are also held where pods are ready and none of them takes a connection. Then one at a time is let go
to try it again (the probe); when it gets its connection, the others follow: as many at once as the pods had
before, since those pods are not cold.
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
"""Held requests let go at once for each ready pod, before any answer."""
PAUSE_SECONDS = 0.1
"""How long nothing is let go after a pod refused for a full queue."""
MAX_HELD_BYTES = 256 * 1024 * 1024
"""Bytes of bodies that one endpoint may hold."""

MAX_SEEN = 10_000
"""Addresses kept of pods that a window was widened for; beyond, those that are away now are forgotten."""


class ReleaseWindow:
    """How many requests that were held may be with a backend's pods at once."""

    __slots__ = ("_pods", "_seen", "epoch", "full", "limit", "opened", "out", "paused_until", "probe")

    def __init__(self) -> None:
        self.epoch = 0
        """How often new pods have taken the place of all; who went to the former ones counts no more."""
        self.limit = 0
        self.out = 0
        self.paused_until = 0.0
        self.full = False
        """Whether pods have refused for a full queue since requests are held, so that these wait for room."""
        self.opened = False
        """Whether a pod could be reached since requests are held."""
        self.probe: Permit | None = None
        """The permit of the request that tries a backend of which no pod can be reached."""
        self._pods: list[Pod] = []
        self._seen: set[Address] = set()  # those that the window was widened for

    def see_pods(self, pods: list[Pod]) -> None:
        """Take the pods that can be reached; each that was not seen before widens the window.

        Args:
            pods: all of them.
        """
        if pods == self._pods:
            return
        self._pods = pods
        fresh = [pod for pod in pods if pod.address not in self._seen]
        if fresh and len(fresh) == len(pods) and self._seen:
            # What other pods bore says nothing of these, and what is still with those is not a load of these.
            self.epoch += 1
            self.out = self.limit = 0
            self.full = False
        if len(self._seen) > MAX_SEEN:
            self._seen.intersection_update([pod.address for pod in pods])
        for pod in fresh:
            self.limit += max(FIRST_WINDOW, pod.borne)
            self._seen.add(pod.address)

    def see_warm_pods(self, pods: list[Pod], now: float) -> None:
        """Take the pods of a backend whose requests are held because they are full: they have what they bear.

        Args:
            pods: all that can be reached.
            now: seconds of the router's clock.
        """
        self._pods = pods
        self._seen.update([pod.address for pod in pods])
        self.limit = 1
        self.paused_until = now + PAUSE_SECONDS

    def may_pass(self, now: float) -> bool:
        """Whether one more may go now."""
        return self.out < self.limit and now >= self.paused_until

    def passed(self) -> None:
        """One went."""
        self.out += 1

    def answered(self, permit: Permit, now: float) -> None:
        """One came back with an answer."""
        if permit.epoch == self.epoch:
            self.out -= 1
            if now >= self.paused_until:
                self.limit += 1

    def ended(self, permit: Permit) -> None:
        """One came back with none (failed, or its client left)."""
        if permit.epoch == self.epoch:
            self.out -= 1

    def refused(self, permit: Permit, now: float) -> None:
        """One was refused for a full queue: what is still out is what the pods bear."""
        if permit.epoch == self.epoch:
            self.full = True
            self.out -= 1
            self.limit = max(1, self.out)
            self.paused_until = now + PAUSE_SECONDS


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Permit:
    """The right to send to a backend.

    Args:
        backend: whose pods may be asked.
        window: the window that let the request go; None for one that was not held.
        epoch: the window's when it did.
        pod: the pod to ask, which has done with another request; None for any.
    """

    backend: str
    window: ReleaseWindow | None = None
    epoch: int = 0
    pod: Pod | None = None

    @property
    def probes(self) -> bool:
        """Whether it was let go to find out if a pod can be reached again."""
        return self.window is not None and self.window.probe is self


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Waiter:
    """One held request.

    Args:
        future: resolved when it may go; fails with what it is answered.
        backend: whose pods it waits for; None while the endpoint has no backend at all.
        size: bytes of its body that are kept meanwhile.
        since: when it came, in seconds of the router's clock.
        until: when its time in the hold is over, likewise.
        sequence: its number by arrival among all requests. NB: `since` does not show it, the clock of uvloop
            has whole milliseconds.
        steering: what decides who gets it, beside weights; None for nothing.
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
        """By this they leave: the first deadline first, and by arrival."""
        return self.until, self.sequence


class _BackendQueue:
    """Those that wait for one backend, by turn; who leaves is passed over when it would be the head."""

    __slots__ = ("_entries", "_heap", "waiting")

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[float, int], int, Waiter]] = []
        self._entries = itertools.count()  # a request that comes back may find its former entry
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
    """The held requests of one endpoint, for each backend by their turns."""

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
        """Whose turn is next of those that wait for a backend."""
        queue = self._queues.get(backend)
        return queue.head() if queue is not None else None

    def backends(self) -> list[str | None]:
        """The backends that requests wait for."""
        return list(self._queues)

    def waiters(self, backend: str | None) -> list[Waiter]:
        """Who waits for a backend, the first first."""
        queue = self._queues.get(backend)
        return sorted(queue.waiting, key=lambda waiter: waiter.turn) if queue is not None else []

    def length(self, backend: str | None) -> int:
        """How many wait for a backend."""
        queue = self._queues.get(backend)
        return len(queue.waiting) if queue is not None else 0

    def oldest(self) -> float | None:
        """When the one that has waited longest came."""
        everybody = (waiter for queue in self._queues.values() for waiter in queue.waiting)
        return min((waiter.since for waiter in everybody), default=None)
