"""The queue: whose turn it is, what a batch holds, and that what leaves is forgotten."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_sidecar.queue.batch_limits import Limits
from penstock_sidecar.queue.key import BatchKey
from penstock_sidecar.queue.queue import AGEING, LEVELS, Queue
from penstock_sidecar.queue.request import Outcome, QueuedRequest, Slice
from penstock_wire.http import Request

ONE = BatchKey("POST", "/v1/models/m:predict", (), ())
TWO = BatchKey("POST", "/v1/models/n:predict", (), ())
KEYS = (ONE, TWO, BatchKey("POST", "/v1/models/o:predict", (), ()))
REQUEST = Request(method="POST", target="/", headers=(), body=b"")
FREE = Limits(size=4, bytes=1000)


class Asked(QueuedRequest):
    """A request whose outcome is not read."""

    __slots__ = ("__weakref__", "name")

    def finish(self, outcome: Outcome) -> None:
        raise AssertionError("the queue answers nobody")


def ask(
    name: object = 0,
    *,
    key: BatchKey = ONE,
    items: int = 1,
    arrived: float = 0.0,
    deadline: float = 30.0,
    level: int = 1,
    share: bytes = b"",
    item: bytes = b"1",
) -> Asked:
    work = Asked(
        key, REQUEST, b"id", [item] * items, (), arrived, deadline, max(deadline, 30.0), level, share
    )
    work.name = name
    return work


def names(parts: Sequence[Slice]) -> list[object]:
    return [part.work.name for part in parts if isinstance(part.work, Asked)]


def drain(queue: Queue, now: float = 0.0, limits: Limits = FREE) -> list[list[object]]:
    """All batches, as names."""
    batches = []
    while queue.items:
        key = queue.choose(now)
        assert key is not None
        batches.append(names(queue.cut(key, limits)))
    return batches


ORDERS = {
    "first come, first served, where deadlines are equal": (
        [{"name": n} for n in "abcde"],
        ["abcd", "e"],
    ),
    "the earliest deadline first": (
        [{"name": "a", "deadline": 9.0}, {"name": "b", "deadline": 3.0}, {"name": "c", "deadline": 6.0}],
        ["bca"],
    ),
    "the line with the earliest deadline first, and never two keys in a batch": (
        [
            {"name": "a", "deadline": 9.0},
            {"name": "b", "key": TWO, "deadline": 3.0},
            {"name": "c", "deadline": 2.0},
            {"name": "d", "key": TWO, "deadline": 5.0},
        ],
        ["ca", "bd"],
    ),
    "the more urgent level first, whatever the deadline": (
        [{"name": "a", "level": 2, "deadline": 1.0}, {"name": "b", "key": TWO, "level": 1, "deadline": 9.0}],
        ["b", "a"],
    ),
    "a batch is filled with less urgent ones of its key": (
        [
            {"name": "a", "level": 3, "deadline": 1.0},
            {"name": "b", "level": 2, "deadline": 2.0},
            {"name": "c", "level": 1, "deadline": 9.0},
        ],
        ["cba"],
    ),
    "levels out of range count as the nearest": (
        [{"name": "a", "level": 99}, {"name": "b", "level": LEVELS, "deadline": 31.0}, {"name": "c"}],
        ["cab"],
    ),
    "shares take turns": (
        [{"name": n, "share": b"x"} for n in "abcd"] + [{"name": n, "share": b"y"} for n in "ef"],
        ["aebf", "cd"],
    ),
    "levels go before shares": (
        [{"name": "a", "share": b"x", "level": 2}, *({"name": n, "share": b"y"} for n in "bcde")],
        ["bcde", "a"],
    ),
    "what is larger than a batch is split, and its rest goes first": (
        [{"name": "a", "items": 6}, {"name": "b"}, {"name": "c", "items": 3}],
        ["a", "ab", "c"],
    ),
    "what fits into a batch stays whole": (
        [{"name": "a", "items": 3}, {"name": "b", "items": 2}],
        ["a", "b"],
    ),
    "a batch has no more bytes than allowed; one larger item goes alone": (
        [
            {"name": "a", "item": b"x" * 600},
            {"name": "b", "item": b"x" * 600},
            {"name": "c", "item": b"x" * 2000},
        ],
        ["a", "b", "c"],
    ),
}


@pytest.mark.parametrize("title", ORDERS)
def test_order(title: str):
    asked, batches = ORDERS[title]
    queue = Queue()
    for fields in asked:
        queue.add(ask(**fields))
    assert ["".join(map(str, batch)) for batch in drain(queue)] == batches
    assert (queue.items, queue.bytes, queue.requests, queue.lines) == (0, 0, 0, {})


def test_a_request_that_must_stay_alone_is_never_cut():
    queue = Queue()
    queue.add(ask("a", key=BatchKey("POST", "/", (), (), lone=True), items=9))
    assert [part.size for part in queue.cut(next(iter(queue.lines)), FREE)] == [9]


def test_waiting_raises_by_one_level_each_ageing_seconds():
    queue = Queue()
    queue.add(ask("old", key=TWO, level=3, arrived=0.0))
    for turn, first in [(0.9, "new"), (1.0, "new"), (1.9, "new"), (2.0, "old")]:
        now = turn * AGEING
        newcomer = ask("new", key=ONE, level=1 if turn > 1.5 else 2, arrived=now, deadline=now + 30.0)
        queue.add(newcomer)
        key = queue.choose(now)
        # At the same level the earlier deadline goes first, which is the old one's.
        assert (key is TWO) == (first == "old" or turn == 1.0), turn
        queue.leave(newcomer)


@given(
    levels=st.integers(2, LEVELS),
    flood=st.integers(1, 3),
    service=st.floats(0.01, 2.0),
)
@settings(deadline=None)
def test_nobody_starves_under_a_flood_of_urgent_requests(levels: int, flood: int, service: float):
    """The least urgent goes once it has aged to the top and those with earlier deadlines are through."""
    queue = Queue()
    limits = Limits(size=flood, bytes=1000)
    queue.add(ask("poor", level=levels, key=TWO, deadline=100.0))
    now = 0.0
    while queue.requests:
        for _ in range(flood):
            queue.add(ask("rich", arrived=now, deadline=now + 100.0))
        key = queue.choose(now)
        assert key is not None
        if "poor" in names(queue.cut(key, limits)):
            break
        now += service
    assert now <= (levels - 1) * AGEING + service


@pytest.mark.long
@given(
    weights=st.lists(st.integers(1, 6), min_size=2, max_size=6),
    size=st.integers(1, 16),
    keys=st.integers(1, 3),
)
@settings(deadline=None)
def test_shares_that_always_have_work_get_equal_items(weights: list[int], size: int, keys: int):
    """However many items a request of theirs has, and whatever their keys."""
    queue = Queue()
    limits = Limits(size=size, bytes=10_000)
    served = dict.fromkeys(range(len(weights)), 0)
    arrived = 0.0
    for _ in range(120):
        for index, weight in enumerate(weights):
            for number in range(size // weight + 1):
                arrived += 1e-6
                queue.add(
                    ask(
                        index,
                        items=weight,
                        key=KEYS[(index + number) % keys],
                        share=b"%d" % index,
                        arrived=arrived,
                        deadline=arrived + 30.0,
                    )
                )
        key = queue.choose(0.0)
        assert key is not None
        for part in queue.cut(key, limits):
            served[part.work.name] += part.size  # type: ignore[attr-defined]
    # One line can serve only those who are in it: a batch's size for each is the price of never mixing keys.
    assert max(served.values()) - min(served.values()) <= 2 * max(*weights, size)


def test_an_idle_share_saves_nothing_up():
    queue = Queue()
    for number in range(100):
        queue.add(ask(f"x{number}", share=b"x", items=4))
    for _ in range(50):
        queue.cut(ONE, FREE)
    for number in range(50):
        queue.add(ask(f"y{number}", share=b"y", items=4))
    batches = [names(queue.cut(ONE, FREE))[0] for _ in range(20)]
    assert 9 <= sum(str(name).startswith("y") for name in batches) <= 11


def test_memory_of_shares_is_bounded():
    queue = Queue()
    queue.add(ask("stays", key=TWO, items=1, deadline=1e9))
    for number in range(5000):
        queue.add(ask(share=b"%d" % number, items=4, deadline=float(number)))
        queue.cut(ONE, FREE)
    assert len(queue._flows) <= 1100
    assert len(queue._groups) <= 3
    assert sum(len(ranking._heap) for ranking in queue._levels) < 300


@pytest.mark.long
@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("deadlines", [(30.0, 30.0, 30.0), (30.0, 20.0, 10.0)], ids=["in order", "reversed"])
def test_what_leaves_is_forgotten_at_once(level: int, deadlines: tuple[float, ...]):
    """However few they are: each may hold a body of many megabytes."""
    queue = Queue()
    works = [ask(number, deadline=due, level=level) for number, due in enumerate(deadlines)]
    for work in works:
        queue.add(work)
    alive = [weakref.ref(work) for work in works]
    queue.leave(works[1])
    queue.leave(works[2])
    queue.leave(works[2])
    del works[1:], work
    gc.collect()
    assert [ref() is not None for ref in alive] == [True, False, False]
    queue.cut(ONE, FREE)
    del works
    gc.collect()
    assert [ref() for ref in alive] == [None, None, None]


@given(st.lists(st.tuples(st.integers(0, 99), st.booleans()), max_size=400))
@settings(deadline=None)
def test_memory_stays_in_proportion_to_the_living(steps: list[tuple[int, bool]]):
    queue = Queue()
    waiting: list[Asked] = []
    for deadline, leaves in steps:
        if leaves and waiting:
            queue.leave(waiting.pop(deadline % len(waiting)))
        else:
            waiting.append(ask(deadline=float(deadline)))
            queue.add(waiting[-1])
        subqueue = next(iter(queue.lines.values())).common if queue.lines else None
        assert subqueue is None or subqueue.held <= max(130, 3 * len(waiting) + 1)


# Dropping


def test_the_head_is_dropped_while_its_batch_would_end_too_late_and_others_wait():
    queue = Queue()
    for number in range(6):
        queue.add(ask(number, deadline=1.0 + number))
    dropped: list[QueuedRequest] = []
    # A batch of n ends at 2.5 + n/4.
    parts = queue.cut(ONE, FREE, lambda items: 2.5 + items / 4, dropped)
    # 1, 2, 3 are before 3.5; with three left the batch would end at 3.25.
    assert names(parts) == [3, 4, 5]
    assert [work.name for work in dropped] == [0, 1, 2]  # type: ignore[attr-defined]
    assert not any(work.queued for work in dropped)
    assert queue.items == 0


def test_the_last_that_waits_is_run_however_late():
    queue = Queue()
    for number in range(5):
        queue.add(ask(number, deadline=1.0 + number))
    dropped: list[QueuedRequest] = []
    assert names(queue.cut(ONE, FREE, lambda _: 1e9, dropped)) == [4]
    assert len(dropped) == 4


def test_a_line_that_is_too_late_leaves_the_slot_to_another():
    queue = Queue()
    queue.add(ask("late", deadline=1.0))
    queue.add(ask("fine", key=TWO, deadline=9.0))
    dropped: list[QueuedRequest] = []
    assert queue.cut(ONE, FREE, lambda _: 2.0, dropped) == []
    assert [work.name for work in dropped] == ["late"]  # type: ignore[attr-defined]
    assert queue.choose(0.0) is TWO


# What waits before an arrival

AHEAD = {
    "all, where its deadline is the latest": ([{"deadline": 5.0}] * 4, {"deadline": 6.0}, 4),
    "none, where it is past": ([{"deadline": 5.0}] * 4, {"deadline": 0.0}, 0),
    "in proportion between": ([{"deadline": float(n)} for n in range(1, 11)], {"deadline": 5.0}, 5),
    "only what is as urgent": ([{"level": 1}, {"level": 2}, {"level": 3}], {"level": 2}, 2),
    "only what is more urgent": ([{"level": 2}, {"level": 3}], {"level": 1}, 0),
    "each share's part": ([{"share": b"x"}] * 9 + [{"share": b"y"}] * 2, {"share": b"y"}, 4),
    "nothing for a new share": ([{"share": b"x"}] * 9, {"share": b"z"}, 0),
}


@pytest.mark.parametrize("title", AHEAD)
def test_ahead(title: str):
    waiting, fields, ahead = AHEAD[title]
    queue = Queue()
    for other in waiting:
        queue.add(ask(**other))
    assert queue.ahead(ask(**fields)) == (ahead, min(ahead, 1))
    drain(queue)
    assert queue.ahead(ask(**fields)) == (0, 0)


# Against a model that looks at everything


class Plain:
    """The order in words, over a plain list; levels without shares."""

    def __init__(self) -> None:
        self.works: list[tuple[int, Asked]] = []
        self.count = 0

    def add(self, work: Asked) -> None:
        self.count += 1
        self.works.append((self.count, work))

    def order(self, now: float, key: BatchKey | None = None) -> list[Asked]:
        def rank(entry: tuple[int, Asked]) -> tuple[int, float]:
            work = entry[1]
            level = max(1, work.level - int((now - work.arrived) / AGEING + 1e-9))
            return level, work.deadline

        return [work for _, work in sorted(self.works, key=rank) if key is None or work.key is key]

    def remove(self, work: QueuedRequest) -> None:
        self.works = [entry for entry in self.works if entry[1] is not work]


STEP = st.one_of(
    st.tuples(
        st.just("add"),
        st.integers(0, 2),
        st.integers(1, 6),
        st.integers(0, 40),
        st.integers(1, 3),
    ),
    st.tuples(st.just("leave"), st.integers(0, 50)),
    st.tuples(st.just("cut"), st.integers(1, 5)),
    st.tuples(st.just("wait"), st.integers(1, 5)),
    st.tuples(st.just("rekey")),
)


@given(st.lists(STEP, max_size=60))
@settings(deadline=None, max_examples=200)
def test_it_does_what_a_plain_list_would(steps: list[tuple]):
    """Of equal rank any may go first; a batch is never over size, never of two keys, and none is lost."""
    queue, plain, now = Queue(), Plain(), 0.0
    for kind, *values in steps:
        if kind == "add":
            key, items, deadline, level = values
            # Whole numbers that differ: ties are another test's.
            work = ask(
                plain.count,
                key=KEYS[key],
                items=items,
                arrived=now,
                deadline=deadline + plain.count / 1000,
                level=level,
            )
            queue.add(work)
            plain.add(work)
        elif kind == "leave" and plain.works:
            work = plain.works[values[0] % len(plain.works)][1]
            queue.leave(work)
            plain.remove(work)
        elif kind == "wait":
            now += values[0] * AGEING / 2
        elif kind == "rekey":
            queue.rekey(lambda _: None)
        elif kind == "cut":
            limits = Limits(size=values[0], bytes=1000)
            key = queue.choose(now)
            order = plain.order(now)
            assert (key is None) == (not order)
            if key is None:
                continue
            assert key is order[0].key
            before = {work: work.left for work in order}
            parts = queue.cut(key, limits)
            assert 0 < sum(part.size for part in parts) <= limits.size
            expected = plain.order(now, key)[: len(parts)]
            assert [part.work for part in parts] == expected
            for part in parts:
                assert part.size == before[part.work] or len(parts) == 1  # type: ignore[index]
                if not part.work.queued:
                    plain.remove(part.work)
        assert queue.requests == len(plain.works)
        assert queue.items == sum(work.left for _, work in plain.works)
        assert queue.bytes == sum(work.bytes_left for _, work in plain.works)
        assert {work.name for work in queue} == {work.name for _, work in plain.works}  # type: ignore[attr-defined]
        assert all(line.requests for line in queue.lines.values())
        first = queue.first()
        assert (first and first.deadline) == min((work.deadline for _, work in plain.works), default=None)
