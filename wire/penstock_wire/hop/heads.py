r"""Heads on the hop: lines as in HTTP/1.1, sent once and then referred to by a slot's number. Pure.

A request's head is `METHOD target`, an answer's its status; field lines follow, each with CR LF. What differs
from request to request (its id, its time) is not in the head: these *own* fields come with the request, in
the same form. Both are checked as the HTTP/1.1 front checks a head: what it refuses is refused here.
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
"""Fields of requests that are sent with each, not in the head that many share."""
NOT_SENT: Final = PER_CONNECTION | {b"expect"}

MAX_KNOWN: Final = 256
"""Heads that all connections of a listener share."""

_COMMON = {name: name for name in (*OWN, QUEUE, SERVER_TIMING)}
"""Names that come with nearly each request or answer: known to be names, and one object each."""
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_MOST_LINES = limits.MAX_FIELDS
_TIMING_LINE: Final = SERVER_TIMING + b": "
_ID_LINE: Final = REQUEST_ID + b": "
_CONTROLS_AS_SPACES: Final = bytes([46 if 0x20 <= byte <= 0x7E else 0x20 for byte in range(256)])
_QUEUE_LINE: Final = b"\r\n" + QUEUE + b": "


class RequestHead:
    """What the requests of one head share, as it was read.

    Args:
        method: the method.
        target: path and query.
        fields: the fields.
        size: bytes of target and fields.
        error: why no request may have this head; None where it may.
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
    """What the answers of one head share, as it was read.

    Args:
        status: the status.
        fields: the fields.
    """

    __slots__ = ("fields", "status")

    def __init__(self, status: int, fields: Headers) -> None:
        self.status = status
        self.fields = fields


class SlotTable:
    """The sending side of a table of heads: which slot a head has, or gets.

    A head gets a slot of its own when it is sent for the second time: until then it is in slot 0, for as many
    requests as follow each other with it. Clients choose heads, and a router has a table for each pod: of
    heads that were sent once there is no more than a hash, and those of many fields have no slot.
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
        """The slot of a head that the peer has; -1 where it has to be sent."""
        slot = self._slots.get(key)
        if slot is not None:
            return slot
        return 0 if key == self._keys[0] else -1

    def put(self, key: Hashable, size: int, fields: int = 0) -> int:
        """The slot in which a head is to be sent, which the peer then has.

        Args:
            key: of the head.
            size: bytes of the head.
            fields: how many it has.
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
    """A request's fields for its head, and its own; both in order.

    Args:
        headers: as they are to be sent.
    """
    shared: list[tuple[bytes, bytes]] = []
    own: list[tuple[bytes, bytes]] = []
    for field in headers:
        (own if field[0] in OWN else shared).append(field)
    return tuple(shared), tuple(own)


def write_lines(fields: Headers) -> bytes:
    """Field lines, but for fields that concern one connection.

    Raises:
        ValueError: fields that would be read as others.
    """
    lines: list[bytes] = []
    for name, value in fields:
        if name not in _COMMON:
            if _NAME.fullmatch(name) is None:
                raise ValueError("expected header fields with a name in lower case")
            if name in NOT_SENT:
                continue
        # NB: most of what is written with each request is letters and digits, which is seen sooner.
        if not value.isalnum() and value.translate(None, IN_VALUES):
            raise ValueError("expected header fields of one line each")
        lines.append(b"%b: %b\r\n" % (name, value))
    return b"".join(lines)


def read_lines(block: bytes) -> list[tuple[bytes, bytes]]:
    """The fields of a block of lines.

    Raises:
        ValueError: it is none.
    """
    lines = block.split(b"\r\n")
    if lines.pop():
        raise ValueError("expected a line's end behind each header field")
    if len(lines) > _MOST_LINES:
        raise ValueError(f"expected at most {_MOST_LINES} header fields")
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
    """The head of a request.

    Args:
        method: the method.
        target: path and query.
        fields: the fields that it shares with others.
        where: the host that it gets where it names none.

    Raises:
        ValueError: the peer would not take it.
    """
    first = f"{method} {target}".encode("latin-1", "replace")
    if method not in _METHODS or first.count(b" ") != 1 or first.translate(None, IN_VALUES):
        raise ValueError("a space in its target, or another method than the common ones")
    hosted = any(name == b"host" for name, _ in fields)
    host = b"" if hosted else f"host: {where}\r\n".encode("latin-1")
    return b"%b\r\n%b%b" % (first, write_lines(fields), host)


_METHODS: Final = frozenset(heads.METHODS.values())


def read_request(block: bytes, most: int) -> RequestHead:
    """The head of a request, checked as the HTTP/1.1 front would; its `error` is what that would answer.

    Args:
        block: its lines.
        most: bytes of target and fields.
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
    """Heads of requests that were read before, for all connections of a listener: routers send the same."""

    __slots__ = ("_heads",)

    def __init__(self) -> None:
        self._heads: dict[bytes, RequestHead] = {}

    def read(self, block: bytes, most: int) -> RequestHead:
        """What a head says; the same object for the same bytes.

        Args:
            block: the head.
            most: bytes of target and fields.
        """
        known = self._heads.get(block)
        if known is None:
            known = read_request(block, most)
            if known.error is None and len(block) <= frames.SLOT_BYTES:
                if len(self._heads) >= MAX_KNOWN:
                    self._heads.clear()
                self._heads[block] = known
        return known


def read_own(block: bytes) -> list[tuple[bytes, bytes]]:
    """The fields that a request alone has.

    Raises:
        PenstockError: 400.
    """
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
    """The head of an answer.

    Raises:
        ValueError: no final status, or fields that would be read as others.
    """
    if not 200 <= status <= 599:
        raise ValueError(f"expected a final status, found {status}")
    return b"%d\r\n%b" % (status, write_lines(fields))


def read_answer(block: bytes) -> AnswerHead:
    """The head of an answer; fields that concern one connection are dropped.

    Raises:
        ValueError: it is none.
    """
    first, _, rest = block.partition(b"\r\n")
    if len(first) != 3 or not first.isdigit() or not 200 <= int(first) <= 599:
        raise ValueError(f"expected a final status, found {first[:20]!r}")
    return AnswerHead(int(first), end_to_end(read_lines(rest)))


def read_answer_lines(block: bytes) -> Headers:
    """The fields that an answer alone has, without those that concern one connection.

    Raises:
        ValueError: they are none.
    """
    return end_to_end(read_lines(block))


def are_usual(block: bytes) -> bool:
    """Whether an answer's own lines are what a sidecar writes with nearly each: well-formed ones.

    In this order, and nothing else: `server-timing`, where it says that, `x-request-id`, `x-penstock-queue`.

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
    # NB: that many controls are the ends of the lines that are looked for, so nothing else ends a line.
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
    """An answer's fields without those that concern one connection, which a server has no reason to send."""
    return tuple([field for field in fields if field[0] not in PER_CONNECTION])
