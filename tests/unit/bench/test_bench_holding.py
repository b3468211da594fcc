"""The comparison of holding a slot with none, in simulated time: the stored page is of the stored figures."""

import json

import pytest

from bench.holding import table
from bench.holding.__main__ import RESULTS, measured
from bench.holding.cases import CALLERS, LEAST_P99, SIZE, Named, cases, ratio, simulate
from bench.holding.simulator import EAGER, HOLD, ORACLE, Case

DOCUMENT = json.loads(RESULTS.read_text())
HALF_FULL = [callers for callers in CALLERS if 1 < callers <= SIZE]


def test_the_page_is_of_the_figures_and_these_are_of_all_cases() -> None:
    assert RESULTS.with_suffix(".md").read_text() == table.page(DOCUMENT)
    assert list(DOCUMENT["cases"]) == [named.name for named in cases()]


def test_a_case_is_the_same_with_the_same_seed_and_another_with_another() -> None:
    named = Named("again/1/4", lambda seed: Case(callers=4, seconds=0.1, seed=seed), oracle=True)
    rows = [simulate(named, seed) for seed in (1, 2)]
    assert simulate(named, 1) == rows[0] != rows[1]
    assert set(rows[0]) == {EAGER, HOLD, ORACLE, LEAST_P99}
    found = measured(named, rows)
    assert found["ratios"]["rate"] == [round(value, 4) for value in ratio(rows, "rate")]
    median, least, greatest = found["ratios"]["rate"]
    assert 1.0 < least <= median <= greatest


def kept(case: dict[str, dict[str, list[float]]], share: float) -> bool:
    """Whether rate, p50, p99 and model calls are worse than without holding by this at most, of each seed."""
    ratios = case["ratios"]
    return ratios["rate"][1] >= 1 - share and all(
        ratios[name][2] <= 1 + share for name in ("p50", "p99", "calls")
    )


@pytest.mark.parametrize("name", [named.name for named in cases()])
def test_the_stored_figures_keep_the_goals(name: str) -> None:
    """But for the p99 of a model of 1 ms: there no oracle reaches 0.65 of that without holding either."""
    kind, model_ms, of = name.split("/")
    case = DOCUMENT["cases"][name]
    figures, ratios = case["figures"], case["ratios"]
    if kind != "again" or int(of) not in HALF_FULL:
        assert kept(case, 0.01)
        return
    least_rate = {2: 1.5, 4: 1.5, 8: 1.3}.get(int(of), 1.08)
    assert ratios["rate"][1] >= least_rate
    assert ratios["p50"][2] <= (0.65 if int(of) <= 8 else 0.7)
    assert figures[HOLD]["per_call"] >= 0.95 * int(of)
    assert figures[HOLD]["rate"] >= 0.95 * figures[ORACLE]["rate"]
    if model_ms != "1":
        assert ratios["p99"][2] <= 0.65
    elif int(of) >= 12:
        assert figures[LEAST_P99]["p99"] / figures[EAGER]["p99"] > 0.65
        assert figures[HOLD]["p99"] <= 1.08 * figures[LEAST_P99]["p99"]
