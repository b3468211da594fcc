"""`Front` on httptools: one `asyncio.Protocol` a connection, no framework between.

A connection reads requests one after the other; pipelined ones wait, and reading pauses while they do, so the
answers leave in order. The parser (llhttp) refuses what could be read in two ways: a length beside chunked,
two lengths, a bare CR or LF, folded fields, space before a colon. What RFC 9112 leaves to the server is
refused here: a missing or second `Host`, another HTTP version, a coding other than chunked.

Whoever does not send is not waited for: one sweep a second closes connections whose head, body or next
request is overdue, or whose reader takes nothing. `close_keepalive` ends idle connections at once and each
other one with its current answer. The end of a client's stream is its leaving, whatever is under way.
"""

from __future__ import annotations

import asyncio
import collections
import email.utils
import http
import time
from typing import Any, cast

import httptools

from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import HOP_BY_HOP, REQUEST_ID, get
from penstock_wire.http import Handler, Listener, Request, Response

MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_HEAD_BYTES = 64 * 1024
MAX_FIELDS = 200
MAX_PIPELINED = 16
HEAD_SECONDS = 15.0
BODY_SECONDS = 60.0
IDLE_SECONDS = 75.0
WRITE_SECONDS = 60.0
LINGER_SECONDS = 2.0
"""How long a client that was refused may go on sending: closed at once, it would be reset before it read why
(RFC 9112 section 9.6)."""

_PHRASES = {status.value: status.phrase.encode() for status in http.HTTPStatus}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_NO_BODY_STATUS = frozenset({204, 304})
_DROPPED = HOP_BY_HOP | {b"content-length"}
_PLAIN, _HEAD, _BODY = 0, 1, 2  # what a connection waits for: the next request, the rest of a head, of a body


class H1Front:
    """A `Front` on httptools.

    Args:
        max_body_bytes: a larger body is answered 413 `too_large`.
        max_connections: connections open at once; a further one is closed at once.
        backlog: connections that may wait to be accepted.
    """

    def __init__(
        self, *, max_body_bytes: int = MAX_BODY_BYTES, max_connections: int = 16_384, backlog: int = 1024
    ) -> None:
        self.max_body_bytes = max_body_bytes
        self.max_connections = max_connections
        self.closing = False
        self.connections: set[_Connection] = set()
        self._backlog = backlog
        self._listeners: set[_H1Listener] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self._date = (0, b"")

    async def listen(self, host: str, port: int, handler: Handler, *, reuse_port: bool = False) -> Listener:
        """See `Front.listen`."""
        loop = asyncio.get_running_loop()
        listener = _H1Listener(self, handler)
        listener.server = await loop.create_server(
            lambda: _Connection(self, listener, loop),
            host,
            port,
            backlog=self._backlog,
            reuse_port=reuse_port or None,
        )
        self._listeners.add(listener)
        if self._sweeper is None:
            self._sweeper = loop.create_task(self._sweep())
        return listener

    def close_keepalive(self, *, idle: bool = True) -> None:
        """See `Front.close_keepalive`."""
        self.closing = True
        if idle:
            for connection in list(self.connections):
                connection.close_if_idle()

    def open_keepalive(self) -> None:
        """See `Front.open_keepalive`."""
        self.closing = False

    async def close(self, grace: float) -> None:
        """See `Front.close`."""
        self.close_keepalive()
        await asyncio.gather(*(listener.close(grace) for listener in list(self._listeners)))
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    def forget(self, listener: _H1Listener) -> None:
        """A listener has closed."""
        self._listeners.discard(listener)

    def date(self) -> bytes:
        """The value of `date` (RFC 9110 section 6.6.1), made once a second."""
        now = int(time.time())
        if now != self._date[0]:
            self._date = (now, email.utils.formatdate(now, usegmt=True).encode())
        return self._date[1]

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            now = asyncio.get_running_loop().time()
            for connection in [one for one in self.connections if one.overdue(now)]:
                connection.expire()


