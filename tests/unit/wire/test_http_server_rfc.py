"""What RFC 9110 and 9112 say that a server MUST do, one row each; and peers that mean harm.

Rows that need more than bytes in, bytes out stand in test_http_server.py and test_http_server_streams.py,
whose docstrings name their sections.
"""

from __future__ import annotations

import asyncio
import re
import resource
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from penstock_wire.http import Exchange, Response
from penstock_wire.http.server import limits
from penstock_wire.http.server.server import H1Front
from tests.support.raw_client import until_closed
from tests.support.waiting import SECONDS, until

HOST = b"Host: a\r\n"
END = b"Connection: close\r\n\r\n"


class Server:
    """A front that echoes; it keeps what it saw."""

    def __init__(self) -> None:
        self.front = H1Front(max_body_bytes=100_000)
        self.seen: list[tuple[str, str, dict[bytes, bytes], bytes]] = []
        self.open: list[Exchange] = []
        self.hold = False
        self.gone = 0
        self.address = ("", 0)

    def __call__(self, exchange: Exchange) -> None:
        request = exchange.request
        self.seen.append((request.method, request.target, dict(request.headers), request.body))
        if self.hold:
            self.open.append(exchange)
            exchange.gone = self._gone
        else:
            exchange.answer(Response(200, (), request.body))

    def _gone(self) -> None:
        self.gone += 1

    async def exchange(self, sent: bytes) -> bytes:
        """Send bytes, and all that comes back until the server closes."""
        return await until_closed(self.address, sent)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    listener = await server.front.serve("127.0.0.1", 0, server)
    server.address = listener.address
    yield server
    await server.front.close(0)


REFUSED: dict[str, tuple[bytes, int]] = {
    "9112 2.2: whitespace between the start line and the first field": (
        b"GET / HTTP/1.1\r\n Host: a\r\n\r\n",
        400,
    ),
    "9112 2.2: a bare CR": (b"GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n", 400),
    "9112 2.2: a bare LF ends no field": (b"GET / HTTP/1.1\nHost: a\n\n", 400),
    "9112 2.3: another major version": (b"GET / HTTP/2.0\r\n" + HOST + b"\r\n", 505),
    "9112 2.3: the version is case-sensitive": (b"GET / http/1.1\r\n" + HOST + b"\r\n", 400),
    "9112 3: a request line that is none": (b"GET\r\n" + HOST + b"\r\n", 400),
    "9112 3.2: no Host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "9112 3.2: two Hosts": (b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n", 400),
    "9112 3.2: an invalid Host": (b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400),
    "9112 3.2: a Host with a user": (b"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", 400),
    "9112 3.2: a list of Hosts": (b"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", 400),
    "9112 3.2: a target that is no form": (b"GET a HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "9112 3.2.3: CONNECT is not served": (b"CONNECT a:1 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "9112 3.2.4: * with another method": (b"GET * HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "9110 4.2.1: an http URL without a host": (b"GET http:///p HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "9110 4.2.4: an http URL with a user": (b"GET http://u@a/ HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "9110 4.2.5: a fragment": (b"GET /#f HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "9112 5.1: space before the colon": (b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
    "9112 5.1: a tab before the colon": (b"GET / HTTP/1.1\r\nHost: a\r\nX\t: y\r\n\r\n", 400),
    "9112 5.2: a folded field": (b"GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n\tz\r\n\r\n", 400),
    "9110 5.5: NUL in a value": (b"GET / HTTP/1.1\r\nHost: a\r\nX: y\0z\r\n\r\n", 400),
    "9110 5.6.2: a name that is no token": (b"GET / HTTP/1.1\r\nHost: a\r\nX@: y\r\n\r\n", 400),
    "9112 6.1: a coding that is not known": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: br, chunked\r\n\r\n",
        501,
    ),
    "9112 6.1: chunked and a length": (
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "9112 6.1: chunked in HTTP/1.0": (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "9112 6.3: chunked is not last": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, br\r\n\r\n",
        400,
    ),
    "9112 6.3: lengths that differ": (
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        400,
    ),
    "9110 8.6: a length with a sign": (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\nx", 400),
    "9110 8.6: a negative length": (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\nx", 400),
    "9110 8.6: a length that overflows": (
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\nx",
        400,
    ),
    "9112 7.1: a chunk size that overflows": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
        400,
    ),
    "9112 7.1: no CRLF behind a chunk": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n0\r\n\r\n",
        400,
    ),
    "9112 7.1.1: an extension with a bare LF": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;a\nb\r\nx\r\n0\r\n\r\n",
        400,
    ),
    "9110 15.5.14: a body beyond the limit": (
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100001\r\n\r\n",
        413,
    ),
    "6585 5: fields beyond the limit": (
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
        431,
    ),
}


