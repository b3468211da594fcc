"""What the server offers, for clients that ask (gRPC server reflection), and the services themselves. Pure.

Source: https://github.com/grpc/grpc/blob/master/doc/server-reflection.md,
grpc/reflection/v1/reflection.proto; the descriptors are `google.protobuf.FileDescriptorProto`s of the two
services.
"""

from __future__ import annotations

import functools
import re
from typing import Final

from penstock_wire.http2 import protobuf, status

INFERENCE: Final = "inference.GRPCInferenceService"
HEALTH: Final = "grpc.health.v1.Health"

_INFERENCE: Final = """
message ServerLiveRequest {}
message ServerLiveResponse { bool live = 1; }
message ServerReadyRequest {}
message ServerReadyResponse { bool ready = 1; }
message ModelReadyRequest { string name = 1; string version = 2; }
message ModelReadyResponse { bool ready = 1; }
message ServerMetadataRequest {}
message ServerMetadataResponse { string name = 1; string version = 2; repeated string extensions = 3; }
message ModelMetadataRequest { string name = 1; string version = 2; }
message ModelMetadataResponse {
  message TensorMetadata { string name = 1; string datatype = 2; repeated int64 shape = 3; }
  string name = 1; repeated string versions = 2; string platform = 3;
  repeated TensorMetadata inputs = 4; repeated TensorMetadata outputs = 5;
}
message InferParameter {
  oneof parameter_choice {
    bool bool_param = 1; int64 int64_param = 2; string string_param = 3; double double_param = 4;
    uint64 uint64_param = 5;
  }
}
message InferTensorContents {
  repeated bool bool_contents = 1; repeated int32 int_contents = 2; repeated int64 int64_contents = 3;
  repeated uint32 uint_contents = 4; repeated uint64 uint64_contents = 5; repeated float fp32_contents = 6;
  repeated double fp64_contents = 7; repeated bytes bytes_contents = 8;
}
message ModelInferRequest {
  message InferInputTensor {
    string name = 1; string datatype = 2; repeated int64 shape = 3;
    map<string, InferParameter> parameters = 4; InferTensorContents contents = 5;
  }
  message InferRequestedOutputTensor { string name = 1; map<string, InferParameter> parameters = 2; }
  string model_name = 1; string model_version = 2; string id = 3; map<string, InferParameter> parameters = 4;
  repeated InferInputTensor inputs = 5; repeated InferRequestedOutputTensor outputs = 6;
  repeated bytes raw_input_contents = 7;
}
message ModelInferResponse {
  message InferOutputTensor {
    string name = 1; string datatype = 2; repeated int64 shape = 3;
    map<string, InferParameter> parameters = 4; InferTensorContents contents = 5;
  }
  string model_name = 1; string model_version = 2; string id = 3; map<string, InferParameter> parameters = 4;
  repeated InferOutputTensor outputs = 5; repeated bytes raw_output_contents = 6;
}
service GRPCInferenceService {
  rpc ServerLive (ServerLiveRequest); rpc ServerReady (ServerReadyRequest);
  rpc ModelReady (ModelReadyRequest); rpc ServerMetadata (ServerMetadataRequest);
  rpc ModelMetadata (ModelMetadataRequest); rpc ModelInfer (ModelInferRequest);
}
"""
"""Every method's answer is named like its request, with `Response` at the end."""
_HEALTH: Final = """
message HealthCheckRequest { string service = 1; }
message HealthCheckResponse {
  enum ServingStatus { UNKNOWN = 0; SERVING = 1; NOT_SERVING = 2; }
  ServingStatus status = 1;
}
service Health { rpc Check (HealthCheckRequest); }
"""
_FILES: Final = {
    "grpc_predict_v2.proto": ("inference", _INFERENCE),
    "grpc/health/v1/health.proto": ("grpc.health.v1", _HEALTH),
}
_TYPES: Final = {
    "double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "bool": 8, "string": 9, "bytes": 12,
    "uint32": 13,
}  # fmt: skip
_MESSAGE, _ENUM = 11, 14
_TOKENS = re.compile(r"[\w.]+|[{}=;<>,()]")


