"""The SDK's answers to a batch whose sidecar splits them by item: what fails, fails alone."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import penstock
from penstock.model import Model
from penstock.server import ModelServer
from penstock.signature import read
from penstock.target import Served
from penstock_wire.http import Request, Response

ASKS = ((b"x-penstock-item-answers", b"1"),)
FORM = b"application/vnd.penstock.items+json"
NO_JSON = "the answer to the item: expected a value that has a JSON form at $.inner"
Ask = Callable[..., Any]


@dataclasses.dataclass
class Boxed:
    """An answer with something in it."""

    inner: Any


class NeverAwaited:
    """As a call of a handle is."""

    def __await__(self) -> Iterator[Any]:
        raise AssertionError


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    """Threads for blocking methods."""
    with ThreadPoolExecutor(4) as threads:
        yield threads


@pytest.fixture
def send(executor: ThreadPoolExecutor) -> Ask:
    """Sends items to a server of a function."""

    async def send(function: Callable[..., Any], items: Sequence[Any], headers: Any = ASKS) -> Response:
        server = ModelServer()
        server.serve(Model(Served(shape=read(function, "predict"), method=function), executor))
        body = json.dumps({"instances": items}).encode()
        return await server.handle(Request(method="POST", target="/p", headers=headers, body=body))

    return send


@pytest.fixture
def ask(send: Ask) -> Ask:
    """Sends items; returns the predictions and the items' own answers by index: status, fields, body."""

    async def ask(function: Callable[..., Any], items: Sequence[Any]) -> tuple[list[Any], dict[int, Any]]:
        answer = await send(function, items)
        assert (answer.status, dict(answer.headers)[b"content-type"]) == (200, FORM)
        document = json.loads(answer.body)
        assert sorted(document) == ["answers", "predictions"]
        own = {
            entry["index"]: (
                entry["status"],
                entry["headers"],
                base64.b64decode(entry["bodyB64"]) if "bodyB64" in entry else entry.get("body"),
            )
            for entry in document["answers"]
        }
        assert len(own) == len(document["answers"])
        return document["predictions"], own

    return ask


async def test_the_answer_is_the_plain_one_where_every_item_has_a_prediction(send: Ask) -> None:
    answer = await send(penstock.batched(lambda items: [None, float("nan"), 3]), [1, 2, 3])
    plain = await send(penstock.batched(lambda items: [None, float("nan"), 3]), [1, 2, 3], ())
    assert (answer.status, answer.headers, answer.body) == (plain.status, plain.headers, plain.body)
    assert answer.body == b'{"predictions":[null,null,3]}'


async def test_who_does_not_ask_gets_one_answer(send: Ask) -> None:
    for headers in ((), ((b"x-penstock-item-answers", b"2"),)):
        answer = await send(penstock.batched(lambda items: [1, ValueError("x")]), [1, 2], headers)
        items = json.loads(answer.body)["items"]
        assert (answer.status, [item["index"] for item in items]) == (500, [1])


async def test_an_item_that_does_not_fit_the_signature_fails_alone_and_the_model_runs_the_others(
    ask: Ask,
) -> None:
    calls: list[Any] = []

    @penstock.batched(columns=True)
    def add(a: list[int], b: list[int] = 1) -> list[int]:  # type: ignore[assignment]
        calls.append((a, b))
        return [left + right for left, right in zip(a, b, strict=True)]

    predictions, own = await ask(
        add, [{"a": 1}, {"b": 2}, {"a": 3, "b": 4}, {"*": [1, 2, 3]}, {"a": 6, "z": 0}]
    )
    assert predictions == [2, None, 7, None, None]
    assert calls == [([1, 3], [1, 4])]
    assert [(index, own[index][0], own[index][2]["reason"]) for index in own] == [
        (index, 422, "missing_arguments") for index in (1, 3, 4)
    ]
    assert own[1][2]["detail"] == "missing a"
    assert own[1][1]["content-type"] == "application/problem+json"
    assert own[4][2]["detail"] == "unknown z"
    # Nothing of the one is in what is said to the other.
    assert "z" not in json.dumps(own[1][2]["items"])
    assert own[4][2]["items"] == [{"index": 0, "unknown": ["z"]}]


