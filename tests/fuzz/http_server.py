"""A deterministic fuzzer of the HTTP front, in one process and without sockets.

`python -m tests.fuzz.http_server SECONDS [SEED]` runs it as long as wanted; a case that breaks an invariant
is printed with its seed. What must hold of any bytes, cut in any way:

- no exception leaves the protocol;
- each request that the service was given is answered at most once, in order;
- what was taken is what the strict reading of `h1_reference` finds: method, target, body, and where the next
  request begins;
- how the bytes were cut changes neither what was taken nor what was answered or refused;
- nor does it that heads like these, or the same, came before.
"""

from __future__ import annotations

import asyncio
import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from penstock_wire.http import Exchange, Request, Response
from penstock_wire.http.head_cache import HeadCache, RequestHead
from penstock_wire.http.server.connection import H1Connection
from penstock_wire.http.server.server import H1Front, H1Listener
from tests.fuzz import h1_reference

CORPUS = [
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"HEAD /h?x=%20 HTTP/1.1\r\nhost: a:80\r\naccept: */*\r\n\r\n",
    b"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /e HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
    b"POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    (
        b"POST /d HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        b'a;x="y z"\r\n0123456789\r\n00\r\nTrailer: 1\r\n\r\n'
    ),
    b"GET http://b/abs?q HTTP/1.1\r\nHost: a\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /u HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"GET /l HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"GET /o HTTP/1.0\r\n\r\n",
    b"PUT /z HTTP/1.1\r\nHost: [::1]:8\r\nX-A: \xc3\xbc\r\nX-B:\r\nContent-Length: 0\r\n\r\n",
]
PIECES = [
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b"\0",
        b" ",
        b"\t",
        b":",
        b",",
        b";",
        b"\r\n\r\n",
        b"\r\n ",
        b"\xff",
        b"\x0b",
        b"#",
    ),
    *(b"0\r\n\r\n", b"0", b"-1", b"+1", b"0x1", b"1 1", b"ffffffffffffffff", b"10000000000000000", b"1_0"),
    *(
        b"Content-Length: 5\r\n",
        b"Content-Length : 5\r\n",
        b"Content-Length: 5, 5\r\n",
        b"content-length:\t7 \r\n",
    ),
    *(
        b"Transfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding:\x0bchunked\r\n",
    ),
    *(b"Transfer-Encoding: chunked, identity\r\n", b"transfer-encoding: identity\r\n", b"Host: b\r\n"),
    *(
        b"Connection: close\r\n",
        b"Connection: keep-alive\r\n",
        b"Proxy-Connection: keep-alive\r\n",
        b"Upgrade: x\r\nConnection: upgrade\r\n",
    ),
    *(
        b"HTTP/1.1",
        b"HTTP/1.0",
        b"HTTP/2.0",
        b"HTTP/0.9",
        b"GET ",
        b"CONNECT a:1 ",
        b"http://",
        b"//",
        b"*",
        b"@",
    ),
    *(b"Expect: 100-continue\r\n", b"x" * 300, b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n", b"\x16\x03\x01"),
]
LIMIT = 2000
_DATE = re.compile(rb"\r\ndate: [^\r]*")


