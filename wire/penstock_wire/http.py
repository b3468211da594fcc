"""What a data plane needs of HTTP, as two Protocols: `Front` takes requests, `Upstream` sends them.

Whoever implements them keeps hop-by-hop matters (framing, keep-alive, `Connection`) to itself: a handler sees
end-to-end fields only, and sets no `content-length`.

Errors::

    UpstreamError
        ConnectFailed       surely not executed: no connection could be made
        ConnectionLost      sent, then lost: may or may not have been executed
            AnswerUnreadable    sent, and what came back is no HTTP answer
        UpstreamTimeout     no complete answer in time
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Protocol

from penstock_wire.headers import Headers


@dataclasses.dataclass(slots=True)
class Request:
    """A request with its whole body.

    Args:
        method: upper-case method.
        target: path and query as received, percent-encoding untouched.
        headers: end-to-end fields, names in lower case.
        body: the whole body.
        peer: the client's address, for logs.
    """

    method: str
    target: str
    headers: Headers
    body: bytes
    peer: str = ""

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]


@dataclasses.dataclass(slots=True)
class Response:
    """An answer with its whole body; fields as in `Request`."""

    status: int
    headers: Headers = ()
    body: bytes = b""


class UpstreamError(Exception):
    """An upstream request that got no complete answer."""


class ConnectFailed(UpstreamError):
    """No connection could be made: the request was surely not executed."""


class ConnectionLost(UpstreamError):
    """The connection ended before a complete answer: the request may have been executed."""


class AnswerUnreadable(ConnectionLost):
    """What came back is no HTTP/1.1 answer; the request may have been executed."""


class UpstreamTimeout(UpstreamError):
    """No complete answer in time."""


Handler = Callable[[Request], Awaitable[Response]]
"""Answers one request. It is cancelled when the client goes away; it never raises anything else."""


class Listener(Protocol):
    """One listening address of a front."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that are bound (the real port where 0 was asked for)."""
        ...

    async def close(self) -> None:
        """Stop to listen here; connections that are open end after their current answer."""
        ...


class Front(Protocol):
    """Takes HTTP/1.1 requests on any number of addresses, each with its handler."""

    async def listen(self, host: str, port: int, handler: Handler, *, reuse_port: bool = False) -> Listener:
        """Listen on an address.

        Args:
            host: address to bind.
            port: port to bind, 0 for any free one.
            handler: answers the requests that come in here.
            reuse_port: let several processes share the port.

        Raises:
            OSError: the address cannot be bound.
        """
        ...

    def close_keepalive(self, *, idle: bool = True) -> None:
        """From now on every answer closes its connection.

        Args:
            idle: close the connections that are idle now, too. A client may just be sending on one, so a
                drain does this only when nobody is told to come here any more.
        """
        ...

    def open_keepalive(self) -> None:
        """Take `close_keepalive` back: connections are kept open between requests again."""
        ...

    async def close(self, grace: float) -> None:
        """Stop to listen everywhere, wait up to `grace` seconds for answers under way, close all."""
        ...


class Upstream(Protocol):
    """Sends HTTP/1.1 requests over pooled connections."""

    async def send(self, host: str, port: int, request: Request, *, timeout: float) -> Response:
        """Send a request and return the whole answer, whatever its status.

        Args:
            host: address of the server.
            port: its port.
            request: what to send; `target` goes out byte for byte.
            timeout: seconds for the whole exchange, connecting included.

        Raises:
            ConnectFailed: surely not executed.
            ConnectionLost: sent, answer incomplete.
            UpstreamTimeout: time is over.
        """
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...
