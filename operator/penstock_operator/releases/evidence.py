"""Verdicts on a candidate, from the routers' counts of an interval.

Read `sequential` (the arithmetic, with its sources), `scatter` (requests that fail together), `margins` (the
size of harm, and the certainty of a verdict), `record` (the state that is kept from one interval to the
next), `trials`, then this.

| metric | against the stable, in the same intervals | against `threshold` |
| -- | -- | -- |
| errorRatio | the share of requests that fail, margin 1 % of all | the share that fails |
| latency | the share of answers beyond the stable's quantile, margin 1 - quantile | the share beyond it |
| mismatch | | the share of copies that differ, 1 % by default |
| prometheus | | the query's value, as it is |

Fail: the candidate is worse than the margin allows. Pass: it is not. Waiting: neither is shown.

Certainty: of healthy candidates at most 1 in 200 fails, in a release with up to eight metrics and any number
of intervals (prometheus has no such bound, since a query's value is taken as it is). A healthy candidate is
not worse than the stable by the margin, and at most at a third of a threshold. Of candidates beyond the
margin at most 1 in 20 passes a metric. Both hold while base rates change; they rest on the draw by weight.
Requests that fail or are late together, as with their batch, count as one, as far as that shows (`scatter`):
a candidate that fails 32 requests at a time can pass before it has failed any. Routers count nothing that a
client decides (`BackendTotals`).

Intervals of 30 s until a verdict (simulated while base rates change; the median, and the 99th percentile):

| requests a second of the candidate, or copies | 1 | 5 | 20 | 50 |
| -- | -- | -- | -- | -- |
| 5 % of errors fail | 13, 44 | 3, 9 | 1, 4 | 1, 2 |
| 200 ms more on a service whose p99 is below 0.3 s fail | 1, 5 | 1, 1 | 1, 1 | 1, 1 |
| 2 % of mismatches fail | 19, 55 | 5, 17 | 2, 5 | 1, 2 |
| a healthy candidate passes errorRatio | 26, 153 | 6, 37 | 2, 8 | 1, 4 |
| a healthy candidate passes latency | 33, 109 | 6, 16 | 2, 4 | 1, 2 |

Of 10 000 simulated releases of healthy candidates none was rolled back, and of bad ones at 50 requests a
second more than 99 in 100 within two intervals: `python -m tests.support.worlds.simulated_releases`.

**Latency.** A candidate that is 10 % slower is healthy, and counts by bucket do not show where in a bucket an
answer was. So the candidate's share beyond one bound is compared with the stable's beyond a smaller bound (by
at least 1.25 times): a candidate that is slower by at most this factor is inside the hypothesis, wherever the
quantile is in its bucket. The money is spread over the pairs of bounds at and near the stable's quantile
before the interval, or over all pairs while that is unknown. Wins of pairs far below the quantile do not
count, as latency is to be judged around it (p99: from p95 on). To leave out wins only lowers an e-value, so
the interval's own answers can decide it. To pass, every pair from there to the quantile must show it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

from penstock_operator.api.strategy import ReleaseMetric, Verdict
from penstock_operator.releases.margins import (
    AROUND,
    ERRORS,
    FAIL,
    MISMATCH,
    MOST_TAIL,
    PASS,
    QUANTILE,
    RECENT_ANSWERS,
    SLOWER,
)
from penstock_operator.releases.record import Evidence, Trial, about, key, read, write
from penstock_operator.releases.scatter import Part, scattered
from penstock_operator.releases.sequential import FALLS, RISES, average, compare
from penstock_operator.releases.state import Counts, Interval
from penstock_operator.releases.trials import (
    Finding,
    Share,
    against_stable,
    against_threshold,
    together,
)
from penstock_wire.words import cut

NEAR = (0.6, 0.15, 0.04)
"""Shares of the money on the pair of bounds at the quantile, on its neighbours, and on the next ones."""
NOTHING_COMPARED = "no answer to a copy was compared in this interval"
MOST_MESSAGE = 512
MOST_COUNT = 10**12
"""Upper limit of a plausible count of requests within an interval."""


def judge_all(
    metrics: Sequence[ReleaseMetric],
    verdicts: Sequence[Verdict],
    interval: Interval,
    edges: tuple[float, ...],
    values: Mapping[str, float | None],
) -> tuple[Verdict, ...]:
    """Judge a candidate by all metrics: a verdict for each, in their order.

    A metric without counts in an interval (errorRatio and latency while there are copies alone, mismatch once
    there are none) keeps its evidence, and so its verdict.

    Args:
        verdicts: the verdicts of the previous interval, with their states.
        edges: upper bounds of the wire's buckets of latency, in seconds.
        values: results of queries, by query; None, or absent, for a query without a result.
    """
    states = {about(verdict.state): verdict.state for verdict in verdicts}
    findings = []
    for metric in metrics:
        state = states.get(key(metric, len(edges)), "")
        if metric.name == "prometheus":
            findings.append(judge_value(metric, state, values.get(metric.query or ""), edges))
        else:
            findings.append(judge(metric, state, interval, edges))
    return tuple(findings)


def judge(metric: ReleaseMetric, state: str, interval: Interval, edges: tuple[float, ...]) -> Verdict:
    """Judge a candidate by the routers' counts.

    Args:
        metric: the metric; not prometheus.
        state: `state` of the previous verdict; with anything else the evidence begins afresh.
        interval: the counts since then, with the same weights throughout.
        edges: upper bounds of the buckets of latency, in seconds.
    """
    evidence = read(state, key(metric, len(edges)))
    match metric.name:
        case "errorRatio":
            findings = _errors(metric, evidence, interval)
        case "latency":
            findings = _latency(metric, evidence, interval, edges)
        case "mismatch":
            findings = [_mismatch(metric, evidence, interval)]
        case _:
            msg = f"expected a metric that routers count, found {metric.name}"
            raise ValueError(msg)
    return _verdict(metric, together(findings), evidence)


def judge_value(
    metric: ReleaseMetric, state: str, value: float | None, edges: tuple[float, ...] = ()
) -> Verdict:
    """Judge a candidate by the value of a query.

    Args:
        state: `state` of the previous verdict; with anything else the evidence begins afresh.
    """
    evidence = read(state, key(metric, len(edges)))
    trial, threshold, limit = evidence.threshold, metric.threshold or 0.0, metric.failure_limit
    if value is None:
        finding = Finding(verdict="Waiting", message="the query has no result; expected one number")
    elif not math.isfinite(value):
        finding = Finding(
            verdict="Waiting", message=f"the query's result is {value}; expected a finite number"
        )
    elif value <= threshold:
        finding = Finding(verdict="Pass", message=f"{value:g}, at most {threshold:g}")
    else:
        trial.failures += 1
        above = f"{value:g}, above {threshold:g}"
        if trial.failures > limit:
            trial.failures = limit + 1
            finding = Finding(verdict="Fail", message=above)
        else:
            finding = Finding(
                verdict="Waiting",
                message=f"{above}, in {trial.failures} of {limit} intervals in which it may be",
            )
    return _verdict(metric, finding, evidence)


def _verdict(metric: ReleaseMetric, finding: Finding, evidence: Evidence) -> Verdict:
    trials = [trial for trial in (evidence.stable, evidence.threshold) if trial.looks]
    return Verdict(
        metric=metric.label,
        verdict=finding.verdict,
        message=cut(finding.message, MOST_MESSAGE),
        fail_percent=_percent(max(trial.against for trial in trials) / FAIL) if trials else None,
        pass_percent=_percent(min(trial.in_favour for trial in trials) / PASS) if trials else None,
        state=write(evidence),
    )


def _percent(share: float) -> int:
    """A share of the evidence that a verdict takes; below none is none, and 100 only where it is enough."""
    return math.floor(100 * min(max(share, 0.0), 1.0))


def _errors(metric: ReleaseMetric, evidence: Evidence, interval: Interval) -> list[Finding]:
    candidate, stable = _failed(interval.candidate), _failed(interval.stable)
    trial, of, whole = evidence.stable, candidate.requests, stable.requests
    parts = [(_failed(ours), _failed(theirs)) for theirs, ours in interval.parts]
    if of > 0 and whole > 0:
        _scatter(trial, [(o.bad, o.requests, t.bad, t.requests) for o, t in parts])
        trial.bet(
            compare(candidate.bad, of, stable.bad, whole, ERRORS, RISES),
            compare(candidate.bad, of, stable.bad, whole, ERRORS, FALLS),
        )
    findings = [
        against_stable(trial, candidate, stable, ERRORS, ("requests failed", "the stable's error rate"))
    ]
    if metric.threshold is not None:
        _scatter(evidence.threshold, [(o.bad, o.requests, 0.0, 0.0) for o, _ in parts])
        findings.append(
            against_threshold(
                evidence.threshold,
                candidate,
                candidate.bad,
                metric.threshold,
                metric.failure_limit,
                "requests failed",
            )
        )
    return findings


def _mismatch(metric: ReleaseMetric, evidence: Evidence, interval: Interval) -> Finding:
    copies = _differing(interval.candidate)
    parts = [_differing(ours) for _, ours in interval.parts]
    _scatter(evidence.threshold, [(part.bad, part.requests, 0.0, 0.0) for part in parts])
    return against_threshold(
        evidence.threshold,
        copies,
        copies.bad,
        MISMATCH if metric.threshold is None else metric.threshold,
        metric.failure_limit,
        "answers to copies differ",
        none=NOTHING_COMPARED,
    )


def _scatter(trial: Trial, *readings: Sequence[Part]) -> None:
    """Add the scatter of an interval's bad requests, by the reading of the buckets that gives the most."""
    seen = [
        scattered(parts)
        for parts in readings
        if any(part[0] for part in parts) or any(part[2] for part in parts)
    ]
    if seen:
        trial.scatter(*max(seen, key=lambda each: max(each[0]) / each[1]))


