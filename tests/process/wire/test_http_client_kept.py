"""Which connections carry another request, and what is known of a request that a kept connection lost."""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from penstock_wire.http import (
    ALL_BYTES,
    ConnectionLost,
    Request,
    RequestUnread,
    Response,
    UpstreamError,
    sending,
)
from penstock_wire.http.client.pool import H1Upstream
from tests.support.clocks.waiting import SECONDS, until
from tests.support.http.stream_peer import Scripted, Wire, scripted, unread

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@pytest_asyncio.fixture
async def peer() -> AsyncIterator[Scripted]:
    async with scripted(Scripted()) as peer:
        yield peer


@pytest_asyncio.fixture
async def upstream() -> AsyncIterator[H1Upstream]:
    upstream = H1Upstream()
    yield upstream
    await upstream.close()


async def send(upstream: H1Upstream, peer: Scripted, *, fresh: bool = False, body: bytes = b"b") -> Response:
    request = Request("POST", "/", (), body, fresh=fresh)
    return await sending.send(upstream, "127.0.0.1", peer.port, request, timeout=SECONDS)


async def read(wire: Wire) -> None:
    """Read a request with a body of one byte."""
    await wire.head()
    await wire.reader.readexactly(1)


async def good(wire: Wire) -> None:
    while True:
        await read(wire)
        await wire.send(OK)


@pytest.mark.parametrize(
    ("status", "fields", "kept"),
    [
        (200, b"", True),
        (422, b"", True),
        (500, b"", False),
        (503, b"", False),
        (503, b"x-penstock-reason: queue_full\r\n", True),
    ],
)
async def test_behind_a_5xx_a_connection_is_not_used_again(
    upstream: H1Upstream, peer: Scripted, status: int, fields: bytes, kept: bool
) -> None:
    """A server that failed may end it without a word; one of Penstock's own says so where it does."""

    async def play(wire: Wire) -> None:
        while True:
            await read(wire)
            await wire.send(b"HTTP/1.1 %d X\r\ncontent-length: 2\r\n%b\r\nno" % (status, fields))

    peer.scripts = [play]
    for _ in range(2):
        assert (await send(upstream, peer)).status == status
    assert peer.connections == (1 if kept else 2)
    await until(lambda: len(upstream._open) == (1 if kept else 0))


async def test_a_fresh_connection_is_made_and_takes_the_place_of_a_kept_one(
    upstream: H1Upstream, peer: Scripted
) -> None:
    peer.scripts = [good]
    await asyncio.gather(*[send(upstream, peer) for _ in range(3)])
    assert peer.connections == 3
    for count in range(4, 9):
        assert (await send(upstream, peer, fresh=True)).body == b"ok"
        assert peer.connections == count
        await until(lambda: len(upstream._open) == 3)
    await send(upstream, peer)
    assert peer.connections == 8


