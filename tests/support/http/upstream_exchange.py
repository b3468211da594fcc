"""Exchanges with a scripted peer through `H1Upstream.open`: what tests of streams and of tunnels share."""

from __future__ import annotations

import asyncio

from penstock_wire.http import (
    Request,
    sending,
)
from penstock_wire.http.client.answer import Answer
from penstock_wire.http.client.pool import H1Upstream
from tests.support.http.stream_peer import Scripted, Wire

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
LONG = b"HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n"


class Given:
    """A body to send: pieces, exceptions, or events that are waited for."""

    def __init__(self, *pieces: bytes | Exception | asyncio.Event) -> None:
        self.pieces = list(pieces)
        self.read_pieces = 0
        self.endless = b""

    async def read(self) -> bytes:
        if self.endless:
            self.read_pieces += 1
            return self.endless
        while self.pieces:
            piece = self.pieces.pop(0)
            if isinstance(piece, Exception):
                raise piece
            if isinstance(piece, asyncio.Event):
                await piece.wait()
                continue
            self.read_pieces += 1
            return piece
        return b""


def get(
    method: str = "GET", *, stream: Given | None = None, length: int | None = None, upgrade: bytes = b""
) -> Request:
    return Request(
        method=method, target="/s", headers=(), body=b"", stream=stream, length=length, upgrade=upgrade
    )


async def ask(
    upstream: H1Upstream,
    peer: Scripted,
    request: Request | None = None,
    *,
    timeout: float = 30,
    idle: float | None = None,
) -> Answer:
    return await sending.open_answer(
        upstream, "127.0.0.1", peer.port, request or get(), timeout=timeout, idle=idle
    )


async def rest(answer: Answer) -> bytes:
    data = b""
    while piece := await answer.stream.read():
        data += piece
    return data


async def good(wire: Wire) -> None:
    """Answer whatever is asked, again and again."""
    while True:
        await wire.head()
        await wire.send(OK)


async def check_pool(upstream: H1Upstream, peer: Scripted, connections: int) -> None:
    """The next exchange is good, on the connection of this number."""
    assert await rest(await ask(upstream, peer)) == b"ok"
    assert peer.connections == connections
