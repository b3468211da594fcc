"""The `v2` protocol against a plain reference that parses all that the protocol only cuts."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_sidecar.protocols import v2
from penstock_sidecar.protocols.v2 import V2_PROTOCOL
from penstock_sidecar.protocols.v2_tensors import SIZES
from penstock_sidecar.queue.batch_key import Keys
from penstock_wire.control.settings import Batching
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.http import Request, Response

LENGTH = b"inference-header-content-length"
FORMATS = {
    "BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q", "INT8": "b", "INT16": "h",
    "INT32": "i", "INT64": "q", "FP16": "e", "BF16": "H", "FP32": "f", "FP64": "d",
}  # fmt: skip


def message(document: Any, binary: bytes | None = None) -> Request:
    text = json.dumps(document).encode()
    if binary is None:
        return Request("POST", "/v2/models/m/infer", ((b"content-type", b"application/json"),), text)
    headers = ((b"content-type", b"application/octet-stream"), (LENGTH, b"%d" % len(text)))
    return Request("POST", "/v2/models/m/infer", headers, text + binary)


def doc(**more: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2], **more}]}


def flat(data: Any) -> list[Any]:
    return [leaf for each in data for leaf in flat(each)] if isinstance(data, list) else [data]


def nest(data: list[Any], shape: list[int]) -> Any:
    if len(shape) < 2:
        return data
    step = math.prod(shape[1:])
    return [nest(data[i * step : i * step + step], shape[1:]) for i in range(shape[0])]


def pack(values: list[Any], datatype: str) -> bytes:
    if datatype == "BYTES":
        return b"".join(struct.pack("<I", len(value.encode())) + value.encode() for value in values)
    return struct.pack(f"<{len(values)}{FORMATS[datatype]}", *values)


def unpack(data: bytes, datatype: str) -> list[Any]:
    if datatype != "BYTES":
        size = struct.calcsize("<" + FORMATS[datatype])
        return list(struct.unpack(f"<{len(data) // size}{FORMATS[datatype]}", data))
    values = []
    while data:
        (size,) = struct.unpack("<I", data[:4])
        values.append(data[4 : 4 + size].decode())
        data = data[4 + size :]
    return values


def tensors(headers: Any, body: bytes, member: str) -> tuple[dict[str, Any], dict[str, tuple[str, Any, Any]]]:
    """The reference: the document without its tensors, and name → datatype, shape, values."""
    length = dict(headers).get(LENGTH)
    text, blob = (body, b"") if length is None else (body[: int(length)], body[int(length) :])
    document = json.loads(text)
    outputs = {}
    for tensor in document.pop(member):
        size = tensor.get("parameters", {}).get("binary_data_size")
        if size is None:
            values = flat(tensor["data"])
        else:
            values, blob = unpack(blob[:size], tensor["datatype"]), blob[size:]
        assert len(values) == math.prod(tensor["shape"])
        outputs[tensor["name"]] = (tensor["datatype"], tensor["shape"], values)
    assert not blob
    return document, outputs


def values_of(datatype: str) -> st.SearchStrategy[Any]:
    if datatype == "BYTES":
        return st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
    if datatype == "BOOL":
        return st.booleans()
    if datatype.startswith("FP"):
        return st.floats(width={"FP16": 16, "FP32": 32, "FP64": 64}[datatype], allow_nan=False)  # type: ignore[arg-type]
    bits = 8 * SIZES[datatype]
    return (
        st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        if datatype[0] == "I"
        else st.integers(0, 2**bits - 1)
    )


@st.composite
def batches(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Requests that are alike; of each input the values, beside how they are sent."""
    kinds = draw(
        st.lists(
            st.tuples(
                st.sampled_from([*FORMATS, "BYTES"]),
                st.lists(st.integers(1, 3), max_size=2),
                st.sampled_from(["flat", "nested", "binary"]),
            ),
            min_size=1,
            max_size=3,
        )
    )
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    requests = []
    for count in counts:
        inputs = []
        for datatype, tail, form in kinds:
            total = count * math.prod(tail)
            inputs.append(
                (
                    datatype,
                    [count, *tail],
                    form,
                    draw(st.lists(values_of(datatype), min_size=total, max_size=total)),
                )
            )
        requests.append({"id": draw(st.none() | st.text(max_size=3)), "inputs": inputs})
    return requests


