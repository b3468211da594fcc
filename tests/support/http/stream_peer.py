"""A server for one test that speaks raw bytes: each connection is given to the test's own coroutine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar


class Wire:
    """One connection that a server took."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def head(self) -> bytes:
        """The next request's head."""
        return await self.reader.readuntil(b"\r\n\r\n")

    async def chunked(self) -> bytes:
        """A chunked body."""
        data = b""
        while size := int(await self.reader.readline(), 16):
            data += await self.reader.readexactly(size)
            await self.reader.readline()
        await self.reader.readline()
        return data

    async def send(self, *parts: bytes) -> None:
        """Send, and wait until it is taken."""
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    async def gone(self) -> None:
        """Wait until the client has ended its connection."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass

    def reset(self) -> None:
        """End the connection at once."""
        self.writer.transport.abort()


Server = TypeVar("Server", bound="Scripted")
Script = Callable[[Wire], Awaitable[None]]


def says(*parts: bytes, then: Script | None = None) -> Script:
    """A script that takes a request, sends the parts, and goes on with `then`."""

    async def play(wire: Wire) -> None:
        await wire.head()
        await wire.send(*parts)
        if then is not None:
            await then(wire)

    return play


class Scripted:
    """A server whose connections are played by `scripts`, one each, the last for all further ones."""

    def __init__(self) -> None:
        self.scripts: list[Script] = []
        self.port = 0
        self.connections = 0
        self.failures: list[BaseException] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Play a connection."""
        script = self.scripts[min(self.connections, len(self.scripts) - 1)]
        self.connections += 1
        try:
            await script(Wire(reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client ended it
        except Exception as error:
            self.failures.append(error)
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def scripted(scripted_server: Server) -> AsyncIterator[Server]:
    """Serve on a free port of loopback."""
    server = await asyncio.start_server(scripted_server.serve, "127.0.0.1", 0)
    scripted_server.port = server.sockets[0].getsockname()[1]
    try:
        yield scripted_server
    finally:
        server.close()
    assert not scripted_server.failures, scripted_server.failures


async def unread(wire: Wire) -> bool:
    """Read no more; returns whether more has come than was read, where it ends else."""
    wire.writer.transport.pause_reading()
    of = wire.writer.get_extra_info("socket")
    readable = asyncio.get_running_loop().create_future()
    # NB: the loop watches the connection's own descriptor itself.
    with os.fdopen(os.dup(of.fileno()), "rb", buffering=0) as watched:
        asyncio.get_running_loop().add_reader(watched, lambda: readable.done() or readable.set_result(None))
        try:
            await readable
            look = socket.socket(fileno=os.dup(watched.fileno()))
            with look:
                return bool(look.recv(1, socket.MSG_PEEK))
        finally:
            asyncio.get_running_loop().remove_reader(watched)
