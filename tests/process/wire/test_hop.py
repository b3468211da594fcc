"""The hop, both ends over loopback: many requests at once, each with its own answer, end and error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from penstock_wire.headers import NOT_ADMITTED, TIMEOUT_MS, Headers
from penstock_wire.hop import frames
from penstock_wire.http import (
    ALL_BYTES,
    ClientGone,
    ConnectionLost,
    Exchange,
    Request,
    Response,
    UpstreamAnswer,
    UpstreamError,
    UpstreamTimeout,
    sending,
)
from penstock_wire.http.server import limits
from penstock_wire.http.server.server import H1Front
from tests.support.clocks.still_time import StillTime
from tests.support.clocks.waiting import SECONDS, until
from tests.support.http.hop_pair import (
    SIDECAR,
    Held,
    HopServer,
    Pair,
    paired,
    post,
)
from tests.support.http.upstream_exchange import Given


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[Pair]:
    async with paired() as pair:
        yield pair


async def test_requests_share_a_connection_and_each_gets_its_own_answer(pair: Pair) -> None:
    """Answered in another order than they came in, all on one connection."""
    held = Held(pair)
    asked = [asyncio.create_task(pair.send(post(body=b"%d" % index))) for index in range(100)]
    await held.come(100)
    for body in reversed(held.exchanges):
        held.exchanges[body].answer(Response(200, SIDECAR, b"to " + body))
    answers = await asyncio.gather(*asked)
    assert [answer.body for answer in answers] == [b"to %d" % index for index in range(100)]
    assert len(pair.server.hops) == 1


async def test_what_heads_share_is_one_object_and_what_differs_comes_with_each(pair: Pair) -> None:
    """A sidecar reads a head once; ids and times are each request's own."""
    for number in range(4):
        request = post(number=number, headers=((b"accept", b"*/*"),))
        request.headers = (*request.headers, (TIMEOUT_MS, b"%d" % (100 + number)))
        await pair.send(request)
    got = [exchange.request for exchange in pair.server.exchanges]
    assert [dict(request.headers)[b"x-request-id"] for request in got] == [b"0", b"1", b"2", b"3"]
    assert [dict(request.headers)[TIMEOUT_MS] for request in got] == [b"100", b"101", b"102", b"103"]
    assert got[0].shared == ((b"host", b"a"), (b"accept", b"*/*"))
    assert all(request.shared is got[0].shared for request in got)
    assert got[3].method == "POST"
    assert got[3].target == "/p"
    assert got[3].peer == "127.0.0.1"


async def test_an_answer_may_have_more_fields_than_a_request_and_ends_no_other(pair: Pair) -> None:
    """A model chooses them, and over HTTP/1.1 they pass: the connection, and who waits on it, must stay."""
    many = tuple([(b"link", b"</%d>" % index) for index in range(limits.MAX_FIELDS + 1)])
    held, hop = Held(pair), pair.hop
    waits = asyncio.create_task(pair.send(post(body=b"waits")))
    hinted: list[Headers] = []
    request = post(body=b"many")
    request.interim = lambda status, fields: hinted.append(fields)
    asked = asyncio.create_task(pair.send(request))
    await held.come(2)
    held.exchanges[b"many"].interim(103, many)
    held.exchanges[b"many"].answer(Response(200, many, b"all"))
    answer = await asked
    assert (answer.headers, answer.body, hinted) == (many, b"all", [many])
    held.exchanges[b"waits"].answer(Response(200, SIDECAR, b"still there"))
    assert (await waits).body == b"still there"
    assert pair.hop is hop


async def test_requests_that_share_fields_may_differ_in_all_else(pair: Pair) -> None:
    """One object of fields, as a router has for like requests: all else is each request's own."""
    shared = ((b"host", b"a"),)
    sent = [("POST", "/a"), ("POST", "/b"), ("PUT", "/b"), ("PUT", "/b"), ("POST", "/a")]
    for number, (method, target) in enumerate(sent):
        lines = b"x-request-id: %d\r\n" % number
        await pair.send(Request(method, target, shared, b"%d" % number, lines=lines))
    got = [exchange.request for exchange in pair.server.exchanges]
    assert [(request.method, request.target) for request in got] == sent
    assert [request.headers for request in got] == [
        (*shared, (b"x-request-id", b"%d" % number)) for number in range(5)
    ]


