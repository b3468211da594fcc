"""The release's notes: its section of the change log."""

import re
from pathlib import Path

from release.errors import ReleaseError
from release.version import ROOT, Commit


def write(into: Path, commit: Commit, log: Path = ROOT / "CHANGELOG.md") -> Path:
    """Copy the version's section of the change log.

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
    notes = into / "NOTES.md"
    notes.write_text(section[1].strip() + "\n")
    return notes
