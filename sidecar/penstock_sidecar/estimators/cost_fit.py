"""Finds what the time of a batch depends on: the number of its items, their costs, or their padded costs.

Each set of up to three of the terms n, n · max(c)², n · max(c) and Σc is fitted to the samples by least
squares, with coefficients of at least 0. The set with the least Bayesian information criterion is chosen
(Schwarz 1978, doi:10.1214/aos/1176344136), N · ln(RSS / N) + p · ln N. Costs count only if they better the
criterion of the bare number by more than `CERTAIN`, and a formula stays until another is better by as much:
batches of items that are alike, which a formula itself brings about, do not tell Σc from n · max(c). While
neither of these two is certain, padding is assumed: that groups items of like cost, and such batches show
the truth. Those of the other assumption, each with its share of long items, may never show it.

Most models cut long texts off, so that a longer one costs no more. Where the lines by n · max(c) and Σc are
off, a cap of max(c) is sought with which the first is less so, by the criterion of Laplace's errors,
2 · N · ln(mean error), with N kinds of batches: again by more than `CERTAIN`. With a cap Σc is no term:
the sum of costs does not say what it is of costs that are cut off. A server that cuts and does not pad gets
a formula by n · max(c), whose error is no more than without a cap.

Errors count relative to the time or to what was expected, whichever is more, and are weighted by Huber's
function of the residuals (1964, doi:10.1214/aoms/1177703732); those that are off by `BELIED` times do not
count: a stall, an answer out of a cache, an item that costs a hundredth of what it seems to. The first
residuals are those of a robust line by the one term that has the least median error, the second those of the
first fit. For that median, batches of about one size and length count once together: where more than half are
short texts alone, a line through these would do otherwise, whatever it says of the others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from operator import mul
from statistics import median

from penstock_sidecar.estimators.robust_line import fit_line, weighted_median
from penstock_sidecar.work import WorkFormula

CERTAIN = 10.0
"""Difference of two criteria that is very strong evidence (Kass and Raftery 1995,
doi:10.1080/01621459.1995.10476572)."""
LEAST_SAMPLES = 8
ALIKE = 1.1
"""Costs of which the largest is at most this many times the mean of any batch are equal."""
BELIED = 4.0
"""A time this many times as long as expected, or as short, says nothing of what times depend on."""
_MOST_ERROR = 1.0 - 1.0 / BELIED
_HUBER = 1.345
_LEAST_ERROR = 0.03
"""Error of a time, as a share, below which two formulas are equally good: no model is as regular."""

BatchSample = tuple[float, int, float, float, float]
"""When a batch was answered, its items, its seconds, the sum of its items' costs, and the largest of them."""

_N, _SQUARE, _PADDED, _SUM = 1, 2, 3, 4
_TERMS = (_N, _SQUARE, _PADDED, _SUM)
_SUBSETS = tuple([subset for count in (1, 2, 3) for subset in combinations(_TERMS, count)])
_TIME = 5
_MOST_CAPS = 10
"""Caps that are tried first; each takes as long as a robust line."""
_Columns = list[list[float]]
"""Of all samples 1, n, n · max(c)², n · max(c), Σc, and the seconds, the costs over their mean."""


def are_alike(samples: Sequence[BatchSample]) -> bool:
    """Whether the costs of all items are about equal, so that they can explain nothing."""
    longest, least = 0.0, math.inf
    for _, items, _, cost, most in samples:
        longest = max(longest, most)
        least = min(least, cost / items)
    return longest <= ALIKE * least


