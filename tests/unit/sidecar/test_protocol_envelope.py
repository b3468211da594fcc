"""The `envelope` protocol: each request reaches the model as it is, and has its own answer back."""

from __future__ import annotations

import base64
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_sidecar.protocols import envelope_stream
from penstock_sidecar.protocols.envelope import ENVELOPE_PROTOCOL
from penstock_sidecar.protocols.envelope_stream import Event, Splitter
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.http import Request, Response

JSON = (b"content-type", b"application/json")


def request(body: bytes, *headers: tuple[bytes, bytes]) -> Request:
    return Request("POST", "/a%20b?c=d", headers, body)


def split(document: Any, count: int) -> list[Response]:
    items = [ENVELOPE_PROTOCOL.parse(request(b"")).items for _ in range(count)]
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return ENVELOPE_PROTOCOL.split(Response(200, (JSON,), body), items, ())


BODIES = st.one_of(
    st.tuples(
        st.just((JSON,)), st.sampled_from([b"1", b" [1, 2.50]\n", b'{"a":NaN}', b'"\xc3\xbc"', b"null"])
    ),
    st.tuples(st.sampled_from([(), ((b"content-type", b"image/png"),)]), st.binary(max_size=9)),
)


@given(st.lists(BODIES, min_size=1, max_size=4))
def test_each_request_is_an_item(requests: list[tuple[Any, bytes]]):
    parsed = [ENVELOPE_PROTOCOL.parse(request(body, *headers)) for headers, body in requests]
    assert len({each.parameters for each in parsed}) == 1
    message = ENVELOPE_PROTOCOL.join([each.items for each in parsed], ())
    items = json.loads(message.body)["items"]
    assert len({item["id"] for item in items}) == len(items) == len(requests)
    for (headers, body), item, item_parsed in zip(requests, items, parsed, strict=True):
        assert item["id"] == item_parsed.items[0].id
        assert (item["method"], item["path"]) == ("POST", "/a%20b?c=d")
        assert item["headers"] == {name.decode(): value.decode() for name, value in headers}
        if JSON in headers:
            assert body.strip() in message.body
            assert "bodyB64" not in item
        else:
            assert base64.b64decode(item.get("bodyB64", "")) == body
            assert ("bodyB64" in item) == bool(body)
            assert "body" not in item


def test_fields_of_a_request():
    sent = request(
        b"",
        (b"accept", b"a"),
        (b"accept", b"b"),
        (b"cookie", b"c=1"),
        (b"cookie", b"d=2"),
        (b"x-penstock-timeout-ms", b"5"),
        (b"x-penstock-method", b"m"),
        (b"x-name", b"\xfc"),
    )
    item = json.loads(ENVELOPE_PROTOCOL.parse(sent).items[0].text)
    assert item["headers"] == {
        "accept": "a, b",
        "cookie": "c=1; d=2",
        "x-penstock-method": "m",
        "x-name": "ü",
    }


@pytest.mark.parametrize(
    "body", [b"{", b"1 2", b'1,"c":2', b'1,"body":2', b'"\xff"', b"[" * 600 + b"]" * 600]
)
def test_a_body_that_is_no_json_is_told(body: bytes):
    with pytest.raises(PenstockError) as caught:
        ENVELOPE_PROTOCOL.parse(request(body, JSON))
    assert caught.value.reason == Reason.BAD_JSON


def test_a_compressed_body_is_bytes():
    parsed = ENVELOPE_PROTOCOL.parse(request(b"\x1f\x8b", JSON, (b"content-encoding", b"gzip")))
    assert base64.b64decode(json.loads(parsed.items[0].text)["bodyB64"]) == b"\x1f\x8b"


def test_each_answer_is_its_own():
    first, two, three, four = split(
        {
            "items": [
                {"body": [1, 2]},
                {"status": 404, "headers": {"X-A": "1", "connection": "close", "set-cookie": ["a=1", "b=2"]}},
                {"bodyB64": base64.b64encode(b"\0\xff").decode()},
                {"status": 201, "headers": {"content-type": "text/x", "x-penstock-reason": "no"}, "body": 1},
            ]
        },
        4,
    )
    assert (first.status, first.headers, first.body) == (200, (JSON,), b"[1, 2]")
    expected = ((b"x-a", b"1"), (b"set-cookie", b"a=1"), (b"set-cookie", b"b=2"))
    assert (two.status, two.headers, two.body) == (404, expected, b"")
    assert (three.headers, three.body) == (((b"content-type", b"application/octet-stream"),), b"\0\xff")
    assert (four.status, four.headers, four.body) == (201, ((b"content-type", b"text/x"),), b"1")


