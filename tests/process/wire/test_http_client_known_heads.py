"""Heads of answers that came before are taken without the parser: nothing else is ever taken for one of them.

Each row is a head that is known by now, and then another server's answer that is like it. Whatever a client
makes of that answer which has never seen the first one, one that knows it makes of it, too.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from penstock_wire.http import Request, Response, UpstreamAnswer, UpstreamError, sending
from penstock_wire.http.client.pool import H1Upstream
from tests.support.clocks.waiting import SECONDS
from tests.support.http.stream_peer import Scripted, Wire, scripted

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n"
KNOWN = HEAD + b"\r\nok"
EMPTY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
WITHIN = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(KNOWN), KNOWN)
FIRST = b"HTTP/1.1 200 OK\r\nx: first\r\ncontent-length: 0\r\n\r\n"
"""Gives a server a connection."""
AFTER = b"HTTP/1.1 200 OK\r\nx: after\r\ncontent-length: 5\r\n\r\nafter"
CHUNKS = b"2\r\nok\r\n0\r\n\r\n"


def instead(old: bytes, new: bytes) -> bytes:
    """The known answer with one thing changed."""
    assert KNOWN.count(old) == 1
    return KNOWN.replace(old, new)


LIKE: dict[str, tuple[bytes, bytes]] = {
    "the very same": (KNOWN, KNOWN),
    "another body of that length": (KNOWN, instead(b"\r\nok", b"\r\nno")),
    "another length of as many digits": (KNOWN, instead(b"2\r\n\r\nok", b"3\r\n\r\nabc")),
    "a longer body": (KNOWN, KNOWN + b"!"),
    "two answers at once": (KNOWN, KNOWN + KNOWN),
    "another answer behind one without a body": (EMPTY, EMPTY + KNOWN),
    "a body that is a known head": (KNOWN, WITHIN),
    "a known head whose body was one": (WITHIN, KNOWN),
    "names in another case": (KNOWN, instead(b"content-length", b"Content-Length")),
    "a value in another case": (KNOWN, instead(b"text/plain", b"TEXT/plain")),
    "no space before a length": (KNOWN, instead(b"length: 2", b"length:2")),
    "space behind a length": (KNOWN, instead(b"length: 2", b"length: 2 ")),
    "space before the colon of a length": (KNOWN, instead(b"length: 2", b"length : 2")),
    "a zero before a length": (KNOWN, instead(b"length: 2", b"length: 02")),
    "a sign before a length": (KNOWN, instead(b"length: 2", b"length: +2")),
    "the same length twice": (KNOWN, instead(b"\r\n\r\n", b"\r\ncontent-length: 2\r\n\r\n")),
    "two lengths": (KNOWN, instead(b"\r\n\r\n", b"\r\ncontent-length: 3\r\n\r\n")),
    "a length and chunks": (KNOWN, HEAD + b"transfer-encoding: chunked\r\n\r\n" + CHUNKS),
    "chunks": (
        KNOWN,
        b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n" + CHUNKS,
    ),
    "another field": (KNOWN, HEAD + b"x: y\r\n\r\nok"),
    "fields in another order": (
        KNOWN,
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-type: text/plain\r\n\r\nok",
    ),
    "a folded field": (KNOWN, HEAD + b" folded\r\n\r\nok"),
    "a bare LF": (KNOWN, instead(b"plain\r\n", b"plain\n")),
    "NUL in a value": (KNOWN, instead(b"text/plain", b"text\0plain")),
    "close": (KNOWN, HEAD + b"connection: close\r\n\r\nok"),
    "keep-alive": (HEAD + b"connection: keep-alive\r\n\r\nok", HEAD + b"connection: keep-alive, x\r\n\r\nok"),
    "a field that Connection names": (KNOWN, HEAD + b"connection: x\r\nx: y\r\n\r\nok"),
    "an offer to upgrade": (KNOWN, HEAD + b"connection: upgrade\r\nupgrade: h2c\r\n\r\nok"),
    "HTTP/1.0": (KNOWN, instead(b"HTTP/1.1", b"HTTP/1.0")),
    "another status": (KNOWN, instead(b"200 OK", b"201 OK")),
    "204": (KNOWN, instead(b"200 OK", b"204 OK")),
    "304": (KNOWN, instead(b"200 OK", b"304 OK")),
    "404": (KNOWN, instead(b"200 OK", b"404 OK")),
    "another reason": (KNOWN, instead(b"200 OK", b"200 ok")),
    "an empty line before": (KNOWN, b"\r\n" + KNOWN),
    "100 before": (KNOWN, b"HTTP/1.1 100 Continue\r\n\r\n" + KNOWN),
    "103 before": (KNOWN, b"HTTP/1.1 103 Early Hints\r\nlink: <a>\r\n\r\n" + KNOWN),
    "103 with a length before": (KNOWN, b"HTTP/1.1 103 Early Hints\r\ncontent-length: 2\r\n\r\n" + KNOWN),
    "its head alone": (KNOWN, HEAD + b"\r\n"),
    "a part of its body": (KNOWN, KNOWN[:-1]),
    "a part of its head": (KNOWN, KNOWN[:-4]),
}


class Peer(Scripted):
    """A server that gives the next of its answers, and ends the connection where that is to be the last."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts = [self.play]
        self.answers: collections.deque[bytes] = collections.deque()
        self.last: list[bytes] = []
        """Behind these a connection ends."""

    async def play(self, wire: Wire) -> None:
        while True:
            await wire.head()
            answer = self.answers.popleft()
            await wire.send(answer)
            if answer in self.last:
                return


