"""Whether bad requests come by themselves or together: how many of them count as one.

The arithmetic in `sequential` takes requests as independent. They are not where a batch fails or is late as a
whole, or a pod stalls for a moment: then one event makes 32 requests bad, and chance gives them to the
candidate all at once. With equal versions that fail 0.5 % of their batches of 32, every third release was
taken back for it.

If the bad requests of an event are at most d, E^(1/d) has a mean of at most 1 whatever hangs together within
an event: (1 + x)^(j/d) ≤ 1 + x j/d for j ≤ d, so each event counts as one trial. What d is, is estimated as
the design effect (Kish: "Survey Sampling", 1965) or overdispersion (McCullagh, Nelder: "Generalized Linear
Models", 1989, 4.5) of the number that the evidence is about: an interval is cut into parts, of which each
has k bad ones of n requests of the candidate, and K of N of the stable. With o = Σn / ΣN, the variance
of the sum of k - o K is Σk + o² ΣK for independent ones; it is compared with how much the parts' own
k - o K differ. What hits both versions in the same moment drops out. Parts are joined by two, four and eight
too, as long as so many are left that their variance can be told, since what hangs together may last
longer than a part: the largest counts.

This is an estimate, so what it gives is shown by simulation and not by proof: `python -m bench.releases`.
Independent requests keep their power: for these it is hardly above 1.
"""

from __future__ import annotations

from collections.abc import Sequence

JOINED = (1, 2, 4, 8)
"""So many parts are joined."""
LEAST = 6
"""Of joined parts: fewer show no variance."""
KEPT = 0.5
"""Of what was seen in the intervals before: a candidate whose pod once failed 300 requests in a moment is not
hidden by that for long, and while it fails none the estimate stays."""

Part = tuple[float, float, float, float]
"""Bad and all requests of the candidate, and of the stable, in a part of an interval."""


def scattered(parts: Sequence[Part]) -> tuple[list[float], float]:
    """How far the bad ones of an interval scatter, for each of JOINED, and how far independent ones would.

    Args:
        parts: one after another.
    """
    bad, requests, stable_bad, stable = (sum(column) for column in zip(*parts, strict=True))
    odds = requests / stable if stable else 0.0
    over = bad - odds * stable_bad
    expected = bad + odds * odds * stable_bad
    if len(parts) == 1:
        return [over * over] * len(JOINED), expected  # for all that shows, one event
    # How much each part has beyond its share of all; of parts that are joined, their sum.
    excess = [k - odds * other - over * n / requests for k, n, other, _ in parts]
    squares: list[float] = []
    for _ in JOINED:
        if not squares or len(excess) >= LEAST:
            squares.append(sum(each * each for each in excess) * len(excess) / (len(excess) - 1))
        else:
            squares.append(squares[-1])
        excess = [sum(excess[at : at + 2]) for at in range(0, len(excess), 2)]
    return squares, expected