class _Parser:
    """Reads the few forms of the language that are used above.

    Args:
        package: the package of the messages.
        source: their text.
    """

    def __init__(self, package: str, source: str) -> None:
        self._package = package
        self._tokens: list[str] = _TOKENS.findall(source)
        self._at = 0
        self._scopes: dict[str, str] = {}
        """The full name of each message and enum, by its own."""

    def _next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1]

    def file(self, name: str) -> bytes:
        """Return the file's descriptor."""
        parts: list[bytes] = []
        while self._at < len(self._tokens):
            if self._next() == "message":
                parts.append(protobuf.nested(4, self._message("." + self._package)))
            else:
                parts.append(protobuf.nested(6, self._service()))
        head = protobuf.string(1, name) + protobuf.string(2, self._package)
        return head + b"".join(parts) + protobuf.string(12, "proto3")

    def _service(self) -> bytes:
        parts = [protobuf.string(1, self._next())]
        self._next()
        while self._next() == "rpc":
            name = self._next()
            _, request, _, _ = (self._next() for _ in range(4))
            answer = request.removesuffix("Request") + "Response"
            types = [
                protobuf.string(at, f".{self._package}.{each}") for at, each in ((2, request), (3, answer))
            ]
            parts.append(protobuf.nested(2, protobuf.string(1, name) + b"".join(types)))
        return b"".join(parts)

    def _message(self, scope: str) -> bytes:
        name = self._next()
        full = self._scopes[name] = f"{scope}.{name}"
        parts = [protobuf.string(1, name)]
        self._next()
        inside = False  # of the one oneof
        while True:
            word = self._next()
            if word == "}":
                if not inside:
                    return b"".join(parts)
                inside = False
            elif word == "message":
                parts.append(protobuf.nested(3, self._message(full)))
            elif word == "enum":
                parts.append(protobuf.nested(4, self._enum(full)))
            elif word == "oneof":
                parts.append(protobuf.nested(8, protobuf.string(1, self._next())))
                self._next()
                inside = True
            elif word == "map":
                parts += self._map(full)
            else:
                repeated = word == "repeated"
                kind = self._next() if repeated else word
                field = self._field(kind, *self._named(), repeated=repeated)
                # NB: field 9 is the oneof's index, and 0 is not what an absent one means.
                parts.append(protobuf.nested(2, field + (b"\x48\x00" if inside else b"")))

    def _named(self) -> tuple[str, int]:
        name, _, value, _ = (self._next() for _ in range(4))
        return name, int(value)

    def _field(self, kind: str, name: str, number: int, *, repeated: bool = False) -> bytes:
        label = protobuf.number(4, 3 if repeated else 1)
        known = _TYPES.get(kind)
        if known is not None:
            what = protobuf.number(5, known)
        else:
            full = self._scopes[kind]
            what = protobuf.number(5, _ENUM if kind == "ServingStatus" else _MESSAGE) + protobuf.string(
                6, full
            )
        first, *others = name.split("_")
        json_name = protobuf.string(10, first + "".join([word.capitalize() for word in others]))
        return protobuf.string(1, name) + protobuf.number(3, number) + label + what + json_name

    def _map(self, scope: str) -> list[bytes]:
        _, key, _, value, _ = (self._next() for _ in range(5))
        name, number = self._named()
        entry = "".join(part.title() for part in name.split("_")) + "Entry"
        fields = [self._field(key, "key", 1), self._field(value, "value", 2)]
        made = protobuf.string(1, entry) + b"".join([protobuf.nested(2, field) for field in fields])
        self._scopes[entry] = f"{scope}.{entry}"
        whole = made + protobuf.nested(7, protobuf.number(7, 1))
        return [
            protobuf.nested(3, whole),
            protobuf.nested(2, self._field(entry, name, number, repeated=True)),
        ]

    def _enum(self, scope: str) -> bytes:
        name = self._next()
        self._scopes[name] = f"{scope}.{name}"
        parts = [protobuf.string(1, name)]
        self._next()
        while self._tokens[self._at] != "}":
            label, number = self._named()
            parts.append(protobuf.nested(2, protobuf.string(1, label) + (b"\x10" + protobuf.varint(number))))
        self._next()
        return b"".join(parts)


@functools.cache
def descriptor(name: str) -> bytes:
    """Return a file's `FileDescriptorProto`."""
    package, source = _FILES[name]
    return _Parser(package, source).file(name)


def answer(request: bytes) -> bytes:
    """Answer a `ServerReflectionRequest`.

    Raises:
        BadMessageError: it is not one.
    """
    start = protobuf.nested(2, request)
    for field, kind, first, last in protobuf.fields(request, 0, len(request)):
        if kind != protobuf.BYTES or field not in (3, 4, 7):
            continue
        asked = protobuf.text(request, first, last, "request")
        if field == 7:
            services = [protobuf.nested(1, protobuf.string(1, name)) for name in (INFERENCE, HEALTH)]
            return start + protobuf.nested(6, b"".join(services))
        found = _file_of(asked) if field == 4 else asked
        if found in _FILES:
            return start + protobuf.nested(4, protobuf.nested(1, descriptor(found)))
        wrong = protobuf.number(1, status.NOT_FOUND) + protobuf.string(
            2, f"expected a name of this server, found {asked}"
        )
        return start + protobuf.nested(7, wrong)
    wrong = protobuf.number(1, status.UNIMPLEMENTED) + protobuf.string(
        2, "expected a file, a symbol or list_services"
    )
    return start + protobuf.nested(7, wrong)


def _file_of(symbol: str) -> str:
    for name, (package, source) in _FILES.items():
        own = symbol.removeprefix(package + ".").split(".")[0]
        if symbol.startswith(package + ".") and re.search(
            rf"\b(?:message|service|enum) {re.escape(own)}\b", source
        ):
            return name
    return ""
