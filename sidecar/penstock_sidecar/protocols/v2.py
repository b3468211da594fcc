"""The `v2` protocol: Open Inference Protocol over REST (KServe, Triton, MLServer), JSON and binary tensors.

An item is one row of all inputs along their first axis. Each input's name, datatype, further axes, parameters
and form (flat JSON, nested JSON, binary), the requested outputs, the parameters and other top-level members
must be equal in a batch, so they are part of the key. A request's `id` comes back in its answer; a batch has
an `id` of its own, since some models answer with it. Optional members that are null count as absent.

A request is sent alone, for the model to judge, if its first axis is not a batch: it has no inputs or rows,
a scalar or an empty tensor, first axes that differ or data in shared memory, or it belongs to a sequence
(`sequence_id` and its like).

Source: https://github.com/kserve/open-inference-protocol and Triton's extension "binary tensor data".
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from penstock_sidecar.protocols.base import Message, Parsed, new_id
from penstock_sidecar.protocols.media_types import CLOUD_EVENT, HEADER_LENGTH, BodyFields
from penstock_sidecar.protocols.v2_tensors import (
    BINARY,
    SIZES,
    BadTensor,
    Cell,
    Shape,
    cut_binary,
    cut_json,
    joined,
    read_shape,
    shape_text,
)
from penstock_wire._mypyc import mypyc_attr
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import Headers, get
from penstock_wire.http import Request, Response
from penstock_wire.instances_form import MAX_ITEMS, member_name, shape_error
from penstock_wire.json_slices import NotJSON, elements, members, object_with

MAX_TENSORS = 1000
_BODY = BodyFields(CLOUD_EVENT)
_OCTETS = b"application/octet-stream"
_JSON = ((b"content-type", b"application/json"),)
_PLAIN = re.compile(rb'"[!#-\[\]-~ ]*"')
"""An ASCII string in JSON without escapes."""
_STATEFUL = ("sequence_id", "sequence_start", "sequence_end")
_LONE = Parsed(items=(), lone=True)
_ID = re.compile(rb'\{"id":("[!#-\[\]-~ ]*"),')
_MOST_KNOWN, _LONGEST_KNOWN = 256, 4096
"""Requests whose JSON is remembered, and the bytes of each."""


class Row:
    """One item: a cell of each input.

    Args:
        cells: the row in each input, in their order.
        id: the `id` of its request, as raw JSON; None if the request has none.
    """

    __slots__ = ("cells", "id", "size")

    def __init__(self, cells: tuple[Cell, ...], id: bytes | None) -> None:
        self.cells = cells
        self.id = id
        self.size = len(cells[0]) if len(cells) == 1 else sum(map(len, cells))

    def __len__(self) -> int:
        return self.size


@mypyc_attr(native_class=False)
class _Kind(NamedTuple):
    """The properties of one input that are equal in a batch.

    Args:
        head: its name and other members except shape, parameters and data, as JSON without the braces.
        tail: its shape without the first axis.
        parameters: its parameters without the size of its data, as JSON without the braces.
        form: the form of its data.
    """

    head: bytes
    tail: Shape
    parameters: bytes
    form: str


_Layout = tuple[str, Shape, int]
"""Of a tensor that is binary: its datatype, its shape, and its bytes."""


@mypyc_attr(native_class=False)
class Signature(NamedTuple):
    """The properties that are equal in a batch: the inputs' kinds, and all other members as JSON."""

    inputs: tuple[_Kind, ...]
    rest: bytes


class _Tensor:
    """An input or output that was read: its kind and its rows, and of binary data what describes them."""

    __slots__ = ("cells", "kind", "layout", "name")

    def __init__(self, name: str, kind: _Kind, cells: list[Cell], layout: _Layout | None) -> None:
        self.name = name
        self.kind = kind
        self.cells = cells
        self.layout = layout


