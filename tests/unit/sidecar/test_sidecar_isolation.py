"""Halving finds every bad request, alone, in few runs; and its budget holds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_sidecar.isolation import Budget, Halving, granted, worth


def find(requests: int, bad: set[int], most: int | None = None) -> tuple[set[int], set[int], Halving]:
    """Those that failed alone and those that passed, in at most so many runs."""
    halving = Halving(requests)
    alone: set[int] = set()
    passed: set[int] = set()
    while (span := halving.next()) is not None and (most is None or halving.runs < most):
        held = set(range(*span))
        if held & bad:
            if halving.failed():
                alone |= held
        else:
            halving.passed()
            passed |= held
    return alone, passed, halving


BATCH = st.integers(2, 300).flatmap(
    lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1, max_size=min(n, 12)))
)


@given(BATCH)
def test_each_bad_request_ends_alone_and_its_neighbours_pass(batch: tuple[int, set[int]]):
    requests, bad = batch
    alone, passed, halving = find(requests, bad)
    assert alone == bad
    assert passed == set(range(requests)) - bad
    assert halving.unresolved == []
    assert halving.runs <= min(2 * len(bad) * math.ceil(math.log2(requests)), 2 * (requests - 1))


@given(BATCH, st.integers(0, 30))
def test_whenever_it_stops_each_request_is_resolved_or_unresolved(batch: tuple[int, set[int]], most: int):
    requests, bad = batch
    alone, passed, halving = find(requests, bad, most)
    left = [number for span in halving.unresolved for number in range(*span)]
    assert sorted([*alone, *passed, *left]) == list(range(requests))
    assert alone <= bad


def test_a_batch_that_was_only_too_large_passes_in_halves():
    alone, passed, halving = find(32, set())
    assert (alone, len(passed), halving.runs) == (set(), 32, 2)


def test_one_of_32_is_found_in_ten_runs():
    assert find(32, {13})[2].runs == 10


def test_one_request_cannot_be_halved():
    with pytest.raises(ValueError, match="expected at least 2"):
        Halving(1)


@pytest.mark.parametrize(
    ("status", "requests", "expected"),
    [
        (400, 2, True),
        (413, 9, True),
        (422, 9, True),
        (500, 9, True),
        (400, 1, False),
        (401, 9, False),
        (429, 9, False),
        (502, 9, False),
        (503, 9, False),
        (504, 9, False),
        (200, 9, False),
    ],
)
def test_only_what_may_be_one_request_s_fault_is_worth_it(status: int, requests: int, expected: bool):
    assert worth(status, requests) is expected


Step = tuple[float, int, int, int]
STEPS = st.tuples(st.floats(0.0, 5.0), st.integers(0, 40), st.integers(0, 3), st.integers(2, 40))


def spent(steps: list[Step]) -> tuple[list[float], list[float], list[tuple[float, int]]]:
    """Batches, runs and beginnings of searches (of how many requests); each takes all that it is granted."""
    budget, now = Budget(), 0.0
    batches: list[float] = []
    runs: list[float] = []
    begun: list[tuple[float, int]] = []
    for pause, sent, asked, requests in steps:
        now += pause
        for _ in range(sent):
            budget.batch(now)
            batches.append(now)
        for _ in range(asked):
            for attempt in range(1, granted(requests) + 1):
                if not budget.take(now, attempt, requests):
                    assert attempt == 1, "what is begun is ended"
                    break
                runs.append(now)
                if attempt == 1:
                    begun.append((now, requests))
    return batches, runs, begun


@given(st.lists(STEPS, max_size=60))
def test_a_search_begins_only_within_a_tenth_of_the_batches_of_ten_seconds_or_as_the_only_one(
    steps: list[Step],
):
    batches, runs, begun = spent(steps)
    for now, _ in begun:
        before = sum(now - 10.0 < run < now for run in runs)
        assert before + 1 <= max(1, 0.1 * sum(now - 10.0 < batch <= now for batch in batches))


@given(st.lists(STEPS, min_size=1, max_size=60))
def test_over_any_time_runs_are_a_tenth_of_its_batches_one_in_ten_seconds_and_one_search(steps: list[Step]):
    batches, runs, begun = spent(steps)
    for first in sorted(set(runs)):
        for last in sorted({run for run in runs if run >= first}):
            held = sum(first <= run <= last for run in runs)
            paid = 0.1 * sum(first <= batch <= last for batch in batches) + (last - first) / 10
            search = max(granted(requests) for now, requests in begun if first <= now <= last)
            saved = max(1, 0.1 * sum(last - 11.0 < batch <= last for batch in batches))
            assert held <= paid + saved + search - 1 + 1e-6


def test_one_run_is_always_allowed_and_then_one_for_ten_batches():
    budget = Budget()
    assert budget.take(100.0, 1, 2)
    assert not budget.take(100.0, 1, 2)
    for _ in range(20):
        budget.batch(100.5)
    assert budget.take(100.5, 1, 2)
    assert not budget.take(100.5, 1, 2)
    assert budget.take(112.0, 1, 2)


@given(st.integers(2, 300).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))))
def test_one_grant_covers_finding_one_bad_request(batch: tuple[int, int]):
    requests, bad = batch
    assert find(requests, {bad})[2].runs <= granted(requests)


def test_a_search_is_paid_before_the_next_begins():
    budget = Budget()
    assert [budget.take(100.0, attempt, 32) for attempt in range(1, 12)] == [True] * 10 + [False]
    # Ten seconds later nothing is in the window any more; what was overdrawn is not forgotten with it.
    for second in range(1, 100):
        budget.batch(100.0 + second)
        assert not budget.take(100.0 + second, 1, 32)
    budget.batch(200.0)
    assert budget.take(200.0, 1, 32)


def test_where_many_batches_are_sent_several_searches_go_on_at_once():
    budget = Budget()
    for number in range(1000):
        budget.batch(100.0 + number / 1000)
    begun = sum(all(budget.take(101.0, attempt, 32) for attempt in range(1, 11)) for _ in range(20))
    assert begun == 10


def test_where_nothing_else_is_sent_time_pays():
    budget = Budget()
    assert all(budget.take(100.0, attempt, 32) for attempt in range(1, 11))
    assert not budget.take(199.0, 1, 32)
    assert budget.take(200.1, 1, 32)
