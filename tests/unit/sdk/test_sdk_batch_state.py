"""What batches in a process show: a state for debugging, metrics where prometheus_client is there."""

from __future__ import annotations

import asyncio
import threading

import prometheus_client
import pytest

import penstock
from penstock.in_process.state import BatchState


class Model:
    """Its first batch waits."""

    def __init__(self) -> None:
        self.began, self.open = asyncio.Event(), asyncio.Event()

    @penstock.batch(max_batch_size=3)
    async def run(self, items: list[int]) -> list[int]:
        self.began.set()
        await self.open.wait()
        return [1 // item for item in items]


def metrics(function: str) -> dict[str, float]:
    """The samples of one function in the process's registry."""
    samples = {}
    for family in prometheus_client.REGISTRY.collect():
        for sample in family.samples:
            if sample.labels.get("function") == function:
                samples[sample.name + sample.labels.get("le", "")] = sample.value
    return samples


async def test_a_function_shows_what_it_does_and_what_it_has_done() -> None:
    model, other = Model(), Model()
    other.open.set()
    assert BatchState() == model.run.state == Model.run.state
    assert await other.run(1) == 1
    first = asyncio.create_task(model.run(1))
    await model.began.wait()
    rest = [asyncio.create_task(model.run(item)) for item in (1, 0, 1, 1)]
    await asyncio.sleep(0)
    state = model.run.state
    assert (state.waiting, [batch.items for batch in state.batches]) == (4, [1])
    next(iter(model.run._queues._batchers.values()))._batches.copy().pop().began -= 5  # some time later
    assert model.run.state.batches[0].seconds > 4
    assert state.seconds > 0
    assert "await self.open.wait()" in state.batches[0].stack()
    assert Model.run.state.waiting == 4
    name = f"{__name__}.Model.run"
    during = metrics(name)
    assert (during["penstock_batch_waiting_calls"], during["penstock_batch_running"]) == (4, 1)
    assert during["penstock_batch_oldest_run_seconds"] > 4 > during["penstock_batch_oldest_call_seconds"] > 0
    model.open.set()
    outcomes = await asyncio.gather(first, *rest, return_exceptions=True)
    assert [isinstance(outcome, ZeroDivisionError) for outcome in outcomes] == [
        False,
        False,
        True,
        False,
        False,
    ]
    after = metrics(name)
    assert after["penstock_batch_size_sum"] == 5  # the items that were answered
    assert after["penstock_batch_size_count"] == after["penstock_batch_size_bucket+Inf"] <= 5
    assert after["penstock_batch_failed_runs_total"] >= 2
    assert after["penstock_batch_run_seconds_total"] > 0
    assert (after["penstock_batch_waiting_calls"], after["penstock_batch_oldest_run_seconds"]) == (0, 0)
    assert model.run.state == BatchState()


def test_a_batcher_shows_the_same() -> None:
    class Slow:
        def run(self, item: int) -> int:
            began.set()
            assert go.wait(30)
            return item

    began, go = threading.Event(), threading.Event()
    batcher = penstock.Batcher(Slow(), batch_size=2)
    thread = threading.Thread(target=batcher.run, args=(1,))
    thread.start()
    assert began.wait(30)
    state = batcher.state
    assert (state.waiting, [batch.items for batch in state.batches]) == (0, [1])
    assert "assert go.wait(30)" in state.batches[0].stack()
    name = f"{__name__}.{Slow.__qualname__}"
    assert metrics(name)["penstock_batch_running"] == 1
    go.set()
    thread.join()
    after = metrics(name)
    assert (after["penstock_batch_size_bucket1.0"], after["penstock_batch_running"]) == (1, 0)
    assert batcher.state == BatchState()


@pytest.mark.parametrize(
    ("items", "bound"), [(1, "1.0"), (2, "2.0"), (3, "4.0"), (4, "4.0"), (5, "8.0"), (5000, "+Inf")]
)
async def test_sizes_are_counted_in_the_bucket_that_holds_them(items: int, bound: str) -> None:
    @penstock.batch(max_batch_size=items)
    async def echo(numbers: list[int]) -> list[int]:
        return numbers

    function = echo._code.shown = f"echo of {items}"
    await asyncio.gather(*map(echo, range(items)))
    buckets = {name: value for name, value in metrics(function).items() if "_bucket" in name}
    assert next(name for name, value in buckets.items() if value) == f"penstock_batch_size_bucket{bound}"
