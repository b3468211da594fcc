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


@given(st.lists(st.tuples(st.floats(0.0, 2.0), st.integers(0, 40), st.integers(0, 5)), max_size=60))
def test_a_run_that_is_allowed_keeps_runs_within_a_tenth_of_the_batches_of_ten_seconds_or_is_the_only_one(
    steps: list[tuple[float, int, int]],
):
    budget = Budget()
    now = 0.0
    batches: list[float] = []
    runs: list[float] = []
    for pause, sent, asked in steps:
        now += pause
        for _ in range(sent):
            budget.batch(now)
            batches.append(now)
        for _ in range(asked):
            if budget.take(now):
                runs.append(now)
                recent = sum(run > now - 10.0 for run in runs)
                assert recent <= max(1, 0.1 * sum(batch > now - 10.0 for batch in batches))


def test_one_run_is_always_allowed_and_then_one_for_ten_batches():
    budget = Budget()
    assert budget.take(100.0)
    assert not budget.take(100.0)
    for _ in range(20):
        budget.batch(100.5)
    assert budget.take(100.5)
    assert not budget.take(100.5)
    assert budget.take(112.0)


@given(st.integers(2, 300).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))))
def test_one_grant_covers_finding_one_bad_request(batch: tuple[int, int]):
    requests, bad = batch
    assert find(requests, {bad})[2].runs <= granted(requests)


def test_runs_that_were_granted_with_another_count():
    budget = Budget()
    assert budget.take(100.0)
    for _ in range(4):
        budget.spend(100.0)
    for _ in range(50):
        budget.batch(100.0)
    assert not budget.take(100.0)
    for _ in range(10):
        budget.batch(100.0)
    assert budget.take(100.0)
