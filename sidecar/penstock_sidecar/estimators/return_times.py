"""The distribution of return times: how soon, and how surely, callers who were answered ask again.

Answers and arrivals carry no names: a caller may come back on another connection, through a router, or to
another pod. So an arrival is counted as the return of the latest answer that is not matched yet, in a
histogram of the lag between the two. Arrivals that are unrelated to an answer are counted likewise; but they
come at any time, while returns come soon after an answer. Therefore the rate of arrivals at lags beyond
`bound`, the longest time that a slot is held, is subtracted:

    G(x) = (arrivals at lags up to x - rate · x · batches) / requests that were answered

G is defective: `share` = G(bound) is the share of callers that come back within the bound at all. Independent
arrivals make it about 0, whatever their rate. Of callers who are still out `age` seconds after their answer,
the share (G(age + x) - G(age)) / (1 - G(age)) comes back within x.

The state is bounded, and all counts are halved after each `WINDOW` batches. An arrival costs O(1). The time
is an argument.
"""

from __future__ import annotations

import math
from typing import Final

WINDOW: Final = 64
"""Batches after which all counts are halved."""
KEPT: Final = 6
"""Latest batches for which a return is still expected."""
REFRESH: Final = 8
"""Batches after which the distribution is computed again; it is unknown before."""
SURE: Final = 0.65
"""Share of answered callers that come back in time above which slots are held for them."""
UNSURE: Final = 0.5
"""The share below which slots are not held any more."""
DOUBT: Final = 2.0
"""Standard deviations by which the share must be above `SURE`, given the number of answers measured."""
_VAIN: Final = 0.6
"""Share of holds with an arrival below which slots are not held: callers come back, but to another pod."""
_HELD_WEIGHT: Final = 1 / 16
_RECOVERY: Final = 1 / 1024
"""Part of that share's loss by vain holds that each batch restores."""
_LEAST: Final = 2.0**-16
_PER_OCTAVE: Final = 4
BINS: Final = 80
EDGES: Final[list[float]] = [_LEAST * 2.0 ** (number / _PER_OCTAVE) for number in range(BINS)]
"""Upper edges of the bins in seconds: 15 µs to 13 s, each 19 % above the one before."""
_OPEN: Final = 0.05
"""Share of arrivals without a matching answer above which there are other callers than those answered."""


