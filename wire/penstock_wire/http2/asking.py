"""Requests of the Open Inference Protocol over REST as calls of a model's `GRPCInferenceService`. Pure.

This is `inference` the other way round, for a model that speaks gRPC alone: the JSON of a request and what is
behind it become a message with raw contents, and the answer's tensors are what its request asked for, binary
data behind JSON, or JSON.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from penstock_wire.headers import INFERENCE_HEADER_LENGTH, REQUEST_ID, Headers, get
from penstock_wire.http import Request, Response
from penstock_wire.http2 import protobuf, reflection, status, tensors
from penstock_wire.http2.head import GRPC
from penstock_wire.http2.members import (
    IN_JSON,
    json_of,
    object_of,
    read_parameter,
    write_parameters,
    write_tensor,
)
from penstock_wire.http2.protobuf import BadMessageError

_PREFIX_BYTES: Final = 5
_MODEL: Final = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?(/infer|/ready|)")
_INFER, _READY, _METADATA, _MODEL_METADATA = range(4)
_SERVER: Final = {
    "/v2": (_METADATA, "ServerMetadata"),
    "/v2/health/live": (_READY, "ServerLive"),
    "/v2/health/ready": (_READY, "ServerReady"),
}
_OF_BODY: Final = frozenset(
    {
        b"accept",
        b"accept-encoding",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"host",
        INFERENCE_HEADER_LENGTH,
    }
)
"""Fields that describe bodies, which are others over gRPC."""
_RESERVED: Final = b"grpc-"
_METADATA_NAME: Final = re.compile(rb"[0-9a-z_.-]+")
_BASE64: Final = re.compile(rb"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}(?:==)?|[A-Za-z0-9+/]{3}=?)?")
_IDS_BYTES: Final = 1024
"""Most bytes of the ids of a batch: servers take metadata of 8 KiB in all."""
_MOST_STRINGS: Final = 1_000_000
"""Most fields of an output's typed contents."""
_JSON: Final = (b"content-type", b"application/json")
_OCTETS: Final = (b"content-type", b"application/octet-stream")
_encode = msgspec.json.encode


class Asked:
    """A request over REST as a call.

    Args:
        kind: one of the numbers above.
        request: the call.
        binary: whether outputs come behind the JSON, by their names; under the empty name all others.
    """

    __slots__ = ("binary", "kind", "request")

    def __init__(self, kind: int, request: Request, binary: dict[str, bool]) -> None:
        self.kind = kind
        self.request = request
        self.binary = binary


def call_of(request: Request) -> Asked | None:
    """Make the call of a request.

    Args:
        request: over REST, with its whole body.

    Returns:
        The call; None if gRPC does not have such a one.

    Raises:
        BadMessageError: its body is not that of a request of its path.
    """
    path, binary = request.path, {"": False}
    server = _SERVER.get(path.rstrip("/"))
    model = _MODEL.fullmatch(path)
    if server is not None and request.method == "GET":
        kind, method = server
        message = b""
    elif model is not None and request.method == ("POST" if model[3] == "/infer" else "GET"):
        message = protobuf.string(1, unquote(model[1])) + protobuf.string(2, unquote(model[2] or ""))
        if model[3] == "/infer":
            kind, method = _INFER, "ModelInfer"
            message += _tensors_of(request, binary)
        elif model[3]:
            kind, method = _READY, "ModelReady"
        else:
            kind, method = _MODEL_METADATA, "ModelMetadata"
    else:
        return None
    fields: list[tuple[bytes, bytes]] = [(b"content-type", GRPC)]
    for name, value in request.fields:
        if name in _OF_BODY or not _is_metadata(name, value):
            continue
        if name == REQUEST_ID and len(value) > _IDS_BYTES:
            value = value[:_IDS_BYTES].rpartition(b",")[0] or value[:_IDS_BYTES]
        fields.append((name, value))
    body = b"\0" + len(message).to_bytes(4, "big") + message
    call = Request("POST", f"/{reflection.INFERENCE}/{method}", tuple(fields), body)
    call.trailers = True
    return Asked(kind, call, binary)


def _is_metadata(name: bytes, value: bytes) -> bool:
    """Whether a field can be metadata of a call; any other would end it, or its connection with all calls."""
    if name.startswith(_RESERVED) or _METADATA_NAME.fullmatch(name) is None or not value.isascii():
        return False
    return not name.endswith(b"-bin") or _BASE64.fullmatch(value) is not None


