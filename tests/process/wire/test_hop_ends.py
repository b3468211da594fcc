"""Ends of a hop: drains, cuts, silence, what it does not carry, and who keeps it waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from penstock_wire.hop import frames
from penstock_wire.hop.client import HopClient
from penstock_wire.hop.upstream import HopUpstream
from penstock_wire.http import (
    ALL_BYTES,
    ConnectionLost,
    ConnectTimeout,
    Exchange,
    NotAdmitted,
    NotCarried,
    PeerSilent,
    Request,
    RequestNotTaken,
    RequestUnread,
    Response,
    sending,
)
from penstock_wire.http.client import peer_liveness
from penstock_wire.http.client.peer_liveness import TcpSigns
from penstock_wire.http.client.pool import H1Upstream
from penstock_wire.http.server import limits
from penstock_wire.http.server.server import H1Front
from tests.support.clocks.waiting import SECONDS, until
from tests.support.http.hop_pair import (
    SIDECAR,
    Held,
    HopServer,
    Pair,
    head,
    paired,
    post,
    raw_client,
    request,
    served,
)


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[Pair]:
    async with paired() as pair:
        yield pair


async def test_a_server_that_leaves_is_left_and_loses_nothing(pair: Pair) -> None:
    """First nothing new is sent to it, then it says what it has taken; what it has is answered."""
    held = Held(pair)
    asked = asyncio.create_task(pair.send(post(body=b"before")))
    await held.come(1)
    pair.server.front.close_keepalive(idle=False)
    await until(lambda: not pair.upstream._hops)
    beside = asyncio.create_task(pair.send(post(body=b"beside")))  # over HTTP/1.1
    await held.come(2)
    closing = asyncio.create_task(pair.server.front.close(30))
    for body, exchange in held.exchanges.items():
        exchange.answer(Response(200, SIDECAR, body))
    assert [(await asked).body, (await beside).body] == [b"before", b"beside"]
    await asyncio.wait_for(closing, SECONDS)
    assert not pair.server.front.connections


async def test_what_a_leaving_server_had_not_taken_is_known_to_be_unread(pair: Pair) -> None:
    """Sent before its goodbye was read: not executed, and said so; what it had taken is answered."""
    held = Held(pair)
    taken = asyncio.create_task(pair.send(post(body=b"taken")))
    await held.come(1)
    pair.far.close_if_idle()
    late = asyncio.create_task(pair.send(post(body=b"late")))
    with pytest.raises(RequestNotTaken):
        await late
    held.exchanges[b"taken"].answer(Response(200, SIDECAR, b"fine"))
    assert (await taken).body == b"fine"
    assert list(held.exchanges) == [b"taken"]
    await until(lambda: not pair.server.hops)


async def test_a_drain_that_ends_has_hops_again(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it leaves no hop is made; later one is asked for again."""
    monkeypatch.setattr("penstock_wire.hop.asking.MEET_SECONDS", 0.0)
    monkeypatch.setattr("penstock_wire.hop.upstream.MEET_SECONDS", 0.0)
    pair.server.front.close_keepalive(idle=False)
    await until(lambda: not pair.upstream._hops)
    await pair.send()
    await until(lambda: bool(pair.upstream._refused))
    assert not pair.upstream._hops
    pair.server.front.open_keepalive()
    await pair.send()
    await until(lambda: bool(pair.upstream._hops))
    assert (await pair.send()).body == b"body"


async def test_a_cut_connection_takes_all_along_but_what_had_not_left(pair: Pair) -> None:
    """What was sent may have been executed; what this turn of the loop had yet to send was not."""
    held = Held(pair)
    sent = asyncio.create_task(pair.send(post(body=b"sent")))
    await held.come(1)
    got: list[Any] = []
    pair.upstream.begin(*pair.server.address, post(body=b"unsent"), 30.0, 30.0, ALL_BYTES, got.append)
    pair.hop.connection_lost(None)
    with pytest.raises(ConnectionLost) as lost:
        await sent
    assert not isinstance(lost.value, RequestUnread)
    await until(lambda: bool(got))
    assert isinstance(got[0], RequestUnread)
    await until(lambda: held.left == [b"sent"])
    assert (await asyncio.wait_for(_answered(pair, held), SECONDS)).body == b"again"