def encode(member: str, inputs: list[Any], more: dict[str, Any]) -> Request:
    documents, blobs = [], b""
    for index, (datatype, shape, form, values) in enumerate(inputs):
        document: dict[str, Any] = {"name": f"t{index}", "shape": shape, "datatype": datatype}
        if form == "binary":
            blob = pack(values, datatype)
            document["parameters"] = {"binary_data_size": len(blob)}
            blobs += blob
        else:
            document["data"] = nest(values, shape) if form == "nested" else values
        documents.append(document)
    anything = any(form == "binary" for _, _, form, _ in inputs)
    return message({**more, member: documents}, blobs if anything else None)


@given(batches())
def test_joined_and_split_is_what_a_plain_reading_says(requests: list[dict[str, Any]]):
    sent = [
        encode("inputs", each["inputs"], {} if each["id"] is None else {"id": each["id"]})
        for each in requests
    ]
    parsed = [V2_PROTOCOL.parse(each) for each in sent]
    assert len({each.parameters for each in parsed}) == 1
    for each, parsed_request in zip(requests, parsed, strict=True):
        assert not parsed_request.lone
        assert len(parsed_request.items) == each["inputs"][0][1][0]
        assert all(len(item) > 0 for item in parsed_request.items)
    batch = V2_PROTOCOL.join([each.items for each in parsed], parsed[0].parameters)
    _, got = tensors(batch.headers, batch.body, "inputs")
    rows = sum(len(each.items) for each in parsed)
    for index, (datatype, shape, _, _) in enumerate(requests[0]["inputs"]):
        values = [value for each in requests for value in each["inputs"][index][3]]
        assert got[f"t{index}"] == (datatype, [rows, *shape[1:]], values)

    # The model answers with what it got.
    whole = [
        (datatype, [rows, *shape[1:]], form, got[f"t{index}"][2])
        for index, (datatype, shape, form, _) in enumerate(requests[0]["inputs"])
    ]
    answer = encode("outputs", whole, {"model_name": "m", "model_version": "3", "id": "batch"})
    response = Response(200, (*answer.headers, (b"x-model", b"7")), answer.body)
    answers = V2_PROTOCOL.split(response, [each.items for each in parsed], parsed[0].parameters)
    for each, answered in zip(requests, answers, strict=True):
        document, found_ = tensors(answered.headers, answered.body, "outputs")
        own_id = {} if each["id"] is None else {"id": each["id"]}
        assert document == {**own_id, "model_name": "m", "model_version": "3"}
        assert (b"x-model", b"7") in answered.headers
        for index, (datatype, shape, _, values) in enumerate(each["inputs"]):
            assert found_[f"t{index}"] == (datatype, shape, values)
    if len(answers) > 1:
        merged = V2_PROTOCOL.merge(answers, ())
        document, found_ = tensors(merged.headers, merged.body, "outputs")
        assert found_ == got
        assert document.get("id") == requests[0]["id"]


@given(batches(), st.binary(max_size=3))
def test_a_request_whose_json_came_before_is_read_as_the_first(requests: list[dict[str, Any]], more: bytes):
    """With its own id and its own data, and refused if these are not as long."""
    v2._known.clear()
    for request in requests * 2:
        more_members = {} if request["id"] is None else {"id": request["id"]}
        asked = encode("inputs", request["inputs"], more_members)
        known = V2_PROTOCOL.parse(asked)
        before = dict(v2._known)
        v2._known.clear()
        fresh = V2_PROTOCOL.parse(asked)
        v2._known.update(before)
        assert known is not None
        assert fresh is not None
        assert known.parameters == fresh.parameters
        assert [(row.cells, row.id) for row in known.items] == [(row.cells, row.id) for row in fresh.items]
        if more and LENGTH in dict(asked.headers):
            asked.body += more
            with pytest.raises(PenstockError, match="binary data behind the JSON"):
                V2_PROTOCOL.parse(asked)


