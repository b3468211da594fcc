"""The fields that cross the edge of Penstock: header fields in and out, the request's id, its time. Pure.

Of the `x-penstock-*` fields, only the few that clients may send come in; only the reason of an error of
Penstock's and the backend that answered go out.
"""

from __future__ import annotations

import re
from typing import Final

from penstock_wire.control.router_settings import Endpoint
from penstock_wire.errors import Reason
from penstock_wire.headers import (
    FROM_CLIENT,
    HELD,
    NOT_ADMITTED,
    PREFIX,
    QUEUE,
    REASON,
    REQUEST_ID,
    RETRY,
    TIMEOUT_MS,
    UNREAD,
    Headers,
    get,
    without,
)

BACKEND: Final = b"x-penstock-backend"
"""The name of the backend that answered, for the client."""

VIA: Final = (b"via", b"1.1 penstock-router")
"""The field that a gateway adds to a request that it forwards (RFC 9110 section 7.6.3)."""
MAX_FORWARDS: Final = b"max-forwards"
_NAME_THIS_SERVER: Final = (b"location", b"content-location")
"""Fields of an answer whose URL can lead back to the server (RFC 9110 sections 10.2.2 and 8.7)."""

_URL = re.compile(rb"(https?)://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)
_ID_LINE: Final = REQUEST_ID + b": "
_MOST_QUEUED: Final = 10**9
_FORWARDED = FROM_CLIENT - {TIMEOUT_MS}
_REASONS = {reason.value.encode(): reason.value for reason in Reason}


def inward(headers: Headers) -> Headers:
    """The fields for a sidecar, except those that differ for each request: its id and the time left."""
    kept = [
        field
        for field in headers
        if (not field[0].startswith(PREFIX) or field[0] in _FORWARDED) and field[0] != REQUEST_ID
    ]
    return (*kept, VIA)


def one_hop_less(method: str, headers: Headers) -> Headers | None:
    """Take one hop off `Max-Forwards` (RFC 9110 section 7.6.2), which has a meaning for two methods only.

    Returns:
        The fields to forward; None if the request must not go further and is to be answered here.
    """
    left = get(headers, MAX_FORWARDS) if method in ("OPTIONS", "TRACE") else None
    if left is None or not left.isdigit() or len(left) > 9:
        return headers
    if not int(left):
        return None
    return (*without(headers, (MAX_FORWARDS,)), (MAX_FORWARDS, b"%d" % (int(left) - 1)))


class AnswerFields:
    """The fields of an answer, interim or final, as read; and those of them that may reach the client."""

    __slots__ = ("_queued", "headers", "lines", "outward", "queued", "reason", "refuses", "unread")

    def __init__(self, headers: Headers) -> None:
        self.headers = headers
        self.queued = -1
        """Items in the queue of the sidecar that answered; -1 if it does not report them."""
        self.reason = ""
        """The reason, if the answer is an error of Penstock's; else empty."""
        self.refuses = False
        """Whether the answer states that the request was not executed."""
        self.unread = False
        """Whether it also states that the pod has not read it, and counted it as one item."""
        outward: list[tuple[bytes, bytes]] = []
        for field in headers:
            name, value = field
            if not name.startswith(PREFIX):
                if name != REQUEST_ID:
                    outward.append(field)
            elif name == REASON:
                outward.append(field)
                if not self.reason:
                    self.reason = _REASONS.get(value, "")
            elif name == NOT_ADMITTED:
                self.refuses, self.unread = True, value == UNREAD
            elif name == QUEUE and value.isdigit() and len(value) < 10:
                self.queued = int(value)
        self._queued = self.queued
        self.outward: Headers = tuple(outward)
        """The fields for the client."""
        self.lines = b""
        """The lines of further fields, which only this answer has."""

    def take(self, lines: bytes) -> None:
        """Read the lines that belong to one answer alone, beside these fields.

        Args:
            lines: a timing or nothing, an id, a queue (see `hop.heads.are_usual`), or nothing at all.
        """
        if not lines:
            self.queued, self.lines = self._queued, b""
            return
        at = len(lines) - 3
        queued, unit = 0, 1
        while 48 <= lines[at] <= 57 and unit < _MOST_QUEUED:
            queued += unit * (lines[at] - 48)
            unit *= 10
            at -= 1
        self.queued = queued if lines[at] == 32 else -1
        self.lines = b"" if lines.startswith(_ID_LINE) else lines[: lines.find(b"\n") + 1]


def under_route(headers: Headers, *, route: bytes, host: bytes) -> Headers:
    """Put the route that was taken from a request's target back into the URLs of its answer's fields.

    Only a URL of the server that the client has asked is changed: an absolute path, or an http URL of its
    host. A relative URL is resolved against the client's own URL, which has the route.

    Args:
        route: the route, as the client wrote it; empty for none.
        host: the `Host` of the request.
    """
    if not route or not any(name in _NAME_THIS_SERVER for name, _ in headers):
        return headers
    return tuple(
        [
            (name, _under_route(value, route, host)) if name in _NAME_THIS_SERVER else (name, value)
            for name, value in headers
        ]
    )


def _under_route(url: bytes, route: bytes, host: bytes) -> bytes:
    if url[:1] == b"/" and url[:2] != b"//":
        return route + url
    parts = _URL.fullmatch(url)
    if parts is None or parts[2].lower() != host.lower():
        return url
    rest = parts[3] if parts[3][:1] == b"/" else b"/" + parts[3]
    return b"%b://%b%b%b" % (parts[1], parts[2], route, rest)


def own_lines(identity: bytes, backend: bytes) -> bytes:
    """The head lines that differ for each answer: the request's id, and the backend that answered.

    Args:
        identity: the request's id.
        backend: the backend; empty for none.
    """
    if not backend:
        return b"x-request-id: %b\r\n" % identity
    return b"x-request-id: %b\r\nx-penstock-backend: %b\r\n" % (identity, backend)


def request_lines(identity: bytes, left: float) -> bytes:
    """The head lines that differ for each request to a pod: its id, and the time that it has left.

    Args:
        identity: the request's id.
    """
    return b"x-request-id: %b\r\nx-penstock-timeout-ms: %d\r\n" % (identity, max(1, int(left * 1000)))


RETRY_LINE: Final = b"%b: 1\r\n" % RETRY
"""The head line that marks a request which a pod has already counted and refused."""
UNREAD_LINE: Final = b"%b: %b\r\n" % (RETRY, UNREAD)
"""Instead of it if no pod has counted more than one of its items."""


HELD_LINE: Final = b"%b: 1\r\n" % HELD
"""The head line that marks a request which was held for a pod."""


def allows(endpoint: Endpoint, method: str) -> bool:
    """Whether an endpoint takes a method; an endpoint that lists no methods takes all."""
    return not endpoint.methods or method in endpoint.methods
