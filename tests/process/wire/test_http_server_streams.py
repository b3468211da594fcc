"""Requests' bodies at the front, over loopback: as they come, back-pressure, cut connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest
import pytest_asyncio

from penstock_wire.http import Exchange, Response
from penstock_wire.http.server import limits
from penstock_wire.http.server.streams import Carrier, Inbound
from tests.support.clocks.waiting import SECONDS, until
from tests.support.http import client_heads
from tests.support.http.front_server import OK, Server, body, head, pieces, post, serving


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as server:
        yield server


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Sweeps that come often."""
    monkeypatch.setattr(limits, "SWEEP_SECONDS", 0.02)
    return monkeypatch


async def test_a_streamed_body_is_read_while_it_comes(server: Server) -> None:
    """The exchange begins with the head, has the length, and reads each piece before the next is sent."""
    got: list[bytes] = []

    async def keep(exchange: Exchange) -> None:
        assert exchange.request.stream is not None
        assert exchange.request.length == 6
        assert exchange.request.body == b""
        async for piece in pieces(exchange.request.stream):
            got.append(piece)
        assert await exchange.request.stream.read() == b""
        exchange.answer(Response(200, (), b"".join(got)))

    server.work = keep
    reader, writer = await server.connect(post("/s", b"abcdef")[:-6])
    await until(lambda: len(server.exchanges) == 1)
    for part in (b"ab", b"cd", b"ef"):
        writer.write(part)
        await until(lambda part=part: got[-1:] == [part])  # type: ignore[misc]
    assert await body(reader) == b"abcdef"
    server.work = server.echo
    writer.write(post("/whole", b"next"))
    assert await body(reader) == b"next"


@pytest.mark.parametrize("client", client_heads.HEADS)
async def test_what_real_clients_send_is_a_stream_only_beyond_whole_bytes(client: str) -> None:
    """Whatever they write of their connection, which no service sees; and it is kept if they keep theirs."""
    async with serving(whole_bytes=500) as server:
        server.streamed = lambda _: True
        bodies = [b"[1]", b"x" * 500, b"y" * 501]
        replies = await client_heads.ask(server.address, client, *bodies)
        assert [(status, body) for status, _, body in replies] == [(200, body) for body in bodies]
        requests = [exchange.request for exchange in server.exchanges]
        assert [request.stream is not None for request in requests] == [False, False, True]
        names = {name for request in requests for name, _ in request.headers}
        assert not names & {b"connection", b"keep-alive", b"te", b"upgrade", b"http2-settings", b"expect"}
        assert {request.upgrade for request in requests} == {b""}


async def test_a_streamed_chunked_body_has_no_length_and_no_trailers(server: Server) -> None:
    """RFC 9112 section 7.1: framing and trailers end in the front."""
    sent = (
        b"POST /s HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
        b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nx-t: 1\r\n\r\n"
    )
    reader, writer = await server.connect()
    for index in range(len(sent)):
        writer.write(sent[index : index + 1])
        await writer.drain()
    assert await body(reader) == b"abcde"
    assert server.exchanges[0].request.length is None
    assert b"x-t" not in dict(server.exchanges[0].request.headers)
    writer.write(post("/s", b"again"))
    assert await body(reader) == b"again"


