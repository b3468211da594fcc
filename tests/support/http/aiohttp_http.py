"""`Front.listen` and `Upstream.send` with aiohttp behind them: the reference for whole bodies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.web_protocol import RequestHandler, RequestPayloadError
from yarl import URL

from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import REQUEST_ID, Headers, end_to_end, get, without
from penstock_wire.http import (
    AnswerUnreadable,
    ConnectFailed,
    ConnectionLost,
    Done,
    GiveUp,
    Handler,
    Listener,
    Request,
    Response,
    UpstreamError,
    UpstreamTimeout,
)
from penstock_wire.process import log

MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_FIELD_BYTES = 32 * 1024
"""Bytes of the request line, and of one header field, at most."""
KEEPALIVE_SECONDS = 75.0
IDLE_UPSTREAM_SECONDS = 4.0
"""How long an idle upstream connection is kept: less than the 5 s after which uvicorn closes its own, or a
request would meet a closing connection and be lost."""
LINGER_SECONDS = 2.0
"""How long the rest of a refused body is read away, so that its sender gets to read the refusal."""
BODY_SECONDS = 60.0
"""How long a client may take to send a body once its header is there."""
CONNECT_SECONDS = 2.0


def _fields(raw: Any) -> Headers:
    return tuple([(name.lower(), value) for name, value in raw])


def _text(value: bytes) -> str:
    # NB: aiohttp writes field values as UTF-8, so UTF-8 must be what they are read as, or bytes would change.
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _origin_form(target: str) -> str:
    """The target without scheme and authority (RFC 9112 section 3.2.2: a server takes both forms)."""
    if target.startswith("/") or "://" not in target:
        return target
    return "/" + target.partition("://")[2].partition("/")[2]


def _write(answer: Response, *, close: bool) -> web.Response:
    response = web.Response(status=answer.status, body=answer.body)
    fields = response.headers
    fields.popall("Content-Type", None)
    for name, value in answer.fields:
        if name not in (b"content-length", b"transfer-encoding", b"connection"):
            fields.add(name.decode("latin-1"), _text(value))
    if close:
        response.force_close()
    return response


class _Connection(RequestHandler):
    """A connection whose own errors are problem documents, and no log entries that a stranger can write."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun already")
        if status < 500:
            detail = (message or str(exc or "")).strip().partition("\n")[0]
            error = PenstockError(Reason.BAD_REQUEST, f"expected an HTTP/1.1 request, found: {detail}")
        else:
            log("handler failed", level="error", error=repr(exc))
            error = PenstockError(Reason.INTERNAL, "the request could not be handled")
        return _write(error.response(), close=True)


class _Server(web.Server):
    def __call__(self) -> RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


