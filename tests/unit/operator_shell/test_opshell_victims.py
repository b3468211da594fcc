"""Before replicas fall the least busy pods are annotated, whichever client lowered them."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_operator.desired.labels import DELETION_COST
from penstock_operator.kinds import BACKEND, DEPLOYMENT, POD
from tests.support.worlds.memory_cluster import failing
from tests.support.worlds.operator_harness import Harness, backend, settings

WRITE = ("annotate", "Pod", "n")


async def three_pods(*loads: int, **spec: Any) -> Harness:
    """A backend of three ready pods of these loads."""
    harness = await Harness().applied(backend(replicas=3, **spec))
    for pod, load in zip(harness.pods_ready("m-backend", 3), loads, strict=False):
        harness.report("m", pod, version=settings(harness)["version"], load=load)
    await harness.run()
    harness.cluster.writes.clear()
    return harness


def costs(harness: Harness) -> list[str | None]:
    pods = [harness.cluster.find(POD, "n", f"m-backend-{number}") for number in range(3)]
    return [(pod["metadata"].get("annotations") or {}).get(DELETION_COST) for pod in pods]


def replicas(harness: Harness) -> int:
    return int(harness.cluster.find(DEPLOYMENT, "n", "m-backend")["spec"]["replicas"])


async def test_the_least_busy_pod_is_named_before_the_deployment_is_written() -> None:
    harness = await three_pods(7, 2, 9)
    harness.cluster.scale(BACKEND, "n", "m", 2)
    await harness.run()
    assert costs(harness) == [None, "-1", None]
    order = [write for write in harness.cluster.writes if write[1] in ("Pod", "Deployment")]
    assert order == [(*WRITE, "m-backend-1"), ("apply", "Deployment", "n", "m-backend")]


async def test_a_pod_with_one_long_item_is_not_the_least_busy() -> None:
    """Pods whose items differ in cost report what these cost."""
    harness = await three_pods(7, 1, 9)
    harness.report("m", "m-backend-1", version=settings(harness)["version"], load=1, work=50.0)
    harness.cluster.scale(BACKEND, "n", "m", 2)
    await harness.run()
    assert costs(harness) == ["-1", None, None]


@pytest.mark.parametrize("wanted", [3, 4, 0])
async def test_no_pod_is_written_without_a_choice(wanted: int) -> None:
    """At rest, at an increase, and where all go."""
    harness = await three_pods(7, 2, 9)
    harness.cluster.scale(BACKEND, "n", "m", wanted)
    await harness.run()
    assert replicas(harness) == wanted
    assert [write for write in harness.cluster.writes if write[1] == "Pod"] == []


async def test_the_mark_of_an_earlier_decrease_that_spared_the_pod_goes() -> None:
    """It was taken back before the pod went; the pod has got busy since."""
    harness = await three_pods(7, 2, 9)
    for number in (2, 3):
        harness.cluster.scale(BACKEND, "n", "m", number)
        await harness.run()
    harness.report("m", "m-backend-1", version=settings(harness)["version"], load=50)
    harness.cluster.scale(BACKEND, "n", "m", 2)
    await harness.run()
    assert costs(harness) == ["-1", None, None]


async def test_a_pod_that_is_not_ready_goes_first_and_no_other_is_named() -> None:
    harness = await three_pods(7, 2, 9)
    harness.cluster.edit(POD, "n", "m-backend-2", lambda pod: pod["status"].update(conditions=[]))
    harness.cluster.scale(BACKEND, "n", "m", 2)
    await harness.run()
    assert costs(harness) == [None, None, None]


@pytest.mark.parametrize("status", [403, 404, 409, 503])
async def test_replicas_fall_although_a_pod_cannot_be_named(status: int) -> None:
    """An installation without the right; a pod that went meanwhile; an apiserver with other troubles."""
    harness = await three_pods(7, 2, 9)

    def fail(verb: str, *_: str) -> None:
        if verb == "annotate":
            raise failing(status)

    harness.cluster.fail = fail
    harness.cluster.scale(BACKEND, "n", "m", 1)
    await harness.run()
    assert replicas(harness) == 1
    assert harness.errors == []


async def test_a_new_operator_knows_what_the_last_one_marked() -> None:
    harness = await three_pods(7, 2, 9)
    harness.cluster.scale(BACKEND, "n", "m", 2)
    await harness.run()
    fresh = await harness.restart()
    for number, load in enumerate((7, 2, 9)):
        fresh.report("m", f"m-backend-{number}", version=settings(fresh)["version"], load=load)
    fresh.cluster.scale(BACKEND, "n", "m", 3)
    await fresh.run()
    fresh.cluster.writes.clear()
    fresh.cluster.scale(BACKEND, "n", "m", 2)
    await fresh.run()
    assert [write for write in fresh.cluster.writes if write[1] == "Pod"] == []
