"""What a connection needs of the pool that it belongs to."""

from __future__ import annotations

from typing import Protocol, TypeVar

from penstock_wire.http.head_cache import HeadCache
from penstock_wire.http.memory import MemoryBound

C = TypeVar("C", contravariant=True)
"""The connections."""


class Pool(Protocol[C]):
    """Where a connection comes from.

    Attributes:
        known: heads of answers that came before.
        memory: what all connections of the process may keep.
    """

    known: HeadCache
    memory: MemoryBound

    def put(self, connection: C) -> None:
        """Take back a connection that is good for another exchange."""
        ...

    def forget(self, connection: C) -> None:
        """A connection has ended."""
        ...

    def silent(self, connection: C) -> None:
        """A connection has ended because its peer's machine gave no sign of life."""
        ...