@pytest_asyncio.fixture
async def peers() -> AsyncIterator[tuple[Peer, Peer]]:
    async with scripted(Peer()) as one, scripted(Peer()) as other:
        yield one, other


Outcome = type[Exception] | tuple[int, tuple[tuple[bytes, bytes], ...], bytes]


async def ask(
    upstream: H1Upstream, peer: Peer, answer: bytes, *, at_once: bool, method: str = "GET"
) -> Outcome:
    """What becomes of an answer; asked for with a callback where a connection is there, as a router does."""
    peer.answers.append(answer)
    request, where = Request(method, "/", (), b""), ("127.0.0.1", peer.port)
    try:
        if not at_once:
            whole = await sending.send(upstream, *where, request, timeout=SECONDS)
            return whole.status, whole.headers, whole.body
        opened: asyncio.Future[Response | UpstreamAnswer | UpstreamError]
        opened = asyncio.get_running_loop().create_future()
        upstream.begin(*where, request, SECONDS, SECONDS, 1000, opened.set_result)
        got = await opened
        if isinstance(got, UpstreamError):
            raise got
        if isinstance(got, Response):
            return got.status, got.headers, got.body
        pieces = []
        while piece := await got.stream.read():
            pieces.append(piece)
        return got.status, got.headers, b"".join(pieces)
    except UpstreamError as error:
        return type(error)


async def meet(upstream: H1Upstream, peer: Peer) -> None:
    """Have a connection to a server."""
    status, *_ = await ask(upstream, peer, FIRST, at_once=False)  # type: ignore[misc]
    assert status == 200


async def played(
    peer: Peer, answer: bytes, *, at_once: bool, method: str, known: bytes, by: Peer
) -> list[Outcome]:
    """What a client makes of an answer, and of the one behind it; empty `known`: it has seen none before."""
    upstream = H1Upstream()
    try:
        if known:
            await meet(upstream, by)
            for _ in range(3):
                assert await ask(upstream, by, known, at_once=at_once) == (200, *_parts(known))
            assert len(upstream.known) == 2
        await meet(upstream, peer)
        outcomes = [await ask(upstream, peer, answer, at_once=at_once, method=method)]
        return [*outcomes, await ask(upstream, peer, AFTER, at_once=False)]
    finally:
        await upstream.close()


def _parts(answer: bytes) -> tuple[tuple[tuple[bytes, bytes], ...], bytes]:
    """The fields and the body of a known answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = [line.split(b": ") for line in head.split(b"\r\n")[1:]]
    own = (b"content-length", b"connection")
    return tuple([(name, value) for name, value in lines if name not in own]), body


@pytest.mark.parametrize("at_once", [False, True], ids=["waited for", "at once"])
@pytest.mark.parametrize("row", LIKE)
async def test_an_answer_is_what_it_is_whatever_is_known(
    peers: tuple[Peer, Peer], row: str, at_once: bool
) -> None:
    """Its status, its fields, its body, its error; and the next request gets its own answer."""
    known, answer = LIKE[row]
    by, peer = peers
    peer.last = [part for part in (HEAD + b"\r\n", KNOWN[:-1], KNOWN[:-4]) if part == answer]
    expected = await played(peer, answer, at_once=at_once, method="GET", known=b"", by=by)
    found = await played(peer, answer, at_once=at_once, method="GET", known=known, by=by)
    assert found == expected
    assert found[1] == (200, ((b"x", b"after"),), b"after")


@pytest.mark.parametrize("at_once", [False, True], ids=["waited for", "at once"])
@pytest.mark.parametrize(
    "answer", [HEAD + b"\r\n", KNOWN], ids=["without a body", "with one that it must not have"]
)
async def test_an_answer_to_head_has_no_body_though_its_head_is_known(
    peers: tuple[Peer, Peer], answer: bytes, at_once: bool
) -> None:
    by, peer = peers
    found = await played(peer, answer, at_once=at_once, method="HEAD", known=KNOWN, by=by)
    assert found[0] == (200, ((b"content-type", b"text/plain"),), b"")
    assert found[1] == (200, ((b"x", b"after"),), b"after")
