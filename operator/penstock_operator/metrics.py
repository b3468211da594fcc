"""The operator's own metrics, in a separate registry; `workqueue_*` has the names of controller-runtime."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from penstock_operator import __name__ as _package
from penstock_wire.process import log
from penstock_wire.version import version

_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class QueueMetrics:
    """Counts one work queue (implements `workqueue.QueueObserver`)."""

    def __init__(self, metrics: Metrics, name: str) -> None:
        self._depth = metrics.queue_depth.labels(name)
        self._adds = metrics.queue_adds.labels(name)
        self._waited = metrics.queue_waited.labels(name)
        self._worked = metrics.queue_worked.labels(name)
        self._retries = metrics.queue_retries.labels(name)

    def added(self, depth: int) -> None:
        self._adds.inc()
        self._depth.set(depth)

    def got(self, depth: int, waited: float) -> None:
        self._depth.set(depth)
        self._waited.observe(waited)

    def finished(self, worked: float) -> None:
        self._worked.observe(worked)

    def retried(self) -> None:
        self._retries.inc()


class _Registry(CollectorRegistry):
    """A registry that can render its families one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.families: list[Collector] = []

    def register(self, collector: Collector) -> None:
        super().register(collector)
        self.families.append(collector)


class _Alone(CollectorRegistry):
    """A view of one family of another registry."""

    def __init__(self, family: Collector) -> None:
        super().__init__()
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return self._family.collect()


class Metrics:
    """All metrics of one operator process."""

    def __init__(self) -> None:
        self.registry = registry = _Registry()
        self._more: list[Callable[[], bytes]] = []
        prefix = _package
        self.queue_depth = Gauge("workqueue_depth", "Keys that wait.", ["name"], registry=registry)
        self.queue_adds = Counter("workqueue_adds", "Keys added.", ["name"], registry=registry)
        self.queue_waited = Histogram(
            "workqueue_queue_duration_seconds",
            "How long keys waited.",
            ["name"],
            buckets=_FAST,
            registry=registry,
        )
        self.queue_worked = Histogram(
            "workqueue_work_duration_seconds",
            "How long work took.",
            ["name"],
            buckets=_FAST,
            registry=registry,
        )
        self.queue_retries = Counter(
            "workqueue_retries", "Keys added again after a failure.", ["name"], registry=registry
        )
        self._unfinished = Gauge(
            "workqueue_unfinished_work_seconds",
            "How long the keys being worked on have taken so far, together.",
            ["name"],
            registry=registry,
        )
        self._longest = Gauge(
            "workqueue_longest_running_processor_seconds",
            "How long the longest running work has taken so far.",
            ["name"],
            registry=registry,
        )
        self._reconciles = Histogram(
            f"{prefix}_reconcile_duration_seconds",
            "How long reconciling took, by kind and outcome.",
            ["kind", "outcome"],
            buckets=_FAST,
            registry=registry,
        )
        self._writes = Counter(
            f"{prefix}_writes",
            "Writes to the apiserver, by verb and kind.",
            ["verb", "kind"],
            registry=registry,
        )
        self._write_errors = Counter(
            f"{prefix}_write_errors",
            "Writes that the apiserver did not take, by verb, kind and HTTP status (0: no answer).",
            ["verb", "kind", "code"],
            registry=registry,
        )
        build = Gauge(
            f"{prefix}_build_info",
            "1; the labels say which release runs, on which Python.",
            ["version", "python"],
            registry=registry,
        )
        build.labels(version(), platform.python_version()).set(1)
        self._reports = Counter(
            f"{prefix}_reports",
            "Reports received, by kind and outcome.",
            ["kind", "outcome"],
            registry=registry,
        )
        self._report_counters: dict[tuple[str, str], Counter] = {}
        self.report_interval = Gauge(
            f"{prefix}_report_interval_seconds", "How often pods are asked to report.", registry=registry
        )
        self.certificate_ends = Gauge(
            f"{prefix}_certificate_expiry_timestamp_seconds",
            "When the certificate of the reports' port ends; 0 on a standby.",
            registry=registry,
        )
        self.certificate_replaced_by = Gauge(
            f"{prefix}_certificate_renewal_timestamp_seconds",
            "When that certificate will have been replaced, if nothing prevents it; 0 on a standby.",
            registry=registry,
        )
        self.leader = Gauge(f"{prefix}_leader", "1 on the process that leads.", registry=registry)
        self._other = Gauge(
            f"{prefix}_waits_for_installation",
            "1 while another installation leads; the label names its leader.",
            ["holder"],
            registry=registry,
        )
        self.watch_starts = Counter(
            f"{prefix}_watch_starts", "How often the watches were started.", registry=registry
        )

    def waits_for(self, holder: str) -> None:
        """Set whether another installation leads."""
        self._other.clear()
        if holder:
            self._other.labels(holder).set(1)

    def watch_work(self, name: str, underway: Callable[[], tuple[float, float]]) -> None:
        """Measure the work in progress of a queue at every scrape.

        Args:
            underway: returns the seconds taken so far: the sum, and the longest.
        """
        self._unfinished.labels(name).set_function(lambda: underway()[0])
        self._longest.labels(name).set_function(lambda: underway()[1])

    def wrote(self, verb: str, kind: str) -> None:
        """Count a successful write (implements `kube.cluster.WriteObserver`)."""
        self._writes.labels(verb, kind).inc()

    def write_failed(self, verb: str, kind: str, status: int) -> None:
        """Count a failed write (a `fence.Failed`)."""
        self._write_errors.labels(verb, kind, str(status)).inc()

    def ran(self, kind: str, seconds: float, *, ok: bool) -> None:
        """Count a run of a reconciler (implements `reconcile.manager.RunObserver`)."""
        self._reconciles.labels(kind, "success" if ok else "error").observe(seconds)

    def report(self, kind: str, outcome: str) -> None:
        """Count a received report."""
        counter = self._report_counters.get((kind, outcome))
        if counter is None:  # cached, since this is called for every report
            counter = self._report_counters[(kind, outcome)] = self._reports.labels(kind, outcome)
        counter.inc()

    def show(self, more: Callable[[], str]) -> None:
        """Add a source of metrics to every scrape.

        Args:
            more: renders it in Prometheus' text format, with names that are not in `registry`.
        """
        self._more.append(lambda: more().encode())

    def text(self) -> bytes:
        """Render all metrics in Prometheus' text format; a family that fails does not hide the others."""
        shown = [partial(generate_latest, _Alone(family)) for family in self.registry.families]
        return b"".join([*map(_guarded, shown), *map(_guarded, self._more)])


def _guarded(show: Callable[[], bytes]) -> bytes:
    try:
        return show()
    except Exception as error:
        log("metrics not shown", level="error", error=f"{type(error).__name__}: {error}")
        return b""
