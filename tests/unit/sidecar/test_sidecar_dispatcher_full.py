"""A full queue through the whole dispatcher: which request is refused, which is evicted, and both errors."""

from __future__ import annotations

import asyncio
import json

import pytest

from penstock_sidecar.admission.controller import MAX_QUEUED_BYTES
from penstock_sidecar.queue.request import Outcome
from penstock_wire.control.settings import Batching, Fairness, Priority
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.http import Response
from tests.support.models.scripted_model import Asked, Scripted, got

pytestmark = pytest.mark.usefixtures("sending")

TENANTS = Fairness(header="x-tenant")
URGENCY = Priority(levels=2, default=2)


async def refused(task: asyncio.Task[Outcome]) -> PenstockError:
    """The refusal of one that had its place in the queue."""
    outcome = await task
    assert isinstance(outcome, PenstockError)
    return outcome


async def later(s: Scripted, item: object, **fields: str) -> asyncio.Task[Outcome]:
    """One more request, a moment after the last one."""
    task = s.ask(item, **fields)
    await asyncio.sleep(0.01)
    return task


async def test_a_share_that_fills_the_queue_gives_way_to_those_that_have_less():
    s = Scripted(max_batch_size=1, max_queued_items=4, fairness=TENANTS)
    ongoing = s.ask("ongoing", x_tenant="flood")
    await asyncio.sleep(0.1)
    flood = [await later(s, number, x_tenant="flood") for number in range(4)]
    with pytest.raises(PenstockError) as caught:
        await s.ask("more", x_tenant="flood")
    others = [s.ask("a", x_tenant="a"), s.ask("b", x_tenant="b")]
    await asyncio.sleep(0.1)
    assert s.dispatcher.queued == 4
    for task in flood[2:]:
        error = await refused(task)
        # As the one that found no room, but for the words; nothing of it was executed.
        for each in (error, caught.value):
            assert (each.reason, each.status, each.not_admitted) == (Reason.QUEUE_FULL, 503, True)
            assert each.retry_after == 1.0
    assert [got(await task) for task in (ongoing, *flood[:2], *others)] == [
        ["ongoing"],
        [0],
        [1],
        ["a"],
        ["b"],
    ]
    assert not {2, 3} & {item for batch in s.batches() for item in batch}


async def test_a_share_within_its_part_is_always_served_while_another_sends_ten_times_what_the_model_can_do():
    s = Scripted(base=0.1, max_batch_size=2, max_queued_items=8, fairness=TENANTS)
    modest, flood = [], []
    for number in range(600):
        flood.append(s.ask(number, x_tenant="flood"))
        if number % 20 == 0:
            modest.append(s.ask(number, x_tenant="modest"))
        await asyncio.sleep(0.005)
    outcomes = await asyncio.gather(*modest, return_exceptions=True)
    assert [got(outcome) for outcome in outcomes] == [[n] for n in range(0, 600, 20)]  # type: ignore[arg-type]
    rest = await asyncio.gather(*flood, return_exceptions=True)
    assert sum(isinstance(each, Response) for each in rest) > 20


async def test_two_shares_that_both_send_too_much_are_served_alike():
    s = Scripted(base=0.1, max_batch_size=2, max_queued_items=6, fairness=TENANTS)
    asked: dict[str, list[asyncio.Task[Outcome]]] = {"much": [], "more": []}
    for number in range(400):
        for _ in range(4):
            asked["more"].append(s.ask(number, x_tenant="more"))
        asked["much"].append(s.ask(number, x_tenant="much"))
        await asyncio.sleep(0.01)
    served = {}
    for tenant, tasks in asked.items():
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        served[tenant] = sum(isinstance(outcome, Response) for outcome in outcomes)
    assert abs(served["much"] - served["more"]) <= 4
    assert sum(served.values()) >= 80


async def test_the_less_urgent_give_way_to_the_urgent_the_newest_first():
    s = Scripted(max_batch_size=1, max_queued_items=2, priority=URGENCY)
    ongoing = s.ask("ongoing")
    await asyncio.sleep(0.1)
    old, new = await later(s, "old"), await later(s, "new")
    urgent = s.ask("urgent", x_penstock_priority="1")
    error = await refused(new)
    assert (error.reason, error.not_admitted) == (Reason.QUEUE_FULL, True)
    with pytest.raises(PenstockError):
        await s.ask("newer")
    assert [got(await task) for task in (ongoing, urgent, old)] == [["ongoing"], ["urgent"], ["old"]]
    assert s.batches() == [["ongoing"], ["urgent"], ["old"]]


async def test_a_request_of_which_a_part_is_with_the_model_keeps_its_place():
    s = Scripted(max_batch_size=2, max_queued_items=4, priority=URGENCY)
    large = s.ask(*range(6))
    await asyncio.sleep(0.1)
    with pytest.raises(PenstockError):
        await s.ask("urgent", x_penstock_priority="1")
    assert got(await large) == list(range(6))


