"""The relay that what the sidecar adds is held against."""

from __future__ import annotations

import asyncio

from bench.relay import relay
from tests.support.processes.ports import free_port


async def test_bytes_pass_both_ways_and_both_connections_end_together():
    ended = asyncio.Event()

    async def upper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data.upper())
        ended.set()
        writer.close()

    model = await asyncio.start_server(upper, "127.0.0.1", 0)
    port = free_port()
    task = asyncio.create_task(relay(port, model.sockets[0].getsockname()[1]))
    async with asyncio.timeout(30):
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                break
            except ConnectionRefusedError:  # it does not listen yet
                await asyncio.sleep(0.01)
        for word in (b"one", b"two"):
            writer.write(word)
            assert await reader.readexactly(3) == word.upper()
        writer.close()
        await ended.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    model.close()
    await model.wait_closed()
