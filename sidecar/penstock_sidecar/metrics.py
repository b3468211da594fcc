"""What the sidecar tells Prometheus, and the totals of its reports. Labels are bounded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock_wire.errors import Reason
from penstock_wire.report import Totals

_PREFIX = "penstock_sidecar_"
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_ITEMS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


class Load(Protocol):
    """What the gauges show; read at each scrape."""

    @property
    def queued(self) -> int:
        """Items that wait."""
        ...

    @property
    def ongoing(self) -> int:
        """Items with the model."""
        ...

    @property
    def oldest_age(self) -> float:
        """Seconds that the oldest has waited."""
        ...

    @property
    def drain_seconds(self) -> float:
        """Seconds until the queue is through."""
        ...


class Metrics:
    """Observes the dispatcher and the handler (`dispatch.Observer`, `handler.Tally`)."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            _PREFIX + "requests",
            "Requests by status and, for errors of Penstock's own, reason",
            ("code", "reason"),
            registry=self.registry,
        )
        self._batch_items = Histogram(
            _PREFIX + "batch_items", "Items in a batch", buckets=_ITEMS, registry=self.registry
        )
        self._wait = Histogram(
            _PREFIX + "wait_seconds", "Time in the queue", buckets=_SECONDS, registry=self.registry
        )
        self._service = Histogram(
            _PREFIX + "service_seconds",
            "Time of a batch with the model",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._fill = Histogram(
            _PREFIX + "fill_ratio",
            "Items in a batch over maxBatchSize",
            buckets=_RATIOS,
            registry=self.registry,
        )
        self._children: dict[tuple[int, Reason | None], Counter] = {}
        self._arrived = 0
        self._answered = 0
        self._refused: dict[str, int] = {}

    def show(self, load: Load) -> None:
        """Show the gauges of a dispatcher."""
        self.registry.register(_Gauges(load))

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def totals(self, *, batches: int, batch_items: int) -> Totals:
        """The totals of a report."""
        return Totals(
            arrived=self._arrived,
            answered=self._answered,
            refused=dict(self._refused),
            batches=batches,
            batch_items=batch_items,
        )

    def waited(self, seconds: float) -> None:
        """See `dispatch.Observer`."""
        self._wait.observe(seconds)

    def ran(self, items: int, limit: int, seconds: float) -> None:
        """See `dispatch.Observer`."""
        self._batch_items.observe(items)
        self._fill.observe(items / limit)
        self._service.observe(seconds)

    def arrived(self, items: int) -> None:
        """See `handler.Tally`."""
        self._arrived += items

    def ended(self, status: int, reason: Reason | None, items: int) -> None:
        """See `handler.Tally`."""
        child = self._children.get((status, reason))
        if child is None:
            labels = (str(status), "" if reason is None else reason.value)
            child = self._children[status, reason] = self._requests.labels(*labels)
        child.inc()
        if reason is None:
            self._answered += items
        else:
            self._refused[reason.value] = self._refused.get(reason.value, 0) + max(1, items)


class _Gauges(Collector):
    def __init__(self, load: Load) -> None:
        self._load = load

    def collect(self) -> Iterator[Metric]:
        load = self._load
        for name, text, value in (
            ("queued_items", "Items that wait", load.queued),
            ("ongoing_items", "Items with the model", load.ongoing),
            ("oldest_age_seconds", "How long the oldest queued request has waited", load.oldest_age),
            ("drain_seconds", "Time until all that waits is through, at the latest pace", load.drain_seconds),
        ):
            yield GaugeMetricFamily(_PREFIX + name, text, value=value)
