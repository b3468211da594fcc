"""The httptools upstream before a server that answers byte by byte what a test says."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from penstock_wire.http import (
    ALL_BYTES,
    AnswerUnreadable,
    ConnectFailed,
    ConnectionLost,
    ConnectTimeout,
    GivenUp,
    Request,
    Response,
    SenderFailed,
    UpstreamError,
    UpstreamTimeout,
    sending,
)
from penstock_wire.http.body import read_whole
from penstock_wire.http.client.answer import Answer
from penstock_wire.http.client.pool import H1Upstream
from tests.support.clocks.still_time import StillTime
from tests.support.clocks.waiting import SECONDS, until
from tests.support.http.stream_peer import Scripted, Wire, scripted

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Peer(Scripted):
    """A server that gives each request the next of its answers; None hangs, `CLOSE` in one ends it."""

    CLOSE = b"<close>"

    def __init__(self) -> None:
        super().__init__()
        self.scripts = [self.play]
        self.answers: list[bytes | None] = []
        self.requests: list[bytes] = []
        self.hanging = asyncio.Event()

    async def more(self, data: bytes) -> None:
        """Send more on the connection that was made last."""
        await self.wire.send(data)

    async def play(self, wire: Wire) -> None:
        self.wire = wire
        while True:
            head = await wire.head()
            length = next(
                (int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:")), 0
            )
            self.requests.append(head + await wire.reader.readexactly(length))
            answer = self.answers.pop(0)
            if answer is None:
                self.hanging.set()
                await wire.gone()
                return
            await wire.send(answer.replace(self.CLOSE, b""))
            if answer.endswith(self.CLOSE):
                return


@pytest_asyncio.fixture
async def peer() -> AsyncIterator[Peer]:
    async with scripted(Peer()) as peer:
        yield peer


async def send(upstream: H1Upstream, peer: Peer, method: str = "POST", *, timeout: float = 30) -> Response:
    request = Request(method=method, target="/a%2Fb?c", headers=((b"x-a", b"1"),), body=b"body")
    return await sending.send(upstream, "127.0.0.1", peer.port, request, timeout=timeout)


async def test_a_request_goes_out_as_it_is_and_a_good_connection_is_used_again(
    upstream: H1Upstream, peer: Peer
) -> None:
    """Target and fields byte for byte, a length, a host; the second request takes the same connection."""
    peer.answers = [OK, OK]
    assert (await send(upstream, peer)).body == b"ok"
    assert (await send(upstream, peer)).body == b"ok"
    assert peer.connections == 1
    assert peer.requests[0] == (
        b"POST /a%%2Fb?c HTTP/1.1\r\nx-a: 1\r\nhost: 127.0.0.1:%d\r\ncontent-length: 4\r\n\r\nbody"
        % peer.port
    )


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nok" + Peer.CLOSE, ConnectionLost),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nok" + Peer.CLOSE, ConnectionLost),
        (b"HTTP/1.1 200 OK\r\nconte" + Peer.CLOSE, ConnectionLost),
        (Peer.CLOSE, ConnectionLost),
        (b"garbage\r\n\r\n", AnswerUnreadable),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n", AnswerUnreadable),
        (b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n", AnswerUnreadable),
        (None, UpstreamTimeout),
    ],
)
async def test_a_broken_exchange_fails_and_its_connection_is_never_used_again(
    upstream: H1Upstream,
    peer: Peer,
    monkeypatch: pytest.MonkeyPatch,
    answer: bytes | None,
    error: type[UpstreamError],
) -> None:
    """Cut, garbage, two framings, a switch of protocols, silence: the right error; the next one is good."""
    time_ = StillTime(monkeypatch)
    peer.answers = [answer, OK]
    asked = asyncio.create_task(send(upstream, peer))
    if answer is None:
        await peer.hanging.wait()
        time_.passes(31)
    with pytest.raises(error):
        await asked
    assert (await send(upstream, peer)).body == b"ok"
    assert peer.connections == 2


async def test_a_new_connection_is_told_before_its_answer_and_a_kept_one_is_not(
    upstream: H1Upstream, peer: Peer
) -> None:
    """A waiter for the server's return is called at once, however long the answer takes."""
    peer.answers = [OK, None, None]
    opened: list[str] = []
    request = Request(method="GET", target="/", headers=(), body=b"")

    async def ask(word: str) -> None:
        await sending.open_answer(
            upstream, "127.0.0.1", peer.port, request, timeout=30, connected=lambda: opened.append(word)
        )

    await ask("first")
    kept = asyncio.create_task(ask("kept"))
    await peer.hanging.wait()
    fresh = asyncio.create_task(ask("fresh"))
    await until(lambda: opened == ["first", "fresh"])
    assert not fresh.done()
    for task in (kept, fresh):
        task.cancel()
    await asyncio.gather(kept, fresh, return_exceptions=True)


