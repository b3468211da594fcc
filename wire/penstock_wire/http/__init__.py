"""The data planes' interface to HTTP, two Protocols: `Front` takes requests, `Upstream` sends them.

Implementations keep hop-by-hop matters (framing, keep-alive, `Connection`) to themselves: a handler sees only
end-to-end fields, and sets no `content-length`.

A body is whole (`body`), or a stream that is read piece by piece (`stream`); unread bytes are not received,
so a slow side slows the other one down. A connection becomes a `Tunnel` when both sides switch protocols
(WebSocket).

Errors::

    UpstreamError
        ConnectFailed       surely not executed: no connection could be made
            ConnectTimeout      not within the time allowed
        NotAdmitted         surely not executed: the upstream says so
        NotCarried          surely not executed: the upstream never takes such a request
        ConnectionLost      sent, then lost: may or may not have been executed
            GivenUp             ended on this side: the answer was no longer wanted
            PeerSilent          not even the other machine's kernel responds
            RequestUnread       closed before the whole request was read: it cannot have been executed
                RequestNotTaken by the server's own word
            AnswerUnreadable    sent, and the bytes that came back are not an HTTP answer
        UpstreamTimeout     no complete answer in time
        SenderFailed        what the sender gave has failed: the request's stream, or `connected`
    ClientGone              the client ended its connection in the middle of its body or of a tunnel

Read in this order: `messages` (requests and answers), `body` (bodies read piece by piece), the Protocols
below, `sending` (waits for an answer in a task), `server` and `client` (which implement the Protocols),
`head_cache` (heads that came before, for both), `caches` (bounds those, and others), `memory` (bounds the
memory of all connections),
`answer_stream` (an answer that is passed on) and `tunnel` (connections that have switched protocols).
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from penstock_wire.headers import Headers
from penstock_wire.http.body import BodyReader as BodyReader
from penstock_wire.http.body import Tunnel as Tunnel
from penstock_wire.http.messages import Request as Request
from penstock_wire.http.messages import Response as Response
from penstock_wire.http.messages import Trailers


class UpstreamError(Exception):
    """An upstream request that got no complete answer."""


class ConnectFailed(UpstreamError):
    """No connection could be made: the request was surely not executed."""


TELLING_SECONDS: Final = 0.2
"""A connect attempt that its request's own time cut shorter than this says nothing of the server: clients
choose their times, and others are not to be kept from it for that."""


class ConnectTimeout(ConnectFailed):
    """No connection could be made in the time allowed, which can be the request's own.

    Args:
        text: for people.
        seconds: the time allowed.
    """

    def __init__(self, text: str, seconds: float = math.inf) -> None:
        super().__init__(text)
        self.seconds = seconds


class NotAdmitted(UpstreamError):
    """The upstream answered that it had executed nothing (`x-penstock-not-admitted`).

    Args:
        text: for users.
        retry_after: seconds after which the upstream wants a retry; None if it gave none.
    """

    def __init__(self, text: str, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class NotCarried(UpstreamError):
    """The upstream speaks no protocol that can carry this request."""


class ConnectionLost(UpstreamError):
    """The connection ended before a complete answer: the request may have been executed."""


class GivenUp(ConnectionLost):
    """The exchange was ended on this side: its answer was no longer wanted."""


class PeerSilent(ConnectionLost):
    """Nothing comes from the peer's machine any more, not even from its kernel."""


class RequestUnread(ConnectionLost):
    """The server had closed a kept connection, or closed it with part of the request unread.

    Only its kernel can show this, by a reset before the first byte of an answer.
    """


class RequestNotTaken(RequestUnread):
    """The server reported that it had not taken the request; this holds however late the report comes."""


class AnswerUnreadable(ConnectionLost):
    """The bytes that came back are not an HTTP/1.1 answer; the request may have been executed."""


class UpstreamTimeout(UpstreamError):
    """No complete answer came in time."""


class SenderFailed(UpstreamError):
    """What the sender gave has failed: the request's stream, or `connected`.

    Args:
        where: host and port of the server.
        error: what it raised.
    """

    def __init__(self, where: str, error: Exception) -> None:
        super().__init__(f"{where}: {error}")
        self.error = error


class ClientGone(Exception):
    """The client ended its connection in the middle of its body or of a tunnel."""


class Exchange(Protocol):
    """One request on its connection, to be answered once.

    `gone` can be set to a callback for when the client leaves before its answer; it is called at most once,
    never after `answer`.
    """

    @property
    def request(self) -> Request:
        """The request that came in."""
        ...

    gone: Callable[[], object] | None

    def answer(self, response: Response) -> None:
        """Send the answer; no-op if the client is gone, or was answered."""
        ...

    def interim(self, status: int, headers: Headers) -> None:
        """Send an interim answer (RFC 9110 section 15.2), such as 103.

        No-op if the client is gone, was answered, or speaks HTTP/1.0, which has no interim answers.

        Args:
            status: 102 to 199.
            headers: its fields.
        """
        ...

    def switch(self, headers: Headers) -> Tunnel:
        """Answer `101 Switching Protocols` and give up the connection; only for a request with `upgrade`.

        Args:
            headers: the answer's fields, `Connection` and `Upgrade` included.

        Raises:
            ClientGone: the client is gone.
        """
        ...