async def test_a_large_body_passes_whole_in_both_framings(server: Server) -> None:
    """Larger than what is taken whole, in one connection, followed by another request."""
    data = bytes(range(256)) * 8000
    reader, writer = await server.connect(post("/s", data))
    assert await body(reader) == data
    chunks = b"".join(
        b"%x\r\n%b\r\n" % (len(part), part) for part in (data[:1], data[1:70_000], data[70_000:])
    )
    writer.write(b"POST /s HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
    assert await body(reader) == data
    writer.write(post("/s", b"small"))
    assert await body(reader) == b"small"


async def test_who_reads_slowly_slows_the_sender_down(server: Server) -> None:
    """Back-pressure: what is received and not read is bounded; reading on takes the rest."""
    go = asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        await go.wait()
        await server.echo(exchange)

    server.work = slow
    data = b"x" * 30_000_000
    reader, _writer = await server.connect(post("/s", data))
    await until(lambda: len(server.exchanges) == 1)
    stream = server.exchanges[0].request.stream
    (connection,) = server.front.connections
    await until(lambda: bool(connection._reader.holders))
    assert stream._size <= limits.UNREAD_BYTES + 256 * 1024  # type: ignore[union-attr]
    go.set()
    assert await body(reader) == data


@pytest.mark.parametrize(("begun", "most"), [(False, limits.UNREAD_BYTES), (True, limits.BUFFER_BYTES)])
async def test_less_is_taken_of_a_body_that_nobody_has_begun_to_read(begun: bool, most: int) -> None:
    """Its request waits, with many others, and each has so much of the memory."""

    class Paused:
        """A connection that notes whether it is to pause."""

        holds = False

        def hold(self, source: Inbound) -> None:
            self.holds = True

        def release(self, source: Inbound) -> None:
            self.holds = False

        def wanted(self) -> None:
            pass

    connection = Paused()
    stream = Inbound(cast("Carrier", connection))
    if begun:
        stream.feed(b"x")
        assert await stream.read() == b"x"
    size = 0
    while not connection.holds:
        stream.feed(bytes(1024))
        size += 1024
    assert size == most + 1024
    while connection.holds:
        size -= len(await stream.read())
    assert size <= limits.BUFFER_BYTES // 4


async def test_a_body_that_ends_early_says_so(server: Server) -> None:
    """`read` raises ClientGone, and `gone` is called, once."""
    reader, writer = await server.connect(post("/s", b"abcdef")[:-3])
    await until(lambda: len(server.exchanges) == 1)
    writer.close()
    await until(lambda: len(server.errors) == 1)
    assert server.gone == 1
    assert await reader.read() == b""
    server.exchanges[0].answer(Response(200))


async def test_a_streamed_body_that_turns_bad_is_400_and_its_service_is_told(server: Server) -> None:
    """RFC 9112 section 7.1: a bad chunk; there is one answer, which is the front's own."""
    answer = await server.exchange(
        b"POST /s HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"content-length") == 1
    await until(lambda: len(server.errors) == 1)
    assert server.gone == 1


async def test_a_streamed_body_that_stalls_is_408(server: Server, quick: pytest.MonkeyPatch) -> None:
    """BODY_SECONDS count between two pieces."""
    quick.setattr(limits, "BODY_SECONDS", 0.1)
    answer = await server.exchange(post("/s", b"abcdef")[:-3])
    assert answer.startswith(b"HTTP/1.1 408 ")
    await until(lambda: len(server.errors) == 1)


async def test_the_client_is_told_to_go_on_when_somebody_reads(server: Server) -> None:
    """RFC 9110 section 10.1.1: a service may answer without having asked for the body."""
    go = asyncio.Event()

    async def wait(exchange: Exchange) -> None:
        await go.wait()
        await server.echo(exchange)

    server.work = wait
    reader, writer = await server.connect(post("/s", b"abc", b"expect: 100-continue")[:-3])
    await until(lambda: len(server.exchanges) == 1)
    go.set()
    assert (await head(reader)).startswith(b"HTTP/1.1 100 ")
    writer.write(b"abc")
    assert await body(reader) == b"abc"


async def test_the_time_for_a_body_begins_when_its_client_is_told_to_go_on(server: Server) -> None:
    """However long the service, as a router that holds the request, has let the client wait for that."""
    go = asyncio.Event()

    async def wait(exchange: Exchange) -> None:
        await go.wait()
        await server.echo(exchange)

    server.work = wait
    reader, writer = await server.connect(post("/s", b"abc", b"expect: 100-continue")[:-3])
    await until(lambda: len(server.exchanges) == 1)
    (connection,) = server.front.connections
    connection._reader.since -= 10 * limits.BODY_SECONDS  # type: ignore[attr-defined]
    go.set()
    assert (await head(reader)).startswith(b"HTTP/1.1 100 ")
    server.front.sweep()
    writer.write(b"abc")
    assert await body(reader) == b"abc"


async def test_who_is_refused_before_100_is_not_told_to_go_on(server: Server) -> None:
    """RFC 9110 section 10.1.1: the final status comes instead, and the end: the body may come or not."""

    async def refuse(exchange: Exchange) -> None:
        exchange.answer(Response(403))

    server.work = refuse
    answer = await server.exchange(post("/s", b"abc", b"expect: 100-continue")[:-3])
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"connection: close" in answer


async def test_100_comes_behind_the_answers_before_it(server: Server) -> None:
    """RFC 9110 section 10.1.1 with RFC 9112 section 9.3.2: a pipelined request's turn."""
    go = asyncio.Event()

    async def wait(exchange: Exchange) -> None:
        await go.wait()
        await server.echo(exchange)

    server.work = wait
    for target in ("/whole", "/s"):
        go.clear()
        server.exchanges.clear()
        reader, writer = await server.connect()
        writer.write(post("/whole", b"1") + post(target, b"abc", b"expect: 100-continue")[:-3])
        await until(lambda: len(server.exchanges) == 1)
        go.set()
        assert await body(reader) == b"1"
        assert (await head(reader)).startswith(b"HTTP/1.1 100 ")
        writer.write(b"abc")
        assert await body(reader) == b"abc"
        writer.close()


async def test_an_answer_before_a_short_rest_keeps_the_connection(server: Server) -> None:
    """RFC 9112 section 9.3: the rest of the body is read away; it is not the next request."""

    async def early(exchange: Exchange) -> None:
        exchange.answer(Response(200, (), b"early" if exchange.request.stream else exchange.request.body))

    server.work = early
    rest = b"GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n" * 100
    reader, writer = await server.connect(post("/s", rest)[: -len(rest)])
    assert await body(reader) == b"early"
    writer.write(rest + post("/whole", b"next"))
    assert await body(reader) == b"next"
    assert [exchange.request.target for exchange in server.exchanges] == ["/s", "/whole"]


@pytest.mark.parametrize("framing", [b"content-length: 9999999", b"transfer-encoding: chunked"])
async def test_an_answer_before_a_long_rest_closes_and_is_read(server: Server, framing: bytes) -> None:
    """RFC 9112 section 9.6: it says `close`, and no reset takes it away while the client still sends."""

    async def early(exchange: Exchange) -> None:
        exchange.answer(Response(200, (), b"early"))

    server.work = early
    reader, writer = await server.connect(b"POST /s HTTP/1.1\r\nhost: a\r\n%b\r\n\r\n" % framing)
    await until(lambda: len(server.exchanges) == 1)
    for _ in range(20):
        writer.write(b"ffff\r\n" + b"x" * 0xFFFF + b"\r\n")
        await writer.drain()
    answer = await asyncio.wait_for(reader.read(), SECONDS)
    assert answer.startswith(OK)
    assert b"connection: close" in answer
    assert answer.endswith(b"early")


async def test_a_large_body_that_nobody_reads_does_not_stop_the_connection(server: Server) -> None:
    """More of it came than is kept, so reading had paused; answered unread, the next request is read."""

    async def unread(exchange: Exchange) -> None:
        stream = exchange.request.stream
        if isinstance(stream, Inbound):
            await until(lambda: stream.ended)
        exchange.answer(Response(200, (), exchange.request.target.encode()))

    server.work = unread
    reader, writer = await server.connect(post("/s", b"x" * (limits.UNREAD_BYTES + 1)))
    assert await body(reader) == b"/s"
    writer.write(post("/whole", b"next"))
    assert await body(reader) == b"/whole"
