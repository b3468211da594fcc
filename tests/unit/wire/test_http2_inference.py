"""Messages of the Open Inference Protocol, written and read by protobuf's own library."""

from __future__ import annotations

import base64
import contextlib
import json
import struct
from collections.abc import Callable
from typing import Any

import hpack
import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import INFERENCE_HEADER_LENGTH
from penstock_wire.http import Request as Request_
from penstock_wire.http import Response
from penstock_wire.http.messages import Trailers
from penstock_wire.http2 import asking, inference, protobuf, reflection, status, tensors
from penstock_wire.http2.members import write_parameters
from penstock_wire.http2.protobuf import BadMessageError
from penstock_wire.instances_form import shape_error
from tests.support.http.grpc_messages import POOL, message

Request, Answer = message("ModelInferRequest"), message("ModelInferResponse")


def rest(request: Any) -> tuple[str, dict[str, Any], bytes]:
    """The request over REST: its target, its JSON, and what is behind it."""
    target, size, body = inference.read_request(b"12345" + request.SerializeToString(), 5)
    return target, json.loads(body[:size]), body[size:]


def test_a_request_keeps_its_bytes_behind_a_description() -> None:
    """Also where it came before, and with other tensors of the same shape."""
    request = Request(model_name="a/b", model_version="3", id='say "7"')
    request.parameters["p"].int64_param = -5
    request.parameters["q"].bool_param = False
    request.parameters["r"].double_param = 0.5
    one = request.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    one.parameters["content_type"].string_param = "np"
    request.inputs.add(name="y", datatype="BYTES", shape=[1])
    request.outputs.add(name="z").parameters["classification"].int64_param = 3
    for raw in (b"12345678", b"abcdefgh"):
        request.raw_input_contents[:] = [raw, b"\1\0\0\0k"]
        target, document, binary = rest(request)
        assert target == "/v2/models/a%2Fb/versions/3/infer"
        assert document == {
            "id": 'say "7"',
            "inputs": [
                {
                    "name": "x",
                    "shape": [1, 2],
                    "datatype": "FP32",
                    "parameters": {"content_type": "np", "binary_data_size": 8},
                },
                {"name": "y", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 5}},
            ],
            "outputs": [{"name": "z", "parameters": {"classification": 3, "binary_data": True}}],
            "parameters": {"p": -5, "q": False, "r": 0.5},
        }
        assert binary == raw + b"\1\0\0\0k"
    request.outputs[0].name = "w"
    assert rest(request)[1]["outputs"][0]["name"] == "w"


CONTENTS = [
    ("BOOL", "bool_contents", [True, False], b"\1\0"),
    ("INT8", "int_contents", [-1, 2], b"\xff\2"),
    ("INT16", "int_contents", [-300, 2], struct.pack("<2h", -300, 2)),
    ("INT32", "int_contents", [-(2**31), 5], struct.pack("<2i", -(2**31), 5)),
    ("INT64", "int64_contents", [-(2**63), 2**63 - 1], struct.pack("<2q", -(2**63), 2**63 - 1)),
    ("UINT8", "uint_contents", [255, 0], b"\xff\0"),
    ("UINT16", "uint_contents", [65535], b"\xff\xff"),
    ("UINT32", "uint_contents", [2**32 - 1], b"\xff" * 4),
    ("UINT64", "uint64_contents", [2**64 - 1], b"\xff" * 8),
    ("FP32", "fp32_contents", [0.5, -1.0], struct.pack("<2f", 0.5, -1.0)),
    ("FP64", "fp64_contents", [0.1], struct.pack("<d", 0.1)),
    ("BYTES", "bytes_contents", [b"ab", b""], b"\2\0\0\0ab\0\0\0\0"),
]


@pytest.mark.parametrize(("datatype", "field", "values", "raw"), CONTENTS, ids=[case[0] for case in CONTENTS])
def test_typed_contents_become_raw_ones(datatype: str, field: str, values: list[Any], raw: bytes) -> None:
    request = Request(model_name="m")
    tensor = request.inputs.add(name="x", datatype=datatype, shape=[len(values)])
    getattr(tensor.contents, field).extend(values)
    _, document, binary = rest(request)
    assert binary == raw
    assert document["inputs"][0]["parameters"] == {"binary_data_size": len(raw)}
    assert document["parameters"] == {"binary_data_output": True}


