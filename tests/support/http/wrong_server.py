"""A small HTTP server that answers a share of its requests wrong, late, twice or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable

_NUMBER = re.compile(rb"\[(\d+)\]")
_ID = re.compile(rb"\r\nx-request-id: [^\r]*")

# What to do with the n-th request (from 0): right, wrong, renamed, twice, drop, refuse, fail, hang, late.
Plan = Callable[[int], str]


class WrongServer(asyncio.Protocol):
    """One connection.

    Args:
        plan: what to do with which request, counted over all connections.
    """

    def __init__(self, plan: Plan, counter: list[int]) -> None:
        self.plan = plan
        self.counter = counter

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer one request; they are small and come one by one."""
        match = _NUMBER.search(data)
        assert match, data
        word = self.plan(self.counter[0])
        self.counter[0] += 1
        number = int(match[1])
        named = _ID.search(data)
        self.identity = named[0] if named else b""
        if word == "right":
            self.answer(b"200 OK", number)
        elif word == "wrong":
            self.answer(b"200 OK", number + 1)
        elif word == "renamed":
            self.identity += b"0"
            self.answer(b"200 OK", number)
        elif word == "twice":
            self.answer(b"200 OK", number)
            self.answer(b"200 OK", number)
        elif word == "drop":
            self.transport.close()
        elif word == "refuse":
            self.answer(b"503 Service Unavailable\r\nx-penstock-reason: queue_full", number)
        elif word == "fail":
            self.answer(b"500 Internal Server Error", number)
        elif word == "late":
            asyncio.get_running_loop().call_later(0.5, self.answer, b"200 OK", number)
        else:
            assert word == "hang", word

    def answer(self, status: bytes, number: int) -> None:
        """Write an answer."""
        body = b'{"predictions": [%d]}' % number
        lines = b"%b%b\r\ncontent-length: %d" % (status, self.identity, len(body))
        self.transport.write(b"HTTP/1.1 %b\r\n\r\n%b" % (lines, body))


@contextlib.asynccontextmanager
async def serving(plan: Plan) -> AsyncIterator[int]:
    """Serve on a free port of 127.0.0.1; yields the port."""
    counter = [0]
    server = await asyncio.get_running_loop().create_server(
        lambda: WrongServer(plan, counter), "127.0.0.1", 0
    )
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
