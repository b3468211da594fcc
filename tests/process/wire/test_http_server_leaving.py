"""Clients of the front that leave as a stream begins, or while the front does not read from them."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import time
from typing import cast

import pytest

from penstock_operator.control import pki
from penstock_operator.control.certificates import server_context, show
from penstock_operator.control.rotation import DAY
from penstock_wire.control.ca_trust import client_context
from penstock_wire.http import Exchange, Response, Tunnel
from penstock_wire.http.memory import MemoryBound
from penstock_wire.http.server import limits
from penstock_wire.http.server.exchange import H1Exchange
from tests.support.clocks.waiting import SECONDS, until
from tests.support.http.front_server import Server, body, head, post, serving


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_stream_is_closed_though_its_client_leaves_before_a_first_piece_is_asked_for(
    method: str,
) -> None:
    """The task that sends it is cancelled before its first step: its maker hears of the end nevertheless."""
    closed = asyncio.Event()

    class Stream:
        def __aiter__(self) -> Stream:
            return self

        async def __anext__(self) -> bytes:
            raise AssertionError("nobody reads it")

        async def aclose(self) -> None:
            closed.set()

    async def leaving(exchange: Exchange) -> None:
        cast("H1Exchange", exchange).connection.abort()  # type: ignore[union-attr]
        exchange.answer(Response(200, stream=Stream()))

    async with serving() as server:
        server.work = leaving
        _, writer = await server.connect(f"{method} / HTTP/1.1\r\nhost: a\r\n\r\n".encode())
        await asyncio.wait_for(closed.wait(), SECONDS)
        writer.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps and looks that follow each other soon."""
    monkeypatch.setattr(limits, "SWEEP_SECONDS", 0.02)
    monkeypatch.setattr(limits, "STILL_SECONDS", 0.05)


async def never(_exchange: Exchange) -> None:
    await asyncio.Event().wait()


def reset(writer: asyncio.StreamWriter) -> None:
    """Close so that the kernel sends a reset, not what is left."""
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


async def leave_paused(server: Server, writer: asyncio.StreamWriter, *, by_reset: bool) -> None:
    """Leave once the front does not read."""
    await until(lambda: bool(server.front.unread))
    if by_reset:
        reset(writer)
    else:
        writer.transport.abort()


async def all_left(server: Server, gone: int) -> None:
    """Wait until the front has no connection; so many exchanges are gone then."""
    await until(lambda: not server.front.connections)
    assert server.gone == gone
    assert not server.front.unread
    for task in server.tasks:
        task.cancel()


async def many_sweeps(server: Server) -> None:
    """Let the front sweep twenty times, and what each causes come to pass."""
    for _ in range(20):
        server.front.sweep()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("by_reset", [True, False])
@pytest.mark.parametrize("size", [400_000, 1_500_000, 4_000_000, 30_000_000])
@pytest.mark.usefixtures("quick")
async def test_a_client_that_leaves_is_noticed_though_nobody_reads_its_body(
    size: int, by_reset: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end waits behind what its kernel still has to send."""
    async with serving() as server:
        server.work = never
        server.front.memory = MemoryBound(64 * limits.FURTHER_BYTES)
        monkeypatch.setattr(limits, "STILL_SECONDS", 0.5)  # the client is sooner
        _, writer = await server.connect(post("/s", bytes(size)))
        await leave_paused(server, writer, by_reset=by_reset)
        await all_left(server, 1)


@pytest.mark.parametrize("by_reset", [True, False])
@pytest.mark.usefixtures("quick")
async def test_so_is_one_that_speaks_tls(by_reset: bool) -> None:
    authority = pki.make_authority(now=time.time(), life=DAY)
    context = server_context()
    show(context, pki.issue(authority, names=("127.0.0.1",), now=time.time(), life=DAY))
    async with serving() as server:
        server.work = never
        server.front.memory = MemoryBound(64 * limits.FURTHER_BYTES)
        listener = await server.front.serve(
            "127.0.0.1", 0, server, streams=lambda _request: True, tls=context
        )
        trusted: ssl.SSLContext = client_context(authority.certificate)
        _, writer = await asyncio.open_connection(*listener.address, ssl=trusted)
        writer.write(post("/s", bytes(1_500_000)))
        await leave_paused(server, writer, by_reset=by_reset)
        await all_left(server, 1)


@pytest.mark.usefixtures("quick")
async def test_so_is_one_whose_pipeline_is_long() -> None:
    async with serving() as server:
        server.work = never
        _, writer = await server.connect(post("/", b"x") * (limits.MAX_PIPELINED + 4))
        await until(lambda: any(each._reader.holders for each in server.front.connections))
        writer.close()
        await all_left(server, 1)


@pytest.mark.parametrize("by_reset", [True, False])
@pytest.mark.usefixtures("quick")
async def test_a_tunnel_that_nobody_reads_ends_with_a_reset_and_not_with_its_halves(by_reset: bool) -> None:
    """What came before orderly ends is read later, even if both halves have ended."""
    async with serving() as server:
        tunnels: list[Tunnel] = []

        async def switch(exchange: Exchange) -> None:
            tunnels.append(exchange.switch(((b"connection", b"upgrade"), (b"upgrade", b"x"))))

        server.work = switch
        reader, writer = await server.connect(
            b"GET /ws HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: x\r\n\r\n"
        )
        await head(reader)
        writer.write(bytes(100_000))
        await until(lambda: bool(server.front.unread))
        writer.write(bytes(1000))
        writer.write_eof()
        if not by_reset:
            tunnels[0].end()
            assert await asyncio.wait_for(reader.read(), SECONDS) == b""
        await many_sweeps(server)
        assert server.front.connections
        if by_reset:
            reset(writer)
        else:
            size = 0
            while piece := await asyncio.wait_for(tunnels[0].read(), SECONDS):
                size += len(piece)
            assert size == 101_000
        await until(lambda: not server.front.connections)
        assert not server.front.unread


@pytest.mark.usefixtures("quick")
async def test_of_bodies_of_clients_that_stay_a_bounded_part_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing while much is kept; all of it is served when its turn comes."""
    go = asyncio.Event()
    megabyte = limits.FURTHER_BYTES
    monkeypatch.setattr(limits, "MOST_FURTHER_BYTES", 3 * megabyte)
    async with serving() as server:

        async def slow(exchange: Exchange) -> None:
            await go.wait()
            await server.echo(exchange)

        server.work = slow
        memory = server.front.memory = MemoryBound(32 * megabyte)
        memory.others.append(lambda: 17 * megabyte)
        memory.look()
        data = b"x" * (6 * megabyte)
        readers = [(await server.connect(post("/s", data)))[0] for _ in range(3)]

        def sizes() -> list[int]:
            return [each._reader.inbound.kept() for each in server.front.connections if each._reader.inbound]

        await until(lambda: len(server.front.unread) == 3)
        await many_sweeps(server)
        assert max(sizes()) < megabyte
        memory.others.clear()
        await until(lambda: min(sizes()) > 3 * megabyte)
        await many_sweeps(server)
        assert max(sizes()) < 4.5 * megabyte
        go.set()
        for reader in readers:
            assert await body(reader) == data
        assert not server.front.unread
