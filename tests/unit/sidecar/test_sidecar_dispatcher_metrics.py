"""The gauges of the real dispatcher while it works: ages, time to drain, times waited."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import UNSET
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from penstock_sidecar.metrics import Metrics
from tests.support.models.scripted_model import Scripted

pytestmark = pytest.mark.usefixtures("sending")


def shown(metrics: Metrics) -> dict[str, float]:
    """The samples without labels, as a scrape has them."""
    return {
        sample.name.removeprefix("penstock_sidecar_"): sample.value
        for family in text_string_to_metric_families(generate_latest(metrics).decode())
        for sample in family.samples
        if not sample.labels
    }


async def test_a_scrape_tells_the_age_of_the_oldest_and_the_time_until_all_are_through() -> None:
    """Batches of 4 that take 1 s each; zero while nothing waits, else the drain takes as long as shown."""
    s = Scripted(base=1.0, max_batch_size=4)
    metrics = s.metrics
    metrics.show(s.dispatcher)
    for start in range(0, 80, 4):  # what the pace is learned from
        await asyncio.gather(*[s.ask(number) for number in range(start, start + 4)])
    idle = shown(metrics)
    assert (idle["oldest_age_seconds"], idle["drain_seconds"]) == (0.0, 0.0)

    begun = s.loop.time()
    first = [s.ask(number) for number in range(4)]
    await asyncio.sleep(0.25)
    waiting = [s.ask(number) for number in range(12)]
    await asyncio.sleep(0.5)
    values = shown(metrics)
    assert values["oldest_age_seconds"] == pytest.approx(0.5)
    assert values["drain_seconds"] == pytest.approx(3.0, rel=0.01)
    assert (values["queued_items"], values["ongoing_items"]) == (12, 4)
    await asyncio.gather(*first, *waiting)
    # From the next free slot on it took as long as shown.
    assert s.loop.time() - (begun + 1.0) == pytest.approx(values["drain_seconds"], rel=0.01)
    done = shown(metrics)
    assert (done["oldest_age_seconds"], done["drain_seconds"]) == (0.0, 0.0)
    # The twelve left in fours, 0.75, 1.75 and 2.75 s after they came; no other request waited.
    assert done["wait_seconds_sum"] - idle["wait_seconds_sum"] == pytest.approx(21.0)
    assert done["wait_seconds_count"] - idle["wait_seconds_count"] == 16


async def test_a_slot_more_halves_the_time_until_all_are_through() -> None:
    """And the age is that of the oldest of all lines."""
    s = Scripted(base=1.0, max_batch_size=2, max_concurrent_batches=2)
    for start in range(0, 40, 2):
        await asyncio.gather(s.ask(start), s.ask(start + 1))
    running = [s.ask(number) for number in range(4)]
    await asyncio.sleep(0.1)
    lines = [s.ask(number, target=f"/{number % 3}") for number in range(6)]
    await asyncio.sleep(0.3)
    lines += [s.ask(number, target="/late") for number in range(2)]
    assert s.dispatcher.oldest_age == pytest.approx(0.3)
    await asyncio.sleep(0)
    assert s.dispatcher.drain_seconds == pytest.approx(2.0, rel=0.01)
    await asyncio.gather(*running, *lines)


async def test_a_wait_for_nobody_is_shown_as_the_sidecars_own():
    """Nobody but a caller that asks again when it is answered: the knob is overridden."""
    s = Scripted(base=0.001, max_batch_size=32, batch_wait_timeout_ms=20)
    s.metrics.show(s.dispatcher)
    assert b"penstock_sidecar_batch_wait_limit_seconds 0.02\n" in generate_latest(s.metrics)
    for _ in range(50):
        await s.ask("again")
        if s.dispatcher.batch_wait < 0.02:
            break
    assert s.dispatcher.batch_wait == pytest.approx(0.0005)


async def test_reports_count_items_by_what_they_cost_where_that_decides() -> None:
    """What waits, what runs and what arrived; and as before where items cost the same."""
    s = Scripted(base=1.0, max_batch_size=4)
    first, dispatcher = s.ask("a"), s.dispatcher
    assert (dispatcher.work, s.metrics.totals(batches=0, batch_items=0).arrived_work) == (None, UNSET)
    await first
    (cls,) = dispatcher.pace.latency_model.lines(s.loop.time())
    for number in range(200):  # half of the items are 9 times as long
        long = number % 2 == 0
        cost = 4 * (90 if long else 10)
        dispatcher.pace.latency_model.observe(s.loop.time(), cls, 4, 1e-3 * cost, cost, cost // 4)
    assert dispatcher.pace.latency_model.by_cost
    asked = [s.ask("x" * 88)]
    await asyncio.sleep(0.5)
    asked += [s.ask("x" * 8) for _ in range(4)]
    await asyncio.sleep(0.1)
    assert (dispatcher.ongoing, dispatcher.queued) == (1, 4)
    load = dispatcher.pace.latency_model.load
    long, short = load(cls, 1, 90, 90), load(cls, 1, 10, 10)
    assert long > 4 * short
    assert dispatcher.work == pytest.approx(long + 4 * short)
    s.metrics.arrived(4)
    for work in dispatcher.queue:
        dispatcher.arrived(work)
    beyond = dispatcher.counts.work_beyond
    assert beyond == pytest.approx(4 * short - 4)
    totals = s.metrics.totals(batches=0, batch_items=0, work_beyond=beyond)
    assert totals.arrived_work == pytest.approx(4 * short)
    await asyncio.gather(*asked)
    assert dispatcher.work == 0.0
