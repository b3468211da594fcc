"""Metrics of all resources, read from the store at each scrape.

Only the leader has a store: a standby has no series. Labels are bounded by the resources that exist; of a
backend's service curves only the one from the most batches is shown, since clients choose paths.

The text is written here and not by prometheus_client: a thousand backends make ten thousand lines, for which
prometheus_client blocks the loop that takes the reports nine times as long, 60 ms at a scrape.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from penstock_operator.kinds import BACKEND, PARENTS
from penstock_operator.kube.cluster import Obj
from penstock_operator.reconcile.context import Scaled
from penstock_operator.reports import Reports
from penstock_operator.store import ObjectKey, Store, key_of
from penstock_wire.control.report import Fit, SidecarReport
from penstock_wire.process import log

CONDITIONS = ("Ready", "Accepted", "SettingsApplied", "RouterReady", "Progressing")
"""Conditions that are shown; the others explain why one of these is not True."""

_VALUES = {"True": 1, "False": 0}


class _Gauge:
    """The lines of one metric family."""

    def __init__(self, name: str, text: str) -> None:
        self._name = f"penstock_operator_{name}"
        self._lines = [f"# HELP {self._name} {text}", f"# TYPE {self._name} gauge"]

    def add(self, labels: str, value: float) -> None:
        # NB: namespaces, names and our own words need no escaping: the apiserver admits DNS names alone.
        self._lines.append(f"{self._name}{{{labels}}} {value}")

    def lines(self) -> Iterator[str]:
        return iter(self._lines)


class ResourceMetrics:
    """Gauges of every resource, and of the reports of each backend's pods."""

    def __init__(self, store: Store, reports: Reports, scaled: Mapping[ObjectKey, Scaled]) -> None:
        self._store = store
        self._reports = reports
        self._scaled = scaled

    def text(self) -> str:
        """All current metrics in Prometheus' text format."""
        return "\n".join((*self._conditions(), *self._backends(), *self._workloads(), ""))

    def _conditions(self) -> Iterator[str]:
        condition = _Gauge("condition", "A condition of a resource: 1 True, 0 False, -1 Unknown.")
        for kind in PARENTS:
            for stored in self._store.all(kind):
                metadata = stored["metadata"]
                labels = f'kind="{kind.kind}",namespace="{metadata["namespace"]}",name="{metadata["name"]}"'
                for type_, value in _conditions(stored):
                    condition.add(f'{labels},condition="{type_}"', value)
        return condition.lines()

    def _workloads(self) -> Iterator[str]:
        """The queues of workloads with injected sidecars: an HPA's selector takes no `Deployment/name`."""
        items = _Gauge("workload_items", "Items in the injected pods of a workload: queued, ongoing.")
        for namespace, workload in self._reports.workloads():
            kind, _, name = workload.partition("/")
            if latest := self._reports.of_backend(namespace, workload).values():
                _add_items(items, f'namespace="{namespace}",kind="{kind}",name="{name}"', latest)
        return items.lines()

    def _backends(self) -> Iterator[str]:
        replicas = _Gauge("backend_replicas", "Pods of a backend: wanted, there, ready, reporting.")
        items = _Gauge("backend_items", "Items in a backend's pods: queued, ongoing.")
        oldest = _Gauge("backend_oldest_age_seconds", "How long the oldest queued item has waited.")
        slots = _Gauge("backend_slots", "Batches that may be with the models at once.")
        intercept = _Gauge("backend_fit_intercept_seconds", "Time of a batch of any size.")
        pending = _Gauge(
            "backend_upgrade_pending", "1 where an upgraded operator would render the pods otherwise."
        )
        slope = _Gauge("backend_fit_slope_seconds", "Time that each item of a batch adds.")
        age = _Gauge(
            "backend_report_age_seconds", "How long ago that pod reported which is silent for longest."
        )
        terms = _Gauge(
            "backend_recommendation", "The autoscaler's last recommendation, and what it was made from."
        )
        verdicts = _Gauge("backend_verdict", "1 for what decides the autoscaler's recommendation now.")

        def show(stored: Obj) -> None:
            namespace, name = stored["metadata"]["namespace"], stored["metadata"]["name"]
            labels = f'namespace="{namespace}",backend="{name}"'
            reports = self._reports.of_backend(namespace, name)
            spec, status = stored.get("spec") or {}, stored.get("status") or {}
            for state, count in (
                ("wanted", spec.get("replicas", 1)),
                ("there", status.get("replicas") or 0),
                ("ready", status.get("readyReplicas") or 0),
                ("reporting", len(reports)),
            ):
                replicas.add(f'{labels},state="{state}"', count)
            waits = (status.get("sidecar") or {}).get("upgradePending")
            pending.add(labels, 1 if waits else 0)
            silence = self._reports.age(namespace, name)
            if silence is not None:
                age.add(labels, silence)
            scaled = self._scaled.get(ObjectKey(BACKEND.kind, namespace, name))
            for term, value in _terms(scaled):
                terms.add(f'{labels},term="{term}"', value)
            if scaled is not None and scaled.recommendation is not None:
                verdicts.add(f'{labels},verdict="{scaled.recommendation.verdict}"', 1)
            if not reports:
                return
            latest = reports.values()
            _add_items(items, labels, latest)
            oldest.add(labels, max(each.oldest_age_ms for each in latest) / 1000)
            slots.add(labels, sum(each.slots for each in latest))
            fit = most_certain(reports)
            if fit is not None:
                a_ms, b_ms = fit.bounded()
                intercept.add(labels, a_ms / 1000)
                slope.add(labels, b_ms / 1000)

        for stored in self._store.all(BACKEND):
            try:
                show(stored)
            except Exception as error:  # a failure of one backend must not hide the others
                log("metrics not shown", level="error", key=str(key_of(stored)), error=repr(error))
        for family in (replicas, pending, items, oldest, slots, intercept, slope, age, terms, verdicts):
            yield from family.lines()


def _add_items(items: _Gauge, labels: str, latest: Collection[SidecarReport]) -> None:
    items.add(f'{labels},state="queued"', sum(each.items.queued for each in latest))
    items.add(f'{labels},state="ongoing"', sum(each.items.ongoing for each in latest))


def most_certain(reports: Mapping[str, SidecarReport]) -> Fit | None:
    """The service curve that rests on the most batches, if there is any."""
    fits = [fit for report in reports.values() for fit in report.fit.values()]
    return max(fits, key=lambda fit: fit.n, default=None)


def _terms(scaled: Scaled | None) -> tuple[tuple[str, float], ...]:
    done = scaled.recommendation if scaled is not None else None
    if done is None:
        return ()
    return (
        ("current", done.current),
        ("recommended", done.replicas),
        # Each term by its name in the status, as `target_load` for `targetLoad`.
        *((term, value) for term, value in done.inputs.model_dump().items() if value is not None),
    )


def _conditions(stored: Obj) -> Iterator[tuple[str, int]]:
    for entry in (stored.get("status") or {}).get("conditions") or ():
        if entry.get("type") in CONDITIONS:
            yield entry["type"], _VALUES.get(entry.get("status"), -1)