class Loop:
    """As much of an event loop as a connection asks for."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def time(self) -> float:
        return 0.0

    def turn(self) -> None:
        while self.calls:
            calls, self.calls = self.calls, []
            for call in calls:
                call()


class Pipe:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closed = False
        self.ended = False
        self.paused = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        assert not self.ended
        self.written += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else None

    def get_write_buffer_size(self) -> int:
        return 0


class Run:
    """One connection that is fed with pieces.

    Args:
        pieces: the bytes as they are received.
        later: answers are given only after the next piece was received.
    """

    def __init__(
        self, pieces: list[bytes], *, later: bool, streamed: bool, known: HeadCache | None = None
    ) -> None:
        self.taken: list[Request] = []
        self.bodies: list[bytes] = []
        self.failed: set[int] = set()
        self._open: list[tuple[int, Exchange]] = []
        self._later = later
        loop, self.pipe = Loop(), Pipe()
        front = H1Front(max_body_bytes=LIMIT)
        listener = H1Listener(front, self._serve, (lambda _: True) if streamed else None)
        if known is not None:
            listener.known = known
        self._connection = H1Connection(front, listener, cast("asyncio.AbstractEventLoop", loop))
        self._connection.connection_made(cast("asyncio.Transport", self.pipe))
        for piece in pieces:
            if self.pipe.closed:
                break
            self._connection.data_received(piece)
            self._read()
            self._answer()
            loop.turn()
        for _ in range(100):
            self._read()
            self._answer()
            loop.turn()
        self.gone = len(self._open)
        self._connection.connection_lost(None)
        loop.turn()

    def _serve(self, exchange: Exchange) -> None:
        assert not self._open, "two exchanges at a time"
        self.taken.append(exchange.request)
        self.bodies.append(exchange.request.body)
        self._open.append((len(self.taken) - 1, exchange))
        if not self._later:
            self._read()
            self._answer()

    def _read(self) -> None:
        for index, request in enumerate(self.taken):
            reader = cast("Any", request.stream)
            while reader is not None and reader._pieces:
                step = reader.read()
                try:
                    step.send(None)
                except StopIteration as stop:
                    self.bodies[index] += stop.value
            if reader is not None and reader._error:
                self.failed.add(index)

    def _answer(self) -> None:
        for index, exchange in list(self._open):
            reader = cast("Any", exchange.request.stream)
            if index in self.failed:
                self._open.remove((index, exchange))
            elif reader is None or reader.ended:
                self._open.remove((index, exchange))
                mark = b"%d" % index
                for _ in range(2):  # the second one must do nothing
                    exchange.answer(Response(200, ((b"x-index", mark),), self.bodies[index]))

    def statuses(self) -> list[tuple[int, bytes]]:
        """The answers' statuses and the indices of their requests; framing is checked on the way."""
        rest, answers = bytes(self.pipe.written), []
        while rest:
            head, end, rest = rest.partition(b"\r\n\r\n")
            assert end
            first = re.match(rb"HTTP/1\.1 ([0-9]{3}) ", head)
            assert first is not None, head
            if first[1] == b"100":
                continue
            index = re.search(rb"\r\nx-index: ([0-9]+)", head)
            length = re.search(rb"\r\ncontent-length: ([0-9]+)", head)
            number = int(index[1]) if index else -1
            if index and self.taken[number].method == "HEAD":
                length = None
            rest = rest[int(length[1]) if length else 0 :]
            answers.append((int(first[1]), index[1] if index else b""))
        return answers


def apart(data: bytes) -> list[bytes]:
    """The same bytes, each request that can be read in one piece."""
    pieces, rest = [], data
    for length in h1_reference.lengths(data):
        pieces.append(rest[:length])
        rest = rest[length:]
    return [piece for piece in (*pieces, rest) if piece]


def cut(data: bytes, dice: random.Random) -> list[bytes]:
    """The same bytes in pieces."""
    if dice.random() < 0.2:
        return [data[at : at + 1] for at in range(len(data))]
    places = sorted(dice.randrange(len(data) + 1) for _ in range(dice.randrange(1, 8)))
    parts = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
    return [piece for piece in parts if piece]


def make(
    dice: random.Random,
    corpus: Sequence[bytes] = CORPUS,
    most: int = 4,
    pieces: Sequence[bytes] = PIECES,
) -> bytes:
    """Some messages of a corpus, at most so many, damaged in some places."""
    data = bytearray(b"".join(dice.choice(corpus) for _ in range(dice.randrange(1, most + 1))))
    for _ in range(dice.choice((0, 1, 1, 2, 3, 6))):
        at = dice.randrange(len(data) + 1)
        kind = dice.randrange(5)
        if kind == 0 and at < len(data):
            data[at] = dice.randrange(256)
        elif kind == 1:
            data[at:at] = dice.choice(pieces)
        elif kind == 2:
            del data[at : at + dice.randrange(1, 6)]
        elif kind == 3:
            data[at:at] = data[at : at + dice.randrange(1, 40)]
        else:  # at a line's beginning, where it does most harm
            place = data.find(b"\r\n", at)
            data[place + 2 : place + 2] = dice.choice(pieces)
    return bytes(data) or b"\r"


