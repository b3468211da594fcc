"""One pod of a backend as this router sees it: its load, its room, and whether to avoid it."""

from __future__ import annotations

import math
from typing import Final

from penstock_router.choice.affinity import Hashed
from penstock_router.pods.endpoint_slices import Address
from penstock_wire.errors import Reason

UNREADY: Final = frozenset({Reason.MODEL_UNREACHABLE.value, Reason.NOT_READY.value})
"""Refusals by a pod whose model takes no requests now: it would refuse all that it gets."""
QUEUE_FRESH_SECONDS: Final = 2.0
"""A queue that a pod reported counts less with age, and is ignored after this long: a pod that once reported
a long queue gets requests again."""
AVOID_FIRST_SECONDS: Final = 0.2
AVOID_MOST_SECONDS: Final = 10.0
PROBE_MOST_SECONDS: Final = 1.0
"""If no pod of a backend can be reached, each is tried again after this long at most."""
SLOW_START_SECONDS: Final = 10.0
"""A new pod's share grows during this time from a tenth of the others' to the same: its caches, compiled code
and pools are cold, whatever its warm-up did."""
SLOW_START_SHARE: Final = 0.1
SILENT_FAILURES: Final = 5
"""A pod whose node seems lost is avoided as if this many connections had failed: 6.4 s at first."""


