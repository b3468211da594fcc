"""Members of the Open Inference Protocol that are JSON over REST and fields of messages over gRPC. Pure."""

from __future__ import annotations

import json
import struct
from typing import Any, Final

import msgspec

from penstock_wire.http2 import protobuf
from penstock_wire.http2.protobuf import BadMessageError

_encode = msgspec.json.encode
_double: Final = struct.Struct("<d")
IN_JSON: Final = -1
ELSEWHERE: Final = -2
"""Where a tensor's data are if not behind the JSON: in it, or in shared memory."""


def json_of(text: bytes) -> dict[str, Any]:
    """Read a JSON object; numbers that are NaN or infinite are accepted.

    Raises:
        BadMessageError: it is not one.
    """
    try:
        document = msgspec.json.decode(text)
    except msgspec.DecodeError:
        try:
            document = json.loads(text)
        except ValueError as error:
            raise BadMessageError("body", "JSON", repr(text[:40])) from error
    if not isinstance(document, dict):
        raise BadMessageError("body", "a JSON object", repr(text[:40]))
    return document


def object_of(members: dict[str, bytes]) -> bytes:
    """Render an object of members that are JSON already."""
    return b"{" + b",".join([_encode(name) + b":" + value for name, value in members.items()]) + b"}"


def member(document: dict[str, Any], name: str) -> str:
    """Return a text in a document; an empty one if there is none."""
    value = document.get(name)
    return value if isinstance(value, str) else ""


def read_parameter(data: bytes, start: int, end: int, into: dict[str, bytes], path: str) -> None:
    """Read an entry of a map of `InferParameter`s, as JSON."""
    key = ""
    value: bytes | None = None
    for field, kind, first, last in protobuf.fields(data, start, end):
        if kind != protobuf.BYTES:
            continue
        if field == 1:
            key = protobuf.text(data, first, last, path)
        elif field == 2:
            for which, form, at, stop in protobuf.fields(data, first, last):
                if which == 3 and form == protobuf.BYTES:
                    value = _encode(protobuf.text(data, at, stop, path))
                elif which == 4 and form == protobuf.LONG:
                    value = _encode(_double.unpack_from(data, at)[0])
                elif form == protobuf.VARINT and which == 1:
                    value = b"true" if at else b"false"
                elif form == protobuf.VARINT:
                    value = b"%d" % (at if which == 5 else protobuf.signed(at))
    if value is not None:
        into[key] = value


def write_parameters(field: int, parameters: Any, without: str) -> bytes:
    """Render JSON parameters as a map of `InferParameter`s, without the one of that name, and without nulls.

    Raises:
        BadMessageError: a number has more than 64 bits.
    """
    if not isinstance(parameters, dict):
        return b""
    entries: list[bytes] = []
    for name, value in parameters.items():
        if name == without or value is None:
            continue
        if isinstance(value, bool):
            parameter = b"\x08\x01" if value else b"\x08\x00"
        elif isinstance(value, int):
            if not -(2**63) <= value < 2**64:
                raise BadMessageError(f"parameters.{name}", "a number of at most 64 bits", str(value)[:40])
            tag = b"\x10" if value < 2**63 else b"\x28"  # int64_param, uint64_param
            parameter = tag + protobuf.varint(value & 0xFFFFFFFFFFFFFFFF)
        elif isinstance(value, float):
            parameter = b"\x21" + _double.pack(value)
        else:
            parameter = protobuf.nested(3, (value if isinstance(value, str) else json.dumps(value)).encode())
        entries.append(
            protobuf.nested(field, protobuf.nested(1, name.encode()) + protobuf.nested(2, parameter))
        )
    return b"".join(entries)


def write_tensor(tensor: Any, path: str) -> tuple[bytes, str, int]:
    """Render a tensor without its data.

    Args:
        tensor: as JSON.
        path: where it is, for errors.

    Returns:
        The message, the datatype, and the bytes of the data behind the JSON, or `IN_JSON` or `ELSEWHERE`.

    Raises:
        BadMessageError: it is none.
    """
    if not isinstance(tensor, dict):
        raise BadMessageError(path, "an object", type(tensor).__name__)
    shape = tensor.get("shape")
    if not isinstance(shape, list) or not all(isinstance(axis, int) and axis >= 0 for axis in shape):
        raise BadMessageError(path + ".shape", "a list of numbers", repr(shape)[:40])
    parameters = tensor.get("parameters")
    size: Any = None
    place = IN_JSON
    if isinstance(parameters, dict):
        size = parameters.get("binary_data_size")
        if "shared_memory_region" in parameters:
            place = ELSEWHERE
    datatype = member(tensor, "datatype")
    message = protobuf.string(1, member(tensor, "name")) + protobuf.string(2, datatype)
    message += protobuf.nested(3, b"".join(map(protobuf.varint, shape)))
    message += write_parameters(4, parameters, "binary_data_size")
    return message, datatype, size if isinstance(size, int) and size >= 0 else place