Service = Callable[[Exchange], None]
"""Takes a request in the turn of the loop in which it became complete; answers it then or later."""
Handler = Callable[[Request], Awaitable[Response]]
"""Answers one request. It is cancelled when the client goes away; it never raises anything else."""
Streams = Callable[[Request], bool]
"""Called when a request's head is complete: whether its body is to be a stream. If so, or if the request asks
to switch protocols, the exchange begins at once."""


class Listener(Protocol):
    """One listening address of a front."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that are bound (the real port if 0 was asked for)."""
        ...

    def close_keepalive(self) -> None:
        """Make each answer close its connection; idle connections stay for one more request."""
        ...

    def open_keepalive(self) -> None:
        """Undo `close_keepalive`."""
        ...

    async def close(self) -> None:
        """Stop listening here; open connections end after their current answer."""
        ...


class Front(Protocol):
    """Takes HTTP/1.1 requests on any number of addresses, each with its handler."""

    async def listen(self, host: str, port: int, handler: Handler, *, reuse_port: bool = False) -> Listener:
        """Listen on an address, with whole bodies and a task for each request.

        Connections never switch protocols here; a request's `upgrade` gives the protocol that its client asks
        for, and its `interim` sends an interim answer, as `Exchange.interim` does.

        Args:
            host: address to bind; `::` for all addresses of the machine, IPv6 and IPv4.
            port: port to bind, 0 for any free one.
            handler: answers the requests that come in here.
            reuse_port: let several processes share the port.

        Raises:
            OSError: the address cannot be bound.
        """
        ...

    async def serve(
        self,
        host: str,
        port: int,
        service: Service,
        *,
        streams: Streams | None = None,
        whole_bytes: int = 0,
        reuse_port: bool = False,
    ) -> Listener:
        """Listen on an address, without a task for each request.

        Args:
            host: address to bind; `::` for all addresses of the machine, IPv6 and IPv4.
            port: port to bind, 0 for any free one.
            service: takes the exchanges.
            streams: decides which bodies are streams; None = no body, and no request can switch protocols.
            whole_bytes: `streams` is not asked about a body with an announced length of at most this.
            reuse_port: let several processes share the port.

        Raises:
            OSError: the address cannot be bound.
        """
        ...

    def close_keepalive(self, *, idle: bool = True) -> None:
        """Make every answer from now on close its connection.

        Args:
            idle: also close the connections that are idle now. A client can be about to send on one, so a
                drain does this only when clients are no longer sent here.
        """
        ...

    def open_keepalive(self) -> None:
        """Undo `close_keepalive`: connections are kept open between requests again."""
        ...

    async def close(self, grace: float) -> None:
        """Stop listening everywhere, wait up to `grace` seconds for answers under way, close all."""
        ...


class UpstreamAnswer(Protocol):
    """The beginning of an upstream's answer; its body is read from `stream`."""

    status: int
    headers: Headers
    length: int | None
    """Bytes of the body, None if the upstream gave none."""
    stream: BodyReader
    trailers: Trailers | None
    tunnel: Tunnel | None
    """The connection, after 101; `headers` then have `connection` and `upgrade`."""

    def whole(self) -> bytes | None:
        """Return the rest of the body if its end has come already, None if more will come."""
        ...

    def kept(self) -> int:
        """Return the number of received and unread bytes of the body."""
        ...

    def abort(self) -> None:
        """Let go of the answer: an incompletely read body costs the connection. No-op after the end."""
        ...


Opened = Callable[[Response | UpstreamAnswer | UpstreamError], None]
"""Gets the whole answer, its beginning if its body is read as it comes, or the error."""
GiveUp = Callable[[], None]
"""Ends an exchange that has an unwanted answer; no-op if it has ended."""
ALL_BYTES: Final = 1 << 60
"""For `whole_bytes`: each answer is passed whole, also one without a length."""
AT_HEAD: Final = -1
"""For `whole_bytes`: the beginning of each answer is passed, also of one that came with its head."""


class Upstream(Protocol):
    """Sends HTTP/1.1 requests over pooled connections; `sending` has functions that wait for the answer."""

    def begin(
        self,
        host: str,
        port: int,
        request: Request,
        timeout: float,
        idle: float,
        whole_bytes: int,
        opened: Opened,
        connected: Callable[[], object] | None = None,
    ) -> GiveUp:
        """Send a request, its stream as it comes: at once if a connection is idle, else on a new one.

        An answer before the end of the request's stream stops the sending of that, unless it is a long 2xx.
        A request with `upgrade` is sent with its `Connection: upgrade`.

        Args:
            host: address of the server.
            port: its port.
            request: what to send; `target` goes out byte for byte.
            timeout: seconds for a short answer, connecting included; for a long one, until its head; while
                the request's stream is under way, until its next piece is accepted.
            idle: longest time in seconds that a reader waits for each piece of a long answer.
            whole_bytes: an answer is long if its head announces more bytes than this, or no number, unless
                all of it came with its head; or `ALL_BYTES`, `AT_HEAD`.
            opened: called once, never before this returns; a long answer is passed when its head is there.
                It may begin the next exchange.
            connected: called when a connection was made, before anything is sent; not for a kept one. An
                exception in it ends that connection and the request.

        Returns:
            The function that gives the exchange up (it calls `opened`, too); a long answer that has begun is
            given up by its own `abort`.

        Raises:
            UpstreamError: the request cannot be sent as it is.
        """
        ...

    def retire(self, host: str, port: int) -> None:
        """Send nothing more on any connection there that was made before this call.

        Args:
            host: address of the server.
            port: its port.
        """
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...
