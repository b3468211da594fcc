"""`Front` and `Upstream` with aiohttp behind them."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
from aiohttp import web
from yarl import URL

from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import REQUEST_ID, Headers, end_to_end, get
from penstock_wire.http import (
    ConnectFailed,
    ConnectionLost,
    Handler,
    Listener,
    Request,
    Response,
    UpstreamError,
    UpstreamTimeout,
)

MAX_BODY_BYTES = 64 * 1024 * 1024
KEEPALIVE_SECONDS = 75.0
IDLE_UPSTREAM_SECONDS = 4.0
"""How long an idle upstream connection is kept: less than the 5 s after which uvicorn closes its own, or a
request would meet a closing connection and be lost."""


def _fields(raw: Any) -> Headers:
    return tuple((name.lower(), value) for name, value in raw)


class AiohttpFront:
    """A `Front` on aiohttp's low-level server.

    Args:
        max_body_bytes: a larger body is answered 413 `too_large`.
        backlog: connections that may wait to be accepted.
    """

    def __init__(self, *, max_body_bytes: int = MAX_BODY_BYTES, backlog: int = 1024) -> None:
        self._max_body_bytes = max_body_bytes
        self._backlog = backlog
        self._listeners: list[_AiohttpListener] = []
        self._closing = False

    async def listen(self, host: str, port: int, handler: Handler, *, reuse_port: bool = False) -> Listener:
        """See `Front.listen`."""

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            return await self._handle(request, handler)

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

        server = web.Server(
            handle,
            request_factory=make_request,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=KEEPALIVE_SECONDS,
            auto_decompress=False,
        )
        asyncio_server = await asyncio.get_running_loop().create_server(
            server, host, port, backlog=self._backlog, reuse_port=reuse_port or None
        )
        listener = _AiohttpListener(server, asyncio_server)
        self._listeners.append(listener)
        return listener

    def close_keepalive(self) -> None:
        """See `Front.close_keepalive`."""
        self._closing = True
        for listener in self._listeners:
            listener.server.pre_shutdown()

    async def close(self, grace: float) -> None:
        """See `Front.close`."""
        self.close_keepalive()
        await asyncio.gather(*(listener.close(grace) for listener in self._listeners))
        self._listeners.clear()

    async def _handle(self, request: web.BaseRequest, handler: Handler) -> web.StreamResponse:
        headers = end_to_end(_fields(request.raw_headers))
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            error = PenstockError(
                Reason.TOO_LARGE,
                f"expected a body of at most {self._max_body_bytes} bytes, found a larger one",
            )
            answer = error.response(request_id=(get(headers, REQUEST_ID) or b"").decode("latin-1"))
            return self._answer(answer, close=True)
        # `raw_path` is the target as it stood in the request line, percent-encoding untouched.
        answer = await handler(
            Request(
                method=request.method,
                target=request.raw_path,
                headers=headers,
                body=body,
                peer=request.remote or "",
            )
        )
        return self._answer(answer, close=self._closing)

    @staticmethod
    def _answer(answer: Response, *, close: bool) -> web.Response:
        response = web.Response(status=answer.status, body=answer.body)
        response.headers.popall("Content-Type", None)
        for name, value in answer.headers:
            if name not in (b"content-length", b"transfer-encoding", b"connection"):
                response.headers.add(name.decode("latin-1"), value.decode("latin-1"))
        if close:
            response.force_close()
        return response


class _AiohttpListener:
    def __init__(self, server: web.Server, asyncio_server: asyncio.Server) -> None:
        self.server = server
        self._asyncio_server = asyncio_server
        host, port = asyncio_server.sockets[0].getsockname()[:2]
        self._address = (str(host), int(port))

    @property
    def address(self) -> tuple[str, int]:
        return self._address

    async def close(self, grace: float = 30.0) -> None:
        self._asyncio_server.close()
        await self.server.shutdown(grace)


class AiohttpUpstream:
    """An `Upstream` on aiohttp's client.

    Args:
        connections_per_host: connections to one server at most, 0 = no limit.
        idle_seconds: how long an idle connection is kept.
    """

    def __init__(self, *, connections_per_host: int = 0, idle_seconds: float = IDLE_UPSTREAM_SECONDS) -> None:
        self._limit = connections_per_host
        self._idle_seconds = idle_seconds
        self._session: aiohttp.ClientSession | None = None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
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
            )
            self._session._retry_connection = False  # noqa: SLF001 - no public switch exists
        return self._session

    async def send(self, host: str, port: int, request: Request, *, timeout: float) -> Response:
        """See `Upstream.send`."""
        url = URL(f"http://{host}:{port}{request.target}", encoded=True)
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers]
        try:
            async with asyncio.timeout(timeout):
                async with self._open().request(
                    request.method,
                    url,
                    headers=headers,
                    data=request.body or None,
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=None),
                ) as answer:
                    body = await answer.read()
                    return Response(
                        status=answer.status, headers=end_to_end(_fields(answer.raw_headers)), body=body
                    )
        except TimeoutError as error:
            raise UpstreamTimeout(f"no answer of {host}:{port} within {timeout:.3f} s") from error
        except aiohttp.ClientConnectorError as error:
            raise ConnectFailed(f"cannot connect to {host}:{port}: {error.os_error}") from error
        except (aiohttp.ClientError, ConnectionError, OSError) as error:
            raise ConnectionLost(
                f"the connection to {host}:{port} ended before a complete answer: "
                f"{error or type(error).__name__}"
            ) from error
        except (ValueError, TypeError) as error:
            raise UpstreamError(f"the request for {host}:{port} cannot be sent: {error}") from error

    async def close(self) -> None:
        """See `Upstream.close`."""
        if self._session is not None:
            await self._session.close()
            self._session = None
