"""The queue by default: as many items as are answered within a deadline, by what batches take."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from penstock_wire.control.settings import MOST_QUEUED, UNKNOWN_QUEUE, Batching
from penstock_wire.errors import PenstockError, Reason
from tests.support.clocks import fake_loop
from tests.support.models.scripted_model import Scripted
from tests.support.processes.sidecar_process import Pair

Start = Callable[..., Awaitable[Pair]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    pairs: list[Pair] = []

    async def begin(*flags: str, model: tuple[str, ...] = (), **batching: Any) -> Pair:
        pairs.append(Pair(tmp_path, *flags, model_flags=model))
        return await pairs[-1].start(**batching)

    yield begin
    for pair in pairs:
        await pair.stop()


@pytest.mark.parametrize(
    ("batching", "slots", "answered", "limit"),
    [
        (Batching(), 1, 0.0, UNKNOWN_QUEUE),
        (Batching(max_batch_size=256), 2, 0.0, 8 * 256 * 2),
        (Batching(), 1, 9_600.5, 9_600),
        (Batching(), 4, 9_600.0, 38_400),
        (Batching(), 1, 10.0, 8 * 32),
        (Batching(), 4, 1e9, MOST_QUEUED),
        (Batching(max_batch_size=4096), 64, 1e9, 8 * 4096 * 64),
        (Batching(max_queued_items=7), 4, 9_600.0, 7),
        (Batching(max_queued_items=0), 1, 0.0, 0),
    ],
)
def test_the_limit(batching: Batching, slots: int, answered: float, limit: int):
    assert batching.queue_limit(slots, answered) == limit


def test_it_is_what_the_deadline_holds_and_follows_the_model_and_the_policy():
    async def main():
        s = Scripted(base=0.5, max_batch_size=10)
        assert s.dispatcher.queue_limit == UNKNOWN_QUEUE
        for n in range(30):
            await s.ask(n)
        # 10 items in 0.5 s and a twentieth: 19 a second, for 30 s.
        assert s.dispatcher.queue_limit == pytest.approx(571, abs=2)
        s.apply(Batching(max_batch_size=10, max_concurrent_batches=4))
        assert s.dispatcher.queue_limit == pytest.approx(4 * 571, abs=8)
        s.apply(Batching(max_batch_size=10, default_timeout_ms=10_000))
        assert s.dispatcher.queue_limit == pytest.approx(190, abs=2)
        s.apply(Batching(max_batch_size=10, latency_objective_ms=5_000))
        assert s.dispatcher.queue_limit == pytest.approx(95, abs=2)
        s.apply(Batching(max_batch_size=10, max_queued_items=3))
        assert s.dispatcher.queue_limit == 3
        s.apply(Batching(max_batch_size=10))
        s.dispatcher.model_changed(loaded=True, gone=True)
        assert s.dispatcher.queue_limit == UNKNOWN_QUEUE
        await s.close()

    fake_loop.run(main())


@pytest.mark.parametrize(("base", "most"), [(0.1, 3_000), (1.0, 300)])
def test_whoever_is_taken_in_is_answered_and_the_rest_is_refused_at_once(base: float, most: int):
    """A burst of far more than the model answers in time: no client waits in vain."""

    async def main():
        s = Scripted(base=base, max_batch_size=10)
        for n in range(20):
            await s.ask(n)
        begun = s.loop.time()

        async def ask(n: int) -> str:
            try:
                outcome = await s.ask(n)
            except PenstockError as error:
                return f"{error.status} after {s.loop.time() - begun} s"
            return type(outcome).__name__

        outcomes = Counter(await asyncio.gather(*(ask(n) for n in range(5_000))))
        assert set(outcomes) == {"Response", "503 after 0.0 s"}
        assert 0.9 * most <= outcomes["Response"] <= most
        await s.close()

    fake_loop.run(main())


def test_a_model_of_which_nothing_is_known_holds_a_burst_and_no_more_than_that():
    async def main():
        s = Scripted(base=5.0)
        asked = [s.ask(n) for n in range(UNKNOWN_QUEUE + 40)]
        await asyncio.sleep(1.0)
        full = [task for task in asked if task.done()]
        # 32 are with the model and 1024 wait.
        assert len(full) == 8
        for task in full:
            error = task.exception()
            assert isinstance(error, PenstockError)
            assert error.reason is Reason.QUEUE_FULL
        await asyncio.gather(*asked, return_exceptions=True)
        await s.close()

    fake_loop.run(main())


async def test_a_burst_of_two_hundred_clients_with_two_items_each_is_answered_from_the_start(start: Start):
    """Before the first batch was ever answered, and then again: 400 items, where 256 could wait before."""
    pair = await start(model=("--base-ms=20",))
    body = {"instances": [1, 2]}
    for _ in range(3):
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def ask(session: aiohttp.ClientSession = session) -> int:
                async with session.post(pair.data + "/v1/models/m:predict", json=body) as answer:
                    await answer.read()
                    return answer.status

            statuses = await asyncio.gather(*(ask() for _ in range(200)))
        assert statuses == [200] * 200
    shown = (await pair.admin_get("/settings")).document["batching"]["maxQueuedItems"]
    # 32 items in some 20 ms: far more than before, and no more than 30 s of them.
    assert 10_000 < shown < 50_000
