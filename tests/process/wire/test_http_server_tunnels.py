"""Connections of the front that switch protocols: bytes both ways, ends of one half, who may switch."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from penstock_wire.http import ClientGone, Exchange, Response, Tunnel
from penstock_wire.http.server.server import H1Front
from tests.support.clocks.waiting import SECONDS, until
from tests.support.http.front_server import Server, body, head, post, serving
from tests.support.http.raw_client import until_closed

UPGRADE = b"GET /ws HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: x\r\n\r\n"
SWITCH = ((b"connection", b"upgrade"), (b"upgrade", b"x"))


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as server:
        yield server


class Switching:
    """Work that switches, and keeps the tunnel."""

    def __init__(self, server: Server) -> None:
        self.tunnels: list[Tunnel] = []
        self.go = asyncio.Event()
        self.go.set()
        server.work = self

    async def __call__(self, exchange: Exchange) -> None:
        await self.go.wait()
        assert exchange.request.upgrade == b"x"
        self.tunnels.append(exchange.switch(SWITCH))


@pytest.mark.parametrize("waits", [False, True])
async def test_a_tunnel_carries_bytes_both_ways_from_the_first_behind_the_head(
    server: Server, waits: bool
) -> None:
    """RFC 9110 section 7.8: what comes behind the request is the new protocol's, sent early or late."""
    switching = Switching(server)
    if waits:
        switching.go.clear()
    reader, writer = await server.connect(UPGRADE + b"early ")
    await until(lambda: len(server.exchanges) == 1)
    writer.write(b"GET / late")
    switching.go.set()
    assert (await head(reader)).startswith(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n")
    (tunnel,) = switching.tunnels
    received = b""
    while received != b"early GET / late":
        received += await asyncio.wait_for(tunnel.read(), SECONDS)
    await tunnel.write(b"answer")
    assert await asyncio.wait_for(reader.readexactly(6), SECONDS) == b"answer"


async def test_each_half_of_a_tunnel_ends_by_itself(server: Server) -> None:
    """After the client's end it still reads, and after our end it still sends."""
    switching = Switching(server)
    reader, writer = await server.connect(UPGRADE)
    await head(reader)
    (tunnel,) = switching.tunnels
    writer.write(b"last")
    writer.write_eof()
    assert await asyncio.wait_for(tunnel.read(), SECONDS) == b"last"
    assert await asyncio.wait_for(tunnel.read(), SECONDS) == b""
    await tunnel.write(b"still here")
    tunnel.end()
    assert await asyncio.wait_for(reader.read(), SECONDS) == b"still here"
    await until(lambda: not server.front.connections)
    writer.close()

    reader, writer = await server.connect(UPGRADE)
    await head(reader)
    tunnel = switching.tunnels[1]
    tunnel.end()
    assert await asyncio.wait_for(reader.read(), SECONDS) == b""
    writer.write(b"to the end")
    assert await asyncio.wait_for(tunnel.read(), SECONDS) == b"to the end"
    writer.write_eof()
    assert await asyncio.wait_for(tunnel.read(), SECONDS) == b""
    await until(lambda: not server.front.connections)


async def test_a_tunnel_has_back_pressure_both_ways(server: Server) -> None:
    """Who does not read slows the other one down."""
    switching = Switching(server)
    reader, writer = await server.connect(UPGRADE)
    await head(reader)
    (tunnel,) = switching.tunnels
    writer.write(b"x" * 20_000_000)
    (connection,) = server.front.connections
    await until(lambda: bool(connection._reader.holders))
    got = 0
    while got < 20_000_000:
        got += len(await asyncio.wait_for(tunnel.read(), SECONDS))
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    sending = asyncio.create_task(tunnel.write(b"y" * 20_000_000))
    await until(lambda: connection._writer._writable is not None)
    assert not sending.done()
    reader._transport.resume_reading()  # type: ignore[attr-defined]
    assert len(await asyncio.wait_for(reader.readexactly(20_000_000), SECONDS)) == 20_000_000
    await sending


async def test_a_tunnel_whose_client_resets_raises(server: Server) -> None:
    """Readers and writers get the error."""
    switching = Switching(server)
    reader, writer = await server.connect(UPGRADE)
    await head(reader)
    (tunnel,) = switching.tunnels
    reading = asyncio.create_task(tunnel.read())
    reset = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
    writer.transport.abort()
    with pytest.raises(ClientGone):
        await asyncio.wait_for(reading, SECONDS)
    with pytest.raises(ClientGone):
        await tunnel.write(b"x")
    tunnel.abort()


@pytest.mark.parametrize("waits", [False, True])
async def test_a_service_may_answer_instead_of_switching(server: Server, waits: bool) -> None:
    """RFC 9110 section 7.8: it ignores the Upgrade, and what follows is HTTP."""
    go = asyncio.Event()

    async def ignore(exchange: Exchange) -> None:
        if waits:
            await go.wait()
        exchange.answer(Response(200, (), exchange.request.target.encode()))

    server.work = ignore
    reader, writer = await server.connect(UPGRADE + post("/whole", b"")[:20])
    await until(lambda: len(server.exchanges) == 1)
    go.set()
    assert await body(reader) == b"/ws"
    writer.write(post("/whole", b"")[20:] + UPGRADE)
    assert await body(reader) == b"/whole"
    assert await body(reader) == b"/ws"


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /u HTTP/1.0\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
        b"POST /u HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: x\r\ncontent-length: 3\r\n\r\nabc",
        b"GET /u HTTP/1.1\r\nhost: a\r\nupgrade: x\r\n\r\n",
        b"GET /u HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
        b"GET /u HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket, TLS/1.2\r\n\r\n",
    ],
)
async def test_who_cannot_switch_is_not_said_to_ask(server: Server, sent: bytes) -> None:
    """RFC 9110 section 7.8: HTTP/1.0, a request with a body, an Upgrade that Connection does not name.

    Nor one to a protocol of the whole connection: a proxy that passed it on would check no further request.
    """
    reader, _writer = await server.connect(sent)
    await head(reader)
    assert server.exchanges[0].request.upgrade == b""
    with pytest.raises((ValueError, ClientGone)):
        server.exchanges[0].switch(SWITCH)


