"""The median of paired differences, and what it is known to."""

from __future__ import annotations

import math

import pytest

from bench import mirrors, paired
from bench.figures import Figures


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [(1, -math.inf, math.inf), (5, -math.inf, math.inf), (6, 1, 6), (15, 4, 12), (20, 6, 15), (100, 40, 61)],
)
def test_the_interval_is_between_the_ranks_of_the_tables(count: int, low: float, high: float) -> None:
    """As tables of the sign test have them, whatever the order of the values."""
    values = list(range(count, 0, -1))
    assert paired.median(values) == ((count + 1) / 2, low, high)


def test_the_table_has_each_mirror_with_its_interval() -> None:
    """What was not measured has no figures."""
    figures = Figures()
    for number in range(6):
        for word, _ in mirrors.PERCENTILES:
            figures.add(f"small/huge/{word}/without", 1.0, "ms")
            figures.add(f"small/huge/{word}/difference", number / 10, "ms")
    lines = mirrors.table({"figures": figures.document()}).splitlines()[2:]
    assert len(lines) == len(mirrors.BODIES) * len(mirrors.CASES)
    more = "1.000 | +0.250 (+0.000 to +0.500)"
    assert f"| small | huge | {more} | {more} |" in lines
    assert "| large | dead |  |  |  |  |" in lines
