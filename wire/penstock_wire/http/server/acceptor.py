"""Accepts and counts connections, and accepts those that wait before a listener closes.

`Acceptor` counts connections when they are accepted, before any TLS handshake: in all, by address and by
group of addresses. An asyncio server makes a connection known only after the handshake: a silent client
holds 50 KiB, uncounted, until the handshake times out.

At a limit the new connection is closed; or, with `evicting`, an older one, so that a client that holds
connections does not shut others out: first one whose client accepts nothing of its answer, then the one that
has waited longest for a request (as nginx does with reusable connections), and if all have a request under
way, the one with the oldest request. The kernel's buffer for bytes written on such a port is set to a small
size.

A group of addresses may have one more connection only while it has fewer than are free: one alone gets half,
each further one half of what is left, so there is room for a group that comes later (Choudhury and Hahne,
"Dynamic queue length thresholds for shared-memory packet switches", 1998, with alpha = 1).
"""

from __future__ import annotations

import asyncio
import heapq
import os
import socket
import ssl
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Protocol, cast

from penstock_wire.addresses import unmapped
from penstock_wire.http.server import limits


class Seated(Protocol):
    """A connection that was accepted: `connection.H1Connection`."""

    def standing(self) -> tuple[int, float] | None:
        """Return its rank: the lowest makes way first; None before its beginning and after its end."""
        ...

    def make_way(self) -> bool:
        """Close now, unless a request has just come; return whether it closed."""
        ...


ACCEPT_PAUSE = 1.0
"""Seconds without accepting after the process ran out of file descriptors."""

HANDSHAKES = 16
"""Handshakes of TLS that begin in one turn of the loop. Each takes a millisecond of CPU: those that have
begun must end before thousands of others begin, or the clients' time is over before any is done."""

_ESTABLISHED = 1
"""TCP_ESTABLISHED (linux/tcp_states.h)."""

EVICTED_SHARE = 16
"""At the total limit, each look through all connections finds the next 1/16 of them to evict."""


