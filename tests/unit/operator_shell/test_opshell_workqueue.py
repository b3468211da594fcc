"""The work queue loses no addition, never gives one key to two workers, and backs off as client-go does."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock_operator.errors import cluster_error
from penstock_operator.workqueue import ShutDown, WorkQueue, work
from tests.support.clocks.hand_clock import HandClock, settle


async def take(queue: WorkQueue[str]) -> str:
    return await asyncio.wait_for(queue.get(), 30)


async def test_a_key_added_twice_is_worked_on_once() -> None:
    """Additions of a waiting key are one."""
    queue: WorkQueue[str] = WorkQueue(HandClock())
    queue.add("a")
    queue.add("a")
    assert await take(queue) == "a"
    queue.done("a")
    assert queue.idle


async def test_a_key_added_while_worked_on_comes_again_after_done_and_not_before() -> None:
    """What changed during the work is looked at again, by one worker at a time."""
    queue: WorkQueue[str] = WorkQueue(HandClock())
    queue.add("a")
    await take(queue)
    queue.add("a")
    assert len(queue) == 0
    queue.done("a")
    assert await take(queue) == "a"


async def test_keys_come_in_the_order_of_addition() -> None:
    """First in, first out."""
    queue: WorkQueue[str] = WorkQueue(HandClock())
    for key in "cab":
        queue.add(key)
    assert [await take(queue) for _ in range(3)] == ["c", "a", "b"]


async def test_backoff_doubles_from_a_tenth_of_a_second_to_thirty_seconds_and_forgets() -> None:
    """0.1 s x 2^n up to 30 s for each key by itself; a success starts afresh."""
    queue: WorkQueue[str] = WorkQueue(HandClock())
    delays = [queue.add_failed("a") for _ in range(12)]
    assert delays[:9] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6]
    assert delays[9:] == [30.0, 30.0, 30.0]
    assert queue.add_failed("b") == 0.1
    queue.forget("a")
    assert queue.add_failed("a") == 0.1


async def test_a_key_that_failed_very_often_still_has_a_backoff() -> None:
    """The exponent is bounded."""
    queue: WorkQueue[str] = WorkQueue(HandClock())
    for _ in range(5000):
        delay = queue.add_failed("a")
    assert delay == 30.0


async def test_of_several_delays_the_earliest_counts() -> None:
    """add_after never postpones."""
    clock = HandClock()
    queue: WorkQueue[str] = WorkQueue(clock)
    queue.add_after("a", 10)
    queue.add_after("a", 3)
    queue.add_after("a", 7)
    clock.turn(2.9)
    assert len(queue) == 0
    clock.turn(0.2)
    assert len(queue) == 1
    assert queue.delayed == 0
    clock.turn(20)
    assert len(queue) == 1


async def test_a_cancelled_worker_passes_its_wake_up_on() -> None:
    """A key is not left behind because the worker that was woken for it went away."""
    queue: WorkQueue[str] = WorkQueue(HandClock())
    first, second = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await settle()
    queue.add("a")
    first.cancel()
    assert await asyncio.wait_for(second, 30) == "a"
    assert first.cancelled() or (await asyncio.gather(first, return_exceptions=True))


async def test_shut_down_lets_workers_finish_what_is_queued() -> None:
    """After shut_down: the rest, then the end."""
    queue: WorkQueue[str] = WorkQueue(HandClock())
    queue.add("a")
    queue.add_after("later", 5)
    queue.shut_down()
    queue.add("b")
    assert await take(queue) == "a"
    queue.done("a")
    with pytest.raises(ShutDown):
        await queue.get()


async def test_a_worker_retries_failures_and_obeys_requests_to_look_again() -> None:
    """An exception is logged with its backoff and the key comes back; a returned number is a delay."""
    clock = HandClock()
    queue: WorkQueue[str] = WorkQueue(clock)
    seen: list[str] = []
    retries: list[tuple[str, str, float]] = []

    async def handle(key: str) -> float | None:
        seen.append(key)
        if len(seen) <= 2:
            raise RuntimeError("induced")
        return 5.0 if len(seen) == 3 else None

    task = asyncio.create_task(
        work(queue, handle, lambda key, error, delay: retries.append((key, str(error), delay)))
    )
    queue.add("a")
    await settle()
    assert retries == [("a", "induced", 0.1)]
    await clock.advance(0.1)
    assert retries[1:] == [("a", "induced", 0.2)]
    await clock.advance(0.2)
    assert seen == ["a"] * 3
    assert queue.failures("a") == 0
    await clock.advance(5)
    assert seen == ["a"] * 4
    queue.shut_down()
    await asyncio.wait_for(task, 30)


async def test_others_of_the_loop_have_a_turn_between_two_keys() -> None:
    """Also where a key's work awaits nothing: at a start thousands are found to need no change."""
    clock = HandClock()
    queue: WorkQueue[int] = WorkQueue(clock)
    for key in range(20):
        queue.add(key)
    queue.shut_down()
    order: list[int] = []

    async def handle(key: int) -> None:
        order.append(key)

    async def another() -> None:
        while 19 not in order:
            order.append(-1)
            await asyncio.sleep(0)

    other = asyncio.create_task(another())
    await work(queue, handle, lambda *_: None)
    await other
    assert all(-1 in pair for pair in itertools.pairwise(order))


