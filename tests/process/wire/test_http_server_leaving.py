"""Streams of the front whose clients leave as they begin."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from penstock_wire.http import Exchange, Response
from penstock_wire.http.server.exchange import H1Exchange
from tests.support.clocks.waiting import SECONDS
from tests.support.http.front_server import serving


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_stream_is_closed_though_its_client_leaves_before_a_first_piece_is_asked_for(
    method: str,
) -> None:
    """The task that sends it is cancelled before its first step: its maker hears of the end nevertheless."""
    closed = asyncio.Event()

    class Stream:
        def __aiter__(self) -> Stream:
            return self

        async def __anext__(self) -> bytes:
            raise AssertionError("nobody reads it")

        async def aclose(self) -> None:
            closed.set()

    async def leaving(exchange: Exchange) -> None:
        cast("H1Exchange", exchange).connection.abort()  # type: ignore[union-attr]
        exchange.answer(Response(200, stream=Stream()))

    async with serving() as server:
        server.work = leaving
        _, writer = await server.connect(f"{method} / HTTP/1.1\r\nhost: a\r\n\r\n".encode())
        await asyncio.wait_for(closed.wait(), SECONDS)
        writer.close()
