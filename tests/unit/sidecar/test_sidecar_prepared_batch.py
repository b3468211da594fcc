"""The next batch is drawn up while the model has another: nobody may tell, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_sidecar.queue.batch_limits import Limits
from penstock_sidecar.queue.prepared_batch import MAX_BYTES
from penstock_sidecar.queue.queue import AGEING, Queue
from penstock_sidecar.queue.request import Key, Outcome, QueuedRequest, Slice
from penstock_sidecar.queue.structures import KeyQueue
from penstock_wire.control.settings import Batching
from penstock_wire.headers import REQUEST_ID, get
from penstock_wire.http import Request
from tests.support import fake_loop
from tests.support.scripted_model import Scripted, got

KEYS = tuple(Key("POST", f"/v1/models/{name}:predict", (), ()) for name in "mn")
REQUEST = Request(method="POST", target="/", headers=(), body=b"")


class Asked(QueuedRequest):
    """A request whose outcome nobody asks for; its `number` is also its twin's."""

    __slots__ = ("number",)

    def finish(self, outcome: Outcome) -> None:
        raise AssertionError("the queue answers nobody")


def ask(
    number: int, *, line: int = 0, items: int = 1, due: float = 30.0, level: int = 1, at: float = 0.0
) -> Asked:
    work = Asked(KEYS[line], REQUEST, b"id", [b"1" * (1 + number % 3)] * items, (), at, due, due + 5.0, level)
    work.number = number
    return work


def held(parts: list[Slice]) -> list[tuple[int, int, int, bool]]:
    return [
        (part.work.number, part.start, part.size, part.whole)
        for part in parts
        if isinstance(part.work, Asked)
    ]


def numbers(works: list[QueuedRequest]) -> list[int]:
    return [work.number for work in works if isinstance(work, Asked)]


def state(queue: Queue) -> list[object]:
    works = sorted(
        (work.number, work.taken, work.bytes_left, work.parts) for work in queue if isinstance(work, Asked)
    )
    lines: dict[Key, KeyQueue] = queue.lines
    counts = sorted((key.target, line.items, line.bytes, line.requests) for key, line in lines.items())
    return [works, counts, queue.items, queue.bytes, queue.requests]


EVENT = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 4)),
    st.tuples(st.just("odd"), st.integers(0, 2**32)),
    st.tuples(st.just("leave"), st.integers(0, 50)),
    st.tuples(st.just("rekey"), st.just(0)),
    st.tuples(st.just("wait"), st.integers(1, 9)),
)
LIMITS = st.builds(Limits, size=st.sampled_from((2, 3, 3, 7)), bytes=st.sampled_from((4, 100, 100, 100)))
ROUND = st.tuples(
    st.integers(0, 8),
    LIMITS,
    st.lists(EVENT, max_size=2),
    st.none() | st.none() | LIMITS,
    st.sampled_from((0.0, 0.0, 0.0, 10.0)),
)
"""What comes, what is drawn up, what happens then, what else is cut if it is, seconds that an item takes."""


class Twins:
    """Two queues that get the same; one draws up."""

    def __init__(self) -> None:
        self.both = (Queue(), Queue())
        self.waiting: dict[int, tuple[Asked, Asked]] = {}
        self.now = 0.0
        self.count = 0

    def add(self, **fields: Any) -> None:
        self.count += 1
        pair = (ask(self.count, at=self.now, **fields), ask(self.count, at=self.now, **fields))
        self.waiting[self.count] = pair
        for queue, work in zip(self.both, pair, strict=True):
            queue.add(work)

    def happens(self, kind: str, value: int) -> None:
        if kind == "add":  # in order, as nearly all come
            for _ in range(value):
                self.add(due=self.now + 30.0 + self.count / 1000, items=2 if self.count % 5 == 4 else 1)
        elif kind == "odd":
            chance = random.Random(value)
            line, level, items = (
                chance.choice((0, 0, 1)),
                chance.choice((1, 1, 2)),
                chance.choice((1, 2, 4, 5)),
            )
            self.add(due=self.now + chance.randint(1, 40), line=line, level=level, items=items)
        elif kind == "leave" and self.waiting:
            pair = self.waiting.pop(sorted(self.waiting)[value % len(self.waiting)])
            for queue, work in zip(self.both, pair, strict=True):
                queue.leave(work)
        elif kind == "rekey":
            for queue in self.both:
                queue.rekey(lambda _: None)
        elif kind == "wait":
            self.now += value * AGEING / 4
        self.check()

    def cut(self, limits: Limits, slow: float) -> bool:
        """Whether it was a draft that was cut."""
        key, same = (queue.choose(self.now, limits).key for queue in self.both)
        assert key is same
        if key is None:
            return False
        prepared, now = self.both[0].prepared, self.now
        found, gone = [], []
        for queue in self.both:
            dropped: list[QueuedRequest] = []
            found.append(queue.cut(key, limits, lambda items: now + slow * items, dropped))
            gone.append(numbers(dropped))
        assert held(found[0]) == held(found[1])
        assert gone[0] == gone[1]
        for number in gone[0] + numbers([part.work for part in found[0] if not part.work.queued]):
            del self.waiting[number]
        self.check()
        return prepared is not None and found[0] is prepared.parts

    def check(self) -> None:
        drawing, plain = self.both
        assert state(drawing) == state(plain)
        assert all(work.queued for work in drawing)


