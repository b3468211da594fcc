"""docs/reference/releases.md has the tables of transitions that the operator goes by."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import pytest

from penstock_operator.releases.machine import MOVES
from penstock_operator.releases.standing import STANDINGS, TRUTHS
from tests.support.pages.page import DOCS

PAGE = DOCS / "reference/releases.md"
ALL = {"Progressing", "Paused", "Promoted", "RolledBack"}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["--"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def moves() -> str:
    head = ("from", "seen", "becomes", "weight", "Event")
    return table(
        head,
        (
            (
                "any" if set(row.phases) == ALL else ", ".join(row.phases),
                row.seen,
                row.becomes,
                row.weight,
                f"`{row.event}`" if row.event else "-",
            )
            for row in MOVES
        ),
    )


def standings() -> str:
    head = ("phase", "seen", "weight", "`Progressing`")
    return table(
        head,
        (
            (
                row.phase,
                row.seen or "-",
                row.weight,
                f"{TRUTHS[row.reason.partition(',')[0]]}, "
                + " or ".join(f"`{reason}`" for reason in row.reason.split(", ")),
            )
            for row in STANDINGS
        ),
    )


@pytest.mark.parametrize(("name", "wanted"), [("moves", moves()), ("standings", standings())])
def test_the_page_has_the_tables_of_the_code(request: pytest.FixtureRequest, name: str, wanted: str) -> None:
    """`--update-golden` writes them."""
    block = re.compile(rf"(?s)(<!-- {name}: generated -->\n).*?(<!-- end -->)")
    text = PAGE.read_text()
    made = block.sub(lambda match: f"{match[1]}{wanted}\n{match[2]}", text)
    if request.config.getoption("--update-golden"):
        PAGE.write_text(made)
    assert f"<!-- {name}: generated -->" in text
    assert PAGE.read_text() == made
