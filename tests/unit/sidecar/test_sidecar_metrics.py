"""Counting in plain numbers gives Prometheus and the reports the same values as its own instruments would."""

from __future__ import annotations

import random

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from penstock_sidecar import metrics as subject
from penstock_sidecar.interfaces import Counts
from penstock_sidecar.metrics import MAX_CLASSES, Metrics, class_label
from penstock_wire.control.report import ByCost, Fit
from penstock_wire.errors import Reason


class Busy:
    """A dispatcher with work."""

    queued, ongoing, oldest_age, drain_seconds, slots, batch_limit, batch_wait = 7, 3, 1.5, 0.25, 2, 32, 0.005
    counts = Counts()


def samples(metrics: Metrics) -> dict[str, float]:
    """Value by name and labels, without the common prefix."""
    values = {}
    for family in text_string_to_metric_families(generate_latest(metrics).decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            values[sample.name.removeprefix("penstock_sidecar_") + (f"{{{labels}}}" if labels else "")] = (
                sample.value
            )
    return values


def test_histograms_are_what_prometheus_own_would_be():
    random_values = random.Random(7)
    values = [random_values.choice([*subject._SECONDS, random_values.expovariate(2.0)]) for _ in range(500)]
    registry = CollectorRegistry()
    theirs = Histogram("x", "x", buckets=subject._SECONDS, registry=registry)
    metrics = Metrics()
    for value in values:
        theirs.observe(value)
    metrics.ran(4, 8, 0.02, values)
    ours = samples(metrics)
    for family in registry.collect():
        for sample in family.samples:
            if sample.name == "x_bucket":
                assert ours[f"wait_seconds_bucket{{le={sample.labels['le']}}}"] == sample.value
    assert ours["wait_seconds_count"] == 500
    assert abs(ours["wait_seconds_sum"] - sum(values)) < 1e-6
    assert (ours["batch_items_bucket{le=2.0}"], ours["batch_items_bucket{le=4.0}"]) == (0, 1)
    assert (ours["fill_ratio_bucket{le=0.4}"], ours["fill_ratio_bucket{le=0.5}"]) == (0, 1)
    assert ours["service_seconds_sum"] == 0.02


def test_ends_are_counted_for_scrapes_and_for_reports():
    metrics = Metrics()
    metrics.arrived(3)
    metrics.arrived(2)
    metrics.ended(200, None, 3)
    metrics.ended(418, None, 2)
    metrics.ended(503, Reason.QUEUE_FULL, 4)
    metrics.ended(429, Reason.QUEUE_FULL, 1)
    metrics.ended(400, Reason.BAD_JSON, 0)
    metrics.isolated()
    metrics.cut(Reason.SLOW_READER)
    metrics.cut(Reason.SLOW_READER)
    values = samples(metrics)
    assert values["streams_cut_total{reason=slow_reader}"] == 2
    assert values["requests_total{code=200,reason=}"] == 1
    assert values["requests_total{code=418,reason=}"] == 1
    assert values["requests_total{code=503,reason=queue_full}"] == 1
    assert (values["arrived_items_total"], values["isolation_runs_total"]) == (5, 1)
    totals = metrics.totals(batches=2, batch_items=5)
    assert (totals.arrived, totals.answered, totals.batches, totals.batch_items) == (5, 5, 2, 5)
    assert totals.refused == {"queue_full": 5, "bad_json": 1}


def test_a_reason_of_the_sdk_and_of_the_sidecar_is_one_series():
    """Prometheus refuses a scrape in which a series stands twice."""
    metrics = Metrics()
    metrics.ended(422, Reason.BAD_SHAPE, 1)
    metrics.ended(422, None, 1, "bad_shape")
    shown = [line for line in generate_latest(metrics).decode().splitlines() if 'reason="bad_shape"' in line]
    assert shown == ['penstock_sidecar_requests_total{code="422",reason="bad_shape"} 2.0']


def test_gauges_show_the_queue_the_curves_and_what_is_open():
    metrics = Metrics()
    batch = ByCost(items=12.0, cost=3100.0, error=0.01, error_by_items=0.3, cap=5e6, limit=16.5)
    fit = Fit(a_ms=20.0, b_ms=0.5, n=9, work={"padded": 0.25}, batch=batch)
    metrics.show(Busy(), fits=lambda: {"/p": fit}, streams=lambda: (4, 1))
    values = samples(metrics)
    assert (values["queued_items"], values["ongoing_items"], values["slots"]) == (7, 3, 2)
    assert (values["oldest_age_seconds"], values["drain_seconds"]) == (1.5, 0.25)
    assert (values["open_streams"], values["open_tunnels"]) == (4, 1)
    label = class_label("/p")
    assert values[f"fit_intercept_seconds{{class={label}}}"] == 0.02
    assert values[f"fit_slope_seconds{{class={label}}}"] == 0.0005
    assert values[f"fit_work{{class={label},term=padded}}"] == 0.25
    assert values[f"fit_cost_cap{{class={label}}}"] == 5e6
    assert values[f"fit_work_limit{{class={label}}}"] == 16.5
    assert msgspec.convert(msgspec.to_builtins(fit), Fit) == fit, "the operator takes it"


def test_no_label_holds_what_a_client_chose_and_their_number_is_bounded():
    metrics = Metrics()
    fits = {f"/users/alice-{n}": Fit(a_ms=1.0, b_ms=1.0, n=n) for n in range(100)}
    metrics.show(Busy(), fits=lambda: fits)
    text = generate_latest(metrics).decode()
    assert "alice" not in text
    assert text.count("penstock_sidecar_fit_slope_seconds{") == MAX_CLASSES
    assert class_label("/users/alice-99") in text
    assert class_label("/users/alice-1") not in text


@pytest.mark.parametrize(
    ("fit", "shown"),
    [
        (Fit(a_ms=20, b_ms=-2, n=9, items=2, spread=1), (16, 0)),
        (Fit(a_ms=-4, b_ms=4, n=9, items=2, spread=1), (0, 2)),
        (Fit(a_ms=-4, b_ms=4, n=9), (0, 4)),
        (Fit(a_ms=-9, b_ms=4, n=9, items=2, spread=1), (0, 0)),
    ],
)
def test_a_curve_without_negative_parts_stays_where_it_was_measured(
    fit: Fit, shown: tuple[float, float]
) -> None:
    """What metrics show of a line that fell, or began below zero, by chance."""
    assert fit.bounded() == shown
