"""Tensors of the Open Inference Protocol: contents and JSON data as raw bytes, and these as JSON. Pure."""

from __future__ import annotations

import array
import json
import math
import struct
import sys
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from penstock_wire.http2 import protobuf
from penstock_wire.http2.protobuf import BadMessageError

_encode = msgspec.json.encode
CODES: Final = {
    "BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q", "INT8": "b", "INT16": "h",
    "INT32": "i", "INT64": "q", "FP16": "e", "FP32": "f", "FP64": "d",
}  # fmt: skip
"""The element of each datatype of numbers, as `struct` names it; BF16 has none."""
_CONTENTS: Final = {
    "BOOL": 1, "INT8": 2, "INT16": 2, "INT32": 2, "INT64": 3, "UINT8": 4, "UINT16": 4, "UINT32": 4,
    "UINT64": 5, "FP32": 6, "FP64": 7, "BYTES": 8,
}  # fmt: skip
"""The field of `InferTensorContents` for each datatype; FP16 and BF16 have none."""
_FIXED: Final = {6: 4, 7: 8}
"""Bytes of a number in fields of floats, which lie there as they do in raw contents."""


def of_contents(
    datatype: str, data: bytes, start: int, end: int, path: str, most: int = protobuf.MOST_FIELDS
) -> bytes:
    """Return typed contents as raw bytes.

    Args:
        datatype: the tensor's.
        data: bytes that hold the `InferTensorContents`.
        start: their start.
        end: their end.
        path: where the tensor is, for errors.
        most: fields that they may have: each string is one.

    Raises:
        BadMessageError: the contents are not of the datatype.
    """
    wanted = _CONTENTS.get(datatype)
    if wanted is None:
        expected = "raw_input_contents for this datatype, or one of " + ", ".join(_CONTENTS)
        raise BadMessageError(path, expected, f"contents of {datatype}")
    pieces: list[bytes] = []
    numbers: list[int] = []
    for field, kind, first, last in protobuf.fields(data, start, end, most):
        if field != wanted:
            raise BadMessageError(path, f"contents of {datatype} (field {wanted})", f"field {field}")
        if wanted == 8 and kind == protobuf.BYTES:
            pieces.append((last - first).to_bytes(4, "little") + data[first:last])
        elif wanted == 8 or (wanted in _FIXED and kind == protobuf.VARINT):
            raise BadMessageError(path, f"contents of {datatype}", "a number of another form")
        elif wanted in _FIXED:
            if (last - first) % _FIXED[wanted]:
                raise BadMessageError(path, f"numbers of {_FIXED[wanted]} bytes", f"{last - first} bytes")
            pieces.append(data[first:last])
        elif kind == protobuf.VARINT:
            numbers.append(first)
        else:
            at = first
            while at < last:
                value, at = protobuf.read_varint(data, at, last)
                numbers.append(value)
    if not numbers:
        return b"".join(pieces)
    if wanted in (2, 3):
        numbers = [protobuf.signed(value) for value in numbers]
    elif wanted == 1:
        return bytes(map(bool, numbers))
    return _packed(datatype, numbers, path)


def of_json(datatype: str, values: Any, path: str) -> bytes:
    """Return JSON data, flat or nested, as raw bytes.

    Args:
        datatype: the tensor's.
        values: a list.
        path: where it is, for errors.

    Raises:
        BadMessageError: not values of the datatype.
    """
    flat: list[Any] = []
    waiting = [iter(values)] if isinstance(values, list) else []
    if not waiting:
        raise BadMessageError(path, "a list", type(values).__name__)
    while waiting:
        for value in waiting[-1]:
            if isinstance(value, list):
                waiting.append(iter(value))
                break
            flat.append(value)
        else:
            waiting.pop()
    if datatype == "BYTES":
        try:
            elements = [value.encode() for value in flat]
        except AttributeError as error:
            raise BadMessageError(path, "strings", "another value") from error
        return b"".join([len(element).to_bytes(4, "little") + element for element in elements])
    return _packed(datatype, flat, path)


def to_json(datatype: str, data: bytes, path: str) -> bytes:
    """Return raw bytes as a flat JSON list; what is not finite is written as `NaN` or `Infinity`.

    Args:
        datatype: the tensor's.
        data: its elements.
        path: where it is, for errors.

    Raises:
        BadMessageError: not elements of the datatype, or bytes that are not text.
    """
    if datatype == "BYTES":
        return _encode(_texts(data, path))
    if datatype == "BF16":
        data = b"".join([b"\0\0" + data[at : at + 2] for at in range(0, len(data), 2)])
    code = "f" if datatype == "BF16" else CODES.get(datatype, "")
    if not code:
        raise BadMessageError(path, "a known datatype", datatype)
    count, rest = divmod(len(data), struct.calcsize("<" + code))
    if rest:
        raise BadMessageError(path, f"elements of {datatype}", f"{len(data)} bytes")
    values = struct.unpack(f"<{count}{code}", data)
    if code in "efd" and not all(map(math.isfinite, values)):
        return json.dumps(values, separators=(",", ":")).encode()
    return _encode(values)


def _texts(data: bytes, path: str) -> list[str]:
    texts: list[str] = []
    at, end = 0, len(data)
    while at < end:
        start = at + 4
        at = start + int.from_bytes(data[at:start], "little")
        if at > end or start > end:
            raise BadMessageError(path, "elements with their length before them", f"{end} bytes")
        texts.append(protobuf.text(data, start, at, path))
    return texts


def _packed(datatype: str, values: Sequence[Any], path: str) -> bytes:
    try:
        if datatype == "BF16":  # the upper half of a float
            whole = struct.pack(f"<{len(values)}f", *values)
            return b"".join([whole[at + 2 : at + 4] for at in range(0, len(whole), 4)])
        code = CODES.get(datatype, "")
        if not code:
            raise BadMessageError(path, "a known datatype", datatype)
        if code == "?" and any(value not in (0, 1) for value in values):
            raise BadMessageError(path, "values of BOOL", "another value than 0, 1, true or false")
        if code in "e?":
            return struct.pack(f"<{len(values)}{code}", *values)
        packed = array.array(code, values)
    except (TypeError, ValueError, OverflowError, struct.error) as error:
        if isinstance(error, BadMessageError):
            raise
        raise BadMessageError(path, f"values of {datatype}", str(error)) from error
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
