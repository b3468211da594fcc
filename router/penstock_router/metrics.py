"""The router's metrics (Prometheus). Labels are bounded: names from the settings, codes and reason words.

What happens is counted in plain numbers; prometheus_client only formats them when somebody scrapes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import generate_latest
from prometheus_client import metrics_core as core

from penstock_wire.build import BUILD
from penstock_wire.control.report import BackendTotals

BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)


class Series:
    """What one endpoint's requests to one backend have come to, since the router started.

    Args:
        endpoint: the endpoint; empty for requests of none.
        backend: the backend; empty for requests that none was asked for.
    """

    __slots__ = (
        "_answers",
        "_last",
        "_reason",
        "_status",
        "backend",
        "buckets",
        "endpoint",
        "retries",
        "seconds",
        "strays",
    )

    def __init__(self, endpoint: str, backend: str) -> None:
        self.endpoint = endpoint
        self.backend = backend
        self._answers: dict[tuple[int, str], list[int]] = {}
        self._status, self._reason = 0, ""
        self._last: list[int] | None = None  # of these
        self.buckets = [0] * (len(BUCKETS) + 1)
        """How many took so long, by upper bound; the last without one."""
        self.seconds = 0.0
        """How long all of them took."""
        self.retries = 0
        """Further tries."""
        self.strays = 0
        """Tries of requests with a key on another pod than the key's own."""

    def answered(self, status: int, reason: str, seconds: float) -> None:
        """Count a request."""
        if self._last is None or status != self._status or reason != self._reason:
            self._status, self._reason = status, reason
            self._last = self._answers.setdefault((status, reason), [0])
        self._last[0] += 1
        self.buckets[bisect_left(BUCKETS, seconds)] += 1
        self.seconds += seconds

    @property
    def answers(self) -> dict[tuple[int, str], int]:
        """How many, by status (499: the client left before) and reason."""
        return {key: count for key, (count,) in list(self._answers.items())}

    def totals(self, held: int) -> BackendTotals:
        """As the report has them.

        Args:
            held: requests that are held now.
        """
        codes: dict[str, int] = {}
        for (status, _), count in self.answers.items():
            codes[str(status)] = codes.get(str(status), 0) + count
        return BackendTotals(requests=sum(codes.values()), codes=codes, retries=self.retries, held=held)


class Metrics:
    """All of them.

    Args:
        held: held requests now, by backend.
        with_room: pods that say how much room they have, by backend.
    """

    def __init__(
        self,
        held: Callable[[], Mapping[str, int]],
        with_room: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._held = held
        self._with_room = with_room
        self._series: dict[tuple[str, str], Series] = {}
        self._retries: dict[str, int] = {}

    def series(self, endpoint: str, backend: str) -> Series:
        """What is counted of an endpoint's requests to a backend.

        Args:
            endpoint: the endpoint; empty for requests of none.
            backend: the backend; empty for requests that none was asked for.
        """
        found = self._series.get((endpoint, backend))
        if found is None:
            found = self._series[endpoint, backend] = Series(endpoint, backend)
        return found

    def retried(self, reason: str) -> None:
        """Count a further try."""
        self._retries[reason] = self._retries.get(reason, 0) + 1

    def forget(self, endpoint: str) -> None:
        """Drop the series of an endpoint that was deleted."""
        for key in [key for key in self._series if key[0] == endpoint]:
            del self._series[key]

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self)

    def collect(self) -> Iterator[Any]:
        """All metrics, as `prometheus_client` reads them."""
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
        for series in list(self._series.values()):
            if series.strays:
                strays.add_metric([series.endpoint, series.backend], series.strays)
            for (status, reason), count in series.answers.items():
                requests.add_metric([series.endpoint, series.backend, str(status), reason], count)
            if series.endpoint:
                below, buckets = 0, []
                for bound, count in zip((*BUCKETS, "+Inf"), series.buckets, strict=True):
                    below += count
                    buckets.append((str(bound), below))
                duration.add_metric([series.endpoint, series.backend], buckets, series.seconds)
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
        yield from (requests, duration, retries, strays, build, held, with_room)
