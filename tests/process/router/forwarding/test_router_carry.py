"""What an endpoint carries, through a real router, sidecar and model: bodies of any size, and tunnels."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.support.processes.router_process import RouterProcess, backend, endpoint
from tests.support.processes.router_process import until as until_now
from tests.support.processes.sidecar_process import Pair, until

MB = 1 << 20
ROOM = 16 * MB
"""What the router may take beside its own, however long a body is."""

OPEN_TUNNELS = 'penstock_router_open_tunnels{backend="b",endpoint="e"} '


@pytest_asyncio.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    pair = Pair(tmp_path, "--protocol=none", "--drain-timeout=1s")
    pair.model_program = "tests.support.models.stream_model"
    await pair.start()
    yield pair
    await pair.stop()


@pytest_asyncio.fixture
async def process(pair: Pair, router: Any) -> AsyncIterator[RouterProcess]:
    process = await router().start(endpoint("e", backend("b", pair.data.removeprefix("http://"))))
    yield process
    await process.stop()


async def until_seen(pair: Pair, **expected: int) -> None:
    seen: dict[str, Any] = {}

    async def look() -> bool:
        nonlocal seen
        seen = (await pair.ask("/-/seen", method="GET", base=pair.model_url)).document
        return all(seen[name] == value for name, value in expected.items())

    await until(look, details=lambda: seen)


async def until_none_is_open(process: RouterProcess) -> None:
    """Wait until the router counts no open tunnel."""

    async def look() -> bool:
        return OPEN_TUNNELS + "0.0" in await process.metrics()

    await until(look)


def address(process: RouterProcess) -> tuple[str, int]:
    host, _, port = process.data.removeprefix("http://").partition(":")
    return host, int(port)


@pytest.mark.parametrize("known", [True, False])
async def test_a_large_upload_takes_no_memory(process: RouterProcess, known: bool) -> None:
    """200 MB, with a length and without, more than any part of Penstock takes whole."""
    before = process.rss()
    peak = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal peak
        for _ in range(200):
            yield bytes(MB)
            peak = max(peak, process.rss())

    headers = {"content-length": str(200 * MB)} if known else {}
    reply = await process.ask("/e/sink", data=body(), headers=headers)
    assert reply.document == {"bytes": 200 * MB, "length": str(200 * MB) if known else None}
    assert peak - before < ROOM


async def test_a_large_download_takes_no_memory_however_slow_its_reader(
    process: RouterProcess, pair: Pair
) -> None:
    """What the client does not take stays with the model; what it takes later is whole."""
    before = process.rss()
    async with process.session.get(process.data + "/e/big?mb=200") as answer:
        last, looks = -1, 0

        async def stuck() -> bool:
            nonlocal last, looks
            sent = (await pair.ask("/-/seen", method="GET", base=pair.model_url)).document["sent"]
            looks, last = looks + 1 if sent == last else 0, sent
            return looks >= 20

        await until(stuck)
        assert last < 60 * MB
        size = 0
        async for piece in answer.content.iter_any():
            size += len(piece)
            assert process.rss() - before < ROOM
    assert size == 200 * MB


async def test_a_body_is_answered_while_it_is_sent(process: RouterProcess, pair: Pair) -> None:
    """Each piece comes back before the next is given; who leaves in the middle is gone for the model."""
    head = b"POST /e/echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    reader, writer = await asyncio.open_connection(*address(process))
    for _ in range(2):
        writer.write(head)
        assert b" 200 OK\r\n" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
        for piece in (b"3\r\none\r\n", b"3\r\ntwo\r\n", b"0\r\n\r\n"):
            writer.write(piece)
            assert await asyncio.wait_for(reader.readexactly(len(piece)), 30) == piece
    writer.write(head + b"3\r\none\r\n")
    await asyncio.wait_for(reader.readuntil(b"one\r\n"), 30)
    writer.transport.abort()
    await until_seen(pair, ongoing=0, left=1)
    assert not [line for line in process.log if json.loads(line)["level"] == "error"]


@pytest.mark.parametrize("how", ["reset", "half"])
async def test_a_client_that_leaves_in_its_body_is_gone_for_the_model(
    process: RouterProcess, pair: Pair, how: str
) -> None:
    """Whether it resets its connection or ends its half (ADR 15)."""
    _, writer = await asyncio.open_connection(*address(process))
    writer.write(b"POST /e/sink HTTP/1.1\r\nhost: x\r\ncontent-length: 9000000\r\n\r\n" + bytes(1000))
    await until_seen(pair, ongoing=1)
    if how == "reset":
        writer.transport.abort()
    else:
        writer.write_eof()
    await until_seen(pair, ongoing=0, left=1)
    writer.close()
    metrics = await process.metrics()
    assert 'code="499",endpoint="e",reason="client_gone"} 1.0' in metrics


class TestTunnels:
    async def test_messages_pass_both_ways(self, process: RouterProcess, pair: Pair) -> None:
        """From the first to the close codes; the answer says who switched, and it is counted."""
        async with process.session.ws_connect(process.data + "/e/ws", protocols=("chat",)) as socket:
            assert socket.protocol == "chat"
            assert socket._response.headers["x-penstock-backend"] == "b"
            assert len(socket._response.headers["x-request-id"]) == 32
            assert "x-penstock-queue" not in socket._response.headers
            assert OPEN_TUNNELS + "1.0" in await process.metrics()
            await socket.send_str("hello")
            assert await socket.receive_str() == "hello"
            await socket.send_bytes(bytes(3 * MB))
            assert len(await socket.receive_bytes()) == 3 * MB
            await socket.send_str("close:4001")
            message = await socket.receive()
            assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 4001)
        await until_seen(pair, ongoing=0, left=0)
        assert 'backend="b",code="101",endpoint="e",reason=""} 1.0' in await process.metrics()
        await until_none_is_open(process)

    async def test_a_client_that_is_gone_is_gone_for_the_model(
        self, process: RouterProcess, pair: Pair
    ) -> None:
        socket = await process.session.ws_connect(process.data + "/e/ws")
        await until_seen(pair, ongoing=1)
        assert socket._response.connection is not None
        transport = socket._response.connection.transport
        assert transport is not None
        transport.abort()
        await until_seen(pair, ongoing=0, left=1)
        await until_none_is_open(process)
        await socket.close()

    async def test_a_model_that_is_gone_is_gone_for_the_client(
        self, process: RouterProcess, pair: Pair
    ) -> None:
        socket = await process.session.ws_connect(process.data + "/e/ws")
        await pair.model.stop()
        message = await socket.receive()
        assert message.type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR, aiohttp.WSMsgType.CLOSE)
        await socket.close()

    async def test_a_refusal_to_switch_is_an_answer(self, process: RouterProcess) -> None:
        """And one to a request whose `Upgrade` nobody takes up; the connection is kept."""
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await process.session.ws_connect(process.data + "/e/show?status=403")
        assert caught.value.status == 403
        reader, writer = await asyncio.open_connection(*address(process))
        for _ in range(2):
            writer.write(b"GET /e/show HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n")
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length: "))
            assert json.loads(await reader.readexactly(int(length[16:])))["method"] == "GET"
        writer.close()

    async def test_a_router_that_ends_closes_its_tunnels_last(self, pair: Pair, router: Any) -> None:
        process = await router("--drain-timeout=1s").start(
            endpoint("e", backend("b", pair.data.removeprefix("http://")))
        )
        socket = await process.session.ws_connect(process.data + "/e/ws")
        process.signal()
        await until_now(lambda: any('"drain begins"' in line for line in process.log))
        await socket.send_str("still there")
        assert await socket.receive_str() == "still there"
        message = await socket.receive()
        assert message.type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
        assert await process.ended() == 0
        await until_seen(pair, ongoing=0, left=1)
        await socket.close()
