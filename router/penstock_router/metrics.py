"""The router's metrics (Prometheus). Labels are bounded: names from the settings, codes and reasons.

Events are counted in plain numbers; prometheus_client only formats them on a scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import metrics_core as core

from penstock_router.mirroring.totals import MirrorSeries, families
from penstock_router.series import Series
from penstock_wire.build import BUILD
from penstock_wire.exposition import memory_families
from penstock_wire.http.memory import MemoryBound


class Metrics:
    """All metrics of a router.

    Args:
        held: counts the requests that are held now, by backend.
        with_room: counts the pods that report how much room they have, by backend.
        memory: the memory that all connections keep.
    """

    def __init__(
        self,
        held: Callable[[], Mapping[str, int]],
        with_room: Callable[[], Mapping[str, int]] = dict,
        memory: MemoryBound | None = None,
    ) -> None:
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
            series = self._mirrors[endpoint, mirror] = MirrorSeries(endpoint, mirror)
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
        requests = core.CounterMetricFamily(
            "penstock_router_requests",
            "Requests answered; code 499: the client left before.",
            labels=["endpoint", "backend", "code", "reason"],
        )
        duration = core.HistogramMetricFamily(
            "penstock_router_duration_seconds",
            "From a request's arrival to the end of its answer, holding included.",
            labels=["endpoint", "backend"],
        )
        strays = core.CounterMetricFamily(
            "penstock_router_affinity_misses",
            "Tries of requests with a key on another pod than its own, which was full, drained or could not "
            "be reached.",
            labels=["endpoint", "backend"],
        )
        tunnels = core.GaugeMetricFamily(
            "penstock_router_open_tunnels",
            "Connections that switched protocols (WebSocket) and are open.",
            labels=["endpoint", "backend"],
        )
        cuts = core.CounterMetricFamily(
            "penstock_router_streams_cut",
            "Streamed answers and tunnels that ended before their end, after the head of the answer.",
            labels=["endpoint", "backend", "reason"],
        )
        for series in list(self._series.values()):
            for reason, count in list(series.cuts.items()):
                cuts.add_metric([series.endpoint, series.backend, reason], count)
            if series.backend:
                tunnels.add_metric([series.endpoint, series.backend], series.tunnels)
            if series.strays:
                strays.add_metric([series.endpoint, series.backend], series.strays)
            for (status, reason), count in series.answers.items():
                requests.add_metric([series.endpoint, series.backend, str(status), reason], count)
            if series.endpoint:
                duration.add_metric([series.endpoint, series.backend], series.cumulative(), series.seconds)
        retries = core.CounterMetricFamily(
            "penstock_router_retries",
            "Tries on another pod after one that was surely not executed.",
            labels=["reason"],
        )
        for reason, count in list(self._retries.items()):
            retries.add_metric([reason], count)
        build = core.GaugeMetricFamily(
            "penstock_router_build_info",
            "1; the label says whether compiled modules run.",
            labels=["build"],
        )
        build.add_metric([BUILD], 1)
        held = core.GaugeMetricFamily(
            "penstock_router_held_requests", "Requests that wait for a ready pod.", labels=["backend"]
        )
        for backend, count in self._held().items():
            held.add_metric([backend], count)
        with_room = core.GaugeMetricFamily(
            "penstock_router_pods_with_room",
            "Ready pods that say how much room they have, over the hop.",
            labels=["backend"],
        )
        for backend, count in self._with_room().items():
            with_room.add_metric([backend], count)
        yield from (requests, duration, retries, strays, tunnels, cuts, build, held, with_room)
        yield from memory_families("penstock_router_", self._memory)
        yield from families(list(self._mirrors.values()))
