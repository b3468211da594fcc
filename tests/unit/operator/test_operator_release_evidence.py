"""Verdicts on a candidate: a healthy one is not failed by chance or drift, a bad one is, and soon."""

from __future__ import annotations

import bisect
import itertools
import math
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest

from penstock_operator.api.strategy import ReleaseMetric, Verdict
from penstock_operator.releases.evidence import judge, judge_all, judge_value
from penstock_operator.releases.sequential import FALLS, RISES, compare, hold
from penstock_operator.releases.state import Counts, Interval
from penstock_wire.control.report import FIRST_BYTE_SECONDS as EDGES

ERRORS = ReleaseMetric(name="errorRatio")
LATENCY = ReleaseMetric(name="latency")
MISMATCH = ReleaseMetric(name="mismatch")


def counted(requests: int, errors: int = 0, refused: int = 0) -> Counts:
    return Counts(requests=requests, errors=errors, refused=refused)


def copies(compared: int, differing: int) -> Interval:
    return Interval(stable=Counts(), candidate=Counts(compared=compared, differing=differing))


def took(
    chance: random.Random, count: int, median: float, *, times: float = 1.0, more: float = 0.0
) -> Counts:
    """Answers whose time is log-normal: p99 is 3.2 times the median."""
    buckets = [0] * (len(EDGES) + 1)
    for _ in range(count):
        seconds = median * times * chance.lognormvariate(0.0, 0.5) + more
        buckets[bisect.bisect_left(EDGES, seconds)] += 1
    return Counts(requests=count, seconds=tuple(buckets))


def judged(metric: ReleaseMetric, intervals: Sequence[Interval]) -> list[Verdict]:
    verdicts: list[Verdict] = []
    for interval in intervals:
        verdicts.append(judge(metric, verdicts[-1].state if verdicts else "", interval, EDGES))
    return verdicts


def words(verdicts: Sequence[Verdict]) -> list[str]:
    return [verdict.verdict for verdict in verdicts]


def drawn(chance: random.Random, count: int, rate: float) -> int:
    return sum(chance.random() < rate for _ in range(count))


def binomial(count: int, rate: float) -> list[float]:
    return [math.comb(count, k) * rate**k * (1.0 - rate) ** (count - k) for k in range(count + 1)]


@pytest.mark.parametrize("bets", [RISES, FALLS])
@pytest.mark.parametrize("base", [0.0, 0.02, 0.3, 0.9])
@pytest.mark.parametrize(("requests", "stable"), [(5, 40), (20, 20), (30, 3)])
def test_the_e_values_of_two_backends_are_e_values(
    bets: tuple[float, ...], base: float, requests: int, stable: int
) -> None:
    """Their mean is at most 1 at the margin, and beyond it on the side of the hypothesis; by enumeration."""
    margin = 0.05
    at = margin + (1.0 - margin) * base
    for rate in (at, at * 0.5) if bets is RISES else (at, (at + 1.0) / 2):
        ours, theirs = binomial(requests, rate), binomial(stable, base)
        mean = [0.0] * len(bets)
        for bad, stable_bad in itertools.product(range(requests + 1), range(stable + 1)):
            chance = ours[bad] * theirs[stable_bad]
            gains = compare(bad, requests, stable_bad, stable, margin, bets)
            mean = [total + chance * math.exp(gain) for total, gain in zip(mean, gains, strict=True)]
        assert max(mean) <= 1.0 + 1e-9


@pytest.mark.parametrize("bad", [0, 1, 7, 30])
@pytest.mark.parametrize(("requests", "stable"), [(5, 25), (15, 15), (25, 5)])
def test_for_an_equal_candidate_the_draw_alone_is_enough(bad: int, requests: int, stable: int) -> None:
    """Whichever requests fail, and however they hang together: the mean over all draws is at most 1."""
    mean = [0.0] * len(RISES)
    for ours in range(max(0, bad - stable), min(bad, requests) + 1):
        chance = math.comb(requests, ours) * math.comb(stable, bad - ours) / math.comb(requests + stable, bad)
        gains = compare(ours, requests, bad - ours, stable, 0.01, RISES)
        mean = [total + chance * math.exp(gain) for total, gain in zip(mean, gains, strict=True)]
    assert max(mean) <= 1.0 + 1e-9


@pytest.mark.parametrize("bets", [RISES, FALLS])
@pytest.mark.parametrize("bound", [0.0, 0.01, 0.5, 1.0])
def test_the_e_values_of_a_share_are_e_values(bets: tuple[float, ...], bound: float) -> None:
    """Their mean at the bound is 1."""
    chances = binomial(20, bound)
    for number in range(len(bets)):
        mean = sum(p * math.exp(hold(bad, 20, bound, bets)[number]) for bad, p in enumerate(chances))
        assert mean == pytest.approx(1.0)


