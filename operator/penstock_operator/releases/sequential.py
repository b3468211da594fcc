"""Evidence that adds up over intervals, and is valid for any number of looks and any time to stop.

The counts of an interval become an e-value: a number that is not negative, and has a mean of at most 1 if the
hypothesis is true. The product over intervals is money that bets against the hypothesis; the probability that
it ever grows to 1/a although the hypothesis is true is at most a, for any number of looks (Ville's
inequality, 1939; Wald's sequential probability ratio test, 1945, is the case of two simple hypotheses;
Grünwald, de Heide, Koolen: "Safe testing", JRSS B 2024). Each interval is a stratum: the base rate can differ
between them (Turner, Grünwald: "Safe sequential testing and effect estimation in stratified count data",
AISTATS 2023; Lindon, Malek: "Anytime-valid inference for multinomial count data", NeurIPS 2022).

**Two backends** (`compare`). In the same minutes, k of n requests of the candidate are bad, and K of N of the
stable. The hypothesis is about the unknown rates p and P, averages within the interval:

    x > 0: p ≤ P + m (1 - P)     the candidate is worse by the margin m at most
    x < 0: p ≥ P + m (1 - P)     the candidate is worse by the margin or more

    E = (1 + x)^k · (1 - x o)^K · exp(-n m x),     o = (1 - m) n / N

Its mean is at most 1: a request that is bad with the probability q gives the mean 1 + x q ≤ exp(x q), so E's
mean is at most exp(x n (p - (1 - m) P - m)), and both hypotheses make that exponent at most 0. The unknown
base rate has dropped out, so learning it costs nothing, and it can change within the interval. The proof
needs independent requests if the candidate differs from the stable. If it does not, the random draw is
enough: whichever requests fail, and however they depend on each other, a random n of all are the candidate's,
k is hypergeometric, and the mean is at most that of drawing with replacement (Hoeffding 1963, theorem 4, as E
is convex in k), which is at most 1. This does not cover a request that fails with its batch, since the
version decides which batch it is in: see `scatter`.

**One share** (`hold`) against the bound b: E = (1 + x)^k / (1 + x b)^n; x > 0 against "at most b", x < 0
against "at least b". Exact for a binomial count.

The size of the effect is unknown in advance, so the money is spread over some values of x. Its beginning is
unknown too (a memory leak can show after hours): half of the money bets from the first interval on, and
1/(2t(t+1)) of it from each later interval t on. So past health does not hide a new fault, at the price of a
factor 2t(t+1): 7 nats at the 24th interval (a nat: a factor e), where 5 % of errors give 60 at 50 requests/s.
Money above a cap is thrown away, which is always valid, so that new evidence to the contrary shows soon.

Cost: a few logarithms an interval, whatever the counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

RISES = (0.15, 0.4, 1.0, 2.5, 7.0, 30.0)
"""x of bets that the candidate is worse. The best x is p / (P + m) - 1."""
FALLS = (-0.95, -0.7, -0.4, -0.2, -0.1, -0.04)
"""x of bets that the candidate is not worse."""
MOST = 0.75
"""Upper limit of x o: if the stable has few requests, its rate is so uncertain that a bet loses more by one
bad request of the stable than it wins."""
NOTHING = -99.0
"""Logarithm of money that is as good as lost."""


def compare(
    bad: float, requests: float, stable_bad: float, stable: float, margin: float, bets: Sequence[float]
) -> list[float]:
    """Logarithms of an interval's e-values on two backends, one a bet; 0 if either has no requests.

    Args:
        margin: share of the requests that are good with the stable and may be bad with the candidate.
        bets: values of x, all of one sign.
    """
    if requests <= 0 or stable <= 0:
        return [0.0] * len(bets)
    odds = (1.0 - margin) * requests / stable
    gains = []
    for bet in bets:
        x = min(bet, MOST / odds)
        gains.append(bad * math.log1p(x) + stable_bad * math.log1p(-x * odds) - requests * margin * x)
    return gains


def hold(bad: float, requests: float, bound: float, bets: Sequence[float]) -> list[float]:
    """Logarithms of an interval's e-values on a share of requests, one a bet.

    Args:
        bets: values of x, all of one sign.
    """
    return [bad * math.log1p(x) - requests * math.log1p(x * bound) for x in bets]


def average(parts: Sequence[tuple[float, Sequence[float]]]) -> list[float]:
    """Logarithms of weighted means of e-values, one a bet; also e-values if the weights sum to at most 1.

    Args:
        parts: weights, and logarithms of e-values.
    """
    columns = zip(*(gains for _, gains in parts), strict=True)
    weights = [math.log(weight) for weight, _ in parts]
    return [log_sum([w + gain for w, gain in zip(weights, column, strict=True)]) for column in columns]


def log_sum(logs: Sequence[float]) -> float:
    """Logarithm of the sum of numbers that are given as logarithms."""
    top = max(logs)
    return top + math.log(sum(math.exp(each - top) for each in logs))


def fresh(looks: int) -> float:
    """Logarithm of the money that begins to bet at a look, counted from 0."""
    return -math.log(2.0 * max(looks * (looks + 1), 1))


def advance(wealth: Sequence[float], gains: Sequence[float], looks: int, cap: float) -> list[float]:
    """Logarithms of the money on each bet after an interval, rounded down.

    Args:
        wealth: logarithms of the money before the interval.
        gains: logarithms of the interval's e-values.
        looks: number of intervals that have been bet on before.
        cap: logarithm of the most money that all bets have together.
    """
    share = fresh(looks) - math.log(len(wealth))
    after = [log_sum((old, share)) + gain for old, gain in zip(wealth, gains, strict=True)]
    over = max(log_sum(after) - cap, 0.0)
    return [max(math.floor(100.0 * (each - over)) / 100.0, NOTHING) for each in after]
