"""Finds the work beyond which larger batches take the model longer for their work. Pure.

The line a + b·W says that the largest batch is the cheapest for each item. On a CPU it often is not: an
encoder whose states leave the core's cache takes up to 1.6 times as long for a token. Batches of unequal
items differ in work by themselves, so their times show it: seconds for each unit of work, by sizes of work.

A size is cheapest if its median is within `_EVEN` of the least; of several the largest. Larger batches, of
two items or more since no other can be smaller, are dearer if their median exceeds that by `_DEARER`, and
if more than half of them exceed it, by more than chance would bring about: three standard errors of a
share. Both must hold as well of those right before or after a batch that was not larger, each measured by
that one: a slow spell brings a queue, and with it large batches, but is as slow for both.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

_EVEN, _DEARER = 1.02, 1.05
_LEAST_SAMPLES = 8
_SURE = 1.5
"""Three standard errors of a share, which is at most 0.5 / √n."""


def dearer_beyond(batches: Sequence[tuple[int, float, float]], bounds: Sequence[float]) -> float:
    """Return the work beyond which batches take longer for their work; infinite if that is not certain.

    Args:
        batches: their items, work and seconds, in the order of their answers, each alone in the model.
        bounds: upper bounds of the sizes of work, which rise; more is of the last size.
    """
    last = len(bounds) - 1
    sizes: dict[int, list[float]] = {}
    order: list[tuple[int, int, float]] = []
    for items, work, seconds in batches:
        if work > 0.0:
            size = min(bisect_left(bounds, work), last)
            order.append((size, items, seconds / work))
            sizes.setdefault(size, []).append(seconds / work)
    usual = {size: median(each) for size, each in sizes.items() if len(each) >= _LEAST_SAMPLES}
    if not usual:
        return math.inf
    even = _EVEN * min(usual.values())
    best = max([size for size, each in usual.items() if each <= even])
    above = [each for size, items, each in order if size > best and items > 1]
    beside: list[float] = []
    for one, other in pairwise(order):
        small, large = (one, other) if one[0] < other[0] else (other, one)
        if small[0] <= best < large[0] and large[1] > 1 and small[2] > 0.0 and small[0] in usual:
            beside.append(large[2] / small[2] * usual[small[0]])
    sure = _are_dearer(above, usual[best], len(sizes[best])) and _are_dearer(beside, usual[best])
    return float(bounds[best]) if sure else math.inf


def _are_dearer(some: list[float], usual: float, of: float = math.inf) -> bool:
    """Whether some times are above the usual one, which is the median `of` so many."""
    if not some or median(some) < _DEARER * usual:
        return False
    share = sum([each > usual for each in some]) / len(some)
    return share - 0.5 > _SURE * math.sqrt(1.0 / len(some) + 1.0 / of)
