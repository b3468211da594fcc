"""`Upstream` on httptools: pooled connections, one exchange at a time on each.

A connection goes back to the pool only after a complete answer that allows it, with nothing left over. One
that was cancelled, timed out, half closed, or that has sent a byte more than its answer is closed and never
used again: a client that leaves cannot poison the pool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import httptools

from penstock_wire.headers import HOP_BY_HOP, Headers, end_to_end
from penstock_wire.http import (
    AnswerUnreadable,
    ConnectFailed,
    ConnectionLost,
    Request,
    Response,
    UpstreamTimeout,
)

IDLE_SECONDS = 4.0
"""How long an idle connection is kept: less than the 5 s after which uvicorn closes its own."""
CONNECT_SECONDS = 2.0
MAX_ANSWER_BYTES = 256 * 1024 * 1024
MAX_HEAD_BYTES = 1024 * 1024
"""Of a head, and of what may come between two pieces of a body."""

_DROPPED = HOP_BY_HOP | {b"content-length"}


class H1Upstream:
    """An `Upstream` on httptools.

    Args:
        idle_seconds: how long an idle connection is kept.
        connect_seconds: how long connecting may take.
    """

    def __init__(
        self, *, idle_seconds: float = IDLE_SECONDS, connect_seconds: float = CONNECT_SECONDS
    ) -> None:
        self._idle_seconds = idle_seconds
        self._connect_seconds = connect_seconds
        # By address, the one that was used last at the end.
        self._idle: dict[tuple[str, int], dict[_Exchange, None]] = {}
        self._open: set[_Exchange] = set()

    async def send(self, host: str, port: int, request: Request, *, timeout: float) -> Response:
        """See `Upstream.send`."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        connection = self._take((host, port), started)
        if connection is None:
            connection = await self._connect(host, port, min(timeout, self._connect_seconds))
        answer: asyncio.Future[Response] = loop.create_future()
        timer = loop.call_later(
            timeout - (loop.time() - started),
            connection.expire,
            f"no answer of {host}:{port} in {timeout:.3f} s",
        )
        connection.begin(request, host, port, answer)
        try:
            response = await answer
        except asyncio.CancelledError:
            connection.abort()
            raise
        finally:
            timer.cancel()
        if connection.reusable:
            connection.idle_since = loop.time()
            self._idle.setdefault((host, port), {})[connection] = None
        else:
            connection.abort()
        return response

    def _take(self, key: tuple[str, int], now: float) -> _Exchange | None:
        """The connection that was used last and is still good; those that are not are closed."""
        idle = self._idle.get(key)
        if idle is None:
            return None
        found: _Exchange | None = None
        while idle and found is None:
            connection, _ = idle.popitem()
            if connection.reusable and now - connection.idle_since < self._idle_seconds:
                found = connection
            else:
                connection.abort()
        while idle and now - (oldest := next(iter(idle))).idle_since >= self._idle_seconds:
            del idle[oldest]
            oldest.abort()
        if not idle:
            del self._idle[key]
        return found

    async def _connect(self, host: str, port: int, seconds: float) -> _Exchange:
        try:
            async with asyncio.timeout(seconds):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Exchange(self._open, lambda lost: self._forget((host, port), lost)), host, port
                )
        except TimeoutError as error:
            raise ConnectFailed(f"cannot connect to {host}:{port} within {seconds:.3f} s") from error
        except OSError as error:
            raise ConnectFailed(f"cannot connect to {host}:{port}: {error}") from error
        return connection

    def _forget(self, key: tuple[str, int], lost: _Exchange) -> None:
        """A connection ended: a pod that is gone leaves nothing behind."""
        idle = self._idle.get(key)
        if idle is not None and lost in idle:
            del idle[lost]
            if not idle:
                del self._idle[key]

    async def close(self) -> None:
        """See `Upstream.close`."""
        self._idle.clear()
        for connection in list(self._open):
            connection.end()


