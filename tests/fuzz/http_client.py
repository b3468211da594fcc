"""A deterministic fuzzer of the upstream: any bytes as a model's answer, in one process, without sockets.

`python -m tests.fuzz.http_client SECONDS [SEED]` runs it as long as wanted; a case that breaks an invariant
is printed with its seed. What must hold of any bytes, cut in any way:

- no exception leaves the protocol;
- each exchange ends exactly once, with an answer or a failure, at the latest when the connection does;
- an answer is what the strict reading of `h1_reference` finds: status, fields, body;
- a connection goes back to the pool only behind an answer that allows it and has nothing behind it but blank
  lines, which any reader skips; the next exchange on it then gets its own answer;
- how the bytes were cut, and whether the body was a stream, changes none of this (blank lines behind an
  answer may cost its connection or not).
"""

from __future__ import annotations

import asyncio
import random
from typing import cast

from penstock_wire.headers import Headers, end_to_end
from penstock_wire.http import ALL_BYTES, AT_HEAD, Request, Response, UpstreamAnswer, UpstreamError
from penstock_wire.http.client.connection import Connection
from penstock_wire.http.head_cache import HeadCache
from penstock_wire.http.memory import MemoryBound
from tests.fuzz import h1_reference
from tests.fuzz.http_server import PIECES, Pipe, cut, fuzz, make

GOOD = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ngood"
CORPUS = [
    GOOD,
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        b'a;x="y z"\r\n0123456789\r\n00\r\nTrailer: 1\r\n\r\n'
    ),
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + GOOD,
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b'HTTP/1.1 304 Not Modified\r\nETag: "a"\r\nContent-Length: 9\r\n\r\n',
    b"HTTP/1.1 500 No\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno",
    b"HTTP/1.0 200 OK\r\n\r\nto the end",
    b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n",
    (
        b"HTTP/1.1 200 OK\r\nX-A: 1\r\nConnection: x-a\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n"
        b"Content-Length: 1\r\n\r\nx"
    ),
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
]
DAMAGE = [
    *PIECES,
    *(b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 A\r\n\r\n", b"HTTP/1.1 204 A\r\n\r\n", b"000", b"600"),
    *(b"Content-Length: 4\r\n", b"Content-Length:\r\n 4\r\n", GOOD),
]
Outcome = tuple[int, Headers, bytes] | str


class Pool:
    """Keeps what comes back."""

    def __init__(self, known: HeadCache | None = None) -> None:
        self.idle: list[Connection] = []
        self.known = HeadCache() if known is None else known
        self.memory = MemoryBound()

    def put(self, connection: Connection) -> None:
        self.idle.append(connection)

    def forget(self, connection: Connection) -> None:
        self.idle = [each for each in self.idle if each is not connection]

    def silent(self, connection: Connection) -> None:
        raise AssertionError("nothing is silent here")


class Wire(Pipe):
    """A transport for an upstream."""

    def set_write_buffer_limits(self, high: int) -> None:
        """Nothing is buffered."""


class Run:
    """One connection with one exchange, whose answer is fed in pieces; then its end, or another exchange.

    Args:
        known: heads of answers that came before; None for none.
    """

    def __init__(
        self, pieces: list[bytes], method: str, *, streamed: bool, known: HeadCache | None = None
    ) -> None:
        self.pool, self.pipe = Pool(known), Wire()
        self.connection = Connection(self.pool, ("a", 1))
        self.connection.connection_made(cast("asyncio.Transport", self.pipe))
        self._pieces, self._method, self._streamed = pieces, method, streamed
        self._ended: list[Response | UpstreamAnswer | UpstreamError] = []

    async def outcome(self) -> tuple[Outcome, bool]:
        """The result of the exchange, and whether its connection may serve another one (it was tried)."""
        self._begin()
        for piece in self._pieces:
            if self.pipe.closed:
                break
            self.connection.data_received(piece)
        pooled = bool(self.pool.idle) and not self.pipe.closed
        if pooled:
            await self._check_next()
        elif not self.pipe.closed:
            self.connection.eof_received()
        self.connection.connection_lost(None)
        await asyncio.sleep(0)
        assert len(self._ended) == 1, "not one end"
        return await _read(self._ended[0]), pooled

    def _begin(self) -> None:
        request = Request(self._method, "/", (), b"")
        whole_bytes = AT_HEAD if self._streamed else ALL_BYTES
        self.connection.begin(request, 1000.0, 1000.0, whole_bytes, self._ended.append)

    async def _check_next(self) -> None:
        """The pool hands the connection out again."""
        self.pool.idle.clear()
        second: list[Response | UpstreamAnswer | UpstreamError] = []
        request = Request("GET", "/", (), b"")
        self.connection.begin(request, 1000.0, 1000.0, ALL_BYTES, second.append)
        self.connection.data_received(GOOD)
        assert await _read(*second) == (200, (), b"good"), "the next exchange got something else"
        assert self.pool.idle == [self.connection]


async def _read(answer: Response | UpstreamAnswer | UpstreamError) -> Outcome:
    if isinstance(answer, UpstreamError):
        return "failed"
    if isinstance(answer, Response):
        return answer.status, answer.headers, answer.body
    try:
        body = b""
        while piece := await answer.stream.read():
            body += piece
    except UpstreamError:
        return "failed"
    return answer.status, answer.headers, body


async def check(data: bytes, dice: random.Random) -> Outcome:
    """Assert what the module's docstring says of one answer; returns what the exchange got."""
    method = dice.choice(("GET", "GET", "HEAD"))
    outcome, pooled = await Run([data], method, streamed=False).outcome()
    _agree(data, method, outcome, pooled)
    for streamed in (False, True):
        pieces = [data] if dice.random() < 0.3 else cut(data, dice)
        other, again = await Run(pieces, method, streamed=streamed).outcome()
        assert other == outcome, f"cut otherwise: {other} for {outcome}"
        assert again == pooled or data.endswith((b"\r", b"\n")), f"cut otherwise: pooled {again}"
        _agree(data, method, other, again)
    known = HeadCache()
    for heads in (known, known, await _warm()):
        other, again = await Run([data], method, streamed=False, known=heads).outcome()
        assert other == outcome, f"with other heads before: {other} for {outcome}"
        assert again == pooled, f"with other heads before: pooled {again}"
    other, _ = await Run(cut(data, dice), method, streamed=False, known=known).outcome()
    assert other == outcome, f"with other heads before, cut otherwise: {other} for {outcome}"
    return outcome


_WARM = HeadCache()


async def _warm() -> HeadCache:
    """The head cache after the corpus."""
    if not len(_WARM):
        for answer in CORPUS:
            await Run([answer], "GET", streamed=False, known=_WARM).outcome()
    return _WARM


def _agree(data: bytes, method: str, outcome: Outcome, pooled: bool) -> None:
    if outcome == "failed":
        assert not pooled
        return  # unreadable, incomplete, or stricter than the grammar
    read = h1_reference.answer(data, method, ended=not pooled)
    assert outcome == (read.status, end_to_end(read.fields), read.body), f"{outcome} for {read}"
    assert not pooled or (read.keep and not data[read.end :].strip(b"\r\n")), f"pooled behind {read}"


def run_seed(seed: int) -> None:
    """One case."""
    dice = random.Random(seed)
    data = make(dice, CORPUS, 2, DAMAGE)
    try:
        asyncio.run(check(data, dice))
    except BaseException as error:
        raise AssertionError(f"seed {seed}: {data!r}") from error


if __name__ == "__main__":
    fuzz(run_seed)