class _Known:
    """What the JSON of a request says whose tensors are all behind it.

    Args:
        layouts: of the inputs.
        signature: the properties that are equal in a batch.
    """

    __slots__ = ("layouts", "signature", "size")

    def __init__(self, layouts: list[_Layout], signature: Signature) -> None:
        self.layouts = layouts
        self.signature = signature
        self.size = sum([size for _, _, size in layouts])

    def parsed(self, id: bytes | None, binary: memoryview) -> Parsed:
        """The request with this `id`, and with data of the right length."""
        columns: list[list[Cell]] = []
        start = 0
        for index, (datatype, shape, size) in enumerate(self.layouts):
            data = binary[start : start + size]
            if shape[0] == 1 and datatype != "BYTES":
                columns.append([data])
            else:
                columns.append(cut_binary(data, shape, datatype, f"$.inputs[{index}]"))
            start += size
        if len(columns) == 1:
            items = [Row((cell,), id) for cell in columns[0]]
        else:
            items = [Row(cells, id) for cells in zip(*columns, strict=True)]
        return Parsed(items=items, parameters=self.signature)


_known: dict[bytes, _Known] = {}
"""By the JSON without its `id`: a client's requests differ in their tensors alone, mostly."""


def _remember(rest: bytes, own: bytes | None, parsed: Parsed, tensors: Sequence[_Tensor]) -> None:
    """Remember what a request's JSON says.

    Args:
        rest: the JSON without an `id` at its beginning.
        own: this `id`.
        parsed: the request.
        tensors: its inputs.
    """
    layouts = [tensor.layout for tensor in tensors if tensor.layout is not None]
    if not layouts or len(layouts) < len(tensors) or parsed.items[0].id != own:  # it is not at the beginning
        return
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    _known[rest] = _Known(layouts, cast("Signature", parsed.parameters))


class _V2:
    name = "v2"
    item_streams = False
    asks: Headers = ()

    def passes(self, request: Request) -> bool:
        return (
            request.method != "POST"
            or not request.path.endswith("/infer")
            or not _BODY.may_be_json(_described(request))
        )

    def parse(self, request: Request) -> Parsed | None:
        try:
            text, binary = _parts(_BODY.lengths(_described(request)), request.body)
            if not text and binary:
                return _LONE  # Triton's raw request: one tensor without a description
            own, rest = None, text
            if binary is not None:
                if (match := _ID.match(text)) is not None:
                    own, rest = match[1], b"{" + text[match.end() :]
                known = _known.get(rest)
                if known is not None and known.size == len(binary):
                    return known.parsed(own, binary)
            document = object_with("inputs", text)
            if document is None:
                return None
            fields = _BODY.of_json(request.headers) if binary is None else None
            parsed, tensors = _read(document, binary, fields)
            if binary is not None and len(rest) <= _LONGEST_KNOWN:
                _remember(rest, own, parsed, tensors)
            return parsed
        except NotJSON as error:
            raise PenstockError(Reason.BAD_JSON, str(error)) from error
        except BadTensor as wrong:
            raise shape_error(wrong.path, wrong.expected, wrong.actual) from wrong

    def join(self, parts: Sequence[Sequence[Row]], parameters: Hashable) -> Message:
        signature = cast("Signature", parameters)
        rows = [row for part in parts for row in part]
        columns = zip(*[row.cells for row in rows], strict=True)
        tensors, binary = _tensors(signature.inputs, list(columns), len(rows))
        text = b'{"id":"%b","inputs":[%b]%b}' % (new_id().encode(), tensors, signature.rest)
        if not binary:
            return Message(headers=_JSON, body=text)
        headers = ((b"content-type", _OCTETS), (HEADER_LENGTH, b"%d" % len(text)))
        return Message(headers=headers, body=b"".join([text, *binary]))

    def split(self, answer: Response, parts: Sequence[Sequence[Row]], parameters: Hashable) -> list[Response]:
        counts = list(map(len, parts))
        read = _Answer.read(answer, sum(counts))
        answers, start = [], 0
        for part, count in zip(parts, counts, strict=True):
            answers.append(read.part(start, start + count, part[0].id))
            start += count
        return answers

    def merge(self, answers: Sequence[Response], parameters: Hashable) -> Response:
        first, *others = [_Answer.read(answer, None) for answer in answers]
        for other in others:
            if [each.kind for each in other.outputs] != [each.kind for each in first.outputs]:
                raise PenstockError(
                    Reason.BAD_ANSWER, "the model's answers to one request have different outputs"
                )
            for mine, more in zip(first.outputs, other.outputs, strict=True):
                mine.cells += more.cells
            first.rows += other.rows
        return first.part(0, first.rows, first.id)