def _tensors_of(request: Request, binary: dict[str, bool]) -> bytes:
    """Render the tensors, the parameters and the id of a request; note which outputs are to be binary."""
    body = request.body
    said = get(request.fields, INFERENCE_HEADER_LENGTH)
    if said is not None and (not said.isdigit() or len(said) > 12 or int(said) > len(body)):
        expected = f"a length up to {len(body)}"
        raise BadMessageError(INFERENCE_HEADER_LENGTH.decode(), expected, said[:40].decode("latin-1"))
    at = len(body) if said is None else int(said)
    document = json_of(body[:at])
    identity = document.get("id")
    pieces = [protobuf.string(3, identity)] if isinstance(identity, str) else []
    parameters = document.get("parameters")
    pieces.append(write_parameters(4, parameters, "binary_data_output"))
    binary[""] = isinstance(parameters, dict) and parameters.get("binary_data_output") is True
    raw: list[bytes] = []
    for index, each in enumerate(_list(document, "inputs")):
        path = f"inputs[{index}]"
        tensor, datatype, size = write_tensor(each, path)
        pieces.append(protobuf.nested(5, tensor))
        if size >= 0:
            if at + size > len(body):
                raise BadMessageError(path, f"{size} bytes behind the JSON", f"{len(body) - at}")
            raw.append(body[at : at + size])
            at += size
        elif size == IN_JSON:
            raw.append(tensors.of_json(datatype, each.get("data"), path + ".data"))
    if at != len(body):
        raise BadMessageError("binary data", f"{at} bytes with the JSON before it", str(len(body)))
    for index, each in enumerate(_list(document, "outputs")):
        name = each.get("name") if isinstance(each, dict) else None
        if not isinstance(name, str):
            raise BadMessageError(f"outputs[{index}]", "an object with a name", repr(each)[:40])
        parameters = each.get("parameters")
        asks = parameters.get("binary_data") if isinstance(parameters, dict) else None
        if isinstance(asks, bool):
            binary[name] = asks
        wanted = protobuf.string(1, name) + write_parameters(2, parameters, "binary_data")
        pieces.append(protobuf.nested(6, wanted))
    pieces.extend([protobuf.nested(7, each) for each in raw])
    return b"".join(pieces)


def _list(document: dict[str, Any], name: str) -> list[Any]:
    value = document.get(name)
    if value is None and name == "outputs":
        return []
    if not isinstance(value, list):
        raise BadMessageError(name, "a list", type(value).__name__)
    return value


def answer_of(asked: Asked, answer: Response) -> Response:
    """Make the answer over REST of a call's.

    Args:
        asked: the call.
        answer: the model's, with its trailers.

    Raises:
        BadMessageError: it is none of that call.
    """
    trailers = () if answer.trailers is None else answer.trailers.fields
    fields = answer.headers + trailers
    code = status.code_of(fields)
    if code < 0:
        if answer.status != 200:
            return Response(answer.status, answer.headers, answer.body)
        raise BadMessageError("grpc-status", "the status of the call", "nothing")
    headers = tuple(
        [field for field in fields if field[0] not in _OF_BODY and not field[0].startswith(_RESERVED)]
    )
    if code:
        error = status.to_response(code, fields)
        error.headers += headers
        return error
    body = answer.body
    if len(body) < _PREFIX_BYTES or body[0] or int.from_bytes(body[1:5], "big") != len(body) - _PREFIX_BYTES:
        raise BadMessageError("body", "one message that is not compressed", f"{len(body)} bytes")
    if asked.kind == _INFER:
        return _inferred(asked, headers, body)
    if asked.kind == _READY:
        ready = any(each[0] == 1 and each[2] == 1 for each in protobuf.fields(body, _PREFIX_BYTES, len(body)))
        text = b'{"ready":true}' if ready else b'{"ready":false,"error":"the model is not ready"}'
        return Response(200 if ready else 400, (_JSON, *headers), text)
    write = _server_metadata if asked.kind == _METADATA else _model_metadata
    return Response(200, (_JSON, *headers), write(body))


class _Output:
    """An output of an answer."""

    __slots__ = ("contents", "datatype", "head", "name", "parameters")

    def __init__(self) -> None:
        self.name = self.datatype = ""
        self.head = b""
        self.parameters: dict[str, bytes] = {}
        self.contents: tuple[int, int] | None = None


