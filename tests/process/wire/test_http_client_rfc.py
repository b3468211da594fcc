"""What RFC 9110 and 9112 say that a client or a gateway MUST do with answers, one row each.

What it must do with requests is below, and, in the server's role, in test_http_server_rfc.py. Rows that need
more than bytes in, bytes out stand in test_http_client.py (persistence, pipelining, retries: 9112 9) and
test_http_client_tunnels.py (9110 7.8), test_http_client_streams.py (9112 7, 8).
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from penstock_wire.http import AnswerUnreadable, ConnectionLost, Request, UpstreamError, sending
from penstock_wire.http.client.pool import H1Upstream
from tests.support.http.answer_rules import GOOD, INCOMPLETE, READ, REFUSED
from tests.support.http.stream_peer import Scripted, Wire, scripted


class Peer(Scripted):
    """A server that gives the first request on its first connection the test's bytes, all others `GOOD`."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts = [self.first, self.good]
        self.answer = b""
        self.end = False
        self.heads: list[bytes] = []

    async def first(self, wire: Wire) -> None:
        self.heads.append(await wire.head())
        await wire.send(self.answer)
        if not self.end:
            await self.good(wire)

    async def good(self, wire: Wire) -> None:
        while True:
            self.heads.append(await wire.head())
            await wire.send(GOOD)


@pytest_asyncio.fixture
async def peer() -> AsyncIterator[Peer]:
    async with scripted(Peer()) as peer:
        yield peer


def request(method: str = "GET", headers: tuple[tuple[bytes, bytes], ...] = (), body: bytes = b"") -> Request:
    return Request(method=method, target="/", headers=headers, body=body)


async def check_next_is_good(upstream: H1Upstream, peer: Peer, connections: int) -> None:
    answer = await sending.send(upstream, "127.0.0.1", peer.port, request(), timeout=30)
    assert (answer.status, answer.body, peer.connections) == (200, b"ok", connections)


@pytest.mark.parametrize("rule", REFUSED)
async def test_an_answer_that_must_not_be_forwarded_is_none(
    upstream: H1Upstream, peer: Peer, rule: str
) -> None:
    """Named by the rule's section: the answer is discarded (the caller gets 502), its connection closed.

    Where the RFC lets a gateway choose between mending an answer and discarding it (5.1, 5.2, 9110 5.5), a
    model that says such a thing is broken, and its users are better told.
    """
    peer.answer = REFUSED[rule]
    with pytest.raises(AnswerUnreadable):
        await sending.send(upstream, "127.0.0.1", peer.port, request(), timeout=10)
    await check_next_is_good(upstream, peer, 2)


@pytest.mark.parametrize("rule", INCOMPLETE)
async def test_an_incomplete_answer_is_never_taken_for_whole(
    upstream: H1Upstream, peer: Peer, rule: str
) -> None:
    """The rule's section is its name: the server ends its connection there."""
    peer.answer, peer.end = INCOMPLETE[rule], True
    with pytest.raises(ConnectionLost):
        await sending.send(upstream, "127.0.0.1", peer.port, request(), timeout=30)
    await check_next_is_good(upstream, peer, 2)


@pytest.mark.parametrize("rule", READ)
async def test_an_answer_is_read_as_it_is_meant(upstream: H1Upstream, peer: Peer, rule: str) -> None:
    """The rule's section is its name; a connection is used again where, and only where, it may be."""
    method, peer.answer, expected, connections = READ[rule]
    answer = await sending.send(upstream, "127.0.0.1", peer.port, request(method), timeout=30)
    assert (answer.status, list(answer.headers), answer.body) == expected
    await check_next_is_good(upstream, peer, connections)


async def test_a_body_without_any_length_ends_with_its_connection(upstream: H1Upstream, peer: Peer) -> None:
    """9112 6.3, the last rule; and that connection is over."""
    peer.answer, peer.end = b"HTTP/1.1 200 OK\r\n\r\nall of it", True
    assert (await sending.send(upstream, "127.0.0.1", peer.port, request(), timeout=30)).body == b"all of it"
    await check_next_is_good(upstream, peer, 2)


async def test_a_switch_to_another_protocol_than_asked_for_is_none(upstream: H1Upstream, peer: Peer) -> None:
    """9110 7.8: a server may only switch to what the client named."""
    peer.answer = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
    asked = Request(method="GET", target="/", headers=(), body=b"", upgrade=b"websocket")
    with pytest.raises(AnswerUnreadable):
        await sending.open_answer(upstream, "127.0.0.1", peer.port, asked, timeout=30)
    await check_next_is_good(upstream, peer, 2)


