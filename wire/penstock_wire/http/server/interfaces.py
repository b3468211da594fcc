"""What a connection needs of the server and the listener that it belongs to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from penstock_wire.http import Service, Streams
from penstock_wire.http.head_cache import HeadCache
from penstock_wire.http.memory import MemoryBound
from penstock_wire.http.server.head import AnswerHead


class Server(Protocol):
    """What all connections share: `server.H1Front`.

    Attributes:
        closing: the server ends: each answer is the last of its connection.
        connections: the open connections.
        evicting: a client that takes nothing makes way for others.
        heads: writes the heads of answers.
        max_body_bytes: a larger body that is not a stream is refused.
        max_connections: connections open at once.
        max_head_bytes: of a request's target and fields.
        memory: what all connections of the process may keep.
        max_unfinished_bytes: of all requests together that have begun to come; 0 = unbounded.
        unfinished_bytes: what there is of these.
        now: the time in seconds, as of the last sweep.
        pipelining: take requests behind one that is not answered yet.
    """

    closing: bool
    connections: set[Any]
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


class ListenerState(Protocol):
    """What the connections of one listener share: `server.H1Listener`.

    Attributes:
        closing: the listener ends: each answer is the last of its connection.
        connections: its open connections.
        empty: set while there are none.
        known: heads that came before.
        service: takes the exchanges.
        streams: which bodies are streams.
        successors: what serves a connection that switches to a protocol of ours, by its name.
        whole_bytes: bodies of up to so many bytes are never streams.
    """

    closing: bool
    connections: set[Any]
    empty: asyncio.Event
    known: HeadCache
    service: Service
    streams: Streams | None
    successors: Mapping[bytes, Successor]
    whole_bytes: int

    def leave(self, connection: Any) -> None:
        """A connection has ended."""
        ...

    def replace(self, connection: Any, successor: Any) -> None:
        """A connection is served by another object from here on."""
        ...


Successor = Callable[[Server, ListenerState, asyncio.AbstractEventLoop, asyncio.Transport, str], Any]
"""Makes what serves a connection after its 101, from the client's address too: an `asyncio.Protocol` that is
also a `ServedConnection`. It has its place among the front's and the listener's connections."""


class ServedConnection(Protocol):
    """A connection, as its front sees it."""

    def overdue(self, now: float) -> bool:
        """Whether the peer has kept us waiting too long.

        Args:
            now: what `H1Front.now` is, in seconds.
        """
        ...

    def expire(self) -> None:
        """The peer kept us waiting too long."""
        ...

    def send_away(self) -> None:
        """What is sent from now on is to come on another connection."""
        ...

    def close_if_idle(self) -> None:
        """Close as soon as nothing is under way."""
        ...

    def abort(self) -> None:
        """Close now, whatever is under way."""
        ...
