"""The router's metrics (Prometheus). Labels are bounded: names from the settings, codes and reasons.

Events are counted in plain numbers; prometheus_client only formats them on a scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import metrics_core as core

from penstock_router.mirroring.totals import MirrorFamilies, MirrorSeries
from penstock_router.series import Series
from penstock_wire.build import BUILD
from penstock_wire.exposition import memory_families
from penstock_wire.http.memory import MemoryBound
from penstock_wire.process import NOWHERE


class Metrics:
    """All metrics of a router.

    Args:
        held: counts the requests that are held now, by backend.
        with_room: counts the pods that report how much room they have, by backend.
        memory: the memory that all connections keep.
        where: fields of each log line.
    """

    def __init__(
        self,
        held: Callable[[], Mapping[str, int]],
        with_room: Callable[[], Mapping[str, int]] = dict,
        memory: MemoryBound | None = None,
        where: Mapping[str, str] = NOWHERE,
    ) -> None:
        self._where = where  # of log lines
        self._memory = MemoryBound() if memory is None else memory
        self._held = held
        self._with_room = with_room
        self._series: dict[tuple[str, str], Series] = {}
        self._retries: dict[str, int] = {}
        self._mirrors: dict[tuple[str, str], MirrorSeries] = {}

    def series(self, endpoint: str, backend: str) -> Series:
        """The counters of an endpoint's requests to a backend.

        Args:
            endpoint: the endpoint; empty for requests without one.
            backend: the backend; empty for requests that were sent to none.
        """
        series = self._series.get((endpoint, backend))
        if series is None:
            series = self._series[endpoint, backend] = Series(endpoint, backend)
        return series

    def mirror_series(self, endpoint: str, mirror: str) -> MirrorSeries:
        series = self._mirrors.get((endpoint, mirror))
        if series is None:
            series = self._mirrors[endpoint, mirror] = MirrorSeries(endpoint, mirror, self._where)
        return series

    def forget_mirror(self, endpoint: str, mirror: str) -> None:
        self._mirrors.pop((endpoint, mirror), None)

    def retried(self, reason: str) -> None:
        self._retries[reason] = self._retries.get(reason, 0) + 1

    def forget(self, endpoint: str) -> None:
        """Drop the series of an endpoint that was deleted."""
        for key in [key for key in self._series if key[0] == endpoint]:
            del self._series[key]
        for key in [key for key in self._mirrors if key[0] == endpoint]:
            del self._mirrors[key]

    def collect(self) -> Iterator[Any]:
        """Yield all metrics, for `prometheus_client`."""
        yield from collect({"": self}, self._memory)

    def add(self, families: Families, labels: list[str]) -> None:
        """Add these metrics to families of them.

        Args:
            labels: values of the labels that precede each metric's own.
        """
        for series in list(self._series.values()):
            of = [*labels, series.endpoint, series.backend]
            for number, count in list(series.calls.items()):
                families.calls.add_metric([*of, str(number)], count)
            for reason, count in list(series.cuts.items()):
                families.cuts.add_metric([*of, reason], count)
            if series.backend:
                families.tunnels.add_metric(of, series.tunnels)
            if series.strays:
                families.strays.add_metric(of, series.strays)
            for (status, reason), count in series.answers.items():
                families.requests.add_metric([*of, str(status), reason], count)
            if series.endpoint:
                families.duration.add_metric(of, series.cumulative(), series.seconds)
        for reason, count in list(self._retries.items()):
            families.retries.add_metric([*labels, reason], count)
        for backend, count in self._held().items():
            families.held.add_metric([*labels, backend], count)
        for backend, count in self._with_room().items():
            families.with_room.add_metric([*labels, backend], count)
        families.mirrors.add(list(self._mirrors.values()), labels)


def collect(scopes: Mapping[str, Metrics], memory: MemoryBound) -> Iterator[Any]:
    """Yield the metrics of a router, for `prometheus_client`.

    Args:
        scopes: its metrics by namespace, which becomes a label; "" for those of a router that serves one.
        memory: the memory that all connections keep.
    """
    families = Families([] if "" in scopes else ["namespace"])
    for namespace, metrics in scopes.items():
        metrics.add(families, [namespace] if namespace else [])
    yield from families
    yield from memory_families("penstock_router_", memory)
    yield from families.mirrors


class Families:
    """The families of a router's metrics.

    Args:
        names: names of the labels that precede each metric's own.
    """

    def __init__(self, names: list[str]) -> None:
        of = [*names, "endpoint", "backend"]
        self.requests = core.CounterMetricFamily(
            "penstock_router_requests",
            "Requests answered; code 499: the client left before.",
            labels=[*of, "code", "reason"],
        )
        self.duration = core.HistogramMetricFamily(
            "penstock_router_duration_seconds",
            "From a request's arrival to the end of its answer, holding included.",
            labels=of,
        )
        self.strays = core.CounterMetricFamily(
            "penstock_router_affinity_misses",
            "Tries of requests with a key on another pod than its own, which was full, drained or could not "
            "be reached.",
            labels=of,
        )
        self.tunnels = core.GaugeMetricFamily(
            "penstock_router_open_tunnels",
            "Connections that switched protocols (WebSocket) and are open.",
            labels=of,
        )
        self.cuts = core.CounterMetricFamily(
            "penstock_router_streams_cut",
            "Streamed answers and tunnels that ended before their end, after the head of the answer.",
            labels=[*of, "reason"],
        )
        self.calls = core.CounterMetricFamily(
            "penstock_router_grpc_calls",
            "gRPC calls that passed to the model as they were, by the status that it ended them with.",
            labels=[*of, "grpc_status"],
        )
        self.retries = core.CounterMetricFamily(
            "penstock_router_retries",
            "Tries on another pod after one that was surely not executed.",
            labels=[*names, "reason"],
        )
        self._build = core.GaugeMetricFamily(
            "penstock_router_build_info",
            "1; the label says whether compiled modules run.",
            labels=["build"],
        )
        self._build.add_metric([BUILD], 1)
        self.held = core.GaugeMetricFamily(
            "penstock_router_held_requests",
            "Requests that wait for a ready pod.",
            labels=[*names, "backend"],
        )
        self.with_room = core.GaugeMetricFamily(
            "penstock_router_pods_with_room",
            "Ready pods that say how much room they have, over the hop.",
            labels=[*names, "backend"],
        )
        self.mirrors = MirrorFamilies(names)

    def __iter__(self) -> Iterator[Any]:
        yield from (self.requests, self.duration, self.retries, self.strays, self.tunnels, self.cuts)
        yield from (self.calls, self._build, self.held, self.with_room)
