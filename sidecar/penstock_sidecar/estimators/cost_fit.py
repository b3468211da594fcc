"""Finds what the time of a batch depends on: the number of its items, their costs, or their padded costs.

Each set of up to three of the terms n, n · max(c)², n · max(c) and Σc is fitted to the samples by least
squares, with coefficients of at least 0. The set with the least Bayesian information criterion is chosen
(Schwarz 1978, doi:10.1214/aos/1176344136), N · ln(RSS / N) + p · ln N. Costs count only if they better the
criterion of the bare number by more than `CERTAIN`, and a formula stays until another is better by as much:
batches of items that are alike, which a formula itself brings about, do not tell Σc from n · max(c). While
neither of these two is certain, padding is assumed: that groups items of like cost, and such batches show
the truth. Those of the other assumption, each with its share of long items, may never show it.

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

BatchSample = tuple[float, int, float, int, int]
"""When a batch was answered, its items, its seconds, the sum of its items' costs, and the largest of them."""

_N, _SQUARE, _PADDED, _SUM = 1, 2, 3, 4
_TERMS = (_N, _SQUARE, _PADDED, _SUM)
_SUBSETS = tuple([subset for count in (1, 2, 3) for subset in combinations(_TERMS, count)])
_TIME = 5
_Row = tuple[float, float, float, float, float, float]
"""Of one sample 1, n, n · max(c)², n · max(c), Σc, and the seconds, the costs over their mean."""


def are_alike(samples: Sequence[BatchSample]) -> bool:
    """Whether the costs of all items are about equal, so that they can explain nothing."""
    longest, least = 0, math.inf
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
    number = sum([n for _, n, _, _, _ in samples])
    costs = sum([cost for _, _, _, cost, _ in samples]) / number
    padded = sum([n * most for _, n, _, _, most in samples]) / number
    square = sum([n * most * most for _, n, _, _, most in samples]) / number
    if not costs:
        return None
    rows = [
        (1.0, float(n), n * most * most / square, n * most / padded, cost / costs, t)
        for _, n, t, cost, most in samples
    ]
    best = _by_one_term(rows)
    chosen: tuple[int, ...] = (_N,)
    for used in (None, None if current is None else _terms(current)):
        scales, weights = _weighed(rows, best)
        best, chosen = _best(_products(rows, scales, weights), len(rows), used)
    if chosen == (_N,):
        return None
    # The unit of work is the mean item, without those that seem to cost what their time belies.
    believed = [_expected(best, row) <= BELIED * row[_TIME] for row in rows]
    if not any(believed):
        believed = [True] * len(rows)
    items = all_work = 0.0
    for row, fair in zip(rows, believed, strict=True):
        if fair:
            items += row[_N]
            all_work += _expected(best, row) - best[0]
    total = all_work / items
    if total <= 0.0:
        return None
    formula = WorkFormula(
        best[_N] / total,
        best[_SUM] / total / costs,
        best[_PADDED] / total / padded,
        best[_SQUARE] / total / square,
    )
    alone = most = 0.0
    for (_, n, _, cost, longest), fair in zip(samples, believed, strict=True):
        if fair:
            alone += formula.alone(n, cost, longest)
            most = max(most, formula.alone(1, longest, longest))
    formula.usual, formula.most = alone / items or 1.0, BELIED * most
    return formula


def _by_one_term(rows: Sequence[_Row]) -> list[float]:
    """The coefficients of the robust line by one term that has the least median error."""
    kinds = [(row[_N], round(2.0 * math.log2(row[_PADDED] / row[_N] + 1e-9))) for row in rows]
    counts = Counter(kinds)
    fitted, least = [0.0] * _TIME, math.inf
    for term in _TERMS:
        a, b = fit_line([(row[term], row[_TIME]) for row in rows])
        error = weighted_median(
            [
                (relative_error(row[_TIME], a + b * row[term]), 1.0 / counts[kind])
                for row, kind in zip(rows, kinds, strict=True)
            ]
        )
        if error < least:
            fitted, least = [0.0] * _TIME, error
            fitted[0], fitted[term] = a, b
    return fitted


def _expected(fitted: Sequence[float], row: _Row) -> float:
    """The time of a batch by these coefficients."""
    seconds = fitted[0] * row[0]
    for i in _TERMS:
        seconds += fitted[i] * row[i]
    return seconds


def relative_error(seconds: float, expected: float) -> float:
    """The error of a time, as a share of the larger: 0 to 1."""
    larger = max(seconds, expected)
    return abs(seconds - expected) / larger if larger > 0.0 else 0.0


def _weighed(rows: Sequence[_Row], fitted: Sequence[float]) -> tuple[list[float], list[float]]:
    """By what each row's error is divided, and the weight of its square."""
    expected = [_expected(fitted, row) for row in rows]
    errors = [relative_error(row[_TIME], each) for row, each in zip(rows, expected, strict=True)]
    scale = _HUBER * max(1.4826 * median(errors), _LEAST_ERROR)
    return (
        [max(row[_TIME], each) or 1.0 for row, each in zip(rows, expected, strict=True)],
        [1.0 if error <= scale else scale / error if error < _MOST_ERROR else 0.0 for error in errors],
    )


def _terms(formula: WorkFormula) -> tuple[int, ...]:
    parts = (formula.per_item, formula.per_square, formula.per_padded, formula.per_cost)
    return tuple([term for term, part in zip(_TERMS, parts, strict=True) if part > 0.0])


def _products(rows: Sequence[_Row], scales: Sequence[float], weights: Sequence[float]) -> list[list[float]]:
    """The weighted sums of the products of all columns, each row divided by its scale."""
    sums = [[0.0] * (_TIME + 1) for _ in range(_TIME + 1)]
    for row, scale, each in zip(rows, scales, weights, strict=True):
        weight = each / (scale * scale)
        for i in range(_TIME + 1):
            left = weight * row[i]
            line = sums[i]
            for j in range(i, _TIME + 1):
                line[j] += left * row[j]
    for i in range(_TIME + 1):
        for j in range(i):
            sums[i][j] = sums[j][i]
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
