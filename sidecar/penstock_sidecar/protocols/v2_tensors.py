"""Cuts tensors of the Open Inference Protocol into rows along their first axis: slices, never numbers.

A tensor's elements come in one of three forms: a flat JSON array in row-major order, JSON arrays nested as
the shape says, or bytes behind the JSON (Triton's binary tensor data extension: little-endian elements
without gaps; the length of each element of `BYTES` comes before it as a 4-byte little-endian integer).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence

from penstock_wire._mypyc import mypyc_attr
from penstock_wire.json_slices import NotJSON, elements, structure

SIZES = {
    "BOOL": 1, "UINT8": 1, "UINT16": 2, "UINT32": 4, "UINT64": 8, "INT8": 1, "INT16": 2, "INT32": 4,
    "INT64": 8, "FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8,
}  # fmt: skip
"""Bytes of an element by datatype; `BYTES` have no fixed size."""
FLAT, NESTED, BINARY = "flat", "nested", "binary"
MAX_RANK = 64
_WIDE = 64
"""Minimum number of elements of a row that is found by counting commas."""
MAX_STRINGS = 1_000_000
"""Maximum number of elements of a tensor of `BYTES`."""

Cell = bytes | memoryview
Shape = tuple[int, ...]
_SHORT = 64
_USUAL = re.compile(rb"\[(?:0|[1-9][0-9]{0,17})(?:, ?(?:0|[1-9][0-9]{0,17}))*\]")
_INTEGER = re.compile(rb"-?(?:0|[1-9][0-9]{0,18})")


@mypyc_attr(native_class=False)
class BadTensor(ValueError):
    """A tensor that contradicts its own description, or is not valid.

    Args:
        path: JSON path of the wrong value.
        expected: what should be there.
        actual: what is there.
    """

    def __init__(self, path: str, expected: str, actual: str) -> None:
        super().__init__(f"{path}: expected {expected}, found {actual}")
        self.path = path
        self.expected = expected
        self.actual = actual


def read_shape(raw: bytes, path: str) -> Shape:
    """Read a shape from its JSON.

    Raises:
        BadTensor: not an array of non-negative integers below 2**63, or more than `MAX_RANK` of them.
    """
    if len(raw) <= _SHORT:
        known = _known_shape(raw)
        if known is not None:
            return known
    try:
        dims = elements(raw, MAX_RANK) if raw[:1] == b"[" else None
    except NotJSON:
        dims = None
    if dims is None or len(dims) > MAX_RANK:
        raise BadTensor(path, f"an array of at most {MAX_RANK} integers", _short(raw))
    for index, dim in enumerate(dims):
        if not _INTEGER.fullmatch(dim) or dim[:1] == b"-" or int(dim) >= 2**63:
            raise BadTensor(f"{path}[{index}]", "an integer from 0 to 2^63 - 1", _short(dim))
    return tuple(map(int, dims))


@functools.lru_cache(maxsize=256)
def _known_shape(raw: bytes) -> Shape | None:
    """Read a shape in its usual spelling; None for other text. Models have few shapes: most are cached."""
    if not _USUAL.fullmatch(raw):
        return None
    return tuple(map(int, raw[1:-1].split(b",")))


def shape_text(shape: Sequence[int]) -> str:
    """A shape as JSON."""
    return "[" + ",".join(map(str, shape)) + "]"


def cut_json(data: bytes, shape: Shape, datatype: str, path: str) -> tuple[str, list[Cell]]:
    """Return the form of JSON data, and its rows: arrays if nested, elements with commas if flat.

    Args:
        data: the raw array.
        shape: the tensor's, of rank 1 at least.
        datatype: the tensor's.
        path: JSON path of the data, for errors.

    Raises:
        BadTensor: the number or nesting of the elements is not that of the shape.
    """
    rows, tail = shape[0], shape[1:]
    width = math.prod(tail)
    if data[:1] != b"[":
        raise BadTensor(path, "an array", _short(data))
    if data.count(b"[") == 1 and b'"' not in data and b"{" not in data:
        inner = data[1:-1].strip()
        count = data.count(b",") + 1 if inner else 0
        _check_count(count, shape, path)
        if width == 0:
            return FLAT, [b""] * rows if rows <= MAX_STRINGS else []
        return FLAT, list(_group_numbers(inner, rows, width))
    total = rows * width
    try:
        parts = elements(data, MAX_STRINGS)
    except NotJSON as error:
        expected = f"an array of at most {MAX_STRINGS} elements that are not numbers"
        raise BadTensor(path, expected, error.actual) from error
    if tail and parts and parts[0][:1] == b"[":
        if len(parts) != rows:
            raise BadTensor(path, f"{rows} rows (shape {shape_text(shape)})", str(len(parts)))
        for index, part in enumerate(parts):
            # NB: the pattern's length depends on the shape: never build it for a shape longer than the data.
            if width > len(part) or structure(part) != _nesting(tail):
                raise BadTensor(f"{path}[{index}]", f"arrays nested as {shape_text(tail)}", _short(part))
        return NESTED, list(parts)
    _check_count(len(parts), shape, path)
    for index, part in enumerate(parts):
        if part[:1] in (b"[", b"{"):
            raise BadTensor(f"{path}[{index}]", f"an element of type {datatype}", _short(part))
    if width == 1:
        return FLAT, list(parts)
    return FLAT, [b",".join(parts[start : start + width]) for start in range(0, total, width)]


def cut_binary(data: memoryview, shape: Shape, datatype: str, path: str) -> list[Cell]:
    """Cut binary data into rows.

    Args:
        data: the tensor's bytes.
        shape: the tensor's, of rank 1 at least.
        datatype: the tensor's, one of `SIZES` or `BYTES`.
        path: JSON path of the tensor, for errors.

    Raises:
        BadTensor: the size is not that of the shape and datatype.
    """
    rows, width = shape[0], math.prod(shape[1:])
    total = rows * width
    if datatype != "BYTES":
        size = total * SIZES[datatype]
        if size != len(data):
            raise BadTensor(path, f"{size} bytes ({datatype} of shape {shape_text(shape)})", str(len(data)))
        step = width * SIZES[datatype]
        return [data[start : start + step] for start in range(0, size, step)] if size else []
    if total > MAX_STRINGS or total * 4 > len(data):
        raise BadTensor(path, f"{total} elements (BYTES of shape {shape_text(shape)})", f"{len(data)} bytes")
    cells: list[Cell] = []
    start = end = 0
    for index in range(total):
        if end + 4 > len(data):
            raise BadTensor(path, f"{total} elements of BYTES", f"the end of the data in element {index}")
        end += 4 + int.from_bytes(data[end : end + 4], "little")
        if end > len(data):
            raise BadTensor(path, f"{total} elements of BYTES", f"the end of the data in element {index}")
        if (index + 1) % width == 0:
            cells.append(data[start:end])
            start = end
    if end != len(data):
        raise BadTensor(path, f"{total} elements of BYTES", f"{len(data) - end} bytes behind them")
    return cells


def joined(cells: Sequence[Cell], form: str) -> bytes:
    """Join rows into the JSON data of a tensor.

    Args:
        cells: the rows.
        form: `FLAT` or `NESTED`, the same for all rows.
    """
    if form == FLAT and cells and not cells[0]:
        return b"[]"  # rows without elements
    return b"[" + b",".join(cells) + b"]"


def _group_numbers(inner: bytes, rows: int, width: int) -> list[bytes]:
    if rows == 1:
        return [inner]
    if width == 1:
        return list(map(bytes.strip, inner.split(b",")))
    if width < _WIDE:
        groups: list[bytes] = re.findall(rb"((?:[^,]*+,){%d}[^,]*+),?" % (width - 1), inner)
        return groups
    groups = []
    start = 0
    for _ in range(rows - 1):
        end = _comma(inner, start, width, len(inner) // rows)
        groups.append(inner[start:end])
        start = end + 1
    return [*groups, inner[start:]]


def _comma(text: bytes, start: int, number: int, guess: int) -> int:
    """Return the place of a comma, found by counting in long steps: an image has very many commas.

    Args:
        text: numbers and commas.
        start: where to begin.
        number: number of the comma from there, 1 = the first; it exists.
        guess: an estimate of its distance.
    """
    step = guess + 1
    while step > _WIDE:
        passed = text.count(b",", start, start + step)
        if passed < number:
            number -= passed
            start += step
        else:
            step //= 2
    for _ in range(number):
        start = text.index(b",", start) + 1
    return start - 1


@functools.lru_cache(maxsize=64)
def _nesting(tail: Shape) -> bytes:
    if not math.prod(tail):
        return b"[]"
    text = b""
    for size in reversed(tail):
        text = b"[" + b",".join([text] * size) + b"]"
    return text


def _check_count(count: int, shape: Shape, path: str) -> None:
    if count != math.prod(shape):
        raise BadTensor(path, f"{math.prod(shape)} elements (shape {shape_text(shape)})", str(count))


def _short(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace")
    return text if len(text) <= 40 else text[:40] + "…"
