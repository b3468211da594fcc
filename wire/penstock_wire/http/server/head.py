"""Checks and renders heads of requests and answers: pure functions, for the connection to use.

The parser (llhttp) has refused heads that are unreadable or ambiguous: a length beside chunked, two lengths,
a bare CR or LF, folded fields, space before a colon. Faults that RFC 9110 and 9112 leave to the server are
refused here.
"""

from __future__ import annotations

import email.utils
import http
import re
import time

from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import IN_VALUES, PER_CONNECTION, REQUEST_ID, Headers, get
from penstock_wire.http.head_cache import FIELD_BYTES as FIELD_BYTES
from penstock_wire.http.server import limits

Fields = list[tuple[bytes, bytes]]

SPECIAL = PER_CONNECTION | {b"expect", b"host"}
"""Fields that the front itself reads. All but `host` are not passed on."""
METHODS = {
    name.encode(): name for name in ("GET", "POST", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
}

_PHRASES = {status.value: status.phrase.encode() for status in http.HTTPStatus}
_OUR_OWN = PER_CONNECTION | {b"date"}
_HOST = re.compile(
    rb"(?:\[[0-9A-Fa-fVv][0-9A-Fa-f:.\-_~!$&'()*+,;=]*\]|\[::[0-9A-Fa-f:.]*\]"
    rb"|(?:[A-Za-z0-9\-._~!$&'()*+,;=]|%[0-9A-Fa-f]{2})*)(?::[0-9]{0,5})?"
)
_TARGET = re.compile(r"[!-~\x80-\xff]+")
_JOIN_FIELD = b": ".join
_WHOLE_CONNECTION = re.compile(rb"(?i)(?:^|[,\s])(?:h2c|http|tls)(?:[/,\s]|$)")
"""Protocols of a connection, not of the one path that a request names: HTTP/2, for which Java asks with each
request (obsolete: RFC 9113 section 3.1), and TLS. Such a switch would carry requests past all checks."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The beginning of a connection of HTTP/2 (RFC 9113 section 3.4)."""


class Framing:
    """The meaning of a request's uncommon fields.

    Args:
        keep: the connection can be kept for another request.
        old: the client speaks HTTP/1.0.
        chunked: the body is chunked.
        length: bytes of the body; 0 if chunked.
        expects: the client waits for `100 Continue`.
        upgrade: the protocol that it asks for, empty for none.
        named: fields that `Connection` names.
    """

    __slots__ = ("chunked", "expects", "keep", "length", "named", "old", "upgrade")

    def __init__(self) -> None:
        self.keep = True
        self.old = False
        self.chunked = False
        self.length = 0
        self.expects = False
        self.upgrade = b""
        self.named: frozenset[bytes] = frozenset()


def framing(version: str, special: Fields, *, keep: bool) -> Framing:
    """Read the fields that concern this connection.

    Args:
        version: the request's HTTP version, as `1.1`.
        special: its fields that are among `SPECIAL`.
        keep: the parser's decision on keeping the connection.

    Raises:
        PenstockError: 400, 501 or 505.
    """
    if version not in ("1.1", "1.0"):
        raise PenstockError(Reason.BAD_REQUEST, f"expected HTTP/1.1, found HTTP/{version}", status=505)
    parsed = Framing()
    parsed.old = version == "1.0"
    hosts = 0
    named: set[bytes] = set()
    for name, value in special:
        if name == b"host":
            hosts += 1
            check_host(value)
        elif name == b"content-length":
            if not value.isdigit():
                raise PenstockError(Reason.BAD_REQUEST, "expected a number as content-length")
            parsed.length = int(value)
        elif name == b"transfer-encoding":
            if value.lower() != b"chunked" or parsed.chunked:
                raise PenstockError(
                    Reason.BAD_REQUEST, f"expected transfer-encoding chunked, found {value!r}", status=501
                )
            if parsed.old:
                raise PenstockError(Reason.BAD_REQUEST, "expected no transfer-encoding in HTTP/1.0")
            parsed.chunked = True
        elif name == b"connection":
            named.update(token.strip(b" \t").lower() for token in value.split(b","))
        elif name == b"expect":
            # RFC 9110 section 10.1.1: in a request of HTTP/1.0 it has no meaning.
            parsed.expects = value.lower() == b"100-continue" and not parsed.old
        elif name == b"upgrade" and not parsed.old:  # RFC 9110 section 7.8
            parsed.upgrade = value
    if hosts > 1 or (not hosts and not parsed.old):
        raise PenstockError(Reason.BAD_REQUEST, f"expected one Host field, found {hosts}")
    # NB: `Connection: host` would remove a field that every request must have.
    parsed.named = frozenset(named - {b"", b"host"})
    # NB: in HTTP/1.0 the parser lets `keep-alive` beat a `close` (RFC 9112 section 9.3: it must not), and
    # takes it from `Proxy-Connection`, too (appendix C.2.2: a proxy passed that on, and waits for the end).
    parsed.keep = keep and b"close" not in named and (not parsed.old or b"keep-alive" in named)
    if b"upgrade" not in named or parsed.length or parsed.chunked or _WHOLE_CONNECTION.search(parsed.upgrade):
        # NB: before its whole body has come, no request can switch (RFC 9110 section 7.8); a request with a
        # body is answered as if it had not asked.
        parsed.upgrade = b""
    return parsed


def check_host(value: bytes) -> None:
    """Refuse a value that is not `uri-host [":" port]` (RFC 9112 section 3.2).

    Raises:
        PenstockError: 400.
    """
    if _HOST.fullmatch(value) is None:
        raise PenstockError(Reason.BAD_REQUEST, "expected a Host field of the form host or host:port")


def origin_form(method: str, url: bytes) -> tuple[str, bytes | None]:
    """Return the target as a path, and the host in the target, if any (RFC 9112 section 3.2).

    Raises:
        PenstockError: 400, if the target is not a path, an http URL, or `*` with OPTIONS.
    """
    target = url.decode("latin-1")
    bad = PenstockError(Reason.BAD_REQUEST, "expected a path or an http URL as the request's target")
    if method == "CONNECT" or "#" in target or _TARGET.fullmatch(target) is None:
        raise bad
    if target[0] == "/":
        return target, None
    if target == "*" and method == "OPTIONS":
        return target, None
    scheme, separator, rest = target.partition("://")
    if not separator or scheme.lower() not in ("http", "https"):
        raise bad
    end = min([index for index in (rest.find("/"), rest.find("?")) if index >= 0], default=len(rest))
    authority, path = rest[:end].encode("latin-1"), rest[end:]
    # RFC 9110 sections 4.2.1 and 4.2.4: no empty host, no user.
    if not authority or authority[:1] == b":" or _HOST.fullmatch(authority) is None:
        raise bad
    if not path and method == "OPTIONS":
        return "*", authority
    return (path if path[:1] == "/" else "/" + path), authority


def interim_head(status: int, headers: Headers) -> bytes:
    """Render the head of a 1xx answer, which is the whole answer.

    Raises:
        ValueError: a field would be read as a different one.
    """
    lines = b"".join([b"%b: %b\r\n" % field for field in headers])
    if len(lines.translate(None, IN_VALUES)) != 2 * len(headers):
        raise ValueError("expected header fields of one line each, without control characters")
    return b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, _PHRASES.get(status, b"Unknown"), lines)