def choose(samples: Sequence[BatchSample], current: WorkFormula | None) -> WorkFormula | None:
    """Return the formula that explains the samples, or None if the number of items explains as much.

    Args:
        samples: at least one.
        current: the formula in use.

    Returns:
        A formula by which the mean item of the samples has a work of 1.
    """
    if len(samples) < LEAST_SAMPLES or are_alike(samples):
        return current if len(samples) < LEAST_SAMPLES else None
    cap, given = _cap(samples), samples
    if cap < math.inf:  # without Σc, see above: a term of zeros is never chosen
        samples = [(now, n, t, 0.0, min(most, cap)) for now, n, t, _, most in samples]
    number = sum([n for _, n, _, _, _ in samples])
    costs = sum([cost for _, _, _, cost, _ in samples]) / number or 1.0
    padded = sum([n * most for _, n, _, _, most in samples]) / number
    square = sum([n * most * most for _, n, _, _, most in samples]) / number
    if not padded:
        return None
    columns: _Columns = [
        [1.0] * len(samples),
        [float(n) for _, n, _, _, _ in samples],
        [n * most * most / square for _, n, _, _, most in samples],
        [n * most / padded for _, n, _, _, most in samples],
        [cost / costs for _, _, _, cost, _ in samples],
        [t for _, _, t, _, _ in samples],
    ]
    best = _by_one_term(columns)
    chosen: tuple[int, ...] = (_N,)
    for used in (None, None if current is None else _terms(current)):
        best, chosen = _best(_products(columns, _factors(columns, best)), len(samples), used)
    if chosen == (_N,):
        return None
    # The unit of work is the mean item, without those that seem to cost what their time belies.
    expected = _expected(best, columns)
    believed = [each <= BELIED * t for each, t in zip(expected, columns[_TIME], strict=True)]
    if not any(believed):
        believed = [True] * len(expected)
    items = all_work = 0.0
    for n, each, fair in zip(columns[_N], expected, believed, strict=True):
        if fair:
            items += n
            all_work += each - best[0]
    total = all_work / items
    if total <= 0.0:
        return None
    formula = WorkFormula(
        best[_N] / total,
        best[_SUM] / total / costs,
        best[_PADDED] / total / padded,
        best[_SQUARE] / total / square,
        cap,
    )
    alone = most = 0.0
    for (_, number, _, cost, longest), fair in zip(given, believed, strict=True):
        if fair:
            alone += formula.alone(number, cost, longest)
            most = max(most, formula.alone(1, longest, longest))
    formula.usual, formula.most = alone / items or 1.0, BELIED * most
    return formula


