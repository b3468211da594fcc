"""Peers of a hop that break its rules.

Their connection ends, with a word why, and no other's request is wrong.
"""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_wire.hop import frames
from penstock_wire.hop.client import HopClient
from penstock_wire.hop.heads import KnownHeads
from penstock_wire.hop.server import HopConnection
from penstock_wire.http import (
    ALL_BYTES,
    AT_HEAD,
    AnswerUnreadable,
    ConnectionLost,
    Exchange,
    RequestUnread,
    Response,
    UpstreamAnswer,
    UpstreamError,
    sending,
)
from penstock_wire.http.client.answer import Answer
from penstock_wire.http.client.head import MAX_HEAD_BYTES
from penstock_wire.http.server.server import H1Front, H1Listener
from tests.support.clocks.waiting import SECONDS, until
from tests.support.http.hop_pair import ASK, Raw, answer, head, post, raw_client, raw_server, request, served

LONG = frames.LONG.pack
peers: list[Raw] = []
OK_HEAD = frames.frame(frames.HEAD, 0, b"200\r\nx-a: 1\r\n", slot=1)


def body(number: int, data: bytes, *, ended: bool = False) -> bytes:
    return frames.frame(frames.BODY, number, data, flags=frames.END if ended else 0)


def header(length: int, number: int, own: int, kind: int, flags: int = 0, slot: int = 0) -> bytes:
    return frames.HEADER.pack(length, number, own, kind, flags, slot)


BROKEN_BY_CLIENTS = {
    "junk": b"\xff" * 64,
    "too long a frame": header(frames.MAX_PAYLOAD + 1, 1, 0, frames.BODY),
    "more own than payload": header(3, 1, 4, frames.REQUEST) + b"abc",
    "an unknown kind": header(0, 1, 0, 99),
    "an answer": answer(1, slot=0),
    "a slot without a head": request(2, slot=9),
    "a slot beyond the last": request(2, slot=frames.SLOTS),
    "a head beyond the last slot": head(slot=frames.SLOTS),
    "a large head in a slot": head(b"POST /p\r\nx: %b\r\n" % (b"x" * 3000)),
    "a number for the second time": request(1),
    "number nothing": request(0),
    "a body of nobody": body(7, b"abc"),
    "a cancel of nobody": frames.frame(frames.CANCEL, 7),
    "credit for nobody": frames.credit(7, 1),
    "credit before the answer": frames.credit(1, 1),
    "credit of no number": frames.frame(frames.CREDIT, 1, b"ab"),
    "a recall of no number": frames.frame(frames.RECALL, 0, b"ab"),
    "a room": frames.room(1, 1, 0),
    "a length that is none": header(3, 2, 0, frames.REQUEST, frames.LENGTH, 1) + b"abc",
    "a length beyond all": header(8, 2, 0, frames.REQUEST, frames.LENGTH, 1) + b"\xff" * 8,
    "a body with a streamed head": request(2, b"abc", flags=0),
    "a body longer than was said": header(8, 2, 0, frames.REQUEST, frames.LENGTH, 1)
    + LONG(3)
    + body(2, b"abcd"),
    "a body shorter than was said": header(8, 2, 0, frames.REQUEST, frames.LENGTH, 1)
    + LONG(3)
    + body(2, b"ab", ended=True),
}


@pytest.mark.parametrize("sent", BROKEN_BY_CLIENTS.values(), ids=BROKEN_BY_CLIENTS.keys())
async def test_a_broken_client_is_ended_with_a_word_and_others_go_on(
    capfd: pytest.CaptureFixture[str], sent: bytes
) -> None:
    """Its request under way is given up; another connection's is answered."""
    never = asyncio.Event()

    async def wait(exchange: Exchange) -> None:
        if exchange.request.peer and exchange.request.target == "/p":
            await never.wait()
        exchange.answer(Response(200, (), b"ok"))

    async with served() as server:
        server.work = wait
        client, other = await raw_client(server), await raw_client(server)
        client.write(head(), request(1))
        await until(lambda: len(server.exchanges) == 1)
        client.write(sent)
        last, why = await _goodbye(client)
        assert why.startswith("expected ")
        assert last <= 2
        await until(lambda: server.gone >= 1)
        other.write(head(b"GET /fine\r\nhost: a\r\n"), request(1))
        assert (await other.until_kind(frames.ANSWER))[4] == b"ok"
        client.writer.close()
        other.writer.close()
        never.set()
    assert "hop's client does not keep to the protocol" in capfd.readouterr().err


