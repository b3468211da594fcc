"""Connections of the upstream that switch protocols: both halves, refusals, back-pressure."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from penstock_wire.http import (
    AnswerUnreadable,
    ConnectionLost,
)
from penstock_wire.http.client.answer import Answer
from penstock_wire.http.client.pool import H1Upstream
from tests.support.clocks.waiting import SECONDS, until
from tests.support.http.stream_peer import Scripted, Wire, says
from tests.support.http.upstream_exchange import ask, check_pool, get, good, rest


class TestTunnels:
    async def open(self, upstream: H1Upstream, peer: Scripted) -> Answer:
        return await ask(upstream, peer, get(upgrade=b"websocket"))

    async def test_both_sides_talk_and_end_by_themselves(self, upstream: H1Upstream, peer: Scripted) -> None:
        """Bytes behind the head belong to the tunnel; one half may end before the other."""
        heads: list[bytes] = []

        async def play(wire: Wire) -> None:
            heads.append(await wire.head())
            await wire.send(
                b"HTTP/1.1 101 S\r\nconnection: Upgrade\r\nupgrade: websocket\r\nx-a: 1\r\n\r\nfirst"
            )
            assert await wire.reader.read() == b"from here"
            await wire.send(b"behind your end")

        peer.scripts = [play, good]
        answer = await self.open(upstream, peer)
        assert answer.status == 101
        assert answer.headers == (
            (b"x-a", b"1"),
            (b"connection", b"upgrade"),
            (b"upgrade", b"websocket"),
        )
        assert b"connection: upgrade\r\nupgrade: websocket\r\n" in heads[0]
        tunnel = answer.tunnel
        assert tunnel is not None
        assert await tunnel.read() == b"first"
        await tunnel.write(b"from here")
        tunnel.end()
        assert await tunnel.read() == b"behind your end"
        assert await tunnel.read() == b""
        with pytest.raises(ConnectionLost):
            await tunnel.write(b"too late")
        await check_pool(upstream, peer, 2)

    async def test_a_peer_that_ends_its_half_first_is_still_written_to(
        self, upstream: H1Upstream, peer: Scripted
    ) -> None:
        got = asyncio.get_running_loop().create_future()

        async def play(wire: Wire) -> None:
            await wire.head()
            await wire.send(b"HTTP/1.1 101 S\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n")
            wire.writer.write_eof()
            got.set_result(await wire.reader.read())

        peer.scripts = [play]
        tunnel = (await self.open(upstream, peer)).tunnel
        assert tunnel is not None
        assert await tunnel.read() == b""
        await tunnel.write(b"still here")
        tunnel.end()
        assert await asyncio.wait_for(got, SECONDS) == b"still here"

    async def test_another_status_is_an_answer_like_any_other(
        self, upstream: H1Upstream, peer: Scripted
    ) -> None:
        peer.scripts = [good]
        answer = await self.open(upstream, peer)
        assert (answer.status, answer.tunnel, await rest(answer)) == (200, None, b"ok")
        await check_pool(upstream, peer, 1)

    async def test_a_switch_to_nothing_is_no_answer(self, upstream: H1Upstream, peer: Scripted) -> None:
        play = says(b"HTTP/1.1 101 S\r\n\r\n", then=Wire.gone)
        peer.scripts = [play]
        with pytest.raises(AnswerUnreadable):
            await self.open(upstream, peer)

    async def test_a_peer_that_is_reset_or_let_go_ends_it(self, upstream: H1Upstream, peer: Scripted) -> None:
        go, gone = asyncio.Event(), asyncio.Event()
        head = b"HTTP/1.1 101 S\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n"

        async def reset(wire: Wire) -> None:
            await wire.head()
            await wire.send(head)
            await go.wait()
            wire.reader._buffer.clear()  # type: ignore[attr-defined]
            sock = wire.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            wire.reset()

        async def watch(wire: Wire) -> None:
            await wire.head()
            await wire.send(head)
            await wire.gone()
            gone.set()

        peer.scripts = [reset, watch]
        tunnel = (await self.open(upstream, peer)).tunnel
        assert tunnel is not None
        go.set()
        with pytest.raises(ConnectionLost):
            await tunnel.read()
        tunnel = (await self.open(upstream, peer)).tunnel
        assert tunnel is not None
        tunnel.abort()
        await asyncio.wait_for(gone.wait(), SECONDS)

    async def test_writing_waits_while_the_peer_takes_nothing(
        self, upstream: H1Upstream, peer: Scripted
    ) -> None:
        go = asyncio.Event()
        head = b"HTTP/1.1 101 S\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n"
        total = 0

        async def play(wire: Wire) -> None:
            nonlocal total
            await wire.head()
            await wire.send(head)
            await go.wait()
            while data := await wire.reader.read(1_000_000):
                total += len(data)

        peer.scripts = [play]
        tunnel = (await self.open(upstream, peer)).tunnel
        assert tunnel is not None
        sent = 0

        async def write() -> None:
            nonlocal sent
            while sent < 64_000_000:
                await tunnel.write(bytes(1_000_000))
                sent += 1_000_000

        writing = asyncio.create_task(write())
        (connection,) = upstream._open
        await until(lambda: connection.writable is not None)
        assert not writing.done()
        go.set()
        await asyncio.wait_for(writing, 20)
        tunnel.end()
        assert await tunnel.read() == b""
        assert total == 64_000_000
