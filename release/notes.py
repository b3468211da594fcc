"""The release's notes: its section of the change log."""

import os
import re
from pathlib import Path

from release.errors import ReleaseError
from release.version import ROOT, Commit


def write(into: Path, commit: Commit, log: Path = ROOT / "CHANGELOG.md") -> Path:
    """Copy the version's section of the change log; with SOURCE_URL set, links lead to the files of its tag.

    Args:
        into: the release's folder.
        commit: what is released.
        log: the change log; a section's heading begins with its version.

    Raises:
        ReleaseError: it has no section for the version.
    """
    version = re.escape(commit.version)
    heading = re.compile(rf"^## {version}\b[^\n]*\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    section = heading.search(log.read_text())
    if not section:
        raise ReleaseError(f"{log}: expected a section '## {commit.version}', found none")
    text = section[1].strip() + "\n"
    if source := os.environ.get("SOURCE_URL"):
        text = re.sub(r"\]\((?!https?:|#)", f"]({source}/blob/v{commit.version}/", text)
    notes = into / "NOTES.md"
    notes.write_text(text)
    return notes
