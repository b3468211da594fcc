"""JSON as raw slices, and the protocol on it.

Nothing is refused or taken that `json.loads` would not, no byte of an item changes, and each item's answer
goes where the item came from.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock_sidecar.protocols import instances
from penstock_sidecar.protocols.instances import INSTANCES_PROTOCOL
from penstock_sidecar.protocols.openai import OPENAI_PROTOCOL
from penstock_sidecar.protocols.v2 import V2_PROTOCOL
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.http import Request
from penstock_wire.instances_form import read_request
from penstock_wire.json_slices import MAX_DEPTH, NotJSON, Sole, elements, members

NUMBERS = st.one_of(st.integers(), st.floats(), st.just(2**70))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text(st.characters(), max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)
# Texts near to JSON: pieces of it in any order.
NEARLY = st.lists(
    st.sampled_from(
        ['{', '}', '[', ']', ',', ':', '"a"', '"\\u12"', '"\\ud800"', "1", "-", "NaN", "Infinity",
         "1e5", "01", "null", "nul", " ", "\n", "\t", "\x00", '"', "\\", '"a\tb"', "ü", '"ü"', "1.", ".5"]
    ),
    max_size=9,
).map("".join)  # fmt: skip


def protocol_read(protocol: Any, path: str, body: bytes) -> Any:
    return protocol.parse(Request("POST", path, ((b"content-type", b"application/json"),), body))


def same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(same(left[name], right[name]) for name in left)
    return type(left) is type(right) and bool(left == right)


def no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise LookupError
    return dict(pairs)


def plain(text: str) -> Any:
    """The result of json.loads; None if it is not an object or not JSON; LookupError for a name twice."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=5), st.sampled_from([None, 1]), st.booleans())
def test_members_are_cut_where_json_loads_cuts_them(
    document: dict[str, Any], indent: int | None, ascii_: bool
):
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_)
    try:
        body = text.encode()
    except UnicodeEncodeError:
        return  # a lone surrogate has no UTF-8
    result = members(body)
    assert list(result) == list(document)
    for name, raw in result.items():
        assert same(json.loads(raw), json.loads(text)[name])
        assert raw in body


@given(st.lists(VALUES, max_size=6), st.sampled_from([None, 1]))
def test_elements_are_cut_where_json_loads_cuts_them(document: list[Any], indent: int | None):
    body = json.dumps(document, indent=indent).encode()
    assert same([json.loads(raw) for raw in elements(body)], document)


@given(NEARLY)
@example('{"a":NaN}')
@example('{"a":[1,NaN,"]"],"b":"\\ud800"}')
@example('{"a":1,"a":NaN}')
@example('{"a" : 1 , }')
@example('{"a":1}x')
@example("")
def test_what_is_an_object_is_what_json_loads_says(text: str):
    body = text.encode()
    expected = plain(text)
    try:
        result = members(body)
    except NotJSON:
        if isinstance(expected, dict):
            with pytest.raises(LookupError):
                json.loads(text, object_pairs_hook=no_twins)
        return
    assert isinstance(expected, dict)
    assert same({name: json.loads(raw) for name, raw in result.items()}, expected)


@given(NEARLY.map(lambda inner: f"[{inner}]"))
def test_what_is_an_array_is_what_json_loads_says(text: str):
    expected = plain(text)
    try:
        result = elements(text.encode())
    except NotJSON:
        assert not isinstance(expected, list)
        return
    assert same([json.loads(raw) for raw in result], expected)


@pytest.mark.parametrize(("open_", "close"), [("[", "]"), ('{"a":', "}")])
def test_depth_is_bounded(open_: str, close: str):
    def nested(depth: int) -> bytes:
        return f'{{"x":{open_ * (depth - 1)}1{close * (depth - 1)}}}'.encode()

    members(nested(MAX_DEPTH))
    with pytest.raises(NotJSON, match="levels of nesting, found more"):
        members(nested(MAX_DEPTH + 1))
    # Brackets within strings are not depth.
    members(b'{"x":"' + b"[" * 1000 + b'"}')
    # Many brackets side by side are not depth either.
    members(b'{"x":[' + b",".join([b'[[{"y":[]}]]'] * 1000) + b"]}")


