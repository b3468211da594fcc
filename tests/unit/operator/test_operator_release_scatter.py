"""Requests that fail or are late together: whole batches take no healthy candidate back."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from penstock_operator.api.strategy import ReleaseMetric, Verdict
from penstock_operator.releases.evidence import judge
from penstock_operator.releases.record import KEPT, Trial
from penstock_operator.releases.scatter import JOINED, LEAST, scattered
from penstock_operator.releases.sequential import RISES, compare
from penstock_operator.releases.state import Counts, Interval
from penstock_wire.control.report import FIRST_BYTE_SECONDS as EDGES

PARTS = 50
"""Of an interval of 30 s, with a report each 0.6 s."""
FAST, LATE = EDGES.index(0.03), EDGES.index(1.0)


def judged(name: Any, intervals: Sequence[Interval], **more: Any) -> list[Verdict]:
    verdicts: list[Verdict] = []
    for interval in intervals:
        state = verdicts[-1].state if verdicts else ""
        verdicts.append(judge(ReleaseMetric(name=name, **more), state, interval, EDGES))
    return verdicts


def words(verdicts: Sequence[Verdict]) -> list[str]:
    return [verdict.verdict for verdict in verdicts]


def counted(name: str, bad: int, requests: int) -> Counts:
    """Requests of which some are bad by a metric."""
    requests = max(bad, requests)
    match name:
        case "errorRatio":
            return Counts(requests=requests, errors=bad)
        case "mismatch":
            return Counts(compared=requests, differing=bad)
    seconds = [0] * (len(EDGES) + 1)
    seconds[FAST], seconds[LATE] = requests - bad, bad
    return Counts(requests=requests, seconds=tuple(seconds))


def interval(name: str, ours: Sequence[int], theirs: Sequence[int], requests: int, stable: int) -> Interval:
    """An interval by the bad requests in each of its parts."""
    parts = tuple(
        (counted(name, other, stable // len(theirs)), counted(name, own, requests // len(ours)))
        for own, other in zip(ours, theirs, strict=True)
    )

    def whole(counts: list[Counts]) -> Counts:
        columns = zip(*(each.seconds for each in counts), strict=True)
        return Counts(
            requests=sum(each.requests for each in counts),
            errors=sum(each.errors for each in counts),
            seconds=tuple(map(sum, columns)),
            compared=sum(each.compared for each in counts),
            differing=sum(each.differing for each in counts),
        )

    return Interval(
        stable=whole([each for each, _ in parts]), candidate=whole([each for _, each in parts]), parts=parts
    )


def drawn(chance: random.Random, name: str, share: float, base: float, batch: int, rate: int) -> Interval:
    """30 s of a candidate with so many requests a second, and nine times as many of the stable.

    Args:
        share: of the candidate's batches that are bad as a whole.
    """

    def bad(requests: int, part: float) -> list[int]:
        parts = [0] * PARTS
        for _ in range(requests // batch):
            if chance.random() < part:
                parts[chance.randrange(PARTS)] += batch
        return parts

    ours, theirs = 30 * rate, 270 * rate
    return interval(name, bad(ours, share), bad(theirs, base), ours, theirs)


@pytest.mark.parametrize(
    ("name", "share", "rate", "releases"),
    [("errorRatio", 0.005, 50, 60), ("errorRatio", 0.02, 5, 60), ("latency", 0.005, 50, 30)],
)
def test_whole_batches_that_are_bad_take_no_healthy_candidate_back(
    name: str, share: float, rate: int, releases: int
) -> None:
    """Batches of 32, as many with the stable; by the sums alone every third was taken back."""
    chance = random.Random(20)
    failed = [
        "Fail" in words(judged(name, [drawn(chance, name, share, share, 32, rate) for _ in range(20)]))
        for _ in range(releases)
    ]
    assert sum(failed) == 0


def test_a_moment_of_a_pod_takes_nothing_back() -> None:
    """One pod fails half of its requests for 3 s, as one of the stable's pods did before."""
    moment = [0] * 20 + [15] * 5 + [0] * 25
    quiet = [0] * PARTS
    story = [(quiet, moment), (quiet, quiet), (moment, quiet), (quiet, quiet)]
    intervals = [interval("errorRatio", ours, theirs, 1500, 13_500) for ours, theirs in story]
    verdicts = judged("errorRatio", intervals)
    assert "Fail" not in words(verdicts)
    alone = Interval(stable=intervals[2].stable, candidate=intervals[2].candidate)
    assert words(judged("errorRatio", [alone])) == ["Fail"]  # what the sums alone would have said
    assert "come at a time and count as one" in verdicts[2].message


