"""Heads of HTTP/2: header blocks read into requests' heads, and written.

Written blocks use no dynamic table: each field is a literal, so one rendering serves all connections. Heads
that came before are found again by their fields, without those that differ from request to request (`OWN`).
"""

from __future__ import annotations

from random import random
from typing import Final

from penstock_wire.errors import PenstockError
from penstock_wire.headers import HOP_BY_HOP, IN_VALUES, PER_CONNECTION, REQUEST_ID, TIMEOUT_MS, Headers, get
from penstock_wire.http.head_cache import FIELD_BYTES
from penstock_wire.http.memory import ONLY_REMEMBERED
from penstock_wire.http.server import head as heads
from penstock_wire.http2.fields import Field, FieldReader

NO_TABLE: Final = b"\x20"
"""At the beginning of a connection's first block: the encoder keeps no table, whatever the peer allows."""
GRPC: Final = b"application/grpc"
"""The content type of calls, or what it begins with."""
_NOWHERE: Final = b"localhost"
"""The host of a call whose authority is none, such as the list of addresses of a channel to several."""
_NAME_BYTES: Final = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")
OWN: Final = frozenset(
    {
        b"grpc-timeout",
        b"grpc-trace-bin",
        b"traceparent",
        b"tracestate",
        b"x-forwarded-for",
        b"x-real-ip",
        REQUEST_ID,
        TIMEOUT_MS,
    }
)
"""Fields that usually differ from request to request."""
_MOST_OWN: Final = 2 * len(OWN)
_OF_CONNECTION: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
"""Fields that no request has (RFC 9113 section 8.2.2)."""
_MOST_KNOWN: Final = 256
_LARGEST_KNOWN: Final = 4096
_MOST_KEPT: Final = 256 * 1024
_ADMITTED: Final = 1 / 8
"""Share of new heads that a full memory takes in, each instead of others at random: of many users in turn, as
many are found again as there is room for."""
_MOST_STARTS: Final = 32
_START_BYTES: Final = 512


class Head:
    """A request's head.

    Args:
        fault: why the stream is reset; empty for a head that can be answered.
        error: the answer to a head that is refused.
        method: upper-case method.
        target: path and query.
        fields: end-to-end fields, `host` first.
        length: announced bytes of the body, -1 if none.
    """

    __slots__ = ("derived", "error", "fault", "fields", "grown", "kept", "length", "method", "target")

    def __init__(self, fault: str, error: PenstockError | None = None) -> None:
        self.fault = fault
        self.error = error
        self.method = ""
        self.target = ""
        self.fields: Headers = ()
        self.length = -1
        self.derived: object = None
        """What gRPC derived from it."""
        self.grown = 0
        """Bytes of that which the reader has not counted yet, see `HeadReader.grew`."""
        self.kept = 0
        """Bytes as which the reader counts it; 0 if it does not remember it."""


class _Start:
    """Fields out of the table with which blocks begin, and the head that they make.

    Args:
        head: the head.
        fields: all of them.
    """

    __slots__ = ("fields", "head", "own")

    def __init__(self, head: Head, fields: Headers) -> None:
        self.head = head
        self.fields = fields
        self.own = [field for field in fields if field[0] in OWN]


