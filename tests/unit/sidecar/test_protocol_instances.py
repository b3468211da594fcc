"""The `instances` protocol as the engine uses it, and what its fast way must not lose."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_sidecar.protocols.instances import INSTANCES_PROTOCOL, Instances
from penstock_sidecar.protocols.openai import OPENAI_PROTOCOL
from penstock_sidecar.protocols.v2 import V2_PROTOCOL
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.http import Request, Response
from penstock_wire.instances_form import MAX_ITEMS
from penstock_wire.json_slices import NotJSON, elements, members

JSON = ((b"content-type", b"application/json"),)
NAMES = st.sampled_from(["", "a", "b", "instances", "ü", "\n", '"'])


def request(body: bytes, *headers: tuple[bytes, bytes]) -> Request:
    return Request("POST", "/v1/models/m:predict", headers, body)


@given(
    st.lists(st.tuples(NAMES, st.sampled_from(["1", "[]", '"x"', "[1, 2]", "NaN"])), max_size=5),
    st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " : ")]),
    st.booleans(),
    st.sampled_from(["", "\n", " " * 9]),
)
def test_a_member_twice_is_found_however_the_object_is_spelled(
    pairs: list[tuple[str, str]], marks: tuple[str, str], ascii_: bool, tail: str
):
    comma, colon = marks
    inner = comma.join(json.dumps(name, ensure_ascii=ascii_) + colon + raw for name, raw in pairs)
    body = ("{" + inner + "}" + tail).encode()
    if len(dict(pairs)) < len(pairs):
        with pytest.raises(NotJSON, match="is there twice"):
            members(body)
    else:
        assert members(body) == {name: raw.encode() for name, raw in pairs}


@pytest.mark.parametrize(
    "array",
    [
        b"[" + b"1," * 1000 + b"1]",
        b"[" + b"[1,2]," * 1000 + b"NaN]",
        b"[" + b'{"a":[1,{"b":2}]},' * 1000 + b"1]",
        b"[" + b'"]",' * 1000 + b"1]",
        b" [[" + b"[" * 30 + b"]" * 30 + b"]" + b",1" * 1000 + b"]",
    ],
)
def test_items_are_bounded_before_they_are_built(array: bytes):
    assert len(elements(array, 1001)) == 1001
    with pytest.raises(NotJSON, match="at most 1000 elements"):
        elements(array, 1000)


@given(st.recursive(st.just(1), lambda inner: st.lists(inner, max_size=5), max_leaves=60), st.integers(1, 9))
def test_the_bound_counts_no_elements_of_elements(document: Any, limit: int):
    if not isinstance(document, list):
        return
    array = json.dumps(document).encode()
    try:
        items = elements(array, limit)
    except NotJSON:
        assert len(document) > limit
    else:
        assert len(items) == len(document)


def test_a_tensor_of_many_numbers_is_one_item():
    image = [[0.5] * 500] * 500
    parsed = INSTANCES_PROTOCOL.parse(request(json.dumps({"instances": [image]}).encode()))
    assert len(parsed.items) == 1


@pytest.mark.parametrize("count", [MAX_ITEMS + 1, MAX_ITEMS * 3])
def test_too_many_items_are_told(count: int):
    with pytest.raises(PenstockError, match="at most 100000 items") as caught:
        INSTANCES_PROTOCOL.parse(request(b'{"instances":[' + b"1," * (count - 1) + b"1]}"))
    assert caught.value.reason == Reason.BAD_SHAPE


PATHS = {
    "instances": (INSTANCES_PROTOCOL, "/v1/models/m:predict", b'{"instances":[1]}'),
    "v2": (
        V2_PROTOCOL,
        "/v2/models/m/infer",
        b'{"inputs":[{"name":"x","shape":[1],"datatype":"INT8","data":[1]}]}',
    ),
    "openai": (OPENAI_PROTOCOL, "/v1/embeddings", b'{"input":["a"]}'),
}


@pytest.mark.parametrize("kind", list(PATHS))
@pytest.mark.parametrize(
    ("fields", "passes"),
    [
        ([(b"content-type", b"application/json")], False),
        ([(b"content-type", b"Application/JSON; charset=utf-8")], False),
        ([(b"content-type", b"application/ld+json")], False),
        ([(b"content-type", b"text/plain;charset=UTF-8")], False),
        ([(b"content-type", b"application/octet-stream")], False),
        ([], False),
        ([(b"content-type", b"text/html")], True),
        ([(b"content-type", b"multipart/form-data; boundary=x")], True),
        ([*JSON, (b"content-type", b"image/png")], True),
        ([*JSON, (b"content-encoding", b"identity")], False),
        ([*JSON, (b"content-encoding", b"gzip")], True),
        ([(b"content-encoding", b"deflate")], True),
        ([*JSON, (b"ce-id", b"1"), (b"ce-specversion", b"1.0")], True),
    ],
)
def test_what_says_that_it_is_no_json_of_the_protocols_passes(
    kind: str, fields: list[tuple[bytes, bytes]], passes: bool
):
    """By its head alone, so that its body is a stream."""
    protocol, path, body = PATHS[kind]
    for _ in range(2):  # the second time they may be remembered
        sent = Request("POST", path, ((b"accept", b"*/*"), *fields), body)
        assert protocol.passes(sent) is passes
        if not passes:
            parsed = protocol.parse(sent)
            assert parsed is not None
            assert len(parsed.items) == 1


@pytest.mark.parametrize("kind", list(PATHS))
@pytest.mark.parametrize(
    ("said", "becomes"),
    [
        (b"application/json", None),
        (b"application/json; charset=utf-8", None),
        (b"application/ld+json", None),
        (b"application/x-www-form-urlencoded", b"application/json"),
        (b"text/plain;charset=UTF-8", b"application/json"),
        (b"application/octet-stream", b"application/json"),
        (None, b"application/json"),
    ],
)
def test_what_is_json_is_said_to_be(kind: str, said: bytes | None, becomes: bytes | None):
    protocol, path, body = PATHS[kind]
    own = () if said is None else ((b"content-type", said),)
    headers = ((b"accept", b"*/*"), *own, (b"x", b"y"))
    parsed = protocol.parse(Request("POST", path, headers, body))
    assert parsed is not None
    if becomes is None:
        assert parsed.fields is None
    else:
        assert parsed.fields is not None
        assert sorted(parsed.fields) == [(b"accept", b"*/*"), (b"content-type", becomes), (b"x", b"y")]


@pytest.mark.parametrize("kind", list(PATHS))
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[1, 2]",
        b'[{"inputs": 1, "input": 1, "instances": 1}]',
        b"{}",
        b"{",
        b'{"a": 1}\n{"a": 2}\n',
        b'{"a": 1, "a": 2}',
        b'{"specversion": "1.0", "data": {"instances": [1], "inputs": [1], "input": [1]}}',
        b'{"a":' + b"[" * 600 + b"]" * 600 + b"}",
        b'"inputs"',
    ],
)
def test_a_body_without_the_protocols_member_passes(kind: str, body: bytes):
    protocol, path, _ = PATHS[kind]
    assert protocol.parse(Request("POST", path, JSON, body)) is None


@pytest.mark.parametrize("kind", list(PATHS))
def test_a_body_that_names_the_protocols_member_and_cannot_be_read_is_told(kind: str):
    protocol, path, body = PATHS[kind]
    for bad in (body[:-1], b"  " + body + b"}", body[:-1] + b"," + body[1:]):
        with pytest.raises(PenstockError) as caught:
            protocol.parse(Request("POST", path, JSON, bad))
        assert caught.value.reason == Reason.BAD_JSON


def test_only_a_post_is_a_prediction():
    assert INSTANCES_PROTOCOL.passes(Request("GET", "/v1/models/m", (), b""))
    assert not INSTANCES_PROTOCOL.passes(request(b""))


@pytest.mark.parametrize("kind", ["instances", "openai"])
def test_binary_tensors_are_v2s_alone(kind: str):
    protocol, path, body = PATHS[kind]
    headers = ((b"content-type", b"application/octet-stream"), (b"inference-header-content-length", b"2"))
    assert protocol.passes(Request("POST", path, headers, body))


def test_status_and_fields_come_back_to_each():
    parsed = [INSTANCES_PROTOCOL.parse(request(b'{"instances":[1, 2],"m":7}')) for _ in range(3)]
    message = INSTANCES_PROTOCOL.join([each.items for each in parsed], parsed[0].parameters)
    assert message.headers == ((b"x-penstock-item-answers", b"1"),)  # beside the requests' own
    assert message.body == b'{"instances":[1,2,1,2,1,2],"m":7}'
    answer = Response(200, (*JSON, (b"x-model", b"m7")), b'{"predictions": [1, 2, 3, 4, 5, 6], "v": "3"}')
    answers = INSTANCES_PROTOCOL.split(answer, [[b""] * 2, [b""], [b""] * 3], parsed[0].parameters)
    assert [each.body for each in answers] == [
        b'{"predictions":[1,2],"v":"3"}',
        b'{"predictions":[3],"v":"3"}',
        b'{"predictions":[4,5,6],"v":"3"}',
    ]
    merged = INSTANCES_PROTOCOL.merge(answers, ())
    assert merged.body == b'{"predictions":[1,2,3,4,5,6],"v":"3"}'
    assert merged.status == 200
    assert merged.headers == answer.headers


def test_a_server_that_takes_tensors_gets_them_in_batches_of_their_own():
    """Parts of a request, too; a body with `instances` is read as ever, at every path."""
    protocol = Instances(lambda: True)
    path, headers = "/v2/models/m/infer", ((b"content-type", b"application/octet-stream"),)
    body = b'{"inputs":[{"name":"x","datatype":"INT8","shape":[1],"data":[%d]}],"id":"%d"}'
    parsed = [protocol.parse(Request("POST", path, headers, body % (each, each))) for each in (3, 4)]
    plain = protocol.parse(Request("POST", path, headers, b'{"instances":[1]}'))
    assert (parsed[0].parameters == parsed[1].parameters, plain.items) == (True, [b"1"])
    message = protocol.join([each.items for each in parsed], parsed[0].parameters)
    assert json.loads(message.body)["inputs"][0] | {"shape": None} == {
        "name": "x",
        "datatype": "INT8",
        "shape": None,
        "data": [3, 4],
    }
    answer = Response(200, (), b'{"outputs":[{"name":"y","datatype":"INT8","shape":[2],"data":[6,8]}]}')
    answers = protocol.split(answer, [each.items for each in parsed], parsed[0].parameters)
    assert [json.loads(each.body)["id"] for each in answers] == ["3", "4"]
    merged = protocol.merge(answers, parsed[0].parameters)
    assert json.loads(merged.body)["outputs"][0]["data"] == [6, 8]
    binary = Request("POST", path, (*headers, (b"inference-header-content-length", b"2")), b"{}")
    assert not protocol.passes(binary)
    assert INSTANCES_PROTOCOL.passes(binary)


@pytest.mark.parametrize("predictions", [b"[]", b"[1]", b"[1,2,3]"])
def test_an_answer_for_another_number_of_items_is_nobodys(predictions: bytes):
    answer = Response(200, JSON, b'{"predictions":' + predictions + b"}")
    with pytest.raises(PenstockError, match="expected 2 predictions, found") as caught:
        INSTANCES_PROTOCOL.split(answer, [[b"1"], [b"2"]], ())
    assert caught.value.reason == Reason.BAD_ANSWER


def test_a_lost_member_as_long_as_the_spaces_of_a_dump_is_found():
    with pytest.raises(NotJSON, match="member '' is there twice"):
        members(b'{"":1,"":1,"a":1,"b":2}')
