"""Connections on which no request has come yet, while their server drains."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest_asyncio

from penstock_wire.http import Request, Response
from penstock_wire.http.server import limits
from penstock_wire.http.server.connection import H1Connection
from penstock_wire.http.server.server import H1Front
from tests.support.clocks.waiting import SECONDS, until

OLD_SECONDS = 3 * limits.SWEEP_SECONDS


@pytest_asyncio.fixture
async def front() -> AsyncIterator[H1Front]:
    front = H1Front()
    yield front
    await front.close(SECONDS)


async def ok(_: Request) -> Response:
    return Response(200, (), b"ok")


async def unused(front: H1Front) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, H1Connection]:
    """A connection that was opened a while ago, from both ends."""
    listener = await front.listen("127.0.0.1", 0, ok)
    reader, writer = await asyncio.open_connection(*listener.address)
    await until(lambda: bool(front.connections))
    (made,) = front.connections
    assert isinstance(made, H1Connection)
    made._reader.since = time.monotonic() - OLD_SECONDS
    return reader, writer, made


async def test_a_drain_that_still_takes_requests_keeps_it(front: H1Front) -> None:
    """Its client sends when it likes, and would lose the request if the sweep closed it at that moment."""
    reader, writer, made = await unused(front)
    front.close_keepalive(idle=False)
    front.sweep()
    assert not made._transport.is_closing()
    writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), SECONDS)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"connection: close\r\n" in answer
    writer.close()


async def test_the_end_of_a_drain_closes_it(front: H1Front) -> None:
    """Where clients no longer send, it would hold the process."""
    reader, writer, _ = await unused(front)
    front.close_keepalive(idle=False)
    front.close_keepalive()
    front.sweep()
    assert await asyncio.wait_for(reader.read(), SECONDS) == b""
    writer.close()


async def test_a_drain_that_is_taken_back_keeps_it(front: H1Front) -> None:
    """As a server that does not drain does."""
    _, writer, made = await unused(front)
    front.close_keepalive()
    front.open_keepalive()
    front.sweep()
    assert not made._transport.is_closing()
    writer.close()