class Pod:
    """One pod of a backend.

    Args:
        address: where its sidecar listens.
        since: when it first appeared, in seconds of the router's clock.
    """

    __slots__ = (
        "_avoid_until",
        "_before",
        "_failures",
        "_hashed",
        "_queued",
        "_queued_at",
        "address",
        "asked",
        "borne",
        "broken",
        "capacity",
        "free",
        "full_until",
        "in_flight",
        "promised",
        "refusing_until",
        "since",
        "try_at",
        "unproven",
        "unreachable",
        "vain_at",
        "waiting",
    )

    def __init__(self, address: Address, since: float = -math.inf) -> None:
        self.address = address
        self.since = since
        self.in_flight = 0
        """Unanswered requests of this router at the pod."""
        self.free = -1
        """Items that would begin there at once, from its last report and what was sent since; -1: unknown."""
        self.waiting = 0
        """Items that wait there to begin, from its last report and what was sent since."""
        self.capacity = 0
        """Items that begin at once in an empty pod, as reported; 0 if it does not report it."""
        self.asked = False
        """Whether it was asked to hand requests back, and has not answered."""
        self.vain_at = -math.inf
        """When it was last asked for requests, unless it had some (seconds of the router's clock)."""
        self.unproven = 0
        """How often in a row it reported that it handed requests back, and none came."""
        self.promised = False
        """Whether it has reported room, and has not refused for lack of room since."""
        self.broken = 0
        """How often in a row it refused after it had reported room."""
        self.borne = 0
        """Requests of this router that it had when connections to it began to fail."""
        self.refusing_until = 0.0
        """The end of the time in which it gets no requests, because it drains (router's clock, seconds)."""
        self.full_until = 0.0
        """The end of the time in which others are preferred, because it had no room (likewise)."""
        self.unreachable = ""
        """Why the last try to connect failed; empty if none failed since a connection was made."""
        self.try_at = 0.0
        """When it is tried again if no other pod can be reached (seconds of the router's clock)."""
        self._queued = 0
        self._queued_at = 0.0
        self._failures = 0
        self._avoid_until = 0.0
        self._before = 0  # requests in flight that were sent before it failed: not new tries
        self._hashed: Hashed | None = None

    def begins(self, *, stays: bool = False) -> None:
        """Count a request that is sent to the pod; one that stays cannot be handed back."""
        if not stays:
            self.vain_at = -math.inf
        self.in_flight += 1
        if self.free > 0:
            self.free -= 1
        elif self.free == 0:
            self.waiting += 1

    def ends(self) -> None:
        """Count a request that is over, its answer's body included."""
        self.in_flight -= 1
        if self._before > self.in_flight:
            self._before = self.in_flight

    def reports_queue(self, items: int, now: float) -> None:
        """Update the length of the pod's queue, as it reports it (`x-penstock-queue`)."""
        self._queued, self._queued_at = items, now

    def failed(self, now: float, why: str) -> None:
        """Avoid the pod for a while, since no connection could be made: twice as long each time.

        Requests that fail while it is avoided already were sent together: they count once.
        """
        self.unreachable = why
        self.try_at = now + min(PROBE_MOST_SECONDS, AVOID_FIRST_SECONDS * 2**self._failures)
        self._avoid(now)

    def silent(self, now: float) -> None:
        """Avoid the pod, since its node seems lost: each try would cost the time of a failed connect."""
        self._failures = max(self._failures, SILENT_FAILURES)
        self._avoid(now)

    def reached(self) -> None:
        """Stop avoiding the pod: it took a connection or gave an answer."""
        self._failures = 0
        self._avoid_until = self.try_at = 0.0
        self.unreachable = ""

    def _avoid(self, now: float) -> None:
        if now < self._avoid_until:
            return
        self._avoid_until = now + min(AVOID_MOST_SECONDS, AVOID_FIRST_SECONDS * 2**self._failures)
        if not self._failures:
            self.borne = self.in_flight
        self._failures = min(self._failures + 1, 16)
        self._before = self.in_flight

    def load(self, now: float) -> tuple[int, float]:
        """The key to compare pods by: 1 to avoid it, else 0; then its load in relation to its share.

        The load is this router's requests, the next one included, and the queue that the pod reported.
        A pod that failed is tried again by one request at a time: each may wait for a connection in vain.
        Once one has its connection, the others follow.
        """
        fresh = max(0.0, 1 - (now - self._queued_at) / QUEUE_FRESH_SECONDS)
        load = (self.in_flight + self._queued * fresh + 1) / self.share(now)
        return (1 if self.avoided(now) else 0, load)

    def avoided(self, now: float) -> bool:
        """Whether others are preferred, since the pod was found unreachable or unready."""
        return now < self._avoid_until or (self._failures > 0 and self.in_flight > self._before)

    @property
    def hashed(self) -> Hashed:
        """Its name, hashed once. Not its address: another router may still know that as another pod's."""
        hashed = self._hashed
        if hashed is None:
            address = self.address
            name = address.pod or f"{address.host}:{address.port}"
            hashed = self._hashed = Hashed(name.encode())
        return hashed

    def share(self, now: float) -> float:
        """The share of requests that it gets, relative to an old pod; less than 1 while it is new."""
        age = now - self.since
        return 1.0 if age >= SLOW_START_SECONDS else max(SLOW_START_SHARE, age / SLOW_START_SECONDS)

    @property
    def level(self) -> float:
        """Items that wait there, relative to its capacity; below 0 if it has room for more."""
        return (self.waiting - self.free) / (self.capacity or 1)

    def takes(self, now: float) -> bool:
        """Whether it reports its room, can be reached, and does not refuse."""
        spared = self._failures or now < self.refusing_until or now < self.full_until
        return self.free >= 0 and not spared

    def begins_at_once(self, now: float) -> bool:
        """Whether a request would begin there at once, and the pod may get it at its present share."""
        if self.free <= 0 or not self.takes(now):
            return False
        share = self.share(now)
        return share == 1.0 or self.in_flight < max(1.0, share * (self.in_flight + self.free))


def less_loaded(first: Pod, other: Pod, now: float) -> Pod:
    """The less loaded of two pods, relative to their capacities if both report them; the first if equal."""
    avoid, load = first.load(now)
    avoid_other, load_other = other.load(now)
    if first.capacity and other.capacity:
        load, load_other = load * other.capacity, load_other * first.capacity
    return first if (avoid, load) <= (avoid_other, load_other) else other