def _differing(counts: Counts) -> Share:
    compared = min(max(counts.compared, 0), MOST_COUNT)
    return Share(bad=min(max(counts.differing, 0), compared), requests=compared)


def _failed(counts: Counts) -> Share:
    requests = min(max(counts.requests, 0), MOST_COUNT)
    errors = min(max(counts.errors, 0), requests)
    return Share(bad=errors, requests=requests, refused=min(max(counts.refused, 0), errors))


def _latency(
    metric: ReleaseMetric, evidence: Evidence, interval: Interval, edges: tuple[float, ...]
) -> list[Finding]:
    slow = 1.0 - (metric.quantile or QUANTILE)
    candidate, stable = _beyond(interval.candidate, edges), _beyond(interval.stable, edges)
    parts = [(_beyond(ours, edges), _beyond(theirs, edges)) for theirs, ours in interval.parts]
    findings = [_slower(metric, evidence, interval, candidate, stable, edges, parts)]
    if metric.threshold is not None:
        place = next((at for at, edge in enumerate(edges) if edge >= metric.threshold), len(edges))
        surely = candidate[place + 1] if place < len(edges) else 0.0
        lower = edges[place - 1] if place else 0.0
        part = (edges[place] - metric.threshold) / (edges[place] - lower) if place < len(edges) else 1.0
        late = surely + part * (candidate[place] - surely)
        bounds = [bound for bound in (place, place + 1) if bound < len(candidate)]
        _scatter(evidence.threshold, *([(ours[at], ours[0], 0.0, 0.0) for ours, _ in parts] for at in bounds))
        findings.append(
            against_threshold(
                evidence.threshold,
                Share(bad=late, requests=candidate[0]),
                surely,
                slow,
                metric.failure_limit,
                f"answers took more than {metric.threshold:g} s",
            )
        )
    return findings


