"""Paths that are closed to requests from outside, in every spelling."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

_ROUNDS = 3
"""How often percent-encoding is undone: more than any server or proxy does, but few times, to be cheap."""
_ODD = re.compile(r"[%;#\\]|//|/\.|^[^/]")
"""Marks of an unusual spelling, other than the case of letters and a slash at the end."""


def canonical(path: str) -> str:
    """Return the path as the most lenient server reads it.

    Percent-encoding is undone, backslashes become slashes, letters become lower case; empty segments, `.`,
    `..`, parameters (`;x`), a fragment and a slash at the end are removed.

    Args:
        path: a request's path as received, without its query.
    """
    path = path.partition("#")[0]
    for _ in range(_ROUNDS):
        if "%" not in path:
            break
        path = unquote(path)
    segments: list[str] = []
    for segment in path.replace("\\", "/").lower().split("/"):
        name = segment.partition(";")[0]
        if name == "..":
            del segments[-1:]
        elif name not in ("", "."):
            segments.append(name)
    return "/" + "/".join(segments)


class ClosedPaths:
    """A set of a few paths with a fast check for every request.

    Args:
        paths: the paths in the model server's spelling.
    """

    __slots__ = ("_paths",)

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = frozenset(map(canonical, paths))

    def include(self, path: str) -> bool:
        """Whether a path is one of them, in any spelling.

        Args:
            path: a request's path as received, without its query.
        """
        if not self._paths:
            return False
        if _ODD.search(path) is not None:
            return canonical(path) in self._paths
        return (path.lower().rstrip("/") or "/") in self._paths