class AnswerHead:
    """Renders heads of answers. The part that all answers of a status share is made once a second.

    The part that answers with the same fields object share is made once: a batch's answers share the model's.
    """

    __slots__ = ("_fields", "_firsts", "_now", "_shared", "_status")

    def __init__(self) -> None:
        self._firsts: dict[int, bytes] = {}
        self._now = 0
        self._fields: Headers = ()
        self._status = 0
        self._shared = b""

    def tick(self) -> None:
        """Update the time of day (RFC 9110 section 6.6.1)."""
        now = int(time.time())
        if now != self._now:
            self._now = now
            self._firsts.clear()
            self._status = 0

    def first(self, status: int) -> bytes:
        """Return the status line and the date.

        Raises:
            ValueError: the status is not final.
        """
        cached = self._firsts.get(status)
        if cached is None:
            if not 200 <= status <= 999:
                raise ValueError(f"expected a final status, found {status}")
            date = email.utils.formatdate(self._now or time.time(), usegmt=True).encode()
            line = b"HTTP/1.1 %d %b\r\n" % (status, _PHRASES.get(status, b"Unknown"))
            cached = self._firsts[status] = b"%bdate: %b\r\n" % (line, date)
        return cached

    def beginning(self, status: int, headers: Headers) -> bytes:
        """Render status line, date and end-to-end fields; the caller adds the connection's own and the end.

        Raises:
            ValueError: a field would be read as a different one (RFC 9110 section 5.5).
        """
        if headers is self._fields and status == self._status:
            return self._shared
        rendered = self._render(status, headers)
        self._fields, self._status, self._shared = headers, status, rendered
        return rendered

    def _render(self, status: int, headers: Headers) -> bytes:
        first = self.first(status)
        for field in headers:
            if field[0] in _OUR_OWN:
                first, headers = self._without_ours(status, headers)
                break
        if not headers:
            return first
        lines = b"\r\n".join(map(_JOIN_FIELD, headers))
        # Each control character in it must be a CR or LF that was just put between the fields.
        if len(lines.translate(None, IN_VALUES)) != 2 * (len(headers) - 1):
            raise ValueError("expected header fields of one line each, without control characters")
        return b"%b%b\r\n" % (first, lines)

    def _without_ours(self, status: int, headers: Headers) -> tuple[bytes, Headers]:
        """Return first lines and fields without those that the front writes; a `date` among them stays."""
        first = self.first(status)
        if any(name == b"date" for name, _ in headers):
            first = first[: first.index(b"\r\n") + 2]
        return first, tuple(field for field in headers if field[0] not in PER_CONNECTION)


