"""Answers of the front, over loopback: streams, readers that are slow or gone, and what cannot be sent."""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from penstock_wire.http import Exchange, Request, Response, UpstreamError
from penstock_wire.http.server import limits
from penstock_wire.http.server.server import H1Front
from tests.support.clocks.waiting import SECONDS, until
from tests.support.http.front_server import OK, Server, Work, body, head, pieces, post, serving


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as server:
        yield server


async def three() -> AsyncIterator[bytes]:
    for piece in (b"one", b"", b"twelve bytes", b"3"):
        yield piece


def answering(make: Callable[[], Response]) -> Work:
    async def work(exchange: Exchange) -> None:
        exchange.answer(make())

    return work


async def test_a_stream_is_sent_in_chunks_and_the_connection_kept(server: Server) -> None:
    """RFC 9112 section 7.1; an empty piece is not a last chunk."""
    server.work = answering(lambda: Response(200, ((b"x-a", b"1"),), stream=three()))
    answer = await server.exchange(
        b"GET /1 HTTP/1.1\r\nhost: a\r\n\r\nGET /2 HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    )
    chunks = b"3\r\none\r\nc\r\ntwelve bytes\r\n1\r\n3\r\n0\r\n\r\n"
    assert answer.count(chunks) == 2
    assert answer.endswith(chunks)
    assert answer.count(b"transfer-encoding: chunked\r\n") == 2
    assert answer.count(b"connection: close\r\n") == 1


async def test_behind_the_last_answer_no_pipelined_request_is_served() -> None:
    """RFC 9112 section 9.6, also where the service answers, or fails, before it returns."""
    taken: list[Exchange] = []

    def serve(exchange: Exchange) -> None:
        taken.append(exchange)
        if len(taken) > 1:
            raise RuntimeError("of the service")

    front = H1Front()
    listener = await front.serve("127.0.0.1", 0, serve)
    reader, writer = await asyncio.open_connection(*listener.address)
    writer.write(3 * b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    await until(lambda: bool(taken))
    taken[0].answer(Response(200))
    answers = await asyncio.wait_for(reader.read(), SECONDS)
    assert (answers.count(b"HTTP/1.1"), len(taken)) == (2, 2)
    writer.close()
    await front.close(SECONDS)


async def test_a_stream_of_known_length_has_its_length(server: Server) -> None:
    """RFC 9112 section 6.2: a length and no chunks."""
    server.work = answering(lambda: Response(200, stream=three(), length=16))
    answer = await server.exchange(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    assert b"content-length: 16\r\n" in answer
    assert answer.endswith(b"\r\n\r\nonetwelve bytes3")


async def test_a_client_of_http_1_0_gets_no_chunks(server: Server) -> None:
    """RFC 9112 section 6.1: the end of the connection is the end of the body."""
    server.work = answering(lambda: Response(200, stream=three()))
    answer = await server.exchange(b"GET / HTTP/1.0\r\n\r\n")
    assert b"transfer-encoding" not in answer
    assert answer.endswith(b"\r\n\r\nonetwelve bytes3")


@pytest.mark.parametrize("status", [200, 204, 304])
async def test_a_stream_that_may_not_be_sent_is_closed(server: Server, status: int) -> None:
    """RFC 9110 sections 9.3.2, 15.3.5, 15.4.5: HEAD, 204 and 304 have no body; the stream is closed."""
    closed = []

    class Stream:
        def __aiter__(self) -> Stream:
            return self

        async def __anext__(self) -> bytes:
            raise AssertionError("nobody may read it")

        async def aclose(self) -> None:
            closed.append(True)

    server.work = answering(lambda: Response(status, stream=Stream(), length=5))
    method = b"HEAD" if status == 200 else b"GET"
    head = method + b" / HTTP/1.1\r\nhost: a\r\n"
    answer = await server.exchange(head + b"\r\n" + head + b"connection: close\r\n\r\n")
    assert answer.count(b"HTTP/1.1 %d " % status) == 2
    assert answer.endswith(b"\r\n\r\n")
    assert (b"content-length: 5" in answer) is (status == 200)
    assert len(closed) == 2


@pytest.mark.parametrize("length", [None, 2_000_000])
async def test_what_came_before_an_upstream_broke_arrives(server: Server, length: int | None) -> None:
    """An earlier answer and the pieces of this one; then an orderly end, where the client misses the rest."""

    async def breaking() -> AsyncIterator[bytes]:
        yield b"p" * 200_000
        raise UpstreamError("the model went away")

    answers = iter([Response(200, (), b"w" * 500_000), Response(200, stream=breaking(), length=length)])
    server.work = answering(lambda: next(answers))
    reader, writer = await server.connect()
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(2 * b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    await until(lambda: len(server.exchanges) == 2)
    await asyncio.sleep(0.1)  # a reset would be there
    reader._transport.resume_reading()  # type: ignore[attr-defined]
    received = await asyncio.wait_for(reader.read(), SECONDS)
    assert (received.count(b"w"), received.count(b"p")) == (500_000, 200_000)
    assert not received.endswith(b"0\r\n\r\n")


async def failing() -> AsyncIterator[bytes]:
    yield b"part"
    raise ValueError("secret")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Response(200, stream=failing()),
        lambda: Response(200, stream=failing(), length=100),
        lambda: Response(200, stream=three(), length=17),
        lambda: Response(200, stream=three(), length=15),
    ],
)
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
async def test_a_stream_that_fails_is_never_taken_for_the_whole(
    server: Server, make: Callable[[], Response], version: bytes
) -> None:
    """RFC 9112 section 8: no last chunk, fewer bytes than announced, or a reset."""
    server.work = answering(make)
    reader, writer = await server.connect(b"GET / HTTP/%b\r\nhost: a\r\n\r\n" % version)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(10_000), SECONDS)
    writer.close()
    assert b"secret" not in bytes(reader._buffer)  # type: ignore[attr-defined]


class Endless:
    """A stream without end that keeps what was asked of it."""

    def __init__(self) -> None:
        self.sent = 0
        self.closed = False

    def __aiter__(self) -> Endless:
        return self

    async def __anext__(self) -> bytes:
        self.sent += 1
        return b"x" * 10_000

    async def aclose(self) -> None:
        self.closed = True


async def test_a_stream_waits_for_its_reader_and_hears_of_its_end(server: Server) -> None:
    """Back-pressure from the client; when it goes away the stream is closed, and `gone` is not called."""
    stream = Endless()
    server.work = answering(lambda: Response(200, stream=stream))
    reader, writer = await server.connect(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    await asyncio.wait_for(reader.readexactly(100), SECONDS)
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    (connection,) = server.front.connections
    sink = connection._writer
    await until(lambda: sink._writable is not None and not sink._writable.done())
    writer.transport.abort()
    await until(lambda: stream.closed)
    assert server.gone == 0


async def test_a_stream_whose_reader_takes_nothing_is_cut(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WRITE_SECONDS without a byte taken; a reader that takes a little is left in peace."""
    monkeypatch.setattr(limits, "SWEEP_SECONDS", 0.02)
    monkeypatch.setattr(limits, "WRITE_SECONDS", 0.1)
    stream = Endless()
    server.work = answering(lambda: Response(200, stream=stream))
    reader, _writer = await server.connect(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    await asyncio.wait_for(reader.readexactly(100), SECONDS)
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    await until(lambda: stream.closed)


async def test_a_reader_that_takes_a_little_is_no_stuck_one(server: Server) -> None:
    """What counts is that nothing is taken, not that much is left; nor what the kernel takes from us."""
    server.work = answering(lambda: Response(200, (), b"x" * 40_000_000))
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)  # little is under way
        client.setblocking(False)
        await loop.sock_connect(client, server.address)
        await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        await until(lambda: any(each._writer.paused for each in server.front.connections))
        (connection,) = server.front.connections
        patience, now = limits.WRITE_SECONDS + limits.SWEEP_SECONDS + 1, time.monotonic()
        assert not connection.overdue(now)
        for _ in range(3):
            taken = 0
            async with asyncio.timeout(SECONDS):
                while taken < 100_000:
                    taken += len(await loop.sock_recv(client, 4096))
            now += patience
            assert not connection.overdue(now)
        later = itertools.count(1)  # some of the last acknowledgements may still come
        await until(lambda: connection.overdue(now + next(later) * patience))


async def test_an_echo_streams_both_ways_at_once(server: Server) -> None:
    """The answer begins before the request has ended, and the connection is kept."""

    async def both(exchange: Exchange) -> None:
        assert exchange.request.stream is not None
        exchange.answer(Response(200, stream=pieces(exchange.request.stream)))

    server.work = both
    reader, writer = await server.connect()
    for _ in range(2):
        writer.write(b"POST /s HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
        assert b"connection: close" not in await head(reader)
        for piece in (b"1\r\na\r\n", b"2\r\nbc\r\n", b"0\r\n\r\n"):
            writer.write(piece)
            assert await asyncio.wait_for(reader.readexactly(len(piece)), SECONDS) == piece


async def test_an_answer_that_cannot_be_sent_is_500(server: Server) -> None:
    """A status that is not one, fields that are two: the service gets no call, the client 500."""
    for bad in (Response(100), Response(200, ((b"a", b"b\r\nc: d"),), stream=three())):
        server.work = answering(lambda bad=bad: bad)  # type: ignore[misc]
        answer = await server.exchange(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 500 ")


# -- services --------------------------------------------------------------------------------------------


async def test_a_service_that_raises_is_500_once_in_the_log(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one that raises after its answer: that one was sent."""
    lines = []

    def raises(exchange: Exchange) -> None:
        if exchange.request.target == "/late":
            exchange.answer(Response(200, (), b"sent"))
        raise ValueError("defect")

    listener = await server.front.serve("127.0.0.1", 0, raises)
    server.address = listener.address
    for target in (b"/", b"/late"):
        lines.append(
            await server.exchange(b"GET %b HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n" % target)
        )
    assert lines[0].startswith(b"HTTP/1.1 500 ")
    assert b"connection: close" in lines[0]
    assert b"defect" not in lines[0]
    assert lines[1].startswith(OK)
    assert capsys.readouterr().err.count("handler failed") == 2


async def test_a_handler_that_raises_what_is_not_an_exception_is_500_too(server: Server) -> None:
    async def exits(request: Request) -> Response:
        raise SystemExit(3)

    listener = await server.front.listen("127.0.0.1", 0, exits)
    server.address = listener.address
    answer = await server.exchange(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 500 ")


async def test_a_client_that_leaves_while_others_wait_behind_is_told_once(server: Server) -> None:
    """`gone` is for the exchange that the service has; those behind it never reached it."""
    asyncio_event = asyncio.Event()

    async def forever(exchange: Exchange) -> None:
        await asyncio_event.wait()
        exchange.answer(Response(200))

    server.work = forever
    _, writer = await server.connect(post("/1", b"") + post("/2", b"") + post("/3", b""))
    await until(lambda: len(server.exchanges) == 1)
    writer.transport.abort()
    await until(lambda: server.gone == 1)
    asyncio_event.set()
    await until(lambda: not server.tasks)
    assert len(server.exchanges) == 1
    assert server.gone == 1


async def test_a_second_answer_is_none(server: Server) -> None:
    """Answered once, by whichever task."""

    async def twice(exchange: Exchange) -> None:
        exchange.answer(Response(200, (), b"1"))
        exchange.answer(Response(500, (), b"2"))

    server.work = twice
    answer = await server.exchange(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    assert answer.count(b"HTTP/1.1") == 1
    assert answer.endswith(b"1")
    reader, writer = await server.connect(post("/whole", b""))
    assert await body(reader) == b"1"
    server.work = server.echo
    writer.write(post("/whole", b"next"))
    assert await body(reader) == b"next"


async def test_a_stream_for_a_client_that_is_gone_is_closed(server: Server) -> None:
    """Only this happens: the maker of the stream learns that it has no reader."""
    stream, go = Endless(), asyncio.Event()

    async def late(exchange: Exchange) -> None:
        await go.wait()
        exchange.answer(Response(200, stream=stream))

    server.work = late
    _, writer = await server.connect(post("/1", b""))
    await until(lambda: len(server.exchanges) == 1)
    writer.transport.abort()
    await until(lambda: server.gone == 1)
    go.set()
    await until(lambda: stream.closed)
    assert stream.sent == 0
