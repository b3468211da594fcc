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
    expected = bad + odds * odds * stable_bad
    squares: list[float] = []
    for number in JOINED:
        joined = [
            [sum(column) for column in zip(*parts[at : at + number], strict=True)]
            for at in range(0, len(parts), number)
        ]
        if number > 1 and len(joined) < LEAST:
            squares.append(squares[-1])
        else:
            squares.append(_squares(joined, bad - odds * stable_bad, requests, odds))
    return squares, expected


def _squares(parts: Sequence[Sequence[float]], over: float, requests: float, odds: float) -> float:
    """Sum of the squares by which parts differ from their share of all; a single part is one event."""
    if len(parts) == 1:
        return over * over
    whole = sum((k - odds * K - over * n / requests) ** 2 for k, n, K, _ in parts)
    return whole * len(parts) / (len(parts) - 1)
