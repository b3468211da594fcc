"""Every link between pages leads to a file that is there, and to a heading that it has."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.page import DOCS, ROOT

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