async def test_where_nothing_may_switch_a_request_says_that_it_asked_and_is_answered() -> None:
    """A listener without streams: what comes behind the request is the next one."""
    asked: list[bytes] = []

    def service(exchange: Exchange) -> None:
        asked.append(exchange.request.upgrade)
        if exchange.request.upgrade:
            with pytest.raises(ValueError, match="may switch"):
                exchange.switch(SWITCH)
        exchange.answer(Response(200, (), b"end"))

    front = H1Front()
    listener = await front.serve("127.0.0.1", 0, service)
    last = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    answer = await until_closed(listener.address, UPGRADE + last)
    await front.close(0)
    assert answer.count(b"HTTP/1.1 200 OK\r\n") == answer.count(b"\r\n\r\nend") == 2
    assert asked == [b"x", b""]


@pytest.mark.parametrize("body_bytes", [300, 17_000])
async def test_a_request_that_is_the_last_is_not_asked_to_go_on(body_bytes: int) -> None:
    """Two in one segment: the answer to the second, before its body, ends the connection."""
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    front = H1Front()
    listener = await front.serve(
        "127.0.0.1",
        0,
        lambda exchange: exchange.answer(Response(404, (), b"no")),
        streams=lambda _: True,
        whole_bytes=200,
    )
    sent = (
        b"POST /x HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: h2c\r\ncontent-length: 40\r\n\r\n"
        + b"z" * 40
        + b"POST /x HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n" % body_bytes
    )
    answers = await until_closed(listener.address, sent)
    await listener.close()
    assert (answers.count(b"HTTP/1.1 404"), failures) == (2, [])
