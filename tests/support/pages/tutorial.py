"""docs/tutorial.md, run: its laptop half by a unit test, its cluster half on the tests' cluster."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.pages.page import DOCS, Page

PAGE = Page.of(DOCS / "tutorial.md")


def write_files(folder: Path) -> None:
    """Create the files of the page."""
    for path, text in PAGE.files().items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)


def batch_sizes(output: str) -> dict[int, int]:
    """How often the page has counted each size of batch: of answers, or of runs of the writer."""
    counts = re.findall(r'(\d+) (?:desc="|Writer got )(\d+)', output)
    return {int(size): int(count) for count, size in counts}