async def test_more_heads_than_slots_are_each_read_as_they_were_sent(pair: Pair) -> None:
    """A slot that is used again has the later head, on both ends."""

    async def work(exchange: Exchange) -> None:
        fields = (*SIDECAR, (b"x-seen", exchange.request.target.encode()))
        exchange.answer(Response(200, fields, exchange.request.body))

    pair.server.work = work
    for turn in range(3):
        for number in range(frames.SLOTS + 20):
            target = f"/p{number}"
            answer = await pair.send(post(target, b"%d" % turn))
            assert dict(answer.headers)[b"x-seen"] == target.encode()
            assert answer.body == b"%d" % turn


async def test_who_asks_whether_to_send_a_body_is_answered(pair: Pair) -> None:
    """On a connection beside the hop, which does not have 100 (RFC 9110 section 10.1.1)."""
    await pair.send(post(body=b"first"))
    assert len(pair.server.hops) == 1
    go, interim = asyncio.Event(), asyncio.Queue[int]()
    request = Request("POST", "/s", (), b"", stream=Given(go, b"later"), length=5)
    request.expects = True
    request.interim = lambda status, _: interim.put_nowait(status)
    asked = asyncio.create_task(sending.open_answer(pair.upstream, *pair.server.address, request, timeout=30))
    assert await asyncio.wait_for(interim.get(), SECONDS) == 100
    go.set()
    answer = await asked
    assert await answer.stream.read() == b"later"


@pytest.mark.parametrize("size", [0, 1, frames.PIECE_BYTES, frames.PIECE_BYTES + 1, 3_000_000])
@pytest.mark.parametrize("target", ["/p", "/s"])
async def test_bodies_of_every_size_pass_whole_and_as_streams(size: int, target: str) -> None:
    """Both ways, with a length that is right."""
    async with paired(HopServer(H1Front())) as pair:
        data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        assert (await pair.send(post(target, data))).body == data
        (exchange,) = pair.server.exchanges
        streamed = target == "/s" and size > frames.PIECE_BYTES
        assert (exchange.request.stream is not None) == streamed
        assert exchange.request.length == (size if streamed else None)


@pytest.mark.parametrize("length", [None, 9])
async def test_streams_pass_piece_by_piece_both_ways_at_once(pair: Pair, length: int | None) -> None:
    """Each piece is answered before the next is sent, as by a model that answers while it reads."""
    go = asyncio.Event()

    async def work(exchange: Exchange) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            assert exchange.request.stream is not None
            while piece := await exchange.request.stream.read():
                yield piece.upper()

        exchange.answer(Response(200, SIDECAR, stream=pieces(), length=length))

    pair.server.work = work
    given = Given(b"abc", go, b"defghi")
    request = Request("POST", "/s", (), b"", stream=given, length=length)
    answer = await sending.open_answer(pair.upstream, *pair.server.address, request, timeout=30)
    assert answer.length == length
    assert await answer.stream.read() == b"ABC"
    go.set()
    assert await answer.stream.read() == b"DEFGHI"
    assert await answer.stream.read() == b""
    assert pair.server.exchanges[0].request.length == length
    assert not pair.hop.busy


async def test_a_slow_reader_holds_up_nobody_and_holds_little(pair: Pair) -> None:
    """An endless answer that is not read costs a window; others are answered beside it."""
    sent = 0

    async def work(exchange: Exchange) -> None:
        async def endless() -> AsyncIterator[bytes]:
            nonlocal sent
            while True:
                sent += 50_000
                yield b"x" * 50_000

        if exchange.request.target == "/endless":
            exchange.answer(Response(200, SIDECAR, stream=endless()))
        else:
            exchange.answer(Response(200, SIDECAR, b"fast"))

    pair.server.work = work
    slow = await sending.open_answer(pair.upstream, *pair.server.address, post("/endless"), timeout=30)
    await until(lambda: sent > frames.WINDOW)
    for _ in range(50):
        assert (await pair.send()).body == b"fast"
    assert sent <= frames.WINDOW + 2 * 50_000
    got = 0
    while got < 5_000_000:
        got += len(await slow.stream.read())
    slow.abort()
    await until(lambda: not pair.far._exchanges)
    assert (await pair.send()).body == b"fast"