class _H1Listener:
    def __init__(self, front: H1Front, handler: Handler) -> None:
        self.handler = handler
        self.closing = False
        self.server: asyncio.Server
        self.connections: set[_Connection] = set()
        self.empty = asyncio.Event()
        self.empty.set()
        self._front = front

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.server.sockets[0].getsockname()[:2]
        return str(host), int(port)

    async def close(self, grace: float | None = None) -> None:
        self.closing = True
        self.server.close()
        for connection in list(self.connections):
            connection.close_if_idle()
        try:
            async with asyncio.timeout(grace):
                await self.empty.wait()
        except TimeoutError:
            for connection in list(self.connections):
                connection.abort()
        self._front.forget(self)


class _Connection(asyncio.Protocol):
    """One connection: the parser's callbacks fill a request, `_next` hands it to the handler."""

    def __init__(self, front: H1Front, listener: _H1Listener, loop: asyncio.AbstractEventLoop) -> None:
        self._front = front
        self._listener = listener
        self._loop = loop
        self._transport: asyncio.Transport
        self._parser: Any = httptools.HttpRequestParser(self)
        self._waiting: collections.deque[tuple[Request, bool] | PenstockError] = collections.deque()
        self._task: asyncio.Task[None] | None = None
        self._phase = _PLAIN
        self._deadline = 0.0
        self._stuck = 0.0  # since when the peer takes nothing, 0 = it does
        self._writable: asyncio.Event | None = None
        self._reading = True
        self._last = False  # no further request is read
        self._lingering = False  # refused; what still comes is dropped
        self._dry_bytes = 0  # received since the last complete head or part of a body
        self._field_bytes = 0
        self._body_bytes = 0
        self._peer = ""
        self._url = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._in_head = False
        self._error: PenstockError | None = None

    # -- the transport's callbacks --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        if len(self._front.connections) >= self._front.max_connections:
            self._transport.abort()
            return
        name = transport.get_extra_info("peername")
        self._peer = str(name[0]) if name else ""
        self._front.connections.add(self)
        self._listener.connections.add(self)
        self._listener.empty.clear()
        self._deadline = self._loop.time() + IDLE_SECONDS

    def connection_lost(self, error: Exception | None) -> None:
        self._last = True
        self._front.connections.discard(self)
        self._listener.connections.discard(self)
        if not self._listener.connections:
            self._listener.empty.set()
        if self._task is not None:
            self._task.cancel()  # the client went away: its handler must not go on
        if self._writable is not None:
            self._writable.set()

    def eof_received(self) -> bool:
        # A client that leaves sends what a half-closing one sends, and leaving is what clients do: the
        # handler under way is cancelled (by connection_lost), or the model would work for nobody.
        self._last = True
        return False

    def pause_writing(self) -> None:
        self._stuck = self._loop.time()
        self._writable = asyncio.Event()

    def resume_writing(self) -> None:
        self._stuck = 0.0
        if self._writable is not None:
            self._writable.set()
            self._writable = None

    def data_received(self, data: bytes) -> None:
        if self._last:
            return
        if self._phase == _PLAIN:
            self._phase = _HEAD
            self._deadline = self._loop.time() + HEAD_SECONDS
        self._dry_bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            found = self._error or self._bad_request(error)
            self._refuse(found)
            return
        if self._phase != _PLAIN and self._dry_bytes > MAX_HEAD_BYTES:
            self._refuse(_fields_too_large(f"expected a head of at most {MAX_HEAD_BYTES} bytes"))

    def _feed(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest and not self._last:
            try:
                self._parser.feed_data(rest)
            except httptools.HttpParserUpgrade as upgrade:
                # We may ignore an `Upgrade` (RFC 9110 section 7.8); what follows is read on.
                self._parser = httptools.HttpRequestParser(self)
                rest = rest[upgrade.args[0] :]
            else:
                return

    # -- the parser's callbacks -----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._url = b""
        self._fields = []
        self._field_bytes = 0
        self._body = []
        self._body_bytes = 0
        self._in_head = True
        self._phase = _HEAD

    def on_url(self, part: bytes) -> None:
        self._url += part

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # trailers are read and dropped
            self._fields.append((name.lower(), value))
            self._field_bytes += len(name) + len(value)
            if self._field_bytes > MAX_HEAD_BYTES:
                self._fail(_fields_too_large(f"expected a head of at most {MAX_HEAD_BYTES} bytes"))
            if len(self._fields) > MAX_FIELDS:
                self._fail(_fields_too_large(f"expected at most {MAX_FIELDS} header fields"))

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._dry_bytes = 0
        self._phase = _BODY
        self._deadline = self._loop.time() + BODY_SECONDS
        hosts = length = 0
        expects = False
        for name, value in self._fields:
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                length = int(value)
            elif name == b"expect":
                expects = value.lower() == b"100-continue"
            elif name == b"transfer-encoding" and value.strip().lower() != b"chunked":
                self._fail(
                    PenstockError(
                        Reason.BAD_REQUEST, f"expected transfer-encoding chunked, found {value!r}", status=501
                    )
                )
        version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            self._fail(
                PenstockError(Reason.BAD_REQUEST, f"expected HTTP/1.1, found HTTP/{version}", status=505)
            )
        if hosts > 1 or (not hosts and version == "1.1"):
            self._fail(PenstockError(Reason.BAD_REQUEST, f"expected one Host field, found {hosts}"))
        if version == "1.0" and any(name == b"transfer-encoding" for name, _ in self._fields):
            self._fail(PenstockError(Reason.BAD_REQUEST, "expected no transfer-encoding in HTTP/1.0"))
        if b"#" in self._url or (self._parser.get_method() == b"CONNECT"):
            self._fail(PenstockError(Reason.BAD_REQUEST, "expected a path as the request's target"))
        if length > self._front.max_body_bytes:
            self._fail(self._too_large(length))
        if expects and version == "1.1" and self._task is None and not self._waiting:
            self._transport.write(_CONTINUE)

    def on_body(self, part: bytes) -> None:
        self._dry_bytes = 0
        self._body_bytes += len(part)
        if self._body_bytes > self._front.max_body_bytes:
            self._fail(self._too_large(None))
        self._body.append(part)

    def on_message_complete(self) -> None:
        # A client of HTTP/1.0 waits for the end of the connection unless the answer says `keep-alive`.
        keep = self._parser.should_keep_alive() and self._parser.get_http_version() != "1.0"
        target = self._url.decode("latin-1")
        if target[:1] != "/" and "://" in target:  # absolute form: its authority is the host
            authority, slash, path = target.partition("://")[2].partition("/")
            target = slash + path or "/"
            self._fields = [
                (name, authority.encode("latin-1") if name == b"host" else value)
                for name, value in self._fields
            ]
        named: set[bytes] = set()
        for name, value in self._fields:
            if name == b"connection":
                named.update(token.strip().lower() for token in value.split(b","))
        request = Request(
            method=self._parser.get_method().decode("latin-1"),
            target=target,
            headers=tuple(
                field
                for field in self._fields
                if field[0] not in _DROPPED and field[0] not in named and field[0] != b"expect"
            ),
            body=self._body[0] if len(self._body) == 1 else b"".join(self._body),
            peer=self._peer,
        )
        self._phase = _PLAIN
        self._deadline = self._loop.time() + IDLE_SECONDS
        self._enqueue((request, keep))
        if not keep:
            self._last = True

    # -- requests in, answers out ---------------------------------------------------------------------------

    def _enqueue(self, entry: tuple[Request, bool] | PenstockError) -> None:
        self._waiting.append(entry)
        if len(self._waiting) > MAX_PIPELINED and self._reading:
            self._reading = False
            self._transport.pause_reading()
        if self._task is None:
            self._task = self._loop.create_task(self._serve())

    async def _serve(self) -> None:
        """Answer what waits, one by one, then end."""
        try:
            while self._waiting and not self._transport.is_closing():
                entry = self._waiting.popleft()
                if isinstance(entry, PenstockError):
                    self._write(entry.response(), keep=False, head=False, linger=True)
                    return
                request, keep = entry
                answer = await self._listener.handler(request)
                keep = keep and not self._front.closing and not self._listener.closing
                self._write(answer, keep=keep, head=request.method == "HEAD")
                if not keep:
                    return
                if self._writable is not None:
                    await self._writable.wait()
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                self._failed(error)  # something that the handler waited for was cancelled, not the handler
            elif not self._transport.is_closing():
                raise
        except Exception as error:
            self._failed(error)
        finally:
            self._task = None
            # The handler's time was not the client's.
            self._deadline = max(self._deadline, self._loop.time() + self._patience())
            if not self._reading and not self._transport.is_closing():
                self._reading = True
                self._transport.resume_reading()
            if self._last and not self._waiting and not self._lingering:
                self._transport.close()

    def _failed(self, error: BaseException) -> None:
        detail = f"{type(error).__name__} in a handler"
        self._write(PenstockError(Reason.INTERNAL, detail).response(), keep=False, head=False)

    def _patience(self) -> float:
        """Seconds that the client may take for what the connection waits for."""
        if self._phase == _PLAIN:
            return LINGER_SECONDS if self._lingering else IDLE_SECONDS
        return HEAD_SECONDS if self._phase == _HEAD else BODY_SECONDS

    def _write(self, answer: Response, *, keep: bool, head: bool, linger: bool = False) -> None:
        lines = [b"HTTP/1.1 %d %b\r\n" % (answer.status, _PHRASES.get(answer.status, b"Unknown"))]
        for name, value in answer.headers:
            if name not in _DROPPED:
                lines.append(b"%b: %b\r\n" % (name, value))
        if get(answer.headers, b"date") is None:
            lines.append(b"date: %b\r\n" % self._front.date())
        # A HEAD answered from upstream comes without a body, and without the length that it would have.
        if answer.status not in _NO_BODY_STATUS and (answer.body or not head):
            lines.append(b"content-length: %d\r\n" % len(answer.body))
        if not keep:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        found = b"".join(lines)
        if not found.count(b"\r") == found.count(b"\n") == len(lines) or b"\0" in found:
            raise ValueError("expected header fields of one line each")
        if not head and answer.status not in _NO_BODY_STATUS:
            found += answer.body
        self._transport.write(found)
        if keep:
            return
        self._last = True
        self._waiting.clear()
        if linger:
            self._lingering = True
            self._deadline = self._loop.time() + LINGER_SECONDS
            self._transport.write_eof()
        else:
            self._transport.close()

    def _refuse(self, error: PenstockError) -> None:
        """Answer an error after what waits, read nothing more."""
        self._last = True
        self._phase = _PLAIN
        self._enqueue(error)

    def _fail(self, error: PenstockError) -> None:
        """End the parsing of this request from within a callback."""
        self._error = error
        raise error

    def _too_large(self, length: int | None) -> PenstockError:
        found = "a larger one" if length is None else f"{length}"
        request_id = (get(tuple(self._fields), REQUEST_ID) or b"").decode("latin-1")
        return PenstockError(
            Reason.TOO_LARGE,
            f"expected a body of at most {self._front.max_body_bytes} bytes, found {found}",
            extra={"request_id": request_id} if request_id else None,
        )

    @staticmethod
    def _bad_request(error: Exception) -> PenstockError:
        return PenstockError(Reason.BAD_REQUEST, f"the bytes are no HTTP/1.1 request: {error}")

    # -- time and the end -----------------------------------------------------------------------------------

    def overdue(self, now: float) -> bool:
        """Whether the peer has kept us waiting too long."""
        if self._stuck:
            return now - self._stuck > WRITE_SECONDS
        return self._task is None and now > self._deadline

    def expire(self) -> None:
        """The peer kept us waiting too long: tell it if it was in the middle of a request, and close."""
        if self._stuck or self._lingering:
            self._transport.abort()
        elif self._phase == _PLAIN:
            self._transport.close()
        else:
            self._refuse(
                PenstockError(Reason.BAD_REQUEST, "expected the rest of the request in time", status=408)
            )

    def close_if_idle(self) -> None:
        """Close now unless a request is read or answered."""
        if self._task is None and not self._waiting and self._phase == _PLAIN:
            self._transport.close()

    def abort(self) -> None:
        """Close now, whatever is under way."""
        self._transport.abort()


def _fields_too_large(detail: str) -> PenstockError:
    return PenstockError(Reason.TOO_LARGE, f"{detail}, found more", status=431)
