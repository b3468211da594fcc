"""The pool, as its connections see it."""

from __future__ import annotations

from typing import Protocol, TypeVar

from penstock_wire.http.head_cache import HeadCache
from penstock_wire.http.memory import MemoryBound

C = TypeVar("C", contravariant=True)
"""The type of the connections."""


class Pool(Protocol[C]):
    """The pool that a connection belongs to.

    Attributes:
        known: cache of heads of answers.
        memory: bounds the memory of all connections of the process.
    """

    known: HeadCache
    memory: MemoryBound

    def put(self, connection: C) -> None:
        """Take back a connection that is good for another exchange."""
        ...

    def forget(self, connection: C) -> None:
        """Remove a connection that has ended."""
        ...

    def silent(self, connection: C) -> None:
        """Take note that a connection ended because its peer's machine gave no sign of life."""
        ...
