"""A connection's memory, and how it makes way for a new connection or for the memory of others."""

from __future__ import annotations

from collections.abc import Sequence

from penstock_wire.http.client.peer_liveness import nothing_waits
from penstock_wire.http.memory import CONNECTION_BYTES, PIECE_BYTES, Keeper, no_room
from penstock_wire.http.server import head as heads
from penstock_wire.http.server import limits
from penstock_wire.http.server.connection_base import PLAIN, TUNNEL, AnswerSide


class Seat(AnswerSide):
    """A connection as one among others that can have to make way; see `AnswerSide`."""

    __slots__ = ()

    def standing(self) -> tuple[int, float] | None:
        """Return its rank if one connection has to make way: the lowest makes way first.

        Returns:
            0 if the client accepts nothing of its answer, 1 if it waits for a request, 2 if a request or its
            answer is under way; and since when; None if the connection has not begun or has ended.
        """
        if self not in self._front.connections:
            return None
        if self._paused and self._front.now - self._stuck_since >= limits.STUCK_SECONDS:
            return (0, self._stuck_since)
        busy = self._current is not None or self._tunnel is not None or self._paused
        return (2 if busy else 1, self._since)

    def make_way(self) -> bool:
        """Close now, unless a request has come that the loop has not delivered; return whether it closed."""
        resting = self._phase == PLAIN and self._current is None and not (self._lingering or self._paused)
        if resting and not nothing_waits(self._transport):
            return False
        self._front.connections.discard(self)
        self._transport.abort()
        return True

    def keepers(self) -> Sequence[Keeper]:
        """See `memory.Connection.keepers`: it serves one client."""
        return (self,)

    def kept(self) -> int:
        if self._transport.is_closing():
            return 0
        pieces = self._pieces
        kept = (
            CONNECTION_BYTES + self._transport.get_write_buffer_size() + len(self._behind) + self._line_bytes
        )
        if self._phase:
            fields = heads.size("", tuple(self._fields)) + heads.size("", tuple(self._special))
            kept += max(self._bytes_since_progress, fields + len(self._url))
        if pieces:
            kept += self._body_bytes + PIECE_BYTES * len(pieces)
        current, incoming = self._current, self._incoming
        if current is not None:
            kept += current.kept()
        if incoming is not None and incoming is not current:
            kept += incoming.kept() if self._reader is None else self._reader.kept()
        if self._tunnel is not None:
            kept += self._tunnel.kept()
        unread = getattr(self._stream, "kept", None)
        return kept if unread is None else kept + int(unread())

    def kept_since(self) -> float:
        return self._since

    def give_way(self) -> bool:
        """See `memory.Keeper.give_way`: an unanswered request is answered 503.

        An answer or a tunnel that has begun is cut. The service has to give up a request that waits for it,
        as when a client leaves.
        """
        if self._transport.is_closing() or self._lingering:
            return False
        idle = self._phase == PLAIN and self._current is None and not self._line
        if self._mode == TUNNEL or self._sender is not None or self._paused:
            self._cut()
        elif idle:
            return self.make_way()
        else:
            reader, self._reader = self._reader, None
            if reader is not None:
                reader.fail("there was no room to keep it")
            incoming, self._incoming = self._incoming, None
            answered = incoming is not None and incoming.connection is None
            if incoming is not None:
                incoming.connection = None
            current = self._current
            self._close_in_background()
            if current is not None:
                current.request.body = b""  # now: the service's task ends only when all received data is read
            self._behind = b""
            if answered:
                self._end_now()
            else:
                self._end_with(no_room(not_admitted=current is None and reader is None and not self._line))
        return True
