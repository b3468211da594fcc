"""Spoils the answers of a model of `protocol_models`, as an aiohttp middleware.

`fault=` in a prediction's query: `reset` (the end at once), `cut` (half of the answer, then the end),
`garbage` (no JSON), `nohttp` (no HTTP), `drip` (the whole answer, byte by byte), `stall` (drips for ever). A
`short` answer, which says less than it was asked, is up to each protocol.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

GARBAGE = b"this is { no JSON"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n"


@web.middleware
async def spoil(request: web.Request, handler: Any) -> web.StreamResponse:
    """Answer as the query says."""
    answer: web.StreamResponse = await handler(request)
    fault = request.query.get("fault")
    if fault is None or request.path.startswith("/-/") or not isinstance(answer, web.Response):
        return answer
    body = answer.body
    assert isinstance(body, bytes)
    if fault == "garbage":
        # NB: with the fields of the true answer: it is the body alone that lies.
        return web.Response(body=GARBAGE, headers=answer.headers)
    if fault == "short":
        return answer
    transport = request.transport
    assert isinstance(transport, asyncio.Transport)
    fields = b"".join(
        b"%b: %b\r\n" % (name.encode(), value.encode())
        for name, value in answer.headers.items()
        if name.lower() != "content-length"
    )
    whole = HEAD % len(body) + fields + b"\r\n" + body
    if fault == "cut":
        transport.write(whole[: -(len(body) // 2)])
    elif fault == "nohttp":
        transport.write(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
    elif fault == "drip":
        # It says that it ends: a request that is sent behind an answer that does not may be lost.
        await drip(transport, whole.replace(b"\r\n", b"\r\nconnection: close\r\n", 1))
    elif fault == "stall":
        await drip(transport, HEAD % 10**9 + fields + b"\r\n" + bytes(10**6))
    else:
        assert fault == "reset", fault
        transport.abort()
    # The connection ends with the answer: what aiohttp would write behind it goes nowhere.
    transport.close()
    return answer


async def drip(transport: asyncio.Transport, data: bytes) -> None:
    """Write byte by byte, each on its way before the next."""
    for index in range(len(data)):
        if transport.is_closing():
            return
        transport.write(data[index : index + 1])
        await asyncio.sleep(0.001)
