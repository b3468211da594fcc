"""`H1Upstream.open`: bodies that stream both ways, tunnels, and a pool that no exchange can poison."""

from __future__ import annotations

import asyncio
import select

import pytest

from penstock_wire.headers import Headers
from penstock_wire.http import (
    ALL_BYTES,
    AnswerUnreadable,
    ClientGone,
    ConnectionLost,
    Request,
    Response,
    UpstreamError,
    UpstreamTimeout,
    sending,
)
from penstock_wire.http.client.answer import HIGH_BYTES
from penstock_wire.http.client.head import MAX_HEAD_BYTES
from penstock_wire.http.client.pool import H1Upstream
from tests.support.clocks.still_time import StillTime
from tests.support.clocks.waiting import SECONDS, until
from tests.support.http.stream_peer import Scripted, Wire, says
from tests.support.http.upstream_exchange import CHUNKED, LONG, OK, Given, ask, check_pool, get, good, rest


class TestBodiesIn:
    async def test_pieces_arrive_as_they_are_sent_and_the_connection_is_used_again(
        self, upstream: H1Upstream, peer: Scripted
    ) -> None:
        """The head before the body's first piece, each piece before the next is sent."""
        go = asyncio.Event()

        async def play(wire: Wire) -> None:
            await wire.head()
            await wire.send(CHUNKED)
            for piece in (b"one", b"two"):
                await go.wait()
                go.clear()
                await wire.send(b"3\r\n" + piece + b"\r\n")
            await wire.send(b"0\r\nx-trailer: 1\r\n\r\n")
            await good(wire)

        peer.scripts = [play]
        answer = await ask(upstream, peer)
        assert (answer.status, answer.length, answer.whole()) == (200, None, None)
        for expected in (b"one", b"two"):
            go.set()
            assert await answer.stream.read() == expected
        assert await answer.stream.read() == b""
        await check_pool(upstream, peer, 1)

    async def test_a_known_length_is_told_and_large_bodies_come_whole(
        self, upstream: H1Upstream, peer: Scripted
    ) -> None:
        """What passes the parser by is the same bytes, and the next answer is read right."""
        body = bytes(range(256)) * 20_000

        async def play(wire: Wire) -> None:
            for _ in range(2):
                await wire.head()
                await wire.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body), body)
            await good(wire)

        peer.scripts = [play]
        answer = await ask(upstream, peer)
        assert answer.length == len(body)
        assert await rest(answer) == body
        assert (await sending.send(upstream, "127.0.0.1", peer.port, get(), timeout=30)).body == body
        await check_pool(upstream, peer, 1)

    async def test_an_answer_that_is_here_is_told_whole(self, upstream: H1Upstream, peer: Scripted) -> None:
        peer.scripts = [good]
        assert (await ask(upstream, peer)).whole() == b"ok"
        await check_pool(upstream, peer, 1)

    async def test_a_slow_reader_makes_the_peer_wait(self, upstream: H1Upstream, peer: Scripted) -> None:
        """However much the peer has, what is held here is bounded."""

        async def play(wire: Wire) -> None:
            await wire.head()
            await wire.send(LONG)
            while True:
                await wire.send(bytes(1_000_000))

        peer.scripts = [play, good]
        answer = await ask(upstream, peer)
        (connection,) = upstream._open
        await until(lambda: connection._paused)
        assert answer._body._buffered < HIGH_BYTES + 512 * 1024
        read = 0
        while read < 30_000_000:
            read += len(await answer.stream.read())
            assert answer._body._buffered < HIGH_BYTES + 512 * 1024
        answer.abort()
        await check_pool(upstream, peer, 2)

    async def test_bodies_that_end_with_the_connection(self, upstream: H1Upstream, peer: Scripted) -> None:
        play = says(b"HTTP/1.1 200 OK\r\n\r\nto the", b" end")
        peer.scripts = [play, good]
        answer = await ask(upstream, peer)
        assert (answer.length, await rest(answer)) == (None, b"to the end")
        await check_pool(upstream, peer, 2)

    @pytest.mark.parametrize(
        ("method", "head", "length"),
        [
            ("HEAD", b"HTTP/1.1 200 OK\r\ncontent-length: 77\r\n\r\n", 77),
            ("HEAD", CHUNKED, None),
            ("GET", b"HTTP/1.1 204 No Content\r\n\r\n", None),
            ("GET", b"HTTP/1.1 304 Not Modified\r\ncontent-length: 77\r\n\r\n", 77),
            ("GET", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", 0),
        ],
    )
    async def test_answers_without_a_body_end_at_once_and_keep_the_connection(
        self, upstream: H1Upstream, peer: Scripted, method: str, head: bytes, length: int | None
    ) -> None:
        play = says(head, then=good)
        peer.scripts = [play]
        answer = await ask(upstream, peer, get(method))
        assert (answer.length, await answer.stream.read()) == (length, b"")
        await check_pool(upstream, peer, 1)

    async def test_interim_answers_are_skipped(self, upstream: H1Upstream, peer: Scripted) -> None:
        """Whoever asks for them gets each in its turn; 100, which is about this connection, as well."""

        async def play(wire: Wire) -> None:
            await wire.head()
            await wire.send(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", b"HTTP/1.1 100 C\r\n\r\n")
            await wire.send(b"HTTP/1.1 199 Own\r\nconnection: a\r\na: 1\r\nb: 2\r\n\r\n", OK)

        async def both(wire: Wire) -> None:
            await play(wire)
            await play(wire)
            await good(wire)

        peer.scripts = [both]
        heads: list[tuple[int, Headers]] = []
        request = get()
        for interim in (None, lambda status, headers: heads.append((status, headers))):
            request.interim = interim
            answer = await ask(upstream, peer, request)
            assert (answer.status, answer.headers, await rest(answer)) == (200, (), b"ok")
        assert heads == [(103, ((b"link", b"x"),)), (100, ()), (199, ((b"b", b"2"),))]
        await check_pool(upstream, peer, 1)
        assert len(heads) == 3


class TestBroken:
    @pytest.mark.parametrize(
        ("bytes_", "error"),
        [
            (b"", ConnectionLost),
            (b"HTTP/1.1 200", ConnectionLost),
            (b"HTTP/1.1 100 C\r\n\r\n", ConnectionLost),
            (b"SSH-2.0-x\r\n\r\n", AnswerUnreadable),
            (b"\x15\x03\x01\x00\x02\x02\x46", AnswerUnreadable),
            (b"HTTP/2.0 200 OK\r\ncontent-length: 0\r\n\r\n", AnswerUnreadable),
            (b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nx", AnswerUnreadable),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok", AnswerUnreadable),
            (b"HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\nok", AnswerUnreadable),
            (b"HTTP/1.1 101 S\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n", AnswerUnreadable),
            (b"HTTP/1.1 200 OK\r\nx: " + b"y" * (MAX_HEAD_BYTES + 1000), AnswerUnreadable),
            (b"HTTP/1.1 100 Continue\r\nx: 1234567890\r\n\r\n" * 40_000, AnswerUnreadable),
        ],
        ids=[
            *("nothing", "cut", "interim only", "ssh", "tls", "version", "coding", "two lengths"),
            *("negative", "switch", "giant", "flood"),
        ],
    )
    async def test_no_answer_fails_and_its_connection_is_not_used_again(
        self, upstream: H1Upstream, peer: Scripted, bytes_: bytes, error: type[UpstreamError]
    ) -> None:
        play = says(bytes_)
        peer.scripts = [play, good]
        with pytest.raises(error) as caught:
            await ask(upstream, peer)
        assert type(caught.value) is error
        await check_pool(upstream, peer, 2)

    @pytest.mark.parametrize("how", ["reset", "half close"])
    @pytest.mark.parametrize("begun", [LONG + b"part", CHUNKED + b"4\r\npart\r\n", CHUNKED + b"9\r\npart"])
    async def test_a_body_that_breaks_off_is_told_behind_what_came(
        self, upstream: H1Upstream, peer: Scripted, begun: bytes, how: str
    ) -> None:
        """A part is never taken for the whole."""
        go = asyncio.Event()

        async def play(wire: Wire) -> None:
            await wire.head()
            await wire.send(begun)
            await go.wait()
            if how == "reset":
                wire.reset()
            else:
                wire.writer.write_eof()
                await wire.gone()

        peer.scripts = [play, good]
        answer = await ask(upstream, peer)
        assert await answer.stream.read() == b"part"
        go.set()
        for _ in range(2):
            with pytest.raises(ConnectionLost):
                await answer.stream.read()
        await check_pool(upstream, peer, 2)

    @pytest.mark.parametrize("chunk", [b"xyz\r\n", b"3\r\nabcd\r\n", b"ffffffffffffffffff\r\n", b"-1\r\n"])
    async def test_bad_chunks_are_told(self, upstream: H1Upstream, peer: Scripted, chunk: bytes) -> None:
        play = says(CHUNKED + chunk, then=Wire.gone)
        peer.scripts = [play, good]
        with pytest.raises(AnswerUnreadable):
            await rest(await ask(upstream, peer))
        await check_pool(upstream, peer, 2)

    @pytest.mark.parametrize("surplus", [b"x", OK, b"\r\n\r\n", b"\0" * 100])
    async def test_surplus_bytes_cost_the_connection_not_the_answer(
        self, upstream: H1Upstream, peer: Scripted, surplus: bytes
    ) -> None:
        """The answer counts; bytes behind it do not belong to any answer."""
        body = b"b" * 300_000
        play = says(b"HTTP/1.1 200 OK\r\ncontent-length: 300000\r\n\r\n", body + surplus, then=Wire.gone)
        short = says(OK + surplus, then=Wire.gone)
        peer.scripts = [play, short, good]
        assert await rest(await ask(upstream, peer)) == body
        assert await rest(await ask(upstream, peer)) == b"ok"
        await check_pool(upstream, peer, 3)

    async def test_surplus_bytes_while_idle_cost_the_connection(
        self, upstream: H1Upstream, peer: Scripted
    ) -> None:
        late = asyncio.Event()

        async def play(wire: Wire) -> None:
            await wire.head()
            await wire.send(OK)
            await late.wait()
            await wire.send(OK)
            await wire.gone()
            late.clear()

        peer.scripts = [play, good]
        assert await rest(await ask(upstream, peer)) == b"ok"
        late.set()
        await until(lambda: not late.is_set())
        await check_pool(upstream, peer, 2)

    async def test_an_end_that_the_loop_has_not_told_yet_is_seen_before_sending(
        self, upstream: H1Upstream, peer: Scripted, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A request must not go out on a connection that the peer has closed: it could not be sent again."""
        closed = asyncio.Event()

        async def play(wire: Wire) -> None:
            await wire.head()
            await wire.send(OK)
            await closed.wait()

        peer.scripts = [play, good]
        assert await rest(await ask(upstream, peer)) == b"ok"
        monkeypatch.setattr("penstock_wire.http.client.pool.LOOK_SECONDS", -1)
        (connection,) = upstream._open
        connection.transport.pause_reading()  # as if the loop had not come to it
        closed.set()
        poll = select.poll()
        poll.register(connection.transport.get_extra_info("socket").fileno(), select.POLLIN)
        await until(lambda: bool(poll.poll(0)))
        await check_pool(upstream, peer, 2)

    async def test_time_is_until_the_head_and_then_between_pieces(
        self, upstream: H1Upstream, peer: Scripted, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A drip may take longer than the time as a whole; silence may not."""
        time = StillTime(monkeypatch)
        drop = asyncio.Semaphore(0)
        asked = asyncio.Event()

        async def drip(wire: Wire) -> None:
            await wire.head()
            await wire.send(CHUNKED)
            for _ in range(15):
                await drop.acquire()
                await wire.send(b"1\r\nx\r\n")
            await wire.gone()

        async def silent(wire: Wire) -> None:
            await wire.head()
            asked.set()
            await wire.gone()

        async def wait(seconds: float) -> bytes:
            """Read, and let so much time pass meanwhile."""
            reading = asyncio.create_task(answer.stream.read())
            await asyncio.sleep(0)
            time.passes(seconds)
            for _ in range(5):  # so that what is due is done
                await asyncio.sleep(0)
            drop.release()
            return await reading

        peer.scripts = [drip, silent, good]
        answer = await ask(upstream, peer, timeout=1)
        for _ in range(15):
            assert await wait(0.9) == b"x"
        with pytest.raises(UpstreamTimeout):
            await wait(1.1)
        asking = asyncio.create_task(ask(upstream, peer, timeout=1))
        await asked.wait()
        time.passes(0.9)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not asking.done()
        time.passes(0.2)
        with pytest.raises(UpstreamTimeout):
            await asking
        await check_pool(upstream, peer, 3)

    async def test_who_reads_late_is_not_the_peers_fault(
        self, upstream: H1Upstream, peer: Scripted, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Time counts only while a reader waits."""
        time = StillTime(monkeypatch)
        go = asyncio.Event()

        async def play(wire: Wire) -> None:
            await wire.head()
            await wire.send(CHUNKED)
            await go.wait()
            await wire.send(b"2\r\nok\r\n0\r\n\r\n")
            await good(wire)

        peer.scripts = [play]
        answer = await ask(upstream, peer, timeout=1)
        time.passes(10)
        for _ in range(5):  # so that what is due is done
            await asyncio.sleep(0)
        go.set()
        assert await rest(answer) == b"ok"
        await check_pool(upstream, peer, 1)

    @pytest.mark.parametrize("when", ["head", "read", "aborted"])
    async def test_who_leaves_ends_the_connection_and_poisons_nothing(
        self, upstream: H1Upstream, peer: Scripted, when: str
    ) -> None:
        """The peer sees the end; the pool's next connection is another."""
        seen = asyncio.Event()
        asked = asyncio.Event()
        waits = asyncio.Event()

        async def play(wire: Wire) -> None:
            await wire.head()
            asked.set()
            if when != "head":
                await wire.send(LONG)
            await wire.gone()
            seen.set()

        peer.scripts = [play, good]

        async def use() -> None:
            answer = await ask(upstream, peer, timeout=60)  # it is not the time that ends it
            if when == "aborted":
                answer.abort()
                answer.abort()
            else:
                waits.set()
                await answer.stream.read()

        task = asyncio.create_task(use())
        await asyncio.wait_for(asked.wait(), SECONDS)
        if when != "aborted":
            if when == "read":
                await asyncio.wait_for(waits.wait(), SECONDS)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            if when == "read":
                await upstream.close()
        await asyncio.wait_for(seen.wait(), SECONDS)
        await check_pool(upstream, peer, 2)

    @pytest.mark.parametrize("upgrade", [b"", b"raw"], ids=["a stream", "a tunnel"])
    async def test_an_answer_that_crosses_with_its_caller_s_leaving_ends_with_it(
        self, upstream: H1Upstream, peer: Scripted, upgrade: bytes
    ) -> None:
        """The head comes in the turn of the loop in which who waits for it is cancelled: nobody will read on.

        The server sees that, and nothing of the answer is kept.
        """
        asked, seen = asyncio.Event(), asyncio.Event()
        head = b"HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: raw\r\n\r\n" if upgrade else CHUNKED

        async def play(wire: Wire) -> None:
            await wire.head()
            asked.set()
            await wire.gone()
            seen.set()

        peer.scripts = [play, good]
        task = asyncio.create_task(ask(upstream, peer, get(upgrade=upgrade)))
        await asyncio.wait_for(asked.wait(), SECONDS)
        (connection,) = upstream._open
        task.cancel()
        connection.data_received(head)  # type: ignore[attr-defined]
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(seen.wait(), SECONDS)
        await check_pool(upstream, peer, 2)

    async def test_a_whole_answer_that_crosses_with_its_caller_s_leaving_costs_no_connection(
        self, upstream: H1Upstream, peer: Scripted
    ) -> None:
        """It ended well; another exchange may have the connection by the time that the caller has left."""
        asked = asyncio.Event()

        async def play(wire: Wire) -> None:
            await wire.head()
            asked.set()
            await good(wire)

        peer.scripts = [play]
        task = asyncio.create_task(ask(upstream, peer))
        await asyncio.wait_for(asked.wait(), SECONDS)
        (connection,) = upstream._open
        task.cancel()
        connection.data_received(OK)  # type: ignore[attr-defined]
        came: list[object] = []
        upstream.begin("127.0.0.1", peer.port, get(), 30, 30, ALL_BYTES, came.append)
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: bool(came))
        assert isinstance(came[0], Response)
        assert came[0].body == b"ok"

    async def test_letting_go_after_the_end_harms_nobody(self, upstream: H1Upstream, peer: Scripted) -> None:
        """The connection may serve another exchange by then."""
        peer.scripts = [good]
        first = await ask(upstream, peer)
        assert await rest(first) == b"ok"
        second = asyncio.create_task(ask(upstream, peer))
        await asyncio.sleep(0)
        first.abort()
        assert await rest(await second) == b"ok"
        await check_pool(upstream, peer, 1)


class TestBodiesOut:
    async def test_a_stream_goes_out_as_it_comes(self, upstream: H1Upstream, peer: Scripted) -> None:
        """Chunked without a length, and each piece before the next is there."""
        more = asyncio.Event()
        heads: list[bytes] = []

        async def play(wire: Wire) -> None:
            heads.append(await wire.head())
            assert await wire.reader.readexactly(8) == b"3\r\none\r\n"
            more.set()
            assert await wire.chunked() == b"two"
            await wire.send(OK)
            heads.append(await wire.head())
            assert await wire.reader.readexactly(6) == b"onetwo"
            await wire.send(OK)
            await good(wire)

        peer.scripts = [play]
        answer = await ask(upstream, peer, get("POST", stream=Given(b"one", more, b"two")))
        assert await rest(answer) == b"ok"
        answer = await ask(upstream, peer, get("POST", stream=Given(b"one", b"two"), length=6))
        assert await rest(answer) == b"ok"
        assert b"transfer-encoding: chunked\r\n" in heads[0]
        assert b"content-length" not in heads[0]
        assert b"content-length: 6\r\n" in heads[1]
        assert b"transfer-encoding" not in heads[1]
        await check_pool(upstream, peer, 1)

    async def test_a_peer_that_takes_nothing_is_not_read_for(
        self, upstream: H1Upstream, peer: Scripted
    ) -> None:
        """What is not taken is not read from the stream; the time is for each piece."""
        body = Given()
        body.endless = bytes(256 * 1024)

        async def play(wire: Wire) -> None:
            await wire.head()
            wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await asyncio.sleep(3600)

        peer.scripts = [play]
        with pytest.raises(UpstreamTimeout):
            await ask(upstream, peer, get("POST", stream=body), timeout=0.5)
        assert body.read_pieces * len(body.endless) < 40_000_000

    async def test_an_early_answer_ends_the_sending(self, upstream: H1Upstream, peer: Scripted) -> None:
        """What follows would be read as the body's rest: the connection is not used again."""
        never = asyncio.Event()
        play = says(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno", then=Wire.gone)
        peer.scripts = [play, good]
        answer = await ask(upstream, peer, get("POST", stream=Given(b"a", never)))
        assert (answer.status, await rest(answer)) == (413, b"no")
        await check_pool(upstream, peer, 2)

    @pytest.mark.parametrize(
        ("pieces", "length", "error"),
        [
            ((b"a", ClientGone("left")), None, ClientGone),
            ((b"abc",), 2, UpstreamError),
            ((b"a",), 2, UpstreamError),
        ],
    )
    async def test_a_stream_that_breaks_is_never_ended_as_if_whole(
        self,
        upstream: H1Upstream,
        peer: Scripted,
        pieces: tuple[bytes | Exception, ...],
        length: int | None,
        error: type[Exception],
    ) -> None:
        ended = asyncio.Event()
        got: list[bytes] = []

        async def play(wire: Wire) -> None:
            await wire.head()
            got.append(await wire.reader.read())
            ended.set()

        peer.scripts = [play, good]
        with pytest.raises(error):
            await ask(upstream, peer, get("POST", stream=Given(*pieces), length=length))
        await asyncio.wait_for(ended.wait(), SECONDS)
        assert not got[0].endswith(b"0\r\n\r\n")
        await check_pool(upstream, peer, 2)

    @pytest.mark.parametrize(
        "request_",
        [
            Request("GET", "/a b", (), b""),
            Request("GET", "/a", ((b"x", b"1\r\ny: 2"),), b""),
            Request("GET", "/a\r\nx:y", (), b""),
            Request("GET", "/a", ((b"x", b"\0"),), b""),
        ],
    )
    async def test_what_would_be_two_is_not_sent(
        self, upstream: H1Upstream, peer: Scripted, request_: Request
    ) -> None:
        peer.scripts = [good]
        with pytest.raises(UpstreamError, match="cannot be sent"):
            await sending.send(upstream, "127.0.0.1", peer.port, request_, timeout=30)