@pytest.mark.parametrize("name", ["errorRatio", "latency", "mismatch"])
def test_requests_that_are_bad_by_themselves_fail_a_candidate_as_soon(name: str) -> None:
    """5 % of 50 requests a second: within two intervals, in each of 40 releases."""
    chance = random.Random(3)
    for _ in range(40):
        verdicts = words(judged(name, [drawn(chance, name, 0.05, 0.001, 1, 50) for _ in range(2)]))
        assert "Fail" in verdicts


def test_a_candidate_whose_batches_fail_is_taken_back() -> None:
    """5 % of its batches of 32, at 200 requests a second: later, since these are fewer trials."""
    chance = random.Random(5)
    verdicts = words(judged("errorRatio", [drawn(chance, "errorRatio", 0.05, 0.001, 32, 200)] * 6))
    assert verdicts[-1] == "Fail"


def test_a_moment_of_the_past_hides_what_fails_now_for_a_few_intervals_at_most() -> None:
    """300 failed requests in a moment, then 5 % of all."""
    chance = random.Random(8)
    moment = interval("errorRatio", [0] * 45 + [60] * 5, [0] * PARTS, 1500, 13_500)
    steady = [drawn(chance, "errorRatio", 0.05, 0.001, 1, 50) for _ in range(10)]
    assert "Fail" in words(judged("errorRatio", [moment, *steady]))


@pytest.mark.parametrize("threshold", [0.02, 0.1])
@pytest.mark.parametrize("name", ["errorRatio", "mismatch"])
def test_a_threshold_counts_events_too(name: str, threshold: float) -> None:
    """One batch of 32 is not above a threshold; the same share, one by one, is."""
    one = interval(name, [32] + [0] * 49, [0] * PARTS, 200, 1800)
    spread = interval(name, [1, 1, 0] * 16 + [0, 0], [0] * PARTS, 200, 1800)
    assert words(judged(name, [one], threshold=threshold)) == ["Waiting"]
    assert words(judged(name, [spread], threshold=threshold)) == ["Fail"]


def test_evidence_by_events_is_evidence() -> None:
    """E^(1/d) has a mean of at most 1 where batches of d fail as wholes, or in part; by enumeration."""
    batch, margin, base = 4, 0.05, 0.2
    at = margin + (1 - margin) * base

    def binomial(count: int, rate: float) -> list[float]:
        return [math.comb(count, k) * rate**k * (1 - rate) ** (count - k) for k in range(count + 1)]

    ours, theirs = binomial(5, at), binomial(12, base)
    mean = [0.0] * len(RISES)
    single = [0.0] * len(RISES)
    for own, other in itertools.product(range(6), range(13)):
        gains = compare(batch * own, batch * 5, batch * other, batch * 12, margin, RISES)
        chance = ours[own] * theirs[other]
        mean = [total + chance * math.exp(gain / batch) for total, gain in zip(mean, gains, strict=True)]
        single = [total + chance * math.exp(gain) for total, gain in zip(single, gains, strict=True)]
    assert max(mean) <= 1.0 + 1e-9
    assert max(single) > 100.0


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([8, 0, 0, 0, 0, 0, 0, 0], [0] * 8, 8),
        ([1] * 8, [0] * 8, 1),
        ([0] * 8, [9, 0, 0, 0, 0, 0, 0, 0], 9),
        ([4, 0, 0, 0, 0, 0, 0, 4], [36, 0, 0, 0, 0, 0, 0, 36], 1),  # what hits both at once drops out
        ([8], [0], 8),
        ([0, 0, 5, 5, 0, 0, *[0] * 6], [0] * 12, 10),  # two parts joined
        ([0, 5, 5, 0], [0] * 4, 10 / 3),  # too few to join
        ([0], [0], 1),
    ],
)
def test_how_many_bad_ones_count_as_one(ours: list[int], theirs: list[int], expected: float) -> None:
    """As many as come at a time."""
    trial = Trial()
    parts = [(float(own), 20.0, float(other), 180.0) for own, other in zip(ours, theirs, strict=True)]
    if any(ours) or any(theirs):
        trial.scatter(*scattered(parts))
    assert trial.together == pytest.approx(expected, rel=0.01)
    trial.scatter([0.0] * len(JOINED), 0.0)
    assert trial.together == pytest.approx(expected, rel=0.01), "while none is bad, the estimate stays"
    assert KEPT < 1
    assert LEAST > 2
