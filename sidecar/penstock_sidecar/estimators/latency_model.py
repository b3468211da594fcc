"""The latency model: L(W), the time of a batch of W items, learned from the batches that the model answered.

    L(W) = 1.05 · max(a + b·W, p80 of the batches of W's size)

`a + b·W` is a robust line through the successes among the latest 200 batches and within the last 10 s, one
line for each class of requests. The p80 counts if at least 8 samples of about W's size exist, and never falls
as W grows. (Not the p95: if one batch in twenty stalls, whatever its size, a p95 would make all batches small
and all queues short because of those few: docs/adr/0005-predict-by-p80.md.) Samples expire, so that one slow
start does not count for ever; L is unknown if no batch succeeded lately. The time is an argument.

All samples before a long batch expire while it runs, so it would be the only one. Therefore those that
counted when it began count as long as it does. Long ones that all ran at one moment may be due to one stall
of the machine, and all requests that wait behind them would be refused. So they count only beside one that
began after the first of them ended, or if most batches of the class are long.

W is the number of items. Where the costs of items differ and explain more of the batches' times
(`cost_fit`), W is the batch's work in items of the usual cost (`work`), and all else is the same.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import OrderedDict, deque
from dataclasses import dataclass
from statistics import fmean, median, median_low, pstdev

from penstock_sidecar.estimators.cost_fit import (
    BELIED,
    LEAST_SAMPLES,
    BatchSample,
    are_alike,
    choose,
    relative_error,
)
from penstock_sidecar.estimators.robust_line import bounded, fit_line, groups_of, line_through
from penstock_sidecar.estimators.thrifty_work import dearer_beyond
from penstock_sidecar.work import WorkFormula

LAST = 200
"""Maximum samples of one class."""
HORIZON = 10.0
"""Seconds after which a sample expires."""
LONG = 0.5
"""A batch is long if it takes more than this share of them."""
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
_BOUNDS = tuple(sorted({1 << n for n in range(14)} | {3 << n for n in range(12)}))
"""Upper bounds of the size buckets: 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, …"""
_LAST_BUCKET = len(_BOUNDS) - 1

LEAST_OVERHEAD, MOST_OVERHEAD = 0.5, 1e6
"""Bounds of the time that any batch takes, in items of the usual cost: what is between batches is never 0."""
TRIAL_OVERHEAD = 4.0
"""`overhead` for trials: groups small enough to differ in their costs from other batches."""
TRIAL_EVERY, TRIAL_SELDOM = 8.0, 256.0
"""Batches from one trial to the next: at first, and after many that have shown nothing."""
_TRIAL_GROWTH = 1.25
_RISE = 1.05
"""By what `thrifty` rises from one look to the next while nothing shows that larger batches are dear."""
CHOOSE, SELDOM = 1.0, 8.0
"""Minimum seconds between two looks at what the time depends on: at first, and while nothing changes."""


@dataclass(frozen=True, slots=True)
class FittedLine:
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


@dataclass(frozen=True, slots=True)
class BatchesByCost:
    """The batches of a class whose items' costs count, on average.

    Args:
        formula: their work.
        items: items of a batch.
        cost: sum of their costs.
        error: median error of a batch's time by its work, as a share of the time.
        error_by_items: the same by the number of its items alone.
    """

    formula: WorkFormula
    items: float
    cost: float
    error: float
    error_by_items: float


def p80(values: list[float]) -> float:
    """Return the 80th percentile by nearest rank: the smallest value that at least 80 % do not exceed."""
    values.sort()
    return values[math.ceil(TAIL * len(values)) - 1]


class _Class:
    """The samples of one class, and the fit to them."""

    __slots__ = (
        "a",
        "again",
        "alone",
        "b",
        "choose",
        "every",
        "first_end",
        "floors",
        "formula",
        "history",
        "horizon",
        "kept",
        "largest",
        "line",
        "long_at",
        "n",
        "pause",
        "samples",
        "since",
        "stalled",
        "trial",
        "unsure",
    )

    def __init__(self, horizon: float) -> None:
        self.horizon = horizon
        self.samples: deque[BatchSample] = deque(maxlen=LAST)
        # As many samples without an end: what the time depends on does not change with the model's speed.
        self.history: deque[BatchSample] = deque(maxlen=LAST)
        # How many of the latest samples, up to now, were of batches that had the model to themselves.
        self.alone = 0
        self.formula: WorkFormula | None = None
        # When to look again at what the time depends on, and how long after the last look.
        self.choose = 0.0
        self.pause = CHOOSE
        # The formula for trials while costs differ, and the batches from one to the next and since the last.
        self.trial: WorkFormula | None = None
        self.every = TRIAL_EVERY
        self.since = 0
        # When the latest long batch ended, and the first of those that ran at one moment with it; how many of
        # them may be due to a stall, and whether these are all samples.
        self.long_at = self.first_end = -math.inf
        self.stalled = 0
        self.unsure = False
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
        if now >= self.choose and len(self.history) >= LEAST_SAMPLES:
            before, self.formula = self.formula, choose(self.history, self.formula)
            if self.formula is not None:
                self.formula.thrifty = self.thrifty(before, self.formula)
            same = len(self.history) == LAST and _terms(before) == _terms(self.formula)
            rises = self.formula is not None and self.formula.thrifty < math.inf
            self.pause = min(SELDOM, 2.0 * self.pause) if same and not rises else CHOOSE
            self.choose = now + self.pause
            self.trial = None
            if self.formula is None and not are_alike(self.history):
                padded = [most for _, _, _, _, most in self.history]
                self.trial = WorkFormula(0.0, 0.0, 1.0 / fmean(padded))
                self.trial.overhead = TRIAL_OVERHEAD
        self.unsure = self.n <= self.stalled and all(map(self.is_long, samples))
        points = self.points()
        groups = groups_of(points)
        self.line = line_through(groups)
        self.a, self.b = bounded(points, groups, *self.line)
        if self.formula is not None:
            self.formula.overhead = max(LEAST_OVERHEAD, self.a / self.b) if self.b > 0.0 else MOST_OVERHEAD
        buckets: list[list[float]] = [[] for _ in _BOUNDS]
        for work, seconds in points:
            buckets[_bucket(work)].append(seconds)
        floor = 0.0
        self.floors = []
        for bucket in buckets:
            if len(bucket) >= BUCKET_SAMPLES:
                floor = max(floor, p80(bucket))
            self.floors.append(floor)
        self.largest = math.ceil(points[-1][0])

    def thrifty(self, before: WorkFormula | None, formula: WorkFormula) -> float:
        """The `thrifty` of a new formula.

        While it limits batches none show that larger ones are dear, so it rises slowly until some do.
        Infinite where several batches may share the model's processor: more of them do under load, when
        batches are large, and each takes longer.
        """
        if self.alone < len(self.history):
            return math.inf
        batches = [(n, formula.of(n, cost, longest), t) for _, n, t, cost, longest in self.history]
        found = dearer_beyond(batches, _BOUNDS)
        if found < math.inf or before is None or before.thrifty == math.inf:
            return found
        was = sum([before.of(n, cost, longest) for _, n, _, cost, longest in self.history])
        rises = _RISE * before.thrifty * sum([work for _, work, _ in batches]) / was
        return rises if rises < _BOUNDS[-1] else math.inf

    def is_long(self, sample: BatchSample) -> bool:
        return sample[2] > LONG * self.horizon

    def endure(self, now: float, seconds: float) -> None:
        """Let the samples that counted when a long batch began count beside it, which ended now."""
        began = now - seconds
        if began >= self.first_end:
            earlier = [taken for _, _, taken, _, _ in self.history]
            self.first_end = now
            self.stalled = int(not earlier or median_low(earlier) <= LONG * self.horizon)
        elif self.stalled:
            self.stalled += 1
        self.long_at = now
        self.samples.clear()
        before = began - self.horizon
        self.samples.extend([(now, n, t, c, most) for at, n, t, c, most in self.history if at > before])

    def points(self) -> list[tuple[float, float]]:
        """The work and the seconds of each sample that counts, in order."""
        formula, samples = self.formula, list(self.samples)
        if self.stalled and self.long_at >= samples[0][0]:
            usual = [sample for sample in samples if not self.is_long(sample)]
            if usual and len(samples) - len(usual) <= self.stalled:
                samples = usual
        if formula is None:
            return sorted([(items, seconds) for _, items, seconds, _, _ in samples])
        return sorted(
            [(formula.of(items, cost, longest), seconds) for _, items, seconds, cost, longest in samples]
        )


def _terms(formula: WorkFormula | None) -> list[str]:
    return [] if formula is None else list(formula.terms())


def _median_error(points: list[tuple[float, float]]) -> float:
    """The median distance of points from the line through them, as a share of the larger."""
    a, b = fit_line(points)
    return median([relative_error(y, a + b * x) for x, y in points])


def _bucket(items: float) -> int:
    return min(bisect_left(_BOUNDS, items), _LAST_BUCKET)


class LatencyModel:
    """L(W) for each class of requests.

    `learning` is False while batches are not to be learned from: before the model is loaded. `alone` is True
    if the model gets one batch at a time. `by_cost` is True if a class's items are counted by what they cost.

    Args:
        horizon: seconds after which a sample expires.
    """

    __slots__ = ("_classes", "_horizon", "alone", "by_cost", "learning")

    def __init__(self, horizon: float = HORIZON) -> None:
        self._horizon = horizon
        self._classes: OrderedDict[str, _Class] = OrderedDict()
        self.learning = self.alone = True
        self.by_cost = False

    def observe(
        self, now: float, cls: str, items: int, seconds: float, cost: int = 0, longest: int = 0
    ) -> None:
        """Learn from a batch that the model answered with success; ~0.5 µs, and every 0.1 s ~0.2 ms.

        Args:
            now: when the answer came, in the clock's time; never falls.
            cls: its class: path and `x-penstock-method`.
            items: items it held, ≥ 1.
            seconds: the time it took, ≥ 0.
            cost: the sum of its items' costs.
            longest: the largest of them.
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
        sample = (now, items, seconds, cost, longest)
        if known.is_long(sample):
            known.endure(now, seconds)
        known.samples.append(sample)
        known.history.append(sample)
        known.alone = known.alone + 1 if self.alone else 0
        if known.n < EAGER:
            known.fit(now)
        elif known.again > now + REFIT:
            known.again = now + REFIT
        if (known.formula is not None) is not self.by_cost:
            self.by_cost = any(each.formula is not None for each in self._classes.values())

    def forget(self) -> None:
        """Forget all samples, since the model is gone or has changed."""
        self._classes.clear()
        self.by_cost = False

    def formula(self, cls: str) -> WorkFormula | None:
        """How the work of a batch is computed; None if it is the number of its items."""
        known = self._classes.get(cls)
        return None if known is None else known.formula

    def load(self, cls: str, items: int, cost: int, longest: int) -> float:
        """As how many items of the usual cost some items count.

        Args:
            cls: their class.
            items: their number.
            cost: the sum of their costs.
            longest: the largest of their costs.
        """
        known = self._classes.get(cls)
        if known is None or (formula := known.formula) is None:
            return float(items)
        return formula.load(items, cost, longest)

    def beyond(self, cls: str, items: int, seconds: float, cost: int, longest: int) -> float:
        """By how much the work of a batch was more than what its items' costs say; 0 where they do not count.

        Arguments as for `observe`. A stall counts as a few of the largest batches at most, and claims as
        twice the work that was done: those that are absurd must not outweigh what flows were found to add.
        """
        known = self._classes.get(cls)
        if known is None or (formula := known.formula) is None or known.b <= 0.0:
            return 0.0
        work = formula.of(items, cost, longest)
        done = min((seconds - known.a) / known.b, BELIED * max(work, known.largest))
        return max(done - work, -max(done, float(items)))

    def trial(self, cls: str) -> WorkFormula | None:
        """A formula to group the next batch by, as a trial; None for nearly all batches.

        Batches in the order of arrival may be too much alike to show what their times depend on: each has its
        short and its long items. While costs differ and explain nothing, one batch in `TRIAL_EVERY` is cut as
        if items were padded, and fewer the longer that shows nothing.
        """
        known = self._classes.get(cls)
        if known is None or known.trial is None:
            return None
        known.since += 1
        if known.since < known.every:
            return None
        known.since = 0
        known.every = min(TRIAL_SELDOM, _TRIAL_GROWTH * known.every)
        return known.trial

    def predict(self, now: float, cls: str, items: float) -> float | None:
        """Return L(items) in seconds; ~0.5 µs. None if none of 10 s succeeded but stalled ones.

        Never falls as `items` grows.
        """
        known = self._classes.get(cls)
        if known is None:
            return None
        if now >= known.again:
            known.fit(now)
        if not known.n or known.unsure:
            return None
        line = known.a + known.b * items
        floor = known.floors[min(bisect_left(_BOUNDS, items), _LAST_BUCKET)]
        return MARGIN * max(line, floor)

    def middle(self, now: float, cls: str, items: float) -> float | None:
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
        known = self._classes[cls]
        high = 2 * known.largest
        if known.formula is None and limit < high:
            high = limit
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

    def lines(self, now: float) -> dict[str, FittedLine]:
        """The line of each class with samples."""
        lines: dict[str, FittedLine] = {}
        for cls, known in self._classes.items():
            if now >= known.again:
                known.fit(now)
            if known.n:
                sizes = [work for work, _ in known.points()]
                a, b = known.line
                lines[cls] = FittedLine(a, b, len(sizes), fmean(sizes), pstdev(sizes))
        return lines

    def batches(self, cls: str) -> BatchesByCost | None:
        """What the batches of a class are; None if costs do not count, or without samples."""
        known = self._classes.get(cls)
        if known is None or (formula := known.formula) is None or not known.samples:
            return None
        samples = known.samples
        by_items = [(float(items), seconds) for _, items, seconds, _, _ in samples]
        by_work = [
            (formula.of(items, cost, longest), seconds) for _, items, seconds, cost, longest in samples
        ]
        return BatchesByCost(
            formula,
            fmean([items for items, _ in by_items]),
            fmean([cost for _, _, _, cost, _ in samples]),
            _median_error(by_work),
            _median_error(by_items),
        )

    def _within(self, now: float, cls: str, items: float, seconds: float) -> bool:
        predicted = self.predict(now, cls, items)
        return predicted is not None and predicted <= seconds
