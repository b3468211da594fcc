"""What the operator knows of all resources, as metrics: read from the store when somebody scrapes.

Only the leader knows anything: on a standby there are no series. Labels are bounded by the resources that
exist; of a backend's service curves the one that rests on the most batches is shown, since clients choose
paths.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from penstock_operator.cluster import Obj
from penstock_operator.control.reports import Reports
from penstock_operator.kinds import BACKEND, PARENTS
from penstock_operator.store import Store
from penstock_wire.report import Fit, SidecarReport

CONDITIONS = ("Ready", "Accepted", "SettingsApplied", "RouterReady")
"""Conditions that are shown; the others say why one of these is not True."""

_VALUES = {"True": 1.0, "False": 0.0}
_OF_BACKEND = ("namespace", "backend")


class Fleet(Collector):
    """Gauges of every resource, and of what each backend's pods reported.

    Args:
        store: what is known of the cluster.
        reports: what pods said.
    """

    def __init__(self, store: Store, reports: Reports) -> None:
        self._store = store
        self._reports = reports

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing to check beforehand: reading is not cheap (see `prometheus_client.registry.Collector`)."""
        return ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All of them as they are now."""
        condition = _gauge(
            "condition",
            "A condition of a resource: 1 True, 0 False, -1 Unknown.",
            ("kind", "namespace", "name", "condition"),
        )
        for kind in PARENTS:
            for stored in self._store.all(kind):
                metadata = stored["metadata"]
                for type_, value in _conditions(stored):
                    condition.add_metric((kind.kind, metadata["namespace"], metadata["name"], type_), value)
        yield condition
        yield from self._backends()

    def _backends(self) -> Iterator[GaugeMetricFamily]:
        replicas = _gauge(
            "backend_replicas", "Pods of a backend: wanted, there, ready, reporting.", (*_OF_BACKEND, "state")
        )
        items = _gauge(
            "backend_items", "Items in a backend's pods: queued, ongoing.", (*_OF_BACKEND, "state")
        )
        oldest = _gauge(
            "backend_oldest_age_seconds", "How long the oldest queued item has waited.", _OF_BACKEND
        )
        slots = _gauge("backend_slots", "Batches that may be with the models at once.", _OF_BACKEND)
        intercept = _gauge("backend_fit_intercept_seconds", "Time of a batch of any size.", _OF_BACKEND)
        pending = _gauge(
            "backend_upgrade_pending",
            "1 for a backend whose pods an upgraded operator would render otherwise.",
            _OF_BACKEND,
        )
        slope = _gauge("backend_fit_slope_seconds", "Time that each item of a batch adds.", _OF_BACKEND)
        for stored in self._store.all(BACKEND):
            labels = (stored["metadata"]["namespace"], stored["metadata"]["name"])
            reports = self._reports.of_backend(*labels)
            spec, status = stored.get("spec") or {}, stored.get("status") or {}
            for state, count in (
                ("wanted", spec.get("replicas", 1)),
                ("there", status.get("replicas") or 0),
                ("ready", status.get("readyReplicas") or 0),
                ("reporting", len(reports)),
            ):
                replicas.add_metric((*labels, state), count)
            waits = (status.get("sidecar") or {}).get("upgradePending")
            pending.add_metric(labels, 1.0 if waits else 0.0)
            if not reports:
                continue
            told = reports.values()
            items.add_metric((*labels, "queued"), sum(one.items.queued for one in told))
            items.add_metric((*labels, "ongoing"), sum(one.items.ongoing for one in told))
            oldest.add_metric(labels, max(one.oldest_age_ms for one in told) / 1000)
            slots.add_metric(labels, sum(one.slots for one in told))
            fit = most_telling(reports)
            if fit is not None:
                intercept.add_metric(labels, fit.a_ms / 1000)
                slope.add_metric(labels, fit.b_ms / 1000)
        yield from (replicas, pending, items, oldest, slots, intercept, slope)


def most_telling(reports: Mapping[str, SidecarReport]) -> Fit | None:
    """The service curve that rests on the most batches, None where there is none.

    Args:
        reports: of a backend's pods.
    """
    fits = [fit for report in reports.values() for fit in report.fit.values()]
    return max(fits, key=lambda fit: fit.n, default=None)


def _gauge(name: str, text: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"penstock_operator_{name}", text, labels=labels)


def _conditions(stored: Obj) -> Iterator[tuple[str, float]]:
    for entry in (stored.get("status") or {}).get("conditions") or ():
        if entry.get("type") in CONDITIONS:
            yield entry["type"], _VALUES.get(entry.get("status"), -1.0)
