"""What both Protocols of `wire.http` promise, over real loopback connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Self

import pytest

from penstock_wire.headers import get
from penstock_wire.http import (
    AnswerUnreadable,
    ConnectFailed,
    ConnectionLost,
    Front,
    Request,
    Response,
    Upstream,
    UpstreamTimeout,
    sending,
)
from penstock_wire.http.client.pool import H1Upstream
from penstock_wire.http.server.server import H1Front
from tests.support.clocks.waiting import until
from tests.support.http.front_promises import OK, Client, Echo, FrontPromises, Served, post


@pytest.fixture
async def echo() -> Echo:
    return Echo()


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    made = H1Front(max_body_bytes=100_000)
    yield made
    await made.close(0.5)


class Opened:
    """Sends by `open`, and reads the answer's stream to its end: the same must be true of that."""

    def __init__(self) -> None:
        self._plain = H1Upstream()  # no base: a compiled class has no interpreted ones below it

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    async def send(self, host: str, port: int, request: Request, **more: Any) -> Response:
        answer = await sending.open_answer(self._plain, host, port, request, **more)
        pieces = []
        try:
            while piece := await answer.stream.read():
                pieces.append(piece)
        finally:
            answer.abort()
        return Response(answer.status, answer.headers, b"".join(pieces))


@pytest.fixture(params=[H1Upstream, Opened])
async def upstream(request: pytest.FixtureRequest) -> AsyncIterator[Upstream]:
    made: Upstream = request.param()
    yield made
    await made.close()


@pytest.fixture
async def served(front: Front, echo: Echo) -> Served:
    listener = await front.listen("127.0.0.1", 0, echo)
    return Served(listener.address, echo)


class TestFront(FrontPromises):
    async def test_a_body_that_is_too_large_is_refused_by_its_length(self, served: Served):
        sent = b"POST /p HTTP/1.1\r\nhost: x\r\ncontent-length: 100001\r\n\r\n"
        await self.check_problem(served, sent, b"413", b"too_large")

    async def test_closing_keepalive_ends_connections_after_their_answers_and_can_be_taken_back(
        self, front: Front, echo: Echo
    ):
        listener = await front.listen("127.0.0.1", 0, echo)
        idle, busy = await Client.to(listener.address), await Client.to(listener.address)
        idle.send(post())
        await idle.answer()
        echo.gate.clear()
        busy.send(post())
        await until(lambda: len(echo.seen) == 2)
        front.close_keepalive(idle=False)
        echo.gate.set()
        head, _ = await busy.answer()
        assert b"connection: close" in head.lower()
        assert await busy.rest() == b""
        # The idle one was left alone: a client may be sending on it just now.
        idle.send(post())
        head, _ = await idle.answer()
        assert b"connection: close" in head.lower()
        assert await idle.rest() == b""
        front.open_keepalive()
        again = await Client.to(listener.address)
        for _ in range(2):
            again.send(post())
            head, _ = await again.answer()
            assert b"connection: close" not in head.lower()
        front.close_keepalive()
        assert await again.rest() == b""
        for client in (idle, busy, again):
            await client.close()

    async def test_close_waits_for_the_answer_under_way_and_refuses_new_connections(
        self, front: Front, echo: Echo
    ):
        listener = await front.listen("127.0.0.1", 0, echo)
        echo.gate.clear()
        address = listener.address
        client = await Client.to(address)
        client.send(post())
        await until(lambda: len(echo.seen) == 1)
        closing = asyncio.create_task(front.close(10))
        for _ in range(2):  # the front's turn, and its listener's
            await asyncio.sleep(0)
        with pytest.raises(OSError):
            await Client.to(address)
        echo.gate.set()
        assert (await client.answer())[1] == b"/p|abc"
        await closing
        await client.close()

    async def test_close_without_grace_does_not_wait(self, front: Front, echo: Echo):
        listener = await front.listen("127.0.0.1", 0, echo)
        echo.gate.clear()
        client = await Client.to(listener.address)
        client.send(post())
        await until(lambda: len(echo.seen) == 1)
        await asyncio.wait_for(front.close(0), 30)
        await until(lambda: echo.cancelled == 1)
        await client.close()


class Peer:
    """A server that answers each request with the next of its scripted bytes."""

    def __init__(self, *script: bytes | None) -> None:
        self.script = list(script)
        self.heads: list[bytes] = []
        self.connections = 0
        self.hold = asyncio.Event()  # set: it answers
        self.hold.set()

    async def __aenter__(self) -> Self:
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.address = self.server.sockets[0].getsockname()[:2]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        await self.server.wait_closed()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self.script:
                head = await reader.readuntil(b"\r\n\r\n")
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        await reader.readexactly(int(line.split(b":")[1]))
                self.heads.append(head)
                answer = self.script.pop(0)
                await self.hold.wait()
                if answer is None:
                    await reader.read()
                    return
                writer.write(answer)
                await writer.drain()
                if b"content-length: 2" not in answer:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


GOOD = OK + b"content-length: 2\r\nx-a: 1\r\nconnection: keep-alive\r\n\r\nok"


def request(target: str = "/p?x=%2F", body: bytes = b"abc") -> Request:
    return Request(method="POST", target=target, headers=((b"x-b", b"2"), (b"host", b"me")), body=body)