class TestUnread:
    """A reset before an answer's first byte, on a connection that has carried an exchange."""

    async def test_a_server_that_closes_with_the_request_unread(
        self, upstream: H1Upstream, peer: Scripted
    ) -> None:
        async def play(wire: Wire) -> None:
            await read(wire)
            await wire.send(OK)
            assert await unread(wire)
            wire.reset()

        peer.scripts = [play]
        await send(upstream, peer)
        with pytest.raises(RequestUnread, match="before it had read the request"):
            await send(upstream, peer)

    async def test_a_task_less_exchange_says_so_too(self, upstream: H1Upstream, peer: Scripted) -> None:
        async def play(wire: Wire) -> None:
            await read(wire)
            await wire.send(OK)
            assert await unread(wire)
            wire.reset()

        peer.scripts = [play]
        await send(upstream, peer)
        ended: asyncio.Future[Response | UpstreamError] = asyncio.get_running_loop().create_future()
        request = Request("POST", "/", (), b"b")
        upstream.begin("127.0.0.1", peer.port, request, SECONDS, SECONDS, ALL_BYTES, ended.set_result)
        assert isinstance(await ended, RequestUnread)

    async def test_a_server_that_had_closed_before(self, upstream: H1Upstream, peer: Scripted) -> None:
        """Its end is in the kernel, and the loop has not come to it."""
        closed = asyncio.Event()

        async def play(wire: Wire) -> None:
            await read(wire)
            await wire.send(OK)
            await closed.wait()

        peer.scripts = [play]
        await send(upstream, peer)
        (connection,) = upstream._open
        connection.transport.pause_reading()
        closed.set()
        poll = select.poll()
        poll.register(connection.transport.get_extra_info("socket").fileno(), select.POLLIN)
        await until(lambda: bool(poll.poll(0)))
        connection.idle_since = float("inf")  # used a moment ago: nobody looks at it
        sent = asyncio.ensure_future(send(upstream, peer))
        await asyncio.sleep(0)
        connection.transport.resume_reading()
        with pytest.raises(RequestUnread):
            await sent

    async def test_a_server_that_has_read_the_request_may_have_executed_it(
        self, upstream: H1Upstream, peer: Scripted
    ) -> None:
        async def play(wire: Wire) -> None:
            await read(wire)
            await wire.send(OK)
            await read(wire)

        peer.scripts = [play]
        await send(upstream, peer)
        with pytest.raises(ConnectionLost) as caught:
            await send(upstream, peer)
        assert not isinstance(caught.value, RequestUnread)

    async def test_a_server_that_has_begun_to_answer_may_have_executed_it(
        self, upstream: H1Upstream, peer: Scripted
    ) -> None:
        async def play(wire: Wire) -> None:
            await read(wire)
            await wire.send(OK)
            await wire.head()
            await wire.send(b"HTTP/1.1 103 Early Hints\r\n\r\n")
            assert await unread(wire)
            wire.reset()

        peer.scripts = [play]
        await send(upstream, peer)
        with pytest.raises(ConnectionLost) as caught:
            await send(upstream, peer, body=b"b" * 5_000_000)
        assert not isinstance(caught.value, RequestUnread)

    async def test_a_new_connection_that_is_reset_says_nothing(
        self, upstream: H1Upstream, peer: Scripted
    ) -> None:
        async def play(wire: Wire) -> None:
            assert await unread(wire)
            wire.reset()

        peer.scripts = [play]
        with pytest.raises(ConnectionLost) as caught:
            await send(upstream, peer)
        assert not isinstance(caught.value, RequestUnread)


DATED = b"HTTP/1.1 200 OK\r\ndate: %b\r\ncontent-length: 2\r\n\r\n%b"


async def test_an_answer_with_the_head_of_one_before_is_not_parsed(
    upstream: H1Upstream, peer: Scripted
) -> None:
    """Its fields are the very same object; those of another head are not. The fuzzer has it in pieces."""

    async def answers(wire: Wire) -> None:
        for date, body in ((b"1", b"ab"), (b"1", b"cd"), (b"2", b"ef"), (b"1", b"gh")):
            await read(wire)
            await wire.send(DATED % (date, body))

    peer.scripts = [answers]
    got = [await send(upstream, peer) for _ in range(4)]
    assert [answer.body for answer in got] == [b"ab", b"cd", b"ef", b"gh"]
    assert got[3].headers is got[1].headers == ((b"date", b"1"),)
    assert got[2].headers == ((b"date", b"2"),)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 500 Oh\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 103 Hints\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
        OK + b"\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 3000 + b"\r\ncontent-length: 2\r\n\r\nok",
    ],
    ids=["it closes", "an error", "chunked", "an interim one before", "a blank line behind", "long"],
)
async def test_heads_that_say_more_are_parsed_each_time(
    upstream: H1Upstream, peer: Scripted, answer: bytes
) -> None:
    async def answers(wire: Wire) -> None:
        while True:
            await read(wire)
            await wire.send(answer)

    peer.scripts = [answers]
    for _ in range(3):
        assert (await send(upstream, peer)).body == b"ok"
    assert not len(upstream.known)
