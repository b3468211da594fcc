"""What a data plane needs of HTTP, as two Protocols: `Front` takes requests, `Upstream` sends them.

Whoever implements them keeps hop-by-hop matters (framing, keep-alive, `Connection`) to itself: a handler sees
end-to-end fields only, and sets no `content-length`.

A body is whole (`body`), or a stream that is read piece by piece (`stream`); what is not read is not
received, so a slow side slows the other one down. A `Tunnel` is what a connection becomes when both sides
switch protocols (WebSocket).

Errors::

    UpstreamError
        ConnectFailed       surely not executed: no connection could be made
            ConnectTimeout      not in the time that there was
        ConnectionLost      sent, then lost: may or may not have been executed
            PeerSilent          not even the kernel of the other machine says anything
            RequestUnread       closed before the whole request was read: it cannot have been executed
                RequestNotTaken by the server's own word
            AnswerUnreadable    sent, and what came back is no HTTP answer
        UpstreamTimeout     no complete answer in time
    ClientGone              the client ended its connection in the middle of its body or of a tunnel

Read in this order: `messages` (requests and answers), `body` (what is read piece by piece), the Protocols
below, `server` and `client` (which implement them), `head_cache` (heads that came before, of both),
`memory` (what all connections may keep),
`answer_stream` (an answer that is passed on) and `tunnel` (connections that have switched protocols).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from penstock_wire.headers import Headers
from penstock_wire.http.body import BodyReader as BodyReader
from penstock_wire.http.body import Tunnel as Tunnel
from penstock_wire.http.messages import Request as Request
from penstock_wire.http.messages import Response as Response


class UpstreamError(Exception):
    """An upstream request that got no complete answer."""


class ConnectFailed(UpstreamError):
    """No connection could be made: the request was surely not executed."""


class ConnectTimeout(ConnectFailed):
    """No connection could be made in the time that there was, which may have been the request's own."""


