"""What a batch may hold: how much of a large request fits, and whether a queue fills a batch. Pure."""

from __future__ import annotations

import dataclasses

from penstock_sidecar.queue.request import QueuedRequest
from penstock_sidecar.queue.structures import KeyQueue

_DEADLINE_SHARE = 0.25


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a batch may hold, and how long a part-full one may wait.

    Args:
        size: items at most.
        bytes: bytes of items at most; one larger item goes alone.
        wait: seconds from the arrival of a line's oldest request.
        service: seconds before the earliest deadline beyond which a part-full batch waits no longer.
    """

    size: int
    bytes: int
    wait: float = 0.0
    service: float = 0.0


def fit(work: QueuedRequest, room: int, space: int) -> int:
    """How many of a request's next items fit into an empty batch; at least one.

    Args:
        work: the request.
        room: items that the batch may hold.
        space: bytes that they may have.
    """
    count = 0
    for item in work.items[work.taken : work.taken + room]:
        space -= len(item)
        if space < 0:
            break
        count += 1
    return max(1, count)


def fills(line: KeyQueue, limits: Limits) -> bool:
    """Whether a line fills a batch: as large as the limits say, or smaller where bad requests keep coming."""
    size, faults = limits.size, line.key.faults
    if faults is not None and faults.limit < size:
        size = faults.limit
    return line.lone or line.items >= size or line.bytes >= limits.bytes


def deadline_margin(line: KeyQueue, service: float) -> float:
    """Seconds before its earliest deadline at which a part-full batch goes in any case.

    Args:
        line: what waits; a quarter of the time that its requests were given is kept for their answers.
        service: what is kept at least.
    """
    return max(service, _DEADLINE_SHARE * (line.deadline - line.oldest))