@pytest.mark.parametrize("name", [b"id", b"\\u0069d"])
def test_an_id_behind_the_inputs_is_not_lost_nor_one_of_two(name: bytes):
    """Also where the JSON came before."""
    tensor = json.dumps(binary_input("FP32", [1], 4)).encode()
    for first in (b"", b"", b'"id":"a",', b'"id":"b",'):
        text = b'{%b"inputs":[%b],"%b":"c"}' % (first, tensor, name)
        request = Request("POST", "/v2/models/m/infer", ((LENGTH, b"%d" % len(text)),), text + b"\0" * 4)
        if first:
            with pytest.raises(PenstockError, match="'id' is there twice"):
                V2_PROTOCOL.parse(request)
        else:
            parsed = V2_PROTOCOL.parse(request)
            assert parsed is not None
            assert parsed.items[0].id == b'"c"'


@pytest.mark.parametrize("good", ["{", '{"id":"a",'])
@pytest.mark.parametrize("bad", ["", ",", "{{", '{"id":"a",{', '{"id":"a",,'])
def test_json_that_came_before_makes_no_other_json_good(good: str, bad: str):
    v2._known.clear()
    tensor = json.dumps(binary_input("FP32", [1], 4))

    def is_read(start: str) -> bool:
        text = f'{start}"inputs":[{tensor}]}}'.encode()
        request = Request("POST", "/v2/models/m/infer", ((LENGTH, b"%d" % len(text)),), text + b"\0" * 4)
        try:
            return V2_PROTOCOL.parse(request) is not None
        except PenstockError:
            return False

    assert is_read(good)
    assert len(v2._known) == 1
    assert not is_read(bad)


def test_what_describes_a_body_is_not_sent_with_another():
    """A batch has JSON of another length."""
    read = Keys(key_fields=True, batching=Batching()).read(((LENGTH, b"99"), (b"user-agent", b"x")))
    assert (read.fields, read.shared) == ((), ((b"user-agent", b"x"),))


def test_each_batch_has_an_id_unlike_others():
    """Some models answer with their request's id, and fail where there is none."""
    parsed = [V2_PROTOCOL.parse(message({**doc(), **own})) for own in ({"id": "a"}, {})]
    ids = [
        json.loads(V2_PROTOCOL.join([each.items for each in parsed], parsed[0].parameters).body)["id"]
        for _ in range(3)
    ]
    assert len(set(ids)) == 3
    assert not {"", "a"} & set(ids)


@pytest.mark.parametrize("answered", [{}, {"id": None}, {"id": "b"}, {"id": 7}])
def test_each_gets_its_own_id_whatever_the_model_answers(answered: dict[str, Any]):
    parsed = [V2_PROTOCOL.parse(message({**doc(), **own})) for own in ({"id": "a"}, {}, {"id": None})]
    output = {"name": "y", "shape": [3], "datatype": "FP32", "data": [1, 2, 3]}
    answer = Response(200, (), json.dumps({**answered, "outputs": [output]}).encode())
    answers = V2_PROTOCOL.split(answer, [each.items for each in parsed], parsed[0].parameters)
    documents = [json.loads(each.body) for each in answers]
    assert [document.get("id", "none") for document in documents] == ["a", "none", "none"]
    merged = [json.loads(V2_PROTOCOL.merge([each, each], ()).body).get("id", "none") for each in answers]
    assert merged == ["a", "none", "none"]


NULLS = {"id": None, "parameters": None, "outputs": None}


