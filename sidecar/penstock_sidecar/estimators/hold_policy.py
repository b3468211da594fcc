"""Whether a free slot is held for those who were just answered and are about to ask again.

The model: a batch service queue with a closed population. Each of N callers asks again some time after it was
answered (`return_times`); a batch of W takes L(W), most of which W hardly changes. Whoever comes just after a
batch has left waits for all of it, so callers fall into two cohorts, one with the model while the other
waits, and two calls go where one would do. With a slot free and w requests waiting, holding it for x seconds

    costs   w · x + the time that those wait who come meanwhile, and
    saves   n(x) · D · `WEIGHT`

of the callers' time: n(x) of those who are out come back within x, and each would otherwise wait until the
slot falls free again, D later. The x with the largest gain is taken, none where no gain is positive; at the
end of x the choice is made anew, and when all are back the batch goes. This is the threshold policy of Deb
and Serfozo (1973, doi:10.2307/1426040: serve as soon as w reaches a threshold that depends on the state) for
arrivals whose rate depends on who was answered when, with one step of look-ahead. In a closed population
the sum of the callers' times is the rate (Little: N = rate · time), so a gain for those who wait is one for
the rate.

`WEIGHT` is more than 1 because who misses a batch makes the p99: without it the slot goes when the last one
is not worth its wait in the mean, each time a few of a hundred callers wait for two batches.

A slot is never held

- for callers of whom few come back within the bound (`return_times.SURE`): independent ones, who think;
- where all who are out are back, which a lone caller is when it asks;
- where slots were mostly held in vain: callers come back, but to another pod;
- where those who are out would not find room: then batches are nearly full as it is;
- beyond half of a batch's time in all (a third leaves stragglers, who split the cohort again).

The time is an argument.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from penstock_sidecar.estimators.return_times import ReturnTimes

BOUND: Final = 0.5
"""The share of a batch's time that a slot is held at most."""
WEIGHT: Final = 8.0
"""How much a caller's time counts that misses the batch, against that of one who waits for it."""
KEYS: Final = 16
"""Keys that are kept; beyond, the one that was answered least recently is forgotten."""

_ROUNDING: Final = 1e-6
"""Seconds that are no time to wait."""


class HoldPolicy:
    """Learns who comes back, and decides. Keys are of the queue; they compare by identity.

    Attributes:
        merged: of the batch that was cut last, some came while its slot was held.
    """

    __slots__ = (
        "_key",
        "_keys",
        "_latest",
        "_latest_key",
        "_requests",
        "_since",
        "_until",
        "merged",
    )

    def __init__(self) -> None:
        self._keys: OrderedDict[Hashable, ReturnTimes] = OrderedDict()
        # Of the key that was asked for last.
        self._latest_key: Hashable | None = None
        self._latest: ReturnTimes | None = None
        # For which key a slot is held, since and until when, and how many requests waited at first.
        self._key: Hashable | None = None
        self._since = self._until = 0.0
        self._requests = 0
        self.merged = False

    def answered(self, now: float, key: Hashable, requests: int, seconds: float) -> None:
        """The callers of a batch were answered; ~1 µs.

        Args:
            now: the time.
            key: the batch's.
            requests: how many.
            seconds: what such a batch takes.
        """
        returns = self._find(key)
        if returns is None:
            if len(self._keys) >= KEYS:
                self._keys.popitem(last=False)
            returns = self._keys[key] = self._latest = ReturnTimes()
        returns.answered(now, requests, BOUND * seconds)

    def crowded(self, key: Hashable) -> None:
        """A batch was full, and others wait: its callers do not fit into one."""
        returns = self._find(key)
        if returns is not None:
            returns.crowded()

    def arrived(self, now: float, key: Hashable) -> None:
        """A request came; ~0.2 µs."""
        returns = self._latest if key is self._latest_key else self._find(key)
        if returns is not None:
            returns.arrived(now)

    def out(self, key: Hashable) -> int:
        """Callers who are about to come back: 0 where nobody is waited for."""
        returns = self._latest if key is self._latest_key else self._find(key)
        return returns.out if returns is not None and returns.sure and returns.paying else 0

    def closed(self, key: Hashable) -> bool:
        """Whether those who come are those who were answered, so that nobody else is left to wait for."""
        returns = self._find(key)
        return returns is not None and returns.closed

    def until(
        self,
        now: float,
        key: Hashable,
        *,
        requests: int,
        room: float,
        saved: float,
        bound: float,
        latest: float,
    ) -> float:
        """Until when to hold a free slot; not after `now` where its batch shall go.

        Args:
            now: the time.
            key: whose requests wait, no others.
            requests: how many wait.
            room: how many more of them a batch holds.
            saved: seconds until a slot falls free again, once this one is taken.
            bound: seconds that a slot is held at most.
            latest: when the batch must go.
        """
        out = self.out(key)
        if not out or out > room:
            return now
        if self._key is not key:
            self._key, self._requests = key, requests
            self._since = self._until = now
        elif now < self._until - _ROUNDING:
            return min(self._until, latest)
        left = min(self._since + bound, latest) - now
        returns = self._latest
        if left <= _ROUNDING or returns is None:
            return now
        gain = cost = came = before = 0.0
        until = now
        for ahead, more in returns.expected(now, left):
            cost += (requests + came) * (ahead - before)
            came += more
            before = ahead
            if ahead > _ROUNDING and WEIGHT * saved * came - cost > gain:
                gain = WEIGHT * saved * came - cost
                until = now + ahead
        self._until = until
        return until

    def cut(self, now: float, key: Hashable, requests: int) -> float:
        """A batch was cut of so many requests; returns the seconds for which its slot was held."""
        held, self._key = self._key, None
        self.merged = False
        if held is not key or now <= self._since:
            return 0.0
        self.merged = requests > self._requests
        returns = self._find(key)
        if returns is not None:
            returns.held(came=self.merged)
        return now - self._since

    def forget_hold(self) -> None:
        """Nothing waits any more: no slot is held."""
        self._key = None

    def _find(self, key: Hashable) -> ReturnTimes | None:
        if key is self._latest_key:
            return self._latest
        returns = self._keys.get(key)
        if returns is not None:
            self._keys.move_to_end(key)
        self._latest_key, self._latest = key, returns
        return returns
