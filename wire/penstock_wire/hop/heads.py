r"""Heads on the hop: lines as in HTTP/1.1, sent once and then referred to by a slot's number. Pure.

A request's head is `METHOD target`, an answer's is its status; field lines follow, each with CR LF. Fields
that differ from request to request (its id, its time) are not in the head: these *own* fields come with the
request, in the same form. Both are checked, and refused, as the HTTP/1.1 front does with a head.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Final

from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import (
    IN_VALUES,
    PER_CONNECTION,
    QUEUE,
    REQUEST_ID,
    SERVER_TIMING,
    TIMEOUT_MS,
    Headers,
)
from penstock_wire.hop import frames
from penstock_wire.http.head_cache import MAX_FIELDS
from penstock_wire.http.server import head as heads
from penstock_wire.http.server import limits

OWN: Final = frozenset(
    {REQUEST_ID, TIMEOUT_MS, b"traceparent", b"tracestate", b"x-forwarded-for", b"x-real-ip"}
)
"""Fields that each request sends itself, outside the head that many requests share."""
NOT_SENT: Final = PER_CONNECTION | {b"expect"}

MAX_KNOWN: Final = 256
"""Most heads that all connections of a listener share."""

_COMMON = {name: name for name in (*OWN, QUEUE, SERVER_TIMING)}
"""Names in nearly every request or answer: known to be valid, and one object each."""
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_MOST_LINES = limits.MAX_FIELDS
_TIMING_LINE: Final = SERVER_TIMING + b": "
_ID_LINE: Final = REQUEST_ID + b": "
_CONTROLS_AS_SPACES: Final = bytes([46 if 0x20 <= byte <= 0x7E else 0x20 for byte in range(256)])
_QUEUE_LINE: Final = b"\r\n" + QUEUE + b": "


class RequestHead:
    """The shared head of requests, decoded.

    Args:
        method: the method.
        target: path and query.
        fields: the fields.
        size: bytes of target and fields.
        error: why requests cannot have this head; None if they can.
    """

    __slots__ = ("error", "fields", "method", "size", "target")

    def __init__(
        self, method: str, target: str, fields: Headers, size: int, error: PenstockError | None = None
    ) -> None:
        self.method = method
        self.target = target
        self.fields = fields
        self.size = size
        self.error = error


class AnswerHead:
    """The shared head of answers, decoded.

    Args:
        status: the status.
        fields: the fields.
    """

    __slots__ = ("fields", "status")

    def __init__(self, status: int, fields: Headers) -> None:
        self.status = status
        self.fields = fields


class SlotTable:
    """The sending side of a table of heads: the slot that a head has, or gets.

    A head gets its own slot when it is sent for the second time: until then it is in slot 0, for all
    consecutive requests with it. Clients choose heads, and a router has a table per pod: a head that was sent
    once costs only a hash, and a head of many fields gets no slot.
    """

    __slots__ = ("_keys", "_latest", "_latest_slot", "_next", "_seen", "_slots")

    def __init__(self) -> None:
        self._slots: dict[Hashable, int] = {}
        self._keys: list[Hashable] = [None] * frames.SLOTS
        self._seen: set[int] = set()  # hashes
        self._next = 1
        self._latest: Hashable = None
        self._latest_slot = 0

    def find(self, key: Hashable) -> int:
        """Return the slot of a head that the peer has; -1 if it must be sent."""
        slot = self._slots.get(key)
        if slot is not None:
            return slot
        return 0 if key == self._keys[0] else -1

    def put(self, key: Hashable, size: int, fields: int = 0) -> int:
        """Choose the slot for a head that is about to be sent; from then on the peer has it.

        Args:
            key: identifies the head.
            size: bytes of the head.
            fields: number of its fields.
        """
        short, known = size <= frames.SLOT_BYTES and fields <= MAX_FIELDS, hash(key)
        if not short or known not in self._seen:
            if short:
                if len(self._seen) >= 2 * frames.SLOTS:
                    self._seen.clear()
                self._seen.add(known)
            self._keys[0] = key
            return 0
        self._seen.discard(known)
        slot = self._next
        self._next = slot + 1 if slot + 1 < frames.SLOTS else 1
        before = self._keys[slot]
        if before is not None:
            del self._slots[before]
        self._keys[slot] = key
        self._slots[key] = slot
        return slot


def split(headers: Headers) -> tuple[Headers, Headers]:
    """Split a request's fields into those of its head and its own; both in order.

    Args:
        headers: the fields to send.
    """
    shared: list[tuple[bytes, bytes]] = []
    own: list[tuple[bytes, bytes]] = []
    for field in headers:
        (own if field[0] in OWN else shared).append(field)
    return tuple(shared), tuple(own)


def write_lines(fields: Headers) -> bytes:
    """Render field lines, without fields that concern one connection.

    Raises:
        ValueError: a field would be read as a different one.
    """
    lines: list[bytes] = []
    for name, value in fields:
        if name not in _COMMON:
            if _NAME.fullmatch(name) is None:
                raise ValueError("expected header fields with a name in lower case")
            if name in NOT_SENT:
                continue
        # NB: most values are letters and digits only, and `isalnum` is the faster check.
        if not value.isalnum() and value.translate(None, IN_VALUES):
            raise ValueError("expected header fields of one line each")
        lines.append(b"%b: %b\r\n" % (name, value))
    return b"".join(lines)


def read_lines(block: bytes) -> list[tuple[bytes, bytes]]:
    """Parse a block of field lines.

    NB: only the frame limits their number: a model chooses how many fields its answer has, and an answer that
    cannot be read would end the connection, with all requests on it.

    Raises:
        ValueError: the block is malformed.
    """
    lines = block.split(b"\r\n")
    if lines.pop():
        raise ValueError("expected a line's end behind each header field")
    fields: list[tuple[bytes, bytes]] = []
    for line in lines:
        written, colon, value = line.partition(b":")
        name = _COMMON.get(written) if colon else None
        if name is None:
            if not colon or _NAME.fullmatch(written) is None:
                raise ValueError("expected header fields with a name in lower case")
            name = written
        value = value.strip(b" \t")
        if not value.isalnum() and value.translate(None, IN_VALUES):
            raise ValueError("expected header fields without control characters")
        fields.append((name, value))
    return fields


def write_request(method: str, target: str, fields: Headers, where: str) -> bytes:
    """Render the head of a request.

    Args:
        method: the method.
        target: path and query.
        fields: the fields that it shares with other requests.
        where: the value of `Host` if the fields have none.

    Raises:
        ValueError: the peer would refuse it.
    """
    first = f"{method} {target}".encode("latin-1", "replace")
    if method not in _METHODS or first.count(b" ") != 1 or first.translate(None, IN_VALUES):
        raise ValueError("a space in its target, or another method than the common ones")
    hosted = any(name == b"host" for name, _ in fields)
    host = b"" if hosted else f"host: {where}\r\n".encode("latin-1")
    return b"%b\r\n%b%b" % (first, write_lines(fields), host)


_METHODS: Final = frozenset(heads.METHODS.values())


def read_request(block: bytes, most: int) -> RequestHead:
    """Parse the head of a request with the HTTP/1.1 front's checks; `error` is the front's answer to a fault.

    Args:
        block: its lines.
        most: limit for the bytes of target and fields.
    """
    try:
        return _read_request(block, most)
    except PenstockError as error:
        return RequestHead("", "", (), 0, error)


def _read_request(block: bytes, most: int) -> RequestHead:
    first, _, rest = block.partition(b"\r\n")
    word, _, url = first.partition(b" ")
    method = heads.METHODS.get(word)
    if method is None or url.translate(None, IN_VALUES) or not url or not (url[0] == 47 or url == b"*"):
        raise PenstockError(Reason.BAD_REQUEST, "expected a common method and a path as the request's target")
    if rest.count(b"\r\n") > _MOST_LINES:
        raise heads.fields_too_large(f"expected at most {_MOST_LINES} header fields")
    try:
        fields = read_lines(rest)
    except ValueError as error:
        raise PenstockError(Reason.BAD_REQUEST, str(error)) from error
    heads.check_size(url, fields, most)
    target, _ = heads.origin_form(method, url)
    hosts = 0
    for name, value in fields:
        if name == b"host":
            hosts += 1
            heads.check_host(value)
        elif name in NOT_SENT:
            raise PenstockError(
                Reason.BAD_REQUEST, f"expected end-to-end fields alone, found {name.decode('latin-1')}"
            )
    if hosts != 1:
        raise PenstockError(Reason.BAD_REQUEST, f"expected one Host field, found {hosts}")
    size = len(url) + sum([len(name) + len(value) for name, value in fields])
    return RequestHead(method, target, tuple(fields), size)


class KnownHeads:
    """Cache of decoded request heads, for all connections of a listener: routers send the same heads."""

    __slots__ = ("_heads",)

    def __init__(self) -> None:
        self._heads: dict[bytes, RequestHead] = {}

    def read(self, block: bytes, most: int) -> RequestHead:
        """Return the decoded head; the same object for the same bytes.

        Args:
            block: the head.
            most: limit for the bytes of target and fields.
        """
        known = self._heads.get(block)
        if known is None:
            known = read_request(block, most)
            if known.error is None and len(block) <= frames.SLOT_BYTES:
                if len(self._heads) >= MAX_KNOWN:
                    self._heads.clear()
                self._heads[block] = known
        return known


def joined(head: RequestHead, block: bytes, most: int) -> Headers:
    """Return all fields of a request, its own behind the shared ones.

    Args:
        head: its shared head.
        block: its own fields.
        most: bytes of both together that are accepted.

    Raises:
        PenstockError: they are more, or the block cannot be read.
    """
    if head.size + len(block) > most:
        raise heads.fields_too_large(f"expected a head of at most {most} bytes")
    if not block:
        return head.fields
    own = read_own(block)
    if len(head.fields) + len(own) > limits.MAX_FIELDS:
        raise heads.fields_too_large(f"expected at most {limits.MAX_FIELDS} header fields")
    return (*head.fields, *own)


def read_own(block: bytes) -> list[tuple[bytes, bytes]]:
    """Parse a request's own fields.

    Raises:
        PenstockError: 400 or 431.
    """
    if block.count(b"\r\n") > _MOST_LINES:
        raise heads.fields_too_large(f"expected at most {_MOST_LINES} header fields")
    try:
        fields = read_lines(block)
    except ValueError as error:
        raise PenstockError(Reason.BAD_REQUEST, str(error)) from error
    for name, _ in fields:
        if name == b"host" or name in NOT_SENT:
            raise PenstockError(
                Reason.BAD_REQUEST, f"expected own fields of a request, found {name.decode('latin-1')}"
            )
    return fields


def write_answer(status: int, fields: Headers) -> bytes:
    """Render the head of an answer.

    Raises:
        ValueError: the status is not final, or a field would be read as a different one.
    """
    if not 200 <= status <= 599:
        raise ValueError(f"expected a final status, found {status}")
    return b"%d\r\n%b" % (status, write_lines(fields))


def read_answer(block: bytes) -> AnswerHead:
    """Parse the head of an answer; fields that concern one connection are dropped.

    Raises:
        ValueError: the head is malformed.
    """
    first, _, rest = block.partition(b"\r\n")
    if len(first) != 3 or not first.isdigit() or not 200 <= int(first) <= 599:
        raise ValueError(f"expected a final status, found {first[:20]!r}")
    return AnswerHead(int(first), end_to_end(read_lines(rest)))


def read_answer_lines(block: bytes) -> Headers:
    """Parse an answer's own fields; fields that concern one connection are dropped.

    Raises:
        ValueError: the lines are malformed.
    """
    return end_to_end(read_lines(block))


def are_usual(block: bytes) -> bool:
    """Whether an answer's own lines are well-formed and those that a sidecar writes with nearly each answer.

    In this order, and nothing else: `server-timing` (optional), `x-request-id`, `x-penstock-queue`.

    Args:
        block: the lines.
    """
    at = len(block) - 3
    while at > 0 and 48 <= block[at] <= 57:
        at -= 1
    if not (0 < at < len(block) - 3 and block.endswith(b"\r\n")):
        return False
    before = block[: at + 1]
    if not before.endswith(_QUEUE_LINE):
        return False
    # NB: this many controls are the ends of the expected lines, so no other line can end in between.
    controls = before.translate(_CONTROLS_AS_SPACES).count(b" ")
    if before.startswith(_ID_LINE):
        return controls == 2
    start = before.find(b"\n") + 1
    timing, identity = before[:start], before[start:]
    return (
        controls == 4
        and timing.startswith(_TIMING_LINE)
        and timing.endswith(b"\r\n")
        and identity.startswith(_ID_LINE)
    )


def end_to_end(fields: list[tuple[bytes, bytes]]) -> Headers:
    """Return an answer's fields without those that concern one connection (a server should send none)."""
    return tuple([field for field in fields if field[0] not in PER_CONNECTION])