@pytest.mark.parametrize("line", [b"GET /p", b"OPTIONS /p"])
async def test_a_request_of_a_path_becomes_no_hop(line: bytes) -> None:
    """A proxy on the way passes paths on: a client behind it is not a neighbour."""
    async with served() as server:
        reader, writer = await server.connect()
        writer.write(ASK.replace(b"OPTIONS *", line))
        assert b" 200 " in await asyncio.wait_for(reader.readline(), SECONDS)
        assert not server.hops
        writer.close()


async def _goodbye(client: Raw) -> tuple[int, str]:
    _, _, _, _, payload = await client.until_kind(frames.GOODBYE)
    await client.rest()
    return frames.read_number(payload), payload[frames.NUMBER.size :].decode()


async def test_bytes_without_credit_end_the_connection() -> None:
    """A window and one byte, of a stream without a reader."""
    never = asyncio.Event()

    async def wait(exchange: Exchange) -> None:
        await never.wait()

    async with served() as server:
        server.work = wait
        client = await raw_client(server)
        client.write(head(b"POST /s\r\nhost: a\r\n"), request(1, flags=0))
        for _ in range(4):
            client.write(body(1, b"x" * frames.PIECE_BYTES))
        await until(lambda: server.exchanges and server.hops[0]._exchanges[1].body_bytes == frames.WINDOW)
        client.write(body(1, b"x"))
        assert "credit" in (await _goodbye(client))[1]
        client.writer.close()
        never.set()


async def test_too_much_credit_ends_the_connection() -> None:
    """An answer's window cannot be made wider: what waits to be sent stays bounded."""
    async with served() as server:

        async def long(exchange: Exchange) -> None:
            exchange.answer(Response(200, (), b"x" * 1_000_000))

        server.work = long
        client = await raw_client(server)
        client.write(head(), request(1))
        await client.until_kind(frames.ANSWER)
        client.write(frames.credit(1, 0xFFFFFFFF))
        assert "credit" in (await _goodbye(client))[1]
        client.writer.close()


@pytest.mark.parametrize(
    ("block", "status"),
    [
        (b"POST /p\r\n", 400),
        (b"POST /p\r\nhost: a\r\nhost: b\r\n", 400),
        (b"POST /p\r\nhost: a/b\r\n", 400),
        (b"POST /p\r\nhost: a\r\ncontent-length: 7\r\n", 400),
        (b"POST /p\r\nhost: a\r\ntransfer-encoding: chunked\r\n", 400),
        (b"POST /p\r\nhost: a\r\nconnection: close\r\n", 400),
        (b"POST /p\r\nhost: a\r\nupgrade: x\r\n", 400),
        (b"POST /p\r\nhost: a\r\nX-A: b\r\n", 400),
        (b"POST /p\r\nhost: a\r\nx a: b\r\n", 400),
        (b"POST /p\r\nhost: a\r\nx : b\r\n", 400),
        (b"POST /p\r\nhost: a\r\n: b\r\n", 400),
        (b"POST /p\r\nhost: a\r\nx\r\n", 400),
        (b"POST /p\r\nhost: a\r\nx: a\nb: c\r\n", 400),
        (b"POST /p\r\nhost: a\r\nx: a\rb\r\n", 400),
        (b"POST /p\r\nhost: a\r\nx: a\0b\r\n", 400),
        (b"POST /p\r\nhost: a", 400),
        (b"POST /p#a\r\nhost: a\r\n", 400),
        (b"POST /p /q\r\nhost: a\r\n", 400),
        (b"POST p\r\nhost: a\r\n", 400),
        (b"POST http://b/p\r\nhost: a\r\n", 400),
        (b"POST *\r\nhost: a\r\n", 400),
        (b"CONNECT /p\r\nhost: a\r\n", 400),
        (b"post /p\r\nhost: a\r\n", 400),
        (b"", 400),
    ],
)
async def test_a_head_that_the_front_would_refuse_is_refused_each_time(block: bytes, status: int) -> None:
    """No second spelling of a request passes: the slot's request is refused, and nothing is served."""
    async with served() as server:
        client = await raw_client(server)
        client.write(head(block), request(1), request(2, b"abc"), request(3, flags=0))
        for number in (1, 2, 3):
            kind, reason, _, _, answered = await client.until_kind(frames.ANSWER)
            assert (kind, reason) == (frames.ANSWER, number)
            assert b'"status":%d' % status in answered
        client.write(head(), request(4, b"fine"))
        assert (await client.until_kind(frames.ANSWER))[4] == b"fine"
        assert len(server.exchanges) == 1
        client.writer.close()