class HeadReader:
    """Reads the header blocks of one connection. What it remembers of them is a `memory.Keeper`.

    Args:
        most: limit for the bytes of a head.
    """

    __slots__ = ("_changes", "_kept", "_keys", "_known", "_most", "_reader", "_starts", "own", "size")

    def __init__(self, most: int) -> None:
        self._most = most
        self._reader = FieldReader(2 * most)
        self._known: dict[tuple[Field, ...], Head] = {}
        self._keys: list[tuple[Field, ...]] = []  # of `_known`
        self._starts: dict[bytes, _Start] = {}  # by the bytes, until the table changes
        self._changes = 0
        self.own: Headers = ()
        """The fields of the last request alone, among `OWN`."""
        self.size = 0
        """Bytes of memory that the last request's head takes, be its block ever so short."""
        self._kept = 0

    def kept(self) -> int:
        """See `memory.Keeper.kept`: the heads that came before."""
        return self._kept + _START_BYTES * len(self._starts)

    def kept_since(self) -> float:
        """See `memory.Keeper.kept_since`: it goes before requests that are as large."""
        return ONLY_REMEMBERED

    def give_way(self) -> bool:
        """See `memory.Keeper.give_way`."""
        kept = self._kept
        self._shrink(0, 0)
        return kept > 0

    def grew(self, head: Head) -> None:
        """Count what was derived from a head."""
        if head.kept:
            head.kept += head.grown
            self._kept += head.grown
            self._shrink(_MOST_KNOWN, _MOST_KEPT)
        head.grown = 0

    def _shrink(self, count: int, size: int) -> None:
        """Forget heads, at random, until so many of so many bytes are left at most."""
        keys = self._keys
        if len(keys) <= count and self._kept <= size:
            return
        while keys and (len(keys) > count or self._kept > size):
            place = int(random() * len(keys))  # noqa: S311 - a guess is of no use
            keys[place], keys[-1] = keys[-1], keys[place]
            head = self._known.pop(keys.pop())
            self._kept -= head.kept
            head.kept = 0
        self._starts = {block: start for block, start in self._starts.items() if start.head.kept}

    def read(self, block: bytes) -> Head:
        """Read a request's block.

        Raises:
            BrokenError: it cannot be decompressed, so no later one could be.
        """
        self.size = 0
        reader = self._reader
        if self._changes != reader.changes:
            self._changes = reader.changes
            self._starts.clear()
        start = 0
        while start < len(block) and 0x80 <= block[start] < 0xFF:
            start += 1
        known = self._starts.get(block[:start])
        if known is not None:
            own = list(known.own)
            rest = reader.read(block, start)
            for field in rest:
                if field[0] not in OWN or not is_value(field[1]):
                    return self._find([*known.fields, *rest], block, start)
                own.append(field)
            return self._with_own(known.head, own)
        return self._find(reader.read(block), block, start)

    def _find(self, fields: list[Field], block: bytes, start: int) -> Head:
        """Return a head by its fields.

        Args:
            fields: all of them.
            block: they came in it.
            start: its first bytes that are a field of the table each.
        """
        shared: list[Field] = []
        own: list[Field] = []
        size = at_start = 0
        for index, field in enumerate(fields):
            name, value = field
            if name in OWN:
                own.append(field)
                if not is_value(value):
                    return Head(f"expected no control character or outer space in {name!r}")
            else:
                shared.append(field)
                size += FIELD_BYTES + len(name) + len(value)
                if own and name[:1] == b":":
                    return Head(f"expected pseudo-headers before the fields, found {name!r}")
                at_start = index + 1
        key = tuple(shared)
        head = self._known.get(key)
        if head is None:
            head = _head(shared, self._most)
            self.size = size
            if not head.fault and head.error is None and size <= _LARGEST_KNOWN:
                full = len(self._keys) >= _MOST_KNOWN or self._kept + 2 * size > _MOST_KEPT
                if not full or random() < _ADMITTED:  # noqa: S311 - as above
                    self._shrink(_MOST_KNOWN - 1, _MOST_KEPT - 2 * size)
                    self._known[key] = head
                    self._keys.append(key)
                    head.kept = 2 * size
                    self._kept += head.kept
                    self.size += size
        elif at_start <= start and len(own) <= _MOST_OWN and self._changes == self._reader.changes:
            if len(self._starts) >= _MOST_STARTS:
                self._starts.clear()
            self._starts[block[:start]] = _Start(head, tuple(fields[:start]))
        return self._with_own(head, own)

    def _with_own(self, head: Head, own: list[Field]) -> Head:
        """Return a head, or the refusal of the request's own fields."""
        self.own = tuple(own)
        size = sum([len(name) + len(value) for name, value in own])
        self.size += size + FIELD_BYTES * len(own)
        if len(own) > _MOST_OWN or size > self._most:
            self.own = ()
            return Head("", heads.fields_too_large(f"expected at most {_MOST_OWN} fields of a request's own"))
        return head

    def read_trailers(self, block: bytes) -> bool:
        """Read the block behind a body, of which only the form counts; return whether it is right.

        Raises:
            BrokenError: see `read`.
        """
        return all(name[:1] != b":" and is_name(name) for name, _ in self._reader.read(block))


def is_value(value: bytes) -> bool:
    """Whether bytes can be a field's value."""
    if value.isalnum():  # most are, and this is the faster check
        return True
    outer = value[:1] in (b" ", b"\t") or value[-1:] in (b" ", b"\t")
    return not (outer or value.translate(None, IN_VALUES))


def is_name(name: bytes) -> bool:
    """Whether bytes can be a field's name."""
    return bool(name) and _NAME_BYTES.issuperset(name)