class _Exchange(asyncio.Protocol):
    """One connection and the exchange under way on it."""

    def __init__(self, everyone: set[_Exchange], lost: Callable[[_Exchange], None]) -> None:
        self.idle_since = 0.0
        self.reusable = True
        self._everyone = everyone
        self._lost = lost
        self._transport: asyncio.Transport
        self._parser: Any = None
        self._answer: asyncio.Future[Response] | None = None
        self._where = ""
        self._fields: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._dry_bytes = 0  # received since the last complete head or part of a body
        self._in_head = True
        self._head_only = False
        self._to_the_end = False  # the body ends with the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self._everyone.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.reusable = False
        self._everyone.discard(self)
        self._lost(self)
        if self._to_the_end and error is None:
            self._finish(self._parser.get_status_code())
        else:
            self._fail(ConnectionLost(f"the connection to {self._where} ended before a complete answer"))

    def eof_received(self) -> bool:
        self.reusable = False
        return False

    def begin(self, request: Request, host: str, port: int, answer: asyncio.Future[Response]) -> None:
        """Send a request; `answer` gets its answer or its failure."""
        self._answer = answer
        self._where = f"{host}:{port}"
        self._parser = httptools.HttpResponseParser(self)
        self._head_only = request.method == "HEAD"
        self._to_the_end = False
        self._dry_bytes = 0
        lines = [f"{request.method} {request.target} HTTP/1.1\r\n".encode("latin-1")]
        hosted = False
        for name, value in request.headers:
            if name not in _DROPPED:
                lines.append(b"%b: %b\r\n" % (name, value))
                hosted = hosted or name == b"host"
        if not hosted:
            lines.append(f"host: {self._where}\r\n".encode("latin-1"))
        if request.body or request.method not in ("GET", "HEAD", "DELETE", "OPTIONS"):
            lines.append(b"content-length: %d\r\n" % len(request.body))
        lines.append(b"\r\n")
        lines.append(request.body)
        self._transport.write(b"".join(lines))

    def data_received(self, data: bytes) -> None:
        if self._answer is None:  # nobody asked: whatever it says, it is not an answer of ours
            self.reusable = False
            self._transport.abort()
            return
        self._dry_bytes += len(data)
        try:
            self._parser.feed_data(data)
            if self._dry_bytes > MAX_HEAD_BYTES:
                self._fail(AnswerUnreadable(f"{self._where} sent a head of more than {MAX_HEAD_BYTES} bytes"))
        except httptools.HttpParserUpgrade:
            self._fail(AnswerUnreadable(f"{self._where} switched protocols, which was not asked for"))
        except httptools.HttpParserError as error:
            self._fail(AnswerUnreadable(f"{self._where} gave no HTTP/1.1 answer: {error}"))

    def on_message_begin(self) -> None:
        if self._answer is None:
            self.reusable = False
        self._fields = []
        self._body = []
        self._body_bytes = 0
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # trailers are read and dropped
            self._fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._dry_bytes = 0
        status = self._parser.get_status_code()
        if status < 200:
            return
        names = {name for name, _ in self._fields}
        framed = b"content-length" in names or b"transfer-encoding" in names or status in (204, 304)
        if self._head_only:
            self.reusable = False  # the parser would wait for the body that HEAD leaves out
            self._finish(status)
        elif not framed:
            self._to_the_end = True

    def on_body(self, part: bytes) -> None:
        self._dry_bytes = 0
        self._body_bytes += len(part)
        if self._body_bytes > MAX_ANSWER_BYTES:
            self._fail(AnswerUnreadable(f"{self._where} answered more than {MAX_ANSWER_BYTES} bytes"))
            return
        self._body.append(part)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # an interim answer; the real one follows
            return
        if not self._parser.should_keep_alive():
            self.reusable = False
        self._finish(status)

    def _finish(self, status: int) -> None:
        answer, self._answer = self._answer, None
        self._to_the_end = False
        if answer is not None and not answer.done():
            answer.set_result(Response(status=status, headers=self._end_to_end(), body=b"".join(self._body)))
        self._fields, self._body = [], []  # an idle connection keeps no answer

    def _end_to_end(self) -> Headers:
        fields = tuple(self._fields)
        if any(name == b"connection" for name, _ in fields):
            return end_to_end(fields)
        return tuple(field for field in fields if field[0] not in _DROPPED)

    def _fail(self, error: Exception) -> None:
        self.reusable = False
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(error)
        if not self._transport.is_closing():
            self._transport.abort()

    def expire(self, message: str) -> None:
        """Time is over."""
        self._fail(UpstreamTimeout(message))

    def end(self) -> None:
        """Close now; an exchange under way fails."""
        self._fail(ConnectionLost(f"the connection to {self._where} was closed here"))

    def abort(self) -> None:
        """Close now; never used again."""
        self.reusable = False
        self._answer = None
        self._transport.abort()
