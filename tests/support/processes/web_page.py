"""A page in a browser, as far as CORS goes: it asks by preflight, and reads what it is allowed to.

Source: the Fetch standard (https://fetch.spec.whatwg.org/), sections "CORS-preflight fetch", "CORS check" and
"CORS-safelisted response-header name".
"""

from __future__ import annotations

import dataclasses

from tests.support.processes.router_process import Reply, RouterProcess

_SAFE_METHODS = {"GET", "HEAD", "POST"}
_SAFE_TYPES = {"application/x-www-form-urlencoded", "multipart/form-data", "text/plain"}
_SAFE_FIELDS = {"accept", "accept-language", "content-language"}
_ALWAYS_READABLE = {
    "cache-control",
    "content-language",
    "content-length",
    "content-type",
    "expires",
    "last-modified",
    "pragma",
}


class Blocked(Exception):
    """An error that a page sees as a network error; the message names the step that failed."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page.

    Args:
        credentials: whether its requests have cookies (`credentials: "include"`).
    """

    router: RouterProcess
    origin: str
    credentials: bool = False

    async def fetch(
        self, path: str, *, method: str = "POST", headers: dict[str, str] | None = None, body: str = "{}"
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a request; the status, the fields and the body that the page can read (raises Blocked)."""
        fields = {name.lower(): value for name, value in (headers or {}).items()}
        unsafe = {name for name, value in fields.items() if not _is_safe(name, value)}
        if unsafe or method not in _SAFE_METHODS:
            await self._ask(path, method, unsafe)
        reply = await self.router.ask(
            path, method=method, headers={**fields, "origin": self.origin}, data=body.encode()
        )
        self._check(reply, "answer")
        readable = _ALWAYS_READABLE | _names(reply, "access-control-expose-headers")
        return (
            reply.status,
            {name.lower(): reply.headers[name] for name in reply.headers if name.lower() in readable},
            reply.body,
        )

    async def _ask(self, path: str, method: str, unsafe: set[str]) -> None:
        fields = {"origin": self.origin, "access-control-request-method": method}
        if unsafe:
            fields["access-control-request-headers"] = ",".join(sorted(unsafe))
        reply = await self.router.ask(path, method="OPTIONS", headers=fields)
        if not 200 <= reply.status < 300:
            raise Blocked(f"preflight: status {reply.status}")
        self._check(reply, "preflight")
        allowed = reply.headers.get("access-control-allow-methods", "").replace(" ", "").split(",")
        if method not in _SAFE_METHODS and method not in allowed:
            raise Blocked(f"preflight: method {method}")
        if refused := unsafe - _names(reply, "access-control-allow-headers"):
            raise Blocked(f"preflight: fields {sorted(refused)}")

    def _check(self, reply: Reply, step: str) -> None:
        """The CORS check; several fields of one name are joined by commas, which is not a valid origin."""
        origins = ", ".join(reply.headers.getall("access-control-allow-origin", []))
        if origins == "*" and not self.credentials:
            return
        if origins != self.origin:
            raise Blocked(f"{step}: origin {origins!r}")
        if self.credentials and reply.headers.getall("access-control-allow-credentials", []) != ["true"]:
            raise Blocked(f"{step}: credentials")


def _is_safe(name: str, value: str) -> bool:
    if name == "content-type":
        return value.partition(";")[0].strip().lower() in _SAFE_TYPES
    return name in _SAFE_FIELDS


def _names(reply: Reply, field: str) -> set[str]:
    values = ",".join(reply.headers.getall(field, []))
    return {name.strip().lower() for name in values.split(",") if name.strip()}
