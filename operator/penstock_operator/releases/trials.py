"""Judges a candidate in two kinds of trials: against the stable, and against a threshold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from penstock_operator.releases.margins import FAIL, LEAST_BOUND, PASS, RECENT, SOUND
from penstock_operator.releases.record import Trial
from penstock_operator.releases.sequential import FALLS, MOST, NOTHING, RISES, fresh, hold

NONE = (
    "the candidate had no request in this interval that counts: those with a key or of a rule are no evidence"
)
MOST_MISSING = 1e7
"""A message does not give a larger number of missing requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of a trial.

    Args:
        message: the numbers in words, and the evidence that is missing.
    """

    verdict: Literal["Pass", "Fail", "Waiting"]
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Requests of a backend within an interval.

    Args:
        refused: the bad requests that Penstock refused.
    """

    bad: float = 0.0
    requests: float = 0.0
    refused: float = 0.0


def against_stable(
    trial: Trial, candidate: Share, stable: Share, margin: float, words: tuple[str, str]
) -> Finding:
    """Judge a candidate against the stable, after the interval was bet on.

    Args:
        words: what makes a request bad, and the stable's share of such requests.
    """
    if candidate.requests > 0 and stable.requests > 0:
        _remember(trial, candidate, candidate.requests * stable.bad / stable.requests)
    most = percent(margin)
    if trial.requests:
        seen = f"{_bad(trial, words[0])}; at {words[1]} it would be {trial.expected:.3g}"
    else:
        seen = "too little evidence"
    if trial.against >= FAIL:
        return Finding(verdict="Fail", message=f"{seen}: the candidate is worse by more than {most}")
    if trial.in_favour >= PASS:
        return Finding(verdict="Pass", message=f"{seen}: the candidate is not worse by more than {most}")
    if not candidate.requests:
        missing = NONE
    elif not stable.requests:
        missing = "the stable had no request in this interval to hold it against"
    else:
        odds = (1.0 - margin) * candidate.requests / stable.requests
        p, base = trial.bad / trial.requests, trial.expected / trial.requests

        def growth(bet: float) -> float:
            x = min(bet, MOST / odds)
            return p * math.log1p(x) + base * (1 - margin) / odds * math.log1p(-x * odds) - margin * x

        missing = _missing(
            trial,
            [growth(x) for x in RISES],
            [growth(x) for x in FALLS],
            f"the candidate is worse by more than {most}",
        )
    return Finding(verdict="Waiting", message=f"{seen}; {missing}")


def against_threshold(
    trial: Trial, candidate: Share, surely: float, bound: float, limit: int, what: str, *, none: str = NONE
) -> Finding:
    """Bet on an interval of the candidate alone, and judge it against a threshold.

    Args:
        surely: the requests that are bad by any reading of the buckets.
        limit: number of intervals in which the share may be above it.
        none: message for an interval without requests.
    """
    bound = min(bound, 1.0)
    loose = max(bound, LEAST_BOUND)
    if candidate.requests > 0:
        trial.bet(
            hold(surely, candidate.requests, SOUND * bound, RISES),
            hold(candidate.bad, candidate.requests, loose, FALLS),
        )
        _remember(trial, candidate, 0.0)
    share = trial.bad / trial.requests if trial.requests else 0.0
    # If no request may be bad, a single bad one is proof.
    above = share > bound and (trial.against >= FAIL or (bound == 0.0 and surely > 0))
    if above and candidate.requests > 0:
        trial.failures += 1
    seen = f"{_bad(trial, what)} ({percent(share)})" if trial.requests else "too little evidence"
    if above and trial.failures > limit:
        trial.failures = limit + 1
        return Finding(verdict="Fail", message=f"{seen}, above {percent(bound)}")
    if above:
        trial.worse = [fresh(0) - math.log(len(RISES))] * len(RISES)  # the bet begins again
        return Finding(
            verdict="Waiting",
            message=f"{seen}, above {percent(bound)}, in {trial.failures} of {limit} intervals "
            "in which it may be",
        )
    if share <= loose and (trial.in_favour >= PASS or (trial.requests and bound == 1.0)):
        return Finding(verdict="Pass", message=f"{seen}, shown to be at most {percent(loose)}")
    if not candidate.requests:
        return Finding(verdict="Waiting", message=f"{seen}; {none}")

    def growth(x: float, at: float) -> float:
        return share * math.log1p(x) - math.log1p(x * at)

    missing = _missing(
        trial,
        [growth(x, SOUND * bound) if share > bound else 0.0 for x in RISES],
        [growth(x, loose) for x in FALLS],
        f"it is above {percent(bound)}",
    )
    return Finding(verdict="Waiting", message=f"{seen}; {missing}")


def together(findings: Sequence[Finding]) -> Finding:
    """Combine several trials of one metric: one failure fails, and all must pass."""
    order: tuple[Literal["Fail", "Waiting", "Pass"], ...] = ("Fail", "Waiting", "Pass")
    worst = next(verdict for verdict in order if any(each.verdict == verdict for each in findings))
    ordered = sorted(findings, key=lambda each: order.index(each.verdict))
    return Finding(verdict=worst, message=". ".join(each.message for each in ordered))


def percent(share: float) -> str:
    """A share in words."""
    return f"{100 * share:.3g}%"


def _remember(trial: Trial, candidate: Share, expected: float) -> None:
    keep = min(1.0, RECENT / trial.requests) if trial.requests else 0.0
    trial.requests = round(keep * trial.requests + candidate.requests, 1)
    trial.bad = round(keep * trial.bad + candidate.bad, 1)
    trial.refused = round(keep * trial.refused + candidate.refused, 1)
    trial.expected = round(keep * trial.expected + expected, 2)


def _bad(trial: Trial, what: str) -> str:
    refused = f" ({trial.refused:.0f} of them refused by Penstock)" if trial.refused >= 0.5 else ""
    return f"{trial.bad:.0f} of {trial.requests:.0f} recent {what}{refused}"


def _missing(trial: Trial, worse: list[float], fine: list[float], question: str) -> str:
    """Say about how many more requests decide at these rates: the gap of each bet by its gain per request."""

    def requests(wealth: list[float], growths: list[float], goal: float) -> float:
        least = fresh(trial.looks) - math.log(len(growths))
        logs = wealth or [NOTHING] * len(growths)
        more = [(goal - max(log, least)) / g for log, g in zip(logs, growths, strict=True) if g > 1e-12]
        return min(more, default=math.inf)

    one = trial.together
    count = one * min(requests(trial.fine, fine, PASS), requests(trial.worse, worse, FAIL))
    if count > MOST_MISSING:
        return f"too near to the bound for any number of requests to show whether {question}"
    digits = 1 - math.floor(math.log10(max(count, 1.0)))
    events = f"some {one:.0f} of these come at a time and count as one; " if one >= 2.0 else ""
    about = f"{round(max(count, 1.0), min(digits, 0)):.0f}"
    return f"{events}about {about} more requests will show whether {question}"