V2_PROTOCOL = _V2()


class _Answer:
    """A model's answer that was read."""

    def __init__(
        self, response: Response, id: bytes | None, rest: bytes, outputs: list[_Tensor], rows: int
    ) -> None:
        self.status = response.status
        self.binary = get(response.headers, HEADER_LENGTH) is not None
        self.headers = tuple([field for field in response.headers if field[0] != HEADER_LENGTH])
        self.id = id
        self.rest = rest
        self.outputs = outputs
        self.rows = rows
        self.behind = all(output.layout is not None for output in outputs)
        self._texts: dict[tuple[bytes | None, tuple[int, ...]], tuple[bytes, Headers]] = {}

    @classmethod
    def read(cls, response: Response, rows: int | None) -> _Answer:
        """Read an answer whose outputs have `rows` rows; None: as many as the first output has."""
        try:
            lengths = [value for name, value in response.headers if name == HEADER_LENGTH]
            text, binary = _parts(lengths, response.body)
            document = members(text)
            own = document.pop("id", None)
            tensors = _objects(_list(document, "outputs", "$"), "outputs")
            outputs, axes = _read_tensors(tensors, binary, "outputs", rows)
        except (NotJSON, BadTensor) as error:
            raise PenstockError(Reason.BAD_ANSWER, f"the model's answer: {error}") from error
        return cls(response, own, _inner(document), outputs, axes)

    def part(self, start: int, stop: int, id: bytes | None) -> Response:
        """Make the answer for some rows, with an `id` as raw JSON, or without one (None)."""
        columns = [output.cells[start:stop] for output in self.outputs]
        sizes: tuple[int, ...] = ()
        if self.behind:  # then the JSON of parts as large is the same
            sizes = (stop - start, *[sum(map(len, cells)) for cells in columns])
            known = self._texts.get((id, sizes))
            if known is not None:
                pieces = [cell for cells in columns for cell in cells]
                return Response(self.status, known[1], b"".join([known[0], *pieces]))
        tensors, binary = _tensors([output.kind for output in self.outputs], columns, stop - start)
        head = b"{" if id is None else b'{"id":' + id + b","
        text = head + (self.rest + b"," if self.rest else b"") + b'"outputs":[' + tensors + b"]}"
        headers = self.headers
        if self.binary:
            headers = (*headers, (HEADER_LENGTH, b"%d" % len(text)))
        if sizes:
            self._texts[id, sizes] = text, headers
        return Response(self.status, headers, b"".join([text, *binary]) if binary else text)


def _described(request: Request) -> Headers:
    """The fields that describe a body: not among those of one request alone, if others are shared."""
    return request.headers if request.shared is None else request.shared


def _parts(lengths: Sequence[bytes], body: bytes) -> tuple[bytes, memoryview | None]:
    """The JSON of a body, and the data behind it if a header field has the length of the JSON."""
    if not lengths:
        return body, None
    length = lengths[0].strip()
    if len(lengths) > 1 or not length.isdigit() or len(length) > 12 or int(length) > len(body):
        sizes = b", ".join(lengths).decode("latin-1")[:100]
        raise BadTensor(HEADER_LENGTH.decode(), f"a length up to the body's {len(body)} bytes", sizes)
    return body[: int(length)], memoryview(body)[int(length) :]


