"""Every reason that a condition may have is in docs/operations/repair.md, and nothing else is."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.pages.reasons import in_code

PAGE = Path(__file__).parents[3] / "docs/operations/repair.md"


def in_page() -> set[str]:
    """The first column of the page's tables of reasons."""
    text = PAGE.read_text().split("## Conditions: meaning and what to do")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {word for cell in rows for word in re.findall(r"`([A-Za-z]+)`", cell)}


def test_every_reason_is_told_what_to_do_about() -> None:
    """Code and page name the same reasons."""
    assert in_page() == in_code()
    assert len(in_code()) > 40
