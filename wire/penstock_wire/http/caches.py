"""Bounds what caches of a process keep together, for speed alone and beyond any connection.

A port has a cache of heads, a router of a namespace some more. Each has a bound of its own, but how many
there are is up to users: 400 ports at which all heads are unlike kept 1 GB.
"""

from __future__ import annotations

from typing import Final, Protocol

UNBOUNDED: Final = 1 << 60


class Cache(Protocol):
    """What can be forgotten at any time; such as a dict."""

    def clear(self) -> None:
        """Forget all."""
        ...


class Caches:
    """All caches that keep something; beyond the bound all are cleared.

    Args:
        most: bytes.
    """

    __slots__ = ("_caches", "kept", "most")

    def __init__(self, most: int = UNBOUNDED) -> None:
        self.most = most
        self.kept = 0
        """Bytes, roughly."""
        self._caches: dict[int, tuple[Cache, int]] = {}

    def grew(self, cache: Cache, size: int) -> None:
        """Count bytes that a cache keeps by now."""
        known = self._caches.get(id(cache))
        self._caches[id(cache)] = (cache, size if known is None else known[1] + size)
        self.kept += size
        if self.kept > self.most:
            for each, _ in self._caches.values():
                each.clear()
            self._caches.clear()
            self.kept = 0

    def cleared(self, cache: Cache) -> None:
        """Note that a cache was cleared."""
        known = self._caches.pop(id(cache), None)
        if known is not None:
            self.kept -= known[1]
