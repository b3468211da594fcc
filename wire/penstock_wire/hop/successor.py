"""Serves a listener's connections that become hops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock_wire.hop import heads
from penstock_wire.hop.rooms import Room
from penstock_wire.hop.server import HopConnection

if TYPE_CHECKING:
    from penstock_wire.http.server.interfaces import ListenerState, Server


class HopSuccessor:
    """A `Successor` for one listener.

    Args:
        room: returns the items that would start at once, the items that wait to start, and the items that
            start at once on an idle server; None if this is unknown.
    """

    __slots__ = ("_known", "_room", "connections")

    def __init__(self, room: Callable[[], Room] | None = None) -> None:
        self._known = heads.KnownHeads()
        self._room = room
        self.connections: set[HopConnection] = set()
        """Connections that get room frames."""

    def __call__(
        self,
        front: Server,
        listener: ListenerState,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        peer: str,
    ) -> HopConnection:
        """Make the object that serves a connection from here on."""
        rooms = None if self._room is None else self
        made = HopConnection(front, listener, loop, transport, peer, self._known, rooms)
        if rooms is not None:
            self.connections.add(made)
            made.room_is(self.share())
        return made

    def share(self) -> Room:
        """See `Rooms.share`: clients do not see each other's requests, so each gets a part of the room."""
        if self._room is None:
            return 0, 0, 0
        free, waiting, capacity = self._room()
        return -(-free // max(1, len(self.connections))), waiting, capacity

    def leave(self, connection: HopConnection) -> None:
        self.connections.discard(connection)

    def changed(self) -> None:
        """Send clients the room if room or a queue has begun or ended, or the queue has doubled."""
        if self._room is None or not self.connections:
            return
        room = self.share()
        for connection in self.connections:
            connection.room_is(room)
