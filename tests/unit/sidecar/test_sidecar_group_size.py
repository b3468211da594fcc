"""Batches are as large as the share of bad requests makes them cheapest, for each key and each sender."""

from __future__ import annotations

import asyncio
import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest

from penstock_sidecar.batching.bisection import Bisection
from penstock_sidecar.queue.group_size import best, cost
from penstock_sidecar.queue.key import MAX_SENDERS, WINDOW, Faults
from penstock_wire.control.settings import Fairness
from penstock_wire.http import Response
from tests.support.models.closed_loop import A, B, Sender, closed_loop, refuse_bad
from tests.support.models.scripted_model import Run, Scripted


def seconds(items: int) -> float:
    return A + B * items


def halving_rate(bad: float) -> float:
    """Valid answers a second of the best fixed size up to 32, where failed batches run again in halves."""
    return max(_halving_rate(bad, size) for size in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32))


def _halving_rate(bad: float, size: int, requests: int = 40_000) -> float:
    drawn = random.Random(2)
    spent, good = 0.0, 0
    for _ in range(requests // size):
        batch = [drawn.random() < bad for _ in range(size)]
        good += size - sum(batch)
        parts = deque([batch])
        while parts:
            part = parts.popleft()
            spent += seconds(len(part))
            if any(part) and len(part) > 1:
                middle = (len(part) + 1) // 2
                parts += (part[:middle], part[middle:])
    return good / spent


def sent(good: int, bad: int, sender: bytes) -> list[tuple[bytes, int, bool]]:
    """Requests of one item each, as `Faults.note_senders` takes them."""
    return [(sender, 1, number >= good) for number in range(good + bad)]


def test_without_bad_requests_a_batch_is_as_large_as_it_may_be():
    assert best(0.0, 32, seconds) == 32


def test_where_all_are_bad_each_runs_alone():
    assert best(1.0, 32, seconds) == 1


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.integers(1, 300))
def test_more_bad_requests_never_make_larger_batches(rate: float, another: float, most: int):
    low, high = sorted((rate, another))
    assert 1 <= best(high, most, seconds) <= best(low, most, seconds) <= most


@given(st.floats(0.0, 1.0), st.integers(1, 300))
def test_a_request_never_costs_more_than_alone(rate: float, most: int):
    assert cost(rate, best(rate, most, seconds), seconds) <= cost(rate, 1, seconds) * (1 + 1e-9)


@pytest.mark.parametrize(("rate", "requests"), [(0.01, 32), (0.05, 8), (0.05, 16), (0.3, 4)])
def test_the_expected_cost_is_what_searches_take_on_average(rate: float, requests: int):
    drawn = random.Random(5)
    time, resolved = 0.0, 0
    for _ in range(20_000):
        # A search up to its first bad request: what is unknown then begins anew, with others.
        batch = [drawn.random() < rate for _ in range(requests)]
        time += seconds(requests)
        if not any(batch):
            resolved += requests
            continue
        search = Bisection(requests)
        while (span := search.next(requests)) is not None:
            held = batch[slice(*span)]
            time += seconds(len(held))
            if any(held):
                search.failed(alone=len(held) == 1)
                if len(held) == 1:
                    break
            else:
                search.passed()
        resolved += search.resolved
    assert cost(rate, requests, seconds) == pytest.approx(time / resolved, rel=0.02)


def test_bad_requests_make_batches_smaller_and_good_ones_make_them_larger_again():
    faults = Faults()
    for _ in range(40):
        faults.note([1] * 16, 2, 32, seconds)
    assert faults.rate == pytest.approx(2 / 16, rel=0.01)
    assert faults.limit <= 8
    good = 0
    while faults.rate:
        faults.note([1] * faults.limit, 0, 32, seconds)
        good += faults.limit
    assert faults.limit == 32
    assert good <= 8 * WINDOW


def test_one_bad_request_in_a_thousand_leaves_batches_full():
    faults = Faults()
    for number in range(400):
        faults.note([1] * 32, int(number % 31 == 0), 32, seconds)
    assert faults.limit == 32


def test_requests_of_several_items_count_as_requests():
    """One bad request of eight, of four items each: batches hold fewer requests, and so fewer items."""
    faults = Faults()
    for _ in range(60):
        faults.note([4] * 8, 1, 32, seconds)
    assert 4 <= faults.limit <= 24
    assert faults.limit % 4 == 0 or faults.limit >= 4