@pytest.mark.parametrize("end", [b"", b"\\"])
def test_a_string_without_an_end_takes_no_longer_than_another(end: bytes):
    """With a try at each of its quotes this would take days."""
    with pytest.raises(NotJSON):
        members(b"[" * (MAX_DEPTH + 1) + b'"' + b'\\"' * 2_000_000 + end)


@given(NEARLY, st.sampled_from(["[", '{"a":', "[{}, "]))
def test_what_is_too_deep_is_refused(text: str, open_: str):
    """However the text goes on behind its last level."""
    body = (open_ * 600 + text).encode()
    with pytest.raises(NotJSON):
        members(body)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not JSON"),
        (b"[1]", "expected a JSON object, found an array"),
        (b"null", "expected a JSON object, found null"),
        (b'"\xff"', "expected UTF-8, found byte 0xff at 1"),
        (b'{"a":1,"b":2,"a":3}', "member 'a' is there twice"),
        (b'{"a":1,"a":NaN}', "member 'a' is there twice"),
        (b'{"\\u0061":1,"a":2}', "member 'a' is there twice"),
        (b'{"a":1', "not JSON"),
    ],
)
def test_messages_say_what_was_found(body: bytes, message: str):
    with pytest.raises(NotJSON, match=message):
        members(body)


@pytest.mark.parametrize("number", [b"1" * 10_000, b"-" + b"7" * 10_000])
def test_an_integer_of_any_length_is_json(number: bytes):
    """Beside what the tolerant scanner is for, too: there is a limit to what `int` reads."""
    for body in (b"[%b]", b"[%b,NaN]", b'["\\ud800",%b]'):
        assert number in elements(body % number)
    assert members(b'{"a":%b,"b":NaN}' % number)["a"] == number


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (b"{}", "an object"),
        (b'{"a":NaN}', "an object"),
        (b"1", "a number"),
        (b"[1,1,1]", "more"),
        (b"[1", "bytes that are not JSON (Input data was truncated)"),
    ],
)
def test_what_was_found_is_there_for_messages_of_others(array: bytes, text: str):
    """So that none of them says `found expected …`."""
    with pytest.raises(NotJSON) as caught:
        elements(array, 2)
    assert caught.value.actual == text


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"[]", "an array"),
        (b"[NaN]", "an array"),
        (b'{"a":1,"a":2}', "member 'a' twice"),
        (b'{"a":1,"a":NaN}', "member 'a' twice"),
        (b'{"a":"\xff"}', "byte 0xff at 6"),
        (b"[" * 600, "more levels of nesting"),
    ],
)
def test_what_was_found_instead_of_an_object_is_there_for_messages_of_others(body: bytes, text: str):
    with pytest.raises(NotJSON) as caught:
        members(body)
    assert caught.value.actual == text


