"""Paths that are closed to requests from outside, in every spelling."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from urllib.parse import unquote

_ROUNDS = 4
"""How often percent-encoding is undone: more than any server or proxy does, but few times, to be cheap. A
path that is still encoded then is not an honest client's."""
_ODD = re.compile(r"[%;#?\\\x00-\x20\x7f]|//|/\.|^[^/]")
"""Marks of an unusual spelling, other than the case of letters and a slash at the end."""
_ENDS = ("?", "#", "\0")
"""Some servers take the path to end there, if they undo the encoding first."""
_SILENT = dict.fromkeys((*range(0x21), 0x7F))
"""Control characters and spaces, which some servers drop."""


def canonical(path: str) -> str:
    """Return a path without percent-encoding as the most lenient server reads it.

    Backslashes become slashes, letters become lower case; empty segments, `.`, `..`, parameters (`;x`),
    control characters, spaces and a slash at the end are removed.

    Args:
        path: a path, without its query.
    """
    segments: list[str] = []
    for segment in path.translate(_SILENT).replace("\\", "/").lower().split("/"):
        name = segment.partition(";")[0]
        if name == "..":
            del segments[-1:]
        elif name not in ("", "."):
            segments.append(name)
    return "/" + "/".join(segments)


def _readings(path: str) -> Iterator[str]:
    """What servers may take a path for: with each number of decodings, to its end or to a mark of one.

    Raises:
        ValueError: it is still encoded after more decodings than any server makes.
    """
    for _ in range(_ROUNDS + 1):
        yield path
        for end in _ENDS:
            before, found, _ = path.partition(end)
            if found:
                yield before
        decoded = unquote(path)
        if decoded == path:
            return
        path = decoded
    raise ValueError("expected a path that is encoded a few times at most")


class ClosedPaths:
    """A set of a few paths with a fast check for every request.

    Args:
        paths: the paths in the model server's spelling.
    """

    __slots__ = ("_paths",)

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = frozenset(canonical(unquote(path.partition("#")[0])) for path in paths)

    def include(self, path: str) -> bool:
        """Whether a path is one of them, in any spelling; also if it is encoded many times over.

        Args:
            path: a request's path as received, without its query.
        """
        if not self._paths:
            return False
        if _ODD.search(path) is None:
            return (path.lower().rstrip("/") or "/") in self._paths
        try:
            return any(canonical(reading) in self._paths for reading in _readings(path))
        except ValueError:
            return True
