"""The latency model: L(W), the time of a batch of W items, learned from the batches that the model answered.

    L(W) = 1.05 · max(a + b·W, p80 of the batches of W's size)

`a + b·W` is a robust line through the successes among the latest 200 batches and within the last 10 s, one
line for each class of requests. The p80 counts if at least 8 samples of about W's size exist, and never falls
as W grows. (Not the p95: if one batch in twenty stalls, whatever its size, a p95 would make all batches small
and all queues short because of those few: docs/adr/0005-predict-by-p80.md.) Samples expire, so that one slow
start does not count for ever; L is unknown if no batch succeeded lately. The time is an argument.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev

LAST = 200
"""Maximum samples of one class."""
HORIZON = 10.0
"""Seconds after which a sample expires."""
CLASSES = 16
"""Classes that are kept; one more drops the least recently observed one."""
MARGIN = 1.05
BUCKET_SAMPLES = 8
"""Samples of about one size that are needed for their p80 to count."""
TAIL = 0.8
"""The percentile of `p80`, as a share."""
REFIT = 0.1
"""Minimum seconds between two fits of one class that has `EAGER` samples or more."""
EAGER = 16
GROUPS = 12
"""Groups of samples between which slopes are computed: 66 pairs at most."""
_BOUNDS = tuple(sorted({1 << n for n in range(14)} | {3 << n for n in range(12)}))
"""Upper bounds of the size buckets: 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, …"""
_LAST_BUCKET = len(_BOUNDS) - 1

Sample = tuple[float, int, float]
"""The time of the sample, items, seconds."""
_Group = tuple[float, float, int]
"""Of a group of samples the median items, the median seconds, and their number."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line through the samples of one class, and what it rests on.

    Both numbers of the line are as the samples have them, and so negative at times, by chance: a mean of many
    lines would come out too steep without those.

    Args:
        a: seconds that a batch of any size takes.
        b: seconds that each item adds.
        n: samples.
        items: their mean size.
        spread: standard deviation of their sizes: how much they say of b.
    """

    a: float
    b: float
    n: int
    items: float
    spread: float


def fit_line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Fit a robust line y = a + b·x with a ≥ 0 and b ≥ 0.

    The points, in order of x, are put into at most `GROUPS` groups of about equal number (equal x stay
    together). b is the weighted median of the slopes between the groups' medians; the weight is the product
    of both groups' numbers. a is the weighted median of the residuals y - b·x. This is the estimator of
    Theil (1950) and Sen (1968, doi:10.1080/01621459.1968.10480934) on group medians instead of on all pairs:
    66 slopes instead of 19 900, the same breakdown at 1 - √½ ≈ 29 % outliers. A negative b becomes 0 (a: the
    median of y), a negative a becomes 0 (b: the weighted median of y / x). If all x are equal, the line is
    flat.

    Args:
        points: (items ≥ 1, seconds ≥ 0), at least one.

    Returns:
        a in seconds, b in seconds an item.
    """
    groups = _groups(sorted(points))
    return _bounded(points, groups, *_line(groups))


def _line(groups: list[_Group]) -> tuple[float, float]:
    """The line through groups, whatever its signs: a, b."""
    slopes = [
        ((y2 - y1) / (x2 - x1), n1 * n2)
        for i, (x1, y1, n1) in enumerate(groups)
        for x2, y2, n2 in groups[i + 1 :]
        if x2 > x1
    ]
    b = _weighted_median(slopes) if slopes else 0.0
    return _weighted_median([(y - b * x, n) for x, y, n in groups]), b


def _bounded(
    points: Sequence[tuple[int, float]], groups: list[_Group], a: float, b: float
) -> tuple[float, float]:
    """A line without negative parts instead of one that may have some."""
    if b <= 0.0:
        return max(0.0, median(y for _, y in points)), 0.0
    if a < 0.0:
        return 0.0, max(0.0, _weighted_median([(y / x, n) for x, y, n in groups]))
    return a, b


def _groups(points: list[tuple[int, float]]) -> list[_Group]:
    """The medians of x and of y, and the number, of each group of sorted points."""
    share = len(points) / GROUPS
    groups: list[_Group] = []
    begin = 0
    while begin < len(points):
        end = min(len(points), max(begin + 1, round((len(groups) + 1) * share)))
        last = points[end - 1][0]
        while end < len(points) and points[end][0] == last:
            end += 1
        group = points[begin:end]
        groups.append((median(x for x, _ in group), median(y for _, y in group), len(group)))
        begin = end
    return groups


def _weighted_median(values: list[tuple[float, int]]) -> float:
    values.sort()
    half = sum(weight for _, weight in values) / 2
    total = 0
    for index, (value, weight) in enumerate(values):
        total += weight
        if total == half and index + 1 < len(values):
            return (value + values[index + 1][0]) / 2
        if total >= half:
            return value
    raise ValueError("expected at least one value")


def p80(values: list[float]) -> float:
    """Return the 80th percentile by nearest rank: the smallest value that at least 80 % do not exceed."""
    values.sort()
    return values[math.ceil(TAIL * len(values)) - 1]


