"""Simulated releases: the operator's machine and evidence take a bad candidate back, and a healthy one on."""

from __future__ import annotations

import json

import pytest

from bench.releases import canary, rival
from bench.releases.__main__ import RESULTS, table
from bench.releases.kinds import KINDS, RATE, SECONDS
from bench.releases.worlds import Version, World


def world(seed: int) -> World:
    return World(seed, rate=RATE, seconds=SECONDS)


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_ends_as_it_should(name: str) -> None:
    """Bad ones are taken back within two intervals, healthy ones are promoted; a seed has one end.

    Where whole batches fail or are late, a healthy one may take longer than the time that is simulated.
    """
    kind = KINDS[name]
    outcomes = [
        canary.run(world(seed), kind.version(seed), canary.strategy(mirrored=kind.mirrored), SECONDS)
        for seed in (1, 2, 3, 1)
    ]
    slow = {"Progressing"} if kind.versions[0].batch > 1 else set()
    assert {each.phase for each in outcomes} - slow == {"RolledBack" if kind.bad else "Promoted"}
    assert not kind.bad or max(each.intervals for each in outcomes) <= 2
    assert outcomes[0] == outcomes[3]


def test_the_rival_fails_after_more_failures_than_its_limit() -> None:
    """Every 30 s, once more than 3 measurements have failed: after 2 min, of a version that always fails."""
    analysis = rival.Analysis(name="", interval=30, success=0.99, limit=3)
    bad = rival.run(world(1), Version(name="bad", errors=0.5), analysis, SECONDS)
    assert (bad.phase, bad.seconds) == ("RolledBack", 120)
    assert rival.quantile((0, 0, 100, *[0] * 28), 0.5) == pytest.approx(0.00175)


def test_the_results_reach_what_was_set_as_goals() -> None:
    """Of healthy candidates at most 1 in 200 is taken back, of bad ones 99 in 100 within two intervals."""
    results = json.loads(RESULTS.read_text())
    assert RESULTS.with_suffix(".md").read_text() == table(results)
    for name, rows in results["kinds"].items():
        ours = rows["Penstock"]
        assert ours["releases"] == 10_000
        if name in results["bad"]:
            assert ours["within_two_intervals"] >= 0.99 * ours["releases"]
            limited = [row for who, row in rows.items() if "failureLimit 3" in who]
            assert all(ours["harmed_mean"] <= 0.5 * row["harmed_mean"] for row in limited)
        else:
            assert ours["rolled_back"] <= ours["releases"] / 200
