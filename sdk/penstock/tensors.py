"""The Open Inference Protocol (v2) before a class: tensors become items, answers become tensors.

A row of the inputs along their first axis is an item, with the values that JSON would have; a parameter that
is annotated as an array gets arrays, without a detour. If the method has one parameter, one input is the item
itself, whatever its name is; else the inputs are the arguments, by name.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock import openapi
from penstock.array_validation import Arrays
from penstock.encoding import encode
from penstock.errors import AnswerError
from penstock.item_answers import respond
from penstock.response import Response
from penstock.signature import Shape
from penstock_wire import http
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import INFERENCE_HEADER_LENGTH, Headers, get
from penstock_wire.http2 import members, tensors
from penstock_wire.http2.protobuf import BadMessageError
from penstock_wire.instances_form import MAX_ITEMS, shape_error

OUTPUT = "predictions"
"""The name of the output if the answers are not objects, whose members are outputs."""
MAX_AXES = 32
"""Most axes of an input: those of an array, in any version of numpy."""
_MAX_ELEMENTS = 1 << 58
"""More than any body has, and few enough for numpy: it multiplies all axes but empty ones."""
_KINDS = {
    "b1": "BOOL", "u1": "UINT8", "u2": "UINT16", "u4": "UINT32", "u8": "UINT64", "i1": "INT8", "i2": "INT16",
    "i4": "INT32", "i8": "INT64", "f2": "FP16", "f4": "FP32", "f8": "FP64",
}  # fmt: skip
"""Datatypes by numpy's kind and the bytes of an element."""
_OF_SCHEMA = {"boolean": "BOOL", "integer": "INT64", "number": "FP64", "string": "BYTES"}
_JSON: Headers = ((b"content-type", b"application/json"),)
_OCTETS = b"application/octet-stream"


class _Tensor(msgspec.Struct):
    name: str
    datatype: str = ""
    shape: list[int] = []
    parameters: dict[str, Any] | None = None
    data: Any = None


class _Document(msgspec.Struct):
    inputs: list[_Tensor]
    id: str | None = None
    parameters: dict[str, Any] | None = None
    outputs: list[_Tensor] | None = None


class Inference:
    """A request that was read.

    Args:
        document: its JSON.
        columns: the rows of each input, by its name.
        rows: their number.
    """

    def __init__(self, document: _Document, columns: Mapping[str, Sequence[Any]], rows: int) -> None:
        self._document = document
        self._columns = columns
        self.rows = rows

    @property
    def shared(self) -> dict[str, Any]:
        """The arguments for all items: the request's parameters."""
        parameters = self._document.parameters or {}
        return {name: value for name, value in parameters.items() if name != "binary_data_output"}

    def items(self, shape: Shape) -> list[Any]:
        """The items for a method of this shape."""
        if shape.whole and len(self._columns) == 1:
            (items,) = self._columns.values()
            return list(items)
        names = list(self._columns)
        return [dict(zip(names, row, strict=True)) for row in zip(*self._columns.values(), strict=True)]

    def respond(self, answers: Sequence[Any], model_name: str, request_id: str) -> http.Response:
        """Make the answer.

        Args:
            answers: one for each item: a value, a `Response`, an exception. With one of the last two, the
                whole request gets its status, or a problem that lists such items.
            model_name: the model's name.
            request_id: the request's id, for problems.

        Raises:
            AnswerError: the answers make no tensors.
            PenstockError: the request wants an output that is not there.
        """
        if any(isinstance(each, BaseException | Response) for each in answers):
            return respond(answers, request_id=request_id)
        document = self._document
        columns = _columns_of(answers)
        binary = bool((document.parameters or {}).get("binary_data_output"))
        wanted = document.outputs or [_Tensor(name) for name in columns]
        outputs: list[dict[str, Any]] = []
        pieces: list[bytes] = []
        for index, each in enumerate(wanted):
            if each.name not in columns:
                raise shape_error(f"$.outputs[{index}].name", "one of " + ", ".join(columns), each.name)
            datatype, axes, raw = _written(columns[each.name], each.name)
            output: dict[str, Any] = {"name": each.name, "datatype": datatype, "shape": [len(answers), *axes]}
            if (each.parameters or {}).get("binary_data", binary):
                output["parameters"] = {"binary_data_size": len(raw)}
                pieces.append(raw)
            else:
                output["data"] = _flat(raw, datatype, len(answers) * math.prod(axes))
            outputs.append(output)
        said = {"model_name": model_name, "model_version": "1", "outputs": outputs}
        text = msgspec.json.encode(said if document.id is None else {**said, "id": document.id})
        if not pieces:
            return http.Response(200, _JSON, text)
        headers = ((b"content-type", _OCTETS), (INFERENCE_HEADER_LENGTH, b"%d" % len(text)))
        return http.Response(200, headers, b"".join([text, *pieces]))