class NotAdmitted(UpstreamError):
    """The upstream answered that it had executed nothing (`x-penstock-not-admitted`).

    Args:
        text: for people.
        retry_after: seconds in which it asks to be asked again; None where it said nothing of that.
    """

    def __init__(self, text: str, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class ConnectionLost(UpstreamError):
    """The connection ended before a complete answer: the request may have been executed."""


class GivenUp(ConnectionLost):
    """The exchange was ended here: nobody wanted its answer any more."""


class PeerSilent(ConnectionLost):
    """Nothing came from the peer's machine any more, not even from its kernel."""


class RequestUnread(ConnectionLost):
    """The server had closed a kept connection, or closed it with a part of the request unread.

    Only its kernel can say so, by a reset before the first byte of an answer.
    """


class RequestNotTaken(RequestUnread):
    """The server said that it had not taken the request, which holds however late it says so."""


class AnswerUnreadable(ConnectionLost):
    """What came back is no HTTP/1.1 answer; the request may have been executed."""


class UpstreamTimeout(UpstreamError):
    """No complete answer in time."""


class ClientGone(Exception):
    """The client ended its connection in the middle of its body or of a tunnel."""


class Exchange(Protocol):
    """One request on its connection, to be answered once.

    `gone` may be set to what is to be called when the client goes away before its answer; it is called at
    most once, never after `answer`.
    """

    @property
    def request(self) -> Request:
        """What came in."""
        ...

    gone: Callable[[], object] | None

    def answer(self, response: Response) -> None:
        """Send the answer; nothing happens where the client is gone, or where it was answered."""
        ...

    def interim(self, status: int, headers: Headers) -> None:
        """Send an interim answer (RFC 9110 section 15.2), such as 103.

        Nothing happens where the client is gone, was answered, or speaks HTTP/1.0, which has none.

        Args:
            status: 102 to 199.
            headers: its fields.
        """
        ...

    def switch(self, headers: Headers) -> Tunnel:
        """Answer `101 Switching Protocols` and give the connection away; only for a request with `upgrade`.

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
"""Asked when a request's head is complete: whether its body is to be a stream. Then, and where the request
asks to switch protocols, the exchange begins at once."""


class Listener(Protocol):
    """One listening address of a front."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that are bound (the real port where 0 was asked for)."""
        ...

    def close_keepalive(self) -> None:
        """Have each answer close its connection; idle connections stay for one more request."""
        ...

    def open_keepalive(self) -> None:
        """Take `close_keepalive` back."""
        ...

    async def close(self) -> None:
        """Stop to listen here; connections that are open end after their current answer."""
        ...


class Front(Protocol):
    """Takes HTTP/1.1 requests on any number of addresses, each with its handler."""

    async def listen(self, host: str, port: int, handler: Handler, *, reuse_port: bool = False) -> Listener:
        """Listen on an address, with whole bodies and a task for each request.

        No connection switches protocols; a request's `upgrade` says that its client has asked for it, and its
        `interim` sends an interim answer, as `Exchange.interim` does.

        Args:
            host: address to bind; `::` for all of the machine, of IPv6 and of IPv4.
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
            host: address to bind; `::` for all of the machine, of IPv6 and of IPv4.
            port: port to bind, 0 for any free one.
            service: takes the exchanges.
            streams: which bodies are streams; None = none, and no request may switch protocols.
            whole_bytes: `streams` is not asked about a body that is said to have so many bytes or fewer.
            reuse_port: let several processes share the port.

        Raises:
            OSError: the address cannot be bound.
        """
        ...

    def close_keepalive(self, *, idle: bool = True) -> None:
        """From now on every answer closes its connection.

        Args:
            idle: close the connections that are idle now, too. A client may just be sending on one, so a
                drain does this only when no client is sent here any more.
        """
        ...

    def open_keepalive(self) -> None:
        """Take `close_keepalive` back: connections are kept open between requests again."""
        ...

    async def close(self, grace: float) -> None:
        """Stop to listen everywhere, wait up to `grace` seconds for answers under way, close all."""
        ...


class UpstreamAnswer(Protocol):
    """The beginning of an upstream's answer; its body is read from `stream`."""

    status: int
    headers: Headers
    length: int | None
    """Bytes of the body, None where the upstream did not say."""
    stream: BodyReader
    tunnel: Tunnel | None
    """The connection, after 101; `headers` then have `connection` and `upgrade`."""

    def whole(self) -> bytes | None:
        """What is left of the body where its end has come already, None where more will come."""
        ...

    def kept(self) -> int:
        """Bytes of the body that have come and were not read."""
        ...

    def abort(self) -> None:
        """Let go: a body that was not read to its end costs the connection. No-op after the end."""
        ...


Done = Callable[[Response | UpstreamError], None]
"""Gets the whole answer, or why there is none."""
Opened = Callable[[Response | UpstreamAnswer | UpstreamError], None]
"""Gets the whole answer, its beginning where it is to be read as it comes, or why there is none."""
GiveUp = Callable[[], None]
"""Ends an exchange whose answer is not wanted any more; no-op where it has ended."""


class Upstream(Protocol):
    """Sends HTTP/1.1 requests over pooled connections."""

    def begin(self, host: str, port: int, request: Request, timeout: float, done: Done) -> GiveUp | None:
        """Send a request at once, without a task, where a connection is there for it.

        Args:
            host: address of the server.
            port: its port.
            request: what to send; its body is whole.
            timeout: seconds for the exchange.
            done: called once, never before this returns; it may begin the next exchange.

        Returns:
            What gives the exchange up, `done` being called then as well; None where no connection is idle, or
            the request wants a fresh one: nothing was sent, and `send` makes one.

        Raises:
            UpstreamError: the request cannot be sent as it is.
        """
        ...

    def begin_open(
        self,
        host: str,
        port: int,
        request: Request,
        timeout: float,
        idle: float,
        whole_bytes: int,
        opened: Opened,
    ) -> GiveUp | None:
        """As `begin`, but a long answer is read as it comes.

        Args:
            host: see `begin`, as the following two.
            port: see `begin`.
            request: see `begin`.
            timeout: seconds for a short answer; for a long one until its head.
            idle: seconds within which each piece of a long one must follow once it is waited for.
            whole_bytes: an answer is long where its head says more bytes than these, or does not say how
                many, unless all of it came with its head.
            opened: called once, never before this returns; a long answer is given when its head is there.

        Returns:
            See `begin`; a long answer is given up by its own `abort`.

        Raises:
            UpstreamError: see `begin`.
        """
        ...

    async def send(
        self,
        host: str,
        port: int,
        request: Request,
        *,
        timeout: float,
        connected: Callable[[], object] | None = None,
    ) -> Response:
        """Send a request and return the whole answer, whatever its status.

        Args:
            host: address of the server.
            port: its port.
            request: what to send; `target` goes out byte for byte.
            timeout: seconds for the whole exchange, connecting included.
            connected: called when a connection was made, before anything is sent; not where one was kept.
                What it raises ends that connection, and the request with it.

        Raises:
            ConnectFailed: surely not executed.
            RequestUnread: sent on a kept connection, and surely not executed.
            ConnectionLost: sent, answer incomplete.
            UpstreamTimeout: time is over.
        """
        ...

    async def open(
        self,
        host: str,
        port: int,
        request: Request,
        *,
        timeout: float,
        idle: float | None = None,
        connected: Callable[[], object] | None = None,
    ) -> UpstreamAnswer:
        """Send a request, its stream as it comes, and return when the answer's head is there.

        An answer that comes before the end of the request's body ends the sending of that body. A request
        with `upgrade` is sent with its `Connection: upgrade`.

        Args:
            host: address of the server.
            port: its port.
            request: what to send.
            timeout: seconds until the head of the answer, connecting included; while the request's body is
                under way, until the next piece of it is taken.
            idle: seconds within which each piece of the answer must follow once it is waited for; None = as
                `timeout`.
            connected: as in `send`.

        Raises:
            ConnectFailed: surely not executed.
            ConnectionLost: sent, no answer.
            UpstreamTimeout: time is over.
            ClientGone: the request's stream ended early.
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
