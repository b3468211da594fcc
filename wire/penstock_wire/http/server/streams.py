"""Bodies that are read as they come, tunnels, and answers that are sent as they come.

Received bytes wait in an `Inbound`, which makes its connection pause reading if they are too many: a slow
reader slows the client down.
"""

from __future__ import annotations

import asyncio
import collections
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Protocol

from penstock_wire.http import ClientGone, UpstreamError
from penstock_wire.http.body import next_piece
from penstock_wire.http.memory import PIECE_BYTES
from penstock_wire.http.server import limits
from penstock_wire.process import log


class Sink(Protocol):
    """The receiver of an answer's pieces."""

    def write(self, data: bytes) -> bool:
        """Send; return False if the peer does not accept it yet. Raises ClientGone."""
        ...

    async def writable(self) -> None:
        """Wait until the peer accepts more. Raises ClientGone."""
        ...


class TunnelSink(Sink, Protocol):
    """The writing half of a connection, as its tunnel sees it."""

    def end_tunnel(self, *, both: bool) -> None:
        """Send no more.

        Args:
            both: nothing more comes, either.
        """
        ...

    def abort(self) -> None:
        """Close now."""
        ...


class Carrier(Protocol):
    """The reading half of a connection, as its streams see it."""

    def hold(self, source: Inbound) -> None:
        """Pause reading."""
        ...

    def release(self, source: Inbound) -> None:
        """Resume reading."""
        ...

    def wanted(self) -> None:
        """Note that a reader waits for the body: the client can get 100 Continue."""
        ...


class Beyond(Protocol):
    """A holder of bytes that were read from an `Inbound`."""

    def kept(self) -> int:
        """Return how many bytes it holds."""
        ...


class Inbound:
    """Bytes that were received and not yet read; a `BodyReader`."""

    __slots__ = (
        "_begun",
        "_carrier",
        "_error",
        "_most",
        "_pieces",
        "_size",
        "_waiter",
        "beyond",
        "ended",
        "held",
    )

    def __init__(self, carrier: Carrier) -> None:
        self._begun = False
        self._carrier = carrier
        self._most = 0  # that may be unread since it was read on
        self._pieces: collections.deque[bytes] = collections.deque()
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None
        self._error: str = ""
        self.beyond: Beyond | None = None
        """The holder of bytes that were read from this, if any."""
        self.ended = False
        self.held = False

    def kept(self) -> int:
        """Return the bytes that are kept, unread or read."""
        kept = self._size + PIECE_BYTES * len(self._pieces)
        return kept if self.beyond is None else kept + self.beyond.kept()

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        if not data or self._error:
            return
        self._pieces.append(data)
        self._size += len(data)
        self._wake()
        most = limits.BUFFER_BYTES if self._begun else limits.UNREAD_BYTES
        if self._size > max(most, self._most) and not self.held:
            self.held = True
            self._carrier.hold(self)

    def read_on(self) -> None:
        """Let more bytes come, though much is unread."""
        self._most = self._size + limits.FURTHER_BYTES
        self._resume()

    def finish(self) -> None:
        """Mark the end of the body."""
        self.ended = True
        self._wake()
        self._resume()  # no more can come; a service that answers without reading would leave reading paused

    def fail(self, why: str) -> None:
        """Mark that the body ended early; unread pieces are dropped."""
        if self.ended or self._error:
            return
        self._error = why
        self.discard()
        self._wake()

    def discard(self) -> None:
        """Drop unread pieces: nothing will read them."""
        self._pieces.clear()
        self._size = 0
        self._resume()

    async def read(self) -> bytes:
        self._begun = True
        while not self._pieces:
            if self._error:
                raise ClientGone(self._error)
            if self.ended:
                return b""
            self._carrier.wanted()
            if self._waiter is not None:
                raise RuntimeError("expected one reader at a time")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        piece = next_piece(self._pieces)
        self._size -= len(piece)
        self._most = 0
        if self.held and self._size <= limits.BUFFER_BYTES // 4:
            self._resume()
        return piece

    def _resume(self) -> None:
        if self.held:
            self.held = False
            self._carrier.release(self)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class FrontTunnel(Inbound):
    """A `Tunnel` on a client's connection."""

    __slots__ = ("_sink", "sent_all")

    def __init__(self, carrier: Carrier, sink: TunnelSink) -> None:
        super().__init__(carrier)
        self._sink = sink
        self.sent_all = False

    async def write(self, data: bytes) -> None:
        if self._error:
            raise ClientGone(self._error)
        if self.sent_all:
            raise ValueError("expected no write behind the end")
        if data and not self._sink.write(data):
            await self._sink.writable()

    def end(self) -> None:
        if not self.sent_all:
            self.sent_all = True
            self._sink.end_tunnel(both=self.ended)

    def abort(self) -> None:
        self.fail("the tunnel was closed")
        self._sink.abort()


