"""A connection of frames among those of its front: how it ends, and what ends it.

An end is announced: first "send nothing more", while requests on the way are still accepted, then "nothing
beyond this request is accepted". The client closes, so that no reset overtakes what was written.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from penstock_wire._mypyc import trait
from penstock_wire.http.client.peer_liveness import nothing_waits
from penstock_wire.http.memory import CONNECTION_BYTES
from penstock_wire.http.server import limits

if TYPE_CHECKING:
    from penstock_wire.http.server.interfaces import ListenerState, Server

STAYS: Final = 0
LEAVES: Final = 1
LEFT: Final = 2


class Progress:
    """When a client last got on, in the seconds of its front.

    NB: an object of its own, since mypyc cannot compile a trait that sets a float of its class.
    """

    __slots__ = ("frames_seen", "parts_since", "since", "stuck_bytes", "stuck_since")

    def __init__(self, now: float) -> None:
        self.since = now
        self.stuck_since = 0.0
        self.stuck_bytes = 0  # that the transport had then
        self.frames_seen = -1  # frames that had come when an incomplete one was seen last
        self.parts_since = 0.0


@trait
class Served:
    """A `ServedConnection` by a `Framed`."""

    transport: asyncio.Transport
    ended: bool
    _paused: bool
    _out_bytes: int
    _held: int
    _parts: list[bytes]
    _frames: int
    _front: Server
    _listener: ListenerState
    _peer: str
    _leaving: int
    _progress: Progress

    def _serve_in(self, front: Server, listener: ListenerState, peer: str) -> None:
        """Take its place; the last step of its `__init__`."""
        self._front = front
        self._listener = listener
        self._peer = peer
        self._leaving = STAYS
        self._progress = Progress(front.now)
        front.memory.room -= CONNECTION_BYTES

    # -- what each protocol says of itself ------------------------------------------------------------------

    def _busy(self) -> bool:
        """Whether a request is under way."""
        raise NotImplementedError

    def _half_read(self) -> bool:
        """Whether a frame or a head is incomplete."""
        return bool(self._parts)

    def _any_late(self, now: float) -> bool:
        """Whether the client keeps a request waiting too long, for its body or for credit."""
        raise NotImplementedError

    def _end_late(self) -> None:
        """End those requests."""
        raise NotImplementedError

    def _say_goodbye(self, *, last: bool) -> None:
        """Announce the end: with the last request that is accepted, or without."""
        raise NotImplementedError

    # -- reading pauses while the client accepts nothing ----------------------------------------------------

    def _may_read(self) -> bool:
        """Whether nothing else pauses reading."""
        return True

    def _pause_reading(self) -> None:
        self._progress.stuck_since = self._front.now
        self._progress.stuck_bytes = self.transport.get_write_buffer_size()
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        self._progress.frames_seen = -1
        if self._may_read() and not self.transport.is_closing():
            self.transport.resume_reading()

    # -- memory ---------------------------------------------------------------------------------------------

    def kept(self) -> int:
        """See `memory.Keeper.kept`; without its requests."""
        if self.transport.is_closing():
            return 0
        return CONNECTION_BYTES + self.transport.get_write_buffer_size() + self._out_bytes + self._held

    def kept_since(self) -> float:
        return self._progress.since

    def give_way(self) -> bool:
        """See `memory.Keeper.give_way`: it stays, since others need it; its requests go."""
        return False

    # -- time and the end -----------------------------------------------------------------------------------

    def eof_received(self) -> bool:
        return False

    def overdue(self, now: float) -> bool:
        progress = self._progress
        if self._paused:
            buffered = self.transport.get_write_buffer_size()
            if buffered != progress.stuck_bytes:
                progress.stuck_bytes, progress.stuck_since = buffered, now
            return now - progress.stuck_since > limits.WRITE_SECONDS + limits.SWEEP_SECONDS
        if self._half_read() and not self.ended:
            if self._frames != progress.frames_seen:
                progress.frames_seen, progress.parts_since = self._frames, now
            return now - progress.parts_since > limits.HEAD_SECONDS + limits.SWEEP_SECONDS
        if not self._busy():
            patience = limits.IDLE_SECONDS if self._leaving != LEFT else limits.LINGER_SECONDS
            return now - progress.since > patience + limits.SWEEP_SECONDS
        return self._any_late(now)

    def expire(self) -> None:
        """End what is late because the client took too long."""
        if self._paused or self.ended or self._half_read():
            self.abort()
        elif not self._busy():
            if self._leaving != LEFT:
                self.close_if_idle()
            elif self.transport.is_closing():  # the transport waits for a client that accepts nothing
                self.transport.abort()
            else:
                self.transport.close()
        self._end_late()

    def send_away(self) -> None:
        """Ask the client to send nothing more; requests sent before it reads that are still accepted."""
        if self._leaving == STAYS and not self.ended:
            self._leaving = LEAVES
            self._say_goodbye(last=False)

    def close_if_idle(self) -> None:
        """Accept nothing more; the client closes when the accepted requests are answered."""
        if self._leaving != LEFT and not self.ended:
            self._leaving = LEFT
            self._progress.since = self._front.now
            self._say_goodbye(last=True)

    def abort(self) -> None:
        """Close now, whatever is under way."""
        self.ended = True
        self.transport.abort()

    def standing(self) -> tuple[int, float] | None:
        """See `H1Connection.standing`."""
        if self not in self._front.connections:
            return None
        if self._paused and self._front.now - self._progress.stuck_since >= limits.STUCK_SECONDS:
            return (0, self._progress.stuck_since)
        return (2 if self._busy() or self._paused else 1, self._progress.since)

    def make_way(self) -> bool:
        """See `H1Connection.make_way`."""
        if not (self._busy() or self._paused) and not nothing_waits(self.transport):
            return False
        self._front.connections.discard(self)
        self.abort()
        return True