class TestInstances:
    def test_slices_keep_every_byte(self):
        body = b'{"b": {"y":1,"x":2} ,"instances" : [9007199254740993, 1E400,NaN, "\\u00fc" ],"a":1.0}'
        items, parameters = read_request(body)
        assert items == [b"9007199254740993", b"1E400", b"NaN", b'"\\u00fc"']
        assert parameters == (("a", b"1.0"), ("b", b'{"y":1,"x":2}'))

    @pytest.mark.parametrize(
        ("body", "reason", "path", "found"),
        [
            (b"x", Reason.BAD_JSON, None, "the bytes are not JSON: "),
            (b"[]", Reason.BAD_JSON, None, "found an array; "),
            (b'{"b":1,"a":1}', Reason.BAD_SHAPE, "$", ", found an object with a, b"),
            (b"{}", Reason.BAD_SHAPE, "$", ", found an object without members"),
            (b'{"instances":1}', Reason.BAD_SHAPE, "$.instances", ", found a number"),
            (b'{"instances":{"a":NaN}}', Reason.BAD_SHAPE, "$.instances", ", found an object"),
        ],
    )
    def test_a_body_that_cannot_be_used_says_why(
        self, body: bytes, reason: Reason, path: str | None, found: str
    ):
        """What was found, and what a request looks like."""
        with pytest.raises(PenstockError) as caught:
            read_request(body)
        assert caught.value.reason == reason
        assert (caught.value.extra or {}).get("path") == path
        assert found in str(caught.value)
        assert "[1, 2]" in str(caught.value)

    def test_a_name_with_half_a_character_is_joined_split_merged_and_told(self):
        items, parameters = read_request(b'{"instances":[1],"\\ud800":2}')
        assert json.loads(instances.join(items, parameters)) == {"instances": [1], "\ud800": 2}
        answers = instances.split(b'{"predictions":[1,2],"\\ud800":3}', [1, 1])
        assert json.loads(instances.merge(answers)) == {"predictions": [1, 2], "\ud800": 3}
        with pytest.raises(PenstockError) as caught:
            read_request(b'{"\\ud800":1}')
        assert "found an object with \ud800" in json.loads(caught.value.response().body)["detail"]

    @given(st.lists(st.lists(VALUES, min_size=1, max_size=4), min_size=1, max_size=5), VALUES)
    def test_what_is_joined_comes_back_split_to_whom_it_belongs(self, requests: list[list[Any]], more: Any):
        bodies = [json.dumps({"instances": items, "more": more}).encode() for items in requests]
        read = [read_request(body) for body in bodies]
        batch = instances.join([item for items, _ in read for item in items], read[0][1])
        sent = json.loads(batch)
        assert same(sent, {"instances": [item for items in requests for item in items], "more": more})
        answer = json.dumps({"model": more, "predictions": sent["instances"]}).encode()
        answers = instances.split(answer, [len(items) for items in requests])
        for items, body in zip(requests, answers, strict=True):
            assert same(json.loads(body), {"predictions": items, "model": more})

    @given(st.lists(st.lists(VALUES, max_size=3), min_size=1, max_size=4))
    def test_parts_of_one_answer_are_merged_in_order(self, parts: list[list[Any]]):
        bodies = [json.dumps({"predictions": part, "m": index}).encode() for index, part in enumerate(parts)]
        merged = json.loads(instances.merge(bodies))
        assert same(merged, {"predictions": [item for part in parts for item in part], "m": 0})

    @pytest.mark.parametrize(
        "body",
        [b"", b"x", b"{}", b"[]", b'{"predictions":1}', b'{"predictions":[1]}', b'{"predictions":[1,2,3]}'],
    )
    def test_an_answer_that_does_not_fit_is_told(self, body: bytes):
        with pytest.raises(PenstockError) as caught:
            instances.split(body, [1, 1])
        assert caught.value.reason == Reason.BAD_ANSWER


class TestSole:
    """The quick way to read an object of one array: it says nothing, or what the slow way says."""

    SOLE = Sole("instances")

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: (
                st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
            ),
            max_leaves=8,
        ),
        st.sampled_from([(",", ":"), (", ", ": "), (",", ": "), (" ,", " :")]),
        st.booleans(),
        st.lists(st.tuples(st.integers(0, 200), st.sampled_from(list(b'[]{},:" \\x'))), max_size=2),
    )
    def test_it_finds_what_the_members_hold_or_nothing(self, value, separators, ascii_only, edits):
        body = bytearray(
            json.dumps({"instances": value}, separators=separators, ensure_ascii=ascii_only).encode(
                errors="surrogatepass"
            )
        )
        for at, byte in edits:
            body.insert(at % (len(body) + 1), byte)
        result = self.SOLE.elements(bytes(body))
        if result is not None:
            assert list(members(bytes(body))) == ["instances"]
            assert elements(members(bytes(body))["instances"]) == result

    @pytest.mark.parametrize("body", [b'{"instances":[1,[2],{"a":3}]}', b'{"instances": [1, [2], {"a":3}]}'])
    def test_the_usual_spellings_are_read(self, body):
        assert self.SOLE.elements(body) == [b"1", b"[2]", b'{"a":3}']

    @pytest.mark.parametrize(
        "body",
        [
            b'{"instances":[1],"instances":[2]}',
            b'{"instances": [],"instances":[' + b", ".join([b"1"] * 17) + b"]}",
            b'{"instances":[1],"v":[2]}',
            b'{"v":[2],"instances":[1]}',
            b'{"instances":[1] }',
            b'{"instances":[' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"]}",
            b'{"instances":["\xff"]}',
            b'{"instances":[NaN]}',
            b'{"instances":[1]}]}',
            b'{"instances":[1,]}',
        ],
    )
    def test_anything_else_is_left_to_the_slow_way(self, body):
        assert self.SOLE.elements(body) is None

    def test_an_empty_array_has_no_elements(self):
        assert self.SOLE.elements(b'{"instances":[]}') == []