def read(request: http.Request, shape: Shape) -> Inference | None:
    """Read a request.

    Args:
        request: one whose path ends in `/infer`.
        shape: the method's: whose parameters are arrays.

    Returns:
        None if its body has no `inputs`.

    Raises:
        PenstockError: `bad_json` or `bad_shape`, with what was expected and found, and where.
    """
    body, size = request.body, get(request.headers, INFERENCE_HEADER_LENGTH)
    if size is not None and (not size.isdigit() or len(size) > 12 or int(size) > len(body)):
        expected = f"a length up to the body's {len(body)} bytes"
        raise shape_error(INFERENCE_HEADER_LENGTH.decode(), expected, size[:40].decode("latin-1"))
    text = body if size is None else body[: int(size)]
    try:
        raw = members.json_of(text)
        if "inputs" not in raw:
            return None
        document = msgspec.convert(raw, _Document)
        columns, rows = _rows(document, body[len(text) :], shape)
    except msgspec.ValidationError as error:
        said, _, path = str(error).partition(" - at ")
        raise shape_error(path.strip("`") or "$", said, "another") from error
    except BadMessageError as error:
        if error.path == "body":
            raise PenstockError(Reason.BAD_JSON, str(error)) from error
        raise shape_error(error.path, error.expected, error.actual) from error
    return Inference(document, columns, rows)


def _rows(document: _Document, binary: bytes, shape: Shape) -> tuple[dict[str, Sequence[Any]], int]:
    columns: dict[str, Sequence[Any]] = {}
    rows = at = 0
    if not document.inputs or document.inputs[0].shape[:1] == [0]:
        raise BadMessageError("$.inputs", "at least one input with one row", "none")
    for index, each in enumerate(document.inputs):
        path = f"$.inputs[{index}]"
        if not each.shape or min(each.shape) < 0 or (index and each.shape[0] != rows) or each.name in columns:
            expected = f"a name of its own, and {rows} rows" if index else "a first axis"
            raise BadMessageError(path, expected, f"{each.name} of shape {each.shape}")
        rows = each.shape[0]
        if rows > MAX_ITEMS:
            raise BadMessageError(path + ".shape[0]", f"at most {MAX_ITEMS} rows", str(rows))
        if len(each.shape) > MAX_AXES:
            raise BadMessageError(path + ".shape", f"at most {MAX_AXES} axes", str(len(each.shape)))
        if math.prod([axis or 1 for axis in each.shape]) > _MAX_ELEMENTS:
            raise BadMessageError(path + ".shape", f"at most {_MAX_ELEMENTS} elements", "more")
        size = (each.parameters or {}).get("binary_data_size")
        if size is None:
            raw = tensors.of_json(each.datatype, each.data, path + ".data")
        elif isinstance(size, int) and 0 <= size <= len(binary) - at:
            raw = binary[at : at + size]
            at += size
        else:
            expected = f"a size up to the {len(binary) - at} bytes left"
            raise BadMessageError(path + ".parameters.binary_data_size", expected, repr(size)[:40])
        lone = shape.whole and len(document.inputs) == 1
        name = shape.parameters[0].name if lone else each.name
        columns[each.name] = _read(raw, each, shape.validators.get(name), path, arrays=shape.arrays)
    if at != len(binary):
        raise BadMessageError("$.inputs", f"{at} bytes of binary data behind the JSON", str(len(binary)))
    return columns, rows


def _read(raw: bytes, tensor: _Tensor, validator: Any, path: str, *, arrays: bool = False) -> Sequence[Any]:
    """Return the rows of a tensor: arrays for a parameter that is one, else values as of JSON."""
    shape, datatype, count = tensor.shape, tensor.datatype, math.prod(tensor.shape)
    if datatype == "BYTES":
        texts = _texts(raw, count, path, encoded=getattr(validator, "base64", False))
        return list(_numpy().array(texts, dtype=object).reshape(shape)) if arrays else _nested(texts, shape)
    if datatype == "BF16":  # numpy has none, so it is read as what it is the upper half of
        whole = bytearray(2 * len(raw))
        whole[2::4], whole[3::4] = raw[0::2], raw[1::2]
        raw, datatype = bytes(whole), "FP32"
    code = tensors.CODES.get(datatype)
    if code is None:
        raise BadMessageError(path + ".datatype", "one of BF16, BYTES, " + ", ".join(tensors.CODES), datatype)
    if len(raw) != count * struct.calcsize("=" + code):
        expected = f"{count} elements ({datatype} of shape {shape})"
        raise BadMessageError(path, expected, f"{len(raw)} bytes")
    if arrays or isinstance(validator, Arrays):
        numpy = _numpy()
        return list(numpy.frombuffer(bytearray(raw), numpy.dtype(code).newbyteorder("<")).reshape(shape))
    return _nested(list(struct.unpack(f"<{count}{code}", raw)), shape)


def _numpy() -> Any:
    return sys.modules["numpy"]