async def _answered(pair: Pair, held: Held) -> Response:
    pair.server.work = pair.server.echo
    return await pair.send(post(body=b"again"))


@pytest.mark.parametrize("how", ["retire", "close"])
async def test_a_retired_hop_answers_what_it_has_and_a_closed_one_ends_it(pair: Pair, how: str) -> None:
    held = Held(pair)
    asked = asyncio.create_task(pair.send(post(body=b"old")))
    await held.come(1)
    hop = pair.hop
    if how == "close":
        await pair.upstream.close()
        with pytest.raises(ConnectionLost):
            await asked
        return
    pair.upstream.retire(*pair.server.address)
    assert not hop.takes(post())
    held.exchanges[b"old"].answer(Response(200, SIDECAR, b"fine"))
    assert (await asked).body == b"fine"
    await until(lambda: not pair.server.hops)


async def test_what_a_hop_does_not_carry_goes_over_http_1_1(pair: Pair) -> None:
    """A fresh connection, another method, a hop that takes nothing now."""
    requests = [post(), post(), Request("PROPFIND", "/p", (), b""), post()]
    requests[1].fresh = True
    before = pair.hop._number
    for each in requests:
        assert (await pair.send(each)).status == 200
    assert pair.hop._number == before + 2


async def test_a_server_that_knows_no_hop_is_asked_once_and_served_as_before() -> None:
    """It answers the question as any other; a server that is not a sidecar is not asked."""
    server = HopServer()
    listener = await server.front.serve("127.0.0.1", 0, server)
    upstream = HopUpstream(H1Upstream())
    server.address = listener.address
    for _ in range(5):
        answer = await sending.send(upstream, *listener.address, post(), timeout=30)
        assert answer.body == b"body"
        await until(lambda: not upstream._asking)
    assert [exchange.request.method for exchange in server.exchanges] == ["POST", "OPTIONS", *["POST"] * 4]
    upstream.retire(*listener.address)

    async def plain(exchange: Exchange) -> None:
        exchange.answer(Response(200, (), b"plain"))

    server.work = plain
    server.exchanges.clear()
    for _ in range(3):
        await sending.send(upstream, *listener.address, post(), timeout=30)
    assert [exchange.request.method for exchange in server.exchanges] == ["POST"] * 3
    await upstream.close()
    await server.front.close(0)