def _read(
    document: dict[str, bytes], binary: memoryview | None, fields: Headers | None
) -> tuple[Parsed, list[_Tensor]]:
    """Read a request; return its inputs too, unless it is sent alone."""
    lone: tuple[Parsed, list[_Tensor]] = (Parsed(items=(), lone=True, fields=fields), [])
    own = _optional(document, "id")
    if own is not None and own[:1] != b'"':
        raise BadTensor("$.id", "a string", own[:40].decode("utf-8", "replace"))
    inputs = _objects(_list(document, "inputs", "$"), "inputs")
    parameters = _parameters(document, "$")
    if parameters and any(parameters.get(name, b"0") not in (b"0", b'""', b"false") for name in _STATEFUL):
        return lone
    outputs = _optional(document, "outputs")
    rest = b""
    if outputs is not None:
        wanted = _objects(_elements(outputs, "$.outputs"), "outputs")
        _check_names([each.get("name") for each in wanted], "outputs")
        for index, each in enumerate(wanted):
            settings = _parameters(each, f"$.outputs[{index}]")
            if "shared_memory_region" in settings:
                return lone
            if settings:
                each["parameters"] = b"{" + _inner(settings) + b"}"
        rest += b',"outputs":[' + b",".join([b"{" + _inner(each) + b"}" for each in wanted]) + b"]"
    if parameters:
        document["parameters"] = b"{" + _inner(parameters) + b"}"
    if document:
        rest += b"," + _inner(document)
    shapes = _first_look(inputs)
    if not shapes or any(not shape or 0 in shape for shape in shapes):
        return lone
    rows = shapes[0][0]
    if any(shape[0] != rows for shape in shapes):
        return lone
    if rows > MAX_ITEMS:
        raise BadTensor("$.inputs[0].shape[0]", f"at most {MAX_ITEMS} rows", str(rows))
    tensors, _ = _read_tensors(inputs, binary, "inputs", rows)
    items = [Row(cells, own) for cells in zip(*[tensor.cells for tensor in tensors], strict=True)]
    signature = Signature(tuple([each.kind for each in tensors]), rest)
    return Parsed(items=items, parameters=signature, fields=fields), tensors


def _first_look(inputs: list[dict[str, bytes]]) -> list[Shape]:
    """Return the inputs' shapes; none if an input's data is in shared memory."""
    shapes = []
    names = []
    for index, tensor in enumerate(inputs):
        settings = _optional(tensor, "parameters")
        if settings is not None:
            if "shared_memory_region" in _object(settings, f"$.inputs[{index}].parameters"):
                return []
            tensor["parameters"] = settings
        names.append(tensor.get("name"))
        shapes.append(_shape(tensor, f"$.inputs[{index}]"))
    _check_names(names, "inputs")
    return shapes


def _read_tensors(
    objects: list[dict[str, bytes]], binary: memoryview | None, member: str, rows: int | None
) -> tuple[list[_Tensor], int]:
    """Return the tensors, and the number of rows that each has."""
    tensors: list[_Tensor] = []
    offset = 0
    for index, tensor in enumerate(objects):
        path = f"$.{member}[{index}]"
        name = _text(tensor.get("name"), path + ".name")
        shape = _shape(tensor, path)
        if rows is None and shape:
            rows = shape[0]
        if not shape or shape[0] != rows:
            about = f"{path}.shape ({name!r})"
            raise BadTensor(about, f"a first axis of {rows} rows", shape_text(shape))
        datatype = _text(tensor.get("datatype"), path + ".datatype")
        if datatype not in SIZES and datatype != "BYTES":
            raise BadTensor(path + ".datatype", "one of " + ", ".join([*SIZES, "BYTES"]), datatype)
        settings = _parameters(tensor, path)
        size = _optional(settings, "binary_data_size")
        data = _optional(tensor, "data")
        tensor.pop("shape")
        if size is None:
            if data is None:
                raise BadTensor(path, 'a member "data"', ", ".join(sorted(tensor)))
            form, cells = cut_json(data, shape, datatype, path + ".data")
            layout: _Layout | None = None
        else:
            if data is not None:
                raise BadTensor(path, "data either here or behind the JSON", "both")
            left = 0 if binary is None else len(binary) - offset
            if not size.isdigit() or len(size) > 12 or int(size) > left:
                shown = size[:40].decode("utf-8", "replace")
                raise BadTensor(
                    path + ".parameters.binary_data_size",
                    f"a size up to the {left} bytes left",
                    shown,
                )
            part = memoryview(b"" if binary is None else binary)[offset : offset + int(size)]
            offset += int(size)
            form, cells = BINARY, cut_binary(part, shape, datatype, path)
            layout = (datatype, shape, int(size))
        if len(cells) != rows:  # rows without elements
            cells = [b""] * rows if rows <= MAX_ITEMS else []
        kind = _Kind(_inner(tensor), shape[1:], _inner(settings), form)
        tensors.append(_Tensor(name, kind, cells, layout))
    if binary is not None and offset != len(binary):
        raise BadTensor(f"$.{member}", f"{offset} bytes of binary data behind the JSON", str(len(binary)))
    return tensors, rows or 0


