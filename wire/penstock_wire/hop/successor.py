"""What a listener gives its connections to that become hops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock_wire.hop import heads
from penstock_wire.hop.server import HopConnection, Room

if TYPE_CHECKING:
    from penstock_wire.http.server.interfaces import ListenerState, Server


class HopSuccessor:
    """A `Successor` for one listener.

    Args:
        room: how many items would begin at once, how many wait to begin, and how many begin at once where
            none is there; None where nobody knows.
    """

    __slots__ = ("_known", "_room", "connections")

    def __init__(self, room: Callable[[], Room] | None = None) -> None:
        self._known = heads.KnownHeads()
        self._room = room
        self.connections: set[HopConnection] = set()
        """Those that are told of the room."""

    def __call__(
        self,
        front: Server,
        listener: ListenerState,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        peer: str,
    ) -> HopConnection:
        """What serves a connection from here on."""
        rooms = None if self._room is None else self
        made = HopConnection(front, listener, loop, transport, peer, self._known, rooms)
        if rooms is not None:
            self.connections.add(made)
            made.room_is(self.share())
        return made

    def share(self) -> Room:
        """See `Rooms.share`: no client knows what the others send, so each is told a part of it."""
        if self._room is None:
            return 0, 0, 0
        free, waiting, capacity = self._room()
        return -(-free // max(1, len(self.connections))), waiting, capacity

    def leave(self, connection: HopConnection) -> None:
        """See `Rooms.leave`."""
        self.connections.discard(connection)

    def changed(self) -> None:
        """There may be room, or a queue: tell the clients where that begins or ends."""
        if self._room is None or not self.connections:
            return
        room = self.share()
        for connection in self.connections:
            connection.room_is(room)
