"""The httptools front, byte by byte: what RFC 9110 and 9112 ask of a server, and hostile peers."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio
import uvloop

from penstock_wire.http import Request, Response
from penstock_wire.http.server import limits
from penstock_wire.http.server.server import H1Front
from tests.support.clocks.waiting import SECONDS, until
from tests.support.http.front_server import Clients

Handler = Callable[[Request], Awaitable[Response]]
OK = b"HTTP/1.1 200 OK\r\n"


class Server(Clients):
    """A front on loopback whose handler tests replace; it keeps the requests that it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.front = H1Front(max_body_bytes=1000)
        self.seen: list[Request] = []
        self.handler: Handler = self.echo

    async def echo(self, request: Request) -> Response:
        return Response(
            200, ((b"content-type", b"text/plain"),), request.target.encode() + b"|" + request.body
        )

    async def handle(self, request: Request) -> Response:
        self.seen.append(request)
        return await self.handler(request)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    listener = await server.front.listen("127.0.0.1", 0, server.handle)
    server.address = listener.address
    yield server
    server.leave()
    await server.front.close(5)


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[bytes, bytes], bytes]:
    """Read one answer with a content-length."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SECONDS)
    first, *lines = head[:-4].split(b"\r\n")
    fields = dict(line.split(b": ", 1) for line in lines)
    return (
        int(first.split()[1]),
        fields,
        await asyncio.wait_for(reader.readexactly(int(fields.get(b"content-length", b"0"))), SECONDS),
    )


async def test_connections_are_kept_and_pipelined_requests_answered_in_order(server: Server) -> None:
    """RFC 9112 sections 9.3 and 9.3.2, also when the first request takes longest."""
    gate = asyncio.Event()

    async def slow_first(request: Request) -> Response:
        if request.target == "/0":
            await gate.wait()
        return await server.echo(request)

    server.handler = slow_first
    reader, writer = await server.connect()
    for number in range(40):
        writer.write(b"POST /%d HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n%02d" % (number, number))
    await writer.drain()
    gate.set()
    for number in range(40):
        status, fields, body = await answer(reader)
        assert (status, body) == (200, b"/%d|%02d" % (number, number))
        assert b"date" in fields


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\nconnection: Keep-Alive\r\n\r\n", True),
        (b"GET / HTTP/1.0\r\nconnection: keep-alive\r\nconnection: close\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\nproxy-connection: keep-alive\r\n\r\n", False),
        (b"POST / HTTP/1.0\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nab", True),
        (b"GET / HTTP/1.0\r\nconnection: keep-alive, upgrade\r\nupgrade: x\r\n\r\n", True),
    ],
)
async def test_keep_alive_is_the_versions_and_the_clients_choice(
    server: Server, sent: bytes, kept: bool
) -> None:
    """RFC 9112 sections 9.3, 9.6: `close` with the last answer, `keep-alive` with others in HTTP/1.0."""
    reader, writer = await server.connect(sent)
    _, fields, _ = await answer(reader)
    said = (b"keep-alive" if b"/1.0" in sent else None) if kept else b"close"
    assert fields.get(b"connection") == said
    if kept:
        writer.write(sent)
        assert (await answer(reader))[0] == 200
    else:
        assert await asyncio.wait_for(reader.read(), SECONDS) == b""


async def test_bodies_come_whole_however_they_were_cut(server: Server) -> None:
    """Chunked with extensions and trailers, and byte by byte."""
    reader, writer = await server.connect()
    sent = (
        b"POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
        b"3;name=value\r\nabc\r\n2\r\nde\r\n0\r\nx-trailer: dropped\r\n\r\n"
    )
    for index in range(len(sent)):
        writer.write(sent[index : index + 1])
        await writer.drain()
    assert (await answer(reader))[2] == b"/x|abcde"
    assert not any(name == b"x-trailer" for name, _ in server.seen[0].headers)


async def test_head_and_bodiless_answers_have_no_body(server: Server) -> None:
    """RFC 9110 section 9.3.2 and RFC 9112 section 6.3: HEAD gives the length, 204 and 304 do not."""
    answer = await server.exchange(b"HEAD /abc HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    assert answer.startswith(OK)
    assert b"content-length: 5\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")

    async def unknown(_: Request) -> Response:
        return Response(200, (), b"")

    server.handler = unknown
    answer = await server.exchange(b"HEAD / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    assert b"content-length" not in answer

    async def left_out(request: Request) -> Response:
        return Response(200, (), b"", length=int(request.target[1:]))

    server.handler = left_out
    for length in (b"0", b"7000"):
        sent = b"HEAD /%b HTTP/1.1\r\nhost: a\r\n\r\nHEAD /9 HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
        answer = await server.exchange(sent % length)
        assert re.findall(rb"content-length: (\d+)\r\n", answer) == [length, b"9"]

    async def empty(_: Request) -> Response:
        return Response(204, (), b"never sent")

    server.handler = empty
    answer = await server.exchange(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    assert b"content-length" not in answer
    assert answer.endswith(b"\r\n\r\n")


async def test_a_client_that_expects_it_is_told_to_go_on(server: Server) -> None:
    """RFC 9110 section 10.1.1."""
    reader, writer = await server.connect()
    writer.write(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\nexpect: 100-continue\r\n\r\n")
    assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SECONDS) == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"x")
    assert (await answer(reader))[2] == b"/|x"
    assert not any(name == b"expect" for name, _ in server.seen[0].headers)


async def test_the_absolute_form_is_a_path_with_its_own_host(server: Server) -> None:
    """RFC 9112 section 3.2.2."""
    await server.exchange(b"GET http://b:1/p%2Fq?r=%20 HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    assert server.seen[0].target == "/p%2Fq?r=%20"
    assert dict(server.seen[0].headers)[b"host"] == b"b:1"


async def test_fields_of_one_connection_are_not_handed_on(server: Server) -> None:
    """RFC 9110 section 7.6.1: hop-by-hop fields and those that `Connection` names."""
    await server.exchange(
        b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close, x-private\r\nkeep-alive: 1\r\nte: trailers\r\n"
        b"upgrade: h2c\r\nx-private: 1\r\nx-kept: 2\r\n\r\n"
    )
    assert {name for name, _ in server.seen[0].headers} == {b"host", b"x-kept"}


async def test_an_upgrade_is_ignored_and_the_connection_goes_on(server: Server) -> None:
    """RFC 9110 section 7.8: a server may ignore `Upgrade`."""
    answer = await server.exchange(
        b"GET /1 HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
        b"GET /2 HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    )
    assert answer.count(OK) == 2


REFUSED = {
    "length and chunked": b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked and length": b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
    "two equal lengths": b"content-length: 1\r\ncontent-length: 1\r\n\r\nx",
    "two lengths": b"content-length: 1\r\ncontent-length: 2\r\n\r\nxx",
    "a list of lengths": b"content-length: 1, 1\r\n\r\nx",
    "a signed length": b"content-length: +1\r\n\r\nx",
    "a hex length": b"content-length: 0x1\r\n\r\nx",
    "an empty length": b"content-length: \r\n\r\n",
    "chunked not last": b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "another coding": b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "two codings": b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a bad chunk size": b"transfer-encoding: chunked\r\n\r\nzz\r\n\r\n",
    "a negative chunk": b"transfer-encoding: chunked\r\n\r\n-1\r\n\r\n",
    "a chunk that is too long": b"transfer-encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n",
    "a chunk ended by LF": b"transfer-encoding: chunked\r\n\r\n1\na\n0\n\n",
    "a bare LF": b"x: y\n\r\n",
    "a bare CR": b"x: y\rz: w\r\n\r\n",
    "a folded field": b"x: y\r\n z\r\n\r\n",
    "space before the colon": b"content-length : 1\r\n\r\nx",
    "a NUL": b"x: a\x00b\r\n\r\n",
    "an empty name": b": x\r\n\r\n",
    "a bad name": b"x(y): z\r\n\r\n",
    "a second host": b"host: b\r\n\r\n",
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_can_be_read_in_two_ways_is_refused_and_closes(server: Server, case: str) -> None:
    """RFC 9112 sections 2.2, 5.1, 5.2, 6.3, 7.1: 400, the connection closes, no handler sees anything."""
    answer = await server.exchange(
        b"POST / HTTP/1.1\r\nhost: a\r\n" + REFUSED[case] + b"GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n"
    )
    assert re.match(rb"HTTP/1.1 (400|501) ", answer)
    assert b"application/problem+json" in answer
    assert b"connection: close" in answer
    assert len(re.findall(rb"HTTP/1\.1 [0-9]", answer)) == 1
    assert not server.seen


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 505),
        (b"GET / HTTP/2.0\r\nhost: a\r\n\r\n", 505),
        (b"GET /#x HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        (b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        (b"get / HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (b"POST / HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1001\r\n\r\n", 413),
        (
            b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3e9\r\n"
            + b"x" * 1001
            + b"\r\n",
            413,
        ),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 70_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nhost: a\r\n" + b"x: y\r\n" * 300 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nhost: a\r\n" + b"x: y\r\n" * 300, 431),
        (b"GET / HTTP/1.1\r\n" + b"connection: y\r\n" * 300, 431),
        (b"GET /" + b"y" * 70_000, 414),
        (b"GET /" + b"y" * 65_536 + b" HTTP/1.1\r\nhost: a\r\n\r\n", 414),
        (b"GET /" + b"y" * 60_000 + b" HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 6_000 + b"\r\n\r\n", 414),
        (b"GET /" + b"y" * 6_000 + b" HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 60_000 + b"\r\n\r\n", 431),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 505),
    ],
)
async def test_what_cannot_be_served_is_told_and_closes(server: Server, sent: bytes, status: int) -> None:
    """No host, other versions, other protocols, too large: the status, then the end."""
    answer = await server.exchange(sent)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert b"connection: close" in answer
    assert not server.seen


async def test_interim_answers_go_out_before_their_answer_and_no_later(server: Server) -> None:
    """RFC 9110 section 15.2: any number of them, to clients of HTTP/1.1."""
    late: list[Request] = []

    async def hints(request: Request) -> Response:
        late.append(request)
        assert request.interim is not None
        for link in (b"</a>", b"</b>"):
            request.interim(103, ((b"link", link),))
        request.interim(103, ((b"link", b"x\r\nforged: 1"),))
        return Response(200, (), b"end")

    server.handler = hints
    reader, writer = await server.connect()
    for _ in range(2):
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        for link in (b"</a>", b"</b>"):
            interim = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SECONDS)
            assert interim == b"HTTP/1.1 103 Early Hints\r\nlink: %b\r\n\r\n" % link
        assert (await answer(reader))[::2] == (200, b"end")
    await until(lambda: late[0].interim is None)
    writer.close()
    old = await server.exchange(b"GET / HTTP/1.0\r\n\r\n")
    assert old.startswith(OK)
    assert b"103" not in old


async def test_good_requests_before_a_bad_one_are_answered_first(server: Server) -> None:
    """What was accepted is answered; the refusal comes behind it."""
    answer = await server.exchange(b"GET /1 HTTP/1.1\r\nhost: a\r\n\r\nGET / HTTP/1.1\r\nbroken\r\n\r\n")
    assert answer.startswith(OK)
    assert b"HTTP/1.1 400 " in answer


async def test_a_client_that_leaves_cancels_its_handler(server: Server) -> None:
    """Work without a client is not done."""
    started, ended = asyncio.Event(), asyncio.Event()

    async def forever(_: Request) -> Response:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    server.handler = forever
    _, writer = await server.connect(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    await asyncio.wait_for(started.wait(), SECONDS)
    writer.transport.abort()
    await asyncio.wait_for(ended.wait(), SECONDS)


async def test_whoever_drips_or_idles_is_closed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head or a body that does not come to its end: 408; a connection that asks nothing: closed."""

    async def closed(limit: str, sent: bytes) -> bytes:
        # NB: the others stay as they are, or a machine that is slow to send meets those first.
        with monkeypatch.context() as patch:
            patch.setattr(limits, limit, 0.2)
            return await server.exchange(sent)

    head = await closed("HEAD_SECONDS", b"GET / HTTP/1.1\r\nho")
    body = await closed("BODY_SECONDS", b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nx")
    idle = await closed("IDLE_SECONDS", b"")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert body.startswith(b"HTTP/1.1 408 ")
    assert idle == b""
    assert not server.seen


async def test_a_reader_that_takes_nothing_is_cut_and_others_are_served(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers wait in a bounded buffer; who does not read loses the connection."""
    monkeypatch.setattr(limits, "WRITE_SECONDS", 0.2)

    async def large(_: Request) -> Response:
        return Response(200, (), b"x" * 50_000_000)

    server.handler = large
    reader, _writer = await server.connect(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    await asyncio.wait_for(reader.readexactly(17), SECONDS)
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    await until(lambda: not server.front.connections)
    server.handler = server.echo
    assert (await server.exchange(b"GET /o HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")).endswith(
        b"/o|"
    )


async def test_closing_ends_idle_connections_now_and_busy_ones_with_their_answer(server: Server) -> None:
    """`close_keepalive` while one connection idles and one waits for its answer."""
    gate = asyncio.Event()

    async def slow(request: Request) -> Response:
        await gate.wait()
        return await server.echo(request)

    idle_reader, idle_writer = await server.connect()
    idle_writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    await answer(idle_reader)
    server.handler = slow
    reader, writer = await server.connect(b"GET /busy HTTP/1.1\r\nhost: a\r\n\r\n")
    await until(lambda: len(server.seen) >= 2)
    server.front.close_keepalive()
    assert await asyncio.wait_for(idle_reader.read(), SECONDS) == b""
    gate.set()
    status, fields, body = await answer(reader)
    assert (status, fields[b"connection"], body) == (200, b"close", b"/busy|")
    assert await asyncio.wait_for(reader.read(), SECONDS) == b""
    writer.close()
    idle_writer.close()


async def test_closing_ends_no_connection_on_which_a_request_is_coming(server: Server) -> None:
    """One that was sent and not read yet, one of a client that has just connected; one that never comes."""
    used, used_writer = await server.connect()
    used_writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    await answer(used)
    (first,) = server.front.connections
    made, made_writer = await server.connect()
    silent, silent_writer = await server.connect()
    await until(lambda: len(server.front.connections) >= 3)
    sent = socket.socket(fileno=os.dup(used_writer.get_extra_info("socket").fileno()))
    sent.sendall(b"GET /unread HTTP/1.1\r\nhost: a\r\n\r\n")  # no turn of the loop from here
    closing = asyncio.ensure_future(server.front.close(SECONDS))
    sent.close()
    server.front.close_keepalive()
    assert not first._transport.is_closing()
    status, fields, body = await answer(used)
    assert (status, fields[b"connection"], body) == (200, b"close", b"/unread|")
    made_writer.write(b"GET /made HTTP/1.1\r\nhost: a\r\n\r\n")
    status, fields, body = await answer(made)
    assert (status, fields[b"connection"], body) == (200, b"close", b"/made|")
    assert await asyncio.wait_for(silent.read(), SECONDS) == b""
    await asyncio.wait_for(closing, SECONDS)
    for writer in (used_writer, made_writer, silent_writer):
        writer.close()


@pytest.mark.parametrize("turns", range(5))
def test_closing_answers_whoever_has_just_connected(turns: int) -> None:
    """Its kernel has the request, and would reset the connection, whether that was accepted or not.

    On the loop that all processes run: asyncio's own forgets what it accepted just before its server closed.
    """

    async def connect_and_close() -> bytes:
        server = Server()
        listener = await server.front.listen("127.0.0.1", 0, server.handle)
        with socket.create_connection(listener.address, SECONDS) as client:  # with no turn of the loop
            client.sendall(b"GET /made HTTP/1.1\r\nhost: a\r\n\r\n")
            for _ in range(turns):
                await asyncio.sleep(0)
            await listener.close(SECONDS)
            received = b"".join(iter(lambda: client.recv(1000), b""))
        await server.front.close(SECONDS)
        return received

    answer = uvloop.run(connect_and_close())
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"/made|")


async def test_while_it_closes_the_sweep_ends_no_connection_that_was_just_made(server: Server) -> None:
    """Nor one on which a request has come that is not read yet, however late."""
    server.front.close_keepalive()
    for age, sent in (
        (1.5 * limits.SWEEP_SECONDS, b""),
        (limits.IDLE_SECONDS, b"GET / HTTP/1.1\r\n"),
    ):
        with socket.create_connection(server.address) as client:
            await until(lambda: server.front.connections)
            (made,) = server.front.connections
            made._reader.since = time.monotonic() - age
            client.sendall(sent)  # with no turn of the loop
            server.front.sweep()
            assert not made._transport.is_closing()
        await until(lambda: not server.front.connections)


async def test_many_idle_connections_are_held_and_one_too_many_is_closed(server: Server) -> None:
    """Connections that idle cost memory alone; beyond the limit a new one is closed, the others live."""
    server.front.max_connections = 300
    held = [await server.connect() for _ in range(300)]
    await until(lambda: len(server.front.connections) >= 300)
    reader, writer = await server.connect()
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(1), SECONDS)
    writer.close()
    held[0][1].write(b"GET /held HTTP/1.1\r\nhost: a\r\n\r\n")
    assert (await answer(held[0][0]))[2] == b"/held|"
    for _, connection in held:
        connection.close()


async def test_who_is_refused_while_sending_still_reads_why(server: Server) -> None:
    """A body that goes on behind its refusal does not reset the connection before the answer was read."""
    reader, writer = await server.connect(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5000000\r\n\r\n")
    for _ in range(50):
        writer.write(b"x" * 100_000)
        await writer.drain()
    assert (await answer(reader))[0] == 413
    assert await asyncio.wait_for(reader.read(), SECONDS) == b""


async def test_closing_can_be_taken_back(server: Server) -> None:
    """A drain that ends keeps connections again."""
    server.front.close_keepalive(idle=False)
    reader, writer = await server.connect()
    server.front.open_keepalive()
    writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    assert b"connection" not in (await answer(reader))[1]


async def test_a_handler_that_raises_is_500_and_the_server_lives(server: Server) -> None:
    """No exception of a handler ends the front."""

    async def broken(_: Request) -> Response:
        raise ValueError("secret")

    server.handler = broken
    answer = await server.exchange(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"secret" not in answer
    server.handler = server.echo
    assert (await server.exchange(b"GET /x HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")).endswith(
        b"/x|"
    )


async def test_after_a_long_answer_a_connection_may_idle_as_long_as_after_a_short_one(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of the handler is not the client's: else it is closed as it sends its next request."""
    gate = asyncio.Event()

    async def slow(request: Request) -> Response:
        await gate.wait()
        return await server.echo(request)

    server.handler = slow
    monkeypatch.setattr(limits, "IDLE_SECONDS", 0.0)
    reader, _writer = await server.connect(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    await until(lambda: len(server.seen) >= 1)
    (connection,) = server.front.connections
    monkeypatch.undo()
    gate.set()
    await answer(reader)
    assert not connection.overdue(time.monotonic())


async def test_a_handler_that_ends_as_if_cancelled_is_500(server: Server) -> None:
    """A model's own cancelled task is not a client that left: it is answered, and the next one is served."""

    async def cancelled(_: Request) -> Response:
        raise asyncio.CancelledError

    server.handler = cancelled
    assert (await server.exchange(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")).startswith(b"HTTP/1.1 500 ")


@pytest.mark.parametrize(
    "field",
    [
        (b"x-a", b"1\r\nset-cookie: a=b"),
        (b"x-a\nb", b"1"),
        (b"x-a", b"1\r"),
        (b"x-a", b"1\0"),
        (b"x-a", b"1\x7f2"),
        (b"x-a", b"\x1b[2J"),
    ],
)
async def test_a_field_that_would_be_two_is_not_sent(server: Server, field: tuple[bytes, bytes]) -> None:
    """RFC 9110 section 5.5: CR, LF and NUL in a field split the answer, and no other control is a value's."""

    async def split(_: Request) -> Response:
        return Response(200, (field,), b"")

    server.handler = split
    answer = await server.exchange(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"set-cookie" not in answer


@pytest.mark.parametrize(
    "endless", [b"0\r\nx: " + b"y" * 300_000, b"1;" + b"y" * 300_000, b"0\r\n" + b"x: y\r\n" * 50_000]
)
async def test_what_is_around_a_body_is_bounded(server: Server, endless: bytes) -> None:
    """Trailers and chunk extensions are dropped, and do not grow in memory meanwhile."""
    reader, writer = await server.connect()
    writer.write(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n" + endless)
    assert (await answer(reader))[0] == 431
    assert not server.seen


async def test_many_upgrades_in_a_row_are_ignored_each(server: Server) -> None:
    """However many come at once."""
    count = 3000
    upgrade = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"
    answer = await server.exchange(
        upgrade * count + b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    )
    assert answer.count(OK) == count + 1