def test_a_healthy_candidate_is_not_failed_while_base_rates_and_weights_change() -> None:
    """200 releases of 20 intervals each, with outages that hit both."""
    chance = random.Random(20)
    failed = 0
    for _ in range(200):
        intervals = []
        for weight in [0.02, 0.1, 0.3, 0.6, 0.9] * 4:
            rate = chance.choice([0.0, 0.001, 0.02, 0.5])
            ours, theirs = int(400 * weight), int(400 * (1 - weight))
            intervals.append(
                Interval(
                    stable=counted(theirs, drawn(chance, theirs, rate)),
                    candidate=counted(ours, drawn(chance, ours, rate)),
                )
            )
        failed += "Fail" in words(judged(ERRORS, intervals))
    assert failed == 0


def test_intervals_are_strata() -> None:
    """An outage in the minutes in which the candidate has more requests does not speak against it."""
    intervals = [
        *[Interval(stable=counted(9500, 10), candidate=counted(500, 0))] * 10,
        *[Interval(stable=counted(5000, 1500), candidate=counted(5000, 1500))] * 3,
    ]
    assert "Fail" not in words(judged(ERRORS, intervals))
    pooled = Interval(
        stable=counted(
            sum(each.stable.requests for each in intervals), sum(each.stable.errors for each in intervals)
        ),
        candidate=counted(
            sum(each.candidate.requests for each in intervals),
            sum(each.candidate.errors for each in intervals),
        ),
    )
    assert words(judged(ERRORS, [pooled])) == ["Fail"]  # what adding them up would have said


@pytest.mark.parametrize("rest", ["before", "between", "after"])
def test_intervals_fail_a_bad_candidate_in_any_order(rest: str) -> None:
    """Healthy intervals, be they many, hide bad ones neither before nor after them."""
    fine = [Interval(stable=counted(13500, 14), candidate=counted(1500, 1))] * 100
    bad = Interval(stable=counted(13500, 14), candidate=counted(1500, 75))
    intervals = {"before": [*fine, bad, bad], "between": [bad, *fine, bad], "after": [bad, *fine]}[rest]
    verdicts = words(judged(ERRORS, intervals))
    assert verdicts[intervals.index(bad)] == "Fail"
    assert (verdicts[-1] == "Fail") is (rest != "after")  # not one that has been mended long since


def test_a_bad_candidate_is_failed_within_two_intervals() -> None:
    """5 % of errors and 2 % of mismatches, at 50 requests a second for 30 s; 100 releases each."""
    chance = random.Random(7)
    soon = 0
    for _ in range(100):
        failing = [
            Interval(stable=counted(3000, drawn(chance, 3000, 0.001)), candidate=counted(1500, n))
            for n in (drawn(chance, 1500, 0.05),)
        ]
        differing = [copies(1500, drawn(chance, 1500, 0.02)) for _ in range(2)]
        soon += words(judged(ERRORS, failing)) == ["Fail"] and "Fail" in words(judged(MISMATCH, differing))
    assert soon >= 98


@pytest.mark.parametrize("median", [0.004, 0.03, 0.06, 0.09])
def test_latency_tells_200_ms_from_a_tenth(median: float) -> None:
    """What is 10 % slower passes, wherever the stable's quantile is in its bucket; +200 ms fails at once."""
    chance = random.Random(3)
    slower = [
        Interval(stable=took(chance, 2000, median), candidate=took(chance, 600, median, times=1.1))
        for _ in range(4)
    ]
    late = Interval(stable=slower[0].stable, candidate=took(chance, 600, median, more=0.2))
    assert words(judged(LATENCY, slower))[-1] == "Pass"
    assert "Fail" not in words(judged(LATENCY, slower))
    assert words(judged(LATENCY, [late])) == ["Fail"]
    assert words(judged(LATENCY, [*slower, late, late]))[-1] == "Fail"


@pytest.mark.parametrize("edge", [-1, 0, 28, 29, 1000])
def test_any_state_of_latency_is_gone_on_from(edge: int) -> None:
    """A bucket that there is not is no known quantile."""
    chance = random.Random(5)
    interval = Interval(stable=took(chance, 500, 0.05), candidate=took(chance, 500, 0.05))
    state = re.sub('"edge":[0-9]+', f'"edge":{edge}', judge(LATENCY, "", interval, EDGES).state)
    assert '"looks":1,"worse"' in state
    assert '"looks":2,"worse"' in judge(LATENCY, state, interval, EDGES).state


