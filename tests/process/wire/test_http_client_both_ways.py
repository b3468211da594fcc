"""`H1Upstream.open`: an answer that begins before the request's body has ended."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

from penstock_wire.http import ClientGone, ConnectionLost, Request, UpstreamTimeout, sending
from penstock_wire.http.client.pool import H1Upstream
from tests.support.clocks.waiting import SECONDS
from tests.support.http.stream_peer import Scripted, Wire, says
from tests.support.http.upstream_exchange import CHUNKED, OK, Given, ask, check_pool, get, good, rest


async def echo(wire: Wire) -> None:
    """Answer at once, and each piece of a chunked body as it comes."""
    await wire.head()
    await wire.send(CHUNKED)
    size = -1
    while size:
        line = await wire.reader.readuntil(b"\r\n")
        size = int(line, 16)
        await wire.send(line + await wire.reader.readexactly(size + 2))
    await good(wire)


async def short(wire: Wire) -> None:
    """A whole answer, however much of the body is still to come."""
    await wire.head()
    await wire.send(OK)
    await wire.gone()


async def test_an_answer_that_begins_early_lets_the_body_go_on(upstream: H1Upstream, peer: Scripted) -> None:
    """Each piece is answered before the next is given, and the connection is used again."""
    first, second = asyncio.Event(), asyncio.Event()
    peer.scripts = [echo]
    answer = await ask(upstream, peer, get("POST", stream=Given(first, b"one", second, b"two")))
    assert answer.status == 200
    for gate, piece in ((first, b"one"), (second, b"two")):
        gate.set()
        assert await asyncio.wait_for(answer.stream.read(), SECONDS) == piece
    assert await rest(answer) == b""
    await check_pool(upstream, peer, 1)


async def test_more_goes_either_way_than_both_sides_hold(upstream: H1Upstream, peer: Scripted) -> None:
    """Back-pressure of one direction never stops the other for good."""
    pieces = [bytes([number]) * 500_000 for number in range(40)]
    peer.scripts = [echo]
    answer = await ask(upstream, peer, get("POST", stream=Given(*pieces)))
    assert await asyncio.wait_for(rest(answer), SECONDS) == b"".join(pieces)
    await check_pool(upstream, peer, 1)


async def test_the_end_of_the_answer_ends_the_sending(upstream: H1Upstream, peer: Scripted) -> None:
    """The body's rest would be read as the next request: the connection is not used again."""
    peer.scripts = [short, good]
    answer = await ask(upstream, peer, get("POST", stream=Given(b"a", asyncio.Event())))
    assert (answer.status, await rest(answer)) == (200, b"ok")
    await check_pool(upstream, peer, 2)


async def test_a_body_that_breaks_is_told_in_the_answer(upstream: H1Upstream, peer: Scripted) -> None:
    """What was answered before is there; no end is made up, to neither side."""
    gate = asyncio.Event()
    peer.scripts = [echo, good]
    body = Given(b"one", gate, ClientGone("left"))
    answer = await ask(upstream, peer, get("POST", stream=body))
    assert await answer.stream.read() == b"one"
    gate.set()
    with pytest.raises(ClientGone):
        await rest(answer)
    await check_pool(upstream, peer, 2)


async def test_a_peer_may_be_silent_while_nothing_is_sent_to_it(upstream: H1Upstream, peer: Scripted) -> None:
    """It may have nothing to answer; once the body has ended, it is the peer that is late."""
    gate = asyncio.Event()
    mute = says(CHUNKED, then=Wire.gone)
    peer.scripts = [mute, mute, good]
    answer = await ask(upstream, peer, get("POST", stream=Given(gate)), idle=0.5)
    waiting = asyncio.create_task(answer.stream.read())
    other = await ask(upstream, peer, idle=0.5)
    with pytest.raises(UpstreamTimeout):
        await other.stream.read()  # so as much has passed
    assert not waiting.done()
    gate.set()
    with pytest.raises(UpstreamTimeout, match="nothing more"):
        await waiting
    await check_pool(upstream, peer, 3)