@pytest.mark.parametrize("rule", REFUSED)
async def test_what_a_server_must_refuse_is_refused(server: Server, rule: str) -> None:
    """The rule's section is its name; nothing behind the refused bytes is served, and the connection ends."""
    sent, status = REFUSED[rule]
    answer = await server.exchange(sent + b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.count(b"content-length: ") == 1
    assert b"connection: close\r\n" in answer
    assert not server.seen


TAKEN: dict[str, tuple[bytes, tuple[str, str, dict[bytes, bytes], bytes]]] = {
    "9112 2.2: an empty line before the request": (
        b"\r\nGET /p HTTP/1.1\r\n" + HOST + END,
        ("GET", "/p", {b"host": b"a"}, b""),
    ),
    "9112 3.2.2: the absolute form names the host": (
        b"GET HTTP://b:8/p?q HTTP/1.1\r\n" + HOST + END,
        ("GET", "/p?q", {b"host": b"b:8"}, b""),
    ),
    "9112 3.2.4: OPTIONS of the server": (
        b"OPTIONS * HTTP/1.1\r\n" + HOST + END,
        ("OPTIONS", "*", {b"host": b"a"}, b""),
    ),
    "9112 3.2.4: OPTIONS of an http URL without a path": (
        b"OPTIONS http://b HTTP/1.1\r\n" + HOST + END,
        ("OPTIONS", "*", {b"host": b"b"}, b""),
    ),
    "9110 5.1: names are case-insensitive": (
        b"POST / HTTP/1.1\r\nhOST: a\r\ncONTENT-lENGTH: 1\r\n" + END + b"x",
        ("POST", "/", {b"host": b"a"}, b"x"),
    ),
    "9110 5.5: whitespace around a value is none of it": (
        b"GET / HTTP/1.1\r\nHost: \t a \t\r\nX:y \r\nZ:\r\n" + END,
        ("GET", "/", {b"host": b"a", b"x": b"y", b"z": b""}, b""),
    ),
    "9112 6.3: no length and no chunks is no body": (
        b"POST / HTTP/1.1\r\n" + HOST + END,
        ("POST", "/", {b"host": b"a"}, b""),
    ),
    "9112 7: chunked is case-insensitive": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n" + END + b"1\r\nx\r\n0\r\n\r\n",
        ("POST", "/", {b"host": b"a"}, b"x"),
    ),
    "9112 7.1: sizes in either case, with zeros": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
        + END
        + b"00A\r\n0123456789\r\n000\r\n\r\n",
        ("POST", "/", {b"host": b"a"}, b"0123456789"),
    ),
    "9112 7.1.1: extensions that are not known are ignored": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
        + END
        + b'1;a="b;c"\r\nx\r\n0;z\r\n\r\n',
        ("POST", "/", {b"host": b"a"}, b"x"),
    ),
    "9110 7.6.1: fields that Connection names end here": (
        b"GET / HTTP/1.1\r\nHost: a\r\nX-Hop: 1\r\nConnection: x-hop , Host\r\n" + END,
        ("GET", "/", {b"host": b"a"}, b""),
    ),
    "9110 7.8: an Upgrade of HTTP/1.0 is ignored": (
        b"GET / HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        ("GET", "/", {}, b""),
    ),
    "9110 10.1.1: an Expect of HTTP/1.0 is ignored": (
        b"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx",
        ("POST", "/", {}, b"x"),
    ),
}