async def test_a_caller_that_leaves_does_not_poison_the_pool(upstream: H1Upstream, peer: Peer) -> None:
    """A cancelled exchange closes its connection; the next request gets its own answer on a new one."""
    peer.answers = [None, OK]
    task = asyncio.ensure_future(send(upstream, peer))
    await asyncio.wait_for(peer.hanging.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await send(upstream, peer)).body == b"ok"
    assert peer.connections == 2


LONG = b"x" * 999_999  # more than one read, so that most of it goes around the parser


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 999999\r\n\r\n" + LONG, LONG),
        (b"HTTP/1.1 200 OK\r\n\r\nto the end" + Peer.CLOSE, b"to the end"),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.0 200 OK\r\nconnection: close, keep-alive\r\ncontent-length: 2\r\n\r\nok", b"ok"),
        (OK + b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison", b"ok"),
        (OK + b"HTTP/1.1 204 No Content\r\n\r\n", b"ok"),
    ],
    ids=[
        "close",
        "close, a long body",
        "to the end",
        "HTTP/1.0",
        "HTTP/1.0, kept and closed",
        "another answer",
        "another without a body",
    ],
)
async def test_an_answer_that_ends_its_connection_is_whole_and_the_next_takes_another(
    upstream: H1Upstream, peer: Peer, answer: bytes, body: bytes
) -> None:
    """`close`, a body to the end of the stream, HTTP/1.0, and bytes without a request."""
    peer.answers = [answer, OK]
    assert (await send(upstream, peer)).body == body
    assert (await send(upstream, peer)).body == b"ok"
    assert peer.connections == 2


async def test_a_connection_that_the_peer_closed_while_idle_is_not_used(
    upstream: H1Upstream, peer: Peer
) -> None:
    """A pooled connection that was closed meanwhile is dropped."""
    peer.answers = [OK + Peer.CLOSE, OK]
    await send(upstream, peer)
    async with asyncio.timeout(30):
        while upstream._open:  # noqa: ASYNC110 - the peer's close has no event here
            await asyncio.sleep(0.01)
    assert (await send(upstream, peer)).body == b"ok"
    assert peer.connections == 2


async def test_interim_answers_and_bodiless_ones_are_read(upstream: H1Upstream, peer: Peer) -> None:
    """100 and 103 are skipped; HEAD and 204 do not have a body."""
    peer.answers = [
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK,
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n",
    ]
    first = await send(upstream, peer)
    assert (first.status, first.body) == (200, b"ok")
    assert not any(name == b"link" for name, _ in first.headers)
    assert (await send(upstream, peer)).status == 204
    assert (await send(upstream, peer, "HEAD")).body == b""


async def test_no_connection_is_said_to_be_surely_not_executed(upstream: H1Upstream) -> None:
    """Nobody listens there."""
    with pytest.raises(ConnectFailed):
        await sending.send(upstream, "127.0.0.1", 1, Request("GET", "/", (), b""), timeout=30)