class AiohttpFront:
    """A `Front` on aiohttp's low-level server.

    Args:
        max_body_bytes: a larger body is answered 413 `too_large`.
        backlog: connections that may wait to be accepted.
    """

    def __init__(self, *, max_body_bytes: int = MAX_BODY_BYTES, backlog: int = 1024) -> None:
        self._max_body_bytes = max_body_bytes
        self._backlog = backlog
        self._listeners: set[_AiohttpListener] = set()

    async def listen(self, host: str, port: int, handler: Handler, *, reuse_port: bool = False) -> Listener:
        """See `Front.listen`."""
        listener = _AiohttpListener(self._listeners)

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            return await self._handle(request, handler, listener)

        def make_request(
            message: Any, payload: Any, protocol: Any, writer: Any, task: Any
        ) -> web.BaseRequest:
            return web.BaseRequest(
                message,
                payload,
                protocol,
                writer,
                task,
                asyncio.get_running_loop(),
                client_max_size=self._max_body_bytes,
            )

        server = _Server(
            handle,
            request_factory=make_request,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=KEEPALIVE_SECONDS,
            lingering_time=LINGER_SECONDS,
            auto_decompress=False,
            max_line_size=MAX_FIELD_BYTES,
            max_field_size=MAX_FIELD_BYTES,
        )
        listener.start(
            server,
            await asyncio.get_running_loop().create_server(
                server, host, port, backlog=self._backlog, reuse_port=reuse_port or None
            ),
        )
        return listener

    def close_keepalive(self, *, idle: bool = True) -> None:
        """See `Front.close_keepalive`."""
        for listener in self._listeners:
            listener.close_keepalive(idle=idle)

    def open_keepalive(self) -> None:
        """See `Front.open_keepalive`."""
        for listener in self._listeners:
            listener.closing = False

    async def close(self, grace: float) -> None:
        """See `Front.close`."""
        await asyncio.gather(*(listener.close(grace) for listener in self._listeners))

    async def _handle(
        self, request: web.BaseRequest, handler: Handler, listener: _AiohttpListener
    ) -> web.StreamResponse:
        headers = end_to_end(_fields(request.raw_headers))
        try:
            if not request.content.is_eof():
                headers = await self._expect_body(request, headers)
            body = await request.read()
        except (web.HTTPRequestEntityTooLarge, RequestPayloadError, TimeoutError) as error:
            problem = self._unreadable(error)
            answer = problem.response(request_id=(get(headers, REQUEST_ID) or b"").decode("latin-1"))
            return _write(answer, close=True)
        # `raw_path` is the target as it stood in the request line, percent-encoding untouched.
        answer = await handler(
            Request(
                method=request.method,
                target=_origin_form(request.raw_path),
                headers=headers,
                body=body,
                peer=request.remote or "",
            )
        )
        return _write(answer, close=listener.closing)

    async def _expect_body(self, request: web.BaseRequest, headers: Headers) -> Headers:
        """Wait for a body that has not come whole with its header; raises the errors of `_unreadable`."""
        length = request.content_length
        if length is not None and length > self._max_body_bytes:
            raise web.HTTPRequestEntityTooLarge(self._max_body_bytes)
        if get(headers, b"expect") is not None:
            # NB: aiohttp's low-level server leaves this to us; without it curl waits a second before each
            # large body.
            headers = without(headers, (b"expect",))
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        async with asyncio.timeout(BODY_SECONDS):
            await request.read()
        return headers

    def _unreadable(self, error: Exception) -> PenstockError:
        if isinstance(error, web.HTTPRequestEntityTooLarge):
            return PenstockError(
                Reason.TOO_LARGE,
                f"expected a body of at most {self._max_body_bytes} bytes, found a larger one",
            )
        if isinstance(error, TimeoutError):
            detail = f"expected the whole body within {BODY_SECONDS:.0f} s of its header, found a part of it"
            return PenstockError(Reason.BAD_REQUEST, detail, status=408)
        return PenstockError(Reason.BAD_REQUEST, f"expected a body of its announced form, found: {error}")


class _AiohttpListener:
    """A `Listener`; it is among `open_ones` from its start until it is closed."""

    def __init__(self, open_ones: set[_AiohttpListener]) -> None:
        self.closing = False
        self._open_ones = open_ones
        self._server: web.Server | None = None
        self._asyncio_server: asyncio.Server | None = None
        self._address = ("", 0)

    def start(self, server: web.Server, asyncio_server: asyncio.Server) -> None:
        self._server, self._asyncio_server = server, asyncio_server
        host, port = asyncio_server.sockets[0].getsockname()[:2]
        self._address = (str(host), int(port))
        self._open_ones.add(self)

    @property
    def address(self) -> tuple[str, int]:
        return self._address

    def close_keepalive(self, *, idle: bool = True) -> None:
        self.closing = True
        if self._server is None or not idle:
            return
        for connection in self._server.connections:
            # NB: `close` alone ends an idle connection's task and leaves its socket open: the next request on
            # it would hang.
            waiter = connection._waiter
            if waiter is not None and not waiter.done():
                connection.force_close()

    async def close(self, grace: float | None = None) -> None:
        if self._server is None or self._asyncio_server is None:
            return
        self._asyncio_server.close()
        self.close_keepalive(idle=True)
        try:
            # NB: to aiohttp 0 means without end.
            await self._server.shutdown(None if grace is None else max(grace, 0.001))
        finally:
            self._open_ones.discard(self)


