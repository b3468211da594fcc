"""The router's metrics (Prometheus). Labels are bounded: names from the settings, codes and reason words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from penstock_wire.build import BUILD

BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120)


class _Held(Collector):
    """Reads the held requests when it is asked, so that nothing can drift."""

    def __init__(self, read: Callable[[], Mapping[str, int]]) -> None:
        self._read = read

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The gauge, by backend."""
        held = GaugeMetricFamily(
            "penstock_router_held_requests", "Requests that wait for a ready pod.", labels=["backend"]
        )
        for backend, count in self._read().items():
            held.add_metric([backend], count)
        yield held


class Metrics:
    """All of them.

    Args:
        held: held requests now, by backend.
    """

    def __init__(self, held: Callable[[], Mapping[str, int]]) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "penstock_router_requests",
            "Requests answered; code 499: the client left before.",
            ["endpoint", "backend", "code", "reason"],
            registry=self._registry,
        )
        self._duration = Histogram(
            "penstock_router_duration_seconds",
            "From a request's arrival to its answer, holding included.",
            ["endpoint", "backend"],
            buckets=BUCKETS,
            registry=self._registry,
        )
        self._retries = Counter(
            "penstock_router_retries",
            "Tries on another pod after one that was surely not executed.",
            ["reason"],
            registry=self._registry,
        )
        Gauge(
            "penstock_router_build_info",
            "1; the label says whether compiled modules run.",
            ["build"],
            registry=self._registry,
        ).labels(BUILD).set(1)
        self._registry.register(_Held(held))

    def answered(self, *, endpoint: str, backend: str, code: str, reason: str, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(endpoint, backend, code, reason).inc()
        if endpoint:
            self._duration.labels(endpoint, backend).observe(seconds)

    def retried(self, reason: str) -> None:
        """Count a further try."""
        self._retries.labels(reason).inc()

    def forget(self, endpoint: str) -> None:
        """Drop the series of an endpoint that was deleted."""
        self._requests.remove_by_labels({"endpoint": endpoint})
        self._duration.remove_by_labels({"endpoint": endpoint})

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self._registry)
