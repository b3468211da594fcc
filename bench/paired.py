"""Differences of pairs: two things measured one right after the other, many times.

What else the machine does in that moment is in both of a pair, and a burst of it spoils one pair, not the
median. The interval of the median is the one between two of the sorted differences, which needs no
assumption about how they are spread (Conover, Practical Nonparametric Statistics, 3rd edition, section 3.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

CONFIDENCE = 0.95


class Median(NamedTuple):
    """A median, and the interval that has the true one with `CONFIDENCE`; infinite for too few values."""

    value: float
    low: float
    high: float


def median(values: Sequence[float]) -> Median:
    """The median of independent values with its interval.

    Args:
        values: one at least.
    """
    ordered, count = sorted(values), len(values)
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    # The true median is below `ordered[rank]` where no more than `rank` values are below it: as likely as no
    # more than `rank` heads of `count` coins.
    outside, rank = 0.0, -1
    while rank + 1 < count // 2:
        outside += math.comb(count, rank + 1) / 2**count
        if 2 * outside > 1 - CONFIDENCE:
            break
        rank += 1
    if rank < 0:
        return Median(middle, -math.inf, math.inf)
    return Median(middle, ordered[rank], ordered[count - 1 - rank])
