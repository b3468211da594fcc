"""docs/explanation/batching.md says what the simulation of its knobs finds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.worlds import knob_tables

PAGE = (Path(__file__).parents[3] / "docs" / "explanation" / "batching.md").read_text()


def documented(knob: str) -> list[knob_tables.Row]:
    """The rows of a knob's table of figures."""
    (rows,) = re.findall(
        rf"^\| `{knob}` \|[^\n]*(?:answers|ms)[^\n]*\n[^\n]*\n((?:\|[^\n]*\n)+)", PAGE, re.MULTILINE
    )
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines()]
    return [(said, tuple(float(cell.replace(" ", "")) for cell in rest)) for said, *rest in cells]


@pytest.mark.long
def test_the_tables_of_the_page_are_what_the_simulation_finds() -> None:
    """Within a tenth, or a batch's time: decisions that cost or win more must be documented anew."""
    for knob, rows in knob_tables.tables().items():
        table = documented(knob)
        assert [said for said, _ in table] == [said for said, _ in rows]
        for (said, value), (_, expected) in zip(rows, table, strict=True):
            assert value == pytest.approx(expected, rel=0.1, abs=20), (knob, said)
