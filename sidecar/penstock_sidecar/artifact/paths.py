"""Which paths of files an artifact may have, and which of its files are wanted."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence

from penstock_sidecar.artifact.errors import ArtifactError

FILES = "files"
PARTS = "parts"
PLAN = "plan.json"
STATE = "state.json"
"""What the artifact's folder holds (`store`)."""
MOST_FILES = 100_000
_LONGEST = 255
"""Most bytes of a part of a path, on Linux's file systems."""


def checked(path: str) -> str:
    """Return the path of a file if it stays below the artifact's folder, and a line of text can hold it.

    Raises:
        ArtifactError: it does not.
    """
    parts = path.split("/")
    if (
        not path.isprintable()  # as surrogates are not, which cannot be encoded
        or "\\" in path
        or any(part in ("", ".", "..") or len(part.encode()) > _LONGEST for part in parts)
    ):
        raise ArtifactError(f"expected paths of files below the artifact's root, found {path[:200]!r}")
    return path


def wanted(paths: Iterable[str], include: Sequence[str]) -> list[str]:
    """The paths that match one of the patterns, all without patterns; sorted.

    Raises:
        ArtifactError: none does; there are too many; one is a file and a folder.
    """
    every = sorted({checked(path) for path in paths})
    kept = [path for path in every if not include or any(fnmatch.fnmatchcase(path, each) for each in include)]
    if not kept:
        some = ", ".join(every[:5]) + (", …" if len(every) > 5 else "")
        raise ArtifactError(f"expected files that match {' or '.join(include)}, found {some or 'no file'}")
    if len(kept) > MOST_FILES:
        raise ArtifactError(f"expected at most {MOST_FILES} files, found {len(kept)}")
    folders = {path[:at] for path in kept for at, letter in enumerate(path) if letter == "/"}
    if both := folders.intersection(kept):
        raise ArtifactError(f"expected a file or a folder, found both at {min(both)!r}")
    return kept
