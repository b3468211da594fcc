"""Paths that no request from outside may reach, however they are spelled."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

_ROUNDS = 3
"""How often percent-encoding is undone: more than any server or proxy does, and few enough to be cheap."""
_ODD = re.compile(r"[%;#\\]|//|/\.|^[^/]")
"""What another spelling of a path has, beside the case of its letters and a slash at its end."""


def canonical(path: str) -> str:
    """The path as the most lenient server reads it.

    Percent-encoding is undone, a backslash is a slash, letters are lower case; empty segments, `.`, `..`,
    parameters (`;x`), a fragment and a slash at the end are gone.

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
    """A few paths, asked about for every request.

    Args:
        paths: as the model's server spells them.
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
