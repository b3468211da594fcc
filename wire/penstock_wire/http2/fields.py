"""Reads header blocks into fields: HPACK (RFC 7541), by the tables of the library `hpack`.

The library's own decoder would take most of a call's time: it needs some twelve times as long for the eight
fields of a usual one.
"""

from __future__ import annotations

import collections
from typing import Final

from hpack.huffman_table import HUFFMAN_COMPLETE, HUFFMAN_EMIT_SYMBOL, HUFFMAN_FAIL, HUFFMAN_TABLE
from hpack.table import HeaderTable

from penstock_wire.http2.frames import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, BrokenError

Field = tuple[bytes, bytes]

TABLE_BYTES: Final = 4096
"""Most bytes of the table, as RFC 9113 has it without a setting."""
_ENTRY_BYTES: Final = 32  # RFC 7541 section 4.1
_STATIC: Final[list[Field]] = [(bytes(name), bytes(value)) for name, value in HeaderTable.STATIC_TABLE]
_NEXT: Final = bytes([entry[0] for entry in HUFFMAN_TABLE])
_FLAGS: Final = bytes([entry[1] for entry in HUFFMAN_TABLE])
_SYMBOLS: Final = bytes([entry[2] for entry in HUFFMAN_TABLE])
_EMIT: Final = int(HUFFMAN_EMIT_SYMBOL)
_FAIL: Final = int(HUFFMAN_FAIL)
_COMPLETE: Final = int(HUFFMAN_COMPLETE)


class FieldReader:
    """Reads the header blocks of one connection, in their order.

    Args:
        most: most bytes of a block's fields, each counted with 32 more.
    """

    __slots__ = ("_at", "_limit", "_most", "_size", "_table", "changes")

    def __init__(self, most: int) -> None:
        self._most = most
        self._table: collections.deque[Field] = collections.deque()
        self._size = 0
        self._limit = TABLE_BYTES
        self._at = 0
        self.changes = 0
        """How often the table was changed: until it is again, the same bytes mean the same fields."""

    def read(self, block: bytes, at: int = 0) -> list[Field]:
        """Read a complete block, or what is behind the fields at its beginning that are known.

        Raises:
            BrokenError: it cannot be read, so no later one could be.
        """
        fields: list[Field] = []
        size = 0
        end = len(block)
        self._at = at
        while self._at < end:
            first = block[self._at]
            if first >= 0x80:
                field = self._entry(self._number(block, 0x7F))
            elif first >= 0x40:
                field = self._literal(block, 0x3F)
                self._add(field)
            elif first >= 0x20:
                self._limit = self._number(block, 0x1F)
                self.changes += 1
                if fields or at or self._limit > TABLE_BYTES:
                    raise _broken("a size of the table up to 4096, before the fields", str(self._limit))
                self._evict(0)
                continue
            else:
                field = self._literal(block, 0x0F)
            size += len(field[0]) + len(field[1]) + _ENTRY_BYTES
            if size > self._most:
                raise BrokenError(
                    ENHANCE_YOUR_CALM, f"expected at most {self._most} bytes of fields, found more"
                )
            fields.append(field)
        return fields

    def _number(self, block: bytes, mask: int) -> int:
        """Read an integer (section 5.1)."""
        value = block[self._at] & mask
        self._at += 1
        if value < mask:
            return value
        for shift in (0, 7, 14, 21):
            if self._at >= len(block):
                break
            byte = block[self._at]
            self._at += 1
            value += (byte & 127) << shift
            if byte < 128:
                return value
        raise _broken("an integer below 2^28", "a longer one")

    def _text(self, block: bytes) -> bytes:
        """Read a string (section 5.2)."""
        if self._at >= len(block):
            raise _broken("a string", "the end of the block")
        coded = block[self._at] >= 0x80
        size = self._number(block, 0x7F)
        start = self._at
        self._at = end = start + size
        if end > len(block):
            raise _broken(f"a string of {size} bytes", "the end of the block")
        return _decoded(block, start, end) if coded else block[start:end]

    def _literal(self, block: bytes, mask: int) -> Field:
        index = self._number(block, mask)
        name = self._entry(index)[0] if index else self._text(block)
        return name, self._text(block)

    def _entry(self, index: int) -> Field:
        if 0 < index <= len(_STATIC):
            return _STATIC[index - 1]
        if not len(_STATIC) < index <= len(_STATIC) + len(self._table):
            raise _broken("a field in the table", f"number {index}")
        return self._table[index - len(_STATIC) - 1]

    def _add(self, field: Field) -> None:
        size = len(field[0]) + len(field[1]) + _ENTRY_BYTES
        self.changes += 1
        self._evict(size)
        if size <= self._limit:
            self._table.appendleft(field)
            self._size += size

    def _evict(self, size: int) -> None:
        """Remove the oldest entries until one of this size has room."""
        while self._table and self._size + size > self._limit:
            name, value = self._table.pop()
            self._size -= len(name) + len(value) + _ENTRY_BYTES


def _decoded(block: bytes, start: int, end: int) -> bytes:
    """Decode Huffman code (section 5.2), half a byte at a time."""
    out = bytearray()
    state, flags = 0, _COMPLETE
    for at in range(start, end):
        byte = block[at]
        for half in (byte >> 4, byte & 15):
            index = state * 16 + half
            flags = _FLAGS[index]
            if flags & _FAIL:
                raise _broken("Huffman code", "another code")
            if flags & _EMIT:
                out.append(_SYMBOLS[index])
            state = _NEXT[index]
    if not flags & _COMPLETE:
        raise _broken("the end of a code", "part of one")
    return bytes(out)


def _broken(expected: str, actual: str) -> BrokenError:
    return BrokenError(COMPRESSION_ERROR, f"a header block: expected {expected}, found {actual}")
