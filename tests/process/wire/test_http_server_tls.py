"""The front over TLS: what it says in plain text it says here; certificates change under open connections."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from penstock_operator.control import pki
from penstock_operator.control.certificates import server_context, show
from penstock_operator.control.rotation import DAY, Issued
from penstock_wire.control.ca_trust import client_context
from penstock_wire.http import Exchange, Response
from penstock_wire.http.server import limits
from penstock_wire.http.server.server import H1Front
from tests.support.http.front_server import OK

HOST = "127.0.0.1"


@dataclass
class Server:
    """A front that speaks TLS and echoes."""

    authority: Issued
    front: H1Front = field(default_factory=lambda: H1Front(max_body_bytes=1_000_000))
    context: ssl.SSLContext = field(default_factory=server_context)
    port: int = 0

    def show_another(self) -> None:
        show(self.context, pki.issue(self.authority, names=(HOST,), now=time.time(), life=DAY))

    async def start(self) -> None:
        self.show_another()
        listener = await self.front.serve(HOST, 0, self._echo, tls=self.context)
        self.port = listener.address[1]

    def _echo(self, exchange: Exchange) -> None:
        exchange.answer(Response(200, (), exchange.request.body))

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        trusted = client_context(self.authority.certificate)
        return await asyncio.open_connection(HOST, self.port, ssl=trusted)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server(pki.make_authority(now=time.time(), life=DAY))
    await server.start()
    yield server
    await server.front.close(5)


async def echoed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> bytes:
    writer.write(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
    assert head.startswith(OK)
    return await asyncio.wait_for(reader.readexactly(len(body)), 30)


def certificate(writer: asyncio.StreamWriter) -> bytes:
    certificate: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return certificate


async def test_requests_of_any_size_are_answered_on_one_connection(server: Server) -> None:
    """Records of TLS and pieces of HTTP have nothing to do with each other."""
    reader, writer = await server.connect()
    for size in (1, 20_000, 900_000, 2):
        body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        assert await echoed(reader, writer, body) == body
    writer.close()


async def test_a_new_certificate_is_shown_to_new_connections_and_ends_none(server: Server) -> None:
    """No listener is made anew."""
    reader, writer = await server.connect()
    server.show_another()
    _, other = await server.connect()
    assert certificate(other) != certificate(writer)
    assert await echoed(reader, writer, b"still here") == b"still here"
    writer.close()
    other.close()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000001\r\n\r\n" + b"x" * 300_000, b"413"),
        (b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", b"200"),
    ],
    ids=["unreadable", "large", "the last one"],
)
async def test_a_last_answer_is_read_and_the_end_is_orderly(
    server: Server, sent: bytes, status: bytes
) -> None:
    """TLS does not have half-closed connections: the end is announced, not cut."""
    reader, writer = await server.connect()
    writer.write(sent)
    answer = await asyncio.wait_for(reader.read(), 30)
    assert answer.startswith(b"HTTP/1.1 " + status)
    writer.close()


async def test_whoever_shakes_no_hands_is_closed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that says nothing, or says it in plain text, holds nothing for long."""
    monkeypatch.setattr(limits, "HANDSHAKE_SECONDS", 0.1)
    listener = await server.front.serve(HOST, 0, server._echo, tls=server.context)
    for port, sent in ((listener.address[1], b""), (server.port, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")):
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(sent)
        try:
            answer = await asyncio.wait_for(reader.read(), 30)
        except ConnectionResetError:
            answer = b""
        assert not answer.startswith(b"HTTP/")
        writer.close()
    assert not server.front.connections
