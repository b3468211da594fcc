"""How connections are accepted: counted, and to the last one.

`Acceptor` counts them when they are accepted, before any TLS handshake, in all and by address. A server of
asyncio shakes hands first and makes the connection known after that. A client that sends nothing holds 50 KiB
until the handshake's time is over, uncounted.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import cast

from penstock_wire.addresses import unmapped
from penstock_wire.http.server import limits

ACCEPT_PAUSE = 1.0
"""Seconds without accepting where the process has no file descriptor left."""


def close(server: asyncio.Server, backlog: int) -> list[socket.socket]:
    """Stop to listen.

    Args:
        server: of plain text.
        backlog: connections that may have been made and not accepted: no more are taken.

    Returns:
        The connections that were made and not accepted. A listener that is closed with these in line resets
        them, and their clients, which may have sent, could not tell whether that was executed.
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
    """Accepts connections, and closes at once what is too many.

    It has of an `asyncio.Server` what a listener uses.

    Args:
        loop: the running loop.
        sock: bound and listening; closed by `close`.
        make: makes a connection's protocol.
        tls: speak TLS.
        most: connections at once.
        per_address: of these, from one address.
        backlog: connections that are accepted in one go.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        make: Callable[[], object],
        *,
        tls: ssl.SSLContext | None,
        most: int,
        per_address: int,
        backlog: int,
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._make = make
        self._tls = tls
        self._most = most
        self._per_address = per_address
        self._backlog = backlog
        self._seats: dict[object, str] = {}
        self._by_address: Counter[str] = Counter()
        self._beginning: set[asyncio.Task[None]] = set()
        self._resume: asyncio.TimerHandle | None = None
        self._closed = False
        sock.settimeout(0.0)
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

    def release(self, connection: object) -> None:
        """A connection has ended, or never began."""
        address = self._seats.pop(connection, None)
        if address is not None:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]

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
            if len(self._seats) >= self._most or self._by_address[address] >= self._per_address:
                sock.close()
                continue
            connection = self._make()
            self._seats[connection] = address
            self._by_address[address] += 1
            sock.settimeout(0.0)
            task = self._loop.create_task(self._begin(connection, sock))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)

    def _accept_again(self) -> None:
        self._loop.add_reader(self._sock.fileno(), self._accept)

    async def _begin(self, connection: object, sock: socket.socket) -> None:
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
