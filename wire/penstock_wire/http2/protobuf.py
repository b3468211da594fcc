"""The wire form of Protocol Buffers: fields and numbers. Pure.

Source: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from typing import Final

from penstock_wire._mypyc import mypyc_attr

VARINT: Final = 0
LONG: Final = 1
BYTES: Final = 2
SHORT: Final = 5
"""Wire types: a number, 8 bytes, bytes with their length, 4 bytes."""
MOST_FIELDS: Final = 10_000
"""Most fields of one message: each costs time and memory, however short it is."""


@mypyc_attr(native_class=False)
class BadMessageError(ValueError):
    """Bytes that are not the message that was expected.

    Args:
        path: where, as `inputs[0].shape`.
        expected: what should be there.
        actual: what is there.
    """

    def __init__(self, path: str, expected: str, actual: str) -> None:
        super().__init__(f"{path}: expected {expected}, found {actual}")
        self.path = path
        self.expected = expected
        self.actual = actual


def read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read a number; return it and the offset behind it.

    Raises:
        BadMessageError: it does not end, or has more than 64 bits.
    """
    if at < end and data[at] < 128:
        return data[at], at + 1
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
    raise BadMessageError("message", "a number of at most 64 bits", f"none before byte {at}")


def fields(data: bytes, at: int, end: int, most: int = MOST_FIELDS) -> list[tuple[int, int, int, int]]:
    """Return the fields of a message: number, wire type, and the bounds of the value's bytes.

    Of a number the first bound is the number itself.

    Args:
        data: bytes that hold it.
        at: its start.
        end: its end.
        most: fields that it may have.

    Raises:
        BadMessageError: it is not a message.
    """
    found: list[tuple[int, int, int, int]] = []
    while at < end:
        if len(found) >= most:
            raise BadMessageError("message", f"at most {most} fields", "more")
        tag, at = read_varint(data, at, end)
        kind = tag & 7
        if kind == BYTES:
            size, at = read_varint(data, at, end)
            stop = at + size
        elif kind == VARINT:
            value, stop = read_varint(data, at, end)
            found.append((tag >> 3, kind, value, stop))
            at = stop
            continue
        elif kind == LONG:
            stop = at + 8
        elif kind == SHORT:
            stop = at + 4
        else:
            raise BadMessageError("message", "a field of a known form", f"wire type {kind} before byte {at}")
        if stop > end or tag < 8:
            raise BadMessageError(
                "message", f"a field within its {end} bytes", f"field {tag >> 3} to byte {stop}"
            )
        found.append((tag >> 3, kind, at, stop))
        at = stop
    return found


def text(data: bytes, start: int, end: int, path: str) -> str:
    """Read a string.

    Raises:
        BadMessageError: it is not UTF-8.
    """
    try:
        return data[start:end].decode()
    except UnicodeDecodeError as error:
        raise BadMessageError(path, "text in UTF-8", repr(data[start:end][:40])) from error


def signed(value: int) -> int:
    """Return an `int32` or `int64` by its unsigned number."""
    return value - 2**64 if value >= 2**63 else value


def varint(value: int) -> bytes:
    """Render a number."""
    if value < 128:
        return bytes([value])
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """Render a field with a number; nothing for 0, which is what an absent one means."""
    return varint(field << 3) + varint(value & 0xFFFFFFFFFFFFFFFF) if value else b""


def nested(field: int, value: bytes) -> bytes:
    """Render a field with bytes, a message or a text, also an empty one."""
    return varint(field << 3 | BYTES) + varint(len(value)) + value


def string(field: int, value: str) -> bytes:
    """Render a field with a text; nothing for an empty one."""
    return nested(field, value.encode()) if value else b""