def _texts(raw: bytes, count: int, path: str, *, encoded: bool) -> list[str]:
    """Return the elements of `BYTES`: text, or base64 for a parameter that reads bytes from it."""
    elements: list[str] = []
    at = 0
    try:
        while at < len(raw):
            start = at + 4
            at = start + int.from_bytes(raw[at:start], "little")
            piece = raw[start:at]
            elements.append(base64.b64encode(piece).decode() if encoded else piece.decode())
    except UnicodeDecodeError as error:
        raise BadMessageError(path, "text in UTF-8, or a parameter annotated as bytes", str(error)) from error
    if len(elements) != count or at != len(raw):
        raise BadMessageError(path, f"{count} elements of BYTES", f"{len(raw)} bytes with {len(elements)}")
    return elements


def _nested(flat: list[Any], shape: Sequence[int]) -> list[Any]:
    for size in reversed(shape[1:]):
        if not size:
            return [[] for _ in range(shape[0])]
        flat = [flat[at : at + size] for at in range(0, len(flat), size)]
    return flat


def _flat(raw: bytes, datatype: str, count: int) -> list[Any]:
    if datatype == "BYTES":
        return list(_texts(raw, count, OUTPUT, encoded=False))
    return list(struct.unpack(f"<{count}{tensors.CODES[datatype]}", raw))


def _columns_of(answers: Sequence[Any]) -> dict[str, list[Any]]:
    """The answers of each output: the members of answers that are objects, else one output."""
    if not (hasattr(answers[0], "dtype") or isinstance(answers[0], int | float | str | list | dict)):
        answers = json.loads(encode(list(answers)))
    if all(isinstance(each, dict) for each in answers):
        names = answers[0].keys()
        if not names or any(each.keys() != names for each in answers):
            raise AnswerError("expected objects with the same members, which become tensors, found others")
        return {str(name): [each[name] for each in answers] for name in names}
    return {OUTPUT: list(answers)}


def _written(column: list[Any], name: str) -> tuple[str, list[int], bytes]:
    """Return the datatype of an output, its shape without the first axis, and its bytes."""
    numpy: Any = sys.modules.get("numpy")
    first = column[0]
    if numpy is not None and hasattr(first, "dtype"):
        try:
            array = numpy.asarray(column)
        except (ValueError, TypeError, RuntimeError):  # of several shapes, or no array
            array = None
        datatype = None if array is None else _KINDS.get(f"{array.dtype.kind}{array.dtype.itemsize}")
        if datatype is not None:
            little = array.dtype.newbyteorder("<")
            return datatype, list(array.shape[1:]), array.astype(little, copy=False).tobytes()
    values = json.loads(encode(column))
    axes: list[int] = []
    while isinstance(values[0], list):
        axes.append(len(values[0]))
        if any(not isinstance(each, list) or len(each) != axes[-1] for each in values) or not axes[-1]:
            raise AnswerError(f"{name}: expected answers of one shape, which make a tensor, found several")
        values = [value for each in values for value in each]
    kinds = set(map(type, values))
    if kinds == {str}:
        pieces = [value.encode("utf-8", "surrogatepass") for value in values]
        return "BYTES", axes, b"".join([len(each).to_bytes(4, "little") + each for each in pieces])
    datatype = "BOOL" if kinds == {bool} else "INT64" if kinds == {int} else "FP64"
    if not kinds <= {int, float, type(None)} and datatype != "BOOL":
        found = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise AnswerError(f"{name}: expected numbers or texts, which make a tensor, found {found}")
    numbers = [math.nan if value is None else value for value in values]
    try:
        return datatype, axes, struct.pack(f"<{len(numbers)}{tensors.CODES[datatype]}", *numbers)
    except (struct.error, OverflowError) as error:
        raise AnswerError(f"{name}: expected numbers of {datatype}: {error}") from error


def metadata(shape: Shape, name: str, described: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The model's metadata: the inputs as the signature has them; outputs are known from answers alone.

    Args:
        shape: the method's.
        name: the model's name.
        described: inputs and outputs that the model's file describes.
    """
    if described is not None:
        return {"name": name, "versions": ["1"], "platform": "penstock", "outputs": [], **described}
    schemas: dict[str, Any] = {}
    item = openapi.item(shape, schemas)
    if "$ref" in item:
        item = schemas.get(item["$ref"].rpartition("/")[2], {})
    members = item.get("properties")
    if members is None:
        members = {parameter.name: item for parameter in shape.parameters}
    inputs = [{"name": each, **_described(shape, each, schema)} for each, schema in members.items()]
    return {"name": name, "versions": ["1"], "platform": "penstock", "inputs": inputs, "outputs": []}


def _described(shape: Shape, name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Datatype and shape of an input; an empty datatype if the annotation leaves it open."""
    validator = shape.validators.get(name)
    if isinstance(validator, Arrays):
        dtype = validator.kind
        datatype = "" if dtype is Any else _KINDS.get(f"{dtype.kind}{dtype.itemsize}", "BYTES")
        return {"datatype": datatype, "shape": [-1, -1]}
    axes = [-1]
    while schema.get("type") == "array" and isinstance(schema.get("items"), dict):
        schema = schema["items"]
        axes.append(-1)
    return {"datatype": _OF_SCHEMA.get(str(schema.get("type")), ""), "shape": axes}