PIECES = st.sampled_from(
    ["{", "}", "[", "]", ",", ":", '"', '"a":', '{"":', '"[', '\\"', "\\", "\\\\", '"\\ud800",', "\\uDC00",
     "1", "0.5,", "-", "NaN", "NaN,", "-Infinity,", "Infinity", "null,", " ", "é", '"\\u00fc",', "[],", "{},"]
)  # fmt: skip
NESTED = st.tuples(st.sampled_from([("[", "]"), ("[1,", "]"), ('{"a":', "}")]), st.integers(1, 600)).map(
    lambda nested: nested[0][0] * nested[1] + "NaN" + nested[0][1] * nested[1] + ","
)
UNITS = st.lists(PIECES, min_size=1, max_size=8).map("".join) | NESTED | st.just('"%d":NaN,')
"""What a hostile text repeats; with `%d`, each time with another number."""
SHELLS = (
    '{"%s":[%s1]}',
    '{"%s":[[%s1]]}',
    '{"%s":["%s"]}',
    '{"%s":%s',
    '{"%s":[NaN],%s"z":1}',
    '{"%s":1,%s"z":1,"z":2}',
)
READERS: dict[str, tuple[str, Callable[[bytes], Any]]] = {
    "an answer": ("predictions", lambda body: instances.split(body, [1, 1])),
    **{
        protocol.name: (name, functools.partial(protocol_read, protocol, path))
        for protocol, path, name in (
            (INSTANCES_PROTOCOL, "/", "instances"),
            (V2_PROTOCOL, "/v2/models/m/infer", "inputs"),
            (OPENAI_PROTOCOL, "/v1/embeddings", "input"),
        )
    },
}


class TestTime:
    """One text stops the loop for no longer than its size explains, whatever it holds.

    Its time is compared with that of as many bytes of plain numbers, which msgspec skips. A few looks at each
    byte in C take up to ten times as long, and one Python statement for each byte fifty times; what took
    seconds for some megabytes took hundreds of times as long.
    """

    BYTES = 200_000
    TIMES = 120

    @classmethod
    def times(cls, read: Callable[[bytes], Any], body: bytes) -> float:
        """How many times as long as plain numbers a text takes, at best of some tries."""
        numbers = b'{"instances":[[' + b"0.123456789," * (cls.BYTES // 12) + b"1]]}"
        ratios = (cls.seconds(read, body) / cls.seconds(read_request, numbers) for _ in range(4))
        return next((ratio for ratio in ratios if ratio < cls.TIMES), math.inf)

    @staticmethod
    def seconds(read: Callable[[bytes], Any], body: bytes) -> float:
        start = time.process_time()
        with contextlib.suppress(PenstockError, NotJSON):
            read(body)
        return time.process_time() - start

    @pytest.mark.parametrize("name", READERS)
    @pytest.mark.parametrize("shell", SHELLS)
    @given(unit=UNITS)
    @settings(max_examples=15)
    def test_a_hostile_text_takes_not_much_longer_than_numbers(self, name: str, shell: str, unit: str):
        member, read = READERS[name]
        rounds = self.BYTES // len(unit.encode())
        many = "".join([unit % number for number in range(rounds)]) if "%d" in unit else unit * rounds
        assert self.times(read, (shell % (member, many)).encode()) < self.TIMES
