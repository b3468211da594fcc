"""Evidence that adds up over intervals, and stays valid however often one looks and whenever one stops.

The counts of an interval become an e-value: a number that is not negative, and on average at most 1 where the
hypothesis is true. The product over intervals is money that bets against the hypothesis; that it
ever grows to 1/a against a true one has a chance of at most a, at any number of looks (Ville's inequality,
1939; Wald's sequential probability ratio test, 1945, is the case of two simple hypotheses; Grünwald, de
Heide, Koolen: "Safe testing", JRSS B 2024). Each interval is a stratum of its own: the base rate may be
another one each time (Turner, Grünwald: "Safe sequential testing and effect estimation in stratified count
data", AISTATS 2023; Lindon, Malek: "Anytime-valid inference for multinomial count data", NeurIPS 2022).

**Two backends** (`compare`). Of n requests of the candidate k are bad, of N of the stable K, in the same
minutes. The hypothesis is about the rates p and P, averages within the interval, of which neither is known:

    x > 0: p ≤ P + m (1 - P)     the candidate is worse by the margin m at most
    x < 0: p ≥ P + m (1 - P)     it is worse by the margin or more

    E = (1 + x)^k · (1 - x o)^K · exp(-n m x),     o = (1 - m) n / N

Its mean is at most 1: a request that is bad with the probability q gives the mean 1 + x q ≤ exp(x q), so E's
mean is at most exp(x n (p - (1 - m) P - m)), and both hypotheses make that exponent at most 0. The unknown
base rate has dropped out, so nothing is paid for learning it, and it may change within the interval. That
the requests are independent is used for a candidate that differs from the stable; for one that does not,
the draw is enough: whichever requests fail, and however they hang together, a random n of all are the
candidate's, k is hypergeometric, and the mean is at most that of drawing with replacement (Hoeffding 1963,
theorem 4, as E is convex in k), which is at most 1. A request that fails with its batch does not belong here,
since the version decides which batch it is in: see `scatter`.

**One share** (`hold`) against the bound b: E = (1 + x)^k / (1 + x b)^n; x > 0 against "at most b", x < 0
against "at least b". Exact for a binomial count.

How large the effect is, is not known before: the money is spread over some values of x. Nor is when it
begins (a leak of memory may show after hours): half of the money bets from the first interval on, the rest
from later ones, 1/(2t(t+1)) of it from interval t on. So past health does not hide what goes wrong now, at
the price of a factor 2t(t+1): 7 nats at the 24th interval (a nat: a factor e), where 5 % of errors give 60
at 50 requests/s. Above a cap money is thrown away, which is always valid, so that new evidence to the
contrary is soon seen.

Cost: a few logarithms an interval, whatever the counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

RISES = (0.15, 0.4, 1.0, 2.5, 7.0, 30.0)
"""x of bets that the candidate is worse. The best one is p / (P + m) - 1."""
FALLS = (-0.95, -0.7, -0.4, -0.2, -0.1, -0.04)
"""x of bets that it is not."""
MOST = 0.75
"""x o is at most this: where the stable has few requests, so little is known of its rate that more is lost
by one bad request of its than is won."""
NOTHING = -99.0
"""Logarithm of money that is as good as lost."""


def compare(
    bad: float, requests: float, stable_bad: float, stable: float, margin: float, bets: Sequence[float]
) -> list[float]:
    """Logarithms of an interval's e-values on two backends, one a bet; 0, no news, where either has none.

    Args:
        bad: of the candidate's requests, those that are bad.
        requests: of the candidate.
        stable_bad: of the stable's requests, those that are bad.
        stable: requests of the stable.
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
        bad: of the requests, those that are bad.
        requests: all of them.
        bound: the share that the hypothesis is about, 0 to 1.
        bets: values of x, all of one sign.
    """
    return [bad * math.log1p(x) - requests * math.log1p(x * bound) for x in bets]


def average(parts: Sequence[tuple[float, Sequence[float]]]) -> list[float]:
    """Logarithms of weighted means of e-values, bet by bet: e-values again, if the weights sum to 1 at most.

    Args:
        parts: weights, and logarithms of e-values.
    """
    columns = zip(*(gains for _, gains in parts), strict=True)
    weights = [math.log(weight) for weight, _ in parts]
    return [log_sum([w + gain for w, gain in zip(weights, column, strict=True)]) for column in columns]


def log_sum(logs: Sequence[float]) -> float:
    """Logarithm of the sum of what these are logarithms of."""
    top = max(logs)
    return top + math.log(sum(math.exp(each - top) for each in logs))


def fresh(looks: int) -> float:
    """Logarithm of the money that begins to bet at a look, the first of which is 0."""
    return -math.log(2.0 * max(looks * (looks + 1), 1))


def advance(wealth: Sequence[float], gains: Sequence[float], looks: int, cap: float) -> list[float]:
    """Logarithms of the money on each bet after an interval, rounded down.

    Args:
        wealth: logarithms before it.
        gains: logarithms of its e-values.
        looks: how many intervals have been bet on before.
        cap: logarithm of the most that all have together.
    """
    share = fresh(looks) - math.log(len(wealth))
    after = [log_sum((old, share)) + gain for old, gain in zip(wealth, gains, strict=True)]
    over = max(log_sum(after) - cap, 0.0)
    return [max(math.floor(100.0 * (each - over)) / 100.0, NOTHING) for each in after]
