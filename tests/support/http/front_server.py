"""A front on loopback that serves with streams, and a raw client's words to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from penstock_wire.http import BodyReader, ClientGone, Exchange, Request, Response
from penstock_wire.http.server.server import H1Front
from tests.support.clocks.waiting import SECONDS
from tests.support.http.raw_client import until_closed

OK = b"HTTP/1.1 200 OK\r\n"
Work = Callable[[Exchange], Awaitable[None]]


class Clients:
    """Raw connections to a server, which end with its test."""

    def __init__(self) -> None:
        self.writers: list[asyncio.StreamWriter] = []
        self.address = ("", 0)

    async def connect(self, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.address)
        self.writers.append(writer)
        writer.write(sent)
        return reader, writer

    async def exchange(self, sent: bytes) -> bytes:
        """Send bytes, and all that comes back until the server closes."""
        return await until_closed(self.address, sent)

    def leave(self) -> None:
        for writer in self.writers:
            writer.close()


class Server(Clients):
    """A front that serves with streams; `work` runs in a task for each exchange."""

    def __init__(self) -> None:
        super().__init__()
        self.front = H1Front(max_body_bytes=1000)
        self.work: Work = self.echo
        self.streamed: Callable[[Request], bool] = lambda request: request.target.startswith("/s")
        self.exchanges: list[Exchange] = []
        self.gone = 0
        self.errors: list[BaseException] = []
        self.tasks: set[asyncio.Task[None]] = set()

    def __call__(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        exchange.gone = self._gone
        task = asyncio.create_task(self._run(exchange))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _gone(self) -> None:
        self.gone += 1

    async def _run(self, exchange: Exchange) -> None:
        try:
            await self.work(exchange)
        except ClientGone as error:
            self.errors.append(error)

    async def echo(self, exchange: Exchange) -> None:
        stream = exchange.request.stream
        body = (
            exchange.request.body if stream is None else b"".join([piece async for piece in pieces(stream)])
        )
        exchange.answer(Response(200, (), body))


async def pieces(stream: BodyReader) -> AsyncIterator[bytes]:
    while piece := await stream.read():
        yield piece


@contextlib.asynccontextmanager
async def serving(whole_bytes: int = 0) -> AsyncIterator[Server]:
    """A server on loopback, until all its work has ended."""
    server = Server()
    listener = await server.front.serve(
        "127.0.0.1", 0, server, streams=lambda request: server.streamed(request), whole_bytes=whole_bytes
    )
    server.address = listener.address
    yield server
    server.leave()
    await server.front.close(0)
    async with asyncio.timeout(30):
        while server.tasks:
            await asyncio.wait(set(server.tasks))


async def head(reader: asyncio.StreamReader) -> bytes:
    return await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SECONDS)


async def body(reader: asyncio.StreamReader) -> bytes:
    """The body of an answer with a length."""
    received = await head(reader)
    length = int(received.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return await asyncio.wait_for(reader.readexactly(length), SECONDS)


def post(target: str, data: bytes, *fields: bytes) -> bytes:
    lines = [f"POST {target} HTTP/1.1".encode(), b"host: a", b"content-length: %d" % len(data), *fields]
    return b"\r\n".join(lines) + b"\r\n\r\n" + data
