"""Item answers of `instances`: each request gets the answers to its own items, however they are spelt."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_sidecar.protocols.base import OwnAnswers
from penstock_sidecar.protocols.instances import INSTANCES_PROTOCOL
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.http import Response

MEDIA = b"application/vnd.penstock.items+json"
FORM = ((b"x-model", b"m7"), (b"content-type", MEDIA))
BAD = {"index": 1, "status": 422, "body": {"detail": "item two's secret"}}

Split = list[Response | PenstockError | OwnAnswers]


def split(body: bytes, counts: list[int], headers: tuple[tuple[bytes, bytes], ...] = FORM) -> Split:
    parts = [[b"0"] * count for count in counts]
    return list(INSTANCES_PROTOCOL.split(Response(200, headers, body), parts, ()))


def own(answer: Any, place: int = 0) -> Response:
    """The answer to an item of a request."""
    assert isinstance(answer, OwnAnswers)
    response = answer.answers[place].response
    assert response is not None
    return response


JSON_TEXTS = st.sampled_from(
    [b"1", b"1.50", b"-0", b"9007199254740993", b'"\\u00e4"', b"[1, 2]", b'{"a" : [ ]}', b"null", b"NaN"]
)
FIELDS = st.dictionaries(
    st.sampled_from(["x-a", "content-type", "retry-after"]), st.sampled_from(["1", "a/b"])
)
BODIES = st.one_of(
    st.tuples(st.just("body"), JSON_TEXTS),
    st.tuples(st.just("bodyB64"), st.binary(max_size=4)),
    st.tuples(st.just(""), st.just(b"")),
)
OWN = st.tuples(st.integers(200, 599), FIELDS, BODIES)
ITEMS = st.lists(st.lists(st.one_of(JSON_TEXTS, OWN), min_size=1, max_size=4), min_size=1, max_size=6)
SPELLINGS = st.sampled_from([(b",", b":"), (b", ", b": "), (b" ,\n", b" : ")])


@given(ITEMS, SPELLINGS, st.randoms(use_true_random=False), st.sampled_from([b"", b'"v":"3"']))
def test_each_request_has_the_bytes_that_were_said_of_its_items(
    requests: list[list[Any]], spelling: tuple[bytes, bytes], random: Any, member: bytes
):
    """Whatever is beside it, in whatever order and spelling the model writes its answers."""
    comma, colon = spelling
    items = [item for request in requests for item in request]
    entries = []
    for index, item in enumerate(items):
        if isinstance(item, bytes):
            continue
        status, fields, (name, body) = item
        members = [b'"index"%b%d' % (colon, index), b'"status"%b%d' % (colon, status)]
        members.append(b'"headers"' + colon + json.dumps(fields).encode())
        if name:
            text = body if name == "body" else b'"%b"' % base64.b64encode(body)
            members.append(b'"%b"%b%b' % (name.encode(), colon, text))
        random.shuffle(members)
        entries.append(b"{" + comma.join(members) + b"}")
    random.shuffle(entries)
    predictions = comma.join([item if isinstance(item, bytes) else b"null" for item in items])
    parts = [b'"predictions"' + colon + b"[" + predictions + b"]"]
    parts.append(b'"answers"' + colon + b"[" + comma.join(entries) + b"]")
    parts += [member] if member else []
    random.shuffle(parts)

    answers = split(b"{" + comma.join(parts) + b"}", [len(request) for request in requests])

    assert len(answers) == len(requests)
    for request, answer in zip(requests, answers, strict=True):
        places = [place for place, item in enumerate(request) if not isinstance(item, bytes)]
        if not places:
            assert isinstance(answer, Response)
            tail = b"," + member if member else b""
            assert answer.body == b'{"predictions":[' + b",".join(request) + b"]" + tail + b"}"
            assert (answer.status, dict(answer.headers)) == (
                200,
                {b"x-model": b"m7", b"content-type": b"application/json"},
            )
            continue
        assert isinstance(answer, OwnAnswers)
        assert list(answer.answers) == places
        for place in places:
            status, fields, (name, body) = request[place]
            response = own(answer, place)
            assert (response.status, response.body) == (status, body)
            kind = {"body": "application/json", "bodyB64": "application/octet-stream"}.get(name)
            expected = fields if not kind or not body else {"content-type": kind, **fields}
            assert {key.decode(): value.decode() for key, value in response.headers} == expected


WHOLE = json.dumps({"predictions": [1, None, 3], "answers": [BAD]}).encode()


@given(st.data())
def test_whatever_the_model_sends_is_an_answer_for_each_or_a_bad_answer(data: st.DataObject):
    """Bytes are changed, left out and put in: no other error, no answer for another number of requests."""
    body = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(body)))
        kind = data.draw(st.sampled_from(["cut", "insert", "replace"]))
        piece = data.draw(
            st.sampled_from([b"", b"0", b"2", b"null", b'"', b"{", b"]", b",", b"\xff", b"1e0"])
        )
        end = {"cut": place + data.draw(st.integers(0, 9)), "insert": place, "replace": place + 1}[kind]
        body[place:end] = b"" if kind == "cut" else piece
    reason, count = Reason.BAD_ANSWER, 3
    try:
        count = len(split(bytes(body), [1, 1, 1]))
    except PenstockError as error:
        reason = error.reason
    assert (reason, count) == (Reason.BAD_ANSWER, 3)


@pytest.mark.parametrize(
    ("document", "detail"),
    [
        ({"predictions": [1, None, 3]}, 'expected a member "answers", found none'),
        ({"predictions": [1, None], "answers": [BAD]}, "expected 3 predictions, found 2"),
        ({"answers": [BAD]}, 'expected a member "predictions", found answers'),
        ({"predictions": [1, None, 3], "answers": {}}, "$.answers: expected an array of at most 3 answers"),
        (
            {"predictions": [1, None, 3], "answers": [BAD] * 4},
            "$.answers: expected an array of at most 3 answers",
        ),
        ({"predictions": [1, None, 3], "answers": [BAD] * 2}, "expected one answer to item 1, found two"),
        ({"predictions": [1, 2, 3], "answers": [BAD]}, "$.predictions[1]: expected null beside an answer"),
        (
            {"predictions": [1, None, 3], "answers": [7]},
            "$.answers[0]: expected an object with each member once",
        ),
        *(
            (
                {"predictions": [None] * 3, "answers": [{**BAD, "index": index}]},
                "$.answers[0].index: expected a number from 0 to 2",
            )
            for index in (3, -1, "1", None, 1.0, True, 10**30)
        ),
        ({"predictions": [None] * 3, "answers": [{"status": 422}]}, "$.answers[0].index: expected a number"),
    ],
)
def test_an_answer_that_nobody_can_be_given_is_everybodys_error_and_repeats_none_of_it(
    document: dict[str, Any], detail: str
):
    with pytest.raises(PenstockError) as caught:
        split(json.dumps(document).encode(), [1, 1, 1])
    assert caught.value.reason is Reason.BAD_ANSWER
    assert detail in caught.value.detail
    assert "secret" not in caught.value.detail


def test_a_member_twice_is_not_told_to_the_others():
    body = b'{"predictions":[null,2],"answers":[{"index":0,"secret":1,"secret":2}]}'
    with pytest.raises(PenstockError, match="each member once") as caught:
        split(body, [1, 1])
    assert "secret" not in caught.value.detail


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"status": 199}, "expected a status from 200 to 599, found 199"),
        ({"status": "422"}, 'expected a status from 200 to 599, found "422"'),
        ({"headers": {"a b": "1"}}, "expected the name of a field, found 'a b'"),
        ({"headers": {"x": "1\r\ny: 2"}}, "expected the value of field x"),
        ({"headers": {"": "1"}}, "expected the name of a field, found ''"),
        ({"headers": {"x": "\u20ac"}}, "expected the value of field x"),
        ({"headers": {"x": 1}}, "expected a string, found 1"),
        ({"headers": []}, "expected a JSON object, found an array"),
        ({"bodyB64": "YQ=="}, "expected body or bodyB64, found both"),
    ],
)
def test_an_answer_that_cannot_be_sent_is_its_own_items_error(more: dict[str, Any], fault: str):
    answers = [{**BAD, **more}, {"index": 2, "status": 404}]
    body = json.dumps({"predictions": [1, None, None], "answers": answers}).encode()
    first, second, third = split(body, [1, 1, 1])
    assert isinstance(first, Response)
    assert first.body == b'{"predictions":[1]}'
    assert isinstance(second, OwnAnswers)
    assert second.answers[0].response is None
    assert fault in second.answers[0].fault
    assert own(third).status == 404


def test_an_answer_without_a_status_is_no_success():
    (answer,) = split(b'{"predictions":[null],"answers":[{"index":0,"body":1}]}', [1])
    assert isinstance(answer, OwnAnswers)
    assert answer.answers[0].fault == "expected a status from 200 to 599, found none"


@pytest.mark.parametrize(
    ("media", "taken"),
    [
        (MEDIA, True),
        (b"Application/Vnd.Penstock.Items+JSON; charset=utf-8", True),
        (b"application/json", False),
        (b"application/vnd.penstock.items+json2", False),
    ],
)
def test_the_media_type_says_which_form_it_is(media: bytes, taken: bool):
    """A plain answer may have a member of that name: it comes back to each request."""
    answers = split(WHOLE, [1, 2], ((b"content-type", media),))
    assert [isinstance(answer, OwnAnswers) for answer in answers] == [False, taken]
    if not taken:
        assert isinstance(answers[1], Response)
        assert json.loads(answers[1].body) == {"predictions": [None, 3], "answers": [BAD]}


def test_fields_about_the_connection_are_dropped():
    fields = {"Transfer-Encoding": "chunked", "Content-Length": "7", "X-Mine": ["1", "2"]}
    entry = {**BAD, "headers": fields}
    (answer,) = split(json.dumps({"predictions": [1, None], "answers": [entry]}).encode(), [2])
    mine = ((b"x-mine", b"1"), (b"x-mine", b"2"))
    assert own(answer, 1).headers == (*mine, (b"content-type", b"application/json"))


@pytest.mark.parametrize(
    ("text", "fault"), [("%", 'expected base64, found "%"'), (1, "expected base64, found 1")]
)
def test_a_body_that_is_no_base64_is_its_own_items_error(text: Any, fault: str):
    entry = {"index": 0, "status": 422, "bodyB64": text}
    (answer,) = split(json.dumps({"predictions": [None], "answers": [entry]}).encode(), [1])
    assert isinstance(answer, OwnAnswers)
    assert fault in answer.answers[0].fault
