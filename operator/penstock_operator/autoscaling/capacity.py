"""Computes what one pod can do from reported service curves and slots, for backends without `targetLoad`.

    L(W) = 1.05 · (a + b·W)                                  seconds that a batch of W items takes
    W*   = the largest W with L(W) + L(W)/2 <= latencyObjective   a new item waits half a batch
    μ*   = C · W* / L(W*)                                    items a second that a pod with C slots answers
    T*   = 1.5 · C · W*                                      items that then wait or are with its model

Where nothing keeps the objective with half a batch's wait, W* is the largest W with L(W) <= latencyObjective.
Without an objective, without a curve, or if one item alone takes longer, W* is `maxBatchSize`.

The curve is remembered: sidecars report none for a model that was idle for ten seconds. It follows the
reports slowly: a line through a few batches of one pod is off by some percent, and the number of replicas
should not be. At the reported sizes all lines count alike; for the slope each counts by what it says of that,
n · (standard deviation of its sizes)². Under a light load batches have one or two items, and noise alone
makes their lines steep or falling: extended to W*, they would halve or double what a pod can do.

Where three pods or more report, one that differs from all others moves the result by little: its model may
be broken and answer in no time, and so have the most batches. What a pod reports counts as at most `APART`
times what the middle pod does, and its batches as at most the middle pod's.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from penstock_operator.autoscaling.window import (
    AT,
    MISSING,
    SILENT_S,
    FittedLine,
    PodLoad,
    RouterHolds,
    Sample,
    is_silent,
)
from penstock_wire.control.report import line_through

MARGIN = 1.05
"""The margin of the sidecar's own forecast, by which it chooses batches (`estimators/latency_model.py`)."""
WAIT = 1.5
"""Number of batch times from arrival to answer."""
FOLLOWS_S = 60.0
"""Seconds after which the curve has moved 63 % of the way to the reported one."""
LINE_S = 10.0
"""Seconds of batches that a line rests on, however long nothing was reported before it."""
APART = 3.0
"""What a pod reports counts as at most so many times, and at least that part of, what the middle one does."""
ENOUGH = 3
"""Pods that are needed for one of them to be the middle one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The fields of a backend's batch policy that capacity depends on.

    Args:
        max_batch_size: items in a batch at most; 1 if nothing is batched.
        slots: batches that can be in one model at once, if no sidecar has reported it.
        latency: `latencyObjective` in seconds; None for none.
    """

    max_batch_size: int
    slots: int = 1
    latency: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The service curve a + b·W that a backend's pods have in common.

    Args:
        at: time of the last update, in seconds.
        items: mean size of the batches reported then.
        level: seconds that a batch of this size takes.
        slope: seconds that each item adds; negative by chance at times.
        information: what the slope rests on, as `FittedLine.information`.
        since: time of the first line, in seconds.
    """

    at: float
    items: float
    level: float
    slope: float
    information: float = 0.0
    since: float = -math.inf

    @property
    def b(self) -> float:
        """Seconds that each item adds."""
        return line_through(self.items, self.level, self.slope)[1]

    @property
    def a(self) -> float:
        """Seconds that a batch of any size takes."""
        return line_through(self.items, self.level, self.slope)[0]

    def seconds(self, items: int) -> float:
        """Return L(items)."""
        return MARGIN * (self.a + self.b * items)

    def largest(self, seconds: float) -> float:
        """Return the size of the largest batch that takes at most so long; below 1 if none does."""
        left = seconds / MARGIN - self.a
        if self.b <= 0.0:
            return math.inf if left >= 0.0 else 0.0
        return left / self.b + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The capacity of one pod.

    Args:
        batch_size: W*.
        slots: C, the mean of the pods that report.
        seconds: L(W*); None without a curve.
        item_seconds: L(1); None without a curve.
        keeps_objective: False if one item alone takes longer than the objective.
    """

    batch_size: int
    slots: float
    seconds: float | None = None
    item_seconds: float | None = None
    keeps_objective: bool = True

    @property
    def load(self) -> float:
        """T*."""
        return WAIT * self.slots * self.batch_size

    @property
    def rate(self) -> float | None:
        """μ*, items a second; None without a curve."""
        return None if self.seconds is None else self.slots * self.batch_size / self.seconds


