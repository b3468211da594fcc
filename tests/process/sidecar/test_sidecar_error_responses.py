"""Refusals under overload: from the head alone, as `accept` would say, cheap, and a few at a time."""

from __future__ import annotations

import asyncio
import json

from penstock_sidecar.admission.error_responses import AT_ONCE
from penstock_sidecar.passthrough.passthrough import STREAM_BYTES
from penstock_wire.http.server.server import H1Front
from tests.unit.sidecar.test_sidecar_error_responses import World


async def served(world: World) -> tuple[H1Front, tuple[str, int]]:
    """The handler behind a real front, and where."""
    front = H1Front()
    listener = await front.serve(
        "127.0.0.1", 0, world.handler.begin, streams=world.handler.streams, whole_bytes=STREAM_BYTES
    )
    return front, listener.address


async def test_pipelined_requests_are_refused_in_their_order():
    world = World()
    await world.fill()
    front, address = await served(world)
    clients = [await asyncio.open_connection(*address) for _ in range(2)]
    count = 2 * AT_ONCE
    for _, writer in clients:
        for number in range(count):
            writer.write(b"POST /p HTTP/1.1\r\nhost: a\r\nx-request-id: %d\r\n" % number)
            writer.write(b"content-length: 4\r\n\r\nbody")
    async with asyncio.timeout(30):
        for reader, writer in clients:
            for number in range(count):
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 503 ")
                assert b"\r\nx-request-id: %d\r\n" % number in head
                assert json.loads(await reader.readuntil(b"}"))["request_id"] == str(number)
            writer.close()
    await front.close(0.0)
    await world.close()


async def test_who_leaves_before_it_is_told_disturbs_nobody():
    world = World()
    await world.fill()
    front, address = await served(world)
    clients = [await asyncio.open_connection(*address) for _ in range(3 * AT_ONCE)]
    for number, (_, writer) in enumerate(clients):
        writer.write(b"POST /p HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nbody")
        if number % 2:
            writer.transport.abort()
    async with asyncio.timeout(30):
        for reader, writer in clients[::2]:
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 503 ")
            writer.close()
    await front.close(0.0)
    await world.close()


async def test_a_large_body_that_would_be_refused_need_not_come():
    world = World()
    await world.fill()
    front, address = await served(world)
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"POST /p HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 1000000\r\n\r\n")
    async with asyncio.timeout(30):
        answer = await reader.read()  # nothing of the body was sent, and the connection has ended
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"queue_full" in answer
    writer.close()
    reader, writer = await asyncio.open_connection(*address)
    length = STREAM_BYTES + 1
    head = b"POST /p HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % length
    async with asyncio.timeout(30):
        for _ in range(2):  # what is short enough is read away, and the connection kept
            writer.write(head)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 503 ")
            await reader.readuntil(b"}")
            writer.write(b"x" * length)
    writer.close()
    await front.close(0.0)
    await world.close()