def _slower(
    metric: ReleaseMetric,
    evidence: Evidence,
    interval: Interval,
    candidate: Sequence[float],
    stable: Sequence[float],
    edges: tuple[float, ...],
    spans: Sequence[tuple[Sequence[float], Sequence[float]]],
) -> Finding:
    trial, slow = evidence.stable, 1.0 - (metric.quantile or QUANTILE)
    margin, pairs = min(slow, MOST_TAIL), _pairs(edges)
    known = _recall(evidence, interval.stable, edges)
    now, first = (
        next((at for at, (low, _) in enumerate(pairs) if known[low + 1] <= most * known[0]), None)
        for most in (slow, AROUND * slow)
    )
    if now is None or first is None:
        last = f"{edges[pairs[-1][0]]:g} s" if pairs else "any bound of a bucket"
        return Finding(verdict="Waiting", message=f"the stable's {metric.label} is beyond {last}")
    low, high = pairs[now]
    if candidate[0] > 0 and stable[0] > 0:

        def gains(at: int, bets: Sequence[float]) -> list[float]:
            below, above = pairs[at]
            return compare(candidate[above + 1], candidate[0], stable[below + 1], stable[0], margin, bets)

        def reading(at: int) -> list[Part]:
            below, above = pairs[at]
            return [(ours[above + 1], ours[0], theirs[below + 1], theirs[0]) for ours, theirs in spans]

        bets_on = _spread(trial.edge, len(pairs))
        _scatter(trial, *(reading(at) for at, _ in bets_on if at >= first))
        parts = []
        for at, money in bets_on:
            rises = gains(at, RISES)
            parts.append((money, rises if at >= first else [min(gain, 0.0) for gain in rises]))
        fine = zip(*(gains(at, FALLS) for at in range(first, now + 1)), strict=True)
        trial.bet(average(parts), [min(each) for each in fine])
        if trial.edge != now:  # the remembered numbers are of other bounds
            trial.edge, trial.requests, trial.bad, trial.expected = now, 0.0, 0.0, 0.0
    words = (
        f"answers took more than {edges[high]:g} s",
        f"the stable's share beyond {edges[low]:g} s (about its {metric.label.removeprefix('latency ')})",
    )
    return against_stable(
        trial,
        Share(bad=candidate[high + 1], requests=candidate[0]),
        Share(bad=stable[low + 1], requests=stable[0]),
        margin,
        words,
    )


