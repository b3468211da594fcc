"""A request and an answer, as the Protocols of `http` use them.

NB: if this module is compiled, so must be each module with a subclass: otherwise Python code could extend the
classes, and each access to an attribute would be a lookup by name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final

from penstock_wire.headers import Headers

if TYPE_CHECKING:
    from penstock_wire.http.body import BodyReader

Interim = Callable[[int, Headers], None]

CONTINUE: Final = 100
"""The status that asks for the body after `expect` (RFC 9110 section 10.1.1)."""

NO_BODY_STATUS: Final = frozenset({204, 304})
"""Final answers without a body, whatever their fields say (RFC 9110 sections 15.3.5 and 15.4.5)."""

LAST_LINES: Final = [b"content-length: %d\r\n\r\n" % length for length in range(2048)]
"""The end of a head, by the length of the body."""


class Request:
    """A request.

    Args:
        method: upper-case method.
        target: path and query as received, percent-encoding untouched.
        headers: end-to-end fields, names in lower case. Requests that share the same object are cheaper to
            send; fields that differ among them are then in `lines`.
        body: the whole body; empty if there is a stream.
        peer: the client's address, for logs.
        stream: the body as it comes, if it is not whole.
        length: bytes of the stream, None if its sender gave none.
        upgrade: the protocol that the client asks to switch to, as sent (`websocket`); empty for none.
        interim: gets the status and the fields of each interim answer (RFC 9110 section 15.2) but 101; None
            drops them. 100 concerns this connection alone, and comes only with `expects`.
        fresh: send it on a new connection.
        lines: further fields of this request alone, for sending: each with its line's end (CR LF). They are
            sent unchecked, so their maker must know their bytes.

    `expects`, for sending, asks the server whether it wants the stream (`Expect`).

    `trailers`: whoever gets the answer takes fields behind its body (those of gRPC).

    `shared` are the first of a received request's `headers`, if many requests share them as one object:
    results derived from them hold for all of these requests. None = unknown.

    `recall` can be set by the service that has taken the request. It hands the request back (answered as not
    executed) unless any of it has started, and returns the number of its items, else 0.
    """

    __slots__ = (
        "body",
        "expects",
        "fresh",
        "headers",
        "interim",
        "length",
        "lines",
        "method",
        "peer",
        "recall",
        "shared",
        "stream",
        "target",
        "trailers",
        "upgrade",
    )

    def __init__(
        self,
        method: str,
        target: str,
        headers: Headers,
        body: bytes,
        peer: str = "",
        stream: BodyReader | None = None,
        length: int | None = None,
        upgrade: bytes = b"",
        interim: Interim | None = None,
        fresh: bool = False,  # noqa: FBT001, FBT002 - mypyc calls faster by position
        lines: bytes = b"",
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.body = body
        self.peer = peer
        self.stream = stream
        self.length = length
        self.upgrade = upgrade
        self.interim = interim
        self.fresh = fresh
        self.lines = lines
        self.expects = False
        self.trailers = False
        self.shared: Headers | None = None
        self.recall: Callable[[], int] | None = None

    def __repr__(self) -> str:
        return f"Request({self.method} {self.target}, {self.headers}, {self.body[:100]!r})"

    @property
    def fields(self) -> Headers:
        """All fields: `headers`, then those in `lines`."""
        return self.headers + _fields_of(self.lines)

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]


class Trailers:
    """The fields behind an answer's body: complete when that has ended.

    Args:
        fields: end-to-end fields.
    """

    __slots__ = ("fields",)

    def __init__(self, fields: Headers = ()) -> None:
        self.fields = fields


class Response:
    """An answer; fields as in `Request`.

    A stream is sent as it comes, chunked unless `length` is given. If it raises, the connection is cut before
    the body's end, so that no client takes a part for the whole. Its `aclose`, if it has one, is called when
    the client leaves.

    Args:
        status: the status code.
        headers: end-to-end fields. Answers that share the same object are cheaper to send.
        body: the whole body; empty if there is a stream.
        stream: the body as it comes.
        length: bytes of the stream, or of the body that an answer to HEAD leaves out; None if unknown.

    `lines` are further fields of this answer alone, each with its line's end (CR LF): in an answer to send,
    the service's own; in a received answer, the sidecar's. They are sent unchecked, so their maker must know
    their bytes.

    `trailers` are sent behind the body to a client that takes some (`Request.trailers`).
    """

    __slots__ = ("body", "headers", "length", "lines", "status", "stream", "trailers")

    def __init__(
        self,
        status: int,
        headers: Headers = (),
        body: bytes = b"",
        stream: AsyncIterator[bytes] | None = None,
        length: int | None = None,
    ) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.stream = stream
        self.length = length
        self.lines = b""
        self.trailers: Trailers | None = None

    @property
    def fields(self) -> Headers:
        """All fields: `headers`, then those in `lines`."""
        return self.headers + _fields_of(self.lines)

    def __repr__(self) -> str:
        return f"Response({self.status}, {self.headers}, {self.lines!r}, {self.body[:100]!r})"


def _fields_of(lines: bytes) -> Headers:
    pairs = [line.partition(b": ") for line in lines.splitlines()]
    return tuple([(name, value) for name, _, value in pairs])
