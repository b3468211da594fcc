"""What happens to an endpoint while a release runs: load, errors and latency of each quarter minute.

Both backends have the same minutes. A day is an hour long; half of the worlds have an outage that hits both;
each tick has noise of its own, and each backend's latency a little more, as pods differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock_operator.releases.state import Counts, Interval
from penstock_wire.control.report import FIRST_BYTE_SECONDS

TICK = 15
"""Seconds in which nothing changes; Prometheus scrapes so often, too."""
SPREAD = 0.5
"""Standard deviation of the logarithm of a latency: p99 is 3.2 times the median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """How a candidate differs from the stable.

    Args:
        name: what it is called.
        errors: share of the requests that it fails and the stable would have answered.
        slower: seconds that each answer takes longer.
        times: how many times as long an answer takes.
        differs: share of the copies whose answers differ.
        batch: so many requests fail, or are late, as one; of the stable, too.
    """

    name: str
    errors: float = 0.0
    slower: float = 0.0
    times: float = 1.0
    differs: float = 0.001
    batch: int = 1


STABLE = Version(name="stable")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Answers of a backend.

    Args:
        harmed: requests that its difference from the stable failed or made slower.
    """

    counts: Counts
    harmed: int


class World:
    """One endpoint.

    Args:
        rate: requests a second, on average.
    """

    def __init__(self, seed: int, *, rate: float, seconds: int) -> None:
        chance: Any = np.random.default_rng(seed)
        self.chance = chance
        ticks = seconds // TICK + 2
        day = np.sin(2 * math.pi * (np.arange(ticks) * TICK / 3600 + chance.random()))
        self._rate = rate * (1 + 0.5 * day) * chance.lognormal(0, 0.1, ticks)
        self._errors = np.minimum(10 ** chance.uniform(-4, -2) * chance.lognormal(0, 0.5, ticks), 1.0)
        self.median = 10 ** chance.uniform(math.log10(0.02), math.log10(0.08))
        self._median = self.median * (1 + 0.1 * day) * chance.lognormal(0, 0.05, ticks)
        if chance.random() < 0.5:
            begin = int(chance.integers(0, ticks))
            outage = slice(begin, begin + int(chance.integers(1, 9)))
            self._errors[outage] = chance.uniform(0.1, 0.8)
            self._median[outage] *= chance.uniform(1, 3)
        self._noise = chance.lognormal(0, 0.03, (2, ticks))
        self._buckets: dict[bool, Any] = {}
        self._parts: Any = np.random.default_rng((seed, 1))

    def arrivals(self, second: int, seconds: float) -> int:
        """Requests that arrive within some seconds of a tick."""
        return int(self.chance.poisson(self._rate[second // TICK] * seconds))

    def answers(self, version: Version, requests: int, second: int, *, candidate: bool) -> Answers:
        """Answers of a backend to requests of one tick."""
        tick, chance = second // TICK, self.chance
        requests -= requests % version.batch
        if not requests:
            return Answers(counts=Counts(), harmed=0)
        batches = requests // version.batch
        failed = version.batch * int(chance.binomial(batches, self._errors[tick]))
        caused = int(chance.binomial(requests - failed, version.errors))
        times = version.batch * chance.multinomial(batches, self._shares(version, candidate)[tick])
        seconds = tuple(times.tolist())
        harmed = requests if version.slower else caused
        return Answers(
            counts=Counts(requests=requests, errors=failed + caused, seconds=seconds), harmed=harmed
        )

    def _shares(self, version: Version, candidate: bool) -> Any:
        """Of a backend's answers, the share in each bucket, by tick."""
        if candidate not in self._buckets:
            medians = self._median * self._noise[int(candidate)] * version.times
            own = np.maximum(np.array(FIRST_BYTE_SECONDS) - version.slower, 1e-12)
            below = _normal(np.log(own[None, :] / medians[:, None]) / SPREAD)
            ends = np.ones((len(medians), 1))
            self._buckets[candidate] = np.diff(np.hstack([0 * ends, below, ends]))
        return self._buckets[candidate]

    def copies(self, version: Version, requests: int) -> Counts:
        """What comparing copies of so many requests gives."""
        return Counts(compared=requests, differing=int(self.chance.binomial(requests, version.differs)))

    def parts(self, counts: Counts, seconds: int, batch: int) -> list[Counts]:
        """Counts of some seconds, by the second: a batch is in one."""
        evenly = [1 / seconds] * seconds

        def cut(count: Any, unit: int) -> Any:
            return unit * self._parts.multinomial(np.asarray(count) // unit, evenly)

        times = cut(counts.seconds, batch).T if counts.seconds else np.zeros((seconds, 0), int)
        errors, differing = cut(counts.errors, batch), cut(counts.differing, 1)
        alike = cut(counts.compared - counts.differing, 1)
        return [
            Counts(
                requests=max(int(own.sum()), int(bad)),
                errors=int(bad),
                seconds=tuple(own.tolist()),
                compared=int(same + other),
                differing=int(other),
            )
            for own, bad, same, other in zip(times, errors, alike, differing, strict=True)
        ]

    def goes_on(
        self, interval: Interval, stable: Counts, candidate: Counts, seconds: int, batch: int
    ) -> Interval:
        """An interval with some more seconds."""
        cut = zip(self.parts(stable, seconds, batch), self.parts(candidate, seconds, batch), strict=True)
        return Interval(
            stable=add(interval.stable, stable),
            candidate=add(interval.candidate, candidate),
            parts=(*interval.parts, *cut),
        )


def _normal(at: Any) -> Any:
    """The normal distribution, to 1e-7 (Abramowitz and Stegun, 26.2.17)."""
    t = 1 / (1 + 0.2316419 * np.abs(at))
    series = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    tail = np.clip(np.exp(-at * at / 2) / math.sqrt(2 * math.pi) * series, 0, 1)
    return np.maximum.accumulate(np.where(at > 0, 1 - tail, tail), axis=1)


def add(first: Counts, other: Counts) -> Counts:
    """The sum of two counts."""
    return Counts(
        requests=first.requests + other.requests,
        errors=first.errors + other.errors,
        refused=first.refused + other.refused,
        seconds=tuple(map(sum, zip(first.seconds, other.seconds, strict=True)))
        if first.seconds and other.seconds
        else first.seconds or other.seconds,
        compared=first.compared + other.compared,
        differing=first.differing + other.differing,
    )
