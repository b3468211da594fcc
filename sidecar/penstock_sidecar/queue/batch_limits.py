"""The limits of a batch: how much of a large request fits, and whether a queue fills a batch. Pure."""

from __future__ import annotations

import dataclasses

from penstock_sidecar.queue.request import QueuedRequest
from penstock_sidecar.queue.structures import KeyQueue

_DEADLINE_SHARE = 0.25


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a batch, and how long a part-full batch may wait.

    Args:
        size: maximum items.
        bytes: maximum bytes of items; one larger item goes alone.
        wait: maximum wait in seconds, from the arrival of a line's oldest request.
        service: seconds before the earliest deadline at which a part-full batch stops waiting.
    """

    size: int
    bytes: int
    wait: float = 0.0
    service: float = 0.0


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