def cannot_read(error: object, data: bytes) -> PenstockError:
    """Return 400 for bytes that are not a request; 505 for the beginning of HTTP/2."""
    if data.startswith(PREFACE[:16]):
        return PenstockError(Reason.BAD_REQUEST, "expected HTTP/1.1, found HTTP/2", status=505)
    detail = (
        "found a TLS handshake, and this port speaks plain HTTP"
        if data[:2] == b"\x16\x03"
        else f"found: {error}"
    )
    return PenstockError(Reason.BAD_REQUEST, f"expected an HTTP/1.1 request, {detail}")


def fields_too_large(detail: str) -> PenstockError:
    """Return 431 for a head beyond a limit."""
    return PenstockError(Reason.TOO_LARGE, f"{detail}, found more", status=431)


def head_too_large(target: bytes, most: int) -> PenstockError:
    """Return 414 for a head of more than `most` bytes if most of them are the target's, else 431."""
    if 2 * len(target) <= most:
        return fields_too_large(f"expected a head of at most {most} bytes")
    # RFC 9112 section 3
    detail = f"expected a head of at most {most} bytes, found a target of at least {len(target)}"
    return PenstockError(Reason.TOO_LARGE, detail, status=414)


def check_size(url: bytes, fields: Fields, most: int) -> None:
    """Refuse a head that is too large.

    Args:
        url: its target.
        fields: its fields.
        most: limit for the bytes of both together.

    Raises:
        PenstockError: 414 or 431.
    """
    if len(fields) > limits.MAX_FIELDS:
        raise fields_too_large(f"expected at most {limits.MAX_FIELDS} header fields")
    if len(url) + sum(len(name) + len(value) for name, value in fields) > most:
        raise head_too_large(url, most)


def size(target: str, fields: Headers) -> int:
    """Return the approximate memory of a head in bytes.

    Args:
        target: its target.
        fields: its fields.
    """
    return len(target) + sum(FIELD_BYTES + len(name) + len(value) for name, value in fields)


def no_room() -> PenstockError:
    """Return 503 for a request if all connections together hold too much of unfinished ones."""
    return PenstockError(Reason.TOO_LARGE, "expected room for one more unfinished request", status=503)


def body_too_large(fields: Headers, most: int, actual: str) -> PenstockError:
    """Return 413 for a body that is taken whole.

    Args:
        fields: its request's.
        most: bytes that it could have.
        actual: what was found.
    """
    request_id = (get(fields, REQUEST_ID) or b"").decode("latin-1")
    return PenstockError(
        Reason.TOO_LARGE,
        f"expected a body of at most {most} bytes, found {actual}",
        extra={"request_id": request_id} if request_id else None,
    )