SENT: dict[str, tuple[Request, list[bytes], list[bytes]]] = {
    "9112 3.2: a Host, once": (
        request(headers=((b"host", b"a:1"),)),
        [b"host: a:1"],
        [],
    ),
    "9110 7.6.1: fields of one connection are not forwarded": (
        request(headers=((b"keep-alive", b"5"), (b"proxy-connection", b"x"), (b"upgrade", b"h2c"))),
        [],
        [b"keep-alive", b"proxy-connection", b"upgrade", b"connection"],
    ),
    "9110 10.1.4: TE is for the next server only": (
        request(headers=((b"te", b"trailers"),)),
        [],
        [b"te", b"connection"],
    ),
    "9110 6.6.2: trailers that are not sent are not announced": (
        request("POST", ((b"trailer", b"x"),), b"a"),
        [],
        [b"trailer"],
    ),
    "9110 10.1.1: nobody here waits for 100": (
        request("POST", ((b"expect", b"100-continue"),), b"a"),
        [b"content-length: 1"],
        [b"expect"],
    ),
    "9110 8.6: a body has its true length": (
        request("POST", ((b"content-length", b"7"),), b"abc"),
        [b"content-length: 3"],
        [],
    ),
    "9110 8.6: an empty body of a method that has one is told": (
        request("POST"),
        [b"content-length: 0"],
        [b"transfer-encoding"],
    ),
    "9110 8.6: no body of a method that needs none is not": (
        request("GET"),
        [],
        [b"content-length", b"transfer-encoding"],
    ),
    "9112 6.1: no coding beside a length": (
        request("POST", ((b"transfer-encoding", b"chunked"),), b"abc"),
        [b"content-length: 3"],
        [b"transfer-encoding"],
    ),
    "9110 5.3: values of one name keep their order": (
        request(headers=((b"a", b"2"), (b"b", b"x"), (b"a", b"1"))),
        [b"a: 2", b"b: x", b"a: 1"],
        [],
    ),
}


@pytest.mark.parametrize("rule", SENT)
async def test_a_request_is_sent_as_a_gateway_must(upstream: H1Upstream, peer: Peer, rule: str) -> None:
    """The rule's section is its name: these lines are there, in this order and once, those fields are not."""
    asked, there, absent = SENT[rule]
    peer.answer = GOOD
    await sending.send(upstream, "127.0.0.1", peer.port, asked, timeout=30)
    start, *lines = peer.heads[0].removesuffix(b"\r\n\r\n").split(b"\r\n")
    assert start == asked.method.encode() + b" / HTTP/1.1"
    names = [line.partition(b":")[0] for line in lines]
    assert names.count(b"host") == 1
    assert [line for line in lines if line in there] == there
    assert not set(absent) & set(names)
    assert names.count(b"content-length") <= 1


UNSENDABLE: dict[str, Request] = {
    "9112 3: a space in the target": Request("GET", "/a b", (), b""),
    "9112 3: a line in the target": Request("GET", "/\r\nx:y", (), b""),
    "9112 3: a space in the method": Request("GET /a", "/", (), b""),
    "9110 5.5: a line in a value": request(headers=((b"a", b"b\r\nc: d"),)),
    "9110 5.5: a bare CR in a value": request(headers=((b"a", b"b\rc"),)),
    "9110 5.5: NUL in a value": request(headers=((b"a", b"b\0c"),)),
    "9110 5.5: DEL in a value": request(headers=((b"a", b"b\x7fc"),)),
    "9112 5.1: a line in a name": request(headers=((b"a: b\r\nc", b"d"),)),
}


@pytest.mark.parametrize("rule", UNSENDABLE)
async def test_a_request_that_would_be_two_is_not_sent(upstream: H1Upstream, peer: Peer, rule: str) -> None:
    """The rule's section is its name; nothing reaches the server, and the connection stays good."""
    peer.answer = GOOD
    await sending.send(upstream, "127.0.0.1", peer.port, request(), timeout=30)
    with pytest.raises(UpstreamError):
        await sending.send(upstream, "127.0.0.1", peer.port, UNSENDABLE[rule], timeout=30)
    assert len(peer.heads) == 1
    await check_next_is_good(upstream, peer, 1)