def _cap(samples: Sequence[BatchSample]) -> float:
    """The largest cost that counts; infinite if all do."""
    kinds: dict[tuple[int, int], list[BatchSample]] = {}
    for sample in samples:
        kinds.setdefault((sample[1], round(2.0 * math.log2(sample[4] + 1.0))), []).append(sample)
    usual = [
        (
            float(n),
            median([cost for _, _, _, cost, _ in some]),
            median([most for _, _, _, _, most in some]),
            median([t for _, _, t, _, _ in some]),
        )
        for (n, _), some in kinds.items()
    ]

    def off(points: list[tuple[float, float]]) -> float:
        """The mean error of the line through points, each a kind of batches."""
        a, b = fit_line(points)
        return max(_LEAST_ERROR, sum([relative_error(t, a + b * x) for x, t in points]) / len(points))

    whole = min(off([(n * most, t) for n, _, most, t in usual]), off([(cost, t) for _, cost, _, t in usual]))
    if whole <= 2.0 * _LEAST_ERROR:
        return math.inf
    best, least = math.inf, whole
    halves = sorted({half for _, half in kinds})[:-1]
    gap = 1 + max(0, len(halves) - 1) // _MOST_CAPS
    tried, step = [2.0 ** (half / 2.0) for half in halves[gap // 2 :: gap]], gap / 4.0
    while tried:
        for cap in tried:
            error = off([(n * min(most, cap), t) for n, _, most, t in usual])
            if error < least:
                best, least = cap, error
        closer = step > 0.1 and best < math.inf
        tried, step = [best / 2.0**step, best * 2.0**step] if closer else [], step / 2.0
    return best if 2.0 * len(usual) * math.log(whole / least) > CERTAIN else math.inf


def _by_one_term(columns: _Columns) -> list[float]:
    """The coefficients of the robust line by one term that has the least median error."""
    numbers, seconds = columns[_N], columns[_TIME]
    kinds = [
        (n, round(2.0 * math.log2(padded / n + 1e-9)))
        for n, padded in zip(numbers, columns[_PADDED], strict=True)
    ]
    counts = Counter(kinds)
    shares = [1.0 / counts[kind] for kind in kinds]
    fitted, least = [0.0] * _TIME, math.inf
    for term in _TERMS:
        column = columns[term]
        a, b = fit_line(list(zip(column, seconds, strict=True)))
        errors = [relative_error(t, a + b * x) for x, t in zip(column, seconds, strict=True)]
        error = weighted_median(list(zip(errors, shares, strict=True)))
        if error < least:
            fitted, least = [0.0] * _TIME, error
            fitted[0], fitted[term] = a, b
    return fitted


def _expected(fitted: Sequence[float], columns: _Columns) -> list[float]:
    """The times of all batches by these coefficients."""
    expected = [fitted[0]] * len(columns[0])
    for term in _TERMS:
        each = fitted[term]
        if each:
            expected = [seconds + each * x for seconds, x in zip(expected, columns[term], strict=True)]
    return expected


def relative_error(seconds: float, expected: float) -> float:
    """The error of a time, as a share of the larger: 0 to 1."""
    larger = max(seconds, expected)
    return abs(seconds - expected) / larger if larger > 0.0 else 0.0


def _factors(columns: _Columns, fitted: Sequence[float]) -> list[float]:
    """By what each row is multiplied: the root of its weight over what its error is divided by."""
    expected, seconds = _expected(fitted, columns), columns[_TIME]
    errors = [relative_error(t, each) for t, each in zip(seconds, expected, strict=True)]
    scale = _HUBER * max(1.4826 * median(errors), _LEAST_ERROR)
    return [
        (1.0 if error <= scale else math.sqrt(scale / error) if error < _MOST_ERROR else 0.0)
        / (max(t, each) or 1.0)
        for error, t, each in zip(errors, seconds, expected, strict=True)
    ]


def _terms(formula: WorkFormula) -> tuple[int, ...]:
    parts = (formula.per_item, formula.per_square, formula.per_padded, formula.per_cost)
    return tuple([term for term, part in zip(_TERMS, parts, strict=True) if part > 0.0])


def _products(columns: _Columns, factors: list[float]) -> list[list[float]]:
    """The sums of the products of all columns, each row multiplied by its factor."""
    scaled = [list(map(mul, column, factors)) for column in columns]
    sums = [[0.0] * len(columns) for _ in columns]
    for i, left in enumerate(scaled):
        for j in range(i, len(scaled)):
            sums[i][j] = sums[j][i] = sum(map(mul, left, scaled[j]))
    return sums


_Fitted = tuple[float, list[float], tuple[int, ...]]
"""The criterion, the coefficients of all columns but the time's, and the terms with one."""


def _best(
    products: list[list[float]], count: int, current: tuple[int, ...] | None
) -> tuple[list[float], tuple[int, ...]]:
    """The coefficients of the best set of terms, and the set; by the module's rules.

    Args:
        products: sums of products.
        count: samples.
        current: the terms in use; None if they are not costs.
    """
    found: dict[tuple[int, ...], _Fitted] = {}
    for subset in _SUBSETS:
        fitted = _fitted(products, subset)
        if fitted is not None:
            rss = products[_TIME][_TIME] - sum([fitted[i] * products[i][_TIME] for i in range(_TIME)])
            found[subset] = (_criterion(rss, len(subset) + 1, count), fitted, subset)
    if (_N,) not in found:
        # The number of items never changes, or explains nothing: a constant time stands for it.
        level = products[0][_TIME] / products[0][0]
        flat = [level, 0.0, 0.0, 0.0, 0.0]
        rss = products[_TIME][_TIME] - level * products[0][_TIME]
        found[_N,] = (_criterion(rss, 1, count), flat, (_N,))
    bare = found[_N,]
    best = min(found.values(), key=lambda each: each[0])
    kept = bare if current is None else found.get(current, bare)
    if best[0] >= kept[0] - CERTAIN:
        best = kept
    if best[0] >= bare[0] - CERTAIN:
        return bare[1], bare[2]
    if _SUM in best[2] and _PADDED not in best[2]:
        other = found.get(tuple(sorted([_PADDED if term == _SUM else term for term in best[2]])))
        if other is not None and other[0] < best[0] + CERTAIN:
            best = other
    return best[1], best[2]


def _criterion(rss: float, parameters: int, count: int) -> float:
    mean = max(rss / count, _LEAST_ERROR**2)
    return count * math.log(mean) + parameters * math.log(count)


def _fitted(products: list[list[float]], subset: tuple[int, ...]) -> list[float] | None:
    """The coefficients by the normal equations; None if a term has none above 0, or none of its own."""
    columns = [0, *subset]
    solved = _solved(products, columns)
    if solved is not None and solved[0] < 0.0:
        columns = columns[1:]
        solved = _solved(products, columns)
    if solved is None or min(solved[-len(subset) :]) <= 0.0:
        return None
    fitted = [0.0] * _TIME
    for column, value in zip(columns, solved, strict=True):
        fitted[column] = value
    return fitted


def _solved(products: list[list[float]], columns: list[int]) -> list[float] | None:
    """Solve the normal equations of these columns by Cholesky's decomposition; None if they are dependent."""
    size = len(columns)
    lower = [[0.0] * size for _ in range(size)]
    ahead = [0.0] * size
    for i in range(size):
        for j in range(i + 1):
            total = products[columns[i]][columns[j]]
            for k in range(j):
                total -= lower[i][k] * lower[j][k]
            if i != j:
                lower[i][j] = total / lower[j][j]
            elif total <= 1e-7 * products[columns[i]][columns[i]]:
                return None
            else:
                lower[i][i] = math.sqrt(total)
        total = products[columns[i]][_TIME]
        for k in range(i):
            total -= lower[i][k] * ahead[k]
        ahead[i] = total / lower[i][i]
    solved = [0.0] * size
    for i in range(size - 1, -1, -1):
        total = ahead[i]
        for k in range(i + 1, size):
            total -= lower[k][i] * solved[k]
        solved[i] = total / lower[i][i]
    return solved
