"""Whether a free slot is held: never without a reason, never beyond its bounds."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_sidecar.estimators.hold_policy import KEYS, HoldPolicy
from penstock_sidecar.queue.batch_limits import MAX_WAITING, Choice, Limits, choose_with_wait
from penstock_sidecar.queue.key import BatchKey
from penstock_sidecar.queue.queue import Queue
from penstock_sidecar.queue.request import QueuedRequest
from penstock_wire.http import Request

SERVICE = 1e-3


def key(target: str = "/p") -> BatchKey:
    return BatchKey("POST", target, (), ())


KEY = key()


def learned(*, back: tuple[float, ...] = (0.1e-3, 0.15e-3, 0.2e-3, 0.3e-3), batches: int = 40) -> HoldPolicy:
    """Four callers who come back so soon; all of them have just been answered, at 1000 s."""
    policy = HoldPolicy()
    for number in range(batches, -1, -1):
        now = 1000.0 - 2e-3 * number
        policy.answered(now, KEY, len(back), SERVICE)
        for lag in back if number else ():
            policy.arrived(now + lag, KEY)
    return policy


def until(policy: HoldPolicy, now: float, *, requests: int = 1, **changed: float) -> float:
    fields = {"room": 30.0, "saved": SERVICE, "bound": SERVICE / 2, "latest": 2000.0} | changed
    return policy.until(now, KEY, requests=requests, **fields)


def test_the_slot_is_held_until_all_are_back():
    policy = learned()
    policy.arrived(1000.0001, KEY)
    held = until(policy, 1000.0001)
    assert 1000.00025 <= held <= 1000.0005
    for number, moment in enumerate((1000.00015, 1000.0002)):
        policy.arrived(moment, KEY)
        assert until(policy, moment, requests=2 + number) == held
    policy.arrived(1000.0003, KEY)
    assert until(policy, 1000.0003, requests=4) == 1000.0003
    assert policy.cut(1000.0003, KEY, 4) == pytest.approx(0.0002)
    assert policy.merged


@pytest.mark.parametrize(
    ("why", "changed"),
    [
        ("those who are out find no room", {"room": 2.0}),
        ("a slot falls free at once", {"saved": 0.0}),
        ("so many wait that a few more do not pay", {"requests": 400, "room": 3000.0}),
        ("a deadline is near", {"latest": 1000.0}),
        ("nothing may be waited", {"bound": 0.0}),
    ],
)
def test_a_slot_is_not_held_where(why: str, changed: dict[str, float]):
    requests = int(changed.pop("requests", 1))
    assert until(learned(), 1000.0, requests=requests, **changed) == 1000.0, why


def test_nobody_is_waited_for_who_is_not_known_or_comes_too_late():
    assert until(HoldPolicy(), 1000.0) == 1000.0
    assert until(learned(batches=5), 1000.0) == 1000.0
    assert until(learned(back=(0.1e-3, 0.2e-3, 0.9e-3, 1.2e-3)), 1000.0) == 1000.0


def test_a_lone_caller_is_never_held_and_other_keys_are_not_its_own():
    policy = learned(back=(0.1e-3,))
    policy.arrived(1000.0001, KEY)
    assert until(policy, 1000.0001) == 1000.0001
    assert learned().out(key("/other")) == 0


def test_slots_are_not_held_in_vain_for_long():
    """Callers who come back, but to another pod; now and then it is tried again."""
    policy, held, now = learned(), 0, 1000.0
    for _ in range(400):
        now += 2e-3
        policy.answered(now, KEY, 4, SERVICE)
        for lag in (0.1e-3, 0.15e-3, 0.2e-3):
            policy.arrived(now + lag, KEY)
        if until(policy, now + 0.2e-3, requests=3) > now + 0.2e-3:
            held += 1
            assert policy.cut(now + 0.4e-3, KEY, 3) > 0.0
            assert not policy.merged
    assert 8 <= held <= 30


def test_nobody_is_waited_for_where_more_ask_than_a_batch_holds():
    policy = learned()
    policy.crowded(KEY)
    policy.arrived(1000.0001, KEY)
    assert policy.out(KEY) == 0
    policy.answered(1000.001, KEY, 4, SERVICE)
    assert policy.out(KEY) == 4


def test_keys_are_forgotten():
    policy = learned()
    for number in range(KEYS):
        policy.answered(1000.0, key(f"/{number}"), 1, SERVICE)
    assert policy.out(KEY) == 0
    assert len(policy._keys) == KEYS


def test_a_hold_that_ended_for_want_of_work_does_not_count():
    policy = learned()
    assert until(policy, 1000.0) > 1000.0
    policy.forget_hold()
    assert policy.cut(1001.0, KEY, 3) == 0.0
    assert not policy.merged


@given(
    back=st.lists(st.floats(1e-5, 0.6e-3), min_size=1, max_size=8).map(tuple),
    asked=st.lists(st.tuples(st.floats(0.0, 0.3e-3), st.booleans()), min_size=1, max_size=12),
    bound=st.floats(0.0, 1e-3),
    slack=st.floats(0.0, 2e-3),
    room=st.floats(0.0, 12.0),
    saved=st.floats(0.0, 2e-3),
)
def test_no_hold_goes_beyond_its_bound_a_deadline_or_those_who_are_out(
    back: tuple[float, ...],
    asked: list[tuple[float, bool]],
    bound: float,
    slack: float,
    room: float,
    saved: float,
):
    policy = learned(back=back)
    now, latest, requests = 1000.0, 1000.0 + slack, 1
    began = None
    for gap, comes in asked:
        now += gap
        if comes:
            policy.arrived(now, KEY)
            requests += 1
        out = policy.out(KEY)
        held = policy.until(now, KEY, requests=requests, room=room, saved=saved, bound=bound, latest=latest)
        if held <= now:
            policy.cut(now, KEY, requests)
            began = None
            continue
        began = now if began is None else began
        assert out
        assert out <= room
        assert held <= latest + 1e-9
        assert held <= began + bound + 1e-9


# A user's wait (`batchWaitTimeout`)

LIMITS = Limits(size=3, bytes=100)
ONE, TWO = BatchKey("POST", "/1", (), ()), BatchKey("POST", "/2", (), ())


def queued(
    queue: Queue, key: BatchKey, arrived: float, deadline: float = 31.0, item: bytes = b"1", level: int = 1
) -> QueuedRequest:
    """A request that was put into the queue."""
    request = Request(method="POST", target=key.target, headers=(), body=b"")
    work = QueuedRequest(key, request, b"", [item], (), arrived, deadline, deadline, level)
    queue.add(work)
    return work


def choice(queue: Queue, now: float, **changed: Any) -> Choice:
    """What the queue does with a wait of 10 ms."""
    first = queue.choose(now)
    assert first is not None
    return choose_with_wait(queue.lines, first, LIMITS, now, **{"wait": 0.010, "quiet": math.inf} | changed)


def waits_until(chosen: Choice) -> float | None:
    """When to ask again, if no queue is chosen."""
    assert chosen.key is None
    return chosen.again


def test_part_full_batches_wait_from_their_oldest_request():
    queue = Queue()
    oldest = queued(queue, ONE, 1.0)
    assert waits_until(choice(queue, 1.0)) == pytest.approx(1.010)
    queued(queue, ONE, 1.005)
    queued(queue, TWO, 1.001)
    assert waits_until(choice(queue, 1.006)) == pytest.approx(1.010)
    assert choice(queue, 1.010) == Choice(ONE)
    queue.leave(oldest)
    assert waits_until(choice(queue, 1.010)) == pytest.approx(1.011)
    assert choice(queue, 1.011) == Choice(TWO)  # its wait is over, although the other's turn comes first
    queued(queue, ONE, 1.006)
    queued(queue, ONE, 1.006)
    assert choice(queue, 1.007) == Choice(ONE)


@pytest.mark.parametrize(
    "fields",
    [
        {"deadline": 1.05},
        {"item": b"x" * 100},
        {"key": BatchKey("POST", "/", (), (), lone=True)},
    ],
    ids=["deadline", "bytes", "lone"],
)
def test_a_near_deadline_or_bytes_or_a_lone_key_end_the_wait(fields: dict[str, Any]):
    queue = Queue()
    queued(queue, TWO, 1.0)
    work = queued(queue, **{"key": ONE, "arrived": 1.0} | fields)
    assert choice(queue, 1.0, wait=10.0, service=0.06) == Choice(work.key)


@pytest.mark.parametrize("urgent", [{"level": 2}, {"level": 3, "deadline": 20.0}])
def test_of_the_queues_that_go_while_the_first_waits_the_most_urgent_is_chosen(urgent: dict[str, Any]):
    """By level, then by deadline; not by which was opened first."""
    queue, three = Queue(), BatchKey("POST", "/3", (), ())
    for key, more in ((TWO, {"level": 3}), (three, urgent)):
        for _ in range(LIMITS.size):
            queued(queue, key, 1.0, **more)
    queued(queue, ONE, 1.0)
    assert choice(queue, 1.0) == Choice(three)


def test_too_many_keys_do_not_wait():
    queue = Queue()
    for number in range(MAX_WAITING + 1):
        queued(queue, BatchKey("POST", f"/{number}", (), ()), 1.0 + number * 1e-6)
    assert choice(queue, 1.001).key is not None


def test_no_batch_waits_where_arrivals_have_stopped():
    """Callers who all wait for this very batch will not fill it."""
    policy = HoldPolicy(1.0)
    for batch in range(30):
        for number in range(10):
            policy.joined(batch + number / 1000, first=not number)
    last = 29.009
    assert last + 0.004 < policy.quiet < last + 0.010
    policy.waited(last + 0.010, requests=10)
    assert policy.quiet < last + 0.010
    policy.waited(last + 0.010, requests=1)  # none joined it: the gaps have become longer
    assert policy.quiet > last + 0.010