@pytest.mark.parametrize(
    ("with_nulls", "without"),
    [
        ({**doc(), **NULLS}, doc()),
        (doc(parameters=None), doc()),
        (
            {**doc(), "outputs": [{"name": "y", "parameters": None}]},
            {**doc(), "outputs": [{"name": "y"}]},
        ),
    ],
)
def test_null_is_absent_in_a_request(with_nulls: Any, without: Any):
    """KServe's server and those who use its types write all optional members."""
    left, right = (V2_PROTOCOL.parse(message(each)) for each in (with_nulls, without))
    assert (left.items[0].id, left.lone) == (None, False)
    assert left.parameters == right.parameters
    joined = V2_PROTOCOL.join([left.items, right.items], left.parameters)
    assert b"null" not in joined.body


def test_null_data_and_sizes_are_absent():
    nulls = {**binary_input("FP32", [2], 8), "data": None}
    assert len(V2_PROTOCOL.parse(message({"inputs": [nulls]}, b"\0" * 8)).items) == 2
    assert len(V2_PROTOCOL.parse(message(doc(parameters={"binary_data_size": None}))).items) == 1


def test_null_is_absent_in_an_answer():
    parsed = [V2_PROTOCOL.parse(message({**doc(), "id": name})) for name in ("a", "b")]
    output = {"name": "y", "shape": [2], "datatype": "INT64", "parameters": None, "data": [1, 2]}
    answer = {"model_name": "m", "model_version": None, "id": None, "parameters": None, "outputs": [output]}
    answers = V2_PROTOCOL.split(
        Response(200, (), json.dumps(answer).encode()),
        [each.items for each in parsed],
        parsed[0].parameters,
    )
    for name, value, each in zip("ab", (1, 2), answers, strict=True):
        document = json.loads(each.body)
        assert (document["id"], document["model_name"]) == (name, "m")
        assert document["outputs"] == [{"name": "y", "shape": [1], "datatype": "INT64", "data": [value]}]


def test_json_sent_as_octets_shares_a_batch_with_json():
    """As tritonclient.aio sends it, and any client that posts bytes with aiohttp."""
    plain = message(doc())
    octets = Request("POST", plain.target, ((b"content-type", b"application/octet-stream"),), plain.body)
    left, right = V2_PROTOCOL.parse(plain), V2_PROTOCOL.parse(octets)
    assert left.parameters == right.parameters
    assert right.fields == plain.headers