@pytest.mark.parametrize(
    "own", [b"x: a\nb: c\r\n", b"x: y", b"host: b\r\n", b"content-length: 3\r\n", b"X: y\r\n", b"\r\n"]
)
async def test_own_fields_are_checked_as_those_of_a_head(own: bytes) -> None:
    async with served() as server:
        client = await raw_client(server)
        client.write(head(), request(1, own=own), request(2, b"fine", own=b"x-a: b\r\n"))
        assert b'"status":400' in (await client.until_kind(frames.ANSWER))[4]
        assert (await client.until_kind(frames.ANSWER))[4] == b"fine"
        assert server.exchanges[0].request.headers == ((b"host", b"a"), (b"x-a", b"b"))
        client.writer.close()


async def test_too_many_requests_at_once_end_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_REQUESTS", 3)
    never = asyncio.Event()

    async def wait(exchange: Exchange) -> None:
        await never.wait()

    async with served() as server:
        server.work = wait
        client = await raw_client(server)
        client.write(head(), *(request(number) for number in range(1, 5)))
        assert "at most 3 requests" in (await _goodbye(client))[1]
        client.writer.close()
        never.set()


BROKEN_BY_SERVERS = {
    "junk": b"\xff" * 64,
    "a request": request(1),
    "a room of another size": frames.frame(frames.ROOM, 0, b"abcd"),
    "a room that counts what was not sent": frames.room(1, 1, 9),
    "a recall of no number": frames.frame(frames.RECALL, 0, b"ab"),
    "an answer to nobody": OK_HEAD + answer(9),
    "an answer without a head": answer(1),
    "two heads of an answer": OK_HEAD + answer(1, flags=0) + answer(1, flags=0),
    "a body before its head": body(1, b"abc"),
    "a body of nobody": body(9, b"abc"),
    "no status": frames.frame(frames.HEAD, 0, b"x-a: 1\r\n", slot=1),
    "a status that is not final": frames.frame(frames.HEAD, 0, b"101\r\n", slot=1),
    "a head of two lines in one": frames.frame(frames.HEAD, 0, b"200\r\nx: a\nb: c\r\n", slot=1),
    "own fields of two lines in one": OK_HEAD + answer(1, own=b"x: a\nb: c\r\n"),
    "an interim answer that is final": frames.frame(frames.INTERIM, 1, frames.STATUS.pack(200)),
    "more than was said": OK_HEAD
    + header(8, 1, 0, frames.ANSWER, frames.LENGTH, 1)
    + LONG(3)
    + body(1, b"abcd"),
    "less than was said": OK_HEAD
    + header(8, 1, 0, frames.ANSWER, frames.LENGTH, 1)
    + LONG(3)
    + body(1, b"ab", ended=True),
}


@pytest.mark.parametrize("sent", BROKEN_BY_SERVERS.values(), ids=BROKEN_BY_SERVERS.keys())
async def test_a_broken_server_is_left_and_its_requests_are_lost(
    capfd: pytest.CaptureFixture[str], sent: bytes
) -> None:
    """None of them gets another's answer; each may have been executed, and is said so."""

    def play(raw: Raw) -> None:
        raw.write(sent)

    async with raw_server(lambda raw: peers.append(raw)) as (upstream, address):
        asked = [
            asyncio.create_task(sending.send(upstream, *address, post(body=b"%d" % index), timeout=30))
            for index in range(2)
        ]
        await until(lambda: bool(peers))
        await peers[-1].until_kind(frames.REQUEST)
        await peers[-1].until_kind(frames.REQUEST)
        play(peers[-1])
        for task in asked:
            with pytest.raises(AnswerUnreadable):
                await asyncio.wait_for(task, SECONDS)
        assert address not in upstream._hops
        assert "expected " in (await peers[-1].until_kind(frames.GOODBYE))[4].decode("utf-8", "replace")
    assert "hop's server does not keep to the protocol" in capfd.readouterr().err