@pytest.mark.parametrize("rule", TAKEN)
async def test_what_a_server_must_take_is_taken(server: Server, rule: str) -> None:
    """The rule's section is its name; the service sees the request as it is meant."""
    sent, expected = TAKEN[rule]
    answer = await server.exchange(sent)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert re.search(rb"\r\ndate: [A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9:]{8} GMT\r\n", answer)
    assert server.seen == [expected]


async def test_a_tls_hello_on_the_plain_port_is_told_so(server: Server) -> None:
    """A client that speaks TLS here reads why in its trace."""
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)
    answer = await server.exchange(hello)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"TLS handshake" in answer


async def test_a_client_that_half_closes_has_left(server: Server) -> None:
    """In the middle of a head, of a body, and while its answer is made: nothing hangs, nothing is served."""
    server.hold = True
    whole = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
    for length, seen in ((10, 0), (len(whole) - 1, 0), (len(whole), 1)):
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(whole[:length])
        if seen:
            await until(lambda: len(server.seen) == 1)
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), SECONDS) == b""
        writer.close()
        assert len(server.seen) == seen
    assert server.gone == 1


async def test_a_reset_in_the_middle_ends_that_connection_alone(server: Server) -> None:
    """In a head, in a body, under an answer, between two pipelined requests."""
    whole = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
    server.hold = True
    for sent in (whole[:10], whole[:-1], whole, whole + whole[:-1], whole * 3):
        before = len(server.seen)
        _, writer = await asyncio.open_connection(*server.address)
        writer.write(sent)
        await until(lambda: bool(server.front.connections))
        if sent.startswith(whole):
            await until(lambda before=before: len(server.seen) > before)  # type: ignore[misc]
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
        await until(lambda: not server.front.connections)
    assert server.gone == 3
    for exchange in server.open:
        exchange.answer(Response(200))
    server.hold = False
    assert (await server.exchange(whole[:-7] + END + b"abc")).startswith(b"HTTP/1.1 ")


async def test_a_drip_does_not_renew_its_time(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then ends as one that sends nothing: 408 for a head and for a body."""
    monkeypatch.setattr(limits, "SWEEP_SECONDS", 0.02)
    for name in ("HEAD_SECONDS", "BODY_SECONDS"):
        monkeypatch.setattr(limits, name, 0.2)
    for head in (b"GET / HTTP/1.1\r\nX: ", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9999\r\n\r\n"):
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(head)
        reading = asyncio.create_task(reader.read())
        async with asyncio.timeout(10):
            while not reading.done():
                writer.write(b"x")
                await asyncio.sleep(0.01)
        assert (await reading).startswith(b"HTTP/1.1 408 ")
        writer.close()


CROWD = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
held = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(int(sys.argv[2]))]
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def resident() -> int:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def test_ten_thousand_idle_connections_cost_little_and_others_are_served(
    server: Server,
    many_files: None,
    record_property: Callable[[str, object], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Idle connections cost memory alone, less than 16 KiB each; their client ends are in another process."""
    monkeypatch.setattr(limits, "IDLE_SECONDS", 3600.0)  # however long it takes to make them all
    count = 10_000
    before = resident()
    crowd = subprocess.Popen(  # noqa: ASYNC220 - it is waited for without blocking
        [sys.executable, "-c", CROWD, str(server.address[1]), str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    try:
        await until(lambda: len(server.front.connections) == count)
        each = (resident() - before) / count
        record_property("bytes_per_idle_connection", each)
        assert each < 16 * 1024
        answer = await server.exchange(b"GET /served HTTP/1.1\r\n" + HOST + END)
        assert answer.startswith(b"HTTP/1.1 200 ")
        server.front.sweep()
        assert len(server.front.connections) >= count
        server.front.close_keepalive()
        await until(lambda: not server.front.connections)
    finally:
        assert crowd.stdin is not None
        crowd.stdin.close()
        assert await asyncio.to_thread(crowd.wait, SECONDS) == 0
