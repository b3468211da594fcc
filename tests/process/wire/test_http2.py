"""A front's HTTP/2, over loopback: a raw client's frames, against what RFC 9113 asks for."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import hpack
import pytest
import pytest_asyncio

from penstock_wire.http import (
    ALL_BYTES,
    AnswerUnreadable,
    ConnectionLost,
    Exchange,
    Request,
    RequestNotTaken,
    Response,
    sending,
)
from penstock_wire.http.client.peer_liveness import TcpSigns
from penstock_wire.http.memory import MemoryBound
from penstock_wire.http.server import limits
from penstock_wire.http.server.head import PREFACE
from penstock_wire.http.server.server import H1Front
from penstock_wire.http2 import connection, frames
from penstock_wire.http2.connection import H2Connection
from penstock_wire.http2.upstream import H2Upstream
from tests.support.clocks.waiting import SECONDS, until
from tests.support.http.front_server import Server, body, post
from tests.support.http.grpc_messages import doubles
from tests.support.http.h2_client import GET, POST, H2Client, frame


@contextlib.asynccontextmanager
async def serving(memory: int = 0) -> AsyncIterator[Server]:
    server = Server()
    server.front = H1Front(max_body_bytes=1_000_000, memory=MemoryBound(memory), http2=H2Connection)
    listener = await server.front.serve("127.0.0.1", 0, server)
    server.address = listener.address
    yield server
    server.leave()
    await server.front.close(0)
    for task in list(server.tasks):
        task.cancel()


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as server:
        yield server


async def test_one_port_takes_both(server: Server) -> None:
    """HTTP/1.1 and HTTP/2 by what a connection begins with, also if the preface comes in two parts."""
    client = H2Client(*await server.connect(PREFACE[:17]))
    reader, _ = await server.connect(post("/1", b"one"))
    assert await body(reader) == b"one"
    client.send(PREFACE[17:] + frames.settings([]))
    stream = client.head((*POST, ("content-length", "3")), ended=False)
    client.data(stream, b"two")
    answer = await client.answer(stream)
    assert (answer.status, answer.body) == (200, b"two")
    assert answer.fields["content-length"] == "3"
    request = server.exchanges[-1].request
    assert (request.method, request.target, request.body, request.peer) == ("POST", "/a", b"two", "127.0.0.1")
    assert request.headers == ((b"host", b"a"),)


async def test_behind_a_request_that_waits_there_is_no_preface(server: Server) -> None:
    """As a request in HTTP/1.1 it is refused: two protocols never share a connection."""
    wait = asyncio.Event()

    async def work(exchange: Exchange) -> None:
        await wait.wait()
        exchange.answer(Response(200, (), b"late"))

    server.work = work
    reader, _ = await server.connect(post("/1", b"") + PREFACE)
    await until(lambda: len(server.exchanges) == 1)
    wait.set()
    received = await asyncio.wait_for(reader.read(), SECONDS)
    assert received.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 400 " in received


async def test_requests_are_answered_in_any_order(server: Server) -> None:
    waits = {"/0": asyncio.Event(), "/1": asyncio.Event()}

    async def work(exchange: Exchange) -> None:
        await waits[exchange.request.target].wait()
        exchange.answer(Response(200, (), exchange.request.target.encode()))

    server.work = work
    client = await H2Client.begun(server)
    first, second = (client.head((*GET[:2], (":path", f"/{index}"), GET[3])) for index in range(2))
    waits["/1"].set()
    assert (await client.answer(second)).body == b"/1"
    waits["/0"].set()
    assert (await client.answer(first)).body == b"/0"


async def test_a_long_answer_waits_for_windows(server: Server) -> None:
    """Of the stream and of the connection; another request is answered meanwhile."""
    whole = bytes(range(256)) * 1000

    async def work(exchange: Exchange) -> None:
        exchange.answer(Response(200, (), whole if exchange.request.target == "/a" else b""))

    server.work = work
    client = await H2Client.begun(server, [(frames.INITIAL_WINDOW_SIZE, 100_000)])
    stream = client.head(GET)
    got = b""
    while len(got) < frames.USUAL_WINDOW:  # the connection's window
        got += (await client.until(lambda each: each.kind == frames.DATA)).payload
    other = client.head((*GET[:2], (":path", "/empty"), GET[3]))
    assert (await client.answer(other)).status == 200
    client.send(frames.window_update(0, 10**6))
    while len(got) < 100_000:
        got += (await client.until(lambda each: each.kind == frames.DATA)).payload
    client.send(frames.settings([(frames.INITIAL_WINDOW_SIZE, 200_000)]))
    while len(got) < 200_000:
        got += (await client.until(lambda each: each.kind == frames.DATA)).payload
    client.send(frames.window_update(stream, 10**6))
    client.seen = [each for each in client.seen if each.stream != stream]
    rest = b""
    while True:
        each = await client.until(lambda each: each.kind == frames.DATA)
        rest += each.payload
        if each.ended:
            break
    assert got + rest == whole


async def test_an_answer_that_streams_ends_with_its_client(server: Server) -> None:
    """Piece by piece, and no more of it is asked for when its client has reset it."""
    closed = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        try:
            for index in itertools.count():
                yield b"%d " % index
                await asyncio.sleep(0)
        finally:
            closed.set()

    async def work(exchange: Exchange) -> None:
        exchange.answer(Response(200, (), stream=pieces()))

    server.work = work
    client = await H2Client.begun(server)
    stream = client.head(GET)
    assert (await client.until(lambda each: each.kind == frames.DATA)).payload.startswith(b"0 ")
    client.send(frames.reset(stream, frames.CANCEL))
    await asyncio.wait_for(closed.wait(), SECONDS)


async def test_a_stream_that_fails_is_reset(server: Server) -> None:
    """No client takes a part for the whole."""

    async def pieces() -> AsyncIterator[bytes]:
        yield b"part"
        raise ValueError("broken")

    async def work(exchange: Exchange) -> None:
        exchange.answer(Response(200, (), stream=pieces()))

    server.work = work
    client = await H2Client.begun(server)
    answer = await client.answer(client.head(GET))
    assert (answer.body, answer.reset) == (b"part", frames.INTERNAL_ERROR)


async def test_a_client_that_leaves_is_told_to_the_service(server: Server) -> None:
    """By a reset of its stream, or with its connection."""

    async def work(exchange: Exchange) -> None:
        await asyncio.Event().wait()

    server.work = work
    client = await H2Client.begun(server)
    first = client.head(GET)
    client.head(GET)
    await until(lambda: len(server.exchanges) == 2)
    client.send(frames.reset(first, frames.CANCEL))
    await until(lambda: server.gone == 1)
    client.writer.close()
    await until(lambda: server.gone == 2)
    server.exchanges[0].answer(Response(200))


async def test_an_end_is_announced(server: Server) -> None:
    """First no new stream is asked for, then none is taken; what is under way is answered."""
    wait = asyncio.Event()

    async def work(exchange: Exchange) -> None:
        await wait.wait()
        exchange.answer(Response(200, (), b"done"))

    server.work = work
    client = await H2Client.begun(server)
    first = client.head(GET)
    await until(lambda: len(server.exchanges) == 1)
    server.front.close_keepalive(idle=False)
    goodbye = await client.until(lambda each: each.kind == frames.GOAWAY)
    assert (struct.unpack(">I", goodbye.payload[:4])[0], goodbye.code) == (2**31 - 1, 0)
    second = client.head(GET)
    await until(lambda: len(server.exchanges) == 2)
    server.front.close_keepalive()
    goodbye = await client.until(lambda each: each.kind == frames.GOAWAY)
    assert struct.unpack(">I", goodbye.payload[:4])[0] == second
    client.head(GET)
    wait.set()
    assert [(await client.answer(each)).body for each in (first, second)] == [b"done", b"done"]
    assert len(server.exchanges) == 2


async def test_a_body_above_the_limit_is_refused_before_it_comes(server: Server) -> None:
    client = await H2Client.begun(server, [(frames.INITIAL_WINDOW_SIZE, 10**6)])
    client.send(frames.window_update(0, 10**6))
    for fields, size in (((("content-length", "1000001"),), 0), ((), 1_000_001)):
        stream = client.head((*POST, *fields), ended=False)
        client.data(stream, bytes(size), ended=False)
        answer = await client.answer(stream)
        assert answer.status == 413
        # RFC 9113 section 8.1: the rest is not wanted
        assert (
            await client.until(lambda each, s=stream: each.stream == s and each.kind == frames.RST_STREAM)
        ).code == 0  # type: ignore[misc]
        client.data(stream, b"more")  # on its way already
    ok = client.head(POST, ended=False)
    client.data(ok, b"x" * 900_000)
    assert (await client.answer(ok)).body == b"x" * 900_000
    assert len(server.exchanges) == 1


async def test_a_body_that_does_not_fit_memory_costs_its_sender_alone() -> None:
    async with serving(memory=4_000_000) as server:
        server.front.max_body_bytes = 64_000_000
        client = await H2Client.begun(server)
        large = client.head((*POST, ("content-length", "50000000")), ended=False)
        small = client.head(GET)
        assert (await client.answer(large)).status == 503
        assert (await client.answer(small)).status == 200


MALFORMED = {
    "an upper-case name": ((*GET, ("X-Up", "1")), None),
    "a connection's field": ((*GET, ("connection", "close")), None),
    "another te": ((*GET, ("te", "gzip")), None),
    "a line break": ((*GET, ("x", "a\r\nb: c")), None),
    "an outer space": ((*GET, ("x-request-id", " a")), None),
    "no path": ((GET[0], GET[1], GET[3]), None),
    "a pseudo-header twice": ((GET[0], *GET), None),
    "a pseudo-header behind a field": ((("x", "1"), *GET), None),
    "a pseudo-header of answers": ((*GET, (":status", "200")), None),
    "a URL as path": ((GET[0], GET[1], (":path", "http://b/"), GET[3]), None),
    "two hosts": ((*GET, ("host", "b")), None),
    "another length": ((*POST, ("content-length", "5")), b"four"),
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_request_resets_its_stream_alone(server: Server, name: str) -> None:
    """RFC 9113 section 8.1.1; no service sees it, so that no server behind reads it as another request."""
    fields, data = MALFORMED[name]
    client = await H2Client.begun(server)
    stream = client.head(fields, ended=data is None)
    if data is not None:
        client.data(stream, data)
    assert (await client.answer(stream)).reset == frames.PROTOCOL_ERROR
    assert (await client.answer(client.head(GET))).status == 200
    assert len(server.exchanges) == 1


BROKEN = {
    "no settings": (frame(frames.PING, 0, 0, bytes(8)), frames.PROTOCOL_ERROR),
    "a frame above the limit": (frames.header(16_385, frames.DATA, 0, 1), frames.FRAME_SIZE_ERROR),
    "data on no stream": (frame(frames.DATA, 0, 0, b"x"), frames.PROTOCOL_ERROR),
    "data of a stream that was not opened": (frame(frames.DATA, 0, 1, b"x"), frames.PROTOCOL_ERROR),
    "an even stream": (frame(frames.HEADERS, 5, 2, b"\x82"), frames.PROTOCOL_ERROR),
    "a block that is cut": (frame(frames.HEADERS, 4, 1, b"\x40\x05a"), frames.COMPRESSION_ERROR),
    "a block of another stream between": (
        frame(frames.HEADERS, 0, 1, b"\x82") + frame(frames.HEADERS, 4, 3, b"\x82"),
        frames.PROTOCOL_ERROR,
    ),
    "a continuation alone": (frame(frames.CONTINUATION, 4, 1, b"\x82"), frames.PROTOCOL_ERROR),
    "continuations without an end": (
        frame(frames.HEADERS, 0, 1) + 70 * frame(frames.CONTINUATION, 0, 1),
        frames.ENHANCE_YOUR_CALM,
    ),
    "a block that unfolds": (
        # a field of 4 000 bytes in the table, then named again and again
        frame(frames.HEADERS, 4, 1, b"\x40\x01a\x7f\xa1\x1e" + b"b" * 4000 + b"\xbe" * 12_000),
        frames.ENHANCE_YOUR_CALM,
    ),
    "too much padding": (frame(frames.HEADERS, 4 | frames.PADDED, 1, b"\x05\x82"), frames.PROTOCOL_ERROR),
    "a window beyond 2^31": (frames.window_update(0, 2**31 - 1), frames.FLOW_CONTROL_ERROR),
    "a window of nothing": (frames.window_update(0, 0), frames.PROTOCOL_ERROR),
    "a push": (frame(frames.PUSH_PROMISE, 4, 1, bytes(4)), frames.PROTOCOL_ERROR),
    "many pings": (10_001 * frame(frames.PING, 0, 0, bytes(8)), frames.ENHANCE_YOUR_CALM),
    "many settings": (10_001 * frame(frames.SETTINGS, 0, 0), frames.ENHANCE_YOUR_CALM),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_violation_ends_its_connection_with_the_reason(server: Server, name: str) -> None:
    sent, code = BROKEN[name]
    client = H2Client(
        *await server.connect(PREFACE + (b"" if name == "no settings" else frames.settings([])))
    )
    client.send(sent)
    goodbye = await client.goodbye()
    assert goodbye.code == code
    assert b"expected" in goodbye.payload
    again = await H2Client.begun(server)
    assert (await again.answer(again.head(GET))).status == 200


async def test_what_costs_nothing_may_not_come_without_end(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Empty pieces, and streams that are opened only to be reset (CVE-2023-44487)."""
    monkeypatch.setattr(connection, "_RESETS", 50)
    monkeypatch.setattr(server.front, "now", 1.0)

    async def work(exchange: Exchange) -> None:
        await asyncio.Event().wait()

    server.work = work
    client = await H2Client.begun(server)
    stream = client.head(POST, ended=False)
    client.send(10_001 * frame(frames.DATA, 0, stream))
    assert (await client.goodbye()).code == frames.ENHANCE_YOUR_CALM
    client = await H2Client.begun(server)
    for _ in range(5000):
        client.send(frames.reset(client.head(GET), frames.CANCEL))
    assert (await client.goodbye()).code == frames.ENHANCE_YOUR_CALM
    await until(lambda: server.gone == len(server.exchanges))


