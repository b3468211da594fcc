"""What RFC 9110 and 9112 say that a server MUST do, one row each; and peers that mean harm.

Rows that need more than bytes in, bytes out stand in test_http_server.py, test_http_server_streams.py and
test_http_server_answers.py, whose docstrings name their sections.
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
from tests.support.clocks.waiting import SECONDS, until
from tests.support.http.raw_client import until_closed
from tests.support.http.server_rules import END, HOST, REFUSED, TAKEN


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


@pytest.mark.parametrize("rule", REFUSED)
async def test_what_a_server_must_refuse_is_refused(server: Server, rule: str) -> None:
    """The rule's section is its name; nothing behind the refused bytes is served, and the connection ends."""
    sent, status = REFUSED[rule]
    answer = await server.exchange(sent + b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.count(b"content-length: ") == 1
    assert b"connection: close\r\n" in answer
    assert not server.seen


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
