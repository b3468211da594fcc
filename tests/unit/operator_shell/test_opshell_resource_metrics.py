"""Metrics of resources, as a scrape of the leading operator shows them."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from penstock_operator.kinds import BACKEND
from penstock_operator.resource_metrics import ResourceMetrics
from penstock_wire.control.report import Fit, Items, SidecarReport
from tests.support.worlds.operator_harness import Harness, backend, endpoint


def scrape(harness: Harness) -> dict[tuple[str, ...], float]:
    """Name without prefix and label values in alphabetical order of the labels → value."""
    samples = {}
    metrics = ResourceMetrics(harness.ctx.store, harness.ctx.reports, harness.ctx.memory.scaled)
    for family in text_string_to_metric_families(metrics.text()):
        for sample in family.samples:
            values = [value for _, value in sorted(sample.labels.items())]
            samples[sample.name.removeprefix("penstock_operator_"), *values] = sample.value
    return samples


async def test_conditions_and_replicas_follow_the_statuses() -> None:
    """A scrape agrees with what kubectl shows; Unknown is neither True nor False."""
    harness = await Harness().applied(backend(replicas=2), endpoint(backend="nobody"))
    values = scrape(harness)
    assert values["condition", "Ready", "ModelBackend", "m", "n"] == 0
    assert values["condition", "SettingsApplied", "ModelBackend", "m", "n"] == -1
    assert values["condition", "Accepted", "ModelEndpoint", "e", "n"] == 1
    assert values["backend_replicas", "m", "n", "wanted"] == 2
    assert values["backend_replicas", "m", "n", "ready"] == 0
    harness.pods_ready("m-backend", 2)
    await harness.run()
    values = scrape(harness)
    assert values["condition", "Ready", "ModelBackend", "m", "n"] == 1
    assert values["backend_replicas", "m", "n", "ready"] == 2
    assert values["backend_replicas", "m", "n", "reporting"] == 0


async def test_reports_make_load_and_one_service_curve_a_backend() -> None:
    """However many paths clients choose, a backend has one curve: that of the most batches."""
    harness = await Harness().applied(backend())
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
    values = scrape(harness)
    assert values["backend_replicas", "m", "n", "reporting"] == 2
    assert values["backend_items", "m", "n", "queued"] == 6
    assert values["backend_items", "m", "n", "ongoing"] == 2
    assert values["backend_slots", "m", "n"] == 4
    assert values["backend_oldest_age_seconds", "m", "n"] == 0.1
    assert values["backend_fit_intercept_seconds", "m", "n"] == 0.049
    assert values["backend_fit_slope_seconds", "m", "n"] == 0.002
    assert sum(key[0].startswith("backend_fit") for key in values) == 2


async def test_the_report_age_is_that_of_the_pod_that_is_silent_for_longest() -> None:
    """It grows while a pod is silent, though its report counts no more; a pod that is gone has none."""
    harness = await Harness().applied(backend())
    assert ("backend_report_age_seconds", "m", "n") not in scrape(harness)
    first, second = harness.pods_ready("m-backend", 2)
    harness.report("m", first)
    harness.clock.turn(40)
    harness.report("m", second)
    harness.clock.turn(2)
    assert scrape(harness)["backend_report_age_seconds", "m", "n"] == 42
    harness.pods_ready("m-backend", 0)
    harness.pods_ready("m-backend", 1)
    harness.report("m", first)
    assert scrape(harness)["backend_report_age_seconds", "m", "n"] == 0


async def test_every_term_of_the_recommendation_is_told_of_backends_that_scale() -> None:
    """What the autoscaler would write, and what it made that from; of no other backend there is any."""
    harness = Harness()
    scaling = {"minReplicas": 1, "maxReplicas": 4, "targetLoad": 10, "stableWindow": "10s"}
    await harness.applied(backend(autoscaling=scaling), backend("fixed"))
    for _ in range(20):
        for pod in harness.pods_ready("m-backend", 1):
            harness.report("m", pod, load=75, processor_wait=0.04)
        await harness.turn(1)
    terms = {key[-1]: value for key, value in scrape(harness).items() if key[0] == "backend_recommendation"}
    assert scrape(harness)["backend_verdict", "m", "n", "Limited"] == 1
    assert terms == {
        "refused": 0,
        "current": 4,
        "recommended": 4,
        "wanted": 8,
        "load": 75,
        "target_load": 10,
        "ready_pods": 1,
        "silent_pods": 0,
        "held": 0,
        "processor_wait_percent": 4,
    }
    harness.cluster.remove(BACKEND, "n", "m")
    await harness.run()
    assert not [key for key in scrape(harness) if key[0] == "backend_recommendation"]


async def test_a_deleted_backend_leaves_no_series() -> None:
    """Nor does anything of it that pods reported."""
    harness = await Harness().applied(backend())
    harness.cluster.remove(BACKEND, "n", "m")
    await harness.run()
    assert scrape(harness) == {}