def check(data: bytes, dice: random.Random) -> None:
    """Assert what the module's docstring says of one input."""
    whole = Run([data], later=False, streamed=False)
    statuses = whole.statuses()
    given = [index for _, index in statuses if index]
    assert given == [b"%d" % index for index in range(len(whole.taken))], "not one answer each, in order"
    assert len(statuses) - len(given) <= 1, "more than one refusal"
    agree(data, whole)
    for later, streamed in ((False, False), (True, False), (True, True), (False, True)):
        other = Run(cut(data, dice), later=later, streamed=streamed)
        agree(data, other)
        if not streamed:
            other_statuses = other.statuses()
            assert other_statuses[: len(given)] == statuses[: len(given)], (
                f"cut otherwise: {other_statuses} for {statuses}"
            )
            # NB: which refusal it is may depend on what was there to be read: 400 or 505 for `PUT /`.
            assert len(other_statuses) == len(statuses), f"cut otherwise: {other_statuses} for {statuses}"
            assert [request.target for request in other.taken] == [request.target for request in whole.taken]
        else:
            count = len([True for index in range(len(other.taken)) if index not in other.failed]) - other.gone
            assert count == len(whole.taken), "streams changed what is taken"
    pieces = apart(data)
    known, warm = HeadCache(), HeadCache()
    for request, head in _LEARNT:
        warm.learn(request, head, whole=True)
    outcomes = [
        _told(Run(pieces, later=False, streamed=False, known=heads)) for heads in (known, known, warm)
    ]
    assert outcomes[1] == outcomes[0], "the second time, something else was taken or answered"
    assert outcomes[2] == outcomes[0], "other heads before have changed what was taken or answered"


def _learnt() -> Iterator[tuple[bytes, RequestHead]]:
    """The head cache after the corpus."""
    known = HeadCache()
    for request in CORPUS:
        Run([request], later=False, streamed=False, known=known)
        head = known.find(request, None)
        if head is not None:
            yield request, head


_LEARNT = list(_learnt())


def _told(run: Run) -> tuple[list[tuple[object, ...]], bytes]:
    """All that a service and a client see of a connection."""
    taken = [(request.method, request.target, request.headers, request.peer) for request in run.taken]
    return [*taken, *[(body,) for body in run.bodies]], _DATE.sub(b"", bytes(run.pipe.written))


def agree(data: bytes, run: Run) -> None:
    """Assert that what was taken is what a strict reading finds."""
    expected = h1_reference.requests(data)
    for index, request in enumerate(run.taken):
        if index in run.failed or (request.stream is not None and not cast("Any", request.stream).ended):
            continue
        assert index < len(expected), f"took {request} which is unreadable"
        wanted = expected[index]
        assert request.method.encode() == wanted.method
        assert request.target.encode("latin-1") in (wanted.target, b"/") or b"://" in wanted.target
        assert run.bodies[index] == wanted.body
        names = {name for name, _ in wanted.fields}
        assert {name for name, _ in request.headers} <= names | {b"host"}


def run_seed(seed: int) -> None:
    """The case of one seed."""
    dice = random.Random(seed)
    data = make(dice)
    try:
        check(data, dice)
    except BaseException:  # also Ctrl-C: print a case that hangs
        print(f"seed {seed}: {data!r}", file=sys.stderr)
        raise


def fuzz(case: Callable[[int], None]) -> None:
    """Run cases of one seed after the other, for as long as the command line says."""
    seconds = float(sys.argv[1])
    seed = first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        case(seed)
        seed += 1
    print(f"{seed - first} cases from seed {first} on: nothing found")


if __name__ == "__main__":
    fuzz(run_seed)