def _tensors(
    kinds: Sequence[_Kind], columns: Sequence[Sequence[Cell]], rows: int
) -> tuple[bytes, list[Cell]]:
    """Tensors as JSON, and the pieces of the binary data behind it."""
    texts: list[bytes] = []
    pieces: list[Cell] = []
    for kind, cells in zip(kinds, columns, strict=True):
        settings = kind.parameters
        if kind.form == BINARY:
            pieces += cells
            settings += (b"," if settings else b"") + b'"binary_data_size":%d' % sum(map(len, cells))
        text = b"{" + kind.head + b',"shape":' + shape_text((rows, *kind.tail)).encode()
        if settings:
            text += b',"parameters":{' + settings + b"}"
        if kind.form != BINARY:
            text += b',"data":' + joined(cells, kind.form)
        texts.append(text + b"}")
    return b",".join(texts), pieces


def _optional(fields: dict[str, bytes], name: str) -> bytes | None:
    """Remove an optional member from its object and return it; null counts as absent."""
    raw = fields.pop(name, None)
    return None if raw == b"null" else raw


def _parameters(fields: dict[str, bytes], path: str) -> dict[str, bytes]:
    """Remove an object's parameters from it and return them."""
    raw = _optional(fields, "parameters")
    return {} if raw is None else _object(raw, path + ".parameters")


def _object(raw: bytes, path: str) -> dict[str, bytes]:
    try:
        return members(raw)
    except NotJSON as error:
        raise BadTensor(path, "an object", error.actual) from error


def _objects(raws: list[bytes], member: str) -> list[dict[str, bytes]]:
    return [_object(raw, f"$.{member}[{index}]") for index, raw in enumerate(raws)]


def _list(fields: dict[str, bytes], name: str, path: str) -> list[bytes]:
    raw = fields.pop(name, None)
    if raw is None:
        raise BadTensor(path, f'a member "{name}"', ", ".join(sorted(fields)[:10]) or "no members")
    return _elements(raw, f"{path}.{name}")


def _elements(raw: bytes, path: str) -> list[bytes]:
    try:
        return elements(raw, MAX_TENSORS)
    except NotJSON as error:
        raise BadTensor(path, f"an array of at most {MAX_TENSORS} objects", error.actual) from error


def _shape(tensor: dict[str, bytes], path: str) -> Shape:
    if "shape" not in tensor:
        raise BadTensor(path, 'a member "shape"', ", ".join(sorted(tensor)[:10]) or "no members")
    return read_shape(tensor["shape"], path + ".shape")


def _text(raw: bytes | None, path: str) -> str:
    if raw is not None and _PLAIN.fullmatch(raw):
        return raw[1:-1].decode()
    try:
        text: Any = None if raw is None else msgspec.json.decode(raw)
    except msgspec.DecodeError:  # a lone surrogate
        text = None
    if not isinstance(text, str):
        raise BadTensor(path, "a string", "nothing" if raw is None else raw[:40].decode("utf-8", "replace"))
    return text


def _check_names(names: Sequence[bytes | None], member: str) -> None:
    texts = [_text(name, f"$.{member}[{index}].name") for index, name in enumerate(names)]
    seen: set[str] = set()
    for index, text in enumerate(texts):
        if text in seen:
            raise BadTensor(f"$.{member}[{index}].name", "another name than the others", text)
        seen.add(text)


def _inner(tensor: dict[str, bytes]) -> bytes:
    """Members sorted by name, as JSON without the braces."""
    return b",".join([member_name(name) + b":" + tensor[name] for name in sorted(tensor)]) if tensor else b""