def test_binary_tensors_keep_their_content_type():
    binary = {"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}
    parsed = V2_PROTOCOL.parse(message({"inputs": [binary]}, b"\0" * 8))
    assert parsed.fields is None


def test_numbers_keep_their_spelling():
    text = b'{"inputs":[{"name":"x","shape":[2,1],"datatype":"FP64","data":[ 9007199254740993 , 1.50e0]}]}'
    parsed = V2_PROTOCOL.parse(Request("POST", "/v2/models/m/infer", (), text))
    joined = V2_PROTOCOL.join([parsed.items], parsed.parameters).body
    assert b'"data":[9007199254740993,1.50e0]' in joined


@pytest.mark.parametrize(
    ("one_way", "other_way", "alike"),
    [
        (doc(), doc(), True),
        (doc(), {**doc(), "id": "7"}, True),
        (doc(), doc(shape=[2, 2], data=[1, 2, 3, 4]), True),
        (doc(parameters={"a": 1, "b": 2}), doc(parameters={"b": 2, "a": 1}), True),
        (doc(), doc(name="y"), False),
        (doc(), doc(datatype="FP64"), False),
        (doc(), doc(shape=[2, 1]), False),
        (doc(), doc(data=[[1, 2]]), False),
        (doc(), doc(parameters={"a": 1}), False),
        (doc(), {**doc(), "parameters": {"priority": 1}}, False),
        (doc(), {**doc(), "parameters": {"timeout": 5}}, False),
        (doc(), {**doc(), "outputs": [{"name": "y"}]}, False),
        (
            {**doc(), "outputs": [{"name": "y"}]},
            {**doc(), "outputs": [{"name": "y", "parameters": {"classification": 3}}]},
            False,
        ),
        (
            {**doc(), "parameters": {"binary_data_output": True}},
            {**doc(), "parameters": {"binary_data_output": False}},
            False,
        ),
    ],
)
def test_what_shares_a_batch(one_way: Any, other_way: Any, alike: bool):
    left, right = (V2_PROTOCOL.parse(message(each)) for each in (one_way, other_way))
    assert left.items
    assert right.items
    assert (left.parameters == right.parameters) is alike
    assert (hash(left.parameters) == hash(right.parameters)) is alike


def test_binary_and_json_do_not_mix():
    left = V2_PROTOCOL.parse(message(doc()))
    binary = {"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}
    right = V2_PROTOCOL.parse(message({"inputs": [binary]}, b"\0" * 8))
    assert left.parameters != right.parameters


@pytest.mark.parametrize(
    "document",
    [
        {"inputs": []},
        {"inputs": [{"name": "x", "shape": [], "datatype": "FP32", "data": [1]}]},
        doc(shape=[0, 2], data=[]),
        doc(shape=[3, 0], data=[]),
        {
            "inputs": [
                doc()["inputs"][0],
                {"name": "y", "shape": [2], "datatype": "FP32", "data": [1, 2]},
            ]
        },
        {**doc(), "parameters": {"sequence_id": 7}},
        {**doc(), "parameters": {"sequence_id": "s"}},
        {**doc(), "parameters": {"sequence_end": True}},
        doc(data=None, parameters={"shared_memory_region": "r"}),
        {**doc(), "outputs": [{"name": "y", "parameters": {"shared_memory_region": "r"}}]},
    ],
)
def test_what_cannot_be_batched_is_alone(document: Any):
    parsed = V2_PROTOCOL.parse(message(document))
    assert parsed.lone
    assert not parsed.items


def test_a_raw_request_is_alone():
    headers = ((b"content-type", b"application/octet-stream"), (LENGTH, b"0"))
    assert V2_PROTOCOL.parse(Request("POST", "/v2/models/m/infer", headers, b"abcd")).lone


@pytest.mark.parametrize(
    ("document", "binary", "words"),
    [
        ({"inputs": 1}, None, r"\$\.inputs: expected an array of at most 1000 objects, found a number$"),
        ({"inputs": None}, None, r"\$\.inputs: expected an array of at most 1000 objects, found null$"),
        ({"inputs": [None]}, None, r"\$\.inputs\[0\]: expected an object, found null$"),
        ({"inputs": [{}] * 1001}, None, r"\$\.inputs: .* at most 1000 objects, found more$"),
        ({**doc(), "outputs": {}}, None, r"\$\.outputs: expected an array of at most 1000 objects, found an"),
        ({**doc(), "parameters": []}, None, r"\$\.parameters: expected an object, found an array$"),
        (doc(parameters=7), None, r"\$\.inputs\[0\]\.parameters: expected an object, found a number$"),
        (doc(data=None), None, r"\$\.inputs\[0\]: expected a member \"data\", found datatype, name$"),
        ({"inputs": [1]}, None, r"\$\.inputs\[0\]: expected an object, found a number"),
        ({**doc(), "id": 7}, None, r"\$\.id: expected a string, found 7"),
        (doc(name=None), None, r"name: expected a string, found null"),
        (doc(shape=None), None, r"shape: expected an array of at most 64 integers, found null"),
        (doc(shape=[-1, 2]), None, r"shape\[0\]: expected an integer from 0 to 2\^63 - 1, found -1"),
        (doc(shape=[1.0, 2]), None, r"shape\[0\].*found 1.0"),
        (doc(shape=[2**63, 2]), None, r"shape\[0\].*found 9223372036854775808"),
        (doc(shape=[1, 2**62, 2**62]), None, r"expected 21267647932558653966460912964485513216 elements"),
        (doc(shape=[2**40, 2]), None, r"at most 100000 rows, found 1099511627776"),
        (doc(shape=[1, 3]), None, r"data: expected 3 elements \(shape \[1,3\]\), found 2"),
        (doc(shape=[1] * 65), None, r"at most 64 integers"),
        (doc(datatype="FP8"), None, r"datatype: expected one of BOOL.*BYTES, found FP8"),
        (doc(datatype=1), None, r"datatype: expected a string, found 1"),
        (doc(data=1), None, r"data: expected an array, found 1"),
        (doc(data=[[1], [2]]), None, r"data: expected 1 rows"),
        (doc(shape=[2, 2], data=[[1, 2], [3, 4, 5]]), None, r"data\[1\]: expected arrays nested as \[2\]"),
        (doc(shape=[2, 2], data=[[1, 2], {"a": [3, 4]}]), None, r"data\[1\]: expected arrays nested"),
        (doc(shape=[1, 2, 2], data=[[[1, 2, 3], [4]]]), None, r"data\[0\]: expected arrays nested as"),
        (doc(shape=[1, 2**50], data=[[1, 2]]), None, r"data\[0\]: expected arrays nested"),
        (doc(datatype="BYTES", data=["a"]), None, r"expected 2 elements .*found 1"),
        (doc(datatype="BYTES", data=["a", {}]), None, r"data\[1\]: expected an element of type BYTES"),
        ({"inputs": doc()["inputs"] * 2}, None, r"inputs\[1\]\.name: expected another name"),
        ({**doc(), "outputs": [{"name": "y"}, {"name": "y"}]}, None, r"outputs\[1\]\.name: expected another"),
        ({**doc(), "outputs": [{}]}, None, r"outputs\[0\]\.name: expected a string, found nothing"),
        (doc(parameters={"binary_data_size": 8}), b"\0" * 8, r"expected data either here or behind the JSON"),
        (doc(), b"\0", r"expected 0 bytes of binary data behind the JSON, found 1"),
    ],
)  # fmt: skip
def test_what_lies_is_told(document: Any, binary: bytes | None, words: str):
    with pytest.raises(PenstockError, match=words) as caught:
        V2_PROTOCOL.parse(message(document, binary))
    assert caught.value.reason == Reason.BAD_SHAPE
    assert caught.value.extra is not None


def binary_input(datatype: str, shape: list[int], size: Any) -> dict[str, Any]:
    parameters = {"binary_data_size": size}
    return {"name": "x", "shape": shape, "datatype": datatype, "parameters": parameters}


@pytest.mark.parametrize(
    ("tensor", "binary", "words"),
    [
        (binary_input("FP32", [2], 9), b"\0" * 8, "size up to the 8 bytes left, found 9"),
        (binary_input("FP32", [2], 4), b"\0" * 8, r"expected 8 bytes \(FP32 of shape \[2\]\), found 4"),
        (binary_input("FP16", [2], 8), b"\0" * 8, "expected 4 bytes"),
        (binary_input("BF16", [2], 8), b"\0" * 8, "expected 4 bytes"),
        (binary_input("FP32", [2], -8), b"\0" * 8, "found -8"),
        (binary_input("FP32", [2], "8"), b"\0" * 8, 'found "8"'),
        (binary_input("FP32", [2], 8), b"\0" * 9, "expected 8 bytes of binary data behind the JSON, found 9"),
        (binary_input("FP32", [2], 8), None, "size up to the 0 bytes left"),
        (binary_input("FP32", [1, 2**62, 2**62], 8), b"\0" * 8, "found 8"),
        (binary_input("BYTES", [1, 2**62, 2**62], 8), b"\0" * 8, "found 8 bytes"),
        (binary_input("BYTES", [1], 8), b"\5\0\0\0abcd", "the end of the data in element 0"),
        (binary_input("BYTES", [2], 8), b"\4\0\0\0abcd", "the end of the data in element 1"),
        (binary_input("BYTES", [1], 8), b"\3\0\0\0abcd", "1 bytes behind them"),
        (binary_input("BYTES", [1], 8), b"\xff\xff\xff\xffabcd", "the end of the data in element 0"),
    ],
)
def test_binary_data_that_lies_is_told(tensor: Any, binary: bytes | None, words: str):
    with pytest.raises(PenstockError, match=words) as caught:
        V2_PROTOCOL.parse(message({"inputs": [tensor]}, binary))
    assert caught.value.reason == Reason.BAD_SHAPE


def test_two_tensors_do_not_share_their_bytes():
    two = [binary_input("FP32", [2], 8), {**binary_input("FP32", [2], 8), "name": "y"}]
    with pytest.raises(PenstockError, match="size up to the 0 bytes left"):
        V2_PROTOCOL.parse(message({"inputs": two}, b"\0" * 8))


@pytest.mark.parametrize("length", [b"-1", b"x", b"99999", b"", b"9" * 30, b"1,1"])
def test_a_header_length_that_lies_is_told(length: bytes):
    with pytest.raises(PenstockError, match="expected a length up to"):
        V2_PROTOCOL.parse(Request("POST", "/v2/models/m/infer", ((LENGTH, length),), b"{}"))


def test_a_header_length_inside_the_json_is_no_json():
    with pytest.raises(PenstockError) as caught:
        V2_PROTOCOL.parse(Request("POST", "/v2/models/m/infer", ((LENGTH, b"11"),), b'{"inputs":[]}'))
    assert caught.value.reason == Reason.BAD_JSON


def test_not_a_number_is_an_element():
    parsed = V2_PROTOCOL.parse(message(doc(data=[math.nan, math.inf])))
    assert b"[NaN,Infinity]" in V2_PROTOCOL.join([parsed.items], parsed.parameters).body.replace(b" ", b"")


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({}, "outputs"),
        ({"outputs": [{"name": "y", "shape": [2], "datatype": "FP32", "data": [1, 2]}]},
         r"outputs\[0\]\.shape \('y'\): expected a first axis of 3 rows, found \[2\]"),
        ({"outputs": [{"name": "y", "shape": [], "datatype": "FP32", "data": [1]}]}, r"found \[\]"),
        ({"outputs": [{"name": "y", "shape": [3], "datatype": "FP32", "data": [1]}]}, "expected 3 elements"),
        ({"outputs": [binary_input("FP32", [3], 12)]}, "0 bytes left"),
    ],
)  # fmt: skip
def test_an_answer_that_does_not_fit_is_told(document: Any, words: str):
    parsed = V2_PROTOCOL.parse(message(doc()))
    with pytest.raises(PenstockError, match=words) as caught:
        V2_PROTOCOL.split(Response(200, (), json.dumps(document).encode()), [parsed.items] * 3, ())
    assert caught.value.reason == Reason.BAD_ANSWER


