"""Renders a sidecar's queue and batches as a line for people, from the pages of its admin port."""

from __future__ import annotations

import dataclasses
import re
import time

import msgspec

NAMES = ("batch_items_sum", "batch_items_count", "service_seconds_sum", "batch_limit_items")
_SAMPLE = re.compile(rf"^penstock_sidecar_({'|'.join(NAMES)}) (\S+)$", re.MULTILINE)


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """The members of the page `/queue`."""

    queued: int
    ongoing: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look at a sidecar.

    Args:
        at: its time, by a monotonic clock.
        queue: the numbers of queued and ongoing items.
        counts: the samples of `NAMES`.
    """

    at: float
    queue: Queue
    counts: dict[str, float]


def read(queue: bytes, metrics: bytes, *, at: float | None = None) -> Sample:
    """Read both pages.

    Args:
        queue: the body of `/queue`.
        metrics: the body of `/metrics`.
        at: when they were requested; None: now.
    """
    counts = {name: float(value) for name, value in _SAMPLE.findall(metrics.decode())}
    at = time.monotonic() if at is None else at
    return Sample(at=at, queue=msgspec.json.decode(queue, type=Queue), counts=counts)


def line(name: str, before: Sample | None, now: Sample) -> str:
    """Make the line of the live view for one sidecar.

    Args:
        name: name of its backend.
        before: the previous look, for rates since then.
        now: the latest look.
    """
    text = f"{name}  queued {now.queue.queued}  in the model {now.queue.ongoing}"
    if before is None:
        return text
    items, batches, seconds = (
        now.counts.get(each, 0) - before.counts.get(each, 0)
        for each in ("batch_items_sum", "batch_items_count", "service_seconds_sum")
    )
    rate = items / max(now.at - before.at, 1e-3)
    text += f"  {rate:.0f} items/s"
    if batches > 0:
        limit = now.counts.get("batch_limit_items", 0)
        text += f"  batches of {items / batches:.1f} (at most {limit:.0f})"
        text += f"  {seconds / batches * 1000:.1f} ms each"
    return text