def test_a_queue_that_draws_up_cuts_what_one_that_does_not_would() -> None:
    """And comes to use what it drew up, without which this would say nothing."""
    used = 0

    @given(st.lists(ROUND, max_size=12))
    @settings(max_examples=200)
    def check(rounds: list[tuple[int, Limits, list[tuple[str, int]], Limits | None, float]]) -> None:
        nonlocal used
        twins = Twins()
        for comes, limits, events, other, slow in rounds:
            twins.happens("add", comes)
            twins.both[0].prepare_next(limits.size, limits.bytes)
            for kind, value in events:
                twins.happens(kind, value)
            used += twins.cut(other or limits, slow)

    check()
    assert used > 50


def test_the_rest_of_a_large_request_is_not_drawn_up() -> None:
    """It is not whole: what a draft holds is."""
    queue = Queue()
    for number, items in enumerate((5, 1, 1, 1, 1, 1)):
        queue.add(ask(number, items=items))
    assert held(queue.cut(KEYS[0], Limits(size=3, bytes=100))) == [(0, 0, 3, False)]
    assert queue.prepare_next(7, 100) is None
    rest = held(queue.cut(KEYS[0], Limits(size=7, bytes=100)))
    assert rest == [(0, 3, 2, False), *[(number, 0, 1, True) for number in range(1, 6)]]


def test_a_line_whose_plain_requests_have_left_is_not_drawn_up() -> None:
    """Those with a level rise as they wait, which a draft would not let them do."""
    queue = Queue()
    first = ask(0)
    for work in (first, *[ask(number, level=2) for number in range(1, 5)]):
        queue.add(work)
    queue.leave(first)
    assert queue.prepare_next(2, 100) is None
    limits = Limits(size=2, bytes=100)
    for now, expected in ((1.0, [1, 2]), (AGEING + 1.0, [3, 4])):
        assert queue.choose(now, limits).key is KEYS[0]
        assert [number for number, *_ in held(queue.cut(KEYS[0], limits))] == expected


def test_what_is_large_is_not_copied_beforehand() -> None:
    """A draft that somebody's leaving makes useless would have cost more than it saves."""
    queue = Queue()
    for number in range(2):
        work = Asked(KEYS[0], REQUEST, b"id", [bytes(MAX_BYTES // 2 + 1)], (), 0.0, 30.0, 30.0)
        work.number = number
        queue.add(work)
    assert queue.prepare_next(2, 10 * MAX_BYTES) is None


Meanwhile = Callable[[Scripted, list["asyncio.Task[Outcome]"]], Awaitable[list[list[int]]]]


async def nothing(_s: Scripted, _tasks: list[asyncio.Task[Outcome]]) -> list[list[int]]:
    return [[2, 3], [4, 5]]


async def one_leaves(_s: Scripted, tasks: list[asyncio.Task[Outcome]]) -> list[list[int]]:
    tasks[3].cancel()
    await asyncio.sleep(0.1)
    return [[2, 4], [5]]


async def an_urgent_one_comes(s: Scripted, tasks: list[asyncio.Task[Outcome]]) -> list[list[int]]:
    tasks.append(s.ask(6, timeout=8.0))
    await asyncio.sleep(0.1)
    return [[6, 2], [3, 4], [5]]


async def batches_become_larger(s: Scripted, _tasks: list[asyncio.Task[Outcome]]) -> list[list[int]]:
    s.apply(Batching(max_batch_size=3))
    await asyncio.sleep(0.1)
    return [[2, 3, 4], [5]]


async def all_are_of_other_keys(s: Scripted, tasks: list[asyncio.Task[Outcome]]) -> list[list[int]]:
    s.apply(Batching(max_batch_size=2, batch_key_headers=("x-tenant",)))
    await asyncio.sleep(0.1)
    return [[2], [3], [4], [5]]


@pytest.mark.parametrize(
    "meanwhile", [nothing, one_leaves, an_urgent_one_comes, batches_become_larger, all_are_of_other_keys]
)
def test_what_happens_meanwhile_counts(meanwhile: Meanwhile) -> None:
    """A draft binds nobody: who leaves is not sent, who is more urgent goes first, settings are obeyed."""

    async def main() -> None:
        s = Scripted(base=1.0, max_batch_size=2)
        tasks = [s.ask(number, x_tenant=str(number)) for number in range(6)]
        await asyncio.sleep(0.5)
        prepared = s.dispatcher.queue.prepared
        assert prepared is not None
        assert prepared.body == b'{"instances":[2,3]}'
        batches = await meanwhile(s, tasks)
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert s.batches() == [[0, 1], *batches]
        for number, answer in enumerate(answers):
            assert isinstance(answer, asyncio.CancelledError) or got(answer) == [number]  # type: ignore[arg-type]
        ids = [get(run.request.headers, REQUEST_ID) for run in s.runs]
        assert all(
            told is not None and told.count(b",") == len(run.items) - 1
            for told, run in zip(ids, s.runs, strict=True)
        )
        await s.close()

    fake_loop.run(main())
