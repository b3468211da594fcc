"""Both ends of a hop over loopback, and raw ends, for peers that break the protocol."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from penstock_wire.headers import QUEUE, Headers
from penstock_wire.hop import frames
from penstock_wire.hop.client import HopClient
from penstock_wire.hop.server import HopConnection
from penstock_wire.hop.successor import HopSuccessor
from penstock_wire.hop.upstream import HopUpstream
from penstock_wire.http import Exchange, Request, Response, sending
from penstock_wire.http.client.pool import H1Upstream
from penstock_wire.http.server.server import H1Front
from tests.support.clocks.waiting import SECONDS, until
from tests.support.http.front_server import Server

SIDECAR = ((b"content-type", b"text/plain"), (QUEUE, b"0"))
ASK = b"OPTIONS * HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: penstock-hop/1\r\n\r\n"


class HopServer(Server):
    """A front whose connections may become hops; it answers as a sidecar does."""

    successor: HopSuccessor

    def __init__(self, front: H1Front | None = None) -> None:
        super().__init__()
        self.room = (0, 0, 0)
        """Items that would begin at once, and items that wait."""
        if front is not None:
            self.front = front

    async def echo(self, exchange: Exchange) -> None:
        """Answer with the request's body."""
        request = exchange.request
        body = request.body
        if request.stream is not None:
            while piece := await request.stream.read():
                body += piece
        exchange.answer(Response(200, SIDECAR, body))

    @property
    def hops(self) -> list[HopConnection]:
        """The connections that have become hops."""
        return [each for each in self.front.connections if isinstance(each, HopConnection)]


class Pair:
    """A server, and an upstream that has a hop to it."""

    def __init__(self, server: HopServer, upstream: HopUpstream) -> None:
        self.server = server
        self.upstream = upstream

    @property
    def hop(self) -> HopClient:
        """The client's end."""
        return self.upstream._hops[self.server.address]

    @property
    def far(self) -> HopConnection:
        """The server's end."""
        (hop,) = self.server.hops
        return hop

    async def send(self, request: Request | None = None, *, timeout: float = 30) -> Response:
        """Send a request, and wait for its whole answer."""
        return await sending.send(self.upstream, *self.server.address, request or post(), timeout=timeout)

    async def ask_for_hop(self) -> None:
        """Send a first request, and wait for the hop."""
        await self.send()
        await until(lambda: self.server.address in self.upstream._hops)


class Held:
    """A service that keeps its exchanges until the test answers them."""

    def __init__(self, pair: Pair) -> None:
        self.exchanges: dict[bytes, Exchange] = {}
        self.left: list[bytes] = []
        pair.server.work = self

    async def __call__(self, exchange: Exchange) -> None:
        body = exchange.request.body
        self.exchanges[body] = exchange
        exchange.gone = lambda: self.left.append(body)

    async def come(self, count: int) -> None:
        await until(lambda: len(self.exchanges) == count)


def post(
    target: str = "/p", body: bytes = b"body", *, number: int | None = None, headers: Headers = ()
) -> Request:
    """A request, with an id of its own where it has a number."""
    own = () if number is None else ((b"x-request-id", b"%d" % number),)
    return Request("POST", target, ((b"host", b"a"), *headers, *own), body)


@contextlib.asynccontextmanager
async def served(server: HopServer | None = None) -> AsyncIterator[HopServer]:
    """A server on loopback, until all its work has ended."""
    server = server or HopServer()
    server.successor = HopSuccessor(lambda: server.room)
    listener = await server.front.serve(
        "127.0.0.1",
        0,
        server,
        streams=lambda request: server.streamed(request),
        successors={frames.PROTOCOL: server.successor},
    )
    server.address = listener.address
    yield server
    await server.front.close(0)
    async with asyncio.timeout(SECONDS):
        while server.tasks:
            await asyncio.wait(set(server.tasks))


@contextlib.asynccontextmanager
async def paired(server: HopServer | None = None, *, silence: float | None = None) -> AsyncIterator[Pair]:
    """A pair whose hop is there; its server has not seen a request on it yet."""
    async with served(server) as peer:
        pair = Pair(peer, HopUpstream(H1Upstream(silence_seconds=silence)))
        await pair.ask_for_hop()
        peer.exchanges.clear()
        yield pair
        await pair.upstream.close()
        await asyncio.sleep(0)


class Raw:
    """A peer that speaks in frames that a test writes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def write(self, *sent: bytes) -> None:
        """Send frames."""
        self.writer.write(b"".join(sent))

    async def frame(self) -> tuple[int, int, int, bytes, bytes]:
        """The next frame: kind, number, flags, own fields, the rest of the payload."""
        async with asyncio.timeout(SECONDS):
            header = await self.reader.readexactly(frames.HEADER_BYTES)
            length, number, own, kind, flags, _ = frames.HEADER.unpack(header)
            payload = await self.reader.readexactly(length)
        said = frames.LONG.size if kind in (frames.ANSWER, frames.REQUEST) and flags & frames.LENGTH else 0
        return kind, number, flags, payload[said : said + own], payload[said + own :]

    async def until_kind(self, kind: int) -> tuple[int, int, int, bytes, bytes]:
        """The next frame of a kind."""
        while True:
            frame = await self.frame()
            if frame[0] == kind:
                return frame

    async def rest(self) -> bytes:
        """All that comes until the connection ends."""
        async with asyncio.timeout(SECONDS):
            with contextlib.suppress(ConnectionError):
                return await self.reader.read()
        return b""


async def raw_client(server: HopServer) -> Raw:
    """A client whose connection has become a hop."""
    reader, writer = await server.connect()
    writer.write(ASK)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SECONDS)
    assert head.startswith(b"HTTP/1.1 101 ")
    return Raw(reader, writer)


def head(block: bytes = b"POST /p\r\nhost: a\r\n", slot: int = 1) -> bytes:
    """A frame with a request's head."""
    return frames.frame(frames.HEAD, 0, block, slot=slot)


def request(
    number: int, body: bytes = b"", *, own: bytes = b"", slot: int = 1, flags: int = frames.END
) -> bytes:
    """A frame with a request."""
    packed = frames.HEADER.pack(len(own) + len(body), number, len(own), frames.REQUEST, flags, slot)
    return packed + own + body


def answer(
    number: int, body: bytes = b"", *, own: bytes = b"", slot: int = 1, flags: int = frames.END
) -> bytes:
    """A frame with an answer."""
    packed = frames.HEADER.pack(len(own) + len(body), number, len(own), frames.ANSWER, flags, slot)
    return packed + own + body


@contextlib.asynccontextmanager
async def raw_server(play: Callable[[Raw], object]) -> AsyncIterator[tuple[HopUpstream, tuple[str, int]]]:
    """An upstream with a hop to a server that a test plays, and its address.

    Args:
        play: gets the server's end when it has become a hop.
    """
    writers: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                asked = await reader.readuntil(b"\r\n\r\n")
                if b"upgrade: " in asked:
                    writer.write(
                        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n"
                        b"upgrade: penstock-hop/1\r\n\r\n"
                    )
                    play(Raw(reader, writer))
                    return
                writer.write(b"HTTP/1.1 200 OK\r\nx-penstock-queue: 0\r\ncontent-length: 0\r\n\r\n")

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()[:2]
    upstream = HopUpstream(H1Upstream())
    await sending.send(upstream, *address, post(body=b""), timeout=30)
    await until(lambda: address in upstream._hops)
    yield upstream, address
    await upstream.close()
    for writer in writers:
        writer.close()
    server.close()
    await asyncio.sleep(0)
