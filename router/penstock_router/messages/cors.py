"""Answers cross-origin requests of web pages: preflights, and fields that let a page read an answer. Pure.

Source: the Fetch standard (https://fetch.spec.whatwg.org/), section "HTTP CORS protocol". CORS protects
pages' users, not the model: a request from an origin that is not listed is served like any other, but its
page cannot read the answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock_router.messages.header_policy import BACKEND
from penstock_wire.control.router_settings import ANY_ORIGIN, Cors
from penstock_wire.headers import FROM_CLIENT, REASON, REQUEST_ID, Headers, get
from penstock_wire.http import Request, Response
from penstock_wire.http.server.head import METHODS

ORIGIN = b"origin"
ALLOW_ORIGIN = b"access-control-allow-origin"
REQUEST_METHOD = b"access-control-request-method"

MAX_AGE_SECONDS = 600
"""How long a browser may cache the answer to a preflight."""

_EXPOSED = b", ".join([b"retry-after", b"server-timing", BACKEND, REASON, REQUEST_ID])
_ALWAYS_ALLOWED = {b"content-type", REQUEST_ID, *FROM_CLIENT}
_VARY = (b"vary", ORIGIN)


def is_preflight(request: Request) -> bool:
    """Whether this request is a browser's question whether a page may send another one."""
    return (
        request.method == "OPTIONS"
        and get(request.headers, ORIGIN) is not None
        and get(request.headers, REQUEST_METHOD) is not None
    )


class Policy:
    """The rules for web pages that use one endpoint.

    Args:
        cors: the endpoint's `cors`.
        methods: the methods that the endpoint takes; empty for any.
    """

    def __init__(self, cors: Cors, methods: Sequence[str]) -> None:
        self._origins = frozenset(origin.encode() for origin in cors.origins)
        self._any = ANY_ORIGIN in cors.origins
        credentials: Headers = ((b"access-control-allow-credentials", b"true"),) if cors.credentials else ()
        self._readable: Headers = (*credentials, (b"access-control-expose-headers", _EXPOSED))
        takes = methods or sorted(set(METHODS.values()) - {"CONNECT", "TRACE"})
        fields = sorted(_ALWAYS_ALLOWED | {name.lower().encode() for name in cors.headers})
        self._preflight: Headers = (
            *credentials,
            (b"access-control-allow-methods", ", ".join(takes).encode()),
            (b"access-control-allow-headers", b", ".join(fields)),
            (b"access-control-max-age", b"%d" % MAX_AGE_SECONDS),
        )

    def preflight(self, request: Request) -> Response:
        """The answer to a preflight; it allows nothing if the origin is not listed."""
        allowed = self._allowed(request.headers)
        return Response(204, (*self._varies(), *((*allowed, *self._preflight) if allowed else ())))

    def marked(self, answer: Headers, request: Headers) -> Headers:
        """Add the fields that let the requesting page read an answer.

        An answer with an `Access-Control-Allow-Origin` stays unchanged: the model implements CORS itself.
        """
        if get(answer, ALLOW_ORIGIN) is not None:
            return answer
        allowed = self._allowed(request)
        varies = () if _VARY in answer else self._varies()  # a preflight's answer has it already
        return (*answer, *varies, *((*allowed, *self._readable) if allowed else ()))

    def _allowed(self, request: Headers) -> Headers:
        """The field that allows the request's origin; empty if it is not listed."""
        if self._any:
            return ((ALLOW_ORIGIN, b"*"),)
        origin = get(request, ORIGIN)
        return ((ALLOW_ORIGIN, origin),) if origin in self._origins else ()

    def _varies(self) -> Headers:
        """The field that makes caches keep answers by origin, also the one to a request without an origin."""
        return () if self._any else (_VARY,)