class _Class:
    """The samples of one class, and the fit to them."""

    __slots__ = ("a", "again", "b", "floors", "horizon", "kept", "largest", "line", "n", "samples")

    def __init__(self, horizon: float) -> None:
        self.horizon = horizon
        self.samples: deque[Sample] = deque(maxlen=LAST)
        self.n = 0
        self.again = 0.0
        self.a = self.b = 0.0
        self.line = (0.0, 0.0)
        self.floors: list[float] = []
        self.largest = 0
        # The latest arguments of `LatencyModel.largest` and their result, valid until the next fit.
        self.kept = (0, 0.0, 0.0, 0)

    def fit(self, now: float) -> None:
        samples = self.samples
        while samples and samples[0][0] <= now - self.horizon:
            samples.popleft()
        self.n = len(samples)
        self.kept = (0, 0.0, 0.0, 0)
        if not samples:
            self.again = math.inf
            self.largest = 0
            return
        # Fit again when the next sample expires, but no sooner than `REFIT`.
        self.again = max(samples[0][0] + self.horizon, now + REFIT)
        points = sorted([(items, seconds) for _, items, seconds in samples])
        groups = _groups(points)
        self.line = _line(groups)
        self.a, self.b = _bounded(points, groups, *self.line)
        buckets: list[list[float]] = [[] for _ in _BOUNDS]
        for _, items, seconds in samples:
            buckets[_bucket(items)].append(seconds)
        floor = 0.0
        self.floors = []
        for bucket in buckets:
            if len(bucket) >= BUCKET_SAMPLES:
                floor = max(floor, p80(bucket))
            self.floors.append(floor)
        self.largest = max(items for _, items, _ in samples)


def _bucket(items: int) -> int:
    return min(bisect_left(_BOUNDS, items), _LAST_BUCKET)


class LatencyModel:
    """L(W) for each class of requests.

    `learning` is False while batches are not to be learned from: before the model is loaded.

    Args:
        horizon: seconds after which a sample expires.
    """

    __slots__ = ("_classes", "_horizon", "learning")

    def __init__(self, horizon: float = HORIZON) -> None:
        self._horizon = horizon
        self._classes: OrderedDict[str, _Class] = OrderedDict()
        self.learning = True

    def observe(self, now: float, cls: str, items: int, seconds: float) -> None:
        """Learn from a batch that the model answered with success; ~0.5 µs, and every 0.1 s ~0.2 ms.

        Args:
            now: when the answer came, in the clock's time; never falls.
            cls: its class: path and `x-penstock-method`.
            items: items it held, ≥ 1.
            seconds: the time it took, ≥ 0.
        """
        if not self.learning:
            return
        known = self._classes.get(cls)
        if known is None:
            if len(self._classes) >= CLASSES:
                self._classes.popitem(last=False)
            known = self._classes[cls] = _Class(self._horizon)
        else:
            self._classes.move_to_end(cls)
        known.samples.append((now, items, seconds))
        if known.n < EAGER:
            known.fit(now)
        elif known.again > now + REFIT:
            known.again = now + REFIT

    def forget(self) -> None:
        """Forget all samples, since the model is gone or has changed."""
        self._classes.clear()

    def predict(self, now: float, cls: str, items: int) -> float | None:
        """Return L(items) in seconds, or None if no batch succeeded in the last 10 s; ~0.5 µs.

        Never falls as `items` grows.
        """
        known = self._classes.get(cls)
        if known is None:
            return None
        if now >= known.again:
            known.fit(now)
        if not known.n:
            return None
        line = known.a + known.b * items
        floor = known.floors[min(bisect_left(_BOUNDS, items), _LAST_BUCKET)]
        return MARGIN * max(line, floor)

    def middle(self, now: float, cls: str, items: int) -> float | None:
        """The line at `items`: the median time of a batch; None if no batch succeeded lately."""
        known = self._classes.get(cls)
        if known is None:
            return None
        if now >= known.again:
            known.fit(now)
        return known.a + known.b * items if known.n else None

    def largest(self, now: float, cls: str, limit: int, seconds: float, most: float = 0.0) -> int:
        """Return the items of the largest batch that takes at most `seconds`: from 1 to `limit`.

        If even one item takes longer, small batches would gain nothing and cost all throughput: then the
        bound is `most`. If one item exceeds `most` as well, full batches lose nothing.

        Sizes far beyond the samples are unknown, so a batch is never more than twice the largest batch of the
        samples, and has one item if there are no samples: 1, 2, 4, … from a cold start.

        Args:
            now: the clock's time.
            cls: the class.
            limit: maximum items, ≥ 1.
            seconds: the time that a batch should take at most.
            most: the bound if `seconds` cannot be kept; ignored if it is less than `seconds`.
        """
        known = self._classes.get(cls)
        if known is None:
            return 1
        if now >= known.again:
            known.fit(now)
        if not known.n:
            return 1
        kept = known.kept
        if kept[0] != limit or kept[1] != seconds or kept[2] != most:
            kept = known.kept = (limit, seconds, most, self._search(now, cls, limit, seconds, most))
        return kept[3]

    def _search(self, now: float, cls: str, limit: int, seconds: float, most: float) -> int:
        high = min(limit, 2 * self._classes[cls].largest)
        if most > seconds and not self._within(now, cls, 1, seconds):
            seconds = most
            if not self._within(now, cls, 1, most):
                return high
        if self._within(now, cls, high, seconds):
            return high
        low = 1
        while high - low > 1:
            middle = (low + high) // 2
            if self._within(now, cls, middle, seconds):
                low = middle
            else:
                high = middle
        return low

    def lines(self, now: float) -> dict[str, Line]:
        """The line of each class with samples."""
        lines: dict[str, Line] = {}
        for cls, known in self._classes.items():
            if now >= known.again:
                known.fit(now)
            if known.n:
                sizes = [items for _, items, _ in known.samples]
                a, b = known.line
                lines[cls] = Line(a, b, known.n, fmean(sizes), pstdev(sizes))
        return lines

    def _within(self, now: float, cls: str, items: int, seconds: float) -> bool:
        predicted = self.predict(now, cls, items)
        return predicted is not None and predicted <= seconds
