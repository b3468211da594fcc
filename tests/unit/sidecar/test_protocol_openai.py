"""The `openai` protocol: embeddings are batched by `input`, and each caller gets its own, counted from 0."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_sidecar.protocols.openai import OPENAI_PROTOCOL, REPEATED_BYTES, shares
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.http import Request, Response

TEXT = st.text(max_size=6)
TOKENS = st.lists(st.integers(0, 99), min_size=1, max_size=4)


def request(document: Any, path: str = "/v1/embeddings") -> Request:
    return Request("POST", path, ((b"content-type", b"application/json"),), json.dumps(document).encode())


def serve(body: bytes, *, order: bool = True) -> Response:
    """An answer as a server gives it: the embedding of an item is the item; usage counts 10 an item."""
    document = json.loads(body)
    data = [
        {"object": "embedding", "index": index, "embedding": item}
        for index, item in enumerate(document["input"])
    ]
    usage = {
        "prompt_tokens": 10 * len(data) + 1,
        "total_tokens": 10.0 * len(data),
        "cost": 0.0123,
        "details": None,
        "currency": "EUR",
        "prompt_tokens_details": {"cached_tokens": 7, "by_kind": [{"kind": "text", "tokens": 3}]},
    }
    answer = {
        "object": "list",
        "data": data if order else data[::-1],
        "model": document["model"],
        "usage": usage,
    }
    return Response(200, ((b"content-type", b"application/json"),), json.dumps(answer).encode())


def added(values: list[Any]) -> Any:
    """What the requests of a batch have together: numbers added, all else the same for each."""
    first = values[0]
    if isinstance(first, dict):
        return {name: added([value[name] for value in values]) for name in first}
    if isinstance(first, list):
        return [added(list(each)) for each in zip(*values, strict=True)]
    if isinstance(first, int | float):
        return round(sum(values), 9)
    assert values == [first] * len(values)
    return first


@given(
    st.one_of(
        st.lists(st.one_of(TEXT, st.lists(TEXT, min_size=1, max_size=3)), min_size=1, max_size=4),
        st.lists(st.one_of(TOKENS, st.lists(TOKENS, min_size=1, max_size=3)), min_size=1, max_size=4),
    ),
    st.booleans(),
)
def test_each_gets_its_own_embeddings(inputs: list[Any], order: bool):
    parsed = [
        OPENAI_PROTOCOL.parse(request({"model": "e", "input": each, "dimensions": 8})) for each in inputs
    ]
    assert len({each.parameters for each in parsed}) == 1
    joined = OPENAI_PROTOCOL.join([each.items for each in parsed], parsed[0].parameters)
    sent = json.loads(joined.body)
    assert (sent["model"], sent["dimensions"]) == ("e", 8)
    answers = OPENAI_PROTOCOL.split(
        serve(joined.body, order=order), [each.items for each in parsed], parsed[0].parameters
    )
    documents = [json.loads(each.body) for each in answers]
    for given_, document in zip(inputs, documents, strict=True):
        several = isinstance(given_, list) and isinstance(given_[0], (list, str))
        own = given_ if several else [given_]
        assert [each["embedding"] for each in document["data"]] == own
        assert [each["index"] for each in document["data"]] == list(range(len(own)))
        assert all(each["object"] == "embedding" for each in document["data"])
        assert (document["object"], document["model"]) == ("list", "e")
    usage = json.loads(serve(joined.body).body)["usage"]
    assert added([document["usage"] for document in documents]) == usage
    assert all(type(document["usage"]["prompt_tokens"]) is int for document in documents)
    assert all(document["usage"]["total_tokens"].is_integer() for document in documents)
    if len(answers) > 1:
        merged = json.loads(OPENAI_PROTOCOL.merge(answers, ()).body)
        assert [each["embedding"] for each in merged["data"]] == sent["input"]
        assert [each["index"] for each in merged["data"]] == list(range(len(sent["input"])))
        assert added([merged["usage"]]) == usage


@given(st.integers(0, 10**12), st.lists(st.integers(1, 1000), min_size=1, max_size=20))
def test_shares_sum_up_and_are_in_proportion(total: int, weights: list[int]):
    divided = shares(total, weights)
    assert sum(divided) == total
    for share, weight in zip(divided, weights, strict=True):
        assert abs(share - total * weight / sum(weights)) <= 1.001


@pytest.mark.parametrize(
    ("left", "right", "alike"),
    [
        ({"model": "e", "input": "a"}, {"input": ["b", "c"], "model": "e"}, True),
        ({"model": "e", "input": [1, 2]}, {"input": [[3], [4]], "model": "e"}, True),
        ({"model": "e", "input": "a"}, {"model": "f", "input": "a"}, False),
        ({"model": "e", "input": "a"}, {"model": "e", "input": "a", "user": "u"}, False),
        ({"model": "e", "input": "a"}, {"model": "e", "input": "a", "encoding_format": "base64"}, False),
        ({"model": "e", "input": "a"}, {"model": "e", "input": [1]}, False),
    ],
)
def test_what_shares_a_batch(left: Any, right: Any, alike: bool):
    first, other = (OPENAI_PROTOCOL.parse(request(each)) for each in (left, right))
    assert (first.parameters == other.parameters) is alike


@pytest.mark.parametrize(
    ("input_", "items"),
    [("a", 1), (["a"], 1), (["a", "b"], 2), ([1, 2, 3], 1), ([[1, 2], [3]], 2), ([[]], 1), ([], 0)],
)
def test_what_an_item_is(input_: Any, items: int):
    parsed = OPENAI_PROTOCOL.parse(request({"input": input_}))
    assert len(parsed.items) == items
    assert parsed.lone is (items == 0)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"input": 1}, r"\$\.input: expected a string or an array, found 1"),
        ({"input": None}, r"found null"),
        ({"input": ["a", 1]}, r"\$\.input\[1\]: expected a string, found 1"),
        ({"input": ["a", [1]]}, r"\$\.input\[1\]: expected a string, found \[1\]"),
        ({"input": [[1], "a"]}, r"\$\.input\[1\]: expected an array of token ids"),
        ({"input": [[1], [[2]]]}, r"\$\.input\[1\]: expected an array of token ids"),
        ({"input": [1.5]}, r"\$\.input\[0\]: expected a string, found 1.5"),
        ({"input": ["a"] * 100_001}, "at most 100000 items"),
    ],
)
def test_what_cannot_be_used_is_told(document: Any, words: str):
    with pytest.raises(PenstockError, match=words) as caught:
        OPENAI_PROTOCOL.parse(request(document))
    assert caught.value.reason == Reason.BAD_SHAPE


@pytest.mark.parametrize(
    "body",
    [
        b"x",
        b"{}",
        b'{"data":1}',
        b'{"data":[1,2]}',
        b'{"data":[{}]}',
        b'{"data":[{"index":0},{"index":0}]}',
        b'{"data":[{"index":1},{"index":2}]}',
        b'{"data":[{"index":0},{"index":"x"}]}',
        b'{"data":[{"index":0},{"index":-1}]}',
        b'{"data":[{},{}],"usage":7}',
    ],
)
def test_an_answer_that_does_not_fit_is_told(body: bytes):
    with pytest.raises(PenstockError) as caught:
        OPENAI_PROTOCOL.split(Response(200, (), body), [[b'"a"'], [b'"b"']], ())
    assert caught.value.reason == Reason.BAD_ANSWER


def test_numbers_keep_their_spelling():
    body = b'{"data":[{"embedding":[1.50,NaN]},{"embedding":"AAAA"}],"usage":null,"x":9007199254740993}'
    first, other = OPENAI_PROTOCOL.split(Response(200, (), body), [[b'"a"'], [b'"b"']], ())
    assert first.body == b'{"data":[{"embedding":[1.50,NaN],"index":0}],"usage":null,"x":9007199254740993}'
    assert b'"embedding":"AAAA","index":0' in other.body


@given(st.lists(st.one_of(TEXT, st.lists(TEXT, min_size=1, max_size=3)), min_size=1, max_size=4))
def test_a_text_is_scored_with_each_of_the_other_side(rights: list[Any]):
    parsed = []
    for right in rights:
        lists = isinstance(right, list) and len(right) % 2 == 1
        left = [f"q{index}" for index in range(len(right))] if lists else "q"
        parsed.append(
            OPENAI_PROTOCOL.parse(request({"model": "m", "text_1": left, "text_2": right}, "/score"))
        )
    body = json.loads(OPENAI_PROTOCOL.join([each.items for each in parsed], parsed[0].parameters).body)
    assert body.pop("model") == "m"
    scored = [list(pair) for pair in zip(body.pop("text_1"), body.pop("text_2"), strict=True)]
    assert not body
    data = [{"index": index, "object": "score", "score": pair} for index, pair in enumerate(scored)]
    answer = Response(
        200, (), json.dumps({"object": "list", "data": data, "usage": {"total_tokens": 7}}).encode()
    )
    answers = OPENAI_PROTOCOL.split(answer, [each.items for each in parsed], parsed[0].parameters)
    for right, own in zip(rights, answers, strict=True):
        texts = [right] if isinstance(right, str) else right
        lists = isinstance(right, list) and len(right) % 2 == 1
        pairs = [[f"q{index}" if lists else "q", text] for index, text in enumerate(texts)]
        assert [each["score"] for each in json.loads(own.body)["data"]] == pairs


def test_classes_are_batched_by_input_as_lists_in_place_or_objects_with_an_index():
    """Infinity and vLLM."""
    parts = [[b'"a"'], [b'"b"', b'"c"']]
    lists = Response(200, (), b'{"data":[[{"label":"x"}],[{"label":"y"}],[]]}')
    assert [each.body for each in OPENAI_PROTOCOL.split(lists, parts, ())] == [
        b'{"data":[[{"label":"x"}]]}',
        b'{"data":[[{"label":"y"}],[]]}',
    ]
    labels = Response(
        200, (), b'{"data":[{"index":2,"label":"c"},{"index":0,"label":"a"},{"index":1,"label":"b"}]}'
    )
    assert [each.body for each in OPENAI_PROTOCOL.split(labels, parts, ())] == [
        b'{"data":[{"index":0,"label":"a"}]}',
        b'{"data":[{"index":0,"label":"b"},{"index":1,"label":"c"}]}',
    ]


@pytest.mark.parametrize(
    ("path", "document"),
    [
        ("/v1/score", {"text_1": {"content": []}, "text_2": "b"}),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}),
        ("/v1/score", {"query": "a", "items": ["b"], "label_token_ids": [1]}),  # SGLang
        ("/classify", {"inputs": "a"}),
    ],
)
def test_what_has_another_form_passes(path: str, document: Any):
    assert OPENAI_PROTOCOL.parse(request(document, path)) is None


def test_a_text_is_not_repeated_beyond_a_bound():
    """A small body must not take many times its memory."""
    rights = ["d"] * 10_000
    length = REPEATED_BYTES // len(rights)
    fits = request({"text_1": "q" * (length - 2), "text_2": rights}, "/score")
    assert len(OPENAI_PROTOCOL.parse(fits).items) == len(rights)
    beyond = request({"text_1": "q" * length, "text_2": rights}, "/score")
    assert OPENAI_PROTOCOL.parse(beyond) is None


def test_what_is_batched_by_its_path():
    passes = OPENAI_PROTOCOL.passes
    assert not passes(request({}, "/openai/v1/embeddings?x=1"))
    assert not any(passes(request({}, path)) for path in ("/v1/score", "/classify"))
    assert passes(request({}, "/v1/rerank")), "a server takes one query: others would go one after the other"
    assert passes(request({}, "/v1/chat/completions"))
    assert passes(request({}, "/v1/completions"))
    assert passes(Request("GET", "/v1/embeddings", (), b""))
