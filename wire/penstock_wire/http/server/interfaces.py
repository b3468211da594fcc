"""The server and the listener, as their connections see them, and a connection, as they see it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from penstock_wire.http import Service, Streams
from penstock_wire.http.head_cache import HeadCache
from penstock_wire.http.memory import Keeper, MemoryBound
from penstock_wire.http.server.head import AnswerHead
from penstock_wire.http.server.turns import Turns


class Server(Protocol):
    """State that all connections share: `server.H1Front`.

    Attributes:
        accepted: connections that were accepted, until its user sets it back.
        closing: the server ends: each answer is the last of its connection.
        connections: the open connections.
        connected: when the last one was opened, by the loop's time.
        evicting: a client that accepts nothing makes way for others.
        heads: renders the heads of answers.
        max_body_bytes: a larger body is refused unless it is a stream.
        max_connections: most connections open at once.
        max_head_bytes: limit for a request's target and fields.
        memory: bounds the memory of all connections of the process.
        max_unfinished_bytes: limit for all incompletely received requests together; 0 = unbounded.
        unfinished_bytes: bytes of these now.
        now: the time in seconds, as of the last sweep.
        pipelining: accept requests behind an unanswered one.
        http2: makes the object that serves a connection which begins with HTTP/2's preface, if one does.
        turns: of its connections, if they take turns.
        unread: the readers that pause since much of a stream or tunnel is unread.
    """

    accepted: int
    closing: bool
    connections: set[Any]
    connected: float
    evicting: bool
    heads: AnswerHead
    max_body_bytes: int
    max_connections: int
    max_head_bytes: int
    memory: MemoryBound
    max_unfinished_bytes: int
    unfinished_bytes: int
    now: float
    pipelining: bool
    http2: Successor | None
    turns: Turns | None
    unread: set[Any]


class ListenerState(Protocol):
    """State that the connections of one listener share: `server.H1Listener`.

    Attributes:
        closing: the listener ends: each answer is the last of its connection.
        closes_idle: it also closes the connections on which no request has come.
        connections: its open connections.
        empty: set while there are no connections.
        known: cache of parsed heads.
        service: takes the exchanges.
        streams: decides which bodies are streams.
        successors: make the objects that serve connections after a switch to a Penstock protocol, by name.
        whole_bytes: bodies of at most this many bytes are never streams.
    """

    closing: bool
    closes_idle: bool
    connections: set[Any]
    empty: asyncio.Event
    known: HeadCache
    service: Service
    streams: Streams | None
    successors: Mapping[bytes, Successor]
    whole_bytes: int

    def leave(self, connection: Any) -> None:
        """Remove a connection that has ended."""
        ...

    def replace(self, connection: Any, successor: Any) -> None:
        """Replace a connection by the object that serves it from here on."""
        ...


Successor = Callable[[Server, ListenerState, asyncio.AbstractEventLoop, asyncio.Transport, str], Any]
"""Makes the object that serves a connection after its 101 or preface (the last argument is the client's
address): an `asyncio.Protocol` and `ServedConnection`. It takes a place among the front's and listener's
connections."""


class ServedConnection(Protocol):
    """A connection, as its front sees it."""

    def overdue(self, now: float) -> bool:
        """Whether the peer is late.

        Args:
            now: the value of `H1Front.now`, in seconds.
        """
        ...

    def expire(self) -> None:
        """End what is late because the peer took too long."""
        ...

    def send_away(self) -> None:
        """Make the client send further requests on another connection."""
        ...

    def close_if_idle(self) -> None:
        """Close as soon as nothing is under way."""
        ...

    def keepers(self) -> Sequence[Keeper]:
        """See `memory.Connection.keepers`."""
        ...

    def abort(self) -> None:
        """Close now, whatever is under way."""
        ...