def capacity(objective: Objective, curve: Curve | None, pods: Sequence[PodLoad], now: float) -> Capacity:
    """Compute what one pod can do.

    Args:
        pods: the backend's; only those that serve and report count.
    """
    reported = [float(sample.slots) for sample in _latest(pods, now) if sample.slots is not None]
    if len(reported) >= ENOUGH:
        middle = median(reported)
        reported = [_near(count, middle) for count in reported]
    slots = max(sum(reported) / len(reported), 1.0) if reported else float(objective.slots)
    size = objective.max_batch_size
    if curve is None:
        return Capacity(batch_size=size, slots=slots)
    item_seconds, keeps = curve.seconds(1), True
    if objective.latency is not None:
        keeps = curve.largest(objective.latency) >= 1.0
        if keeps:  # one item a batch at least, if it can keep the objective without waiting
            size = max(math.floor(min(curve.largest(objective.latency / WAIT), size)), 1)
    return Capacity(
        batch_size=size,
        slots=slots,
        seconds=max(curve.seconds(size), 1e-6),
        item_seconds=item_seconds,
        keeps_objective=keeps,
    )


def follow(before: Curve | None, pods: Sequence[PodLoad], now: float, *, most: int) -> Curve | None:
    """Return the curve, updated by the latest reports.

    Args:
        pods: the backend's; only those that serve and report count.
    """
    means = [each for sample in _latest(pods, now) if (each := _mean(sample.lines, before, most)) is not None]
    if len(means) >= ENOUGH:
        means = _agreed(means, before)
    weight = sum(each.n for each in means)
    if not weight:
        return before
    items = max(sum(each.n * each.items for each in means) / weight, 1.0)
    level = sum(each.n * each.level for each in means) / weight
    information = sum(each.information for each in means)
    slope = sum(each.information * each.slope for each in means) / information if information else 0.0
    if before is None:
        return Curve(at=now, items=items, level=level, slope=slope, information=information, since=now)
    gap = max(now - before.at, 0.0)
    part = _share(before, min(gap, LINE_S), now)
    newly = part * information
    turn = newly / (newly + (1.0 - part) * before.information) if newly else 0.0
    slope = before.slope + turn * (slope - before.slope)
    # The line turns at the sizes that were reported before, where it was known.
    a, b = line_through(before.items, before.level, slope)
    expected = a + b * items
    return Curve(
        at=now,
        items=items,
        level=expected + _share(before, gap, now) * (level - expected),
        slope=slope,
        information=before.information + turn * (information - before.information),
        since=before.since,
    )


