"""Decides whether a free slot is held for callers who were just answered and are about to ask again.

The model is a batch service queue with a closed population. Each of N callers asks again some time after it
was answered (`return_times`); a batch of W takes L(W), which hardly depends on W. A caller that comes just
after a batch has left waits for all of it. So callers fall into two cohorts, one with the model while the
other waits, and take two calls where one would do. With a slot free and w requests waiting, holding it for
x seconds

    costs   w · x + the wait of callers who come meanwhile, and
    saves   n(x) · D · `WEIGHT`

of the callers' time: n(x) of the callers who are out come back within x, and each would otherwise wait until
the slot falls free again, D later. The policy takes the x with the largest gain, or does not hold if no gain
is positive. At the end of x it chooses again; when all callers are back the batch goes. This is the threshold
policy of Deb and Serfozo (1973, doi:10.2307/1426040: serve as soon as w reaches a threshold that depends on
the state), with one step of look-ahead, for an arrival rate that depends on who was answered when. In a
closed population the sum of the callers' times determines the rate (Little: N = rate · time), so a gain for
callers who wait is a gain for the rate.

`WEIGHT` is more than 1 because callers who miss a batch make the p99: with 1, the slot would go as soon as
the last caller is not worth the wait on average, and each time a few of a hundred callers wait for two
batches.

A slot is never held

- for a key with few callers who come back within the bound (`return_times.SURE`): they are independent, or
  think;
- if all callers who were out are back, as a lone caller is when it asks;
- if slots were mostly held in vain: callers come back, but to another pod;
- if the callers who are out would not find room: then batches are nearly full anyway;
- for longer than half of a batch's time in all (a third leaves stragglers, who split the cohort again).

With a user's wait (`batchWaitTimeout`), part-full batches also wait for independent callers, each until that
wait has passed since its oldest request arrived, or until arrivals have stopped; but not while nearly all
requests come from callers who were just answered (`queue.batch_limits.choose_with_wait` chooses the queue).

The time is an argument.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from penstock_sidecar.estimators.return_times import ReturnTimes

BOUND: Final = 0.5
"""Maximum time that a slot is held, as a share of a batch's time."""
WEIGHT: Final = 8.0
"""Weight of the time of a caller that misses the batch; that of a caller that waits for it has weight 1."""
KEYS: Final = 16
"""Keys that are kept; one more drops the least recently answered one."""
QUIET: Final = 5.0
"""Mean gaps between arrivals that may pass without an arrival before part-full batches stop waiting.

Independent arrivals leave such a pause once in e⁵ = 150 times; but if all callers wait for this very batch,
they never fill it.
"""

_GAP_WEIGHT: Final = 1 / 16
_CLOSED: Final = 0.5
"""Share of batches with only returning callers above which the user's wait does not apply."""
_CLOSED_WEIGHT: Final = 1 / 4
_ROUNDING: Final = 1e-6
"""Seconds that are too short to wait."""


class HoldPolicy:
    """Learns which callers come back, and decides. Keys are the queue's; they compare by identity.

    Args:
        wait: maximum seconds that a part-full batch waits; 0 for none, None if the user sets no limit.

    Attributes:
        merged: some requests of the latest batch came while its slot was held.
    """

    __slots__ = (
        "_arrived",
        "_closed",
        "_gap",
        "_key",
        "_keys",
        "_latest",
        "_latest_key",
        "_requests",
        "_since",
        "_until",
        "merged",
        "wait",
    )

    def __init__(self, wait: float | None = None) -> None:
        self.wait = wait
        # The latest arrival, and the mean gap between arrivals, while requests wait.
        self._arrived = 0.0
        self._gap = wait or 0.0
        self._closed = 0.0
        self._keys: OrderedDict[Hashable, ReturnTimes] = OrderedDict()
        # The latest key that was looked up, and its return times.
        self._latest_key: Hashable | None = None
        self._latest: ReturnTimes | None = None
        # The key for which a slot is held, since and until when, and how many requests waited at first.
        self._key: Hashable | None = None
        self._since = self._until = 0.0
        self._requests = 0
        self.merged = False

    def answered(self, now: float, key: Hashable, requests: int, seconds: float) -> None:
        """Record that the callers of a batch were answered; ~1 µs.

        Args:
            now: the time.
            key: the batch's key.
            requests: the batch's requests.
            seconds: the time of such a batch.
        """
        returns = self._find(key)
        if returns is None:
            if len(self._keys) >= KEYS:
                self._keys.popitem(last=False)
            returns = self._keys[key] = self._latest = ReturnTimes()
        returns.answered(now, requests, BOUND * seconds)

    def crowded(self, key: Hashable) -> None:
        """Record that a batch was full while others wait: the key's callers do not fit into one batch."""
        returns = self._find(key)
        if returns is not None:
            returns.crowded()

    @property
    def waits(self) -> bool:
        """Whether part-full batches wait for independent callers."""
        return bool(self.wait) and self._closed <= _CLOSED

    @property
    def quiet(self) -> float:
        """When no more arrivals are expected."""
        return self._arrived + QUIET * self._gap

    def joined(self, now: float, *, first: bool) -> None:
        """Record an arrival, if part-full batches wait.

        Args:
            now: the time.
            first: no other request waits: before it, callers may have waited for an answer.
        """
        if self.wait:
            if not first:
                self._gap += _GAP_WEIGHT * (min(now - self._arrived, self.wait) - self._gap)
            self._arrived = now

    def waited(self, now: float, requests: int) -> None:
        """Record that a part-full batch of so many requests waits no longer."""
        if self.wait and requests == 1 and self.quiet <= now < self._arrived + self.wait:
            # No request joined it within several mean gaps: the gaps have become longer.
            self._gap = min(self.wait, 2.0 * self._gap)

    def arrived(self, now: float, key: Hashable) -> None:
        """Record an arrival; ~0.2 µs."""
        returns = self._latest if key is self._latest_key else self._find(key)
        if returns is not None:
            returns.arrived(now)

    def out(self, key: Hashable) -> int:
        """How many callers are about to come back; 0 if a slot is not to be held for them."""
        returns = self._latest if key is self._latest_key else self._find(key)
        return returns.out if returns is not None and returns.sure and returns.paying else 0

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
        """Return until when to hold a free slot; at most `now` if its batch is to go.

        Args:
            now: the time.
            key: the key of all requests that wait.
            requests: how many wait.
            room: how many more requests fit into the batch.
            saved: seconds until a slot falls free again, once this one is taken.
            bound: maximum seconds that a slot is held.
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
        """Record that a batch of `requests` requests was cut; returns the seconds that its slot was held."""
        held, self._key = self._key, None
        self.merged = False
        if self.wait:
            returns = self._find(key)
            self._closed += _CLOSED_WEIGHT * ((returns is not None and returns.closed) - self._closed)
        if held is not key or now <= self._since:
            return 0.0
        self.merged = requests > self._requests
        returns = self._find(key)
        if returns is not None:
            returns.held(came=self.merged)
        return now - self._since

    def forget_hold(self) -> None:
        """End the hold, since no request waits any more."""
        self._key = None

    def _find(self, key: Hashable) -> ReturnTimes | None:
        if key is self._latest_key:
            return self._latest
        returns = self._keys.get(key)
        if returns is not None:
            self._keys.move_to_end(key)
        self._latest_key, self._latest = key, returns
        return returns
