"""A request and an answer; `http` says what they are for.

NB: where this module is compiled, so must be a module with a subclass: what reads a class that Python may
extend looks each attribute up by its name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final

from penstock_wire.headers import Headers

if TYPE_CHECKING:
    from penstock_wire.http.body import BodyReader

Interim = Callable[[int, Headers], None]

CONTINUE: Final = 100
"""The status by which a server asks for the body behind `expect` (RFC 9110 section 10.1.1)."""

NO_BODY_STATUS: Final = frozenset({204, 304})
"""Final answers without a body, whatever their fields say (RFC 9110 sections 15.3.5 and 15.4.5)."""

LAST_LINES: Final = [b"content-length: %d\r\n\r\n" % length for length in range(2048)]
"""The end of a head, by the length of the body."""


class Request:
    """A request.

    Args:
        method: upper-case method.
        target: path and query as received, percent-encoding untouched.
        headers: end-to-end fields, names in lower case. Requests that share the very same object are cheaper
            to send; what differs among them is then in `lines`.
        body: the whole body; empty where there is a stream.
        peer: the client's address, for logs.
        stream: the body as it comes, where it is not whole.
        length: bytes of the stream, None where its sender did not say.
        upgrade: the protocol that the client asks to switch to, as sent (`websocket`); empty for none.
        interim: gets the status and the fields of each interim answer (RFC 9110 section 15.2) but 101; None
            drops them. 100 is for this connection alone, and comes where it `expects`.
        fresh: send it on a new connection.
        lines: further fields, of this request alone, of one that is sent: each with its line's end (CR LF).
            They are sent as they are, so their maker must know their bytes.

    `expects` asks the server, of one that is sent, whether it wants the stream (`Expect`).

    `shared` are the first of `headers` of one that was received, where they are an object that many requests
    have: what is made of them once holds for all of these. None = nobody knows.

    `recall` may be set by who has taken it: called, it hands the request back unless any of it has begun to
    be executed (it is answered as not executed), and says how many items that were; 0 where it did not.
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
        self.shared: Headers | None = None
        self.recall: Callable[[], int] | None = None

    def __repr__(self) -> str:
        return f"Request({self.method} {self.target}, {self.headers}, {self.body[:100]!r})"

    @property
    def fields(self) -> Headers:
        """All fields: `headers`, and behind them what `lines` hold."""
        return self.headers + _fields_of(self.lines)

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]


class Response:
    """An answer; fields as in `Request`.

    A stream is sent as it comes, chunked unless `length` is given. When it raises, the connection is cut
    before the body's end, so that no client takes a part for the whole. Its `aclose` is called when the
    client goes away, where it has one.

    Args:
        status: the status code.
        headers: end-to-end fields. Answers that share the very same object are cheaper to send.
        body: the whole body; empty where there is a stream.
        stream: the body as it comes.
        length: bytes of the stream, or of the body that an answer to HEAD leaves out; None where it is not
            knows.

    `lines` are further fields, each with its line's end (CR LF), of this answer alone: of one that is sent
    what the service itself says, and of one that was received what a sidecar says. They are sent as they
    are, so their maker must know their bytes.
    """

    __slots__ = ("body", "headers", "length", "lines", "status", "stream")

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

    @property
    def fields(self) -> Headers:
        """All fields: `headers`, and behind them what `lines` hold."""
        return self.headers + _fields_of(self.lines)

    def __repr__(self) -> str:
        return f"Response({self.status}, {self.headers}, {self.lines!r}, {self.body[:100]!r})"


def _fields_of(lines: bytes) -> Headers:
    pairs = [line.partition(b": ") for line in lines.splitlines()]
    return tuple([(name, value) for name, _, value in pairs])
