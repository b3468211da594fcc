"""Renders the head of an upstream request; interprets the fields of an answer's head, and its length."""

from __future__ import annotations

from typing import Final

from penstock_wire.headers import IN_VALUES, PER_CONNECTION, Headers, end_to_end
from penstock_wire.http import Request, UpstreamError
from penstock_wire.http.messages import LAST_LINES

JOIN_BYTES: Final = 64 * 1024
"""Smaller request bodies are sent in one write with their head."""
MAX_HEAD_BYTES: Final = 1024 * 1024
"""Most bytes of an answer's head and the interim ones before it, and of framing between a body's pieces."""

_NOT_SENT: Final = PER_CONNECTION | {b"expect"}  # this client does not wait for `100 Continue`
_END_OF_FIELDS: Final = b"\r\n\r\n"
_MAY_LACK_BODY: Final = frozenset({"GET", "HEAD", "DELETE", "OPTIONS", "TRACE"})
_NAME_NO_FIELD: Final = frozenset({b"close", b"keep-alive", b"Keep-Alive", b"upgrade", b"Upgrade"})
"""Values of `Connection` that name no end-to-end field of an answer."""

_MAX_KNOWN: Final = 1024
_MAX_KNOWN_BYTES: Final = 4096
"""Longer beginnings are not kept: clients choose their length."""


class _Beginning:
    """The lines that a request has in common with others.

    Args:
        request: the first of these requests.
        where: the host and port for a request without `host`.
        lines: the lines, without the empty line at the end.
    """

    __slots__ = ("headers", "lines", "method", "target", "where")

    def __init__(self, request: Request, where: str, lines: bytes) -> None:
        self.method = request.method
        self.target = request.target
        self.headers = request.headers
        self.where = where
        self.lines = lines


_known: Final[dict[int, _Beginning]] = {}
"""By the address of the shared fields object (which is kept, so that the address stays its own)."""


def encode_head(request: Request, where: str) -> bytes:
    """Render the request line and the fields, with the framing of the body and a host.

    Args:
        request: the request to send.
        where: the host and port to send if the request has no `host`.

    Raises:
        UpstreamError: a field would be read as two, or the request line is malformed.
    """
    own = request.lines
    if not own:
        beginning = _beginning(request, where)
    else:
        known = _known.get(id(request.headers))
        if (
            known is None
            or known.headers is not request.headers
            or known.target != request.target
            or known.where != where
            or known.method != request.method
        ):
            known = _Beginning(request, where, _beginning(request, where))
            if len(known.lines) <= _MAX_KNOWN_BYTES:
                if len(_known) >= _MAX_KNOWN:
                    _known.clear()
                _known[id(request.headers)] = known
        beginning = known.lines
    length = len(request.body)
    if request.stream is None and not request.upgrade and (length or request.method not in _MAY_LACK_BODY):
        return beginning + own + (LAST_LINES[length] if length < 2048 else _length_line(length) + b"\r\n")
    lines = [beginning, own]
    if request.expects:
        lines.append(b"expect: 100-continue\r\n")
    if request.stream is not None:
        if request.length is None:
            lines.append(b"transfer-encoding: chunked\r\n")
        else:
            lines.append(_length_line(request.length))
    elif length or (request.method not in _MAY_LACK_BODY and not request.upgrade):
        lines.append(_length_line(length))
    if request.upgrade:
        line = b"connection: upgrade\r\nupgrade: %b\r\n" % request.upgrade
        if len(line.translate(None, IN_VALUES)) != 4:
            raise _unlike_a_line(where)
        lines.append(line)
    lines.append(b"\r\n")
    return b"".join(lines)


def _beginning(request: Request, where: str) -> bytes:
    """Render the request line and the fields, including a host."""
    lines = [f"{request.method} {request.target} HTTP/1.1\r\n".encode("latin-1", "replace")]
    if lines[0].count(b" ") != 2:
        raise UpstreamError(f"the request for {where} cannot be sent: a space in its method or target")
    hosted = False
    for name, value in request.headers:
        if name not in _NOT_SENT:
            lines.append(b"%b: %b\r\n" % (name, value))
            if name == b"host":
                hosted = True
    if not hosted:
        lines.append(f"host: {where}\r\n".encode("latin-1"))
    head = b"".join(lines)
    if len(head.translate(None, IN_VALUES)) != 2 * len(lines):
        raise _unlike_a_line(where)
    return head


def _length_line(length: int) -> bytes:
    return b"content-length: %d\r\n" % length


def _unlike_a_line(where: str) -> UpstreamError:
    return UpstreamError(
        f"the request for {where} cannot be sent: expected fields of one line each, and no controls"
    )


def blank_lines_follow(data: bytes, length: int) -> bool:
    """Whether CR or LF follow a complete answer; the parser skips them without a callback.

    Args:
        data: the bytes received last; a head or the last chunk ends in them.
        length: bytes of the body after that head.
    """
    end = len(data) - length
    before = data[max(0, end - 5) : end]
    return not _END_OF_FIELDS.endswith(before[-4:]) or before[:-4] in (b"\r", b"\n")


def body_length(framing: list[tuple[bytes, bytes]], *, old: bool) -> tuple[int | None, bool]:
    """Return the length of an answer's body, None if its fields have none, and whether it is chunked.

    Args:
        framing: its fields that concern the connection.
        old: whether it is of HTTP/1.0.

    Raises:
        ValueError: another reader could see a different body.
    """
    length: int | None = None
    chunked = False
    for name, value in framing:
        if name == b"content-length":
            length = int(value)
        elif name == b"transfer-encoding":
            if chunked or old or value.lower() != b"chunked":  # once, and HTTP/1.0 has none
                raise ValueError("expected transfer-encoding chunked, found another")
            chunked = True
    return length, chunked


def old_keeps(framing: list[tuple[bytes, bytes]]) -> bool:
    """Whether an answer of HTTP/1.0 keeps its connection (RFC 9112 section 9.3): the parser ignores `close`.

    Args:
        framing: its fields that concern the connection.
    """
    values = b",".join([value for name, value in framing if name == b"connection"])
    named = {token.strip(b" \t").lower() for token in values.split(b",")}
    return b"keep-alive" in named and b"close" not in named


def forwarded(framing: list[tuple[bytes, bytes]], fields: list[tuple[bytes, bytes]]) -> Headers:
    """Return the end-to-end fields of an answer.

    Args:
        framing: its fields that concern the connection.
    """
    for name, value in framing:
        if name == b"connection" and value not in _NAME_NO_FIELD:
            return end_to_end((*framing, *fields))
    return tuple(fields)


def switches_to(upgrade: bytes, framing: list[tuple[bytes, bytes]]) -> bool:
    """Whether an answer switches to a protocol that the request asked for.

    Args:
        upgrade: the request's `Upgrade` field.
        framing: the answer's fields that concern the connection.
    """
    asked = {name.strip().lower() for name in upgrade.split(b",")} - {b""}
    upgrades = [value.lower() for name, value in framing if name == b"upgrade"]
    return len(upgrades) == 1 and upgrades[0] in asked