class TestUpstream:
    async def test_a_request_goes_out_as_it_is_and_the_connection_is_used_again(self, upstream: Upstream):
        async with Peer(GOOD, GOOD) as peer:
            for target in ("/a%2Fb//c?x=%20&y", "/q?"):
                answer = await sending.send(upstream, *peer.address, request(target), timeout=30)
                assert (answer.status, answer.body) == (200, b"ok")
                assert get(answer.headers, b"x-a") == b"1"
                assert get(answer.headers, b"connection") is None
            assert peer.connections == 1
            assert [head.split(b" ")[1] for head in peer.heads] == [b"/a%2Fb//c?x=%20&y", b"/q?"]
            assert peer.heads[0].lower().count(b"host: ") == 1
            assert b"host: me" in peer.heads[0].lower()

    async def test_who_asks_is_told_of_a_new_connection_and_may_refuse_it(self, upstream: Upstream):
        """Nothing is sent on it then, and nothing later."""
        count = 0

        def connected() -> None:
            nonlocal count
            count += 1
            if count == 1:
                raise ConnectFailed("not this one")

        async with Peer(GOOD, GOOD) as peer:
            with pytest.raises(ConnectFailed, match="not this one"):
                await sending.send(upstream, *peer.address, request("/a"), timeout=30, connected=connected)
            for target in ("/b", "/c"):
                answer = await sending.send(
                    upstream, *peer.address, request(target), timeout=30, connected=connected
                )
                assert (answer.status, answer.body) == (200, b"ok")
            assert (count, peer.connections) == (2, 2)
            assert [head.split(b" ")[1] for head in peer.heads] == [b"/b", b"/c"]

    async def test_what_was_connected_before_a_server_was_retired_is_not_used_again(self, upstream: Upstream):
        """Neither what is idle, nor what has a request under way, which is answered."""
        async with Peer(GOOD, GOOD, GOOD, GOOD) as peer:
            await sending.send(upstream, *peer.address, request("/a"), timeout=30)
            upstream.retire(*peer.address)
            await sending.send(upstream, *peer.address, request("/b"), timeout=30)
            assert peer.connections == 2
            peer.hold.clear()
            under_way = asyncio.create_task(sending.send(upstream, *peer.address, request("/c"), timeout=30))
            await until(lambda: len(peer.heads) == 3)
            upstream.retire(*peer.address)
            peer.hold.set()
            assert (await under_way).body == b"ok"
            assert peer.connections == 2
            await sending.send(upstream, *peer.address, request("/d"), timeout=30)
            assert peer.connections == 3

    async def test_a_connection_that_was_just_made_when_its_server_was_retired_is_not_kept(
        self, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
    ):
        """Its request goes on: the connection had not been reported to it yet."""
        loop = asyncio.get_running_loop()
        made = loop.create_connection

        async def create(*arguments: Any, **more: Any) -> Any:
            connected = await made(*arguments, **more)
            if not retired:
                retired.append(upstream.retire(*peer.address))  # type: ignore[func-returns-value]
            return connected

        retired: list[None] = []
        async with Peer(GOOD, GOOD, GOOD) as peer:
            monkeypatch.setattr(loop, "create_connection", create)
            for target, connections in (("/a", 1), ("/b", 2), ("/c", 2)):
                await sending.send(upstream, *peer.address, request(target), timeout=30)
                assert peer.connections == connections

    async def test_a_refused_connection_is_surely_not_executed(self, upstream: Upstream):
        async with Peer() as peer:
            address = peer.address
        with pytest.raises(ConnectFailed):
            await sending.send(upstream, *address, request(), timeout=30)

    @pytest.mark.parametrize(
        ("answer", "error"),
        [
            (b"", ConnectionLost),
            (OK + b"content-length: 10\r\n\r\nabc", ConnectionLost),
            (OK + b"transfer-encoding: chunked\r\n\r\n5\r\nab", ConnectionLost),
            (b"\x16\x03\x01 no http\r\n\r\n", AnswerUnreadable),
            (OK + b"content-le", ConnectionLost),
        ],
    )
    async def test_a_broken_answer_is_never_asked_again_and_its_connection_never_used(
        self, upstream: Upstream, answer: bytes, error: type[Exception]
    ):
        async with Peer(GOOD, answer, GOOD) as peer:
            await sending.send(upstream, *peer.address, request(), timeout=30)
            with pytest.raises(error):
                await sending.send(upstream, *peer.address, request(), timeout=30)
            # Not sent a second time behind our back: that is for the caller to say.
            assert len(peer.heads) == 2
            assert (await sending.send(upstream, *peer.address, request(), timeout=30)).body == b"ok"
            assert peer.connections == 2

    async def test_a_timed_out_or_abandoned_connection_is_never_used_again(self, upstream: Upstream):
        async with Peer(GOOD, None, None, GOOD) as peer:
            # NB: on a connection that is there: a tenth of a second need not be enough for a new one.
            await sending.send(upstream, *peer.address, request(), timeout=30)
            with pytest.raises(UpstreamTimeout):
                await sending.send(upstream, *peer.address, request(), timeout=0.1)
            await until(lambda: len(peer.heads) == 2)
            abandoned = asyncio.create_task(sending.send(upstream, *peer.address, request(), timeout=30))
            await until(lambda: len(peer.heads) == 3)
            abandoned.cancel()
            with pytest.raises(asyncio.CancelledError):
                await abandoned
            assert (await sending.send(upstream, *peer.address, request(), timeout=30)).body == b"ok"
            assert peer.connections == 3

    async def test_errors_and_redirects_come_back_as_they_are(self, upstream: Upstream):
        moved = b"HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 2\r\n\r\nno"
        async with Peer(moved) as peer:
            answer = await sending.send(upstream, *peer.address, request(), timeout=30)
            assert (answer.status, answer.body) == (302, b"no")
            assert get(answer.headers, b"location") == b"/x"
