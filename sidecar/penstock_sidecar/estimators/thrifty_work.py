"""Finds the work beyond which larger batches take the model longer for their work. Pure.

The line a + b·W says that the largest batch is the cheapest for each item. On a CPU it often is not: an
encoder whose states leave the core's cache takes up to 1.6 times as long for a token. Batches of unequal
items differ in work by themselves, so their times show it: seconds for each unit of work, by sizes of work.

A size is cheapest if its median is within `_EVEN` of the least; of several the largest. Larger batches are
dearer if their median exceeds that by `_DEARER`, and if more than half of them exceed it, by more than chance
would bring about: three standard errors of a share.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from statistics import median

_EVEN, _DEARER = 1.02, 1.05
_LEAST_SAMPLES = 8
_SURE = 1.5
"""Three standard errors of a share, which is at most 0.5 / √n."""


def dearer_beyond(points: Sequence[tuple[float, float]], bounds: Sequence[float]) -> float:
    """Return the work beyond which batches take longer for their work; infinite if that is not certain.

    Args:
        points: the work and the seconds of batches.
        bounds: upper bounds of the sizes of work, which rise; more is of the last size.
    """
    last = len(bounds) - 1
    sizes: dict[int, list[float]] = {}
    for work, seconds in points:
        if work > 0.0:
            sizes.setdefault(min(bisect_left(bounds, work), last), []).append(seconds / work)
    usual = {size: median(each) for size, each in sizes.items() if len(each) >= _LEAST_SAMPLES}
    if not usual:
        return math.inf
    even = _EVEN * min(usual.values())
    best = max([size for size, each in usual.items() if each <= even])
    above = [each for size, some in sizes.items() if size > best for each in some]
    if not above or median(above) < _DEARER * usual[best]:
        return math.inf
    share = sum([each > usual[best] for each in above]) / len(above)
    sure = share - 0.5 > _SURE * math.sqrt(1.0 / len(above) + 1.0 / len(sizes[best]))
    return float(bounds[best]) if sure else math.inf
