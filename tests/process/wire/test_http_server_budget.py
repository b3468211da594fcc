"""How much a front holds of requests that have begun to come and do not end."""

from __future__ import annotations

import asyncio
from typing import cast

from penstock_wire.http import Request, Response
from penstock_wire.http.server import limits
from penstock_wire.http.server.connection import H1Connection
from penstock_wire.http.server.server import H1Front
from tests.support.clocks.waiting import SECONDS, until
from tests.support.http.raw_client import until_closed


async def test_what_a_connection_holds_of_requests_in_line_is_bounded() -> None:
    """However long they are and slow the one before them: then they are read one by one, and all answered."""
    go = asyncio.Event()

    async def wait(request: Request) -> Response:
        await go.wait()
        return Response(200, (), b"%d" % len(request.body))

    front = H1Front()
    reader, writer = await asyncio.open_connection(*(await front.listen("127.0.0.1", 0, wait)).address)
    sizes = [limits.BUFFER_BYTES + number for number in range(12)]
    for size in sizes:
        writer.write(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%b" % (size, bytes(size)))
    await until(lambda: any(cast("H1Connection", each)._reader.holders for each in front.connections))
    (connection,) = front.connections
    assert isinstance(connection, H1Connection)
    assert len(connection._line or ()) <= 2
    go.set()
    for size in sizes:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SECONDS)
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert await reader.readexactly(6) == b"%d" % size
    writer.close()
    await front.close(5)


async def echo(request: Request) -> Response:
    return Response(200, (), request.body)


async def test_what_all_connections_hold_of_unfinished_requests_is_bounded() -> None:
    """Beyond it 503; what comes at once is served all the same, and what ends, or leaves, gives room."""
    front = H1Front(max_head_bytes=2000, max_unfinished_bytes=4000)
    address = (await front.listen("127.0.0.1", 0, echo)).address
    head, whole = b"GET / HTTP/1.1\r\nhost: a\r\nx: ", b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: "
    opened = []

    async def begin(sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        opened.append(await asyncio.open_connection(*address))
        opened[-1][1].write(sent)
        return opened[-1]

    async def refused(sent: bytes) -> bytes:
        return (await asyncio.wait_for((await begin(sent))[0].readline(), SECONDS)).split()[1]

    assert await refused(head + b"y" * 2000) == b"431"
    assert front.unfinished_bytes == 0
    first = await begin(head + b"y" * 1500)
    await until(lambda: front.unfinished_bytes > 1500)
    _, leaves = await begin(whole + b"1500\r\n\r\n" + b"y")  # what is to come of a body counts at once
    await until(lambda: front.unfinished_bytes > 3000)
    held = front.unfinished_bytes
    for more in (head + b"y" * 1000, whole + b"1000\r\n\r\n" + b"y", head + b"\r\nx: " * 30):
        assert await refused(more) == b"503"
        assert front.unfinished_bytes == held
    at_once = whole + b"1500\r\nconnection: close\r\n\r\n" + b"y" * 1500
    assert b" 200 OK" in await until_closed(address, at_once)
    leaves.close()
    await until(lambda: 1500 < front.unfinished_bytes < 2000)
    last = await begin(whole + b"1500\r\n\r\n" + b"y")
    await until(lambda: front.unfinished_bytes > 3000)
    for (reader, writer), rest in ((first, b"\r\n\r\n"), (last, b"y" * 1499)):
        writer.write(rest)
        assert (await asyncio.wait_for(reader.readline(), SECONDS)).split()[1] == b"200"
    assert front.unfinished_bytes == 0
    for _, writer in opened:
        writer.close()
    await front.close(5)
