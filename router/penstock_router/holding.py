"""Requests that wait for a pod: how many, for how long, and in what measure they are let go.

Held requests of a backend leave in the order of their arrival, and newcomers queue up behind them. How many
of them may be out at once begins small for each ready pod and grows by one with each answer (so it doubles
with each round), as a TCP sender finds out what a path bears: the first pod of a backend is not buried under
all that piled up. A pod that still refuses for a full queue sends the request back to the head of the line,
and the window shrinks to what is out.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import OrderedDict

FIRST_WINDOW = 8
"""Held requests let go at once for each ready pod, before any answer."""
PAUSE_SECONDS = 0.1
"""How long nothing is let go after a pod refused for a full queue."""
MAX_HELD_BYTES = 256 * 1024 * 1024
"""Bytes of bodies that one endpoint may hold."""


class Gate:
    """How many requests that were held may be with a backend's pods at once."""

    __slots__ = ("_pods", "out", "paused_until", "window")

    def __init__(self) -> None:
        self.window = 0
        self.out = 0
        self.paused_until = 0.0
        self._pods = 0

    def see_pods(self, count: int) -> None:
        """Take the number of pods that can take requests; each new one widens the window."""
        if count > self._pods:
            self.window += FIRST_WINDOW * (count - self._pods)
        self._pods = count

    def may_pass(self, now: float) -> bool:
        """Whether one more may go now."""
        return self.out < self.window and now >= self.paused_until

    def passed(self) -> None:
        """One went."""
        self.out += 1

    def answered(self) -> None:
        """One came back with an answer."""
        self.out -= 1
        self.window += 1

    def ended(self) -> None:
        """One came back with none (failed, or its client left)."""
        self.out -= 1

    def refused(self, now: float) -> None:
        """One was refused for a full queue: what is still out is what the pods bear."""
        self.out -= 1
        self.window = max(1, self.out)
        self.paused_until = now + PAUSE_SECONDS


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Waiter:
    """One held request.

    Args:
        future: resolved when it may go; fails with what it is answered.
        backend: whose pods it waits for; None while the endpoint has no backend at all.
        size: bytes of its body.
        since: when it came, in seconds of the router's clock.
    """

    future: asyncio.Future[None]
    backend: str | None
    size: int
    since: float


class Line:
    """The held requests of one endpoint, in order for each backend; leaving is O(1)."""

    def __init__(self) -> None:
        self._waiters: dict[str | None, OrderedDict[Waiter, None]] = {}
        self.count = 0
        self.bytes = 0

    def join(self, waiter: Waiter, *, at_head: bool = False) -> None:
        """Put a request into its backend's line."""
        line = self._waiters.setdefault(waiter.backend, OrderedDict())
        line[waiter] = None
        if at_head:
            line.move_to_end(waiter, last=False)
        self.count += 1
        self.bytes += waiter.size

    def leave(self, waiter: Waiter) -> bool:
        """Take a request out; returns whether it was there."""
        line = self._waiters.get(waiter.backend)
        if line is None or waiter not in line:
            return False
        del line[waiter]
        if not line:
            del self._waiters[waiter.backend]
        self.count -= 1
        self.bytes -= waiter.size
        return True

    def head(self, backend: str | None) -> Waiter | None:
        """Who has waited longest for a backend."""
        line = self._waiters.get(backend)
        return next(iter(line)) if line else None

    def backends(self) -> list[str | None]:
        """The backends that requests wait for."""
        return list(self._waiters)

    def waiters(self, backend: str | None) -> list[Waiter]:
        """Who waits for a backend, the first first."""
        return list(self._waiters.get(backend, ()))

    def length(self, backend: str | None) -> int:
        """How many wait for a backend."""
        return len(self._waiters.get(backend, ()))

    def oldest(self) -> float | None:
        """When the one that has waited longest came."""
        heads = (self.head(backend) for backend in self._waiters)
        return min((waiter.since for waiter in heads if waiter is not None), default=None)
