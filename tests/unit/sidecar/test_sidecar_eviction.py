"""A full queue where levels or shares matter: who gives way, to whom, and who never does."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_sidecar.queue.batch_limits import Limits
from penstock_sidecar.queue.eviction import ITEMS
from penstock_sidecar.queue.key import BatchKey
from penstock_sidecar.queue.queue import AGEING, Queue
from penstock_sidecar.queue.request import Outcome, QueuedRequest
from penstock_wire.http import Request

KEYS = tuple(BatchKey("POST", f"/{name}", (), ()) for name in "ab")
REQUEST = Request(method="POST", target="/", headers=(), body=b"")
SPACE = 10**9


class Asked(QueuedRequest):
    """A request whose outcome is not read."""

    __slots__ = ("name",)

    name: object

    def finish(self, outcome: Outcome) -> None:
        raise AssertionError("the queue answers nobody")


def ask(
    name: object = 0,
    *,
    key: BatchKey = KEYS[0],
    items: int = 1,
    length: int = 1,
    arrived: float = 0.0,
    level: int = 1,
    share: bytes = b"",
) -> Asked:
    work = Asked(key, REQUEST, b"id", [b"x" * length] * items, (), arrived, 60.0, 60.0, level, share)
    work.name = name
    return work


def filled(*fields: dict[str, Any]) -> Queue:
    """A queue of requests that came one after the other, named by their place."""
    queue = Queue(evicting=True)
    for number, each in enumerate(fields):
        queue.add(ask(number, **{"arrived": float(number) / 100, **each}))
    return queue


def gives_way(queue: Queue, work: Asked, limit: int, space: int = SPACE) -> list[object]:
    return [each.name for each in queue.evict_for(work, 1.0, limit=limit, space=space)]  # type: ignore[attr-defined]


A, B, C = {"share": b"a"}, {"share": b"b"}, {"share": b"c"}
LOW, HIGH = {"level": 2}, {"level": 1}


@pytest.mark.parametrize(
    ("waiting", "comes", "limit", "gone"),
    [
        ([A, A, A, A], B, 4, [3]),
        ([A, A, A, B], B, 4, [2]),
        ([A, A, B, B], B, 4, []),
        ([A, A, B, B], C, 4, [1]),
        ([A, A, A, A], A, 4, []),
        ([{}, {}, {}, {}], B, 4, [3]),
        ([A, A, A, A], {}, 4, [3]),
        ([A, A, A, A], {**B, "items": 2}, 4, [3, 2]),
        ([A, A, A, A], {**B, "items": 3}, 4, []),
        ([A, B, C], {"share": b"d"}, 3, []),
        ([A, {**A, "items": 3}], B, 4, [1]),
        ([LOW, LOW, HIGH, HIGH], HIGH, 4, [1]),
        ([HIGH, HIGH, HIGH, HIGH], LOW, 4, []),
        ([LOW, LOW, LOW], LOW, 3, []),
        ([LOW, {"level": 3}, LOW], HIGH, 3, [1]),
        ([LOW, {"level": 3}, LOW], {**HIGH, "items": 2}, 3, [1, 2]),
        ([LOW, HIGH, HIGH], {**HIGH, "items": 2}, 3, []),
        ([{**A, **LOW}, {**A, **LOW}, {**B, **LOW}], {**A, **HIGH}, 3, [1]),
        ([{**A, **HIGH}, {**A, **HIGH}, {**A, **LOW}], {**B, **LOW}, 3, []),
        ([{**A, **HIGH}, {**B, **LOW}, {**B, **LOW}], {**A, **LOW}, 3, [2]),
        # Another policy lets fewer wait: no request is evicted for that, one place is one for another.
        ([A, A, A, A], B, 2, [3]),
        ([A, A, A], B, 9, []),
    ],
)
def test_who_gives_way(waiting: list[dict[str, Any]], comes: dict[str, Any], limit: int, gone: list[int]):
    queue = filled(*waiting)
    before = queue.items
    assert gives_way(queue, ask(**comes, arrived=1.0), limit) == gone
    assert queue.requests == len(waiting) - len(gone)
    if not gone:
        assert queue.items == before


def test_without_levels_and_shares_nobody_gives_way():
    queue = Queue()
    for number in range(4):
        queue.add(ask(number, level=2))
    assert not queue.can_evict(1, b"", 1.0, ITEMS, 1, 4)
    assert gives_way(queue, ask(), 4) == []


def test_bytes_count_for_themselves():
    """A share with few large requests gives way where bytes are short, however many items others have."""
    queue = filled({**A, "length": 50}, {**A, "length": 40}, *[B] * 10)
    assert gives_way(queue, ask(share=b"b", length=20), 1000, space=100) == [1]
    assert gives_way(queue, ask(share=b"a", length=60), 1000, space=100) == []


def test_a_request_of_which_a_part_was_cut_stays():
    queue = filled({**A, "items": 6})
    queue.cut(KEYS[0], Limits(size=4, bytes=1000))
    assert gives_way(queue, ask(share=b"b"), 2) == []
    queue.add(ask("whole", share=b"a", arrived=0.5))
    assert gives_way(queue, ask(share=b"b"), 3) == ["whole"]
    queue.rekey(lambda _: None, evicting=True)
    assert gives_way(queue, ask(share=b"b"), 2) == []
    assert queue.items == 2


def test_who_cannot_have_all_that_it_needs_takes_nothing():
    """What stays makes the rest too little, which only shows on the way."""
    queue = filled({**LOW, "items": 6}, LOW, LOW)
    queue.cut(KEYS[0], Limits(size=4, bytes=1000))
    assert gives_way(queue, ask(items=3, level=1), 4) == []
    assert [work.name for work in queue] == [0, 1, 2]  # type: ignore[attr-defined]
    assert queue.items == 4


def test_who_has_waited_long_enough_gives_way_no_more():
    queue = filled({**LOW, "arrived": 0.0}, {**LOW, "arrived": AGEING})
    gone = queue.evict_for(ask(items=1, arrived=AGEING), AGEING, limit=2, space=SPACE)
    assert [work.name for work in gone] == [1]  # type: ignore[attr-defined]
    assert queue.evict_for(ask(items=2, arrived=AGEING), AGEING, limit=2, space=SPACE) == []


@dataclasses.dataclass
class Plain:
    """The same in words, over a list of what waits."""

    works: list[Asked]
    now: float

    def level(self, work: QueuedRequest) -> int:
        return max(1, work.level - int((self.now - work.arrived) / AGEING + 1e-9))

    def load(self, level: int, share: bytes, measure: str) -> int:
        return sum(getattr(w, measure) for w in self.works if (self.level(w), w.share) == (level, share))

    def may(self, work: Asked, limit: int, measure: str, amount: int) -> list[Asked]:
        """Those of which one gives way next."""
        total = sum(getattr(w, measure) for w in self.works)
        less = [w for w in self.works if self.level(w) > work.level]
        level = work.level
        shares = {work.share} | {w.share for w in self.works if self.level(w) == level}
        more_urgent = sum(getattr(w, measure) for w in self.works if self.level(w) < level)
        part = max(1, (limit - more_urgent) / len(shares))
        entitled = self.load(level, work.share, measure) + amount <= part and any(
            self.load(level, share, measure) > part for share in shares
        )
        if total - sum(getattr(w, measure) for w in less) + amount > limit and not entitled:
            return []
        least = max((self.level(w) for w in less), default=level)
        loads = {share: self.load(least, share, measure) for share in {w.share for w in self.works}}
        candidates = []
        for share in (share for share, load in loads.items() if load == max(loads.values())):
            among = [w for w in self.works if (self.level(w), w.share) == (least, share)]
            candidates.append(max(among, key=lambda w: w.arrived))
        return candidates


STEP = st.tuples(
    st.sampled_from(["come", "come", "come", "come", "leave", "cut", "wait", "rekey"]),
    st.integers(0, 1),
    st.sampled_from([1, 1, 1, 2, 5]),
    st.sampled_from([1, 1, 3, 20]),
    st.integers(1, 3),
    st.sampled_from([b"", b"a", b"b", b"c"]),
)


@given(st.lists(STEP, max_size=80), st.sampled_from([1, 4, 10]), st.sampled_from([30, SPACE]))
@settings(deadline=None, max_examples=200)
def test_it_does_what_a_plain_list_would(steps: list[tuple], limit: int, space: int):
    """Of equal shares any may be evicted; exactly the requests with a right to a place get it."""
    queue, works, now = Queue(evicting=True), list[Asked](), 0.0
    for number, (kind, key, items, length, level, share) in enumerate(steps):
        now += 0.01
        if kind == "come":
            work = ask(
                number, key=KEYS[key], items=items, length=length, arrived=now, level=level, share=share
            )
            if queue.items + items > limit or queue.bytes + items * length > space:
                plain = Plain(list(works), now)
                allowed, room = max(limit, queue.items), max(space, queue.bytes)
                gone = queue.evict_for(work, now, limit=limit, space=space)
                for each in gone:
                    over = sum(w.left for w in plain.works) + items > allowed
                    measure = "left" if over else "bytes_left"
                    wanted = (allowed, measure, items) if over else (room, measure, items * length)
                    assert each in plain.may(work, *wanted)
                    plain.works.remove(each)  # type: ignore[arg-type]
                    works.remove(each)  # type: ignore[arg-type]
                if not gone:
                    if items == 1 and queue.items + 1 > limit and space == SPACE:
                        assert not plain.may(work, allowed, "left", 1)
                    continue
                assert queue.items + items <= allowed
                assert queue.bytes + items * length <= room
            queue.add(work)
            works.append(work)
        elif kind == "leave" and works:
            queue.leave(works.pop(number % len(works)))
        elif kind == "wait":
            now += AGEING / 2
        elif kind == "rekey":
            queue.rekey(lambda _: None, evicting=True)
        elif kind == "cut" and works:
            # NB: whole requests, so that each of what waits may give way.
            chosen = queue.choose(now)
            assert chosen is not None
            for part in queue.cut(chosen, Limits(size=5, bytes=SPACE)):
                works.remove(part.work)  # type: ignore[arg-type]
        assert queue.items == sum(work.left for work in works)
        assert {work.name for work in queue} == {work.name for work in works}  # type: ignore[attr-defined]
