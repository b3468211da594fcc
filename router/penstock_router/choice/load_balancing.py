"""Chooses the next request's backend by weight, and its pod by load. Pure but for the state it keeps.

**By weight**: a low-discrepancy draw. Every backend has a lag: its share of the requests so far, less the
number that it got. Each request adds the backend's share of one request to each lag. Among the backends with
a positive lag, the one whose lag would reach one first (its deadline) gets the request, and one is subtracted
from its lag. This is earliest deadline first for unit jobs, the schedule of the chairman assignment problem
(R. Tijdeman, Discrete Mathematics 32, 1980) and of Pfair scheduling (Baruah et al., Algorithmica 15, 1996):
no lag ever reaches one, so in any window, however long, each backend is within two requests of its share.
Ties are broken at random, and a router starts at a random place in the cycle, so that routers do not march
in step. Lags are integers in units of 1 / (sum of weights): no error adds up.

**With two backends**, as in a release and for a mirror, the lighter one gets a random request between the one
that makes its lag positive and the one that makes it reach one: the same bound holds. By earliest deadline, a
backend with 10 % would get every tenth request: only one kind from a client that sends ten kinds in turn.

**By load**: the better of two random pods (M. Mitzenmacher, "The Power of Two Choices in Randomized Load
Balancing", 2001): near the best choice, without a herd on the pod that looked best a moment ago.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

START_STEPS = 64
"""A router starts fewer than this many draws into the cycle."""


class WeightedSelector:
    """Shares requests among backends by weight.

    Args:
        random_source: breaks ties, and chooses where in the cycle to start.
    """

    def __init__(self, random_source: random.Random) -> None:
        self._random = random_source
        self._weights: dict[str, int] = {}
        self._total = 0
        self._lags: dict[str, int] = {}

    @property
    def weights(self) -> Mapping[str, int]:
        return self._weights

    def set_weights(self, weights: Mapping[str, int]) -> None:
        """Share by these weights from the next draw on; a backend that stays keeps its lag.

        Args:
            weights: weight by backend; those of weight 0 get nothing.
        """
        positive = {name: weight for name, weight in weights.items() if weight > 0}
        if positive == self._weights:
            return
        first = not self._weights
        old_total = self._total
        total = sum(positive.values())
        # Lags stay the same number of requests, in the new unit.
        lags = {name: self._lags[name] * total // old_total if name in self._lags else 0 for name in positive}
        self._weights, self._total, self._lags = positive, total, lags
        self._balance()
        if first and len(positive) > 1:
            for _ in range(self._random.randrange(START_STEPS)):
                self.next()

    def next(self) -> str | None:
        """The backend of the next request, or None if none has a weight."""
        if len(self._weights) < 2:
            return next(iter(self._weights), None)
        if len(self._weights) == 2:
            return self._of_two()
        total = self._total
        best: list[str] = []
        nearest = 0
        for name, weight in self._weights.items():
            lag = self._lags[name] + weight
            self._lags[name] = lag
            if lag <= 0:
                continue
            deadline = -((lag - total) // weight)  # draws until its lag is one, rounded up
            if not best or deadline < nearest:
                best, nearest = [name], deadline
            elif deadline == nearest:
                best.append(name)
        chosen = best[0] if len(best) == 1 else self._random.choice(best)
        self._lags[chosen] -= total
        return chosen

    def _of_two(self) -> str:
        less, more = self._weights
        weight, total = self._weights[less], self._total
        if 2 * weight > total:
            less, more = more, less
            weight = total - weight
        lag = self._lags[less] + weight
        left = -((lag - total) // weight)  # draws until its lag is one, rounded up
        if left <= 0 or (lag > 0 and self._random.random() * (left + 1) < 1.0):
            lag -= total
            chosen = less
        else:
            chosen = more
        self._lags[less], self._lags[more] = lag, -lag
        return chosen

    def _balance(self) -> None:
        """Bring the sum of the lags back to zero after a change: all share the lag of those that left."""
        names = list(self._weights)
        if not names:
            return
        surplus = sum(self._lags.values())
        for name in names:
            self._lags[name] -= surplus * self._weights[name] // self._total
        self._lags[names[0]] -= sum(self._lags.values())


def two_of(number: int, random_source: random.Random) -> tuple[int, int]:
    """Two different random indices, in random order, so that the first is a fair choice among equals.

    Args:
        number: how many there are to choose from, at least two; indices begin at 0.
        random_source: draws them.
    """
    # NB: `randrange` costs four times as much; the bias of this is 2**-53 per pod.
    first = int(random_source.random() * number)
    second = int(random_source.random() * (number - 1))
    return first, second if second < first else second + 1