def _share(before: Curve, seconds: float, now: float) -> float:
    """What reports of so many seconds count beside those of before.

    At first, the mean of all reports counts: one line through a few batches is off by some percent.
    """
    return max(1.0 - math.exp(-seconds / FOLLOWS_S), seconds / max(now - before.since, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class _PodMean:
    """What one pod reports: the mean of its lines; fields as in `FittedLine` and `Curve`."""

    n: float
    items: float
    level: float
    slope: float
    information: float


def _mean(lines: Sequence[FittedLine], before: Curve | None, most: int) -> _PodMean | None:
    lines = [_possible(line, most) for line in lines]
    if before is not None and before.information:
        lines = [line for line in lines if line.sized]
    n = sum(line.n for line in lines)
    if not n:
        return None
    information = sum(line.information for line in lines)
    return _PodMean(
        n=n,
        items=sum(line.n * line.items for line in lines) / n,
        level=sum(line.n * max(line.a + line.b * line.items, 0.0) for line in lines) / n,
        slope=sum(line.information * line.b for line in lines) / information if information else 0.0,
        information=information,
    )


def _agreed(means: Sequence[_PodMean], before: Curve | None) -> list[_PodMean]:
    """Return what pods report, each within bounds that follow from all of them.

    Levels are of different sizes, so they are compared by their ratios to one line: the last curve, or at
    first that of the middle pod. Slopes can be negative by chance; bounds at the same distance on both
    sides of zero leave their mean where it is.
    """
    if before is None:
        first = sorted(means, key=lambda each: each.level)[len(means) // 2]
        a, b = line_through(max(first.items, 1.0), first.level, first.slope)
    else:
        a, b = before.a, before.b
    expected = [max(a + b * each.items, 1e-6) for each in means]
    ratio = median(each.level / usual for each, usual in zip(means, expected, strict=True))
    most = median(each.n for each in means)
    information = median([each.information for each in means if each.information] or [0.0])
    agreed = []
    for each, usual in zip(means, expected, strict=True):
        steepest = APART * ratio * usual / max(each.items, 1.0)
        agreed.append(
            _PodMean(
                n=min(each.n, most),
                items=each.items,
                level=usual * _near(each.level / usual, ratio),
                slope=min(max(each.slope, -steepest), steepest),
                information=min(each.information, information),
            )
        )
    return agreed


def _near(value: float, middle: float) -> float:
    return min(max(value, middle / APART), middle * APART)


def _possible(line: FittedLine, most: int) -> FittedLine:
    """A line with sizes that batches can have: the spread of numbers up to `most` is at most half of it."""
    return replace(line, items=min(line.items, most), spread=min(line.spread, most / 2))


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The rate at which items arrive.

    Args:
        rate: items a second.
        seconds: the time over which it was counted.
    """

    rate: float
    seconds: float

    def chance(self, sigmas: float) -> float:
        """Return a number of standard deviations of the rate by chance: a count n varies by its root."""
        return sigmas * math.sqrt(self.rate / self.seconds)


def arrivals(
    pods: Sequence[PodLoad], holds: Sequence[RouterHolds], *, window: float, now: float, unknown: float
) -> Arrivals | None:
    """Compute the rate at which items arrive; None before there is a second of reports.

    Refused items have arrived, too. So has what routers hold beyond what they held when the window began: it
    has not reached a pod yet.

    Args:
        unknown: the rate of a pod that has not reported in all of that time.
    """
    senders: list[PodLoad | RouterHolds] = [*pods, *holds]
    firsts = [sender.samples[0].at for sender in senders if sender.samples]
    seconds = min(window, now - min(firsts, default=now))
    if seconds < 1.0:
        return None
    start = now - seconds
    total = sum(_arrived(pod, start=start, now=now, unknown=unknown) for pod in pods)
    for router in holds:
        before = next((sample.load for sample in reversed(router.samples) if sample.at <= start), 0)
        total += router.held(now) - before
    return Arrivals(max(total, 0.0) / seconds, seconds)


def _arrived(pod: PodLoad, *, start: float, now: float, unknown: float) -> float:
    """Count the items that arrived at a pod from `start` on.

    While reports are missing, the rate before counts; before the first report, the rate after it.
    """
    samples = pod.samples
    arrived, since = _counted(samples, start)
    earlier = 0.0
    if samples and pod.since > start and (reported := samples[-1].at - pod.since) >= 1.0:
        earlier = arrived / reported * (pod.since - start)
    missing = not samples or now - samples[-1].at > MISSING * samples[-1].every
    if pod.left or not pod.was_ready or not missing:
        return arrived + earlier
    if not samples:
        # NB: a pod that has just become ready has not had the time to report.
        return unknown * (now - start) if pod.ready_for > SILENT_S else 0.0
    last = samples[-1].at
    spoke = last - since
    return earlier + arrived + (arrived / spoke if spoke >= 1.0 else unknown) * (now - max(last, start))


def _counted(samples: Sequence[Sample], start: float) -> tuple[float, float]:
    """Count the items in the reports after `start`; return them and the time from which they count.

    A report counts all items since the one before it. If that is long ago, only the part from `start` on is
    taken: a minute's arrivals within a window of seconds would look like a burst.
    """
    within = bisect_right(samples, start, key=AT)
    arrived = float(sum([sample.arrived for sample in samples[within:]]))
    if 0 < within < len(samples):
        before, sample = samples[within - 1], samples[within]
        gap = sample.at - before.at
        if gap <= MISSING * sample.every:
            return arrived, before.at
        return arrived - sample.arrived * (start - before.at) / gap, start
    return arrived, max(samples[0].at, start) if samples else start


def _latest(pods: Sequence[PodLoad], now: float) -> list[Sample]:
    return [
        pod.samples[-1]
        for pod in pods
        if pod.was_ready and not pod.left and pod.samples and not is_silent(pod.samples, now)
    ]