async def test_a_peer_that_neither_takes_nor_answers_is_told(upstream: H1Upstream, peer: Scripted) -> None:
    body = Given()
    body.endless = bytes(256 * 1024)

    async def stuck(wire: Wire) -> None:
        await wire.head()
        wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await wire.send(CHUNKED)
        await asyncio.sleep(3600)

    peer.scripts = [stuck, good]
    answer = await ask(upstream, peer, get("POST", stream=body), idle=0.5)
    with pytest.raises(UpstreamTimeout, match="nothing more"):
        await answer.stream.read()
    await check_pool(upstream, peer, 2)


def answer_unread(listener: socket.socket, answer: bytes) -> None:
    """Answer a request when its head is there, and close with the rest unread, as a server on hyper does."""
    connection, _ = listener.accept()
    connection.settimeout(SECONDS)
    head = b""
    while b"\r\n\r\n" not in head:
        head += connection.recv(1)
    connection.sendall(answer)
    connection.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(SECONDS)
        yield listener


ANSWERS = {
    "413": (b"HTTP/1.1 413 Payload Too Large\r\ncontent-length: 5\r\n\r\nlarge", 413, b"large"),
    "200": (OK, 200, b"ok"),
    "in chunks": (CHUNKED + b"2\r\nok\r\n0\r\n\r\n", 200, b"ok"),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_to_a_body_that_the_server_does_not_read_is_there(
    upstream: H1Upstream, listener: socket.socket, name: str
) -> None:
    """The write that meets the reset comes before the answer is read, and ends the transport."""
    answer, status, body = ANSWERS[name]
    server = threading.Thread(target=answer_unread, args=(listener, answer))
    server.start()

    class Body:
        """Its second piece comes when the server has answered and closed; the loop has read nothing of it."""

        pieces = 0

        async def read(self) -> bytes:
            self.pieces += 1
            if self.pieces == 2:
                server.join(SECONDS)
            if self.pieces > 2:
                await asyncio.Event().wait()
            return b"a" * 100_000

    request = Request("POST", "/", (), b"", stream=Body())
    got = await sending.open_answer(
        upstream, "127.0.0.1", listener.getsockname()[1], request, timeout=SECONDS, idle=SECONDS
    )
    assert (got.status, await rest(got)) == (status, body)


async def test_an_answer_that_is_cut_by_a_reset_is_no_answer(
    upstream: H1Upstream, listener: socket.socket
) -> None:
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok"
    server = asyncio.create_task(asyncio.to_thread(answer_unread, listener, answer))
    with pytest.raises(ConnectionLost, match="before a complete answer"):
        await sending.send(
            upstream,
            "127.0.0.1",
            listener.getsockname()[1],
            Request("POST", "/", (), b"a" * 3_000_000),
            timeout=SECONDS,
        )
    await server


async def test_a_connection_on_which_a_long_body_was_refused_is_not_used_again(
    upstream: H1Upstream, peer: Scripted
) -> None:
    """Many servers then close it, without a sign in the answer; Penstock's own say what they do."""

    async def refuse(wire: Wire) -> None:
        while True:
            await wire.head()
            await wire.reader.readexactly(100_000)
            await wire.send(ANSWERS["413"][0])

    async def refuse_ours(wire: Wire) -> None:
        while True:
            await wire.head()
            await wire.reader.readexactly(100_000)
            await wire.send(b"HTTP/1.1 413 X\r\nx-penstock-reason: too_large\r\ncontent-length: 0\r\n\r\n")

    peer.scripts = [refuse, refuse, refuse_ours]
    for connections in (1, 2, 3, 3):
        request = Request("POST", "/", (), b"a" * 100_000)
        assert (await sending.send(upstream, "127.0.0.1", peer.port, request, timeout=SECONDS)).status == 413
        assert peer.connections == connections