def bad(**members: Any) -> Any:
    return Request(model_name="m", inputs=[{"name": "x", "datatype": "INT8", "shape": [1], **members}])


BAD = {
    "a name that leaves its path": (
        Request(model_name=".."),
        "model_name: expected the name of a model, found '..'",
    ),
    "no model": (Request(), "model_name: expected the name of a model, found nothing"),
    "tensors twice": (
        Request(
            model_name="m",
            inputs=[{"name": "x", "datatype": "INT8", "contents": {"int_contents": [1]}}],
            raw_input_contents=[b"1"],
        ),
        "inputs[0].contents: expected contents in the tensor or in raw_input_contents, found both",
    ),
    "a tensor less": (
        Request(model_name="m", inputs=[{}, {}], raw_input_contents=[b"1"]),
        "raw_input_contents: expected one for each of 2 inputs, found 1",
    ),
    "a tensor more": (
        Request(model_name="m", inputs=[{}], raw_input_contents=[b"1", b"2"]),
        "raw_input_contents: expected one for each of 1 inputs, found 2",
    ),
    "the contents of another datatype": (
        bad(contents={"fp32_contents": [1.0]}),
        "inputs[0].contents: expected contents of INT8 (field 2), found field 6",
    ),
    "a number beyond the datatype": (
        bad(contents={"int_contents": [200]}),
        "inputs[0].contents: expected values of INT8",
    ),
    "contents of a half": (
        bad(datatype="FP16", contents={"fp32_contents": [1.0]}),
        "inputs[0].contents: expected raw_input_contents for this datatype",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_says_what_was_expected_and_where(name: str) -> None:
    request, text = BAD[name]
    with pytest.raises(BadMessageError) as caught:
        rest(request)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize(
    "message",
    [
        b"\x58\x01" * 20_000,  # more fields than a message has
        protobuf.string(1, "m")
        + protobuf.nested(5, protobuf.string(2, "BYTES") + protobuf.nested(5, b"\x40\x09")),
        protobuf.string(1, "m")
        + protobuf.nested(5, protobuf.string(2, "FP32") + protobuf.nested(5, b"\x30\x09")),
        protobuf.string(1, "m" * 2000),
    ],
)
def test_what_would_cost_too_much_or_is_of_another_form_is_refused(message: bytes) -> None:
    with pytest.raises(BadMessageError):
        inference.read_request(message, 0)


READS = (lambda data: inference.read_request(data, 0), inference.read_model, reflection.answer)


@given(st.binary(max_size=80), st.sampled_from(READS))
def test_bytes_that_are_no_message_are_refused(data: bytes, read: Callable[[bytes], object]) -> None:
    """Or read: nothing else happens."""
    with contextlib.suppress(BadMessageError):
        read(data)


def over_rest(outputs: list[dict[str, Any]], binary: bytes | None = None, **members: Any) -> Response:
    text = json.dumps({"model_name": "m", "model_version": "1", **members, "outputs": outputs}).encode()
    fields = () if binary is None else ((INFERENCE_HEADER_LENGTH, b"%d" % len(text)),)
    return Response(200, fields, text + (binary or b""))


def test_an_answer_keeps_its_bytes() -> None:
    outputs = [
        {
            "name": "y",
            "datatype": "FP32",
            "shape": [1, 2],
            "parameters": {"binary_data_size": 8, "kind": "a", "n": 3},
        },
        {"name": "z", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 5}},
    ]
    for raw in (b"12345678", b"abcdefgh"):
        answer = Answer.FromString(
            inference.write_answer(over_rest(outputs, raw + b"\1\0\0\0k", id="7", parameters={"f": 0.5}))
        )
        assert (answer.model_name, answer.model_version, answer.id) == ("m", "1", "7")
        assert answer.parameters["f"].double_param == 0.5
        assert list(answer.raw_output_contents) == [raw, b"\1\0\0\0k"]
        first, second = answer.outputs
        assert (first.name, first.datatype, list(first.shape)) == ("y", "FP32", [1, 2])
        assert (first.parameters["kind"].string_param, first.parameters["n"].int64_param) == ("a", 3)
        assert set(first.parameters) == {"kind", "n"}
        assert (second.name, second.datatype, list(second.shape)) == ("z", "BYTES", [1])


@pytest.mark.parametrize(
    ("datatype", "data", "raw"),
    [
        ("FP32", [[1.5], [2]], struct.pack("<2f", 1.5, 2)),
        ("FP16", [1.5], struct.pack("<e", 1.5)),
        ("BF16", [1.0], b"\x80\x3f"),
        ("BOOL", [True, False], b"\1\0"),
        ("INT64", [[[-5]]], struct.pack("<q", -5)),
        ("BYTES", ["ä", ""], b"\2\0\0\0\xc3\xa4\0\0\0\0"),
    ],
)
def test_an_answer_in_json_becomes_bytes(datatype: str, data: list[Any], raw: bytes) -> None:
    """As of a model that does not know binary tensors."""
    answer = Answer.FromString(
        inference.write_answer(over_rest([{"name": "y", "datatype": datatype, "shape": [1], "data": data}]))
    )
    assert list(answer.raw_output_contents) == [raw]


def test_numbers_that_json_does_not_have_are_read() -> None:
    answer = Response(200, (), b'{"outputs":[{"name":"y","datatype":"FP32","shape":[1],"data":[NaN]}]}')
    assert inference.write_answer(answer).endswith(struct.pack("<f", float("nan")))


@pytest.mark.parametrize(
    ("response", "text"),
    [
        (Response(200, (), b"not json"), "body: expected JSON"),
        (Response(200, (), b"{}"), "outputs: expected a list, found NoneType"),
        (
            over_rest([{"datatype": "FP32", "shape": [1], "data": ["a"]}]),
            "outputs[0].data: expected values of FP32",
        ),
        (
            over_rest([{"datatype": "FP9", "shape": [1], "data": [1]}]),
            "outputs[0].data: expected a known datatype",
        ),
        (over_rest([{"shape": "1"}]), "outputs[0].shape: expected a list of numbers"),
        (
            over_rest([{"datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}}], b"123"),
            "binary data: expected 133 bytes with the JSON before it, found 132",
        ),
        (
            Response(200, ((INFERENCE_HEADER_LENGTH, b"9"),), b"{}"),
            "inference-header-content-length: expected a length",
        ),
    ],
)
def test_a_bad_answer_says_what_was_expected(response: Response, text: str) -> None:
    with pytest.raises(BadMessageError) as caught:
        inference.write_answer(response)
    assert text in str(caught.value)


def test_metadata() -> None:
    model = {
        "name": "m",
        "versions": ["1", "2"],
        "platform": "onnx",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": "y", "datatype": "INT64", "shape": [-1]}],
    }
    read = message("ModelMetadataResponse").FromString(
        inference.write_model_metadata(json.dumps(model).encode())
    )
    assert (read.name, list(read.versions), read.platform) == ("m", ["1", "2"], "onnx")
    assert (read.inputs[0].name, list(read.inputs[0].shape)) == ("x", [-1, 4])
    assert (read.outputs[0].datatype, list(read.outputs[0].shape)) == ("INT64", [-1])
    server = b'{"name": "s", "version": "2", "extensions": ["binary_tensor_data"]}'
    told = message("ServerMetadataResponse").FromString(inference.write_server_metadata(server))
    assert (told.name, told.version, list(told.extensions)) == ("s", "2", ["binary_tensor_data"])
    request = message("ModelMetadataRequest")(name="m", version="1")
    assert inference.read_model(request.SerializeToString()) == ("m", "1")


ERRORS = [
    (PenstockError(Reason.QUEUE_FULL, "full", retry_after=2), status.RESOURCE_EXHAUSTED),
    (PenstockError(Reason.NOT_READY, "not yet"), status.UNAVAILABLE),
    (PenstockError(Reason.DEADLINE, "late"), status.DEADLINE_EXCEEDED),
    (PenstockError(Reason.MODEL_FAILED, "100 % wrong\nä"), status.INTERNAL),
    (PenstockError(Reason.NO_ROUTE, "nothing there"), status.NOT_FOUND),
    (shape_error("$.inputs[0]", "24 bytes", "2"), status.INVALID_ARGUMENT),
]


@pytest.mark.parametrize(("error", "code"), ERRORS, ids=[str(case[0].reason) for case in ERRORS])
def test_an_error_has_its_reason_as_details(error: PenstockError, code: int) -> None:
    """As `google.rpc.Status`, which clients of every language read."""
    response = error.response(request_id="7", backend="b")
    fields = dict(hpack.Decoder().decode(status.of_response(response), raw=True))
    assert int(fields[b"grpc-status"]) == code
    told = fields[b"grpc-message"]
    assert told.isascii()
    assert told.decode().isprintable()
    details = status_pb2.Status.FromString(base64.b64decode(fields[b"grpc-status-details-bin"] + b"=="))
    assert (details.code, details.message) == (code, error.detail)
    info = error_details_pb2.ErrorInfo()
    assert details.details[0].Unpack(info)
    assert (info.reason, info.domain) == (error.reason.value, "penstock.dev")
    facts = dict(info.metadata)
    assert facts.items() >= {"request_id": "7", "backend": "b"}.items()
    if error.reason is Reason.BAD_SHAPE:
        assert facts.items() >= {"path": "$.inputs[0]", "expected": "24 bytes", "found": "2"}.items()
    retry = error_details_pb2.RetryInfo()
    if code in (status.RESOURCE_EXHAUSTED, status.UNAVAILABLE):
        assert details.details[1].Unpack(retry)
        assert retry.retry_delay.seconds == (error.retry_after or 1)
        assert int(fields[b"grpc-retry-pushback-ms"]) == 1000 * (error.retry_after or 1)


def test_an_error_of_the_model_is_told_in_its_words() -> None:
    for body, text in (
        (b'{"error": "no such model"}', b"no such model"),
        (b"plain", b"plain"),
        (b"", b"status 404"),
    ):
        fields = dict(hpack.Decoder().decode(status.of_response(Response(404, (), body)), raw=True))
        assert fields == {b"grpc-status": b"5", b"grpc-message": text}


def asked(head: dict[str, Any], data: bytes = b"") -> asking.Asked:
    """A request over REST as a call."""
    text = json.dumps(head).encode()
    fields = ((INFERENCE_HEADER_LENGTH, b"%d" % len(text)), (b"grpc-timeout", b"1n"), (b"x-a", b"b"))
    made = asking.call_of(Request_("POST", "/v2/models/a%2Fb/versions/3/infer", fields, text + data))
    assert made is not None
    return made


def test_a_request_and_its_answer_are_the_same_behind_a_call() -> None:
    """What a model over gRPC reads, and what its answer becomes: each output in the form asked for."""
    head = {
        "id": 'say "7"',
        "inputs": [
            {
                "name": "x",
                "datatype": "FP32",
                "shape": [1, 2],
                "parameters": {"binary_data_size": 8, "p": "q"},
            },
            {"name": "y", "datatype": "BYTES", "shape": [2, 1], "data": [["k"], [""]]},
            {"name": "z", "datatype": "BF16", "shape": [1], "data": [1.5]},
            {"name": "s", "datatype": "FP32", "shape": [9], "parameters": {"shared_memory_region": "r"}},
        ],
        "outputs": [{"name": "u", "parameters": {"binary_data": False, "classification": 3}}, {"name": "v"}],
        "parameters": {"binary_data_output": True, "f": 0.5, "n": -5, "b": False},
    }
    made = asked(head, b"12345678")
    assert made.request.target == "/inference.GRPCInferenceService/ModelInfer"
    assert made.request.headers == ((b"content-type", b"application/grpc"), (b"x-a", b"b"))
    request = Request.FromString(made.request.body[5:])
    assert made.request.body[:5] == b"\0" + len(made.request.body[5:]).to_bytes(4, "big")
    assert (request.model_name, request.model_version, request.id) == ("a/b", "3", 'say "7"')
    assert list(request.raw_input_contents) == [b"12345678", b"\1\0\0\0k\0\0\0\0", b"\xc0\x3f"]
    assert [(each.name, list(each.shape), set(each.parameters)) for each in request.inputs] == [
        ("x", [1, 2], {"p"}),
        ("y", [2, 1], set()),
        ("z", [1], set()),
        ("s", [9], {"shared_memory_region"}),
    ]
    assert {each.name: set(each.parameters) for each in request.outputs} == {
        "u": {"classification"},
        "v": set(),
    }
    assert request.parameters["n"].int64_param == -5
    assert set(request.parameters) == {"f", "n", "b"}

    answer = Answer(model_name="a/b", id="7")
    answer.parameters["n"].int64_param = -5
    answer.outputs.add(name="u", datatype="UINT8", shape=[1, 2])
    answer.outputs.add(name="v", datatype="FP64", shape=[1])
    for raw in (True, False):
        if raw:
            answer.raw_output_contents.extend([b"\1\xff", struct.pack("<d", 0.1)])
        else:
            del answer.raw_output_contents[:]
            answer.outputs[0].contents.uint_contents.extend([1, 255])
            answer.outputs[1].contents.fp64_contents.append(0.1)
        message = answer.SerializeToString()
        response = Response(200, ((b"content-type", b"application/grpc"), (b"x-c", b"d")))
        response.body = b"\0" + len(message).to_bytes(4, "big") + message
        response.trailers = Trailers(((b"grpc-status", b"0"), (b"x-e", b"f")))
        told = asking.answer_of(made, response)
        fields = dict(told.headers)
        size = int(fields[INFERENCE_HEADER_LENGTH])
        assert (told.status, fields[b"x-c"], fields[b"x-e"]) == (200, b"d", b"f")
        assert json.loads(told.body[:size]) == {
            "model_name": "a/b",
            "id": "7",
            "parameters": {"n": -5},
            "outputs": [
                {"name": "u", "datatype": "UINT8", "shape": [1, 2], "data": [1, 255]},
                {"name": "v", "datatype": "FP64", "shape": [1], "parameters": {"binary_data_size": 8}},
            ],
        }
        assert told.body[size:] == struct.pack("<d", 0.1)


@given(st.binary(max_size=60), st.sampled_from([b"", b"0", b"13"]))
def test_an_answer_of_any_bytes_is_read_or_refused(message: bytes, code: bytes) -> None:
    """As one that is not of the protocol; nothing else is raised."""
    made = asked({"inputs": []})
    whole = Response(200, (), b"\0" + len(message).to_bytes(4, "big") + message)
    whole.trailers = Trailers(((b"grpc-status", code),) if code else ())
    with contextlib.suppress(BadMessageError):
        assert asking.answer_of(made, whole).status == (200 if code == b"0" else 500)


@pytest.mark.parametrize(
    ("datatype", "raw", "data"),
    [
        ("BOOL", b"\1\0", [True, False]),
        ("INT64", struct.pack("<q", -(2**63)), [-(2**63)]),
        ("FP16", b"\0\x3e", [1.5]),
        ("BF16", b"\xc0\x3f", [1.5]),
        ("FP32", struct.pack("<f", 0.5), [0.5]),
        ("BYTES", "\4\0\0\0ä€"[:4].encode() + "ää".encode(), ["ää"]),
    ],
)
def test_bytes_become_json(datatype: str, raw: bytes, data: list[Any]) -> None:
    """And where they cannot, that is said with the place."""
    assert json.loads(tensors.to_json(datatype, raw, "o")) == data
    with pytest.raises(BadMessageError, match=r"^o: expected"):
        tensors.to_json(datatype if datatype != "BOOL" else "STR", raw[:-1], "o")


def test_reflection_tells_of_both_services() -> None:
    assert b"rawInputContents" in reflection.descriptor("grpc_predict_v2.proto")  # for JSON, as of protoc
    listed = reflection.answer(protobuf.nested(7, b""))
    assert listed == protobuf.nested(2, b"\x3a\0") + protobuf.nested(
        6,
        b"".join(
            [
                protobuf.nested(1, protobuf.nested(1, name))
                for name in (b"inference.GRPCInferenceService", b"grpc.health.v1.Health")
            ]
        ),
    )
    service = POOL.FindServiceByName("inference.GRPCInferenceService")
    assert service.methods_by_name["ModelInfer"].output_type.full_name == "inference.ModelInferResponse"
    choice = POOL.FindMessageTypeByName("inference.InferParameter").oneofs_by_name["parameter_choice"]
    assert [field.number for field in choice.fields] == [1, 2, 3, 4, 5]
    assert (
        reflection.answer(protobuf.nested(4, b"inference.Nothing")).count(b"expected a name of this server")
        == 1
    )


@pytest.mark.parametrize(
    ("code", "words", "http"),
    [
        (status.RESOURCE_EXHAUSTED, "Received message larger than max (9 vs. 4)", 413),
        (status.RESOURCE_EXHAUSTED, "Received message exceeds the maximum configured message size.", 413),
        (status.RESOURCE_EXHAUSTED, "received metadata size exceeds hard limit (19100 vs. 16384)", 431),
        (status.RESOURCE_EXHAUSTED, "busy", 429),
        (status.CANCELLED, "shutting down", 503),
    ],
)
def test_an_error_of_a_call_is_one_over_http_that_a_batch_can_act_on(
    code: int, words: str, http: int
) -> None:
    """413 runs it in parts, 431 searches it; a model that cancels is no client that has left."""
    fields = ((b"grpc-status", b"%d" % code), (b"grpc-message", words.encode()))
    told = status.to_response(code, fields)
    assert (told.status, dict(told.headers)[b"grpc-status"]) == (http, b"%d" % code)


def test_only_fields_that_are_metadata_go_with_a_call() -> None:
    """Any other ends the call at the server; the ids of a large batch are as many as servers take."""
    ids = b",".join([b"%036d" % each for each in range(100)])
    kept = ((b"x-a_b.c", b"1"), (b"a-bin", b"YWI"), (b"b-bin", b"YWI="), (b"c-bin", b"YWJj"), (b"d-bin", b""))
    others = ((b"x!y", b"1"), (b"x'y", b"1"), (b"e-bin", b"***"), (b"f-bin", b"YWJjYQ="), (b"g-bin", b"Y"))
    made = asking.call_of(Request_("GET", "/v2", (*kept, *others, (b"x-request-id", ids)), b""))
    assert made is not None
    assert made.request.headers[1:-1] == kept
    assert made.request.headers[-1] == (b"x-request-id", ids[: 27 * 37 - 1])


def test_an_answer_may_have_many_strings() -> None:
    """Each is a field of its own in typed contents."""
    answer = Answer(model_name="m")
    output = answer.outputs.add(name="y", datatype="BYTES", shape=[10_001])
    output.contents.bytes_contents.extend([b"cat"] * 10_001)
    message = answer.SerializeToString()
    response = Response(200, ((b"grpc-status", b"0"),), b"\0" + len(message).to_bytes(4, "big") + message)
    told = asking.answer_of(asked({"inputs": []}), response)
    assert json.loads(told.body)["outputs"][0]["data"] == ["cat"] * 10_001


def test_parameters_keep_their_numbers_and_nulls_are_left_out() -> None:
    """Whatever has no place in 64 bits, and what is no boolean in a tensor of them, is refused."""
    made = asked({"inputs": [], "parameters": {"n": None, "i": 2**63 - 1, "u": 2**64 - 1, "l": -(2**63)}})
    parameters = Request.FromString(made.request.body[5:]).parameters
    assert set(parameters) == {"i", "u", "l"}
    assert (parameters["i"].int64_param, parameters["l"].int64_param) == (2**63 - 1, -(2**63))
    assert parameters["u"].uint64_param == 2**64 - 1
    for number in (2**64, -(2**63) - 1):
        with pytest.raises(BadMessageError, match=r"^parameters\.n: expected a number of at most 64 bits"):
            write_parameters(4, {"n": number}, "")
    assert tensors.of_json("BOOL", [0, 1, True, False], "x") == b"\0\1\1\0"
    for value in ("false", 2, None):
        with pytest.raises(BadMessageError, match=r"^x: expected values of BOOL"):
            tensors.of_json("BOOL", [value], "x")
