"""Answers that come piece by piece pass through the router as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest

from tests.support.clocks.waiting import SECONDS
from tests.support.processes.router_process import RouterProcess, backend, endpoint, until

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LARGE = 3_000_000


class Streamer:
    """A pod that sends one event, and the rest when it is told to."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.cut = False
        self.left = asyncio.Event()
        """A client went away in the middle of the stream."""
        self.open = 0
        self.target = ""
        self._server: asyncio.Server | None = None

    async def start(self) -> Streamer:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.target = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def stop(self) -> None:
        """Stop to listen, when nobody is connected any more."""
        assert self._server is not None
        self._server.close()
        await until(lambda: not self.open)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await self._answer(head.split()[1], reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            self.open -= 1

    async def _answer(
        self, target: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if target == b"/large":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % LARGE + b"x" * LARGE)
            await writer.drain()
            return
        writer.write((HEAD if target == b"/events" else HEAD.replace(b"200 OK", b"500 X")) + b"3\r\none\r\n")
        gone = asyncio.ensure_future(reader.read(1))
        going = asyncio.ensure_future(self.go.wait())
        await asyncio.wait({gone, going}, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            self.left.set()
            going.cancel()
            raise ConnectionError
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        if self.cut:
            raise ConnectionError
        writer.write(b"3\r\ntwo\r\n0\r\n\r\n")
        await writer.drain()


@pytest.fixture
async def streamer() -> AsyncIterator[Streamer]:
    """A pod that streams."""
    streamer = await Streamer().start()
    yield streamer
    await streamer.stop()


@pytest.fixture
async def process(streamer: Streamer, router: Callable[..., RouterProcess]) -> AsyncIterator[RouterProcess]:
    """A router in front of it, which ends before it."""
    process = await router().start(endpoint("e", backend("b", streamer.target)))
    yield process
    await process.stop()


def get(process: RouterProcess, path: str) -> Any:
    return process.session.get(f"{process.data}/e{path}")


async def test_a_piece_passes_before_the_next_is_there(process: RouterProcess, streamer: Streamer) -> None:
    """The client has the first event while the pod waits to send the second; the connection is kept."""
    for path, status in (("/events", 200), ("/broken", 500)):
        streamer.go.clear()
        async with get(process, path) as answer:
            assert answer.status == status
            assert await answer.content.readexactly(3) == b"one"
            streamer.go.set()
            assert await answer.content.read() == b"two"
            assert answer.headers["content-type"] == "text/event-stream"
            assert answer.headers["x-penstock-backend"] == "b"
    assert streamer.open == 1


async def test_a_large_body_arrives_whole(process: RouterProcess) -> None:
    """A body beyond what is taken whole keeps its length and its bytes."""
    async with get(process, "/large") as answer:
        assert answer.headers["content-length"] == str(LARGE)
        assert await answer.read() == b"x" * LARGE


async def test_a_stream_that_breaks_is_not_taken_for_whole(
    process: RouterProcess, streamer: Streamer
) -> None:
    """The client's connection is cut before the body's end."""
    async with get(process, "/events") as answer:
        assert await answer.content.readexactly(3) == b"one"
        streamer.cut = True
        streamer.go.set()
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.content.read()


async def test_a_client_that_leaves_ends_the_pods_stream(process: RouterProcess, streamer: Streamer) -> None:
    """The pod hears of it at once, and other requests go on."""
    async with get(process, "/events") as answer:
        assert await answer.content.readexactly(3) == b"one"
        answer.close()
        await asyncio.wait_for(streamer.left.wait(), 20)
    streamer.go.set()
    async with get(process, "/events") as answer:
        assert await answer.read() == b"onetwo"


async def test_a_stream_is_counted_at_its_end(process: RouterProcess, streamer: Streamer) -> None:
    """Its duration is all of it; also of one that breaks, and of one whose client leaves."""

    async def counted() -> int:
        name = 'penstock_router_duration_seconds_count{backend="b",endpoint="e"}'
        lines = dict(line.rsplit(" ", 1) for line in (await process.metrics()).splitlines())
        return int(float(lines.get(name, "0")))

    for number in (1, 2, 3):
        streamer.go.clear()
        async with get(process, "/events") as answer:
            assert await answer.content.readexactly(3) == b"one"
            assert await counted() == number - 1
            if number == 2:
                answer.close()
            else:
                streamer.cut = number == 3
                streamer.go.set()
                await asyncio.gather(answer.read(), return_exceptions=True)
        async with asyncio.timeout(SECONDS):
            while await counted() != number:
                pass
