"""Messages of `inference.GRPCInferenceService` as requests and answers of the same protocol over REST. Pure.

Tensors stay the bytes that they are: a request's become binary data behind the JSON (Triton's extension
"binary tensor data"), and an answer's likewise. What is before them is small and repeats from request to
request, so it is kept as rendered.

Source: https://github.com/kserve/open-inference-protocol, specification/protocol/inference_grpc.md.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

import msgspec

from penstock_wire.headers import INFERENCE_HEADER_LENGTH, get
from penstock_wire.http import Response
from penstock_wire.http2 import protobuf, tensors
from penstock_wire.http2.members import (
    IN_JSON,
    json_of,
    member,
    object_of,
    read_parameter,
    write_parameters,
    write_tensor,
)
from penstock_wire.http2.protobuf import BadMessageError

_MOST_KNOWN: Final = 512
_LONGEST_KNOWN: Final = 4096
_LONGEST_NAME: Final = 1024
_RAW_INPUT: Final = 7
_RAW_OUTPUT: Final = b"\x32"  # the tag of raw_output_contents
_encode = msgspec.json.encode


def model_path(name: str, version: str, last: str) -> str:
    """Return the REST path of a model.

    Args:
        name: its name.
        version: its version, or an empty text.
        last: the path's last part, with its slash, or an empty text.

    Raises:
        BadMessageError: a name that is none in a path.
    """
    if name in (".", "..") or version in (".", "..") or len(name) + len(version) > _LONGEST_NAME:
        raise BadMessageError("model_name", "the name of a model", f"{name[:40]!r}, version {version[:40]!r}")
    versions = f"/versions/{quote(version, safe='')}" if version else ""
    return f"/v2/models/{quote(name, safe='')}{versions}{last}"


class _Known:
    """The rendered part of a request: its target, and the JSON before its tensors."""

    __slots__ = ("target", "text")

    def __init__(self, target: str, text: bytes) -> None:
        self.target = target
        self.text = text


_requests: dict[tuple[bytes, tuple[int, ...]], _Known] = {}
_answers: dict[bytes, tuple[bytes, list[int]]] = {}


def read_request(message: bytes, start: int) -> tuple[str, int, bytes]:
    """Read a `ModelInferRequest`.

    Args:
        message: bytes that end with it.
        start: where it begins.

    Returns:
        The target of the request over REST, the bytes of its JSON, and its body.

    Raises:
        BadMessageError: it is not one.
    """
    end = len(message)
    head: list[bytes] = []
    raw: list[bytes] = []
    sizes: list[int] = []
    at = begin = start
    count = 0
    while at < end:
        count += 1
        if count > protobuf.MOST_FIELDS:
            raise BadMessageError("ModelInferRequest", f"at most {protobuf.MOST_FIELDS} fields", "more")
        tag, value = protobuf.read_varint(message, at, end)
        if tag != (_RAW_INPUT << 3 | protobuf.BYTES):
            at = _behind(message, tag, value, end)
            continue
        if at > begin:
            head.append(message[begin:at])
        size, value = protobuf.read_varint(message, value, end)
        at = begin = value + size
        if at > end:
            raise BadMessageError("raw_input_contents", f"at most {end - value} bytes", str(size))
        raw.append(message[value:at])
        sizes.append(size)
    if end > begin:
        head.append(message[begin:end])
    text = head[0] if len(head) == 1 else b"".join(head)
    key = (text, tuple(sizes))
    known = _requests.get(key)
    if known is None:
        known, raw, lasting = _rendered(text, raw)
        if lasting and len(text) <= _LONGEST_KNOWN and len(known.text) <= 2 * _LONGEST_KNOWN:
            if len(_requests) >= _MOST_KNOWN:
                _requests.clear()
            _requests[key] = known
    raw.insert(0, known.text)
    return known.target, len(known.text), b"".join(raw)


def _behind(message: bytes, tag: int, at: int, end: int) -> int:
    """Return the end of a field, by its tag and where its value begins."""
    kind = tag & 7
    if kind == protobuf.BYTES:
        size, at = protobuf.read_varint(message, at, end)
        at += size
    elif kind == protobuf.VARINT:
        at = protobuf.read_varint(message, at, end)[1]
    elif kind == protobuf.LONG:
        at += 8
    elif kind == protobuf.SHORT:
        at += 4
    else:
        raise BadMessageError("ModelInferRequest", "a field of a known form", f"wire type {kind}")
    if at > end:
        raise BadMessageError("ModelInferRequest", f"a field within its {end} bytes", f"one to byte {at}")
    return at


def _rendered(head: bytes, raw: list[bytes]) -> tuple[_Known, list[bytes], bool]:
    """Render what is before the tensors; return it, their bytes, and whether it is the same next time."""
    name = version = identity = ""
    parameters: dict[str, bytes] = {}
    inputs: list[tuple[int, int]] = []
    outputs: list[bytes] = []
    for field, kind, start, end in protobuf.fields(head, 0, len(head)):
        if kind != protobuf.BYTES:
            continue  # no field that is known; later versions may have more
        if field == 1:
            name = protobuf.text(head, start, end, "model_name")
        elif field == 2:
            version = protobuf.text(head, start, end, "model_version")
        elif field == 3:
            identity = protobuf.text(head, start, end, "id")
        elif field == 4:
            read_parameter(head, start, end, parameters, "parameters")
        elif field == 5:
            inputs.append((start, end))
        elif field == 6:
            outputs.append(_output(head, start, end, f"outputs[{len(outputs)}]"))
    if not name:
        raise BadMessageError("model_name", "the name of a model", "nothing")
    lasting = True
    texts: list[bytes] = []
    pieces: list[bytes] = []
    left = list(raw)
    for index, (start, end) in enumerate(inputs):
        text, contents, shared = _input(head, start, end, f"inputs[{index}]")
        if contents is not None:
            if raw:
                expected = "contents in the tensor or in raw_input_contents"
                raise BadMessageError(f"inputs[{index}].contents", expected, "both")
            lasting = False
            pieces.append(contents)
        elif not shared:
            if not left:
                raise BadMessageError(
                    "raw_input_contents", f"one for each of {len(inputs)} inputs", str(len(raw))
                )
            contents = left.pop(0)
            pieces.append(contents)
        texts.append(_with_size(text, contents))
    if left:
        raise BadMessageError("raw_input_contents", f"one for each of {len(inputs)} inputs", str(len(raw)))
    if outputs:
        rest = b',"outputs":[' + b",".join(outputs) + b"]"
    else:
        parameters.setdefault("binary_data_output", b"true")
        rest = b""
    if parameters:
        rest += b',"parameters":' + object_of(parameters)
    first = b'"id":' + _encode(identity) + b"," if identity else b""
    document = b"{" + first + b'"inputs":[' + b",".join(texts) + b"]" + rest + b"}"
    return _Known(model_path(name, version, "/infer"), document), pieces, lasting


def _with_size(text: tuple[bytes, dict[str, bytes]], contents: bytes | None) -> bytes:
    head, parameters = text
    if contents is not None:
        parameters["binary_data_size"] = b"%d" % len(contents)
    return b"{" + head + (b',"parameters":' + object_of(parameters) if parameters else b"") + b"}"


def _input(
    data: bytes, start: int, end: int, path: str
) -> tuple[tuple[bytes, dict[str, bytes]], bytes | None, bool]:
    """Read an `InferInputTensor`: its JSON, its typed contents if any, and whether it is in shared memory."""
    name = datatype = ""
    shape: list[int] = []
    parameters: dict[str, bytes] = {}
    contents: tuple[int, int] | None = None
    for field, kind, first, last in protobuf.fields(data, start, end):
        if field == 1 and kind == protobuf.BYTES:
            name = protobuf.text(data, first, last, path + ".name")
        elif field == 2 and kind == protobuf.BYTES:
            datatype = protobuf.text(data, first, last, path + ".datatype")
        elif field == 3 and kind == protobuf.BYTES:
            while first < last:
                value, first = protobuf.read_varint(data, first, last)
                shape.append(protobuf.signed(value))
        elif field == 3 and kind == protobuf.VARINT:
            shape.append(protobuf.signed(first))
        elif field == 4 and kind == protobuf.BYTES:
            read_parameter(data, first, last, parameters, path + ".parameters")
        elif field == 5 and kind == protobuf.BYTES:
            contents = (first, last)
    head = b'"name":' + _encode(name) + b',"shape":' + _encode(shape) + b',"datatype":' + _encode(datatype)
    raw = None
    if contents is not None and contents[1] > contents[0]:
        raw = tensors.of_contents(datatype, data, contents[0], contents[1], path + ".contents")
    return (head, parameters), raw, "shared_memory_region" in parameters


def _output(data: bytes, start: int, end: int, path: str) -> bytes:
    """Read an `InferRequestedOutputTensor`."""
    name = ""
    parameters: dict[str, bytes] = {}
    for field, kind, first, last in protobuf.fields(data, start, end):
        if field == 1 and kind == protobuf.BYTES:
            name = protobuf.text(data, first, last, path + ".name")
        elif field == 2 and kind == protobuf.BYTES:
            read_parameter(data, first, last, parameters, path + ".parameters")
    if "shared_memory_region" not in parameters:
        parameters.setdefault("binary_data", b"true")
    return b'{"name":' + _encode(name) + b',"parameters":' + object_of(parameters) + b"}"


def write_answer(response: Response) -> bytes:
    """Render a `ModelInferResponse` of an answer over REST.

    Raises:
        BadMessageError: it is not one.
    """
    body = response.body
    said = get(response.headers, INFERENCE_HEADER_LENGTH)
    if said is not None and (not said.isdigit() or int(said) > len(body)):
        raise BadMessageError(
            INFERENCE_HEADER_LENGTH.decode(), f"a length up to {len(body)}", said[:40].decode("latin-1")
        )
    at = len(body) if said is None else int(said)
    text = body if said is None else body[:at]
    known = _answers.get(text)
    if known is None:
        head, raw, sizes = _answer(text)
        if raw is not None:
            return head + b"".join([_RAW_OUTPUT + protobuf.varint(len(each)) + each for each in raw])
        known = (head, sizes)
        if len(text) <= _LONGEST_KNOWN:
            if len(_answers) >= _MOST_KNOWN:
                _answers.clear()
            _answers[text] = known
    pieces = [known[0]]
    for size in known[1]:
        pieces.append(_RAW_OUTPUT + protobuf.varint(size))
        pieces.append(body[at : at + size])
        at += size
    if at != len(body):
        raise BadMessageError("binary data", f"{at} bytes with the JSON before it", str(len(body)))
    return b"".join(pieces)


def _answer(text: bytes) -> tuple[bytes, list[bytes] | None, list[int]]:
    """Return the message without its tensors, these if the JSON has them, else their sizes."""
    document = json_of(text)
    outputs = document.get("outputs")
    if not isinstance(outputs, list):
        raise BadMessageError("outputs", "a list", type(outputs).__name__)
    message = protobuf.string(1, member(document, "model_name")) + protobuf.string(
        2, member(document, "model_version")
    )
    message += protobuf.string(3, member(document, "id")) + write_parameters(
        4, document.get("parameters"), ""
    )
    sizes: list[int] = []
    raw: list[bytes] = []
    for index, each in enumerate(outputs):
        path = f"outputs[{index}]"
        tensor, datatype, size = write_tensor(each, path)
        message += protobuf.nested(5, tensor)
        if size >= 0:
            sizes.append(size)
        elif size == IN_JSON:
            raw.append(tensors.of_json(datatype, each.get("data"), path + ".data"))
    if raw and sizes:
        raise BadMessageError("outputs", "all tensors in the JSON or all behind it", "both")
    return message, raw or None, sizes


def read_model(message: bytes) -> tuple[str, str]:
    """Read a `ModelReadyRequest` or `ModelMetadataRequest`: name and version.

    Raises:
        BadMessageError: it is not one, or has no name.
    """
    name = version = ""
    for field, kind, start, end in protobuf.fields(message, 0, len(message)):
        if kind == protobuf.BYTES and field == 1:
            name = protobuf.text(message, start, end, "name")
        elif kind == protobuf.BYTES and field == 2:
            version = protobuf.text(message, start, end, "version")
    if not name:
        raise BadMessageError("name", "the name of a model", "nothing")
    return name, version


def write_server_metadata(text: bytes) -> bytes:
    """Render a `ServerMetadataResponse` of the JSON over REST."""
    document = json_of(text)
    extensions = document.get("extensions")
    message = protobuf.string(1, member(document, "name")) + protobuf.string(2, member(document, "version"))
    return message + b"".join([protobuf.string(3, str(each)) for each in extensions or []])


def write_model_metadata(text: bytes) -> bytes:
    """Render a `ModelMetadataResponse` of the JSON over REST."""
    document = json_of(text)
    message = protobuf.string(1, member(document, "name"))
    message += b"".join([protobuf.string(2, str(each)) for each in document.get("versions") or []])
    message += protobuf.string(3, member(document, "platform"))
    for field, name in ((4, "inputs"), (5, "outputs")):
        for each in document.get(name) or []:
            shape = b"".join(
                [protobuf.varint(int(axis) & 0xFFFFFFFFFFFFFFFF) for axis in each.get("shape") or []]
            )
            tensor = protobuf.string(1, member(each, "name")) + protobuf.string(2, member(each, "datatype"))
            message += protobuf.nested(field, tensor + (protobuf.nested(3, shape) if shape else b""))
    return message