async def test_pings_may_come_for_what_an_answer_sends(server: Server) -> None:
    """A client of Go sends one for each piece that it gets: its stream ends by no limit."""

    async def pieces() -> AsyncIterator[bytes]:
        yield bytes(12_000)
        await asyncio.Event().wait()

    async def work(exchange: Exchange) -> None:
        exchange.answer(Response(200, (), stream=pieces()))

    server.work = work
    client = await H2Client.begun(server)
    client.head(GET)
    await client.until(lambda each: each.kind == frames.DATA)
    ping = frame(frames.PING, 0, 0, bytes(8))
    client.send(20_000 * ping, frame(frames.PING, 0, 0, b"the last"))
    await client.until(lambda each: each.payload == b"the last")
    client.send(10_000 * ping)
    assert (await client.goodbye()).code == frames.ENHANCE_YOUR_CALM


@pytest.mark.interpreted
async def test_more_streams_than_allowed_are_refused_unread(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each by itself, so that its client may send it again."""
    monkeypatch.setattr(frames, "MAX_STREAMS", 2)

    async def work(exchange: Exchange) -> None:
        await asyncio.Event().wait()

    server.work = work
    client = await H2Client.begun(server)
    streams = [client.head(GET) for _ in range(3)]
    assert (await client.answer(streams[2])).reset == frames.REFUSED_STREAM
    assert len(server.exchanges) == 2


async def test_a_slow_client_is_disconnected(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its head, its body, the credit that it gives, and its silence have each their time."""
    monkeypatch.setattr(limits, "SWEEP_SECONDS", 0.02)
    for name in ("HEAD_SECONDS", "BODY_SECONDS", "WRITE_SECONDS", "IDLE_SECONDS", "LINGER_SECONDS"):
        monkeypatch.setattr(limits, name, 0.05)
    await server.front.close(0)

    async def work(exchange: Exchange) -> None:
        exchange.answer(Response(200, (), bytes(100_000)))

    server.work = work
    front = server.front = H1Front(http2=H2Connection)
    server.address = (await front.serve("127.0.0.1", 0, server)).address
    client = await H2Client.begun(server)
    body_is_late = client.head(POST, ended=False)
    assert (await client.answer(body_is_late)).status == 408
    stuck = client.head(GET)
    assert (await client.answer(stuck)).reset == frames.CANCEL
    assert (await client.goodbye()).code == frames.NO_ERROR
    client = H2Client(*await server.connect(PREFACE + frames.settings([])[:11]))
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionResetError):
        while True:
            await client.next()


