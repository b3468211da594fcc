"""What the page shows of metrics: rates, quantiles, sizes of batches, and the time of a batch by its size."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from penstock_wire import durations

SIDECAR = "penstock_sidecar_"
"""Prefix of a sidecar's metrics."""
WINDOW_SECONDS = 10.0
"""Time over which rates and quantiles are taken: the last two scrapes, where they are further apart."""
RECENT = 20
"""The most scrapes of a pod that are kept whole."""
KEPT = 300
"""Scrapes of a pod whose batches are kept."""
MOST = 1e200
"""The largest value that counts: sums of such are finite, and JSON has no other numbers."""
COLUMN_SECONDS = 5
"""Seconds of one column of the batch sizes."""

Labels = tuple[tuple[str, str], ...]
Values = dict[str, dict[Labels, float]]
"""Values by metric and labels."""


@dataclass(slots=True)
class Scraped:
    """What was read of a pod.

    Attributes:
        asked: when a view asked for it last, monotonic seconds.
        values: pairs of a time, in seconds since 1970, and what was read then; oldest first.
        sizes: pairs of a time and the batches since the one before, by the upper bound of their items.
        problem: why the last scrape failed; empty if it did not.
        due: when it is read again at the earliest, monotonic seconds.
    """

    asked: float
    values: deque[tuple[float, Values]] = field(default_factory=lambda: deque(maxlen=RECENT))
    sizes: deque[tuple[float, list[tuple[float, float]]]] = field(default_factory=lambda: deque(maxlen=KEPT))
    problem: str = ""
    due: float = 0.0

    def add(self, text: bytes, prefix: str) -> None:
        """Take a page of metrics.

        Args:
            text: the whole page.
            prefix: of the names that are kept.

        Raises:
            ValueError: it is not such a page.
        """
        now, after = time.time(), parsed(text.decode(), prefix)
        if self.values:
            self.sizes.append((now, buckets(self.values[-1][1], after, f"{SIDECAR}batch_items", {})))
        while len(self.values) > 1 and self.values[1][0] <= now - WINDOW_SECONDS:
            self.values.popleft()
        self.values.append((now, after))

    def ends(self) -> tuple[tuple[float, Values], tuple[float, Values]] | None:
        """The first and the last scrape of the window; None if there are not two."""
        return (self.values[0], self.values[-1]) if len(self.values) > 1 else None

    def rate(self, name: str, **labels: str) -> float | None:
        """The rise of a counter a second, over the scrapes that are kept; None if there are not two.

        Args:
            name: the metric, whose series with these labels are added up.
            **labels: the labels that count.
        """
        if (ends := self.ends()) is None:
            return None
        (before, old), (now, new) = ends
        rise = total(new, name, labels) - total(old, name, labels)
        return max(rise, 0.0) / max(now - before, 1e-3)


def window(pods: Iterable[Scraped]) -> float | None:
    """Seconds over which rates were taken, the longest of some pods; None if there is no rate.

    Args:
        pods: whose.
    """
    spans = [ends[1][0] - ends[0][0] for scraped in pods if (ends := scraped.ends()) is not None]
    return max(spans, default=None)


def total(values: Values, name: str, labels: dict[str, str]) -> float:
    """The sum of a metric's series that have some labels.

    Args:
        values: of one scrape.
        name: the metric.
        labels: the labels that count.
    """
    wanted = labels.items()
    return sum(value for known, value in values.get(name, {}).items() if wanted <= dict(known).items())


def parsed(text: str, prefix: str) -> Values:
    """Read the Prometheus text format (https://prometheus.io/docs/instrumenting/exposition_formats/).

    Args:
        text: a whole scrape.
        prefix: of the names that are wanted.

    Raises:
        ValueError: it is not in that format.
    """
    from prometheus_client.parser import text_string_to_metric_families

    values: Values = {}
    wanted = "\n".join(line for line in text.splitlines() if line.removeprefix("# TYPE ").startswith(prefix))
    for family in text_string_to_metric_families(wanted):
        for sample in family.samples:
            if abs(sample.value) <= MOST:
                values.setdefault(sample.name, {})[tuple(sample.labels.items())] = sample.value
    return values


def buckets(before: Values, after: Values, name: str, labels: dict[str, str]) -> list[tuple[float, float]]:
    """What a histogram counted between two scrapes: pairs of a bucket's upper bound and its count.

    Args:
        before: the earlier scrape.
        after: the later one.
        name: the histogram's.
        labels: the labels that count.
    """
    rises: dict[float, float] = {}
    for sign, values in ((-1.0, before), (1.0, after)):
        for known, value in values.get(f"{name}_bucket", {}).items():
            pairs = dict(known)
            bound = float(pairs.pop("le"))
            if labels.items() <= pairs.items() and (abs(bound) <= MOST or bound == math.inf):
                rises[bound] = rises.get(bound, 0.0) + sign * value
    counts, below = [], 0.0
    for bound, cumulative in sorted(rises.items()):
        counts.append((bound, max(cumulative - below, 0.0)))
        below = max(cumulative, below)
    return counts


def quantile(share: float, counts: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """The bounds of a histogram's bucket that a quantile lies in; None if it is empty.

    A number between them would look as if it had been measured.

    Args:
        share: from 0 to 1.
        counts: as `buckets` gives them.
    """
    rank, low = share * sum(count for _, count in counts), 0.0
    if rank <= 0:
        return None
    for bound, count in counts:
        if count and rank <= count:
            return low, bound
        rank -= count
        low = bound
    return low, math.inf


def batches(pods: Iterable[Scraped], now: datetime) -> dict[str, Any]:
    """Batches by size over time: columns of `COLUMN_SECONDS`, the last ends now; a row for each bound.

    Args:
        pods: whose.
        now: the time.
    """
    end, columns = now.timestamp(), defaultdict[int, dict[float, float]](dict)
    for scraped in pods:
        for at, rises in list(scraped.sizes):
            column = columns[int((end - at) // COLUMN_SECONDS)]
            for bound, count in rises:
                column[bound] = column.get(bound, 0.0) + count
    bounds = sorted({bound for column in columns.values() for bound, count in column.items() if count})
    low, high = (bounds[0], bounds[-1]) if bounds else (0.0, 0.0)
    shown = sorted({bound for column in columns.values() for bound in column if low <= bound <= high})
    return {
        "seconds": COLUMN_SECONDS,
        "bounds": [None if bound == math.inf else bound for bound in shown],
        "columns": [
            (ago, [column.get(bound, 0.0) for bound in shown]) for ago, column in sorted(columns.items())
        ],
    }


def curve(
    pods: Iterable[Scraped], inputs: Mapping[str, Any], batching: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Milliseconds of a batch by its size, `a + b * n`: the median of the pods; None if there is none.

    Args:
        pods: whose.
        inputs: of the autoscaler, with what the objective allows.
        batching: settings.
    """
    fits = []
    for scraped in pods:
        latest = scraped.values[-1][1] if scraped.values else {}
        slopes = latest.get(f"{SIDECAR}fit_slope_seconds", {})
        for labels, start in latest.get(f"{SIDECAR}fit_intercept_seconds", {}).items():
            fits.append((start * 1000, slopes.get(labels, 0.0) * 1000))
            break  # the first rests on the most batches
    if not fits:
        return None
    a, b = sorted(fits)[len(fits) // 2]
    objective = batching.get("latencyObjective")
    return {
        "a": a,
        "b": b,
        "most": batching.get("maxBatchSize"),
        "objective": durations.parse_ms(objective) if objective else None,
        "allowed": inputs.get("batchSize"),
    }
