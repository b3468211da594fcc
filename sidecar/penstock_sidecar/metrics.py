"""The sidecar's metrics for Prometheus, and the totals of its reports. Labels are bounded.

Events are counted in plain numbers; prometheus_client only formats them at a scrape.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import UNSET

from penstock_sidecar.interfaces import RequestPath
from penstock_wire.build import BUILD
from penstock_wire.control.report import MOST_WORK, Fit, Totals
from penstock_wire.errors import Reason
from penstock_wire.exposition import memory_families
from penstock_wire.http.memory import MemoryBound
from penstock_wire.process import log

if TYPE_CHECKING:
    # NB: imported at the first scrape: it costs 3 MB, and many sidecars are never scraped.
    from prometheus_client.core import Metric

_PREFIX = "penstock_sidecar_"
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_ITEMS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0)
_RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_NAMES, _NAME = 8, 64
"""Most names of header fields in a warning, and characters of each: clients choose them."""
MAX_CLASSES = 16
"""Maximum number of service curves that are shown: those that rest on the most batches."""


class _Histogram:
    """Counts by upper bound; an observation is one bisection and one addition.

    Args:
        bounds: upper bounds, inclusive, ascending, without the infinite one.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """The pairs `(le, count)` that Prometheus expects: each bucket includes the smaller ones."""
        buckets: list[tuple[str, float]] = []
        count = 0
        for bound, here in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            count += here
            buckets.append((str(bound), count))
        return buckets


