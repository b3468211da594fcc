"""A tenant whose backends are many, slow and broken slows nobody."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock_operator.errors import Unavailable
from penstock_operator.kinds import DEPLOYMENT, Kind
from tests.support.clocks.hand_clock import settle
from tests.support.clocks.waiting import until
from tests.support.worlds.operator_harness import WORKERS, Harness, backend, endpoint

BROKEN = 100


async def test_many_broken_backends_slow_nobody() -> None:
    """While their writes hang, and while they fail, a new one elsewhere waits for a few of them at most."""
    harness, gate, tried = Harness(), asyncio.Event(), 0
    written: dict[str, int] = {}
    apply = harness.cluster.apply

    async def broken(kind: Kind, obj: dict[str, Any]) -> dict[str, Any]:
        nonlocal tried
        await asyncio.sleep(0)
        if obj["metadata"]["namespace"] == "broken":
            tried += 1
            await gate.wait()  # as behind a webhook that does not answer
            raise Unavailable(503, "failed calling webhook")
        if kind is DEPLOYMENT:
            written[obj["metadata"]["name"]] = tried
        return await apply(kind, obj)

    harness.cluster.apply = broken  # type: ignore[method-assign]
    for number in range(BROKEN):
        harness.apply(_in(backend(f"b-{number}"), "broken"))
    task = asyncio.create_task(harness.manager.run(WORKERS))
    await settle()
    assert 0 < tried < WORKERS

    async def tried_before(name: str) -> int:
        before = tried
        harness.apply(backend(name))
        await until(lambda: f"{name}-backend" in written)
        return written[f"{name}-backend"] - before

    assert await tried_before("while-they-hang") == 0
    gate.set()
    assert await tried_before("while-they-fail") < 5 * WORKERS
    harness.clock.turn(60)
    assert await tried_before("while-they-are-tried-again") < 5 * WORKERS
    task.cancel()


async def test_an_operator_that_starts_looks_first_at_what_was_changed_meanwhile() -> None:
    """Not after all that it only compares: that takes a minute with thousands of backends."""
    harness = Harness()
    for number in range(20):
        harness.apply(_in(backend(), f"n-{number}"))
        harness.apply(_in(endpoint(), f"n-{number}"))
    await harness.run()
    harness.stop()
    harness.cluster.user_applies(_in(endpoint("new"), "n-11"))
    harness.cluster.user_applies(_in(backend(batching={"maxBatchSize": 3}), "n-12"))
    fresh = Harness(harness.cluster, harness.clock)
    await fresh.manager.sync()
    first = [await fresh.manager.queue.get() for _ in range(6)]  # others have some turns, too
    assert {(key.kind, key.namespace, key.name) for key in first} >= {
        ("ModelEndpoint", "n-11", "new"),
        ("ModelBackend", "n-12", "m"),
        ("Router", "n-11", "penstock-router"),
        ("SharedRouter", "", "penstock-shared-router"),
    }


def _in(obj: dict[str, Any], namespace: str) -> dict[str, Any]:
    return obj | {"metadata": obj["metadata"] | {"namespace": namespace}}
