"""Chooses which of the waiting requests share a batch, where items are padded to the longest. Pure.

The first request of the queue's order is always part of the batch. The others are those for which the batch
uses the model's time best: of all groups around it in the order of costs, the one with the largest share of
useful time,

    Σ (overhead / size + work of the item among its like) / (overhead + work of the batch)

which is 1 for a full batch of equal items. A short item in a batch of long ones adds padding, a batch that
is not full wastes the time that any batch takes; the ratio weighs one against the other without a constant.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock_sidecar.queue.batch_limits import Limits
from penstock_sidecar.queue.request import QueuedRequest
from penstock_sidecar.work import WorkFormula


def _by_longest(work: QueuedRequest) -> int:
    return work.longest


def group(
    firsts: Sequence[QueuedRequest], others: Sequence[QueuedRequest], limits: Limits, formula: WorkFormula
) -> list[QueuedRequest]:
    """Return the requests of the best batch, by their costs; more than fit if many lie between `firsts`.

    Args:
        firsts: the requests that the batch must have; they fit into a batch.
        others: requests that may share it.
        limits: the batch's limits.
        formula: the work of a batch.
    """
    works = sorted([*firsts, *others], key=_by_longest)
    most, space, most_work, most_cost = limits.size, limits.bytes, limits.work, limits.cost
    overhead = formula.overhead
    each = overhead / most
    bottom = works.index(min(firsts, key=_by_longest))
    top = max([works.index(work, bottom) for work in firsts])
    best, best_low, best_high = -1.0, bottom, top
    # The group from `bottom` to `high`; then smaller items join it as long as they better the ratio.
    items = size = 0
    cost = useful = 0.0
    for high in range(bottom, len(works)):
        work = works[high]
        items += work.left
        size += work.bytes_left
        cost += work.cost_left
        longest = work.longest
        useful += each * work.left + formula.alone(work.left, work.cost_left, longest)
        if high < top:
            continue
        whole = formula.of(items, cost, longest)
        if items > most or size > space or whole > most_work or items * longest > most_cost:
            break
        low, ratio = bottom, useful / (overhead + whole)
        some, bytes_, costs, value = items, size, cost, useful
        while low:
            work = works[low - 1]
            some += work.left
            bytes_ += work.bytes_left
            costs += work.cost_left
            whole = formula.of(some, costs, longest)
            if some > most or bytes_ > space or whole > most_work or some * longest > most_cost:
                break
            value += each * work.left + formula.alone(work.left, work.cost_left, work.longest)
            better = value / (overhead + whole)
            if better < ratio:
                break
            ratio = better
            low -= 1
        if ratio > best:
            best, best_low, best_high = ratio, low, high
    return works[best_low : best_high + 1]