def test_a_sender_of_bad_requests_gets_batches_of_its_own_and_others_do_not():
    faults, batch = Faults(), [*sent(14, 0, b"good"), *sent(0, 2, b"bad")]
    parted: list[tuple[bytes, Faults]] = []
    for _ in range(8):
        faults.note([1] * 16, 2, 32, seconds)
        parted += faults.note_senders(batch, 32, seconds)
        if parted:
            break
    assert [sender for sender, _ in parted] == [b"bad"]
    assert b"good" not in faults.senders


def test_one_bad_request_parts_nobody():
    faults = Faults()
    faults.note([1] * 16, 1, 32, seconds)
    assert faults.note_senders([*sent(15, 0, b"good"), *sent(0, 1, b"once")], 32, seconds) == []


def test_senders_are_remembered_within_bounds():
    """In number, and in bytes: a client may choose the value of the header."""
    faults = Faults()
    for number in range(MAX_SENDERS + 50):
        faults.note([1] * 2, 1, 32, seconds)
        faults.note_senders(sent(1, 1, b"%d" % number * 1000), 32, seconds)
    assert len(faults.senders) == MAX_SENDERS
    assert max(map(len, faults.senders)) <= 32


# In the dispatcher


@pytest.mark.parametrize("bad", [0.001, 0.01, 0.05])
async def test_no_valid_request_fails_and_the_best_fixed_size_is_hardly_faster(bad: float):
    """64 callers, batches of at most 32: at least 0.9 of the best fixed size with halving."""
    seen, elapsed, _ = await closed_loop([Sender(64, bad)], 8_000, max_batch_size=32)
    everybody = seen[""]
    assert everybody.wrong == []
    assert everybody.own > 0
    assert everybody.answers / elapsed >= 0.9 * halving_rate(bad)


async def test_batches_are_full_again_when_bad_requests_have_ceased():
    sender = Sender(64, 0.2)
    _, _, scripted = await closed_loop([sender], 2_000, max_batch_size=32)
    assert scripted.dispatcher.batch_limit <= 8
    assert max(len(run.items) for run in scripted.runs[-50:]) <= 12
    scripted.metrics.show(scripted.dispatcher)
    shown = b"penstock_sidecar_batch_limit_items %.1f" % scripted.dispatcher.batch_limit
    assert shown in generate_latest(scripted.metrics)
    for _ in range(40):
        await asyncio.gather(*(scripted.ask(number) for number in range(32)))
    assert scripted.dispatcher.batch_limit == 32


async def test_a_model_that_fails_everything_is_called_about_once_a_request():
    """Each request has its own answer; when the model answers again, so do full batches and searches."""
    broken = True

    def behaviour(run: Run) -> Response | None:
        return Response(status=500, body=b"out of memory") if broken else refuse_bad(run)

    scripted = Scripted(base=A, item=B, behaviour=behaviour, max_batch_size=32)
    for _ in range(12):
        answers = await asyncio.gather(*(scripted.ask(number) for number in range(1, 9)))
        assert {(answer.status, answer.body) for answer in answers} == {(500, b"out of memory")}
    assert len(scripted.runs) <= 12 * 8 + 3  # those that halved the first batch
    broken = False
    assert (await scripted.ask(1)).status == 200
    scripted.runs.clear()
    answers = await asyncio.gather(*(scripted.ask(item) for item in (1, 2, 3, 4, -5, 6, 7, 8)))
    assert [answer.status for answer in answers] == [200] * 4 + [422] + [200] * 3
    assert len(scripted.runs[0].items) == 8


async def test_who_sends_bad_requests_pays_for_the_searches_where_a_header_names_it():
    """Two tenants with equal shares: the good one keeps at least half of what it has beside a good one."""

    async def rate_of(bad: float) -> float:
        seen, elapsed, _ = await closed_loop(
            [Sender(48, 0.0, "good"), Sender(16, bad, "other")],
            8_000,
            max_batch_size=32,
            fairness=Fairness(header="x-tenant"),
        )
        assert not seen["good"].wrong
        assert not seen["other"].wrong
        return seen["good"].answers / elapsed

    assert await rate_of(0.3) >= 0.5 * await rate_of(0.0)


async def test_the_limit_of_a_sender_that_has_left_is_shown_no_longer():
    _, _, scripted = await closed_loop(
        [Sender(48, 0.0, "good"), Sender(16, 0.5, "left")],
        3_000,
        max_batch_size=32,
        fairness=Fairness(header="x-tenant"),
    )
    assert scripted.dispatcher.batch_limit < 32
    await asyncio.sleep(11.0)
    assert scripted.dispatcher.batch_limit == 32
