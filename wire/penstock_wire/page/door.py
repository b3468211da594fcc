"""Answers a browser on loopback: the page, and what it asks for, as JSON.

Whoever reads or acts needs the token of the URL; a page of another site is refused by its `Origin`, a name
that leads here by `Host` (`http.server.local_clients`). The page itself holds no secret.
"""

from __future__ import annotations

import hmac
import importlib.resources
import json
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import get
from penstock_wire.http import Request, Response
from penstock_wire.http.server.local_clients import of_another_site

CODE_SECONDS = 60.0
"""How long the browser that is opened here has to use its code."""

_ASSETS = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
}
_HEADERS = (
    (
        b"content-security-policy",
        (
            b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
            b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
        ),
    ),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class Door:
    """Handles the requests of the page.

    Args:
        answer: what becomes JSON, of a request below `/api/` that has the token.
    """

    def __init__(self, answer: Callable[[Request], Awaitable[Any]]) -> None:
        self._answer = answer
        self._token = secrets.token_urlsafe(32)
        self._codes: dict[str, float] = {}
        self._spent: set[str] = set()
        self._stolen = False
        """Whether a code was used twice, so by somebody whom the browser did not serve."""
        folder = importlib.resources.files("penstock_wire.page") / "static"
        self._assets = {
            path: (content_type.encode(), (folder / name).read_bytes())
            for path, (name, content_type) in _ASSETS.items()
        }

    def fragment(self) -> str:
        """The part of the URL that lets its reader in; browsers do not send it on."""
        return f"#token={self._token}"

    def code(self) -> str:
        """The same for one use, within a minute: a program's arguments can be read by others."""
        code = secrets.token_urlsafe(16)
        self._codes[code] = time.monotonic() + CODE_SECONDS
        return f"#code={code}"

    async def handle(self, request: Request) -> Response:
        """Answer a request."""
        try:
            if (error := of_another_site(request.headers)) is not None:
                raise error
            path = request.path
            if path in self._assets:
                content_type, body = self._assets[path]
                return Response(200, (*_HEADERS, (b"content-type", content_type)), body)
            if path == "/api/token" and request.method == "POST":
                return _json({"token": self._exchange(request.body.decode("latin-1"))})
            self._admit(request)
            return _json(await self._answer(request))
        except PenstockError as error:
            refused = error.response()
            return Response(refused.status, (*_HEADERS, *refused.headers), refused.body)

    def _exchange(self, code: str) -> str:
        if code in self._spent:  # whoever was first has the token
            self._token, self._stolen = secrets.token_urlsafe(32), True
            raise self._refusal()
        if self._codes.pop(code, 0.0) < time.monotonic():
            raise PenstockError(Reason.FORBIDDEN, "expected a code that was not used yet, found another")
        self._spent.add(code)
        return self._token

    def _admit(self, request: Request) -> None:
        given = get(request.headers, b"authorization") or b""
        if not hmac.compare_digest(given, b"Bearer " + self._token.encode()):
            raise self._refusal()

    def _refusal(self) -> PenstockError:
        if self._stolen:
            detail = "the code was used by somebody else: start the command again"
        else:
            detail = "expected the token of this page's URL: open what the command printed, or start it again"
        return PenstockError(Reason.FORBIDDEN, detail)


def _json(document: Any) -> Response:
    try:
        body = json.dumps(document, allow_nan=False).encode()
    except ValueError as error:
        raise PenstockError(Reason.INTERNAL, f"expected numbers that JSON has: {error}") from error
    return Response(200, (*_HEADERS, (b"content-type", b"application/json")), body)