def _head(fields: list[Field], most: int) -> Head:
    """Check a head (RFC 9113 sections 8.2 and 8.3)."""
    pseudo: dict[bytes, bytes] = {}
    kept: list[Field] = []
    length = -1
    plain = False  # a field that is not a pseudo-header has come
    hosts: list[bytes] = []
    for name, value in fields:
        if name[:1] == b":":
            if plain or name in pseudo or name not in (b":method", b":scheme", b":path", b":authority"):
                return Head(f"expected each pseudo-header once, before the fields, found {name!r}")
            pseudo[name] = value
            continue
        plain = True
        if not is_name(name):
            return Head(f"expected a field's name in lower case, found {name!r}")
        if not is_value(value):
            return Head(f"expected no control character or outer space in {name!r}")
        if name == b"te":
            if value != b"trailers":
                return Head(f"expected trailers as te, found {value!r}")
        elif name == b"content-length":
            if not value.isdigit() or len(value) > 18 or length >= 0:
                return Head("expected one number as content-length")
            length = int(value)
        elif name in _OF_CONNECTION:
            return Head(f"expected no field of the connection, found {name!r}")
        elif name == b"host":
            hosts.append(value)
        elif name not in HOP_BY_HOP and name != b"expect":
            kept.append((name, value))
    if b":method" not in pseudo or not pseudo.get(b":scheme") or not pseudo.get(b":path"):
        return Head("expected :method, :scheme and :path")
    method = pseudo[b":method"]
    authority = pseudo.get(b":authority")
    if authority is not None:
        hosts.insert(0, authority)
    head = Head("")
    try:
        if not _NAME_BYTES.issuperset(method.lower()) or not method:
            return Head("expected a method")
        target, host = heads.origin_form(method.decode(), pseudo[b":path"])
        if host is not None:
            return Head("expected a path as :path")
        if len(set(hosts)) != 1:
            return Head("expected one host, as :authority")
        try:
            heads.check_host(hosts[0])
        except PenstockError:
            if not (get(tuple(kept), b"content-type") or b"").startswith(GRPC):
                raise
            hosts[0] = _NOWHERE
        cookies = [value for name, value in kept if name == b"cookie"]
        if len(cookies) > 1:  # RFC 9113 section 8.2.3
            kept = [field for field in kept if field[0] != b"cookie"]
            kept.append((b"cookie", b"; ".join(cookies)))
        kept.insert(0, (b"host", hosts[0]))
        heads.check_size(pseudo[b":path"], kept, most)
    except PenstockError as error:
        # NB: the client can put off its answer: of thousands of fields, only what its form depends on stays.
        kept = [field for field in kept if field[0] == b"content-type"][:1]
        head.error, target = error.with_traceback(None), ""  # which would keep the fields, too
    head.method, head.target, head.fields, head.length = method.decode("latin-1"), target, tuple(kept), length
    return head


def literal(name: bytes, value: bytes) -> bytes:
    """Render a field as a literal that is not indexed, without Huffman code (RFC 7541 section 6.2.2)."""
    return b"\0" + _text(name) + _text(value)


_SIZES: Final = [bytes([size]) for size in range(127)]


def _text(text: bytes) -> bytes:
    size = len(text)
    if size < 127:
        return _SIZES[size] + text
    size -= 127
    prefix = bytearray(b"\x7f")
    while size >= 128:
        prefix.append(size & 127 | 128)
        size >>= 7
    prefix.append(size)
    return bytes(prefix) + text


_OK: Final = b"\x88"  # `:status: 200` in the static table


def answer_block(status: int, fields: Headers, lines: bytes) -> bytes:
    """Render the block of an answer.

    Args:
        status: its status.
        fields: its fields; those of the connection are left out.
        lines: further fields, each with CR LF at its end.

    Raises:
        ValueError: a field has a control character, or the status is not one.
    """
    if not 100 <= status <= 999:
        raise ValueError(f"expected a status, found {status}")
    block = [_OK if status == 200 else b"\x08\x03%d" % status]
    for name, value in fields:
        if name in PER_CONNECTION:
            continue
        if (name + value).translate(None, IN_VALUES):
            raise ValueError("expected header fields of one line each, without control characters")
        block.append(literal(name.lower(), value))
    if lines:
        for line in lines.split(b"\r\n"):
            if line:
                name, _, value = line.partition(b": ")
                block.append(literal(name, value))
    return b"".join(block)