async def test_idle_hops_are_closed_by_their_client(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the server would; the next request goes over HTTP/1.1 and asks for another."""
    monkeypatch.setattr("penstock_wire.hop.upstream.IDLE_SECONDS", 0.0)
    pair.upstream._close_idle()
    await until(lambda: not pair.server.hops)
    monkeypatch.undo()
    await pair.ask_for_hop()


@pytest.mark.parametrize("late", ["idle", "body", "credit", "frame"])
async def test_a_client_that_keeps_the_server_waiting_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    """The times are those of the HTTP/1.1 front: 408 for a body, an end for what stands still."""
    for name in ("SWEEP_SECONDS", "IDLE_SECONDS", "BODY_SECONDS", "HEAD_SECONDS", "WRITE_SECONDS"):
        monkeypatch.setattr(limits, name, 0.02)
    monkeypatch.setattr(limits, "LINGER_SECONDS", 0.02)
    async with served() as server:

        async def long(exchange: Exchange) -> None:
            exchange.answer(Response(200, (), b"x" * 1_000_000))

        if late == "credit":
            server.work = long
        client = await raw_client(server)
        if late == "body":
            client.write(head(), request(1, flags=0))
            answer = await client.until_kind(frames.ANSWER)
            assert b'"status":408' in answer[4]
        elif late == "credit":
            client.write(head(), request(1))
            assert (await client.until_kind(frames.CANCEL))[1] == 1
        elif late == "frame":
            client.write(head()[:-3])
        if late != "frame":
            assert (await client.until_kind(frames.GOODBYE))[1] == 0
        await client.rest()
        await until(lambda: not server.hops)
        client.writer.close()


async def test_a_silent_machine_ends_its_hop_as_any_connection_to_it(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool looks after both kinds; what is under way may have been executed."""
    held = Held(pair)
    asked = asyncio.create_task(pair.send())
    await held.come(1)
    monkeypatch.setattr(peer_liveness, "look", lambda _: TcpSigns(heard_ago=100.0, unacknowledged=1))
    pair.upstream._plain._silence_seconds = 3.0
    pair.upstream._plain.look_for_silence()
    with pytest.raises(PeerSilent):
        await asked
    assert not pair.upstream._hops


async def test_a_hop_has_its_place_among_the_connections_of_its_front() -> None:
    """It is counted where its connection was, makes way as that would, and leaves no place taken."""
    front = H1Front(max_per_address=2, evicting=True)
    async with served(HopServer(front)) as server:
        client = await raw_client(server)
        client.write(head(), request(1))
        await client.until_kind(frames.ANSWER)
        (listener,) = front._listeners
        assert listener.acceptor is not None
        assert len(listener.acceptor) == len(front.connections) == len(server.hops) == 1
        writers = [(await server.connect())[1] for _ in range(2)]
        assert await client.rest() == b""  # it had rested the longest
        await until(lambda: not server.hops)
        assert len(listener.acceptor) == 2
        for writer in (client.writer, *writers):
            writer.close()
        await until(lambda: not len(listener.acceptor))


async def test_a_closed_connection_does_not_wait_for_a_client_that_takes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It broke the protocol, and does not read the word why: its place is free after a while."""
    monkeypatch.setattr(limits, "LINGER_SECONDS", 0.02)
    monkeypatch.setattr(limits, "SWEEP_SECONDS", 0.02)

    async def much(exchange: Exchange) -> None:
        exchange.answer(Response(200, SIDECAR, bytes(20_000)))

    async with served() as server:
        server.work = much
        raw = await raw_client(server)
        raw.write(head())
        (far,) = server.hops
        number = 0
        while not far.transport.get_write_buffer_size():
            number += 1
            raw.write(request(number))
            await until(lambda count=number: len(server.exchanges) == count)
        raw.write(b"\xff" * 64)
        await until(lambda: not server.front.connections)
        raw.writer.close()


async def test_a_connection_whose_numbers_are_used_up_is_followed_by_another(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_wire.hop.upstream.MEET_SECONDS", 0.0)
    pair.upstream.keep([pair.server.address])
    first = pair.hop
    first._number = frames.LAST_NUMBER - 2
    assert (await pair.send()).body == b"body"
    await until(lambda: pair.upstream._hops.get(pair.server.address, first) is not first)
    assert (await pair.send()).body == b"body"
    assert pair.hop._number == 1


async def test_a_stream_is_closed_though_its_client_leaves_before_a_first_piece_is_asked_for(
    pair: Pair,
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
        pair.far.abort()
        exchange.answer(Response(200, SIDECAR, stream=Stream()))

    pair.server.work = leaving
    with pytest.raises(ConnectionLost):
        await pair.send()
    async with asyncio.timeout(SECONDS):
        await closed.wait()


async def test_a_hop_whose_connection_was_given_up_as_it_was_made_is_in_no_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its time was over in the turn in which the server agreed, and the loop never reports its end."""
    monkeypatch.setattr(HopClient, "connection_lost", lambda self, error: None)
    loop = asyncio.get_running_loop()
    connect = loop.create_connection
    upstream = HopUpstream(H1Upstream())
    made: list[HopClient] = []

    async def late(*args: Any, **options: Any) -> Any:
        connected = await connect(*args, **options)
        if not upstream._asking:
            return connected
        await until(lambda: bool(upstream._hops))
        made.extend(upstream._hops.values())
        raise TimeoutError

    async with served() as server:
        monkeypatch.setattr(loop, "create_connection", late)
        await sending.send(upstream, *server.address, Request("GET", "/", (), b""), timeout=30)
        await until(lambda: bool(made) and not upstream._asking)
        assert not upstream._hops
        assert made[0].ended
        await upstream.close()


def call(body: bytes = b"call") -> Request:
    """A gRPC call, which only a hop carries."""
    made = post(body=body)
    made.trailers = made.fresh = True
    return made


async def test_why_a_call_gets_no_hop_is_said_apart(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own time is over, the server is closing, the server makes none and is not asked again."""
    pair.server.front.close_keepalive(idle=False)
    await until(lambda: not pair.upstream._hops)
    with pytest.raises(NotAdmitted):
        await pair.send(call())
    plain = HopServer()
    listener = await plain.front.serve("127.0.0.1", 0, plain)
    for _ in range(3):
        with pytest.raises(NotCarried):
            await sending.send(pair.upstream, *listener.address, call(), timeout=30)
    assert [each.request.method for each in plain.exchanges] == ["OPTIONS"]
    await plain.front.close(0)

    def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    writers: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(mute, "127.0.0.1", 0)
    with pytest.raises(ConnectTimeout) as caught:
        await sending.send(pair.upstream, *silent.sockets[0].getsockname()[:2], call(), timeout=0.05)
    assert caught.value.seconds == 0.05
    silent.close()
    for writer in writers:
        writer.close()


async def test_a_call_waits_for_what_an_idle_hop_has_to_deliver(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No second hop is made for a turn of the loop."""
    looks = iter([False, False, True])
    monkeypatch.setattr("penstock_wire.hop.client.LOOK_SECONDS", 0.0)
    monkeypatch.setattr("penstock_wire.hop.client.nothing_waits", lambda _: next(looks, True))
    hop = pair.hop
    assert (await pair.send(call())).body == b"call"
    assert pair.hop is hop


async def test_a_full_hop_is_followed_by_another_and_ends_with_its_last_answer(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "MAX_REQUESTS", 1)
    held = Held(pair)
    first = asyncio.create_task(pair.send(call(b"1")))
    await held.come(1)
    second = asyncio.create_task(pair.send(call(b"2")))
    await held.come(2)
    assert len(pair.server.hops) == 2
    for body, exchange in held.exchanges.items():
        exchange.answer(Response(200, SIDECAR, body))
    assert [(await each).body for each in (first, second)] == [b"1", b"2"]
    await until(lambda: len(pair.server.hops) == 1)


async def test_a_call_that_is_answered_may_be_silent() -> None:
    """Its client sends when it likes; before the answer has begun it has a body's time."""
    begins = asyncio.Event()

    async def listen(exchange: Exchange) -> None:
        stream = exchange.request.stream
        assert stream is not None

        async def answers() -> AsyncIterator[bytes]:
            while piece := await stream.read():
                yield piece

        await begins.wait()
        exchange.answer(Response(200, SIDECAR, stream=answers()))

    async with served() as server:
        server.streamed = lambda request: True
        server.work = listen
        client = await raw_client(server)
        client.write(head(), request(1, flags=frames.TAKES_TRAILERS))
        await until(lambda: bool(server.exchanges))
        (far,) = server.hops
        (exchange,) = far._exchanges.values()
        begins.set()
        await client.until_kind(frames.ANSWER)
        await until(lambda: exchange.receiver is not None and exchange.receiver.waited_for)
        assert not far._late(exchange, exchange.since + 1000)
        exchange.connection = far  # as before the answer
        assert far._late(exchange, exchange.since + 1000)
        client.writer.close()
