"""Each knob changes at run time, both ways, in effect at the next arrival or cut; what runs goes on."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock_sidecar.queue.request import Outcome
from penstock_wire.control.settings import Batching, Fairness
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.http import Response
from tests.support.clocks import fake_loop
from tests.support.models.scripted_model import Run, Scripted, got

pytestmark = pytest.mark.usefixtures("sending")

Change = Callable[[], None]


async def ended(asked: asyncio.Task[Outcome]) -> Any:
    """What a caller sees: items, the model's status, or reason and status of a refusal."""
    try:
        outcome = await asked
    except PenstockError as error:
        outcome = error
    if isinstance(outcome, PenstockError):
        return outcome.reason.value, outcome.status
    return got(outcome) if outcome.status == 200 else outcome.status


async def arrives_behind_one_that_runs(s: Scripted, change: Change) -> Any:
    """An answer is 1.9 s away."""
    change()
    return await ended(s.ask("late"))


async def waits_for_long(s: Scripted, change: Change) -> Any:
    change()
    s.base = 10.0
    begun = s.loop.time()
    return await ended(s.ask("slow")), round(s.loop.time() - begun)


async def third_in_the_queue(s: Scripted, change: Change) -> Any:
    waiting = [s.ask(number) for number in range(2)]
    await fake_loop.settle()
    change()
    third = await ended(s.ask("third"))
    assert [await ended(task) for task in waiting] == [[0], [1]], "who was let in stays"
    return third


async def one_of_two_is_bad(s: Scripted, change: Change) -> Any:
    tasks = [s.ask("bad"), s.ask("good")]
    await fake_loop.settle()
    change()
    return [await ended(task) for task in tasks]


async def one_tenant_came_first(s: Scripted, change: Change) -> Any:
    tasks = [s.ask(f"a{number}", x_tenant="a") for number in range(3)] + [s.ask("b", x_tenant="b")]
    await fake_loop.settle()
    change()
    await asyncio.gather(*tasks)
    return s.batches()[-4:]