async def test_who_reads_a_request_slowly_slows_its_sender_alone(pair: Pair) -> None:
    """Back-pressure by credit: an endless request body, a service that waits, other requests beside it."""
    go = asyncio.Event()

    async def work(exchange: Exchange) -> None:
        if exchange.request.target == "/s":
            assert exchange.request.stream is not None
            await go.wait()
            assert await exchange.request.stream.read()
        exchange.answer(Response(200, SIDECAR, b"ok"))

    pair.server.work = work
    given = Given()
    given.endless = b"x" * 10_000
    asked = asyncio.create_task(
        sending.open_answer(
            pair.upstream, *pair.server.address, Request("POST", "/s", (), b"", stream=given), timeout=30
        )
    )
    await until(lambda: given.read_pieces * 10_000 > frames.WINDOW)
    for _ in range(20):
        assert (await pair.send()).body == b"ok"
    assert given.read_pieces * 10_000 <= frames.WINDOW + 10_000
    go.set()
    answer = await asyncio.wait_for(asked, SECONDS)
    assert answer.whole() == b"ok"
    assert (await pair.send()).body == b"ok"


async def test_who_gives_up_frees_the_place_at_once_and_harms_no_other(pair: Pair) -> None:
    """`gone` is called for that request only; its late answer is dropped."""
    held = Held(pair)
    asked = [asyncio.create_task(pair.send(post(body=b"%d" % index))) for index in range(3)]
    await held.come(3)
    asked[1].cancel()
    await until(lambda: held.left == [b"1"])
    for body, exchange in held.exchanges.items():
        exchange.answer(Response(200, SIDECAR, body))
    assert [(await asked[index]).body for index in (0, 2)] == [b"0", b"2"]
    assert not pair.far._exchanges


@pytest.mark.parametrize("whole", [ALL_BYTES, 0])
async def test_what_is_begun_and_given_up_is_called_back_once(pair: Pair, whole: int) -> None:
    """With a failure, later; what is given up after its answer changes nothing."""
    held = Held(pair)
    got: list[Any] = []
    begin = pair.upstream.begin
    give_up = begin(*pair.server.address, post(body=b"a"), 30.0, 30.0, whole, got.append)
    await held.come(1)
    give_up()
    assert got == []
    await until(lambda: len(got) == 1)
    assert isinstance(got[0], ConnectionLost)
    give_up()
    await until(lambda: held.left == [b"a"])
    give_up = begin(*pair.server.address, post(body=b"b"), 30.0, 30.0, whole, got.append)
    await held.come(2)
    held.exchanges[b"b"].answer(Response(200, SIDECAR, b""))
    await until(lambda: len(got) == 2)
    give_up()
    assert got[1].status == 200
    assert held.left == [b"a"]


@pytest.mark.parametrize("long", [False, True])
async def test_a_long_answer_is_given_with_its_head_and_a_short_one_whole(pair: Pair, long: bool) -> None:
    """By what the head says, or where it does not say."""
    data = b"x" * (300_000 if long else 200_000)

    async def work(exchange: Exchange) -> None:
        exchange.answer(Response(200, SIDECAR, data))

    pair.server.work = work
    got: list[Response | UpstreamAnswer | UpstreamError] = []
    pair.upstream.begin(*pair.server.address, post(), 30.0, 30.0, 250_000, got.append)
    await until(lambda: bool(got))
    (answer,) = got
    if not long:
        assert isinstance(answer, Response)
        assert answer.body == data
        return
    assert not isinstance(answer, (Response, UpstreamError))
    assert answer.length == len(data)
    body = b""
    while piece := await answer.stream.read():
        body += piece
    assert body == data


