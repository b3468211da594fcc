"""How far arrivals will have risen when pods that start now are ready, and how far they rose lately.

Pods come late by the lead time: what they take to start, and the time to the next look. Two figures follow:

    expected   rate + trend · lead    a least-squares line through the arrivals of the stable window (Holt's
                                      linear trend); without the part that chance may have made
    reserve    the greatest rise within a lead time and a third of the stable window, of `downscaleDelay`

A jump is not a trend: lines through either half of the window must rise, too. And a trend is not carried
beyond the last crest, the highest rate within `downscaleDelay`, before the rate itself has passed that.

The reserve is what a lower number must leave room for: arrivals that rose so fast may do so again while pods
start. (Reserves against ramps are planned so in power systems: by the steepest ramp of the past.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from penstock_operator.autoscaling.capacity import Arrivals
from penstock_operator.autoscaling.window import MISSING, PodLoad

_BUCKETS = 6
SIGMAS = 2.0
"""Standard deviations of a count by chance (Poisson): what exceeds them is chance in 2 of 100 cases."""

_SAME = 1.02
"""Figures that differ by less are the same, so that few are remembered, however long the memory is."""

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What is remembered of the rate of arrivals: pairs of seconds and items a second, oldest first.

    Args:
        lately: every rate within the span over which a rise counts.
        highest: of the rates before those, within the memory, those that no later one reached.
        rises: of the rises within the memory those that no later one reached.
        since: from when on rates were taken without a gap, in seconds.
    """

    lately: Points = ()
    highest: Points = ()
    rises: Points = ()
    since: float = math.inf

    def watched(self, now: float) -> float:
        """Seconds for which rates were taken, up to the latest.

        Args:
            now: the time in seconds.
        """
        return now - self.since if self.lately and self.lately[-1][0] == now else 0.0

    @property
    def top(self) -> float:
        """The highest rate within the memory, before the latest."""
        return self.highest[0][1] if self.highest else 0.0

    @property
    def reserve(self) -> float:
        """The greatest rise within the memory."""
        return self.rises[0][1] if self.rises else 0.0


def remember(rates: Rates, rate: float, *, span: float, memory: float, now: float) -> Rates:
    """The rates with one more.

    Args:
        rates: what this returned last.
        rate: items a second, now.
        span: seconds within which a rise counts.
        memory: seconds for which the highest rate and the greatest rise are remembered.
        now: the time in seconds.
    """
    known = tuple((at, past) for at, past in rates.lately if now - at < span)
    lately = (*known, (now, rate))
    highest = rates.highest
    for at, past in rates.lately:
        if now - at >= span:
            highest = _push(highest, past, memory=memory, now=at)
    rise = rate - min(past for _, past in lately)
    return Rates(
        lately=lately,
        highest=tuple((at, past) for at, past in highest if now - at < memory),
        rises=_push(rates.rises, rise, memory=memory, now=now),
        since=rates.since if known else now,
    )


def _push(points: Points, value: float, *, memory: float, now: float) -> Points:
    kept = tuple((at, past) for at, past in points if now - at < memory and past > value)
    return kept if kept and kept[-1][1] <= _SAME * value else (*kept, (now, value))


def expected(rates: Rates, lately: Arrivals, *, trend: float, lead: float) -> float:
    """Items a second that are to be expected.

    Args:
        rates: what is remembered.
        lately: what arrives: its rate is that of the middle of its seconds.
        trend: by which it rises each second.
        lead: seconds to look ahead.
    """
    rate = lately.rate
    ahead = rate + trend * (lately.seconds / 2 + lead)
    passed = rate - lately.chance(SIGMAS) > rates.top
    return ahead if passed else min(ahead, max(rates.top, rate))


def trend(pods: Sequence[PodLoad], *, window: float, now: float) -> float:
    """Items a second by which arrivals rise each second, at least; 0 where they may as well not rise.

    Args:
        pods: the backend's, those that left included.
        window: seconds to look back; a third of it is enough at the beginning.
        now: the time in seconds.
    """
    first = min((pod.samples[0].at for pod in pods if pod.samples), default=now)
    # NB: pods that a new leader hears one after the other are no rise.
    first = max([first, *(pod.since for pod in pods if not pod.left)])
    span = min(window, now - first)
    if span < window / 3:
        return 0.0
    width = span / _BUCKETS
    counts = [0.0] * _BUCKETS
    for pod in pods:
        before = None
        for sample in pod.samples:
            gap = min(sample.every, span) if before is None else sample.at - before
            before = sample.at
            end = (sample.at - (now - span)) / width
            if gap <= MISSING * sample.every:
                # What a report counts came, on average, in the middle of the time since the one before it.
                bucket = math.floor(end - gap / width / 2)
                if 0 <= bucket < _BUCKETS:
                    counts[bucket] += sample.arrived
                continue
            begin, each = end - gap / width, sample.arrived * width / gap
            for bucket in range(_BUCKETS):
                counts[bucket] += each * max(min(end, bucket + 1) - max(begin, bucket), 0.0)
    chance = math.sqrt(max(sum(counts) / _BUCKETS, 1.0))
    half = _BUCKETS // 2
    whole = _slope(counts, width, -SIGMAS * chance)
    return max(min(whole, _slope(counts[:half], width, chance), _slope(counts[half:], width, chance)), 0.0)


def _slope(counts: Sequence[float], width: float, chance: float) -> float:
    """The least-squares slope of rates, and what `chance` in each count makes of it."""
    middle = (len(counts) - 1) / 2
    places = [index - middle for index in range(len(counts))]
    squares = sum(place * place for place in places)
    line = sum(place * count for place, count in zip(places, counts, strict=True)) / squares
    return (line + chance / math.sqrt(squares)) / width**2