class ReturnTimes:
    """The return times of the callers of one key.

    Attributes:
        out: callers of the latest batches who have not come back.
        share: the share of answered callers that come back within `bound` seconds; 0 while unknown.
        sure: enough callers come back in time for slots to be held.
        paying: mostly, a request came while a slot was held.
        closed: hardly any requests come from other callers than those answered lately.
    """

    __slots__ = (
        "_answered",
        "_arrived",
        "_at",
        "_batches",
        "_bound",
        "_came",
        "_cumulative",
        "_lags",
        "_late",
        "_late_seconds",
        "_left",
        "_others",
        "_until_refresh",
        "closed",
        "out",
        "paying",
        "share",
        "sure",
    )

    def __init__(self) -> None:
        self._bound = 0.0
        self._until_refresh = REFRESH
        # Sums over the latest batches: arrivals by lag; requests answered; batches; arrivals; arrivals
        # without a matching answer; arrivals at lags beyond the bound, and the seconds in which they came.
        self._lags: list[float] = []
        self._answered = self._batches = 0.0
        self._arrived = self._others = 0.0
        self._late = self._late_seconds = 0.0
        # When the latest batches were answered, and how many of their callers are out.
        self._at: list[float] = []
        self._left: list[int] = []
        self._cumulative: list[float] = []
        self.out = 0
        self.share = 0.0
        self.sure = self.closed = False
        self._came = 1.0
        self.paying = True

    def answered(self, now: float, requests: int, bound: float) -> None:
        """Record that the callers of a batch were answered.

        Args:
            now: the time.
            requests: the batch's requests.
            bound: maximum seconds that a slot would be held for them.
        """
        at, left = self._at, self._left
        if at:
            late = now - at[-1] - self._bound
            if late > 0.0:
                self._late_seconds += late
            if len(at) == KEPT:
                del at[0]
                self.out -= left.pop(0)
        self._bound = bound
        self._note(_RECOVERY, 1.0)
        at.append(now)
        left.append(requests)
        self.out += requests
        self._answered += requests
        self._batches += 1.0
        self._until_refresh -= 1
        if not self._until_refresh:
            self._refresh()

    def crowded(self) -> None:
        """Expect no returns, and learn nothing, until the next answer: the callers exceed a batch."""
        self._at.clear()
        self._left.clear()
        self.out = 0

    def arrived(self, now: float) -> None:
        """Record an arrival."""
        at = self._at
        if not at:
            return
        self._arrived += 1.0
        if now - at[-1] > self._bound:
            self._late += 1.0
        if not self.out:
            self._others += 1.0
            return
        left = self._left
        index = len(left) - 1
        while not left[index]:
            index -= 1
        left[index] -= 1
        self.out -= 1
        if not self._lags:
            self._lags = [0.0] * BINS
        self._lags[_bin(now - at[index])] += 1.0

    def held(self, *, came: bool) -> None:
        """Record that a slot was held, and whether a request came meanwhile."""
        self._note(_HELD_WEIGHT, 1.0 if came else 0.0)

    def _note(self, weight: float, came: float) -> None:
        self._came += weight * (came - self._came)
        self.paying = self._came >= _VAIN

    def expected(self, now: float, within: float) -> list[tuple[float, float]]:
        """The expected returns: steps of (seconds from now, mean callers who return since the step before).

        Args:
            now: the time.
            within: seconds to look ahead.
        """
        steps: list[tuple[float, float]] = []
        cumulative = self._cumulative
        if not cumulative:
            return steps
        for index in range(len(self._at)):
            left = self._left[index]
            if not left:
                continue
            age = now - self._at[index]
            first = _bin(age)
            if first >= len(cumulative):
                continue
            low = cumulative[first - 1] if first else 0.0
            stay = 1.0 - low
            for number in range(first, len(cumulative)):
                ahead = EDGES[number] - age
                if ahead > within:
                    break
                more = cumulative[number] - low
                if more > 0.0:
                    steps.append((max(0.0, ahead), left * more / stay))
                    low = cumulative[number]
        steps.sort()
        return steps

    def _refresh(self) -> None:
        """Compute the distribution from the counts."""
        self._until_refresh = REFRESH
        if self._lags:
            rate = self._late / self._late_seconds if self._late_seconds > 0.0 else 0.0
            expected = rate * self._batches
            cumulative: list[float] = []
            raw = most = self.share = 0.0
            for number in range(BINS):
                edge = EDGES[number]
                if edge > 2.0 * self._bound:
                    break  # a slot is not held as long
                raw += self._lags[number]
                back = (raw - expected * edge) / self._answered
                if back > most:
                    most = min(1.0, back)
                cumulative.append(most)
                if edge <= self._bound:
                    self.share = most
            self._cumulative = cumulative
            # NB: with few answers the share may be large by chance.
            doubt = DOUBT * math.sqrt(self.share * (1.0 - self.share) / self._answered)
            self.sure = self.share >= UNSURE if self.sure else self.share - doubt >= SURE
            self.closed = self._others <= _OPEN * self._arrived
        if self._batches >= WINDOW:
            self._lags = [count / 2.0 for count in self._lags]
            self._answered /= 2.0
            self._batches /= 2.0
            self._arrived /= 2.0
            self._others /= 2.0
            self._late /= 2.0
            self._late_seconds /= 2.0


def _bin(seconds: float) -> int:
    # NB: by hand, since this is compiled: `bisect` compares objects, which takes five times as long.
    low, high = 0, BINS - 1
    while low < high:
        middle = (low + high) >> 1
        if EDGES[middle] < seconds:
            low = middle + 1
        else:
            high = middle
    return low
