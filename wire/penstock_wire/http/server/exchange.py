"""One request and its answer, as the service sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import Headers
from penstock_wire.http import ClientGone, Request, Response, Tunnel
from penstock_wire.http.memory import REQUEST_BYTES
from penstock_wire.http.server import head as heads
from penstock_wire.http.server import streams
from penstock_wire.process import log

if TYPE_CHECKING:
    from penstock_wire.http.server.interfaces import Successor


class Owner:
    """The connection, as its exchanges and its reader see it: `connection.H1Connection`.

    A base class, not a Protocol, like `http.client.answer.Carrier`. It is never instantiated.

    Attributes:
        current: the exchange under way.
    """

    __slots__ = ("current",)

    current: H1Exchange | None

    def answer(self, exchange: H1Exchange, response: Response) -> None:
        """Send the answer of the exchange under way, and continue with the next."""
        raise NotImplementedError

    def interim(self, status: int, headers: Headers) -> None:
        """Send an interim answer of the exchange under way."""
        raise NotImplementedError

    def switch(self, headers: Headers) -> Tunnel:
        """Answer 101 and become a tunnel."""
        raise NotImplementedError

    def abort(self) -> None:
        """Close now, whatever is under way."""
        raise NotImplementedError

    def busy(self) -> bool:
        """Whether an exchange is under way, or waits."""
        raise NotImplementedError

    def enqueue(self, exchange: H1Exchange) -> None:
        """Pass an exchange to the service, now or when its turn comes."""
        raise NotImplementedError

    def stream_came(self, exchange: H1Exchange, unread: int) -> None:
        """Note that a stream has come to its end, with so many bytes unread."""
        raise NotImplementedError

    def refuse(self, error: PenstockError) -> None:
        """Answer an error after the exchanges in line; read nothing more."""
        raise NotImplementedError

    def hand_over(self, make: Successor, rest: bytes) -> None:
        """Pass the connection to the object that serves it from here on.

        Args:
            make: makes the object.
            rest: bytes that were received for it.
        """
        raise NotImplementedError

    def end_now(self) -> None:
        """End the connection so that the client can read what was written, even if it is still sending."""
        raise NotImplementedError


class H1Exchange:
    """An `Exchange`; its request is complete, or has a stream."""

    __slots__ = ("complete", "connection", "counted", "expects", "gone", "keep", "old", "plain", "request")

    def __init__(self, connection: Owner, request: Request, *, keep: bool) -> None:
        self.connection: Owner | None = connection
        self.request = request
        self.gone: Callable[[], object] | None = None
        self.keep = keep
        self.old = False  # HTTP/1.0
        self.expects = False  # the client waits for `100 Continue`
        self.counted = 0  # bytes of it in the connection's `_line_bytes`
        self.complete = False  # the whole body was received
        self.plain = False  # complete, of HTTP/1.1, and its answer has a body and is not the last

    def kept(self) -> int:
        """Return the bytes that are kept of its request."""
        request = self.request
        kept = REQUEST_BYTES + heads.size(request.target, request.headers) + len(request.body)
        stream = request.stream
        return kept + stream.kept() if isinstance(stream, streams.Inbound) else kept

    def answer(self, response: Response) -> None:
        connection = self.connection
        if connection is not None:
            self.connection = self.gone = None
            connection.answer(self, response)
        elif response.stream is not None:
            streams.close_in_background(response.stream)

    def fail(self, error: BaseException) -> None:
        """Log an exception of the service, answer 500 and close."""
        log("handler failed", level="error", error=repr(error))
        self.keep = self.plain = False
        self.answer(PenstockError(Reason.INTERNAL, f"{type(error).__name__} in a handler").response())

    def interim(self, status: int, headers: Headers) -> None:
        if self.connection is not None and not self.old:
            self.connection.interim(status, headers)

    def switch(self, headers: Headers) -> Tunnel:
        if self.connection is None:
            raise ClientGone("the client is gone, or was answered")
        if not self.request.upgrade:
            raise ValueError("expected a request that asks to switch protocols")
        connection = self.connection
        tunnel = connection.switch(headers)
        self.connection = self.gone = None
        return tunnel