def test_latency_is_judged_at_its_quantile() -> None:
    """A median twice as high is no failure of p99, where p99 is what it was."""
    stable = [0] * (len(EDGES) + 1)
    stable[EDGES.index(0.01)], stable[EDGES.index(0.2)] = 9000, 1000
    candidate = [0] * (len(EDGES) + 1)
    candidate[EDGES.index(0.03)], candidate[EDGES.index(0.2)] = 900, 100
    interval = Interval(
        stable=Counts(requests=10_000, seconds=tuple(stable)),
        candidate=Counts(requests=1000, seconds=tuple(candidate)),
    )
    assert words(judged(LATENCY, [interval] * 2)) == ["Pass", "Pass"]
    assert words(judged(ReleaseMetric(name="latency", quantile=0.5), [interval])) == ["Fail"]


@pytest.mark.parametrize(
    ("candidate", "stable", "missing"),
    [
        (0, 0, "the candidate had no request in this interval"),
        (0, 1000, "the candidate had no request in this interval"),
        (1000, 0, "the stable had no request in this interval"),
    ],
)
@pytest.mark.parametrize("metric", [ERRORS, LATENCY])
def test_without_requests_of_both_nothing_is_decided(
    metric: ReleaseMetric, candidate: int, stable: int, missing: str
) -> None:
    """It waits and says for what; what was shown before stays shown."""
    chance = random.Random(1)
    empty = Interval(
        stable=took(chance, stable, 0.05) if stable else Counts(),
        candidate=took(chance, candidate, 0.05) if candidate else Counts(),
    )
    verdict = judge(metric, "", empty, EDGES)
    assert (verdict.verdict, missing in verdict.message) == ("Waiting", True)
    shown = judge(
        metric,
        "",
        Interval(stable=took(chance, 3000, 0.05), candidate=took(chance, 2000, 0.05)),
        EDGES,
    )
    after = judge(metric, shown.state, empty, EDGES)
    assert (shown.verdict, after.verdict) == ("Pass", "Pass")


@pytest.mark.parametrize("rate", [0.0, 0.05])
@pytest.mark.parametrize("count", [10**9, 10**12])
def test_huge_counts_are_judged_and_their_state_is_small(count: int, rate: float) -> None:
    """All metrics, beside thresholds, for many intervals: within what the status may hold."""
    seconds = tuple([count // 40] * (len(EDGES) + 1))
    bad = int(count * rate)
    interval = Interval(
        stable=Counts(requests=count, errors=bad, seconds=seconds),
        candidate=Counts(
            requests=count, errors=bad, refused=bad, seconds=seconds, compared=count, differing=bad
        ),
    )
    for metric in (
        ERRORS,
        ReleaseMetric(name="errorRatio", threshold=0.2, failure_limit=100),
        ReleaseMetric(name="latency", threshold=0.123, quantile=0.999),
        MISMATCH,
    ):
        verdicts = judged(metric, [interval] * 30)
        assert max(len(verdict.state) for verdict in verdicts) <= 1024
        assert max(len(verdict.message) for verdict in verdicts) <= 512
    assert words(judged(ERRORS, [interval] * 2)) == ["Pass", "Pass"]


def _state(metric: ReleaseMetric) -> str:
    return judge(metric, "", Interval(stable=counted(100), candidate=counted(100, 9)), EDGES).state


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "{}",
        "[" * 1024,
        "\x00\ud800",
        '{"of":"errorRatio 00000000"}',
        _state(ERRORS).replace("looks", "looked"),
        _state(ERRORS).replace('"looks":1', '"looks":-1'),
        _state(ERRORS).replace('"looks":1', '"looks":NaN'),
        _state(ERRORS).replace('"worse":[', '"worse":[1.0,'),
        _state(ERRORS).replace('"worse":[', '"worse":[1e300,'),
        _state(ERRORS) + " " * 1024,
        _state(ReleaseMetric(name="errorRatio", threshold=0.5)),
        _state(MISMATCH),
    ],
)
def test_a_foreign_state_begins_afresh(text: str) -> None:
    """Bad JSON, another version's, another metric's or another threshold's is as none; nothing is raised."""
    interval = Interval(stable=counted(500, 5), candidate=counted(500, 5))
    assert judge(ERRORS, text, interval, EDGES) == judge(ERRORS, "", interval, EDGES)
    assert judge(ERRORS, _state(ERRORS), interval, EDGES) != judge(ERRORS, "", interval, EDGES)


