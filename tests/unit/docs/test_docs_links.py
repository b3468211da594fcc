"""Every link between pages leads to a file that is there, and to a heading that it has."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.pages.page import DOCS, ROOT

PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md")), *sorted(ROOT.glob("*/*/README.md"))]


def anchors(page: Path) -> set[str]:
    """What a link may name behind `#`: GitHub's names of the headings."""
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text())
    plain = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading) for heading in re.findall(r"(?m)^#+ (.*)$", text)]
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in plain}


def test_every_link_leads_somewhere() -> None:
    missing = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"(?ms)^```.*?^```$", "", page.read_text())):
            path, _, anchor = target.partition("#")
            linked = page.parent / path if path else page
            if re.match(r"[a-z]+:", target):
                continue
            if not linked.exists() or (anchor and anchor not in anchors(linked)):
                missing.append(f"{page.relative_to(ROOT)}: {target}")
    assert missing == []


def test_the_index_names_every_page() -> None:
    """docs/README.md leads to each page of docs/, decisions apart, of which it names the folder."""
    index = (DOCS / "README.md").read_text()
    pages = [path.relative_to(DOCS) for path in sorted(DOCS.rglob("*.md"))]
    wanted = [path for path in pages if path.parts[0] != "adr" and str(path) != "README.md"]
    assert [str(path) for path in wanted if f"({path})" not in index] == []


def test_the_site_has_every_page() -> None:
    """But decisions, which the pages link to; `make docs` fails otherwise."""
    nav = (ROOT / "site/mkdocs.yml").read_text()
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert {page for page in pages if page not in nav and not page.startswith("adr/")} == set()


def test_lines_of_pages_that_are_written_by_hand_wrap() -> None:
    """At 120 characters, but for tables, headings, pictures and code: a change then shows as what it is."""
    long = []
    for page in [*PAGES, ROOT / "CHANGELOG.md"]:
        text = page.read_text()
        if text.startswith("<!-- Generated") or page.is_relative_to(ROOT / "bench/results"):
            continue
        text = re.sub(r"(?ms)^ *```.*?^ *```$", lambda code: "\n" * code[0].count("\n"), text)
        long += [
            f"{page.relative_to(ROOT)}:{number}"
            for number, line in enumerate(text.splitlines(), 1)
            if len(line) > 120 and not line.lstrip().startswith(("|", "#", "<", "!["))
        ]
    assert long == []