@pytest.mark.parametrize("client_is", ["alive", "busy", pytest.param("gone", marks=pytest.mark.interpreted)])
async def test_a_silent_client_is_asked_for_a_sign_of_life(
    server: Server, client_is: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The streams of one that is gone without an end of its connection end, not those of one that waits.

    Nor those of one whose process is busy: its kernel acknowledges what was sent.
    """
    gone = client_is == "gone"
    if gone:
        signs = TcpSigns(heard_ago=limits.PING_SECONDS + 1, unacknowledged=1)
        monkeypatch.setattr(connection, "look", lambda _: signs)

    async def work(exchange: Exchange) -> None:
        """Answer nothing."""

    server.work = work
    client = await H2Client.begun(server)
    client.head(GET)
    await until(lambda: len(server.exchanges) > 0)
    front = server.front
    (taken,) = front.connections
    now = front.now
    assert not taken.overdue(now)
    now += limits.PING_SECONDS + 1
    assert not taken.overdue(now)
    asked = await client.until(lambda each: each.kind == frames.PING)
    if client_is == "alive":
        client.send(frame(frames.PING, frames.ACK, 0, asked.payload), frame(frames.PING, 0, 0, bytes(8)))
        await client.until(lambda each: each.kind == frames.PING and each.flags == frames.ACK)
    front.now = now = now + limits.PING_SECONDS + limits.SWEEP_SECONDS + 1
    assert taken.overdue(now) == gone
    if gone:
        taken.expire()
        await until(lambda: server.gone == 1)
        return
    assert not taken.overdue(now + limits.PING_SECONDS + 1)
    assert (await client.until(lambda each: each.kind == frames.PING and not each.flags)) == asked


async def test_a_drain_drops_what_came_too_late_and_nothing_else(server: Server) -> None:
    """A request behind the last GOAWAY, with its body: its client sends it elsewhere; others are answered."""
    wait = asyncio.Event()

    async def work(exchange: Exchange) -> None:
        await wait.wait()
        exchange.answer(Response(200, (), b"done"))

    server.work = work
    client = await H2Client.begun(server)
    first = client.head(GET)
    await until(lambda: len(server.exchanges) == 1)
    server.front.close_keepalive()
    late = client.head(POST, ended=False)
    client.data(late, b"body")
    client.send(frames.window_update(late, 10), frames.reset(late, frames.CANCEL))
    client.send(frame(frames.PING, 0, 0, bytes(8)))
    await client.until(lambda each: each.kind == frames.PING)
    wait.set()
    assert (await client.answer(first)).body == b"done"
    assert len(server.exchanges) == 1


@pytest.mark.parametrize(
    "sent",
    [
        lambda stream: frames.window_update(stream, 0),
        lambda stream: frames.window_update(stream, 2**31 - 1),
        lambda stream: frame(frames.DATA, frames.END_STREAM, stream, b"x"),
    ],
)
async def test_streams_that_a_client_has_reset_by_a_fault_count_as_resets(
    server: Server, monkeypatch: pytest.MonkeyPatch, sent: Callable[[int], bytes]
) -> None:
    """CVE-2025-8671."""
    monkeypatch.setattr(server.front, "now", 1.0)

    async def work(exchange: Exchange) -> None:
        await asyncio.Event().wait()

    server.work = work
    client = await H2Client.begun(server)
    for _ in range(5000):
        client.send(sent(client.head(GET)))
    assert (await client.goodbye()).code == frames.ENHANCE_YOUR_CALM
    await until(lambda: server.gone == len(server.exchanges))


async def test_what_a_connection_keeps_is_counted(server: Server) -> None:
    """The heads of requests that wait, and those kept to be found again; faulty ones are not kept."""

    async def work(exchange: Exchange) -> None:
        await asyncio.Event().wait()

    server.work = work
    client = await H2Client.begun(server)
    (connection,) = server.front.connections
    before = sum(keeper.kept() for keeper in connection.keepers())
    for index in range(20):
        client.head((*GET, ("x-large", f"{index}" + "y" * 15_000)))
        client.head((*GET, ("x-small", f"{index}" + "y" * 1_000)))
        client.head((*GET, ("X-Bad", f"{index}" + "y" * 1_000)))
    await until(lambda: len(server.exchanges) == 40)
    assert sum(keeper.kept() for keeper in connection.keepers()) - before > 20 * 17_000
    heads = connection.keepers()[1]
    assert 20 * 2_000 < heads.kept() < 20 * 6_000
    assert [heads.give_way(), heads.kept(), heads.give_way()] == [True, 0, False]


async def test_heads_that_came_before_give_way_to_requests() -> None:
    """Idle connections that have sent many heads cost nobody an answer, and keep within the bound."""
    async with serving(memory=500_000) as server:
        client = await H2Client.begun(server)
        waits = client.head(POST, ended=False)
        client.data(waits, bytes(50_000), ended=False)
        for _ in range(3):
            other = await H2Client.begun(server)
            for index in range(60):
                last = other.head((*GET, ("x", f"{index}" + "y" * 3_000)))
            assert (await other.answer(last)).status == 200
        client.data(waits, b"")
        assert (await client.answer(waits)).status == 200
        assert server.front.memory.kept() < 500_000, "without a bound each keeps 256 KiB"
        assert server.front.memory.gave_way == 0, "which is not what more memory would mend"


async def test_fields_of_a_request_s_own_have_limits_too(server: Server) -> None:
    client = await H2Client.begun(server)
    many = client.head((*GET, *[("x-real-ip", "1")] * 100))
    assert (await client.answer(many)).status == 431
    behind = client.head((("x-real-ip", "1"), *GET))
    assert (await client.answer(behind)).reset == frames.PROTOCOL_ERROR
    long = client.head((*POST, ("content-length", "9" * 5000)), ended=False)
    assert (await client.answer(long)).reset == frames.PROTOCOL_ERROR
    assert not server.exchanges


CALL = (
    *POST[:2],
    (":path", "/inference.GRPCInferenceService/ModelInfer"),
    POST[3],
    ("content-type", "application/grpc"),
)


def doubling(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


async def test_a_call_s_metadata_describe_no_body_and_keep_grpc_s_own_back(server: Server) -> None:
    client = await H2Client.begun(server)
    own = (
        ("inference-header-content-length", "7"),
        ("content-encoding", "gzip"),
        ("accept-encoding", "gzip"),
        ("grpc-previous-rpc-attempts", "1"),
        ("grpc-timeout", "900u"),
        ("x-penstock-timeout-ms", "5"),
        ("x-kept", "1"),
    )
    stream = client.head((*CALL, *own), ended=False)
    client.data(stream, doubling(doubles(1.0).SerializeToString()))
    await client.answer(stream)
    request = server.exchanges[0].request
    fields = dict(request.headers)
    length = fields.pop(b"inference-header-content-length")
    assert request.body[int(length) :] == struct.pack("<f", 1.0)
    assert fields == {
        b"host": b"a",
        b"x-kept": b"1",
        b"content-type": b"application/octet-stream",
        b"x-penstock-timeout-ms": b"1",
    }
    assert len(fields) == len(request.headers) - 1
    other = client.head((*CALL, ("content-length", "3")), ended=False)
    client.data(other, doubling(b""))
    assert (await client.answer(other)).reset == frames.PROTOCOL_ERROR


async def test_a_watch_of_health_is_refused_and_reaches_no_model(server: Server) -> None:
    """It is the server's own method, which it does not have; a model's stream would hold a place for ever."""
    client = await H2Client.begun(server)
    head = (*CALL[:2], (":path", "/grpc.health.v1.Health/Watch"), *CALL[3:])
    answer = await client.answer(client.head(head))
    assert (answer.status, answer.fields["grpc-status"]) == (200, "12")
    assert not server.exchanges


async def test_a_call_is_refused_in_its_own_form_and_may_come_to_a_list_of_addresses(server: Server) -> None:
    """Which is what grpcio names as authority; over HTTP it stays a fault. So does a path without a slash."""
    client = await H2Client.begun(server)
    several = (CALL[0], CALL[1], CALL[2], (":authority", "127.0.0.1:1,127.0.0.1:2"), CALL[4])
    stream = client.head(several, ended=False)
    client.data(stream, doubling(doubles(1.0).SerializeToString()))
    await client.answer(stream)
    assert dict(server.exchanges[0].request.headers)[b"host"] == b"localhost"
    relative = (CALL[0], CALL[1], (":path", "inference.GRPCInferenceService/ModelInfer"), *CALL[3:])
    answer = await client.answer(client.head(relative))
    assert (answer.status, answer.fields["grpc-status"]) == (200, "3")
    assert (await client.answer(client.head((*several[:4], ("content-type", "text/plain"))))).status == 400
    assert len(server.exchanges) == 1


WRONG = [
    b'{"outputs":[{"name":"y","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":-5}}]}',
    b'{"model_name":"\\ud800","outputs":[]}',
    b'{"outputs":[{"name":"y","datatype":"BYTES","shape":[1],"data":["\\ud800"]}]}',
    b"[" * 100_000,
    b'"\xff"',
]


@pytest.mark.parametrize("status", [200, 500])
async def test_whatever_a_model_answers_its_call_ends(server: Server, status: int) -> None:
    """With few enough words that every client can take them."""

    async def work(exchange: Exchange) -> None:
        body = (
            WRONG[len(server.exchanges) - 1] if len(server.exchanges) <= len(WRONG) else "語".encode() * 9000
        )
        exchange.answer(Response(status, ((b"retry-after", b"9" * 400),), body))

    server.work = work
    client = await H2Client.begun(server)
    for _ in range(len(WRONG) + 1):
        stream = client.head(CALL, ended=False)
        client.data(stream, doubling(doubles(1.0).SerializeToString()))
        answer = await client.answer(stream)
        assert answer.fields["grpc-status"] == "13"
        assert sum(len(name) + len(value) + 32 for name, value in answer.fields.items()) < 8192


async def test_a_call_that_passes_gets_credit_for_what_is_read_and_no_more(server: Server) -> None:
    """Much of it comes before its service begins to read."""

    async def read(exchange: Exchange) -> None:
        assert exchange.request.stream is not None
        while await exchange.request.stream.read():
            pass
        exchange.answer(Response(200, (), b""))

    server.work = read
    client = await H2Client.begun(server)
    (taken,) = server.front.connections
    assert isinstance(taken, H2Connection)
    head = client.encoder.encode([*CALL[:2], (":path", "/its.Own/Method"), *CALL[3:]])
    pieces = [frame(frames.DATA, 0, 1, bytes(frames.USUAL_FRAME_BYTES))] * 20
    taken.data_received(frame(frames.HEADERS, frames.END_HEADERS, 1, head) + b"".join(pieces))
    call = taken._exchanges[1]
    await until(lambda: call.receiver is not None and not call.receiver.kept())
    client.last = 1
    client.data(1, b"")
    await client.answer(1)
    credit = [each for each in client.seen if each.kind == frames.WINDOW_UPDATE and each.stream == 1]
    given = sum(int.from_bytes(each.payload, "big") for each in credit)
    assert 0 < given <= 20 * frames.USUAL_FRAME_BYTES


@contextlib.asynccontextmanager
async def model(answer: Callable[[int], bytes]) -> AsyncIterator[tuple[H2Upstream, tuple[str, int]]]:
    """An upstream, and the address of a model that answers each call, by its stream, with these frames."""
    writers = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readexactly(len(PREFACE))
            writer.write(frames.settings([]))
            while header := await reader.readexactly(9):
                await reader.readexactly(int.from_bytes(header[:3], "big"))
                if header[3] == frames.HEADERS:
                    writer.write(answer(int.from_bytes(header[5:], "big")))

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    upstream = H2Upstream(MemoryBound(1 << 30))
    try:
        yield upstream, listening.sockets[0].getsockname()[:2]
    finally:
        await upstream.close()
        for writer in writers:
            writer.close()
        listening.close()


def passed() -> Request:
    request = Request("POST", "/its.Own/Method", ((b"host", b"a"),), b"")
    request.trailers = True
    return request


@pytest.mark.parametrize("wrong", ["length", "trailers"])
async def test_a_model_s_false_length_or_long_trailers_fail_their_call_alone(wrong: str) -> None:
    """Also if trailers show that it was false; others on the connection go on."""
    encoder = hpack.Encoder()

    def answer(stream: int) -> bytes:
        false = stream == 1
        length = "5" if false and wrong == "length" else "3"
        first = encoder.encode([(":status", "200"), ("content-length", length)])
        long = [("x-long", "x" * 4000)] * 33 if false and wrong == "trailers" else []
        last = encoder.encode([*long, ("grpc-status", "0")])
        whole = frame(frames.HEADERS, frames.END_HEADERS, stream, first)
        whole += frame(frames.DATA, 0, stream, b"abc")
        return whole + frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream, last)

    def once_both_are_there(stream: int) -> bytes:
        return answer(1) + answer(3) if stream == 3 else b""

    async with model(once_both_are_there) as (upstream, address):
        false: list[Any] = []
        upstream.begin(*address, passed(), 30.0, 30.0, ALL_BYTES, false.append)
        await until(lambda: bool(upstream._connections))
        right = await sending.send(upstream, *address, passed(), timeout=30)
        assert (right.body, right.trailers.fields) == (b"abc", ((b"grpc-status", b"0"),))
        assert isinstance(false[0], AnswerUnreadable)


@pytest.mark.interpreted
async def test_a_model_that_reads_nothing_may_not_ask_for_answers_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its connection ends; what it keeps counts until then, and no longer."""
    monkeypatch.setattr("penstock_wire.http2.client._MAX_UNREAD", 1000)
    pings = frame(frames.PING, 0, 0, bytes(8)) * 200
    async with model(lambda stream: b"") as (upstream, address):
        failed: list[Any] = []
        upstream.begin(*address, passed(), 30.0, 30.0, ALL_BYTES, failed.append)
        await until(lambda: bool(upstream.open))
        (client,) = upstream.open
        assert upstream.memory is client.memory
        client.send(bytes(100))
        assert upstream.memory.others[0]() >= 100
        client.data_received(frames.settings([]) + pings)
        await until(lambda: bool(failed) and not upstream.open)
        assert isinstance(failed[0], AnswerUnreadable)


async def test_a_model_that_goes_fails_its_calls() -> None:
    """At once: they may have been executed."""
    async with model(lambda stream: b"") as (upstream, address):
        failed: list[Any] = []
        upstream.begin(*address, passed(), 30.0, 30.0, ALL_BYTES, failed.append)
        await until(lambda: any(client.busy for client in upstream.open))
        for client in upstream.open:
            client.transport.abort()
        await until(lambda: bool(failed))
        assert type(failed[0]) is ConnectionLost


async def test_a_model_that_says_goodbye_twice_loses_no_call() -> None:
    """What was on its way at the first is taken; what is beyond the second goes to another connection."""

    def whole(stream: int) -> bytes:
        fields = hpack.Encoder().encode([(":status", "200"), ("grpc-status", "0")])
        return frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream, fields)

    says = {
        1: lambda: whole(1),
        3: lambda: frames.goaway(frames.LARGEST_WINDOW, frames.NO_ERROR),
        5: lambda: whole(3) + frames.goaway(3, frames.NO_ERROR),
    }
    async with model(lambda stream: says[stream]()) as (upstream, address):
        await sending.send(upstream, *address, passed(), timeout=30)
        taken, left = [sending.send(upstream, *address, passed(), timeout=30) for _ in range(2)]
        answers = await asyncio.gather(taken, left, return_exceptions=True)
        assert isinstance(answers[0], Response)
        assert isinstance(answers[1], RequestNotTaken)
        await sending.send(upstream, *address, passed(), timeout=30)
        await until(lambda: len(upstream.open) == 1)


async def test_a_connection_to_a_model_without_calls_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One with a call stays, however long that takes."""

    def whole(stream: int) -> bytes:
        fields = hpack.Encoder().encode([(":status", "200"), ("grpc-status", "0")])
        return frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream, fields)

    async with model(lambda stream: whole(1) + whole(3) if stream == 3 else b"") as (upstream, address):
        waits = asyncio.ensure_future(sending.send(upstream, *address, passed(), timeout=30))
        await until(lambda: any(client.busy for client in upstream.open))
        (client,) = upstream.open
        monkeypatch.setattr("penstock_wire.http2.upstream.IDLE_SECONDS", 0.0)
        upstream._close_idle()
        assert client.reusable
        assert (await sending.send(upstream, *address, passed(), timeout=30)).status == 200
        assert (await waits).status == 200
        upstream._close_idle()
        await until(lambda: not upstream.open)