def _inferred(asked: Asked, headers: Headers, data: bytes) -> Response:
    pieces: list[bytes] = []
    parameters: dict[str, bytes] = {}
    outputs: list[_Output] = []
    raw: list[tuple[int, int]] = []
    for field, kind, start, end in protobuf.fields(data, _PREFIX_BYTES, len(data)):
        if kind != protobuf.BYTES:
            continue
        if field <= 3:
            name = ("model_name", "model_version", "id")[field - 1]
            pieces.append(b'"%b":%b' % (name.encode(), _encode(protobuf.text(data, start, end, name))))
        elif field == 4:
            read_parameter(data, start, end, parameters, "parameters")
        elif field == 5:
            outputs.append(_output(data, start, end, f"outputs[{len(outputs)}]"))
        elif field == 6:
            raw.append((start, end))
    if parameters:
        pieces.append(b'"parameters":' + object_of(parameters))
    texts: list[bytes] = []
    behind: list[bytes] = []
    waiting = raw[::-1]
    for index, output in enumerate(outputs):
        path = f"outputs[{index}]"
        text = output.head
        if "shared_memory_region" not in output.parameters:
            if not raw:
                first, last = output.contents or (0, 0)
                tensor = tensors.of_contents(
                    output.datatype, data, first, last, path + ".contents", _MOST_STRINGS
                )
            elif waiting:
                first, last = waiting.pop()
                tensor = data[first:last]
            else:
                raise _not_each(outputs, raw)
            if asked.binary.get(output.name, asked.binary[""]):
                output.parameters["binary_data_size"] = b"%d" % len(tensor)
                behind.append(tensor)
            else:
                text += b',"data":' + tensors.to_json(output.datatype, tensor, path)
        if output.parameters:
            text += b',"parameters":' + object_of(output.parameters)
        texts.append(b"{" + text + b"}")
    if waiting:
        raise _not_each(outputs, raw)
    pieces.append(b'"outputs":[' + b",".join(texts) + b"]")
    document = b"{" + b",".join(pieces) + b"}"
    if not behind:
        return Response(200, (_JSON, *headers), document)
    length = (INFERENCE_HEADER_LENGTH, b"%d" % len(document))
    return Response(200, (_OCTETS, length, *headers), document + b"".join(behind))


def _not_each(outputs: list[_Output], raw: list[tuple[int, int]]) -> BadMessageError:
    return BadMessageError("raw_output_contents", f"one for each of {len(outputs)} outputs", str(len(raw)))


def _output(data: bytes, start: int, end: int, path: str) -> _Output:
    output = _Output()
    shape: list[int] = []
    for field, kind, first, last in protobuf.fields(data, start, end):
        if field == 3 and kind == protobuf.VARINT:
            shape.append(protobuf.signed(first))
        elif kind != protobuf.BYTES:
            continue
        elif field == 1:
            output.name = protobuf.text(data, first, last, path + ".name")
        elif field == 2:
            output.datatype = protobuf.text(data, first, last, path + ".datatype")
        elif field == 3:
            shape += _numbers(data, first, last)
        elif field == 4:
            read_parameter(data, first, last, output.parameters, path + ".parameters")
        elif field == 5:
            output.contents = (first, last)
    output.head = b'"name":%b,"datatype":%b,"shape":%b' % (
        _encode(output.name),
        _encode(output.datatype),
        _encode(shape),
    )
    return output


def _numbers(data: bytes, at: int, end: int) -> list[int]:
    numbers: list[int] = []
    while at < end:
        value, at = protobuf.read_varint(data, at, end)
        numbers.append(protobuf.signed(value))
    return numbers


def _server_metadata(data: bytes) -> bytes:
    texts = [
        (field, protobuf.text(data, start, end, "metadata"))
        for field, kind, start, end in protobuf.fields(data, _PREFIX_BYTES, len(data))
        if kind == protobuf.BYTES
    ]
    document: dict[str, Any] = dict.fromkeys(("name", "version"), "")
    document.update({("name", "version")[field - 1]: text for field, text in texts if field < 3})
    return json.dumps({**document, "extensions": [text for field, text in texts if field == 3]}).encode()


def _model_metadata(data: bytes) -> bytes:
    document: dict[str, Any] = {"name": "", "versions": [], "platform": "", "inputs": [], "outputs": []}
    for field, kind, start, end in protobuf.fields(data, _PREFIX_BYTES, len(data)):
        if kind != protobuf.BYTES:
            continue
        if field in (1, 3):
            document["name" if field == 1 else "platform"] = protobuf.text(data, start, end, "metadata")
        elif field == 2:
            document["versions"].append(protobuf.text(data, start, end, "versions"))
        elif field in (4, 5):
            member = "inputs" if field == 4 else "outputs"
            read = _output(data, start, end, member)
            document[member].append(msgspec.json.decode(b"{" + read.head + b"}"))
    return json.dumps(document).encode()