async def four_of_four_bytes(s: Scripted, change: Change) -> Any:
    tasks = [s.ask(number) for number in (1000, 1001, 1002, 1003)]
    await fake_loop.settle()
    change()
    await asyncio.gather(*tasks)
    return [len(batch) for batch in s.batches() if batch[0] in range(1000, 1004)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A knob at two values, and what each shows; `common` is the rest of the policy."""

    look: Callable[[Scripted, Change], Awaitable[Any]]
    before: dict[str, Any]
    other: dict[str, Any]
    seen: tuple[Any, Any]
    common: dict[str, Any] = dataclasses.field(default_factory=dict)


CASES = {
    "latencyObjective": Case(
        look=arrives_behind_one_that_runs,
        before={"latency_objective_ms": None},
        other={"latency_objective_ms": 1500},
        seen=(["late"], ("deadline", 503)),
        common={"max_batch_size": 1},
    ),
    "defaultTimeout": Case(
        look=waits_for_long,
        before={"default_timeout_ms": 30_000},
        other={"default_timeout_ms": 4_000},
        seen=((["slow"], 11), (("deadline", 504), 4)),
        common={"max_batch_size": 1},
    ),
    "maxQueuedItems": Case(
        look=third_in_the_queue,
        before={"max_queued_items": 3},
        other={"max_queued_items": 2},
        seen=(["third"], ("queue_full", 503)),
        common={"max_batch_size": 1},
    ),
    "onBatchError": Case(
        look=one_of_two_is_bad,
        before={"on_batch_error": "Isolate"},
        other={"on_batch_error": "Fail"},
        seen=([400, ["good"]], [("batch_failed", 502)] * 2),
    ),
    "fairness": Case(
        look=one_tenant_came_first,
        before={"fairness": None},
        other={"fairness": Fairness(header="x-tenant")},
        seen=([["a0"], ["a1"], ["a2"], ["b"]], [["a0"], ["b"], ["a1"], ["a2"]]),
        common={"max_batch_size": 1},
    ),
    "maxBatchBytes": Case(
        look=four_of_four_bytes,
        before={"max_batch_bytes": 1000},
        other={"max_batch_bytes": 8},
        seen=([4], [2, 2]),
    ),
    "maxBatchCost": Case(
        look=four_of_four_bytes,
        before={},
        other={"max_batch_cost": 8},
        seen=([4], [2, 2]),
    ),
}


def behave(run: Run) -> Response | None:
    return Response(status=400, body=b"bad") if "bad" in run.items else None


@pytest.mark.parametrize("back", [False, True], ids=["there", "back"])
@pytest.mark.parametrize("knob", CASES)
async def test_a_knob_that_is_turned_is_in_effect_at_the_next_arrival_or_cut(knob: str, back: bool):
    case = CASES[knob]
    first, second = (case.other, case.before) if back else (case.before, case.other)
    seen = case.seen[::-1] if back else case.seen

    async def look(policy: dict[str, Any], change: dict[str, Any] | None) -> Any:
        s = Scripted(base=1.0, behaviour=behave, **{**case.common, **policy})
        for number in range(3):
            await s.ask(number)  # now it knows how long a batch takes
        running = s.ask("runs")
        await asyncio.sleep(0.1)

        def turn() -> None:
            if change is not None:
                s.apply(Batching(**{**case.common, **change}))

        result = await case.look(s, turn)
        assert got(await running) == ["runs"], "what runs is not disturbed"
        assert s.dispatcher.alive
        await s.close()
        return result

    assert await look(first, None) == seen[0], "the policy that it begins with"
    assert await look(first, second) == seen[1], "the one that it is told in between"


@pytest.mark.parametrize("knob", ["latency_objective_ms", "default_timeout_ms"])
async def test_a_request_keeps_the_deadline_that_it_was_accepted_with(knob: str):
    s = Scripted(base=2.0, max_batch_size=1)
    for number in range(2):
        await s.ask(number)
    tasks = [s.ask("runs"), s.ask("waits")]
    await asyncio.sleep(0.1)
    s.apply(Batching(max_batch_size=1, **{knob: 1000}))
    assert [got(await task) for task in tasks] == [["runs"], ["waits"]]
    assert s.work(1).deadline == s.loop.time() + 1.0


class TestChanges:
    async def test_a_policy_is_in_effect_at_the_next_cut_and_disturbs_nothing(self):
        s = Scripted(max_batch_size=8)
        tasks = [s.ask(i) for i in range(4)]
        await asyncio.sleep(0.5)
        tasks += [s.ask(i) for i in range(4, 10)]
        await asyncio.sleep(0.1)
        s.apply(Batching(max_batch_size=2, max_concurrent_batches=2))
        assert not s.dispatcher.pace.latency_model.alone
        await asyncio.gather(*tasks)
        assert s.batches() == [[0, 1, 2, 3], [4, 5], [6, 7], [8, 9]]
        # The second slot is there at once, beside the batch that was cut before.
        assert [round(run.begun - 1000, 3) for run in s.runs] == [0, 0.6, 1, 1.6]

    async def test_fewer_slots_wait_for_what_is_ongoing(self):
        s = Scripted(max_batch_size=1, max_concurrent_batches=3)
        tasks = [s.ask(i) for i in range(6)]
        await asyncio.sleep(0.5)
        s.apply(Batching(max_batch_size=1, max_concurrent_batches=1))
        await asyncio.gather(*tasks)
        assert [round(run.begun - 1000, 3) for run in s.runs] == [0, 0, 0, 1, 2, 3]

    async def test_new_key_headers_part_what_is_queued_already(self):
        s = Scripted()
        tasks = [s.ask(0)]
        await asyncio.sleep(0.1)
        tasks += [s.ask(i, x_tenant=str(i % 2)) for i in range(1, 5)]
        await asyncio.sleep(0.1)
        s.apply(Batching(batch_key_headers=("x-tenant",)))
        await asyncio.gather(*tasks)
        assert s.batches() == [[0], [1, 3], [2, 4]]
        assert s.runs[1].fields[b"x-tenant"] == b"1"

    async def test_refusing_the_queued_marks_those_that_surely_did_not_run(self):
        s = Scripted(max_batch_size=2)
        split = s.ask(*range(6))
        await asyncio.sleep(0.1)
        waiting = s.ask(9)
        await asyncio.sleep(0.1)
        error = PenstockError(Reason.DRAINING, "leaving", not_admitted=True)
        s.dispatcher.refuse(error)
        assert s.dispatcher.refuse_queued(error) == 2
        outcomes = [await split, await waiting]
        assert [isinstance(o, PenstockError) and o.not_admitted for o in outcomes] == [False, True]
        with pytest.raises(PenstockError):
            await s.ask(10)
        await s.dispatcher.idle()
        assert s.batches() == [[0, 1]]