def _spread(quantile: int, pairs: int) -> list[tuple[int, float]]:
    """Spread the money over pairs of bounds.

    Args:
        quantile: index of the pair at the stable's quantile before this interval; out of range if unknown.
    """
    if not 0 <= quantile < pairs:
        return [(at, 1.0 / pairs) for at in range(pairs)]
    near = range(max(quantile - len(NEAR) + 1, 0), min(quantile + len(NEAR), pairs))
    return [(at, NEAR[abs(at - quantile)]) for at in near]


def _recall(evidence: Evidence, stable: Counts, edges: tuple[float, ...]) -> list[int]:
    """Add an interval's answers of the stable, and return the recent ones beyond each bound, as `_beyond`."""
    new, old = _seconds(stable, edges), evidence.seconds
    if len(old) != len(new):
        old = [0] * len(new)
    both = [a + b for a, b in zip(old, new, strict=True)]
    keep = min(1.0, RECENT_ANSWERS / max(sum(both), 1))
    evidence.seconds = [round(keep * count) for count in both]
    return _sums(both)


def _beyond(counts: Counts, edges: tuple[float, ...]) -> list[int]:
    """Count all answers, those beyond the first bound, and so on."""
    return _sums(_seconds(counts, edges))


def _seconds(counts: Counts, edges: tuple[float, ...]) -> list[int]:
    """Return counts by bucket; all 0 if they are of other buckets, as from a router of another version."""
    if len(counts.seconds) != len(edges) + 1:
        return [0] * (len(edges) + 1)
    return [min(max(count, 0), MOST_COUNT) for count in counts.seconds]


def _sums(counts: Sequence[int]) -> list[int]:
    sums = [0]
    for count in reversed(counts):
        sums.append(sums[-1] + count)
    return sums[:0:-1]


@functools.lru_cache(maxsize=8)
def _pairs(edges: tuple[float, ...]) -> tuple[tuple[int, int], ...]:
    """Pair each bound for the stable with the next bound that is SLOWER times as large, for the candidate."""
    pairs = []
    for low, edge in enumerate(edges):
        high = next((at for at in range(low + 1, len(edges)) if edges[at] >= SLOWER * edge), None)
        if high is not None:
            pairs.append((low, high))
    return tuple(pairs)
