"""The whole dispatcher holds a slot for callers who ask again, says so, and gives way to deadlines."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from prometheus_client import generate_latest

from penstock_wire.control.settings import Batching, Fairness, Priority
from penstock_wire.http import Response
from tests.support.models.scripted_model import Run, Scripted

pytestmark = pytest.mark.usefixtures("sending")


async def callers(
    s: Scripted, count: int, times: int, *, apart: float = 0.001, **options: Any
) -> list[float]:
    """So many, who ask again a tenth of a batch's time after they were answered; their latencies."""
    latencies: list[float] = []

    async def caller(number: int) -> None:
        await asyncio.sleep(0.5 * (number % 2))  # two cohorts
        for _ in range(times):
            begun = s.loop.time()
            outcome = await s.ask(number, **options)
            assert isinstance(outcome, Response)
            if outcome.stream is not None:
                assert [json.loads(piece) async for piece in outcome.stream] == [{"got": number}]
            latencies.append(s.loop.time() - begun)
            await asyncio.sleep(0.1 + apart * number)

    await asyncio.gather(*[caller(number) for number in range(count)])
    return latencies


async def test_two_cohorts_become_one_and_the_saved_calls_are_counted():
    s = Scripted()
    s.metrics.show(s.dispatcher)
    latencies = await callers(s, 4, 60)
    sizes = [len(items) for items in s.batches()]
    assert sizes[2:8] == [2] * 6
    assert sizes[-20:-4] == [4] * 16
    assert sorted(latencies)[len(latencies) // 2] == pytest.approx(1.0, abs=0.01)
    counts = s.dispatcher.counts
    assert 40 <= counts.saved_calls <= counts.merged_batches <= counts.held_batches <= len(sizes)
    # From the first who is back to the last, 3 ms; once longer, which merged the cohorts.
    assert counts.held_seconds == pytest.approx(0.003 * counts.held_batches, abs=0.5)
    shown = generate_latest(s.metrics).decode()
    assert f"penstock_sidecar_saved_calls_total {float(counts.saved_calls)}" in shown
    assert f"penstock_sidecar_held_batches_total {float(counts.held_batches)}" in shown


@pytest.mark.parametrize(
    ("fields", "policy"),
    [
        ({"accept": "application/x-ndjson"}, {}),
        ({"x_penstock_priority": "3"}, {"priority": Priority(levels=3, default=2)}),
        ({}, {"fairness": Fairness(header="x-tenant")}),
        ({}, {"on_batch_error": "Isolate", "latency_objective_ms": 10_000}),
    ],
    ids=["streams", "priority", "fairness", "objective"],
)
async def test_callers_of_all_kinds_are_waited_for(fields: dict[str, str], policy: dict[str, Any]):
    """Half of them with other fields than the rest, where the policy looks at these."""
    s = Scripted(**policy)
    other = dict.fromkeys(fields, "1") if "priority" in policy else fields
    tenants = ("1", "2") if "fairness" in policy else ("1", "1")
    each = [
        callers(s, 2, 60, x_tenant=tenant, **chosen)
        for tenant, chosen in zip(tenants, (fields, other), strict=True)
    ]
    await asyncio.gather(*each)
    counts = s.dispatcher.counts
    assert 0 < counts.saved_calls <= counts.merged_batches <= counts.held_batches
    assert [len(items) for items in s.batches()][-20:-4] == [4] * 16


@pytest.mark.parametrize(("timeout", "most"), [(30.0, 0.31), (2.1, 0.101), (2.04, 0.041)])
async def test_a_hold_gives_way_to_deadlines(timeout: float, most: float):
    """Twice a batch's time is left before the deadline; else it lasts until the last is back."""
    s = Scripted()
    await callers(s, 4, 30, apart=0.1)
    counts = s.dispatcher.counts
    assert counts.held_batches > 10
    seconds, batches = counts.held_seconds, counts.held_batches
    latencies = await callers(s, 4, 30, apart=0.1, timeout=timeout)
    assert max(latencies) <= timeout
    assert counts.held_seconds - seconds <= most * (counts.held_batches - batches) + 1e-6


async def test_zero_is_no_hold_and_a_change_is_heeded():
    s = Scripted(batch_wait_timeout_ms=0)
    await callers(s, 4, 30)
    assert s.dispatcher.counts.held_batches == 0
    assert s.dispatcher.batch_wait == 0.0
    assert {len(items) for items in s.batches()} == {2}
    s.apply(Batching())
    await callers(s, 4, 30)
    held = s.dispatcher.counts.held_batches
    assert held > 10
    s.apply(Batching(batch_wait_timeout_ms=0))
    await callers(s, 4, 30)
    assert s.dispatcher.counts.held_batches == held


async def test_a_users_wait_bounds_a_hold():
    """0.2 ms are too short for those who are back after 100."""
    s = Scripted()
    s.apply(Batching(batch_wait_timeout_ms=1))
    await callers(s, 4, 60)
    assert {len(items) for items in s.batches()[8:-4]} == {2}
    assert s.dispatcher.counts.held_seconds <= 0.001 * s.dispatcher.counts.batches + 1e-6


async def test_a_bad_request_among_those_who_were_waited_for_fails_alone():
    """Isolation runs in the slot of the merged batch, and those whom it answers are waited for again."""

    def behave(run: Run) -> Response | None:
        return Response(status=400, body=b"bad") if 3 in run.items else None

    s = Scripted(behaviour=behave)
    outcomes: list[tuple[int, int]] = []

    async def caller(number: int) -> None:
        for _ in range(40):
            outcome = await s.ask(number)
            assert isinstance(outcome, Response)
            outcomes.append((number, outcome.status))
            await asyncio.sleep(0.1)

    await asyncio.gather(*[caller(number) for number in range(4)])
    assert {status for number, status in outcomes if number == 3} == {400}
    assert {status for number, status in outcomes if number != 3} == {200}
