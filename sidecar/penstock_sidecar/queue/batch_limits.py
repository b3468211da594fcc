"""The limits of a batch: how much of a large request fits, and which part-full batches wait. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from penstock_sidecar.queue.key import Key
from penstock_sidecar.queue.request import QueuedRequest
from penstock_sidecar.queue.structures import KeyQueue

MAX_WAITING = 64
"""Queues that may wait for full batches; of more than that none waits, since each look visits all."""
_DEADLINE_SHARE = 0.25


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a batch.

    Args:
        size: maximum items.
        bytes: maximum bytes of items; one larger item goes alone.
    """

    size: int
    bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """The key to cut now; or, if all part-full batches wait, when to ask again."""

    key: Key | None = None
    again: float | None = None


def fit(work: QueuedRequest, room: int, space: int) -> int:
    """How many of a request's next items fit into an empty batch; at least one.

    Args:
        work: the request.
        room: maximum items.
        space: maximum bytes of items.
    """
    count = 0
    for item in work.items[work.taken : work.taken + room]:
        space -= len(item)
        if space < 0:
            break
        count += 1
    return max(1, count)


def fills(line: KeyQueue, limits: Limits) -> bool:
    """Whether a line fills a batch: of the limits' size, or smaller if bad requests keep coming."""
    size, faults = limits.size, line.key.faults
    if faults is not None and faults.limit < size:
        size = faults.limit
    return line.lone or line.items >= size or line.bytes >= limits.bytes


def deadline_margin(line: KeyQueue, service: float) -> float:
    """How many seconds before its earliest deadline a part-full batch goes in any case.

    Args:
        line: the line that waits; a quarter of the time that its requests have is kept for their answers.
        service: minimum of the result, in seconds.
    """
    return max(service, _DEADLINE_SHARE * (line.deadline - line.oldest))


def choose_with_wait(
    lines: Mapping[Key, KeyQueue],
    first: Key,
    limits: Limits,
    now: float,
    *,
    wait: float,
    quiet: float,
    service: float = 0.0,
) -> Choice:
    """Choose the queue to cut, if part-full batches wait for more requests.

    A queue goes if it fills a batch, if its oldest request has waited for `wait` seconds, if its earliest
    deadline allows no further wait, and all go at `quiet`.

    Args:
        lines: the queues that are not empty.
        first: the key whose turn it is; it goes first if it goes at all.
        limits: the batch's limits.
        now: the time.
        wait: maximum wait in seconds.
        quiet: when no more requests are expected.
        service: see `deadline_margin`.
    """
    again = quiet
    if again <= now or len(lines) > MAX_WAITING:
        return Choice(first)
    chosen: Key | None = None
    for key, line in lines.items():
        until = min(line.oldest + wait, line.deadline - deadline_margin(line, service))
        if until <= now or fills(line, limits):
            if key is first:
                return Choice(first)
            chosen = chosen or key
        again = min(again, until)
    return Choice(chosen) if chosen is not None else Choice(None, again)