async def send(sink: Sink, stream: AsyncIterator[bytes], *, chunked: bool, length: int | None) -> None:
    """Send an answer's stream to its end.

    Args:
        sink: the connection, whose answer's head has been written.
        stream: the pieces; its `aclose`, if it has one, is called in any case.
        chunked: frame the pieces as chunks (RFC 9112 section 7.1).
        length: announced bytes, None if none were.

    Raises:
        ClientGone: the client is gone.
        ValueError: the stream was longer or shorter than announced.
        Exception: any error of the stream.
    """
    left = length
    try:
        async for piece in stream:
            if not piece:
                continue
            if left is not None:
                left -= len(piece)
                if left < 0:
                    raise ValueError(f"expected a stream of {length} bytes, found a longer one")
            if chunked:
                sink.write(b"%x\r\n" % len(piece))
                sink.write(piece)
                taken = sink.write(b"\r\n")
            else:
                taken = sink.write(piece)
            if not taken:
                await sink.writable()
        if left:
            raise ValueError(f"expected a stream of {length} bytes, found {left} less")
        if chunked:
            sink.write(b"0\r\n\r\n")
    finally:
        await close(stream)


async def send_all(
    sink: Sink,
    stream: AsyncIterator[bytes],
    length: int | None,
    done: Callable[[], object],
    broken: Callable[[], object],
) -> None:
    """Send an answer's stream on a connection of frames.

    Args:
        sink: as of `send`, as the following two.
        stream: the pieces.
        length: announced bytes.
        done: called when all were written.
        broken: called if the answer has to end early, so that no client takes a part for the whole.
    """
    try:
        await send(sink, stream, chunked=False, length=length)
    except (ClientGone, UpstreamError):
        broken()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        broken()
        if task is not None and task.cancelling():
            raise
    except Exception as error:
        log("answer's stream failed", level="error", error=repr(error))
        broken()
    else:
        done()


async def gather(stream: AsyncIterator[bytes], most: int, pieces: list[bytes]) -> None:
    """Take all of a stream, or somewhat more than `most` bytes of it if there are more; close it.

    Args:
        stream: the stream.
        most: bytes.
        pieces: gets the pieces.

    Raises:
        Exception: any error of the stream.
    """
    size = 0
    try:
        async for piece in stream:
            pieces.append(piece)
            size += len(piece)
            if size > most:
                break
    finally:
        await close(stream)


def sending(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None], stream: AsyncIterator[bytes]
) -> asyncio.Task[None]:
    """Start the task that sends a stream and closes it; it can be cancelled at any moment.

    Args:
        loop: the running loop.
        work: sends the stream.
        stream: its `aclose`, if it has one, is called in any case.
    """
    task = loop.create_task(work)
    task.add_done_callback(functools.partial(_ended, stream))
    return task


def _ended(stream: AsyncIterator[bytes], task: asyncio.Task[None]) -> None:
    # NB: a task that is cancelled before its first step never reaches its `finally`, and the stream's maker
    # can be waiting for its end.
    if task.cancelled():
        close_in_background(stream)


async def close(stream: AsyncIterator[bytes]) -> None:
    """Close a stream that is read no further."""
    aclose = getattr(stream, "aclose", None)
    if aclose is not None:
        await aclose()


def close_in_background(stream: AsyncIterator[bytes]) -> None:
    """Close a stream that will not be read, in a separate task."""
    task = asyncio.ensure_future(_close_quietly(stream))
    _closing.add(task)
    task.add_done_callback(_closing.discard)


async def _close_quietly(stream: AsyncIterator[bytes]) -> None:
    try:
        await close(stream)
    except Exception as error:
        log("answer's stream failed", level="error", error=repr(error))


_closing: set[asyncio.Task[None]] = set()