async def test_a_connection_that_ends_before_it_is_used_carried_nothing(
    upstream: H1Upstream, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As uvloop can tell of its end before the task that waited for it goes on: nothing was executed."""
    loop = asyncio.get_running_loop()
    make: Any = loop.create_connection

    async def ended(*given: Any, **named: Any) -> Any:
        made = await make(*given, **named)
        made[0].abort()
        return made

    monkeypatch.setattr(loop, "create_connection", ended)
    with pytest.raises(ConnectFailed, match="as soon as it was made"):
        await send(upstream, peer)
    assert not peer.requests
    assert not upstream._open


async def test_no_connection_in_the_time_there_was_is_told_apart_from_a_refusal(upstream: H1Upstream) -> None:
    """Its line of new connections is full, so that a further one is neither made nor refused."""
    with contextlib.ExitStack() as opened:
        full = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            other = opened.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(full.getsockname())
        with pytest.raises(ConnectTimeout):
            await sending.send(upstream, *full.getsockname(), Request("GET", "/", (), b""), timeout=0.2)
    assert not upstream._open


async def test_a_peer_that_is_gone_leaves_nothing_behind(upstream: H1Upstream, peer: Peer) -> None:
    """Pods come and go: neither their connections nor the last answers on them are kept."""
    peer.answers = [OK, OK + Peer.CLOSE]
    await send(upstream, peer)
    assert upstream._idle
    (connection,) = upstream._open
    assert not connection._body
    await send(upstream, peer)
    async with asyncio.timeout(30):
        while upstream._open:  # noqa: ASYNC110 - the peer's close has no event here
            await asyncio.sleep(0.01)
    assert not upstream._idle


async def test_closing_fails_what_is_under_way(upstream: H1Upstream, peer: Peer) -> None:
    """The waiter for an answer then gets an error."""
    peer.answers = [None]
    task = asyncio.ensure_future(send(upstream, peer))
    await asyncio.wait_for(peer.hanging.wait(), 30)
    await upstream.close()
    with pytest.raises(ConnectionLost):
        await asyncio.wait_for(task, 30)


async def test_an_answers_head_is_bounded(upstream: H1Upstream, peer: Peer) -> None:
    """A model that never ends its head is cut long before memory is full."""
    peer.answers = [b"HTTP/1.1 200 OK\r\nx-a: " + b"y" * 2_000_000]
    with pytest.raises(AnswerUnreadable):
        await send(upstream, peer)


class Told:
    """What `begin` called back with."""

    def __init__(self) -> None:
        self.answers: list[Response | UpstreamError] = []
        self.came = asyncio.Event()

    def __call__(self, answer: Response | UpstreamError) -> None:
        self.answers.append(answer)
        self.came.set()

    async def answer(self) -> Response | UpstreamError:
        async with asyncio.timeout(SECONDS):
            await self.came.wait()
        (answer,) = self.answers
        return answer


@pytest.mark.parametrize("whole", [ALL_BYTES, 1000])
class TestWithoutATask:
    """`begin` of short answers."""

    REQUEST = Request(method="POST", target="/p", headers=(), body=b"body")

    @pytest.fixture(autouse=True)
    def _whole(self, whole: int) -> None:
        self.whole = whole

    def begin(self, upstream: H1Upstream, peer: Peer, seconds: float, sink: Any) -> Any:
        return upstream.begin("127.0.0.1", peer.port, self.REQUEST, seconds, seconds, self.whole, sink)

    async def test_the_answer_is_called_back(self, upstream: H1Upstream, peer: Peer):
        peer.answers = [OK, OK]
        for _ in ("on a new connection", "on that which is idle"):
            sink = Told()
            self.begin(upstream, peer, 30, sink)
            assert sink.answers == []
            answer = await sink.answer()
            assert isinstance(answer, Response)
            assert (answer.status, answer.body) == (200, b"ok")
            assert peer.connections == 1

    async def test_what_is_given_up_before_its_connection_is_called_back_and_not_sent(
        self, upstream: H1Upstream, peer: Peer
    ):
        """Before the connecting has begun, and by the end of the upstream."""
        given_up, closed = Told(), Told()
        self.begin(upstream, peer, 30, given_up)()
        self.begin(upstream, peer, 30, closed)
        assert given_up.answers == []
        await upstream.close()
        assert type(await given_up.answer()) is type(await closed.answer()) is GivenUp
        assert peer.requests == []

    async def test_what_fails_at_the_new_connection_is_called_back_as_the_senders_fault(
        self, upstream: H1Upstream, peer: Peer
    ):
        sink, fault = Told(), RuntimeError("the sender's")

        def connected() -> None:
            raise fault

        where = "127.0.0.1", peer.port
        upstream.begin(*where, self.REQUEST, 30, 30, self.whole, sink, connected)
        failed = await sink.answer()
        assert isinstance(failed, SenderFailed)
        assert failed.error is fault
        assert peer.requests == []

    async def test_whoever_is_called_back_may_begin_the_next_on_the_same_connection(
        self, upstream: H1Upstream, peer: Peer
    ):
        peer.answers = [OK, OK, OK]
        await send(upstream, peer)
        last = Told()

        def again(answer: Response | UpstreamError) -> None:
            self.begin(upstream, peer, 30, last)

        self.begin(upstream, peer, 30, again)
        assert isinstance(await last.answer(), Response)
        assert (peer.connections, len(peer.requests)) == (1, 3)

    @pytest.mark.parametrize(
        ("answer", "expected"),
        [
            (Peer.CLOSE, ConnectionLost),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok" + Peer.CLOSE, ConnectionLost),
            (b"nonsense\r\n\r\n", AnswerUnreadable),
            (None, UpstreamTimeout),
        ],
    )
    async def test_a_failure_is_called_back_and_its_connection_not_used_again(
        self, upstream: H1Upstream, peer: Peer, answer: bytes | None, expected: type[UpstreamError]
    ):
        peer.answers = [OK, answer, OK]
        await send(upstream, peer)
        sink = Told()
        seconds = 0.05 if expected is UpstreamTimeout else 30
        self.begin(upstream, peer, seconds, sink)
        assert type(await sink.answer()) is expected
        assert (await send(upstream, peer)).body == b"ok"
        assert peer.connections == 2
        assert len(sink.answers) == 1

    async def test_what_is_given_up_is_told_and_its_connection_not_used_again(
        self, upstream: H1Upstream, peer: Peer
    ):
        peer.answers = [OK, None, OK]
        await send(upstream, peer)
        sink = Told()
        give_up = self.begin(upstream, peer, 30, sink)
        await peer.hanging.wait()
        give_up()
        assert sink.answers == []
        assert type(await sink.answer()) is GivenUp
        give_up()
        assert (await send(upstream, peer)).body == b"ok"
        assert (peer.connections, len(sink.answers)) == (2, 1)

    async def test_giving_up_what_is_over_leaves_the_next_exchange_alone(
        self, upstream: H1Upstream, peer: Peer
    ):
        peer.answers = [OK, OK, OK]
        await send(upstream, peer)
        first, second = Told(), Told()
        give_up = self.begin(upstream, peer, 30, first)
        await first.answer()
        self.begin(upstream, peer, 30, second)
        give_up()
        assert isinstance(await second.answer(), Response)


class TestLongAnswersWithoutATask:
    """`begin` of what is to be read as it comes."""

    def begin(self, upstream: H1Upstream, peer: Peer, sink: Any, method: str = "GET") -> Any:
        request = Request(method=method, target="/p", headers=(), body=b"")
        return upstream.begin("127.0.0.1", peer.port, request, 30, 30, 4, sink)

    @pytest.mark.parametrize(
        "answer",
        [
            b"HTTP/1.1 200 OK\r\n\r\nall of it" + Peer.CLOSE,
            b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nall of it",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nall of it\r\n0\r\n\r\n",
        ],
        ids=["to the end", "length", "chunked"],
    )
    async def test_what_came_whole_is_given_whole_else_its_beginning(
        self, upstream: H1Upstream, peer: Peer, answer: bytes
    ) -> None:
        peer.answers = [OK, answer]
        await send(upstream, peer)
        sink = Told()
        self.begin(upstream, peer, sink)
        last = await sink.answer()
        assert not isinstance(last, UpstreamError)
        body = last.body if isinstance(last, Response) else await read_whole(last.stream, 100)
        assert (last.status, body) == (200, b"all of it")

    async def test_the_beginning_is_given_before_the_end_has_come_and_the_connection_is_used_again(
        self, upstream: H1Upstream, peer: Peer
    ) -> None:
        """What the connection carries behind it is the next answer."""
        peer.answers = [OK, b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nall"]
        await send(upstream, peer)
        sink = Told()
        give_up = self.begin(upstream, peer, sink)
        answer = await sink.answer()
        assert isinstance(answer, Answer)
        assert (answer.length, answer.whole(), await answer.stream.read()) == (9, None, b"all")
        give_up()  # its answer has begun: it is given up by `abort`
        await peer.more(b" of it")
        assert (await answer.stream.read(), await answer.stream.read()) == (b" of it", b"")
        peer.answers = [OK]
        assert (await send(upstream, peer)).body == b"ok"
        assert (peer.connections, len(sink.answers)) == (1, 1)

    async def test_who_reads_no_further_ends_the_connection(self, upstream: H1Upstream, peer: Peer) -> None:
        peer.answers = [OK, b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nall", OK]
        await send(upstream, peer)
        sink = Told()
        self.begin(upstream, peer, sink)
        answer = await sink.answer()
        assert isinstance(answer, Answer)
        answer.abort()
        assert (await send(upstream, peer)).body == b"ok"
        assert peer.connections == 2


async def test_begin_takes_a_body_that_ends_with_the_connection(upstream: H1Upstream, peer: Peer):
    peer.answers = [OK, b"HTTP/1.1 200 OK\r\n\r\nall of it" + Peer.CLOSE]
    await send(upstream, peer)
    sink = Told()
    upstream.begin("127.0.0.1", peer.port, TestWithoutATask.REQUEST, 30, 30, ALL_BYTES, sink)
    answer = await sink.answer()
    assert isinstance(answer, Response)
    assert answer.body == b"all of it"


async def test_what_cannot_be_sent_costs_no_connection(upstream: H1Upstream, peer: Peer):
    peer.answers = [OK, OK]
    await send(upstream, peer)
    bad = Request(method="POST", target="/a b", headers=(), body=b"")
    with pytest.raises(UpstreamError):
        upstream.begin("127.0.0.1", peer.port, bad, 30, 30, ALL_BYTES, Told())
    with pytest.raises(UpstreamError):
        await sending.send(upstream, "127.0.0.1", peer.port, bad, timeout=30)
    await send(upstream, peer)
    assert peer.connections == 1


SHARED = ((b"x-a", b"1"), (b"host", b"h"))


@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize("target", ["/p", "/q"])
@pytest.mark.parametrize("own", [b"1", b"2"])
async def test_requests_that_share_fields_differ_in_all_else(
    upstream: H1Upstream, peer: Peer, method: str, target: str, own: bytes
) -> None:
    """The very same `headers`, whatever was sent with them before."""
    peer.answers = [OK]
    request = Request(method, target, SHARED, b"", lines=b"x-id: %b\r\n" % own)
    await sending.send(upstream, "127.0.0.1", peer.port, request, timeout=30)
    sent = b"%b %b HTTP/1.1\r\nx-a: 1\r\nhost: h\r\nx-id: %b\r\ncontent-length: 0\r\n\r\n"
    assert peer.requests == [sent % (method.encode(), target.encode(), own)]
