"""An upgrade of the operator: no pod template changes until a user changes what rolls."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from penstock_operator.kinds import BACKEND, DEPLOYMENT
from penstock_operator.resource_metrics import ResourceMetrics
from tests.support.worlds.operator_harness import RENDER, Harness, backend

NEWER = replace(RENDER, sidecar_image="sidecar:2", token_seconds=600)


def template(harness: Harness) -> dict[str, Any]:
    pod_template: dict[str, Any] = harness.cluster.find(DEPLOYMENT, "n", "m-backend")["spec"]["template"]
    return copy.deepcopy(pod_template)


def sidecar_status(harness: Harness) -> dict[str, Any]:
    status: dict[str, Any] = harness.cluster.find(BACKEND, "n", "m")["status"]["sidecar"]
    return status


async def upgraded(harness: Harness) -> Harness:
    """A newer operator takes over: it renders another sidecar and another token volume."""
    harness.stop()
    fresh = Harness(harness.cluster, harness.clock, NEWER)
    await fresh.manager.sync()
    await fresh.run()
    return fresh


async def served() -> Harness:
    return await Harness().applied(backend())


async def test_an_upgrade_writes_one_status_and_no_deployment() -> None:
    """The template is as it was; the status says that an upgrade waits; then there is silence."""
    harness = await served()
    before = template(harness)
    assert sidecar_status(harness) == {"image": "sidecar:1"}
    harness.cluster.writes.clear()
    harness = await upgraded(harness)
    assert template(harness) == before
    assert harness.cluster.writes == [("status", "ModelBackend", "n", "m")]
    assert sidecar_status(harness) == {"image": "sidecar:1", "upgradePending": True}
    harness.cluster.writes.clear()
    harness.manager.enqueue_all()
    await harness.run()
    assert harness.cluster.writes == []
    assert harness.errors == []


async def test_a_scrape_counts_who_waits() -> None:
    """One gauge a backend: their sum is what is left of an upgrade."""

    def waiting(harness: Harness) -> list[float]:
        metrics = ResourceMetrics(harness.ctx.store, harness.ctx.reports, harness.ctx.memory.scaled)
        families = text_string_to_metric_families(metrics.text())
        return [
            sample.value
            for family in families
            if family.name == "penstock_operator_backend_upgrade_pending"
            for sample in family.samples
        ]

    harness = await served()
    assert waiting(harness) == [0.0]
    harness = await upgraded(harness)
    assert waiting(harness) == [1.0]


async def test_an_edit_is_mended_after_an_upgrade_too_and_to_the_old_sidecar() -> None:
    """The drift rule holds for what is kept."""
    harness = await served()
    before = template(harness)
    harness = await upgraded(harness)

    def edit(live: dict[str, Any]) -> None:
        live["spec"]["template"]["spec"]["initContainers"][0]["image"] = "evil:1"

    harness.cluster.edit(DEPLOYMENT, "n", "m-backend", edit)
    await harness.run()
    assert template(harness) == before


async def test_the_next_change_that_rolls_brings_the_upgrade() -> None:
    """Scaling does not; a new variable does; the drain secret stays."""
    harness = await upgraded(await served())
    before = template(harness)
    await harness.applied(backend(replicas=3))
    assert template(harness) == before
    await harness.applied(backend(replicas=3, drain={"timeout": "7s"}))
    sidecars = [each["spec"]["initContainers"][0] for each in (before, template(harness))]
    assert [container["image"] for container in sidecars] == ["sidecar:1", "sidecar:2"]
    assert sidecars[0]["env"] == sidecars[1]["env"]
    assert sidecar_status(harness) == {"image": "sidecar:2"}


async def test_upgrade_now() -> None:
    """`sidecar.upgrade: Now` brings it at once, and nothing else is needed."""
    harness = await upgraded(await served())
    await harness.applied(backend(sidecar={"upgrade": "Now"}))
    assert sidecar_status(harness) == {"image": "sidecar:2"}
    harness.cluster.writes.clear()
    await harness.applied(backend(sidecar={"upgrade": "OnNextChange"}))
    assert {verb for verb, *_ in harness.cluster.writes} <= {"status"}


async def test_a_suspended_backend_tells_what_waits_and_is_left_alone() -> None:
    """Neither kept nor upgraded: nothing is written but its status."""
    harness = await served()
    await harness.applied(backend(suspend=True, sidecar={"upgrade": "Now"}))
    before = template(harness)
    harness = await upgraded(harness)
    assert template(harness) == before
    assert sidecar_status(harness) == {"image": "sidecar:1", "upgradePending": True}
    await harness.applied(backend(sidecar={"upgrade": "Now"}))
    assert sidecar_status(harness) == {"image": "sidecar:2"}
