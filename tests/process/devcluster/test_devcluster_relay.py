"""The forwarder carries bytes both ways, and reports a target that does not listen."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator

import pytest

from devcluster import relay
from tests.support.clocks.waiting import SECONDS


@contextlib.asynccontextmanager
async def _relayed(port: int) -> AsyncIterator[int]:
    listener = relay.listen(0)
    until: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(relay.relay(listener, "127.0.0.1", port, until=until))
    try:
        yield int(listener.getsockname()[1])
    finally:
        until.set_result(None)
        await task


async def test_bytes_pass_both_ways_until_both_have_ended() -> None:
    """A client that has said all still gets the whole answer, larger than any buffer between."""
    answer = b"x" * 3_000_000
    served = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read() + answer)  # read() returns at the client's end of stream
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        served.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, _relayed(server.sockets[0].getsockname()[1]) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"question")
        writer.write_eof()
        async with asyncio.timeout(SECONDS):
            assert await reader.read() == b"question" + answer
            writer.close()
            await writer.wait_closed()
            await served.wait()


async def test_a_target_that_refuses_is_a_lost_connection() -> None:
    """The client is not left waiting."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        async with _relayed(unused.getsockname()[1]) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            async with asyncio.timeout(SECONDS):
                with pytest.raises(ConnectionResetError):
                    await reader.readexactly(1)
            writer.close()
            with contextlib.suppress(ConnectionResetError):  # told a second time
                await writer.wait_closed()


async def test_a_connection_that_the_target_cuts_is_cut_for_its_client() -> None:
    """A client that only reads is not left waiting, and does not take a part for the whole."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4)
        cut: socket.socket = writer.get_extra_info("socket")
        cut.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, _relayed(server.sockets[0].getsockname()[1]) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"more")
        async with asyncio.timeout(SECONDS):
            with pytest.raises(ConnectionResetError):
                await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionResetError):  # told a second time
            await writer.wait_closed()


async def test_the_end_of_a_process_is_seen() -> None:
    """So a forwarder ends with its cluster."""
    process = await asyncio.create_subprocess_exec("sleep", "600")
    ended = relay.watch_process(process.pid)
    assert not ended.done()
    process.kill()
    async with asyncio.timeout(SECONDS):
        await ended
        await process.wait()