async def test_where_no_item_fits_the_model_is_not_called(ask: Ask) -> None:
    def never(a: Any, b: Any) -> Any:
        raise AssertionError

    predictions, own = await ask(never, [{}, {"a": 1}])
    assert predictions == [None, None]
    assert [own[0][2]["detail"], own[1][2]["detail"]] == ["missing a, b", "missing b"]


async def test_an_exception_in_a_slot_is_the_answer_to_its_item_with_its_words(ask: Ask) -> None:
    """As the request would get it that is alone."""

    def each(item: int) -> int:
        if item == 2:
            raise ValueError("too dark")
        return item

    for function in (each, penstock.batched(lambda items: [1, ValueError("too dark"), 3])):
        predictions, own = await ask(function, [1, 2, 3])
        assert predictions == [1, None, 3]
        status, _, document = own.pop(1)
        assert (status, document["reason"]) == (500, "model_failed")
        assert document["detail"] == "the model failed with ValueError: too dark"
        assert own == {}


@pytest.mark.parametrize(
    ("response", "status", "headers", "body"),
    [
        (penstock.Response(422, body={"a": [1]}), 422, {"content-type": "application/json"}, {"a": [1]}),
        (penstock.Response(404, body="ä"), 404, {"content-type": "text/plain; charset=utf-8"}, "ä".encode()),
        (
            penstock.Response(200, {"Content-Type": "image/png"}, b"\x89"),
            200,
            {"content-type": "image/png"},
            b"\x89",
        ),
        # Bytes are the author's, whatever their type says: they need not be JSON.
        (
            penstock.Response(400, {"content-type": "application/json"}, b"{"),
            400,
            {"content-type": "application/json"},
            b"{",
        ),
        (penstock.Response(503, {"Retry-After": "7"}), 503, {"retry-after": "7"}, None),
        (penstock.Response(400, {"x-a": "1", "X-A": "\xe4"}), 400, {"x-a": ["1", "ä"]}, None),
    ],
)
async def test_a_response_in_a_slot_is_the_answer_to_its_item(
    ask: Ask, response: penstock.Response, status: int, headers: Any, body: Any
) -> None:
    predictions, own = await ask(penstock.batched(lambda items: [response, 2]), [1, 2])
    assert predictions == [None, 2]
    assert own == {0: (status, headers, body)}


@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        (object(), "the answer to the item: a value of type object has no JSON"),
        ({"a": [1, object()]}, "the answer to the item: a value of type object has no JSON at $.a[1]"),
        (
            Boxed([penstock.END]),
            f"{NO_JSON}[0], found penstock.END, which ends a stream only as a whole piece",
        ),
        (Boxed(NeverAwaited()), f"{NO_JSON}, found a NeverAwaited that was not awaited: await it first"),
        ((each for each in "ab"), f"{NO_JSON.removesuffix(' at $.inner')}, found a generator: make a list"),
        (penstock.Response(200, body=object()), "a value of type object has no JSON"),
        (penstock.Response(200, {"a b": "1"}), "expected a header name"),
    ],
)
async def test_an_answer_that_cannot_be_sent_is_its_items_502(
    ask: Ask, answer: Any, detail: str, capfd: pytest.CaptureFixture[str]
) -> None:
    predictions, own = await ask(penstock.batched(lambda items: [1, answer, ValueError("x")]), [1, 2, 3])
    assert predictions == [1, None, None]
    assert [own[index][0] for index in (1, 2)] == [502, 500]
    assert own[1][2]["reason"] == "bad_answer"
    assert own[1][2]["detail"].startswith(detail)
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line["message"] for line in lines] == [
        "the model returned an exception",
        "the answer to an item cannot be used",
    ]
    assert lines[1]["error"].startswith(detail)


async def test_what_concerns_the_whole_call_stays_one_answer(send: Ask) -> None:
    """What a batched method raises, and a wrong number of answers."""

    def fail(items: Any) -> Any:
        raise ValueError("secret of item 1")

    raised = await send(penstock.batched(fail), [1, 2])
    assert (raised.status, json.loads(raised.body)["detail"]) == (500, "the model raised ValueError")
    short = await send(penstock.batched(lambda items: [1]), [1, 2])
    assert (short.status, json.loads(short.body)["reason"]) == (502, "bad_answer")
