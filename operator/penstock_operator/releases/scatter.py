"""Estimates how many bad requests count as one, since they can occur together.

The arithmetic in `sequential` assumes independent requests. They are not independent if a batch fails or is
late as a whole, or a pod stalls for a moment: one event makes 32 requests bad, and chance gives all of them
to the candidate. With equal versions that fail 0.5 % of their batches of 32, every third release was rolled
back for this.

If an event has at most d bad requests, E^(1/d) has a mean of at most 1, whatever depends on what within the
event: (1 + x)^(j/d) ≤ 1 + x j/d for j ≤ d, so each event counts as one trial. d is estimated as the design
effect (Kish: "Survey Sampling", 1965) or overdispersion (McCullagh, Nelder: "Generalized Linear Models",
1989, 4.5) of the number that the evidence is about: an interval is cut into parts, each with k bad of n
requests of the candidate, and K of N of the stable. With o = Σn / ΣN, the variance of the sum of k - o K is
Σk + o² ΣK for independent requests; it is compared with the variance of k - o K among the parts. An event
that hits both versions in the same moment drops out. Since an event can last longer than a part, parts are
also joined by two, four and eight, as long as enough are left to estimate their variance: the largest counts.

This is an estimate, so its error is shown by simulation and not by proof:
`python -m tests.support.worlds.simulated_releases`.
Independent requests keep their power: for these it is hardly above 1.
"""

from __future__ import annotations

from collections.abc import Sequence

JOINED = (1, 2, 4, 8)
"""Numbers of parts that are joined."""
LEAST = 6
"""Joined parts that an estimate of the variance takes at least."""
KEPT = 0.5
"""Weight of earlier intervals: one moment with 300 failures soon hides no more new failures, and while the
candidate fails none the estimate stays."""

Part = tuple[float, float, float, float]
"""Bad and all requests of the candidate, and of the stable, in a part of an interval."""


def scattered(parts: Sequence[Part]) -> tuple[list[float], float]:
    """Compute the scatter of an interval's bad requests, for each of JOINED, and that of independent ones."""
    bad, requests, stable_bad, stable = (sum(column) for column in zip(*parts, strict=True))
    odds = requests / stable if stable else 0.0
    over = bad - odds * stable_bad
    expected = bad + odds * odds * stable_bad
    if len(parts) == 1:
        return [over * over] * len(JOINED), expected  # it could all be one event
    # The excess of each part over its share of the total; joined parts have the sum of theirs.
    excess = [k - odds * other - over * n / requests for k, n, other, _ in parts]
    squares: list[float] = []
    for _ in JOINED:
        if not squares or len(excess) >= LEAST:
            squares.append(sum(each * each for each in excess) * len(excess) / (len(excess) - 1))
        else:
            squares.append(squares[-1])
        excess = [sum(excess[at : at + 2]) for at in range(0, len(excess), 2)]
    return squares, expected
