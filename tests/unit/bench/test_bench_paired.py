"""The median of paired differences, and what it is known to."""

from __future__ import annotations

import math

import pytest

from bench import paired


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [(1, -math.inf, math.inf), (5, -math.inf, math.inf), (6, 1, 6), (15, 4, 12), (20, 6, 15), (100, 40, 61)],
)
def test_the_interval_is_between_the_ranks_of_the_tables(count: int, low: float, high: float) -> None:
    """As tables of the sign test have them, whatever the order of the values."""
    values = list(range(count, 0, -1))
    assert paired.median(values) == ((count + 1) / 2, low, high)