class AiohttpUpstream:
    """An `Upstream` on aiohttp's client.

    Args:
        connections_per_host: connections to one server at most, 0 = no limit.
        idle_seconds: how long an idle connection is kept.
        connect_seconds: how long making a connection may take.
    """

    def __init__(
        self,
        *,
        connections_per_host: int = 0,
        idle_seconds: float = IDLE_UPSTREAM_SECONDS,
        connect_seconds: float = CONNECT_SECONDS,
    ) -> None:
        self._limit = connections_per_host
        self._idle_seconds = idle_seconds
        # NB: without a bound of its own, an address that swallows packets (a node that is gone) would use up
        # the request's whole time, although nothing was executed there.
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds)
        self._session: aiohttp.ClientSession | None = None
        self._retired: list[aiohttp.ClientSession] = []

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            tracing = aiohttp.TraceConfig()
            tracing.on_connection_create_end.append(_connected)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0, limit_per_host=self._limit, keepalive_timeout=self._idle_seconds
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
                raise_for_status=False,
                # NB: aiohttp would send a request again on its own when a kept connection was lost; whether
                # that is safe is for our callers to say.
                middlewares=(),
                trust_env=False,
                trace_configs=[tracing],
            )
            self._session._retry_connection = False
        return self._session

    def begin(self, host: str, port: int, request: Request, timeout: float, done: Done) -> GiveUp | None:
        """See `Upstream.begin`: nothing goes without a task here."""
        return None

    async def send(
        self,
        host: str,
        port: int,
        request: Request,
        *,
        timeout: float,
        connected: Callable[[], object] | None = None,
    ) -> Response:
        """See `Upstream.send`."""
        # NB: the query stays in `path`: parsed, an empty one would lose its question mark.
        url = URL.build(scheme="http", host=host, port=port, path=request.target, encoded=True)
        headers = [(name.decode("latin-1"), _text(value)) for name, value in request.headers]
        try:
            async with asyncio.timeout(timeout):
                async with self._open().request(
                    request.method,
                    url,
                    headers=headers,
                    data=request.body or None,
                    allow_redirects=False,
                    timeout=self._timeout,
                    trace_request_ctx=connected,
                ) as answer:
                    body = await answer.read()
                    return Response(
                        status=answer.status, headers=end_to_end(_fields(answer.raw_headers)), body=body
                    )
        except aiohttp.ConnectionTimeoutError as error:
            raise ConnectFailed(f"cannot connect to {host}:{port}: timed out") from error
        except TimeoutError as error:
            raise UpstreamTimeout(f"no answer of {host}:{port} within {timeout:.3f} s") from error
        except aiohttp.ClientConnectorError as error:
            raise ConnectFailed(f"cannot connect to {host}:{port}: {error.os_error}") from error
        except aiohttp.ClientResponseError as error:
            raise AnswerUnreadable(
                f"expected an HTTP/1.1 answer of {host}:{port}, found: {error.message.strip()[:200]}"
            ) from error
        except (aiohttp.ClientError, ConnectionError, OSError) as error:
            raise ConnectionLost(
                f"the connection to {host}:{port} ended before a complete answer: "
                f"{error or type(error).__name__}"
            ) from error
        except (ValueError, TypeError) as error:
            raise UpstreamError(f"the request for {host}:{port} cannot be sent: {error}") from error

    def retire(self, host: str, port: int) -> None:
        """See `Upstream.retire`: all servers' go."""
        if self._session is not None:
            self._retired.append(self._session)
            self._session = None

    async def close(self) -> None:
        """See `Upstream.close`."""
        self.retire("", 0)
        while self._retired:
            await self._retired.pop().close()


async def _connected(_: aiohttp.ClientSession, context: Any, __: object) -> None:
    if context.trace_request_ctx is not None:
        context.trace_request_ctx()