@pytest.mark.parametrize("data", [[], [[], []]])
def test_rows_of_an_answer_may_be_empty(data: Any):
    parsed = V2_PROTOCOL.parse(message(doc()))
    output = {"name": "y", "shape": [2, 0], "datatype": "FP32", "data": data}
    answers = V2_PROTOCOL.split(
        Response(200, (), json.dumps({"outputs": [output]}).encode()), [parsed.items] * 2, ()
    )
    for each in answers:
        first_output = json.loads(each.body)["outputs"][0]
        assert first_output["shape"] == [1, 0]
        assert flat(first_output["data"]) == []


def test_other_paths_pass_through():
    passes = V2_PROTOCOL.passes
    assert passes(Request("GET", "/v2/models/m", (), b""))
    assert passes(Request("POST", "/v2/repository/index", (), b""))
    assert not passes(Request("POST", "/v2/models/m/versions/2/infer?a=b", (), b""))


@given(st.integers(1, 5), st.integers(60, 300), st.randoms(use_true_random=False))
def test_wide_rows_are_cut_at_their_commas(rows: int, width: int, random: Any):
    values = [random.choice([0, 1.5, -123456.789, 10**17]) for _ in range(rows * width)]
    document = {"inputs": [{"name": "x", "shape": [rows, width], "datatype": "FP64", "data": values}]}
    parsed = V2_PROTOCOL.parse(message(document))
    cut = [json.loads(b"[" + item.cells[0] + b"]") for item in parsed.items]
    assert cut == nest(values, [rows, width])