async def test_each_request_has_its_own_deadline(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is over ends alone, and at the service too."""
    held = Held(pair)
    short = asyncio.create_task(pair.send(post(body=b"short"), timeout=5))
    long = asyncio.create_task(pair.send(post(body=b"long"), timeout=50))
    await held.come(2)
    StillTime(monkeypatch).passes(6)
    with pytest.raises(UpstreamTimeout):
        await short
    monkeypatch.undo()
    await until(lambda: held.left == [b"short"])
    held.exchanges[b"long"].answer(Response(200, SIDECAR, b"late"))
    assert (await long).body == b"late"


async def test_a_stream_that_stands_still_is_cut_after_its_own_time(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`idle` counts while a piece is waited for."""
    never = asyncio.Event()

    async def work(exchange: Exchange) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"first"
            await never.wait()

        exchange.answer(Response(200, SIDECAR, stream=pieces()))

    pair.server.work = work
    time_ = StillTime(monkeypatch)
    answer = await sending.open_answer(pair.upstream, *pair.server.address, post(), timeout=30, idle=3)
    assert await answer.stream.read() == b"first"
    time_.passes(100)  # nobody waits
    reading = asyncio.create_task(answer.stream.read())  # type: ignore[arg-type]
    await asyncio.sleep(0)
    time_.passes(4)
    with pytest.raises(UpstreamTimeout):
        await reading
    monkeypatch.undo()
    await until(lambda: not pair.far._exchanges)


async def test_interim_answers_and_answers_to_head(pair: Pair) -> None:
    """Each request's own interim answers; HEAD has a length and no body."""

    async def work(exchange: Exchange) -> None:
        exchange.interim(103, ((b"link", exchange.request.body),))
        exchange.answer(Response(200, SIDECAR, b"a body that HEAD leaves out"))

    pair.server.work = work
    seen: list[tuple[int, Any]] = []
    request = post(body=b"</a>")
    request.interim = lambda status, fields: seen.append((status, fields))
    await pair.send(request)
    assert seen == [(103, ((b"link", b"</a>"),))]
    answer = await pair.send(Request("HEAD", "/p", (), b""))
    assert (answer.body, answer.length) == (b"", 27)
    opened = await sending.open_answer(
        pair.upstream, *pair.server.address, Request("HEAD", "/p", (), b""), timeout=30
    )
    assert (opened.whole(), opened.length) == (b"", 27)


async def test_fields_of_the_answer_alone_come_with_it(pair: Pair) -> None:
    """`lines` of an answer, and fields that concern one connection, which are dropped."""

    async def work(exchange: Exchange) -> None:
        answer = Response(200, (*SIDECAR, (b"connection", b"close")), b"")
        answer.lines = b"x-request-id: 7\r\n" + NOT_ADMITTED + b": 1\r\n"
        exchange.answer(answer)

    pair.server.work = work
    for _ in range(3):
        answer = await pair.send()
        assert answer.headers == (*SIDECAR, (b"x-request-id", b"7"), (NOT_ADMITTED, b"1"))


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (post(body=b"x" * 1001), 413),
        (post(body=b"x" * 100_000), 413),
        (post(headers=((b"x-long", b"x" * 70_000),)), 431),
        (post(headers=((b"x-forwarded-for", b"1.2.3.4, " * 8000),)), 431),
        (post("/" + "x" * 70_000), 414),
        (post(headers=tuple((b"x-%d" % index, b"") for index in range(200))), 431),
        (post(headers=((b"x-real-ip", b"a"),) * 201), 431),
        (post(headers=((b"host", b"b"),)), 400),
        (Request("POST", "/p", ((b"host", b"a b"),), b""), 400),
        (post("http://a/p"), 400),
    ],
)
async def test_what_the_front_refuses_is_refused_and_others_go_on(
    pair: Pair, request_: Request, status: int
) -> None:
    """By the front's own limits and rules, for that request alone."""
    held = Held(pair)
    other = asyncio.create_task(pair.send(post(body=b"other")))
    await held.come(1)
    assert (await pair.send(request_)).status == status
    held.exchanges[b"other"].answer(Response(200, SIDECAR, b"fine"))
    assert (await other).body == b"fine"
    assert len(pair.server.exchanges) == 1
    assert not pair.far._exchanges


async def test_an_answer_whose_head_does_not_fit_is_a_bad_answer_and_others_go_on(pair: Pair) -> None:
    """A model's head may have a MiB by HTTP/1.1; what says so is no fault of the sidecar's."""
    held = Held(pair)
    both = [asyncio.create_task(pair.send(post(body=body))) for body in (b"long", b"other")]
    await held.come(2)
    held.exchanges[b"long"].answer(Response(200, ((b"x-long", b"x" * frames.MAX_PAYLOAD),), b""))
    held.exchanges[b"other"].answer(Response(200, SIDECAR, b"fine"))
    long, other = await asyncio.gather(*both)
    assert (long.status, b"bad_answer" in long.body) == (502, True)
    assert other.body == b"fine"