def close(server: asyncio.Server, backlog: int) -> list[socket.socket]:
    """Stop listening.

    Args:
        server: a server without TLS.
        backlog: most waiting connections that are accepted.

    Returns:
        Connections that were made and not yet accepted. Closing the listener would reset them, and their
        clients, which may have sent requests, could not know whether these were executed.
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
            except OSError:  # none is left, or no file descriptor is
                continue
    return made


class Acceptor:
    """Accepts connections, and closes those beyond its limits.

    It has the part of an `asyncio.Server` that a listener uses.

    Args:
        loop: the running loop.
        sock: bound and listening; closed by `close`.
        make: makes a connection's protocol.
        tls: speak TLS.
        most: most connections at once.
        per_address: most of these from one address.
        backlog: most connections that are accepted in one go.
        evicting: at a limit, close an older connection instead of the new one; only without TLS.
        group: the group of a peer's address; None = all addresses share all connections.
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
        group: Callable[[str], str] | None = None,
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._make = make
        self._tls = tls
        self._most = most
        self._per_address = per_address
        self._at_once = backlog
        self._waiting: deque[tuple[Seated, socket.socket]] = deque()
        """Accepted connections whose handshake has not begun."""
        self._turn: asyncio.Handle | None = None
        self._evicting = evicting
        self._group = group
        self._seats: dict[Seated, tuple[str, str]] = {}
        """The address of each connection, and the group that this was in when it was accepted."""
        self._by_group: Counter[str] = Counter()
        self._by_address: dict[str, dict[Seated, None]] = {}
        self._next: deque[tuple[tuple[int, float], Seated]] = deque()
        self._beginning: set[asyncio.Task[None]] = set()
        self._resume: asyncio.TimerHandle | None = None
        self._closed = False
        sock.settimeout(0.0)
        if evicting:  # accepted sockets inherit it
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.SEND_BUFFER_BYTES)
        loop.add_reader(sock.fileno(), self._accept)

    def __len__(self) -> int:
        return len(self._seats)

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        return (self._sock,)

    def is_serving(self) -> bool:
        return not self._closed

    def close(self) -> None:
        """Stop accepting; connections in a handshake are ended."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._sock.fileno())
        if self._resume is not None:
            self._resume.cancel()
        self._sock.close()
        if self._turn is not None:
            self._turn.cancel()
        while self._waiting:
            self._drop(*self._waiting.pop())
        for task in self._beginning:
            task.cancel()

    def release(self, connection: Seated) -> None:
        """Remove a connection that has ended, or never began."""
        seat = self._seats.pop(connection, None)
        if seat is not None:
            address, group = seat
            of_address = self._by_address[address]
            del of_address[connection]
            if not of_address:
                del self._by_address[address]
            self._by_group[group] -= 1
            if not self._by_group[group]:
                del self._by_group[group]

    def replace(self, connection: Seated, successor: Seated) -> None:
        """Replace a connection by the object that serves it from here on."""
        seat = self._seats.pop(connection, None)
        if seat is not None:
            self._seats[successor] = seat
            of_address = self._by_address[seat[0]]
            del of_address[connection]
            of_address[successor] = None

    def _accept(self) -> None:
        self._accept_those_that_wait()
        if self._waiting and self._turn is None:
            self._shake_hands()

    def _shake_hands(self) -> None:
        """Begin handshakes, those of the latest clients first.

        A client gives up after some seconds and comes again. After a pause in which thousands came, the first
        in order have left, or will have before their handshake ends; in that order it would be so for ever.
        """
        waiting, begun = self._waiting, 0
        while waiting and _has_left(waiting[0][1]):
            self._drop(*waiting.popleft())
        while waiting and begun < HANDSHAKES:
            connection, sock = waiting.pop()
            if _has_left(sock):
                self._drop(connection, sock)
            else:
                self._start(connection, sock)
                begun += 1
        self._turn = self._loop.call_soon(self._shake_hands) if waiting else None

    def _drop(self, connection: Seated, sock: socket.socket) -> None:
        sock.close()
        self.release(connection)

    def _accept_those_that_wait(self) -> None:
        for _ in range(self._at_once):
            try:
                sock, peer = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._loop.remove_reader(self._sock.fileno())
                self._resume = self._loop.call_later(ACCEPT_PAUSE, self._accept_again)
                return
            address = unmapped(str(peer[0]))
            group = "" if self._group is None else self._group(address)
            if not self._room(address, group):
                sock.close()
                if self._evicting:
                    return  # waiting connections can be accepted when the loop has delivered what has come
                continue
            connection = self._make()
            self._seats[connection] = (address, group)
            self._by_group[group] += 1
            self._by_address.setdefault(address, {})[connection] = None
            sock.settimeout(0.0)
            if self._tls is None:
                self._start(connection, sock)
            else:
                self._waiting.append((connection, sock))

    def _start(self, connection: Seated, sock: socket.socket) -> None:
        task = self._loop.create_task(self._begin(connection, sock))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    def _room(self, address: str, group: str) -> bool:
        """Whether there is room for a connection of an address; evicting can make room."""
        if self._group is not None and self._by_group[group] >= self._most - len(self._seats):
            return False
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
        """Close the first candidate whose rank has not changed; return False if there is none."""
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
        except OSError:  # also of TLS: the handshake failed, or timed out
            pass
        finally:
            if not begun:
                self.release(connection)


def _has_left(sock: socket.socket) -> bool:
    """Whether the client has closed the connection, or reset it."""
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _ESTABLISHED


def _first(connections: Iterable[Seated], number: int) -> deque[tuple[tuple[int, float], Seated]]:
    """Return the first connections to evict, with their ranks; of equals, first those accepted first."""
    standing = ((each.standing(), each) for each in connections)
    begun = [(rank, each) for rank, each in standing if rank is not None]
    return deque(heapq.nsmallest(number, begun, key=lambda pair: pair[0]))
