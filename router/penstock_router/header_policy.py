"""What crosses the edge of Penstock: header fields in and out, the request's id, its time. Pure.

Of the `x-penstock-*` fields only a client's own few come in, and only the reason of an error of ours, and the
backend that answered, go out.
"""

from __future__ import annotations

import re
import uuid

from penstock_wire import contract
from penstock_wire.control.router_settings import Endpoint
from penstock_wire.headers import (
    FROM_CLIENT,
    PREFIX,
    REASON,
    REQUEST_ID,
    TIMEOUT_MS,
    Headers,
    get,
    without,
)
from penstock_wire.http import Response

BACKEND = b"x-penstock-backend"
"""Tells a client which backend answered."""

VIA = (b"via", b"1.1 penstock-router")
"""RFC 9110 section 7.6.3: what a gateway adds to a request that it forwards."""
MAX_FORWARDS = b"max-forwards"
_NAME_THIS_SERVER = (b"location", b"content-location")
"""Fields of an answer with a URL that leads back to the server (RFC 9110 sections 10.2.2 and 8.7)."""

_URL = re.compile(rb"(https?)://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)
_FORWARDED = FROM_CLIENT - {TIMEOUT_MS}


def request_id(headers: Headers) -> str:
    """The client's `x-request-id` where it is usable (1 to 128 visible ASCII characters), else a new one."""
    found = get(headers, REQUEST_ID)
    if found is not None and contract.REQUEST_ID.fullmatch(found):
        return found.decode("ascii")
    return uuid.uuid4().hex


def inward(headers: Headers, *, identity: str) -> Headers:
    """The fields for a sidecar, but for the time that is left (`with_time`)."""
    kept = [
        field
        for field in headers
        if (not field[0].startswith(PREFIX) or field[0] in _FORWARDED) and field[0] != REQUEST_ID
    ]
    return (*kept, VIA, (REQUEST_ID, identity.encode("ascii")))


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


def with_time(headers: Headers, seconds: float) -> Headers:
    """The fields with the time that is left, in whole milliseconds, at least 1."""
    return (*headers, (TIMEOUT_MS, str(max(1, int(seconds * 1000))).encode()))


def outward_fields(headers: Headers) -> Headers:
    """The fields of an answer, interim or final, that may reach the client."""
    return tuple(
        [
            field
            for field in headers
            if (not field[0].startswith(PREFIX) or field[0] == REASON) and field[0] != REQUEST_ID
        ]
    )


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
    found = _URL.fullmatch(url)
    if found is None or found[2].lower() != host.lower():
        return url
    rest = found[3] if found[3][:1] == b"/" else b"/" + found[3]
    return b"%b://%b%b%b" % (found[1], found[2], route, rest)


def outward(answer: Response, *, identity: str, backend: str) -> Response:
    """The answer for the client."""
    marks = [(REQUEST_ID, identity.encode("ascii"))]
    if backend:
        marks.append((BACKEND, backend.encode()))
    return Response(
        status=answer.status,
        headers=(*outward_fields(answer.headers), *marks),
        body=answer.body,
        stream=answer.stream,
        length=answer.length,
    )


def allows(endpoint: Endpoint, method: str) -> bool:
    """Whether an endpoint takes a method; one that lists none takes any."""
    return not endpoint.methods or method in endpoint.methods
