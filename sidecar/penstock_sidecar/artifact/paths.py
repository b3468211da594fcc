"""Which paths of files an artifact may have, and which of its files are wanted."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from itertools import pairwise

from penstock_sidecar.artifact.errors import ArtifactError
from penstock_wire.control.artifact import amount

FILES = "files"
PARTS = "parts"
PLAN = "plan.json"
STATE = "state.json"
"""What the artifact's folder holds (`store`)."""
MOST_FILES = 100_000
_MOST_PATHS = 16 << 20
"""Characters of all paths together, wanted or not: they are kept in memory, several times."""
_LONGEST = 1024
"""Bytes of a path, as in buckets."""
_LONGEST_PART = 255
"""Bytes of a part of it, on Linux's file systems."""


def checked(path: str) -> str:
    """Return the path of a file if it stays below the artifact's folder, and a line of text can hold it.

    Raises:
        ArtifactError: it does not.
    """
    parts = path.split("/")
    if (
        not path.isprintable()  # as surrogates are not, which cannot be encoded
        or "\\" in path
        or len(path.encode()) > _LONGEST
        or any(part in ("", ".", "..") or len(part.encode()) > _LONGEST_PART for part in parts)
    ):
        raise ArtifactError(f"expected paths of files below the artifact's root, found {path[:200]!r}")
    return path


def wanted(paths: Iterable[str], include: Sequence[str]) -> list[str]:
    """The paths that match one of the patterns, all without patterns; sorted.

    Raises:
        ArtifactError: none does; there are too many; one is a file and a folder.
    """
    found: set[str] = set()
    size = 0
    for path in paths:
        if checked(path) not in found:
            found.add(path)
            size += len(path)
            if len(found) > MOST_FILES or size > _MOST_PATHS:
                raise ArtifactError(
                    f"expected at most {MOST_FILES} files, with paths of {amount(_MOST_PATHS)}, found more"
                )
    every = sorted(found)
    kept = [path for path in every if not include or any(fnmatch.fnmatchcase(path, each) for each in include)]
    if not kept:
        some = ", ".join(every[:5]) + (", …" if len(every) > 5 else "")
        raise ArtifactError(f"expected files that match {' or '.join(include)}, found {some or 'no file'}")
    if both := folders(kept):
        raise ArtifactError(f"expected a file or a folder, found both at {min(both)!r}")
    return kept


def folders(paths: Iterable[str]) -> set[str]:
    """The paths that are folders of other ones."""
    ordered = sorted(paths, key=lambda path: path.replace("/", "\0"))  # so what is in a folder follows it
    return {path for path, following in pairwise(ordered) if following.startswith(f"{path}/")}
