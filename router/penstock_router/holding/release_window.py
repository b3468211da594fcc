"""Limits how many held requests are released at once.

The window, the number that may be out at once, begins small for each pod that can be reached and grows by one
with each answer (so it doubles with each round), as a TCP sender probes the capacity of a path: the first pod
of a backend is not buried under all that piled up. A pod that goes and comes again widens the window once. If
new pods replace all others, the window starts again, and requests that are still at the former pods no longer
count. If a pod still refuses for a full queue, the request returns to its place in the queue, and the window
shrinks to the number that is out.
"""

from __future__ import annotations

import dataclasses

from penstock_router.pods.endpoint_slices import Address
from penstock_router.pods.pod import Pod

FIRST_WINDOW = 8
"""Held requests that are released at once for each ready pod, before any answer."""
PAUSE_SECONDS = 0.1
"""How long no request is released after a pod refused one for a full queue."""
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
        """Update the pods that can be reached; each pod that was not seen before widens the window."""
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
        """Start with pods that are full but not cold: they do not widen the window."""
        self._pods = pods
        self._seen.update([pod.address for pod in pods])
        self.limit = 1
        self.paused_until = now + PAUSE_SECONDS

    def may_pass(self, now: float) -> bool:
        """Whether one more request may be released now."""
        return self.out < self.limit and now >= self.paused_until

    def passed(self) -> None:
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
