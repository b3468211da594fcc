"""A call whose answer is a stream: an iterator of its pieces, asynchronous or not."""

from __future__ import annotations

import asyncio
import codecs
import json
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

import msgspec

from penstock.errors import CallCycle, UpstreamError, UpstreamTimeout
from penstock.handles import scope
from penstock.handles.pending import refuse_running_loop, running_loop
from penstock.raised import MEMBER, kind_named

_END = object()
_BOM = codecs.BOM_UTF8
MAX_EVENT_BYTES = 16 * 1024 * 1024
"""The most bytes of one event of a stream."""


class Pieces(Protocol):
    """The pieces of an opened stream."""

    async def __anext__(self) -> Any:
        """Return the next piece.

        Raises:
            StopAsyncIteration: the stream has ended.
            UpstreamError: the stream has failed.
        """
        ...

    def close(self) -> None:
        """Stop reading, and cancel the call; no-op after the stream's end."""
        ...


class HandleStream:
    """The stream that a handle with `stream=True` returns. Use `async for`, or `for` in a thread.

    It has one reader. The call is cancelled when the reader is cancelled, closes the stream or drops it.

    Args:
        opening: sends the request and returns the pieces.
        loop: the loop in which it runs.
        endpoint: its name, for messages.
    """

    __slots__ = ("_ended", "_endpoint", "_loop", "_opening", "_over", "_pieces", "_reading")

    def __init__(
        self,
        opening: Coroutine[Any, Any, Pieces],
        loop: asyncio.AbstractEventLoop,
        endpoint: str,
    ) -> None:
        self._endpoint = endpoint
        self._loop = loop
        self._pieces: Pieces | None = None
        self._ended = self._reading = False
        self._opening: Any
        if running_loop() is loop:
            self._opening = loop.create_task(opening)
        else:
            self._opening = asyncio.run_coroutine_threadsafe(opening, loop)
        self._over = scope.adopt(self._let_go_of(self._opening))

    def _let_go_of(self, opening: Any) -> Any:
        """Make the function that cancels the call; it must not refer to this object."""
        loop = self._loop

        def let_go() -> None:
            if loop.is_closed():
                return
            if running_loop() is loop:
                _abandon(opening)
            else:
                loop.call_soon_threadsafe(_abandon, opening)

        return let_go

    def __aiter__(self) -> HandleStream:
        return self

    async def __anext__(self) -> Any:
        if running_loop() is not self._loop:
            raise RuntimeError(
                f"{self._endpoint}: expected a stream to be read in the event loop in which it was called "
                "for, found another"
            )
        piece = await self._next()
        if piece is _END:
            raise StopAsyncIteration
        return piece

    def __iter__(self) -> HandleStream:
        refuse_running_loop("read the stream with `async for`")
        return self

    def __next__(self) -> Any:
        refuse_running_loop("read the stream with `async for`")
        piece = asyncio.run_coroutine_threadsafe(self._next(), self._loop).result()
        if piece is _END:
            raise StopIteration
        return piece

    def __await__(self) -> Any:
        raise TypeError(f"{self._endpoint}: a stream cannot be awaited: read it with `async for`")

    async def aclose(self) -> None:
        """Stop reading, and cancel the call."""
        self.close()

    def close(self) -> None:
        """See `aclose`; for use in a thread."""
        if not self._ended:
            self._end()
            self._let_go_of(self._opening)()

    async def _next(self) -> Any:
        if self._ended:
            return _END
        if self._reading:
            raise RuntimeError(f"{self._endpoint}: expected one reader of a stream at a time, found two")
        self._reading = True
        try:
            if self._pieces is None:
                opening = self._opening
                pieces: Pieces = await (
                    opening if isinstance(opening, asyncio.Task) else asyncio.wrap_future(opening)
                )
                self._pieces = pieces
            return await self._pieces.__anext__()
        except StopAsyncIteration:
            self._end()
            return _END
        except BaseException:
            self.close()
            raise
        finally:
            self._reading = False

    def _end(self) -> None:
        self._ended = True
        self._over()

    def __del__(self) -> None:
        if not getattr(self, "_ended", True):
            self.close()

    def __reduce__(self) -> Any:
        raise TypeError(f"{self._endpoint}: a stream cannot be pickled: read it, and pickle its pieces")