async def test_interim_answers_without_end_end_their_request_alone() -> None:
    """A client that reads slowly would have them all kept for it: nothing else holds them back."""
    async with raw_server(lambda raw: peers.append(raw)) as (upstream, address):
        got: list[int] = []
        asking = post(body=b"a")
        asking.interim = lambda status, fields: got.append(status)
        flooded = asyncio.create_task(sending.send(upstream, *address, asking, timeout=30))
        other = asyncio.create_task(sending.send(upstream, *address, post(body=b"b"), timeout=30))
        await until(lambda: bool(peers))
        await peers[-1].until_kind(frames.REQUEST)
        await peers[-1].until_kind(frames.REQUEST)
        hint = frames.frame(frames.INTERIM, 1, frames.STATUS.pack(103) + b"link: " + b"x" * 990 + b"\r\n")
        for _ in range(2 * MAX_HEAD_BYTES // len(hint)):
            peers[-1].write(hint)
        with pytest.raises(AnswerUnreadable, match="interim answers"):
            await asyncio.wait_for(flooded, SECONDS)
        assert 0 < len(got) <= MAX_HEAD_BYTES // len(hint)
        peers[-1].write(OK_HEAD, answer(2, b"to b"))
        assert (await asyncio.wait_for(other, SECONDS)).body == b"to b"


async def test_an_answer_to_a_request_that_was_given_up_is_nobodys() -> None:
    """It crossed with the cancel."""
    async with raw_server(lambda raw: peers.append(raw)) as (upstream, address):
        given_up = asyncio.create_task(sending.send(upstream, *address, post(body=b"a"), timeout=30))
        kept = asyncio.create_task(sending.send(upstream, *address, post(body=b"b"), timeout=30))
        await until(lambda: bool(peers))
        await peers[-1].until_kind(frames.REQUEST)
        await peers[-1].until_kind(frames.REQUEST)
        given_up.cancel()
        assert (await peers[-1].until_kind(frames.CANCEL))[1] == 1
        peers[-1].write(OK_HEAD, answer(1, b"to a"), answer(2, b"to b"))
        assert (await asyncio.wait_for(kept, SECONDS)).body == b"to b"


async def test_an_answer_that_begins_as_its_caller_leaves_is_given_up() -> None:
    """In one turn of the loop: the server hears that nobody reads on, and nothing of the answer is kept."""
    async with raw_server(lambda raw: peers.append(raw)) as (upstream, address):
        asked = asyncio.create_task(sending.open_answer(upstream, *address, post(), timeout=30))
        await until(lambda: bool(peers))
        await peers[-1].until_kind(frames.REQUEST)
        hop = upstream._hops[address]
        asked.cancel()
        hop.data_received(OK_HEAD + answer(1, flags=0))
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert (await peers[-1].until_kind(frames.CANCEL))[1] == 1
        assert not hop.busy


async def test_a_reset_says_that_the_last_request_was_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel resets only with bytes unread: the last byte sent is among them, and no more is known."""
    async with raw_server(lambda raw: peers.append(raw)) as (upstream, address):
        asked = [
            asyncio.create_task(sending.send(upstream, *address, post(body=b"%d" % index), timeout=30))
            for index in range(3)
        ]
        hop = upstream._hops[address]
        await until(lambda: hop._flushed >= 3)
        hop.connection_lost(ConnectionResetError())
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(each) for each in results] == [ConnectionLost, ConnectionLost, RequestUnread]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.builds(
                lambda kind, number, flags, slot, payload: (
                    frames.HEADER.pack(len(payload), number, 0, kind, flags, slot) + payload
                ),
                st.integers(0, 10),
                st.integers(0, 6),
                st.integers(0, 3),
                st.integers(0, 3),
                st.one_of(
                    st.binary(max_size=20),
                    st.just(b"POST /p\r\nhost: a\r\n"),
                    st.just(b"200\r\n"),
                    st.just(b"\0\0\0\x01"),
                ),
            ),
            st.just(head()),
            st.builds(request, st.integers(0, 6), st.binary(max_size=5), slot=st.integers(0, 2)),
        ),
        max_size=12,
    ),
    st.integers(1, 40),
)
def test_no_bytes_of_a_client_break_more_than_its_connection(sent: list[bytes], cut: int) -> None:
    """Whatever comes, in whatever pieces: what is whole is served, what is not ends without a fault."""
    asyncio.run(_feed(b"".join(sent), cut))


class _Sink:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0


async def _feed(data: bytes, cut: int) -> None:
    front = H1Front()
    served_numbers: list[bytes] = []

    def service(exchange: Exchange) -> None:
        served_numbers.append(exchange.request.body)
        assert exchange.request.headers[0] == (b"host", b"a")
        exchange.answer(Response(200, (), exchange.request.body))

    listener = H1Listener(front, service, lambda each: False)
    sink = _Sink()
    loop = asyncio.get_running_loop()
    connection = HopConnection(front, listener, loop, sink, "peer", KnownHeads())  # type: ignore[arg-type]
    front.connections.add(connection)
    for start in range(0, len(data), cut):
        connection.data_received(data[start : start + cut])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    offset, answered = 0, 0
    while offset < len(sink.written):
        length, _, _, kind, _, _ = frames.HEADER.unpack_from(sink.written, offset)
        answered += kind == frames.ANSWER
        offset += frames.HEADER_BYTES + length
    assert offset == len(sink.written)
    assert answered >= len(served_numbers) or sink.closed
    connection.connection_lost(None)
    assert not connection._exchanges
    assert front.unfinished_bytes == 0


class _Pool:
    """A `HopPool` that notes what it is told of room."""

    def __init__(self) -> None:
        self.said: list[int] = []

    def room(self, connection: HopClient, free: int, waiting: int, capacity: int) -> None:
        self.said += [free, waiting, capacity]

    def recalled(self, connection: HopClient, count: int) -> None:
        self.said.append(count)

    def leaves(self, connection: HopClient) -> None:
        pass

    forget = silent = leaves


def _frame(kind: int, number: int, flags: int, slot: int, own: int, payload: bytes) -> bytes:
    return frames.HEADER.pack(len(payload), number, min(own, len(payload)), kind, flags, slot) + payload


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.builds(
                _frame,
                st.integers(0, 11),
                st.integers(0, 4),
                st.integers(0, 3),
                st.integers(0, 3),
                st.sampled_from([0, 0, 3, 18]),
                st.one_of(
                    st.binary(max_size=20),
                    st.just(b"200\r\nx-a: 1\r\n"),
                    st.just(b"x-request-id: one\r\n"),
                    st.just(b"\0\0\0\x01" * 3),
                    st.just(LONG(3) + b"abc"),
                ),
            ),
            st.just(OK_HEAD),
            st.builds(
                frames.room, st.integers(0, 9), st.integers(0, 9), st.integers(0, 4), st.integers(0, 9)
            ),
            st.builds(answer, st.integers(0, 4), st.binary(max_size=5), slot=st.integers(0, 2)),
        ),
        max_size=12,
    ),
    st.integers(1, 40),
)
def test_no_bytes_of_a_server_break_more_than_its_connection(sent: list[bytes], cut: int) -> None:
    """Each request is called back once, with one whole answer or a failure; none waits for ever."""
    asyncio.run(_hear(b"".join(sent), cut))


async def _hear(data: bytes, cut: int) -> None:
    loop, pool, sink = asyncio.get_running_loop(), _Pool(), _Sink()
    client = HopClient(pool, ("a", 1), loop, sink)  # type: ignore[arg-type]
    done: dict[int, list[Response | UpstreamAnswer | UpstreamError]] = {ALL_BYTES: [], 2: [], AT_HEAD: []}
    for whole_bytes, into in done.items():
        client.begin(post(), 30, 30, whole_bytes, into.append)
    await asyncio.sleep(0)
    for start in range(0, len(data), cut):
        client.data_received(data[start : start + cut])
    client.connection_lost(None)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    (whole,), (either,), (opened,) = done.values()
    assert isinstance(whole, Response | UpstreamError)
    assert isinstance(opened, Answer | UpstreamError)
    for each in (either, opened):
        if isinstance(each, Answer):
            each.abort()
    assert not client.busy
    assert all(number >= 0 for number in pool.said)