async def test_nobody_gives_way_to_one_that_could_not_be_answered_in_time():
    s = Scripted(base=1.0, max_batch_size=1, max_queued_items=2, priority=URGENCY)
    for number in range(3):
        await s.ask(number)
    waiting = [s.ask("ongoing"), s.ask(1), s.ask(2)]
    await asyncio.sleep(0.1)
    with pytest.raises(PenstockError) as caught:
        await s.ask("too late", timeout=1.5, x_penstock_priority="1")
    assert caught.value.reason is Reason.DEADLINE
    assert [got(await task) for task in waiting] == [["ongoing"], [1], [2]]


async def test_whoever_leaves_before_it_hears_that_it_gave_way_is_told_nothing():
    s = Scripted(max_batch_size=1, max_queued_items=1, priority=URGENCY)
    ongoing = s.ask("ongoing")
    await asyncio.sleep(0.1)
    low = s.ask("low")
    await asyncio.sleep(0.1)
    urgent = s.work("urgent", x_penstock_priority="1")
    urgent.future = s.loop.create_future()
    s.dispatcher.accept(urgent)
    low.cancel()
    assert got(await urgent.future) == ["urgent"]
    assert got(await ongoing) == ["ongoing"]
    assert low.cancelled()
    assert Asked.twice == []


async def test_a_change_of_policy_counts_for_those_that_wait_already():
    s = Scripted(max_batch_size=1, max_queued_items=2)
    tasks = [await later(s, number, x_tenant="flood") for number in range(3)]
    with pytest.raises(PenstockError):
        await s.ask("a", x_tenant="a")
    s.apply(Batching(max_batch_size=1, max_queued_items=2, fairness=TENANTS))
    light = s.ask("a", x_tenant="a")
    assert (await refused(tasks[2])).reason is Reason.QUEUE_FULL
    s.apply(Batching(max_batch_size=1, max_queued_items=2))
    with pytest.raises(PenstockError):
        await s.ask("b", x_tenant="b")
    assert [got(await task) for task in (*tasks[:2], light)] == [[0], [1], ["a"]]


class TestBytes:
    """What waits is bounded in bytes, too, whatever its number."""

    def large(self, s: Scripted, length: int, **fields: str) -> Asked:
        """A request of so many bytes, which are not there; it must never be sent."""
        work = s.work(1, **fields)
        work.items, work.bytes_left = [range(length)], length
        work.future = s.loop.create_future()
        return work

    async def test_waiting_items_are_bounded_in_bytes(self):
        s = Scripted(base=8.0, max_batch_size=2)
        await s.ask(0)
        ongoing = s.ask(0)
        await asyncio.sleep(0.1)
        waiting = [self.large(s, MAX_QUEUED_BYTES // 4) for _ in range(4)]
        for work in waiting:
            s.dispatcher.accept(work)
        with pytest.raises(PenstockError) as caught:
            s.dispatcher.accept(self.large(s, 1))
        error = caught.value
        assert (error.reason, error.status, error.not_admitted) == (Reason.QUEUE_FULL, 503, True)
        assert f"{MAX_QUEUED_BYTES} bytes" in json.loads(error.response(request_id="x").body)["detail"]
        assert error.retry_after == pytest.approx(16.0)  # half of four batches of 8 s
        s.dispatcher.leave(waiting.pop())
        smaller = self.large(s, MAX_QUEUED_BYTES // 4 - 1)
        s.dispatcher.accept(smaller)
        s.dispatcher.refuse_queued(PenstockError(Reason.DRAINING, "enough", not_admitted=True))
        assert got(await ongoing) == [0]

    async def test_one_larger_than_all_of_it_is_taken_where_nobody_waits(self):
        s = Scripted()
        ongoing = s.ask(0)
        await asyncio.sleep(0.1)
        work = self.large(s, 2 * MAX_QUEUED_BYTES)
        s.dispatcher.accept(work)
        assert s.dispatcher.queued == 1
        s.dispatcher.refuse_queued(PenstockError(Reason.DRAINING, "enough", not_admitted=True))
        await ongoing

    async def test_a_share_that_fills_the_bytes_gives_way(self):
        s = Scripted(max_batch_size=1, max_queued_items=100, fairness=TENANTS)
        ongoing = s.ask(0)
        await asyncio.sleep(0.1)
        waiting = []
        for _ in range(4):
            waiting.append(self.large(s, MAX_QUEUED_BYTES // 4, x_tenant="flood"))
            s.dispatcher.accept(waiting[-1])
            await asyncio.sleep(0.1)
        s.dispatcher.accept(self.large(s, 1000, x_tenant="a"))
        outcome = await waiting[-1].future
        assert isinstance(outcome, PenstockError)
        assert (outcome.reason, outcome.not_admitted) == (Reason.QUEUE_FULL, True)
        assert s.dispatcher.queued == 4
        s.dispatcher.refuse_queued(PenstockError(Reason.DRAINING, "enough", not_admitted=True))
        await ongoing
