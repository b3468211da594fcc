"""What crosses the edge of Penstock: header fields in and out, the request's id, its time. Pure.

Of the `x-penstock-*` fields only a client's own few come in, and only the reason of an error of ours, and the
backend that answered, go out.
"""

from __future__ import annotations

import re
from typing import Final

from penstock_wire.control.router_settings import Endpoint
from penstock_wire.errors import Reason
from penstock_wire.headers import (
    FROM_CLIENT,
    NOT_ADMITTED,
    PREFIX,
    QUEUE,
    REASON,
    REQUEST_ID,
    RETRY,
    TIMEOUT_MS,
    Headers,
    get,
    without,
)

BACKEND: Final = b"x-penstock-backend"
"""Tells a client which backend answered."""

VIA: Final = (b"via", b"1.1 penstock-router")
"""RFC 9110 section 7.6.3: what a gateway adds to a request that it forwards."""
MAX_FORWARDS: Final = b"max-forwards"
_NAME_THIS_SERVER: Final = (b"location", b"content-location")
"""Fields of an answer with a URL that leads back to the server (RFC 9110 sections 10.2.2 and 8.7)."""

_URL = re.compile(rb"(https?)://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)
_ID_LINE: Final = REQUEST_ID + b": "
_MOST_QUEUED: Final = 10**9
_FORWARDED = FROM_CLIENT - {TIMEOUT_MS}
_REASONS = {reason.value.encode(): reason.value for reason in Reason}


def inward(headers: Headers) -> Headers:
    """The fields for a sidecar, but for those of one request alone: its id and the time that is left."""
    kept = [
        field
        for field in headers
        if (not field[0].startswith(PREFIX) or field[0] in _FORWARDED) and field[0] != REQUEST_ID
    ]
    return (*kept, VIA)


def one_hop_less(method: str, headers: Headers) -> Headers | None:
    """The fields with one hop less in `Max-Forwards` (RFC 9110 section 7.6.2), which counts for two methods.

    Args:
        method: of the request.
        headers: its fields.

    Returns:
        The fields to forward; None where the request may go no further and is to be answered here.
    """
    left = get(headers, MAX_FORWARDS) if method in ("OPTIONS", "TRACE") else None
    if left is None or not left.isdigit() or len(left) > 9:
        return headers
    if not int(left):
        return None
    return (*without(headers, (MAX_FORWARDS,)), (MAX_FORWARDS, b"%d" % (int(left) - 1)))


class AnswerFields:
    """What the fields of an answer, interim or final, say, and which of them may reach the client.

    Args:
        headers: its fields.
    """

    __slots__ = ("_queued", "headers", "lines", "outward", "queued", "reason", "refuses")

    def __init__(self, headers: Headers) -> None:
        self.headers = headers
        self.queued = -1
        """Items in the queue of the sidecar that answered; -1 where it does not say."""
        self.reason = ""
        """Why, where the answer is an error of Penstock's."""
        self.refuses = False
        """Whether it says that the request was not executed."""
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
                self.refuses = True
            elif name == QUEUE and value.isdigit() and len(value) < 10:
                self.queued = int(value)
        self._queued = self.queued
        self.outward: Headers = tuple(outward)
        """The fields for the client."""
        self.lines = b""
        """Lines of further ones, which this answer alone has."""

    def take(self, lines: bytes) -> None:
        """Note what an answer with these fields says in lines of its own.

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
    """The fields of an answer whose request lost its route: a `Location` gets it back.

    Only a URL of the server that the client has asked is changed: an absolute path, or an http URL of its
    host. A relative one leads on from the client's own URL, which has the route.

    Args:
        headers: the fields.
        route: what was taken from the request's target, as the client wrote it; empty for nothing.
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
    """The lines of the head of an answer that are its own: the request's id, and the backend that answered.

    Args:
        identity: the request's id.
        backend: the backend; empty for none.
    """
    if not backend:
        return b"x-request-id: %b\r\n" % identity
    return b"x-request-id: %b\r\nx-penstock-backend: %b\r\n" % (identity, backend)


def request_lines(identity: bytes, left: float) -> bytes:
    """The lines of the head of a request to a pod that are its own: its id, and the time that it has.

    Args:
        identity: the request's id.
        left: seconds.
    """
    return b"x-request-id: %b\r\nx-penstock-timeout-ms: %d\r\n" % (identity, max(1, int(left * 1000)))


RETRY_LINE: Final = b"%b: 1\r\n" % RETRY
"""The line of a request that a pod has counted and refused."""


def allows(endpoint: Endpoint, method: str) -> bool:
    """Whether an endpoint takes a method; one that lists none takes any."""
    return not endpoint.methods or method in endpoint.methods
