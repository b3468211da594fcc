"""Metrics of resources: what a scrape of the leading operator tells."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from penstock_operator.fleet import Fleet
from penstock_operator.kinds import BACKEND
from penstock_wire.report import Fit, Items, SidecarReport
from tests.support.operator_harness import Harness, backend, endpoint


def scrape(harness: Harness) -> dict[tuple[str, ...], float]:
    """Name without prefix and label values in alphabetical order of the labels → value."""
    found = {}
    for family in text_string_to_metric_families(Fleet(harness.ctx.store, harness.ctx.reports).text()):
        for sample in family.samples:
            values = [value for _, value in sorted(sample.labels.items())]
            found[sample.name.removeprefix("penstock_operator_"), *values] = sample.value
    return found


async def test_conditions_and_replicas_follow_the_statuses() -> None:
    """A scrape agrees with what kubectl shows; Unknown is neither True nor False."""
    harness = Harness()
    harness.apply(backend(replicas=2))
    harness.apply(endpoint(backend="nobody"))
    await harness.run()
    found = scrape(harness)
    assert found["condition", "Ready", "ModelBackend", "m", "n"] == 0
    assert found["condition", "SettingsApplied", "ModelBackend", "m", "n"] == -1
    assert found["condition", "Accepted", "ModelEndpoint", "e", "n"] == 1
    assert found["backend_replicas", "m", "n", "wanted"] == 2
    assert found["backend_replicas", "m", "n", "ready"] == 0
    harness.pods_ready("m-backend", 2)
    await harness.run()
    found = scrape(harness)
    assert found["condition", "Ready", "ModelBackend", "m", "n"] == 1
    assert found["backend_replicas", "m", "n", "ready"] == 2
    assert found["backend_replicas", "m", "n", "reporting"] == 0


async def test_reports_make_load_and_one_service_curve_a_backend() -> None:
    """However many paths clients choose, a backend has one curve: that of the most batches."""
    harness = Harness()
    harness.apply(backend())
    await harness.run()
    for number, pod in enumerate(harness.pods_ready("m-backend", 2)):
        harness.ctx.reports.sidecar(
            "n",
            "m",
            SidecarReport(
                pod=pod, uid=str(number), seq=1, state="ready", slots=2, oldest_age_ms=100 * number,
                items=Items(queued=3, ongoing=1),
                fit={f"/{path}": Fit(a_ms=10 + path, b_ms=2, n=path + number) for path in range(40)},
            ),
        )  # fmt: skip
    found = scrape(harness)
    assert found["backend_replicas", "m", "n", "reporting"] == 2
    assert found["backend_items", "m", "n", "queued"] == 6
    assert found["backend_items", "m", "n", "ongoing"] == 2
    assert found["backend_slots", "m", "n"] == 4
    assert found["backend_oldest_age_seconds", "m", "n"] == 0.1
    assert found["backend_fit_intercept_seconds", "m", "n"] == 0.049
    assert found["backend_fit_slope_seconds", "m", "n"] == 0.002
    assert sum(key[0].startswith("backend_fit") for key in found) == 2


async def test_a_deleted_backend_leaves_no_series() -> None:
    harness = Harness()
    harness.apply(backend())
    await harness.run()
    harness.cluster.remove(BACKEND, "n", "m")
    await harness.run()
    assert scrape(harness) == {}
