"""Binary splitting finds every bad request, alone, in few runs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_sidecar.batching.bisection import Bisection, may_be_one_request


def find(requests: int, bad: set[int], most: int = 1 << 20) -> tuple[set[int], set[int], int]:
    """Those that failed alone, those that passed, and how many runs that took."""
    search = Bisection(requests)
    alone: set[int] = set()
    passed: set[int] = set()
    runs = 0
    while (span := search.next(most)) is not None:
        held = set(range(*span))
        assert held
        assert not held & (alone | passed), "nothing is run again that is resolved"
        runs += 1
        if held & bad:
            search.failed(alone=len(held) == 1)
            if len(held) == 1:
                alone |= held
        else:
            search.passed()
            passed |= held
    return alone, passed, runs


BATCH = st.integers(2, 300).flatmap(
    lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1, max_size=min(n, 12)))
)


@given(BATCH, st.integers(1, 400))
def test_each_bad_request_ends_alone_and_its_neighbours_pass(batch: tuple[int, set[int]], most: int):
    requests, bad = batch
    alone, passed, _ = find(requests, bad, most)
    assert alone == bad
    assert passed == set(range(requests)) - bad


@given(BATCH)
def test_a_bad_request_costs_a_run_for_each_halving_and_two(batch: tuple[int, set[int]]):
    """A run of what is unknown, one for each halving, and one for the answer of what is known to be bad."""
    requests, bad = batch
    assert find(requests, bad)[2] <= len(bad) * (math.ceil(math.log2(requests)) + 2)


@given(st.integers(2, 300))
def test_where_all_are_bad_single_runs_cost_no_more_than_no_batching(requests: int):
    first = math.ceil(math.log2(requests))
    assert find(requests, set(range(requests)), most=1)[2] <= requests + first


def test_a_batch_that_was_only_too_large_is_resolved():
    alone, passed, runs = find(32, set())
    assert (alone, len(passed)) == (set(), 32)
    assert runs == 6


def test_of_32_each_one_is_found_in_six_or_seven_runs():
    runs = [find(32, {number})[2] for number in range(32)]
    assert (min(runs), max(runs)) == (6, 7)


@given(BATCH, st.sets(st.integers(0, 299)))
def test_who_leaves_meanwhile_ends_no_search(batch: tuple[int, set[int]], gone: set[int]):
    """A span of which all have left counts as passed, and says nothing of the others."""
    requests, bad = batch
    search = Bisection(requests)
    resolved: set[int] = set()
    while (span := search.next(8)) is not None:
        held = set(range(*span)) - gone
        if not held:
            search.passed(whole=False)
        elif held & bad:
            search.failed(alone=len(held) == 1)
            if len(held) == 1:
                resolved |= held
        else:
            search.passed(whole=len(held) == span[1] - span[0])
            resolved |= held
    assert resolved == set(range(requests)) - gone


def test_a_half_that_passed_without_one_of_its_requests_does_not_accuse_the_other_half():
    search = Bisection(4)
    assert search.next(4) == (0, 2)
    search.passed(whole=False)
    assert search.next(4) == (2, 4), "unknown, so it is run as a whole"


def test_one_request_cannot_be_split():
    with pytest.raises(ValueError, match="expected at least 2"):
        Bisection(1)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        *((status, True) for status in (307, 400, 401, 404, 409, 413, 415, 422, 500)),
        *((status, False) for status in (200, 204, 408, 425, 429, 501, 502, 503, 504)),
    ],
)
def test_only_what_may_be_one_requests_fault_is_searched(status: int, expected: bool):
    assert may_be_one_request(status) is expected
