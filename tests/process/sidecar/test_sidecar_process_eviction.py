"""A full queue of a real sidecar under fairness or levels: who is refused, and who is served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.sidecar_process import HELD, Pair, Reply, got

ROOM = 4
Fill = Callable[..., Awaitable[tuple[Pair, list[asyncio.Task[Reply]]]]]


@pytest.fixture
async def fill(tmp_path: Path) -> AsyncIterator[Fill]:
    """A pair whose model is held by the first request, and whose queue is full of the others."""
    pairs: list[Pair] = []

    async def begin(headers: dict[str, str], **batching: Any) -> tuple[Pair, list[asyncio.Task[Reply]]]:
        pair = Pair(tmp_path)
        pairs.append(pair)
        await pair.start(maxBatchSize=1, maxQueuedItems=ROOM, defaultTimeoutMs=600_000, **batching)
        asked = [asyncio.create_task(pair.predict("ongoing", path=HELD, headers=headers))]
        await pair.until_state(ongoing=1)
        for number in range(ROOM):
            asked.append(asyncio.create_task(pair.predict(number, headers=headers)))
            await pair.until_state(queued=number + 1)
        return pair, asked

    yield begin
    for pair in pairs:
        await pair.stop()


def check_refused(reply: Reply) -> None:
    """It got an error at once: the queue is full, and it was not executed."""
    assert (reply.status, reply.reason) == (503, "queue_full")
    assert "x-penstock-not-admitted" in reply.headers


async def items_run(pair: Pair) -> list[Any]:
    """What the model ran, in order."""
    return [item for run in await pair.runs() for item in run["items"]]


async def test_a_tenant_that_fills_the_queue_is_refused_and_another_is_served(fill: Fill):
    """Its newest give way, until each has its half of the room; beyond that the other is refused, too."""
    heavy, light = {"x-tenant": "heavy"}, {"x-tenant": "light"}
    pair, asked = await fill(heavy, fairness={"header": "x-tenant"})
    for _ in range(5):
        check_refused(await pair.predict("more", headers=heavy))
    served = [asyncio.create_task(pair.predict(name, headers=light)) for name in ("a", "b")]
    for evicted in asked[3:]:
        check_refused(await evicted)
    check_refused(await pair.predict("c", headers=light))
    await pair.until_state(queued=ROOM)
    await pair.release()
    assert [got(await task) for task in served] == [["a"], ["b"]]
    assert [got(await task) for task in asked[:3]] == [["ongoing"], [0], [1]]
    assert sorted(map(str, await items_run(pair))) == ["0", "1", "a", "b", "ongoing"]


async def test_the_urgent_have_the_places_of_the_others_in_a_full_queue(fill: Fill):
    """All of them, the newest first; an urgent one is refused when all that wait are as urgent."""
    urgent = {"x-penstock-priority": "1"}
    # NB: the last of many levels: who waits for 5 s rises by one.
    pair, asked = await fill({}, priority={"levels": 8, "default": 8})
    check_refused(await pair.predict("more"))
    served = []
    for number in range(ROOM):
        served.append(asyncio.create_task(pair.predict(f"urgent {number}", headers=urgent)))
        check_refused(await asked.pop())
    check_refused(await pair.predict("urgent, too many", headers=urgent))
    await pair.release()
    assert [got(await task) for task in served] == [[f"urgent {number}"] for number in range(ROOM)]
    (ongoing,) = asked
    assert got(await ongoing) == ["ongoing"]
    assert set(await items_run(pair)) == {"ongoing", *(f"urgent {number}" for number in range(ROOM))}