@pytest.mark.parametrize(
    ("metric", "interval", "verdict", "message"),
    [
        (
            ERRORS,
            Interval(stable=counted(28500, 30), candidate=counted(1500, 75, 12)),
            "Fail",
            (
                "75 of 1500 recent requests failed (12 of them refused by Penstock); at the stable's error "
                "rate it would be 1.58: the candidate is worse by more than 1%"
            ),
        ),
        (
            ERRORS,
            Interval(stable=counted(13500, 14), candidate=counted(1500, 2)),
            "Pass",
            (
                "2 of 1500 recent requests failed; at the stable's error rate it would be 1.56: "
                "the candidate is not worse by more than 1%"
            ),
        ),
        (
            ERRORS,
            Interval(stable=counted(900, 1), candidate=counted(100)),
            "Waiting",
            (
                "0 of 100 recent requests failed; at the stable's error rate it would be 0.11; "
                "about 420 more requests will show whether the candidate is worse by more than 1%"
            ),
        ),
        (MISMATCH, copies(1500, 45), "Fail", "45 of 1500 recent answers to copies differ (3%), above 1%"),
        (
            MISMATCH,
            copies(1500, 1),
            "Pass",
            "1 of 1500 recent answers to copies differ (0.0667%), shown to be at most 1%",
        ),
        (
            MISMATCH,
            copies(0, 0),
            "Waiting",
            "too little evidence; no answer to a copy was compared in this interval",
        ),
        (
            ReleaseMetric(name="errorRatio", threshold=0.02),
            Interval(stable=counted(13500, 675), candidate=counted(1500, 75)),
            "Fail",
            (
                "75 of 1500 recent requests failed (5%), above 2%. 75 of 1500 recent requests failed; at "
                "the stable's error rate it would be 75; about 6900 more requests will show whether the "
                "candidate is worse by more than 1%"
            ),
        ),
    ],
)
def test_messages_say_the_numbers(
    metric: ReleaseMetric, interval: Interval, verdict: str, message: str
) -> None:
    """What was counted, what it is held against, and how much is missing."""
    judged = judge(metric, "", interval, EDGES)
    assert (judged.verdict, judged.message) == (verdict, message)