async def test_a_server_that_asks_for_time_gets_it() -> None:
    """429 and 503 with Retry-After: no try before it, and never a longer wait than the longest backoff."""
    clock = HandClock()
    queue: WorkQueue[str] = WorkQueue(clock)
    delays: list[float] = []
    asked = iter((2.0, 900.0, None, None))

    async def handle(_key: str) -> float | None:
        raise cluster_error(429, "too many requests", next(asked))

    task = asyncio.create_task(work(queue, handle, lambda _key, _error, delay: delays.append(delay)))
    queue.add("a")
    await clock.advance(2)
    await clock.advance(30)
    assert delays == [2.0, 30.0, 0.4]
    queue.shut_down()
    await asyncio.wait_for(task, 30)


async def test_tenants_take_turns_and_urgent_keys_go_first() -> None:
    """A tenant with many keys delays another by one of them, and urgent keys the others by three."""
    queue: WorkQueue[str] = WorkQueue(HandClock(), tenant=lambda key: key[0])
    for key in ("a1", "a2", "a3", "a4", "b1"):
        queue.add(key)
    for key in ("c1", "c2", "c3", "c4", "a4"):
        queue.add(key, urgent=True)
    taken = [await take(queue) for _ in range(9)]
    assert taken == ["c1", "a4", "c2", "a1", "c3", "c4", "b1", "a2", "a3"]
    queue.add("a1")
    queue.add("b1", urgent=True)
    for key in taken:
        queue.done(key)
    queue.add("a2")
    assert [await take(queue) for _ in range(3)] == ["b1", "a1", "a2"]


async def test_a_tenant_whose_keys_are_slow_leaves_workers_to_others() -> None:
    """Its next key waits until one of its own is done; a shut queue ends all the same."""
    queue: WorkQueue[str] = WorkQueue(HandClock(), tenant=lambda key: key[0], most=2)
    for key in ("a1", "a2", "a3", "b1"):
        queue.add(key)
    assert [await take(queue) for _ in range(3)] == ["a1", "b1", "a2"]
    waiting = [asyncio.create_task(queue.get()) for _ in range(2)]
    await settle()
    queue.done("b1")
    queue.shut_down()
    await settle()
    assert not any(task.done() for task in waiting)
    queue.done("a2")
    assert await asyncio.wait_for(waiting[0], 30) == "a3"
    queue.done("a3")
    with pytest.raises(ShutDown):
        await asyncio.wait_for(waiting[1], 30)


class QueueMachine(RuleBasedStateMachine):
    """Any order of additions, delays, failures and workers: nothing lost, nothing twice at once."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = HandClock()
        self.queue: WorkQueue[int] = WorkQueue(self.clock, tenant=lambda key: key % 2)
        self.owed: set[int] = set()  # added since the last time that work on them began
        self.busy: set[int] = set()
        self.delayed: dict[int, float] = {}

    def teardown(self) -> None:
        while len(self.queue) or self.busy or self.delayed:
            self.clock.turn(60)
            self._fall_due()
            for key in list(self.busy):
                self.finish_one(key)
            while len(self.queue):
                self.take()
        self.loop.close()
        assert self.owed == set()

    def _fall_due(self) -> None:
        for key, when in list(self.delayed.items()):
            if when <= self.clock.time():
                del self.delayed[key]
                self.owed.add(key)

    def finish_one(self, key: int) -> None:
        self.busy.remove(key)
        self.queue.done(key)

    @rule(key=st.integers(0, 4), urgent=st.booleans())
    def add(self, key: int, urgent: bool) -> None:
        self.queue.add(key, urgent=urgent)
        self.owed.add(key)

    @rule(key=st.integers(0, 4), seconds=st.sampled_from([0.5, 1.0, 5.0]))
    def add_after(self, key: int, seconds: float) -> None:
        self.queue.add_after(key, seconds)
        when = self.clock.time() + seconds
        self.delayed[key] = min(when, self.delayed.get(key, when))

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 5.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.turn(seconds)
        self._fall_due()

    @precondition(lambda self: len(self.queue) > 0)
    @rule()
    def take(self) -> None:
        key = self.loop.run_until_complete(self.queue.get())
        assert key not in self.busy
        assert key in self.owed
        self.owed.discard(key)
        self.busy.add(key)

    @precondition(lambda self: bool(self.busy))
    @rule(failed=st.booleans(), which=st.integers(0, 4))
    def finish(self, failed: bool, which: int) -> None:
        key = sorted(self.busy)[which % len(self.busy)]
        if failed:
            when = self.clock.time() + self.queue.add_failed(key)
            self.delayed[key] = min(when, self.delayed.get(key, when))
        else:
            self.queue.forget(key)
        self.finish_one(key)

    @invariant()
    def what_is_owed_and_not_busy_waits(self) -> None:
        assert len(self.queue) == len(self.owed - self.busy)


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