@pytest.mark.parametrize(
    "item",
    [
        1,
        {"status": 99},
        {"status": "200"},
        {"status": 600},
        {"headers": 1},
        {"headers": {"a b": "c"}},
        {"headers": {"a": "c\r\nd: e"}},
        {"headers": {"": "c"}},
        {"headers": {"a": 1}},
        {"headers": {"a": "\u20ac"}},
        {"bodyB64": "%"},
        {"bodyB64": 1},
        {"body": 1, "bodyB64": ""},
    ],
)
def test_a_bad_item_concerns_its_own_client(item: Any):
    good, bad = split({"items": [{"body": 1}, item]}, 2)
    assert isinstance(good, Response)
    assert good.status == 200
    assert isinstance(bad, PenstockError)
    assert bad.reason is Reason.BAD_ANSWER
    assert "$.items[1]" in str(bad)


@pytest.mark.parametrize("document", [b"x", {}, {"items": 1}, {"items": [{}]}, {"items": [{}] * 3}])
def test_an_answer_that_does_not_fit_is_told(document: Any):
    with pytest.raises(PenstockError) as caught:
        split(document, 2)
    assert caught.value.reason == Reason.BAD_ANSWER


def lines(*documents: Any) -> bytes:
    return b"".join(json.dumps(document).encode() + b"\n" for document in documents)


STREAM = lines(
    {"i": 0, "data": "a"},
    {"i": 2, "status": 201, "headers": {"x-a": "1"}},
    {"i": 1, "error": {"detail": "no"}},
    [{"data": 1}, None, {"data": [2]}],
    {"i": 0, "end": True},
    {"i": 0, "data": "late"},
    {"i": 2, "end": True},
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_lines_are_read_however_they_are_cut(cuts: list[int]):
    splitter = Splitter(3)
    bounds = [0, *sorted(cuts), len(STREAM)]
    events = [event for low, high in itertools.pairwise(bounds) for event in splitter.feed(STREAM[low:high])]
    assert events == [
        Event(0, data=b'"a"'),
        Event(2, status=201, headers=((b"x-a", b"1"),)),
        Event(1, error=b'{"detail": "no"}'),
        Event(0, data=b"1"),
        Event(2, data=b"[2]"),
        Event(0, end=True),
        Event(2, end=True),
    ]
    assert splitter.end() == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"x\n", "not JSON"),
        (b"1\n", "expected a JSON object"),
        (b'{"i":2,"data":1}\n', "i from 0 to 1, found 2"),
        (b'{"i":-1,"data":1}\n', "found -1"),
        (b'{"data":1}\n', "found nothing"),
        (b"[{}]\n", "expected 2 parts, found 1"),
        (b'[{"data":1},{"data":2},{"data":3}]\n', "at most 2 elements"),
        (b'{"i":"0","data":1}\n', 'found "0"'),
        (b'[1,{"data":2}]\n', "expected a JSON object"),
    ],
)
def test_a_line_that_cannot_be_read_ends_all(line: bytes, words: str):
    splitter = Splitter(2)
    events = splitter.feed(lines({"i": 1, "data": 1}) + line + lines({"i": 0, "data": 1}))
    assert events[0] == Event(1, data=b"1")
    assert [event.item for event in events[1:]] == [0, 1]
    assert all(words in event.bad for event in events[1:])
    assert not splitter.open


@pytest.mark.parametrize(
    "line", [{"i": 0}, {"i": 0, "end": False}, {"i": 0, "status": 7}, {"i": 0, "data": 1, "headers": 1}]
)
def test_a_line_that_says_nothing_concerns_its_own_item(line: Any):
    splitter = Splitter(2)
    (event, other) = splitter.feed(lines(line, {"i": 1, "data": 1}))
    assert event.item == 0
    assert event.bad
    assert other == Event(1, data=b"1")


def test_the_end_cuts_what_is_not_complete():
    splitter = Splitter(3)
    splitter.feed(lines({"i": 0, "end": True}, {"i": 1, "data": 1}))
    splitter.drop(2)
    assert splitter.end() == [Event(1, bad="the stream ended before the end of this answer")]
    assert Splitter(1).end("lost") == [Event(0, bad="lost")]


def test_a_last_line_needs_no_newline():
    splitter = Splitter(1)
    assert splitter.feed(b'{"i":0,"data":1,"end":true}') == []
    assert splitter.end() == [Event(0, data=b"1", end=True)]


def test_a_line_without_an_end_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(envelope_stream, "MAX_LINE", 100)
    splitter = Splitter(1)
    assert splitter.feed(b" " * 60) == []
    (event,) = splitter.feed(b" " * 60)
    assert "longer than 100 bytes" in event.bad


def test_only_a_post_is_enveloped():
    assert ENVELOPE_PROTOCOL.passes(Request("GET", "/", (), b""))
    assert not ENVELOPE_PROTOCOL.passes(request(b""))
    assert not ENVELOPE_PROTOCOL.isolates
    assert not ENVELOPE_PROTOCOL.key_fields