@pytest.mark.parametrize("size", [1001, 100_000])
async def test_a_body_that_is_too_large_is_refused_by_its_id(pair: Pair, size: int) -> None:
    """As over HTTP/1.1: who looks for it in a log finds it."""
    answer = await pair.send(post(body=b"x" * size, number=7))
    assert answer.status == 413
    assert b'"request_id":"7"' in answer.body


@pytest.mark.parametrize(
    "request_",
    [
        post("/a b"),
        post("/a\r\nx: y"),
        post(headers=((b"x", b"a\r\nb: c"),)),
        post(headers=((b"x-request-id", b"a\nb"),)),
        post(headers=((b"X y", b"a"),)),
    ],
)
async def test_what_cannot_be_sent_is_an_error_of_that_request(pair: Pair, request_: Request) -> None:
    """It never leaves, and the connection stays."""
    with pytest.raises(UpstreamError, match="cannot be sent"):
        await pair.send(request_)
    assert (await pair.send()).body == b"body"
    assert len(pair.server.exchanges) == 1


async def test_a_service_that_fails_and_an_answer_that_cannot_be_sent_are_500(pair: Pair) -> None:
    """And end no other's request."""
    answers: list[Response] = [
        Response(200, ((b"x", b"a\r\nb: c"),), b""),
        Response(99, (), b""),
        Response(200, SIDECAR, b"good"),
    ]

    def service(exchange: Exchange) -> None:
        if not answers:
            raise RuntimeError("a mistake")
        exchange.answer(answers.pop(0))

    pair.far._service = service
    assert [(await pair.send()).status for _ in range(4)] == [500, 500, 200, 500]


async def test_an_answer_that_breaks_off_is_a_lost_connection_to_its_reader_alone(pair: Pair) -> None:
    """No part is taken for the whole."""

    async def work(exchange: Exchange) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"part"
            raise RuntimeError("broken")

        stream = pieces() if exchange.request.target == "/broken" else None
        exchange.answer(Response(200, SIDECAR, b"" if stream else b"ok", stream=stream))

    pair.server.work = work
    with pytest.raises(ConnectionLost):
        await pair.send(post("/broken"))
    assert (await pair.send()).body == b"ok"
    assert not pair.far._exchanges


async def test_a_request_body_that_ends_early_ends_its_exchange(pair: Pair) -> None:
    """The service's reader gets ClientGone; the sender gets what ended its stream."""
    given = Given(b"abc", ClientGone("the client left"))
    with pytest.raises(ClientGone):
        await sending.open_answer(
            pair.upstream, *pair.server.address, Request("POST", "/s", (), b"", stream=given), timeout=30
        )
    await until(lambda: len(pair.server.errors) == 1)
    assert pair.server.gone == 1
    assert (await pair.send()).body == b"body"


@pytest.mark.parametrize("status", [200, 400])
async def test_a_short_answer_that_begins_before_a_whole_body_has_come_is_whole(
    pair: Pair, status: int
) -> None:
    """As over HTTP/1.1: who reads on gets the rest, and then ends its answer."""
    pair.server.streamed = lambda request: True

    async def work(exchange: Exchange) -> None:
        stream = exchange.request.stream
        assert stream is not None

        async def out() -> AsyncIterator[bytes]:
            size = len(await stream.read())
            yield b"begun"
            while piece := await stream.read():
                size += len(piece)
            yield b"%8d" % size

        exchange.answer(Response(status, SIDECAR, stream=out(), length=13))

    pair.server.work = work
    opened: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    pair.upstream.begin(*pair.server.address, post(body=bytes(900_000)), 30, 30, 65536, opened.set_result)
    answer = await opened
    assert isinstance(answer, Response)
    assert (answer.status, answer.body) == (status, b"begun  900000")


async def test_an_answer_before_the_end_of_its_request_ends_the_sending(pair: Pair) -> None:
    """The rest is not sent, and the service that reads on gets an error."""

    async def work(exchange: Exchange) -> None:
        stream = exchange.request.stream
        exchange.answer(Response(403, SIDECAR, b"no"))
        if stream is not None:
            await stream.read()

    pair.server.work = work
    given = Given(b"abc", asyncio.Event())
    answer = await sending.open_answer(
        pair.upstream, *pair.server.address, Request("POST", "/s", (), b"", stream=given), timeout=30
    )
    assert (answer.status, answer.whole()) == (403, b"no")
    assert (await pair.send()).status == 403