def _abandon(opening: Any) -> None:
    """Cancel a stream's call; runs in its loop."""
    if not opening.done():
        opening.cancel()
    elif not opening.cancelled() and opening.exception() is None:
        opening.result().close()


class Events:
    """Reads the bytes of an event stream, of any server: https://html.spec.whatwg.org/#parsing-an-event-stream.

    Fields other than `event` and `data` are ignored, as are comments, and events without data.

    Args:
        endpoint: its name, for messages.
    """

    __slots__ = ("_after_cr", "_data", "_endpoint", "_line", "_name", "_size", "_start")

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._start: bytes | None = b""  # of the stream, until it is clear whether that is a BOM
        self._after_cr = False
        self._line: list[bytes] = []  # the pieces of a line that has not ended
        self._name = b""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """Add bytes; return the events that are now complete, each as name and data.

        Raises:
            UpstreamError: an event is too long.
        """
        if self._start is not None:
            data = self._start + data
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._start = data
                return []
            self._start = None
            data = data.removeprefix(_BOM)
        came = data.removeprefix(b"\n") if self._after_cr else data
        self._after_cr = data.endswith(b"\r")
        first, *lines = came.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._line.append(first)
        self._size += len(first)
        events: list[tuple[bytes, bytes]] = []
        for line in lines:
            self._end_line(events)
            self._line = [line]
            self._size += len(line)
        if self._size > MAX_EVENT_BYTES:
            raise UpstreamError(
                f"{self._endpoint}: expected events of at most {MAX_EVENT_BYTES} bytes, found more",
                status=502,
                reason="bad_answer",
                endpoint=self._endpoint,
            )
        return events

    def _end_line(self, events: list[tuple[bytes, bytes]]) -> None:
        line = b"".join(self._line)
        if line:
            key, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if key == b"data":
                self._data.append(value)
                return
            if key == b"event":
                self._name = value
            self._size -= len(line)
            return
        if self._data:
            events.append((self._name, b"\n".join(self._data)))
        self._name, self._data, self._size = b"", [], 0

    @property
    def cut(self) -> bool:
        """Whether a part of an event is left: if the stream ends now, it was cut."""
        line = b"".join(self._line)
        return bool(self._data or self._name or (line and not line.startswith(b":")))


def read_event(name: bytes, data: bytes, endpoint: str, request_id: str) -> Any:
    """Read an event as a piece.

    Args:
        name: the event's name; `error` for an error.
        data: the event's data.
        endpoint: the endpoint's name, for messages.
        request_id: id of the request.

    Raises:
        UpstreamError: the event is the error that ends the stream.
    """
    if name != b"error":
        return _piece(data)
    problem = _piece(data)
    problem = problem if isinstance(problem, dict) else {}
    status, reason, detail = problem.get("status"), str(problem.get("reason") or ""), problem.get("detail")
    kind = kind_of(reason, problem)
    raise kind(
        str(detail) if kind is CallCycle else f"{endpoint}: the stream failed: {reason or None}: {detail}",
        status=status if isinstance(status, int) else 500,
        reason=reason,
        request_id=request_id,
        endpoint=endpoint,
    )


def kind_of(reason: str, problem: Mapping[str, Any]) -> type[UpstreamError]:
    """The class of the error for a reason (`x-penstock-reason`) and a problem document."""
    kinds: dict[str, type[UpstreamError]] = {"deadline": UpstreamTimeout, "call_cycle": CallCycle}
    return kinds.get(reason) or kind_named(problem.get(MEMBER))


def _piece(data: bytes) -> Any:
    """Decode an event's data; text if it is not JSON."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        pass
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data.decode("utf-8", "replace")