@pytest.mark.parametrize("rate", [0.0, 0.001, 0.02])
def test_so_many_more_requests_are_about_enough(rate: float) -> None:
    """The number in the message is right within a factor of two, at the rates that it was said at."""

    def interval(requests: int) -> Interval:
        return Interval(
            stable=counted(9 * requests, round(9 * requests * rate)),
            candidate=counted(requests, round(requests * rate)),
        )

    verdict = judge(ERRORS, "", interval(100), EDGES)
    more = int(verdict.message.partition("about ")[2].split()[0])
    assert judge(ERRORS, verdict.state, interval(more // 2), EDGES).verdict == "Waiting"
    assert judge(ERRORS, verdict.state, interval(more * 2), EDGES).verdict == "Pass"


def test_a_candidate_that_was_mended_passes_again() -> None:
    """With onFailure: Pause, evidence of before is outweighed within minutes."""
    bad = Interval(stable=counted(13500, 14), candidate=counted(1500, 150))
    fine = Interval(stable=counted(13500, 14), candidate=counted(1500, 1))
    verdicts = words(judged(ERRORS, [bad] * 10 + [fine] * 5))
    assert (verdicts[9], verdicts[-1]) == ("Fail", "Pass")


@pytest.mark.parametrize(("errors", "verdict"), [(0, "Pass"), (5, "Fail")])
def test_the_percents_of_a_verdict_grow_until_it_is_reached(errors: int, verdict: str) -> None:
    interval = Interval(stable=counted(900), candidate=counted(100, errors))
    verdicts = judged(ERRORS, [interval] * 10)
    grown = [each.pass_percent if verdict == "Pass" else each.fail_percent for each in verdicts]
    assert len(set(grown)) > 2
    assert grown == sorted(grown, key=lambda percent: percent or 0)
    assert [percent == 100 for percent in grown] == [word == verdict for word in words(verdicts)]


@pytest.mark.parametrize(("limit", "expected"), [(0, ["Fail"] * 3), (2, ["Waiting", "Waiting", "Fail"])])
def test_a_threshold_may_be_crossed_in_so_many_intervals(limit: int, expected: list[str]) -> None:
    """What failureLimit counts is intervals that show it to be above, and each needs its own evidence."""
    metric = ReleaseMetric(name="mismatch", threshold=0.01, failure_limit=limit)
    verdicts = judged(metric, [copies(1500, 60)] * 3)
    assert words(verdicts) == expected
    assert limit == 0 or "in 1 of 2 intervals in which it may be" in verdicts[0].message


@pytest.mark.parametrize(
    ("threshold", "differing", "expected"),
    [(0.0, 0, "Pass"), (0.0, 1, "Fail"), (1.0, 9000, "Pass"), (0.5, 6000, "Fail"), (0.5, 100, "Pass")],
)
def test_thresholds_at_their_ends(threshold: float, differing: int, expected: str) -> None:
    """At 0, one that differs is one too many; 1 is never exceeded."""
    metric = ReleaseMetric(name="mismatch", threshold=threshold)
    assert judge(metric, "", copies(9000, differing), EDGES).verdict == expected


@pytest.mark.parametrize(("rate", "expected"), [(0.004, "Pass"), (0.013, "Fail")])
def test_a_threshold_is_on_the_value(rate: float, expected: str) -> None:
    """What is clearly below passes, what is above fails; many requests decide what is near."""
    verdicts = words(judged(MISMATCH, [copies(20_000, int(20_000 * rate))] * 3))
    assert verdicts[-1] == expected


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [(0.05, "Fail"), (0.12, "Fail"), (0.17, "Waiting"), (0.3, "Pass"), (500.0, "Pass")],
)
def test_a_threshold_of_latency_may_be_between_two_bounds(threshold: float, expected: str) -> None:
    """A candidate fails where its quantile is beyond the next bound, and no sooner."""
    seconds = [0] * (len(EDGES) + 1)
    seconds[EDGES.index(0.2)] = 2000  # all within 0.15 to 0.2 s
    counts = Counts(requests=2000, seconds=tuple(seconds))
    metric = ReleaseMetric(name="latency", threshold=threshold)
    verdict = judge(metric, "", Interval(stable=counts, candidate=counts), EDGES)
    assert verdict.verdict == expected


@pytest.mark.parametrize(
    ("values", "limit", "expected"),
    [
        ([0.5, 1.0], 0, ["Pass", "Pass"]),
        ([1.1], 0, ["Fail"]),
        ([1.1, 0.9, 1.1, 2.0], 2, ["Waiting", "Pass", "Waiting", "Fail"]),
        ([None, math.nan, math.inf, -math.inf], 0, ["Waiting"] * 4),
    ],
)
def test_a_query_is_taken_by_its_value(values: list[float | None], limit: int, expected: list[str]) -> None:
    """Above the threshold in more intervals than may be fails; no number, no verdict."""
    metric = ReleaseMetric(name="prometheus", query="q", threshold=1.0, failure_limit=limit)
    verdicts: list[Verdict] = []
    for value in values:
        verdicts.append(judge_value(metric, verdicts[-1].state if verdicts else "", value))
    assert words(verdicts) == expected
    assert all("expected" in each.message for each in verdicts) is (values[0] is None)


def test_states_go_with_their_metrics() -> None:
    """Two queries, and a metric that was put before the others: each goes on from its own evidence."""
    queries = [
        ReleaseMetric(name="prometheus", query=query, threshold=1.0, failure_limit=1) for query in "ab"
    ]
    interval = Interval(stable=counted(300), candidate=counted(300))
    values: dict[str, Any] = {"a": 2.0, "b": 0.0}
    first = judge_all([*queries, ERRORS], [], interval, EDGES, values)
    assert words(first) == ["Waiting", "Pass", "Waiting"]
    second = judge_all([LATENCY, ERRORS, *queries], first, interval, EDGES, values | {"b": 2.0})
    assert words(second) == ["Waiting", "Pass", "Fail", "Waiting"]
    with pytest.raises(ValueError, match="expected a metric that routers count, found prometheus"):
        judge(queries[0], "", interval, EDGES)


@pytest.mark.parametrize("seconds", [0.0011, 0.0031, 0.051, 0.151, 0.301, 1.01, 3.1])
def test_what_is_more_than_2_4_times_as_slow_fails_wherever_it_is_in_its_bucket(seconds: float) -> None:
    """And what is a fifth slower does not: what lies between depends on the bucket."""

    def all_took(count: int, each: float) -> Counts:
        buckets = [0] * (len(EDGES) + 1)
        buckets[bisect.bisect_left(EDGES, each)] = count
        return Counts(requests=count, seconds=tuple(buckets))

    slow, fine = (
        [Interval(stable=all_took(9000, seconds), candidate=all_took(1000, times * seconds))] * 2
        for times in (2.4, 1.2)
    )
    assert "Fail" in words(judged(LATENCY, slow))
    assert words(judged(LATENCY, fine)) == ["Pass", "Pass"]
