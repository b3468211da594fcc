"""The limits of a batch: how much of a large request fits, and which part-full batches wait. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from penstock_sidecar.queue.key import BatchKey
from penstock_sidecar.queue.request import QueuedRequest
from penstock_sidecar.queue.structures import KeyQueue
from penstock_sidecar.work import WorkFormula

MAX_WAITING = 64
"""Queues that may wait for full batches; of more than that none waits, since each look visits all."""
REACH = 16.0
"""Batch times by which the deadline of a request that overtakes another may be the later one."""
_DEADLINE_SHARE = 0.25


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a batch.

    Args:
        size: maximum items.
        bytes: maximum bytes of items; one larger item goes alone.
        cost: maximum of the number of items times the largest of their costs; one larger item goes alone.
        formula: the work of a batch, by the costs of its items; None if that is the number of items.
        work: maximum work by that formula; an item of more goes alone.
        reach: seconds by which the deadline of a request that overtakes another may be the later one.
    """

    size: int
    bytes: int
    cost: float = math.inf
    formula: WorkFormula | None = None
    work: float = math.inf
    reach: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """The key to cut now; or, if all part-full batches wait, when to ask again."""

    key: BatchKey | None = None
    again: float | None = None


def fit(work: QueuedRequest, limits: Limits, most_work: float) -> int:
    """How many of a request's next items fit into an empty batch; at least one.

    Args:
        work: the request.
        limits: the batch's limits.
        most_work: maximum work.
    """
    start = work.taken
    items = work.items[start : start + limits.size]
    space, formula = limits.bytes, limits.formula
    cost = longest = place = 0
    for item, each in zip(items, work.costs_of(start, start + len(items)), strict=True):
        space -= len(item)
        cost += each
        longest = max(longest, each)
        place += 1
        if (
            space < 0
            or place * longest > limits.cost
            or (formula is not None and formula.of(place, cost, longest) > most_work)
        ):
            return max(1, place - 1)
    return max(1, place)


def fills(line: KeyQueue, limits: Limits) -> bool:
    """Whether a line fills a batch: of the limits' size or work, or smaller if bad requests keep coming.

    Its items count as usual ones, so this is approximate where work is limited.
    """
    size, faults = limits.size, line.key.faults
    if faults is not None and faults.limit < size:
        size = faults.limit
    return (
        line.lone
        or line.items >= size
        or line.items >= limits.work
        or line.bytes >= limits.bytes
        or (
            limits.cost < math.inf
            and line.items * max([work.longest for work in line.by_arrival], default=0) >= limits.cost
        )
    )


def deadline_margin(line: KeyQueue, service: float) -> float:
    """How many seconds before its earliest deadline a part-full batch goes in any case.

    Args:
        line: the line that waits; a quarter of the time that its requests have is kept for their answers.
        service: minimum of the result, in seconds.
    """
    return max(service, _DEADLINE_SHARE * (line.deadline - line.oldest))


def choose_with_wait(
    lines: Mapping[BatchKey, KeyQueue],
    first: BatchKey,
    limits: Limits,
    now: float,
    *,
    wait: float,
    quiet: float,
    service: float = 0.0,
) -> Choice:
    """Choose the queue to cut, if part-full batches wait for more requests.

    A queue goes if it fills a batch, if its oldest request has waited for `wait` seconds, if its earliest
    deadline allows no further wait, and all go at `quiet`. Of those that go, the one whose turn comes first
    is chosen.

    Args:
        lines: the queues that are not empty.
        first: the key whose turn it is.
        limits: the batch's limits.
        now: the time.
        wait: maximum wait in seconds.
        quiet: when no more requests are expected.
        service: see `deadline_margin`.
    """
    again = quiet
    if again <= now or len(lines) > MAX_WAITING:
        return Choice(first)
    chosen: KeyQueue | None = None
    for key, line in lines.items():
        until = min(line.oldest + wait, line.deadline - deadline_margin(line, service))
        if until <= now or fills(line, limits):
            if key is first:
                return Choice(first)
            if chosen is None or line.turn() < chosen.turn():
                chosen = line
        again = min(again, until)
    return Choice(None, again) if chosen is None else Choice(chosen.key)
