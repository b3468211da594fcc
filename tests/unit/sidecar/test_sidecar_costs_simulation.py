"""What batches by cost are for: the sidecar's decisions against a simulated encoder of unequal texts."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.worlds.simulated_costs import COST, COUNT, LENGTHS, Case, Result, capacity, run

pytestmark = [
    pytest.mark.long,
    pytest.mark.interpreted,  # a simulated model stands where a compiled class is expected
]


def closed(name: str, policy: str | int) -> Result:
    return run(Case(lengths=LENGTHS[name], callers=256, seconds=50.0), policy)


@pytest.mark.parametrize(("name", "budget"), [("lognormal", 4_096), ("bimodal", 2_048)])
def test_no_constant_budget_is_as_good(name: str, budget: int):
    """The budget is the best of each distribution, which is known only afterwards."""
    assert len(closed(name, COST).answered) >= 1.1 * len(closed(name, budget).answered)


def test_nor_is_one_where_large_batches_leave_the_cores_cache():
    """An encoder on a CPU. The best budget, 512, is of texts nearly alone, which are not padded."""
    case = Case(lengths=LENGTHS["lognormal"], callers=128, base=1.2e-3, padded=16.5e-6, square=2.7e-8)
    case = dataclasses.replace(case, cache=1024, seconds=80.0)
    assert len(run(case, COST).answered) >= 1.05 * len(run(case, 512).answered)


def test_texts_that_the_model_cuts_off_are_as_those_that_are_no_longer():
    cut = run(Case(lengths=LENGTHS["uncut"], callers=256, seconds=50.0, cut=512), COST)
    assert len(cut.answered) >= 0.95 * len(closed("lognormal", COST).answered)


def test_with_equal_costs_all_is_as_without_them():
    assert closed("constant", COST).answered == closed("constant", COUNT).answered


def test_answers_in_time_under_overload():
    """At 110 % of what full batches of sorted texts could serve, the time of learning included."""
    case = Case(lengths=LENGTHS["lognormal"], seconds=30.0, objective=1.5)
    able = capacity(case)[1]
    case = dataclasses.replace(case, rate=1.1 * able)
    ours, plain = run(case, COST), run(case, COUNT)
    assert ours.good >= max(0.75 * able, 1.5 * plain.good)
