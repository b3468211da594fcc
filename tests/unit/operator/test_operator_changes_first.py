"""What users have changed is in effect before statuses are written."""

from __future__ import annotations

from penstock_operator.kinds import BACKEND
from tests.support.worlds.operator_harness import Harness, backend, settings

NAMES = [f"m-{number}" for number in range(6)]


async def test_while_changes_wait_their_settings_are_written_and_statuses_follow() -> None:
    harness = await Harness().applied(*(backend(name) for name in NAMES))
    harness.cluster.writes.clear()
    for name in NAMES:
        harness.apply(backend(name, batching={"maxBatchSize": 7}))
    while any(
        settings(harness, f"{name}-backend-settings")["batching"]["maxBatchSize"] != 7 for name in NAMES
    ):
        await harness.step(harness.manager.queue, harness.manager.reconcile)
    written = [verb for verb, kind, *_ in harness.cluster.writes if kind == BACKEND.kind and verb == "status"]
    assert len(written) <= 2  # of the others' turn after three urgent ones
    await harness.run()
    for name in NAMES:
        stored = harness.cluster.find(BACKEND, "n", name)
        assert stored["status"]["observedGeneration"] == stored["metadata"]["generation"] == 2
    assert not harness.errors


async def test_a_status_waits_for_no_more_than_three_changes_of_others() -> None:
    """However many come: one turn of four is for what is not urgent."""
    harness = await Harness().applied(*(backend(name) for name in NAMES))
    harness.apply(backend(NAMES[0], batching={"maxBatchSize": 7}))
    for turn in range(12):
        for name in NAMES[1:]:
            harness.apply(backend(name, batching={"maxBatchSize": 8 + turn}))
        await harness.step(harness.manager.queue, harness.manager.reconcile)
    stored = harness.cluster.find(BACKEND, "n", NAMES[0])
    assert stored["status"]["observedGeneration"] == 2


async def test_the_status_of_what_changes_again_and_again_is_written() -> None:
    harness = await Harness().applied(*(backend(name) for name in NAMES))
    shown = set()
    for turn in range(24):
        for name in NAMES:
            harness.apply(backend(name, batching={"maxBatchSize": 8 + turn}))
        await harness.step(harness.manager.queue, harness.manager.reconcile)
        shown |= {
            (name, generation)
            for name in NAMES
            if (generation := harness.cluster.find(BACKEND, "n", name)["status"]["observedGeneration"]) > 1
        }
    assert {name for name, _ in shown} == set(NAMES)
