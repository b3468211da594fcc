"""Forecasts arrivals for the time when pods that start now are ready, and measures how far they rose lately.

Pods come late by the lead time: their start-up, and the time to the next look. Two figures make up for it:

    expected   rate + trend · lead    the trend is a least-squares line through the arrivals of the stable
                                      window (Holt's linear trend), less what chance can explain
    reserve    the greatest rise within a lead time and a third of the stable window, over `downscaleDelay`

A jump is not a trend: the lines through each half of the window must rise, too. A trend is not carried beyond
the last crest, the highest rate within `downscaleDelay`, before the rate itself has passed that.

The reserve is the room that a decrease must leave: arrivals that rose so fast can do so again while pods
start. (Power systems plan their reserves against ramps like this: by the steepest ramp of the past.)
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from penstock_operator.autoscaling.capacity import Arrivals
from penstock_operator.autoscaling.window import AT, MISSING, PodLoad

SIGMAS = 2.0
"""Standard deviations of a count that chance can explain (Poisson): it exceeds them in 2 of 100 cases."""

_SAME = 1.02
"""Figures with a smaller ratio count as equal, so that few are remembered, however long the memory is."""

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The remembered rates of arrivals: pairs of seconds and items a second, oldest first.

    Args:
        lately: every rate within the span over which a rise counts.
        highest: of the rates before those, within the memory, those that no later one reached.
        rises: of the rises within the memory, those that no later one reached.
        since: time from which on rates were taken without a gap, in seconds.
    """

    lately: Points = ()
    highest: Points = ()
    rises: Points = ()
    since: float = math.inf

    def watched(self, now: float) -> float:
        """Return the seconds for which rates were taken without a gap, up to now; 0 if none was taken now."""
        return now - self.since if self.lately and self.lately[-1][0] == now else 0.0

    @property
    def top(self) -> float:
        """The highest rate within the memory, before those in `lately`."""
        return self.highest[0][1] if self.highest else 0.0

    @property
    def reserve(self) -> float:
        """The greatest rise within the memory."""
        return self.rises[0][1] if self.rises else 0.0


def remember(rates: Rates, rate: float, *, span: float, memory: float, now: float) -> Rates:
    """Return the rates with one more.

    Args:
        span: seconds within which a rise counts.
        memory: seconds for which the highest rate and the greatest rise are remembered.
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
    """Return the items a second to be expected after the lead time.

    Args:
        lately: the latest arrivals; their rate is that of the middle of their seconds.
        trend: items a second by which the rate rises each second.
    """
    rate = lately.rate
    ahead = rate + trend * (lately.seconds / 2 + lead)
    passed = rate - lately.chance(SIGMAS) > rates.top
    return ahead if passed else min(ahead, max(rates.top, rate))


def trend(pods: Sequence[PodLoad], *, window: float, now: float) -> float:
    """Return the items a second by which arrivals rise each second, at least; 0 if chance can explain it.

    Args:
        pods: the backend's, including those that left.
        window: seconds to look back; a third of it is enough at first.
    """
    first = min((pod.samples[0].at for pod in pods if pod.samples), default=now)
    # NB: pods that first report to a new leader one after the other are not a rise.
    first = max([first, *(pod.since for pod in pods if not pod.left)])
    # NB: beyond the earliest last report, what other pods have not reported yet would look like a fall.
    lasts = [pod.samples[-1] for pod in pods if pod.samples and not pod.left]
    end = min((last.at for last in lasts if now - last.at <= MISSING * last.every), default=now)
    span = min(window, end - first)
    if span < window / 3:
        return 0.0
    begin, middle = end - span, end - span / 2
    whole, before, after = _line(pods, begin, end), _line(pods, begin, middle), _line(pods, middle, end)
    return max(min(whole.less(SIGMAS), before.less(-1.0), after.less(-1.0)), 0.0)


@dataclass(frozen=True, slots=True)
class _Trend:
    """The slope of a least-squares line, and the standard deviation that chance gives it."""

    slope: float
    deviation: float

    def less(self, sigmas: float) -> float:
        return self.slope - sigmas * self.deviation


def _line(pods: Sequence[PodLoad], start: float, end: float) -> _Trend:
    """Fit a line to the arrivals from `start` to `end`.

    The items of a report are spread evenly over the time since the one before it. Counted in whole reports,
    bins of ten seconds hold nine or eleven of them, by the phase of the reports, which is more than chance.
    """
    middle, seconds = (start + end) / 2, end - start
    count = moment = 0.0
    for pod in pods:
        within = bisect_right(pod.samples, start, key=AT)
        before = pod.samples[within - 1].at if within else None
        for sample in islice(pod.samples, within, None):
            since = sample.at - sample.every if before is None else before
            before = sample.at
            if since >= end:
                break
            first, last = max(since, start), min(sample.at, end)
            if first < last:
                items = sample.arrived * (last - first) / (sample.at - since)
                count += items
                moment += items * ((first + last) / 2 - middle)
    return _Trend(12 * moment / seconds**3, math.sqrt(12 * max(count, 1.0) / seconds**4))
