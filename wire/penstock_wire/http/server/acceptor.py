"""How connections are accepted: counted, and to the last one.

`Acceptor` counts them when they are accepted, before any TLS handshake, in all and by address. A server of
asyncio shakes hands first and makes the connection known after that. A client that sends nothing holds 50 KiB
until the handshake's time is over, uncounted.

At a limit the new connection is closed; or, with `evicting`, an older one, so that a client that holds
connections shuts no other out: first one whose client takes nothing of its answer, then the one that has
waited longest for a request (as nginx does with reusable connections), and where all have a request under
way, the one whose request is the oldest. The kernel holds what such a port writes; its buffer is set to a
small size.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol, cast

from penstock_wire.addresses import unmapped
from penstock_wire.http.server import limits


class Seated(Protocol):
    """A connection that was accepted: `connection.H1Connection`."""

    def standing(self) -> tuple[int, float] | None:
        """How it stands: the least makes way first; None before its beginning and after its end."""
        ...

    def make_way(self) -> bool:
        """Close now, unless a request has just come; whether it did."""
        ...


ACCEPT_PAUSE = 1.0
"""Seconds without accepting where the process has no file descriptor left."""

EVICTED_SHARE = 16
"""At the limit in all, one of so many connections is looked up to go next; each look goes through all."""


def close(server: asyncio.Server, backlog: int) -> list[socket.socket]:
    """Stop to listen.

    Args:
        server: of plain text.
        backlog: connections that may have been made and not accepted: no more are taken.

    Returns:
        The connections that were made and not accepted. A listener that is closed with these in line resets
        them, and their clients, which may have sent, could not know whether that was executed.
    """
    listening = [socket.socket(fileno=os.dup(each.fileno())) for each in server.sockets]
    server.close()
    made: list[socket.socket] = []
    for each in listening:
        with each:
            each.settimeout(0.0)
            try:
                for _ in range(backlog + 1):  # the kernel's own bound
                    made.append(each.accept()[0])
                    made[-1].settimeout(0.0)
            except OSError:  # there is none left, or no file descriptor for it
                continue
    return made


class Acceptor:
    """Accepts connections, and closes what is too many.

    It has of an `asyncio.Server` what a listener uses.

    Args:
        loop: the running loop.
        sock: bound and listening; closed by `close`.
        make: makes a connection's protocol.
        tls: speak TLS.
        most: connections at once.
        per_address: of these, from one address.
        backlog: connections that are accepted in one go.
        evicting: at a limit, close an older connection and not the new one; without TLS only.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        make: Callable[[], Seated],
        *,
        tls: ssl.SSLContext | None,
        most: int,
        per_address: int,
        backlog: int,
        evicting: bool,
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._make = make
        self._tls = tls
        self._most = most
        self._per_address = per_address
        self._backlog = backlog
        self._evicting = evicting
        self._seats: dict[Seated, str] = {}
        self._by_address: dict[str, dict[Seated, None]] = {}
        self._next: deque[tuple[tuple[int, float], Seated]] = deque()
        self._beginning: set[asyncio.Task[None]] = set()
        self._resume: asyncio.TimerHandle | None = None
        self._closed = False
        sock.settimeout(0.0)
        if evicting:  # what is accepted inherits it
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.SEND_BUFFER_BYTES)
        loop.add_reader(sock.fileno(), self._accept)

    def __len__(self) -> int:
        return len(self._seats)

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """See `asyncio.Server.sockets`."""
        return (self._sock,)

    def is_serving(self) -> bool:
        """See `asyncio.Server.is_serving`."""
        return not self._closed

    def close(self) -> None:
        """Accept no more; connections that are still shaking hands are ended."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._sock.fileno())
        if self._resume is not None:
            self._resume.cancel()
        self._sock.close()
        for task in self._beginning:
            task.cancel()

    def release(self, connection: Seated) -> None:
        """A connection has ended, or never began."""
        address = self._seats.pop(connection, None)
        if address is not None:
            of_address = self._by_address[address]
            del of_address[connection]
            if not of_address:
                del self._by_address[address]

    def replace(self, connection: Seated, successor: Seated) -> None:
        """A connection is served by another object from here on, in its place."""
        address = self._seats.pop(connection, None)
        if address is not None:
            self._seats[successor] = address
            of_address = self._by_address[address]
            del of_address[connection]
            of_address[successor] = None

    def _accept(self) -> None:
        for _ in range(self._backlog):
            try:
                sock, peer = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._loop.remove_reader(self._sock.fileno())
                self._resume = self._loop.call_later(ACCEPT_PAUSE, self._accept_again)
                return
            address = unmapped(str(peer[0]))
            if not self._room(address):
                sock.close()
                if self._evicting:
                    return  # those that wait may be accepted when the loop has handed over what has come
                continue
            connection = self._make()
            self._seats[connection] = address
            self._by_address.setdefault(address, {})[connection] = None
            sock.settimeout(0.0)
            task = self._loop.create_task(self._begin(connection, sock))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)

    def _room(self, address: str) -> bool:
        """Whether there is room for a connection of an address, which evicting makes where there is none."""
        of_address = self._by_address.get(address, {})
        if len(of_address) >= self._per_address:
            return self._evicting and self._evict(_first(of_address, self._per_address))
        if len(self._seats) < self._most:
            return True
        if not self._evicting:
            return False
        if self._evict(self._next):
            return True
        self._next = _first(self._seats, max(1, self._most // EVICTED_SHARE))
        return self._evict(self._next)

    def _evict(self, candidates: deque[tuple[tuple[int, float], Seated]]) -> bool:
        """Close the first of these that stands as it did; False where there is none."""
        while candidates:
            standing, connection = candidates.popleft()
            if connection.standing() == standing and connection.make_way():
                self.release(connection)
                return True
        return False

    def _accept_again(self) -> None:
        self._loop.add_reader(self._sock.fileno(), self._accept)

    async def _begin(self, connection: Seated, sock: socket.socket) -> None:
        begun = False
        try:
            await self._loop.connect_accepted_socket(
                lambda: cast("asyncio.Protocol", connection),
                sock,
                ssl=self._tls,
                ssl_handshake_timeout=limits.HANDSHAKE_SECONDS if self._tls else None,
                ssl_shutdown_timeout=limits.LINGER_SECONDS if self._tls else None,
            )
            begun = True
        except OSError:  # of TLS, too: no hands were shaken, or not in time
            pass
        finally:
            if not begun:
                self.release(connection)


def _first(connections: Iterable[Seated], number: int) -> deque[tuple[tuple[int, float], Seated]]:
    """The first to be evicted, with how each stands; of equals the one that was accepted first."""
    standing = ((each.standing(), each) for each in connections)
    begun = [(rank, each) for rank, each in standing if rank is not None]
    return deque(heapq.nsmallest(number, begun, key=lambda pair: pair[0]))
