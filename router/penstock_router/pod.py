"""One pod of a backend as this router sees it: its load, its room, and whether it is to be spared."""

from __future__ import annotations

import math
from typing import Final

from penstock_router.affinity import Hashed
from penstock_router.endpoint_slices import Address

QUEUE_FRESH_SECONDS: Final = 2.0
"""The queue that a pod reported counts less with age and nothing after this: a pod that once reported a long
queue is asked again."""
AVOID_FIRST_SECONDS: Final = 0.2
AVOID_MOST_SECONDS: Final = 10.0
PROBE_MOST_SECONDS: Final = 1.0
"""Where no pod of a backend can be reached, each is tried again after so long at the latest."""
SLOW_START_SECONDS: Final = 10.0
"""A new pod's share grows for so long from a tenth of what the others get to as much: its caches, compiled
code and pools are cold, whatever its warm-up did."""
SLOW_START_SHARE: Final = 0.1
SILENT_FAILURES: Final = 5
"""A pod whose node seems lost is avoided as if so many connections had failed: 6.4 s at first."""


class Pod:
    """One pod of a backend.

    Args:
        address: where its sidecar listens.
        since: when it was first there, in seconds of the router's clock.
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
        """Requests of this router that it has and did not answer."""
        self.free = -1
        """Items that would begin there at once, by its own word and what was sent since; -1: nobody knows."""
        self.waiting = 0
        """Items that wait there to begin, by its own word and what was sent since."""
        self.capacity = 0
        """Items that begin at once where none is there, by its own word; 0 where it does not say."""
        self.asked = False
        """It was asked for requests back, and has not answered."""
        self.vain_at = -math.inf
        """When it was asked for some last, unless it had some (seconds of the router's clock)."""
        self.unproven = 0
        """How often in a row it said that it handed some back, and none came."""
        self.promised = False
        """It has said that it has room, and has not refused for want of it since."""
        self.broken = 0
        """How often in a row it did refuse then."""
        self.borne = 0
        """Of these, so many it had when the last try to connect to it failed."""
        self.refusing_until = 0.0
        """It drains: no requests before this time (seconds of the router's clock)."""
        self.full_until = 0.0
        """It had no room for a request: others are preferred before this time (as `refusing_until`)."""
        self.unreachable = ""
        """Why the last try to connect failed; empty where none did since a connection was made."""
        self.try_at = 0.0
        """When it is tried again where no other pod can be reached (seconds of the router's clock)."""
        self._queued = 0
        self._queued_at = 0.0
        self._failures = 0
        self._avoid_until = 0.0
        self._before = 0  # those in flight that went out before it failed; they try nothing
        self._hashed: Hashed | None = None

    def begins(self, *, stays: bool = False) -> None:
        """A request goes to it, which is not to be handed back where it stays."""
        if not stays:
            self.vain_at = -math.inf
        self.in_flight += 1
        if self.free > 0:
            self.free -= 1
        elif self.free == 0:
            self.waiting += 1

    def ends(self) -> None:
        """A request is over, its answer's body included."""
        self.in_flight -= 1
        if self._before > self.in_flight:
            self._before = self.in_flight

    def reports_queue(self, items: int, now: float) -> None:
        """Take what the pod says of its queue (`x-penstock-queue`)."""
        self._queued, self._queued_at = items, now

    def failed(self, now: float, why: str) -> None:
        """No connection could be made: others are preferred for a while, twice as long each time.

        Requests that fail while it is avoided already went out together: they count once.

        Args:
            now: seconds of the router's clock.
            why: for people.
        """
        self.unreachable = why
        self.try_at = now + min(PROBE_MOST_SECONDS, AVOID_FIRST_SECONDS * 2**self._failures)
        self._avoid(now)

    def silent(self, now: float) -> None:
        """Its machine gave no sign of life; trying it costs the time of a connection that is not made."""
        self._failures = max(self._failures, SILENT_FAILURES)
        self._avoid(now)

    def unready(self, now: float) -> None:
        """It answers, but its model takes no requests: others are preferred, as after `failed`."""
        self._avoid(now)

    def reached(self) -> None:
        """It took a connection or gave an answer, so it is there."""
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
        """What to compare pods by: whether to avoid it, then how much it has for the share that it is to get.

        It has our own requests, the next one included, and the queue that it reported.
        One that failed is tried again by one request at a time: each may wait for a connection in vain.
        Once the first has its connection, the others follow.
        """
        fresh = max(0.0, 1 - (now - self._queued_at) / QUEUE_FRESH_SECONDS)
        load = (self.in_flight + self._queued * fresh + 1) / self.share(now)
        return (1 if self.avoided(now) else 0, load)

    def avoided(self, now: float) -> bool:
        """Whether others are preferred, since connections to it have failed."""
        return now < self._avoid_until or (self._failures > 0 and self.in_flight > self._before)

    @property
    def hashed(self) -> Hashed:
        """Its name, hashed once: its address may be another's in another router's eyes for a while."""
        hashed = self._hashed
        if hashed is None:
            address = self.address
            name = address.pod or f"{address.host}:{address.port}"
            hashed = self._hashed = Hashed(name.encode())
        return hashed

    def share(self, now: float) -> float:
        """Of what one of the others gets; less than 1 while it is new."""
        age = now - self.since
        return 1.0 if age >= SLOW_START_SECONDS else max(SLOW_START_SHARE, age / SLOW_START_SECONDS)

    @property
    def level(self) -> float:
        """Items that wait there, of those that it takes at once; below 0 where it has room for more."""
        return (self.waiting - self.free) / (self.capacity or 1)

    def takes(self, now: float) -> bool:
        """Whether it says what room it has, can be reached, and does not refuse."""
        spared = self._failures or now < self.refusing_until or now < self.full_until
        return self.free >= 0 and not spared

    def begins_at_once(self, now: float) -> bool:
        """Whether a request would begin there at once, and the pod is not to be spared."""
        if self.free <= 0 or not self.takes(now):
            return False
        share = self.share(now)
        return share == 1.0 or self.in_flight < max(1.0, share * (self.in_flight + self.free))


def less_loaded(first: Pod, other: Pod, now: float) -> Pod:
    """The one of two pods that has less, for what each takes at once where both say that; else the first."""
    avoid, load = first.load(now)
    avoid_other, load_other = other.load(now)
    if first.capacity and other.capacity:
        load, load_other = load * other.capacity, load_other * first.capacity
    return first if (avoid, load) <= (avoid_other, load_other) else other
