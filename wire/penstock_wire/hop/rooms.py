"""The room that a server announces to its clients, so that they send what can start."""

from __future__ import annotations

from typing import Any, Protocol

Room = tuple[int, int, int]
"""Items that a client can send and that start at once, items of all clients that wait to start, and items
that start at once on an idle server."""


class Rooms(Protocol):
    """Gives the room: `successor.HopSuccessor`."""

    def share(self) -> Room:
        """Return the room to announce to one client."""
        ...

    def leave(self, connection: Any) -> None:
        """Remove a connection that has ended."""
        ...
