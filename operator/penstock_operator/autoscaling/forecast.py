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
    # NB: what some pods have not reported yet would be a fall.
    lasts = [pod.samples[-1] for pod in pods if pod.samples and not pod.left]
    end = min((last.at for last in lasts if now - last.at <= MISSING * last.every), default=now)
    span = min(window, end - first)
    if span < window / 3:
        return 0.0
    begin, middle = end - span, end - span / 2
    whole, before, after = _line(pods, begin, end), _line(pods, begin, middle), _line(pods, middle, end)
    return max(min(whole.less(SIGMAS), before.less(-1.0), after.less(-1.0)), 0.0)


@dataclass(frozen=True, slots=True)
class _Line:
    """The slope of a least-squares line, and the standard deviation that chance gives it."""

    slope: float
    deviation: float

    def less(self, sigmas: float) -> float:
        return self.slope - sigmas * self.deviation


def _line(pods: Sequence[PodLoad], start: float, end: float) -> _Line:
    """The line through what arrived from `start` to `end`.

    What a report counts is spread evenly over the time since the one before it: counted in whole reports,
    bins of ten seconds hold nine or eleven of them, by the phase of the reports, which is more than chance.
    """
    middle, seconds = (start + end) / 2, end - start
    count = moment = 0.0
    for pod in pods:
        before = None
        for sample in pod.samples:
            since = sample.at - sample.every if before is None else before
            before = sample.at
            first, last = max(since, start), min(sample.at, end)
            if first < last:
                items = sample.arrived * (last - first) / (sample.at - since)
                count += items
                moment += items * ((first + last) / 2 - middle)
    return _Line(12 * moment / seconds**3, math.sqrt(12 * max(count, 1.0) / seconds**4))