class Metrics:
    """Observes the dispatcher and the handler (`runner.Observer`, `interfaces.RequestObserver`).

    Args:
        memory: the memory that all connections keep.
    """

    def __init__(self, memory: MemoryBound | None = None) -> None:
        self._memory = MemoryBound() if memory is None else memory
        self._batch_items = _Histogram(_ITEMS)
        self._wait = _Histogram(_SECONDS)
        self._service = _Histogram(_SECONDS)
        self._fill = _Histogram(_RATIOS)
        self._ended: dict[tuple[int, Reason | None, str], list[int]] = {}
        self._arrived = 0
        self._isolation_runs = 0
        self._unauthorized = 0
        self.warning = ""
        """What is wrong with the settings although the model answers, in words; empty for nothing."""
        self._cut: dict[Reason, int] = {}
        self._load: RequestPath | None = None
        self._fits: Callable[[], Mapping[str, Fit]] = dict
        self._open: Callable[[], tuple[int, int]] = lambda: (0, 0)

    # Counting, on the hot path

    def ran(self, items: int, limit: int, seconds: float, waits: Sequence[float] = ()) -> None:
        """Count a batch that ended.

        Args:
            items: its items.
            limit: items it could have held.
            seconds: time that it was with the model.
            waits: seconds that each request waited whose first part is in this batch.
        """
        self._batch_items.observe(items)
        self._fill.observe(items / limit)
        self._service.observe(seconds)
        if waits:
            histogram = self._wait
            bounds, counts = histogram.bounds, histogram.counts
            for wait in waits:
                counts[bisect_left(bounds, wait)] += 1
            histogram.total += sum(waits)

    def isolated(self) -> None:
        """Count a part of a failed batch that is run again."""
        self._isolation_runs += 1

    def unauthorized(self, status: int, names: Sequence[str]) -> None:
        """See `runner.Observer`; the first one is logged."""
        self._unauthorized += 1
        if self.warning:
            return
        shown = ", ".join([name[:_NAME] for name in names[:_NAMES]]) or "none"
        self.warning = (
            f"the model answers batches with {status}, and each of their requests alone with something else: "
            "a credential in which they differ does not reach it; name its header in batchKeyHeaders. "
            f"Headers in which they differ: {shown}"
        )
        log("batches do not carry what their requests do", level="warning", detail=self.warning)

    def arrived(self, items: int) -> None:
        self._arrived += items

    def ended(self, status: int, reason: Reason | None, items: int, cause: str = "") -> None:
        try:
            counts = self._ended[status, reason, cause]
        except KeyError:
            counts = self._ended[status, reason, cause] = [0, 0]
        counts[0] += 1
        # A request that could not be read is refused all the same, and counts as one item.
        counts[1] += items if reason is None else items or 1

    def cut(self, reason: Reason) -> None:
        """Count a streamed answer of a batch that was cut after its head; `ended` has counted the head."""
        self._cut[reason] = self._cut.get(reason, 0) + 1

    # Showing

    def show(
        self,
        load: RequestPath,
        *,
        fits: Callable[[], Mapping[str, Fit]] = dict,
        streams: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        """Show gauges; each argument is read at each scrape.

        Args:
            load: the queue.
            fits: service curves by path.
            streams: the number of bodies that are streamed now, and of tunnels that are open.
        """
        self._load, self._fits, self._open = load, fits, streams

    def totals(self, *, batches: int, batch_items: int, work_beyond: float = 0.0) -> Totals:
        """The totals of a report.

        Args:
            batches: that were sent.
            batch_items: items in them.
            work_beyond: see `Counts`.
        """
        answered, refused = 0, dict[str, int]()
        for (_, reason, _), (_, items) in self._ended.items():
            if reason is None:
                answered += items
            else:
                refused[reason.value] = refused.get(reason.value, 0) + items
        return Totals(
            arrived=self._arrived,
            answered=answered,
            refused=refused,
            batches=batches,
            batch_items=batch_items,
            arrived_work=min(MOST_WORK, max(0.0, self._arrived + work_beyond)) if work_beyond else UNSET,
        )

    def collect(self) -> Iterator[Metric]:
        """All metrics as they are now (a `prometheus_client` collector)."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        requests = CounterMetricFamily(
            _PREFIX + "requests",
            "Requests by status and, for errors, reason",
            labels=("code", "reason"),
        )
        by_labels: dict[tuple[str, str], int] = {}
        for (status, reason, cause), (count, _) in self._ended.items():
            # NB: the SDK and the sidecar have reasons in common.
            labels_of = (str(status), cause if reason is None else reason.value)
            by_labels[labels_of] = by_labels.get(labels_of, 0) + count
        for labels_of, count in by_labels.items():
            requests.add_metric(labels_of, count)
        yield requests
        cut = CounterMetricFamily(
            _PREFIX + "streams_cut",
            "Streamed answers of batches that were cut after their head, by reason",
            labels=("reason",),
        )
        for reason, count in self._cut.items():
            cut.add_metric((reason.value,), count)
        yield cut
        for name, text, count in (
            ("arrived_items", "Items of requests; one where it was refused unread", self._arrived),
            ("isolation_runs", "Runs of a part of a failed batch", self._isolation_runs),
            (
                "unauthorized_batches",
                "Batches answered 401 or 403, whose requests alone were not",
                self._unauthorized,
            ),
        ):
            yield CounterMetricFamily(_PREFIX + name, text, value=count)
        for name, text, histogram in (
            ("batch_items", "Items in a batch", self._batch_items),
            ("wait_seconds", "Time in the queue", self._wait),
            ("service_seconds", "Time of a batch with the model", self._service),
            ("fill_ratio", "Items in a batch over maxBatchSize", self._fill),
        ):
            yield HistogramMetricFamily(
                _PREFIX + name, text, buckets=histogram.cumulative(), sum_value=histogram.total
            )
        intercept = GaugeMetricFamily(
            _PREFIX + "fit_intercept_seconds", "Time that a batch of any size takes", labels=("class",)
        )
        slope = GaugeMetricFamily(
            _PREFIX + "fit_slope_seconds", "Time that each item of a batch adds", labels=("class",)
        )
        work = GaugeMetricFamily(
            _PREFIX + "fit_work",
            "Work of a unit of a term, in items of the usual cost",
            labels=("class", "term"),
        )
        cost = GaugeMetricFamily(
            _PREFIX + "fit_batch_cost", "Sum of the items' costs of a usual batch", labels=("class",)
        )
        error = GaugeMetricFamily(
            _PREFIX + "fit_error_ratio",
            "Median error of a batch's predicted time, and what it were by the number of items",
            labels=("class", "by"),
        )
        cap = GaugeMetricFamily(
            _PREFIX + "fit_cost_cap", "The largest cost of an item that counts", labels=("class",)
        )
        limit = GaugeMetricFamily(
            _PREFIX + "fit_work_limit", "The most work of a batch: larger are dearer", labels=("class",)
        )
        for path, fit in fits_of_most_batches(self._fits()):
            labels = (class_label(path),)
            for term, value in {} if fit.work is UNSET else fit.work.items():
                work.add_metric((*labels, term), value)
            if fit.batch is not UNSET:
                cost.add_metric(labels, fit.batch.cost)
                if fit.batch.cap is not UNSET:
                    cap.add_metric(labels, fit.batch.cap)
                if fit.batch.limit is not UNSET:
                    limit.add_metric(labels, fit.batch.limit)
                error.add_metric((*labels, "cost"), fit.batch.error)
                error.add_metric((*labels, "items"), fit.batch.error_by_items)
            a_ms, b_ms = fit.bounded()
            intercept.add_metric(labels, a_ms / 1000)
            slope.add_metric(labels, b_ms / 1000)
        yield intercept
        yield slope
        yield work
        yield cost
        yield cap
        yield limit
        yield error
        build = GaugeMetricFamily(
            _PREFIX + "build_info", "1; the label says whether compiled modules run", labels=("build",)
        )
        build.add_metric((BUILD,), 1)
        yield build
        yield from memory_families(_PREFIX, self._memory)
        for name, text, value in self._gauges():
            yield GaugeMetricFamily(_PREFIX + name, text, value=value)
        for name, text, value in self._holds():
            yield CounterMetricFamily(_PREFIX + name, text, value=value)

    def _holds(self) -> Iterable[tuple[str, str, float]]:
        if self._load is None:
            return ()
        counts = self._load.counts
        return (
            (
                "held_seconds",
                "Time for which a free slot was held for callers who ask again",
                counts.held_seconds,
            ),
            ("held_batches", "Batches whose slot was held", counts.held_batches),
            ("merged_batches", "Batches some of which came while their slot was held", counts.merged_batches),
            (
                "saved_calls",
                "Calls of the model that were not needed, since batches were merged",
                counts.saved_calls,
            ),
            ("reused_requests", "Requests that waited for the answer of an equal one", counts.reused),
        )

    def _gauges(self) -> Iterable[tuple[str, str, float]]:
        load = self._load
        if load is None:
            return ()
        streams, tunnels = self._open()
        return (
            ("queued_items", "Items that wait", load.queued),
            ("ongoing_items", "Items with the model", load.ongoing),
            ("oldest_age_seconds", "How long the oldest queued request has waited", load.oldest_age),
            ("drain_seconds", "Time until all that waits is through, at the latest pace", load.drain_seconds),
            ("slots", "Batches that may be with the model at once", load.slots),
            (
                "batch_limit_items",
                "Items of a batch at most, fewer where bad requests come",
                load.batch_limit,
            ),
            (
                "batch_wait_limit_seconds",
                "How long a part-full batch waits at most",
                load.batch_wait,
            ),
            ("open_streams", "Answers that are being streamed", streams),
            ("open_tunnels", "Connections that switched protocols (WebSocket)", tunnels),
        )


def class_label(path: str) -> str:
    """The label of a class: 12 hex digits of its path's SHA-256, since a client's path must not be shown."""
    return hashlib.sha256(path.encode(errors="backslashreplace")).hexdigest()[:12]


def fits_of_most_batches(fits: Mapping[str, Fit]) -> list[tuple[str, Fit]]:
    """The service curves that rest on the most batches; clients choose paths, so their number is bounded."""
    return sorted(fits.items(), key=lambda entry: (-entry[1].n, entry[0]))[:MAX_CLASSES]
