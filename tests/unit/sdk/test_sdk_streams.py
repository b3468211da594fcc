"""A generator method under the model server: as one answer, as a stream, and as the streams of a batch."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import penstock
from penstock.model import Model
from penstock.server import ModelServer
from penstock.signature import read
from penstock.target import Served
from penstock_wire.http import Request, Response
from penstock_wire.item_streams import stream_type

END = penstock.END
EVENTS = ((b"accept", b"text/event-stream"),)
LINES = ((b"accept", b"application/x-ndjson"),)
TOGETHER = (*EVENTS, (b"x-penstock-item-answers", b"1"), (b"x-penstock-item-streams", b"1"))
JSON = {"content-type": "application/json"}
WRONG = "predict: expected 2 entries in each step, found 1"
Ask = Callable[..., Any]


@pytest.fixture
def send() -> Iterator[Ask]:
    """Sends items to a server of a function."""
    with ThreadPoolExecutor(4, thread_name_prefix="model") as threads:

        async def send(function: Callable[..., Any], *items: Any, headers: Any = ()) -> Response:
            server = ModelServer()
            server.serve(Model(Served(shape=read(function, "predict"), method=function), threads))
            body = json.dumps({"instances": items}).encode()
            return await server.handle(Request(method="POST", target="/p", headers=headers, body=body))

        yield send


@pytest.fixture
def ask(send: Ask) -> Ask:
    """Sends items; returns status, content type and the whole body."""

    async def ask(*arguments: Any, headers: Any = ()) -> tuple[int, str, bytes]:
        answer = await send(*arguments, headers=headers)
        body = answer.body
        if answer.stream is not None:
            body = b"".join([piece async for piece in answer.stream])
            await answer.stream.aclose()
        return answer.status, dict(answer.headers)[b"content-type"].decode(), body

    return ask


@penstock.batched
def letters(items: list[str]) -> Iterator[list[Any]]:
    """The letters of each text, one a step; `!` is an exception, `#` an answer of its own."""
    special = {"!": ValueError("mine"), "#": penstock.Response(409, body={"no": 1}), "?": object()}
    for step in range(max(map(len, items), default=0)):
        yield [special.get(item[step], item[step]) if step < len(item) else END for item in items]


@penstock.batched
async def letters_later(items: list[str]) -> AsyncIterator[list[Any]]:
    """As `letters`, on the loop."""
    for step in letters(items):
        yield step


def single(text: str) -> Iterator[Any]:
    """As `letters`, with one item a call."""
    for (piece,) in letters([text]):
        if isinstance(piece, Exception):
            raise piece
        yield piece


async def single_later(text: str) -> AsyncIterator[Any]:
    """As `single`, on the loop."""
    for piece in single(text):
        yield piece


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """As a decorator that measures the time."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return function(*args)

    return call


@penstock.batched
def returned(items: list[str]) -> Iterator[list[Any]]:
    return letters(items)


@penstock.batched
async def returned_later(items: list[str]) -> AsyncIterator[list[Any]]:
    await asyncio.sleep(0)
    return letters_later(items)


def untyped(text: str) -> Any:
    return single(text)


GENERATORS = [letters, letters_later, single, single_later]
FORMS = pytest.mark.parametrize(
    "function", [*GENERATORS, *map(wrapped, GENERATORS), returned, returned_later]
)


async def test_a_method_that_returns_a_generator_unannounced_answers_its_pieces_as_a_list(ask: Ask) -> None:
    """Its signature does not say that it streams."""
    for headers in ((), EVENTS):
        answer = await ask(untyped, "ab", "c", headers=headers)
        assert answer == (200, "application/json", b'{"predictions":[["a","b"],["c"]]}')


async def test_a_wrapper_that_reads_a_generator_answers_what_it_returns(ask: Ask) -> None:
    @functools.wraps(letters)
    def joined(items: list[str]) -> list[Any]:
        return [
            "".join(piece for piece in column if piece is not END)
            for column in zip(*letters(items), strict=True)
        ]

    plain = (200, "application/json", b'{"predictions":["ab","c"]}')
    assert await ask(joined, "ab", "c") == plain
    assert await ask(joined, "ab", headers=EVENTS) == (200, "text/event-stream", b'data: "ab"\n\n')


@FORMS
async def test_who_asks_for_no_stream_gets_the_pieces_as_lists(ask: Ask, function: Any) -> None:
    assert await ask(function, "ab", "", "c") == (
        200,
        "application/json",
        b'{"predictions":[["a","b"],[],["c"]]}',
    )
    status, _, body = await ask(function, "ab", "c!", headers=((b"x-penstock-item-answers", b"1"),))
    document = json.loads(body)
    assert (status, document["predictions"]) == (200, [["a", "b"], None])
    assert document["answers"][0]["body"]["detail"] == "the model failed with ValueError: mine"


@FORMS
@pytest.mark.parametrize(
    ("headers", "media", "body"),
    [
        (EVENTS, "text/event-stream", b'data: "a"\n\ndata: "b"\n\n'),
        (LINES, "application/x-ndjson", b'"a"\n"b"\n'),
    ],
)
async def test_one_item_is_a_stream_in_the_form_that_its_client_accepts(
    ask: Ask, function: Any, headers: Any, media: str, body: bytes
) -> None:
    assert await ask(function, "ab", headers=headers) == (200, media, body)
    assert await ask(function, "", headers=headers) == (200, media, b"")


async def test_an_error_before_the_first_piece_has_a_status_and_a_later_one_is_in_band(ask: Ask) -> None:
    status, media, body = await ask(letters, "!a", headers=EVENTS)
    assert (status, media) == (500, "application/problem+json")
    assert json.loads(body)["detail"] == "the model failed with ValueError: mine"
    assert await ask(letters, "#", headers=EVENTS) == (409, "application/json", b'{"no":1}')

    said = (
        '{"status":500,"reason":"model_failed","detail":"the model failed with ValueError: mine",'
        '"exception":["builtins:ValueError"]}'
    )
    in_event = f'data: "a"\n\nevent: error\ndata: {said}\n\n'
    assert (await ask(letters, "a!b", headers=EVENTS))[2].decode() == in_event
    assert (await ask(letters, "a!b", headers=LINES))[2].decode() == f'"a"\n{{"error":{said}}}\n'
    for item, detail in ("a#", "expected a Response before"), ("a?", "a value of type object"):
        said = f'"reason":"bad_answer","detail":"{detail}'
        assert said in (await ask(letters, item, headers=LINES))[2].decode()


@FORMS
async def test_the_streams_of_several_items_of_a_request_are_one_with_their_indices(
    ask: Ask, function: Any
) -> None:
    status, media, body = await ask(function, "ab", "c!d", headers=LINES)
    lines = [json.loads(line) for line in body.splitlines()]
    assert (status, media) == (200, "application/x-ndjson")
    error = {
        "status": 500,
        "reason": "model_failed",
        "detail": "the model failed with ValueError: mine",
        "exception": ["builtins:ValueError"],
    }
    assert [line for line in lines if line["index"] == 0] == [
        {"index": 0, "piece": "a"},
        {"index": 0, "piece": "b"},
        {"index": 0, "end": True},
    ]
    assert [line for line in lines if line["index"] == 1] == [
        {"index": 1, "piece": "c"},
        {"index": 1, "error": error},
    ]


async def test_what_goes_wrong_with_one_of_several_items_is_in_band(ask: Ask) -> None:
    @penstock.batched
    def ends(items: list[Any]) -> Iterator[list[Any]]:
        yield [penstock.Response(409), b"\xff", b"b"]
        yield [1, 2]

    _, _, body = await ask(ends, 0, 1, 2, headers=EVENTS)
    events = body.decode().split("\n\n")
    own, text, fine, wrong, last = events
    assert own.startswith('event: error\ndata: {"index":0,"error":{"status":409,"reason":"model_failed"')
    assert text.startswith('event: error\ndata: {"index":1,"error":{"status":502,"reason":"bad_answer"')
    assert fine == 'data: {"index":2,"piece":"b"}'
    assert wrong.startswith('event: error\ndata: {"index":2,"error":{"status":502,"reason":"bad_answer"')
    assert last == ""


async def test_a_stream_is_of_some_item(ask: Ask) -> None:
    status, _, body = await ask(letters, headers=EVENTS)
    document = json.loads(body)
    assert (status, document["reason"]) == (422, "bad_shape")
    assert document["detail"].endswith("expected an item in a request whose answer is a stream, found none")


async def test_the_streams_of_a_batch_are_lines_with_their_items(ask: Ask) -> None:
    """What a sidecar splits: heads and whole answers in an item's first line, errors in later ones."""
    status, media, body = await ask(letters, "ab", "!", "a!", "", "#", headers=TOGETHER)
    assert (status, media) == (200, "application/vnd.penstock.item-streams+json")
    lines = [json.loads(line) for line in body.splitlines()]
    head = {"status": 200, "headers": {"content-type": "text/event-stream"}}
    assert lines[0] == {"i": 0, **head, "data": 'data: "a"\n\n'}
    assert (lines[1]["i"], lines[1]["status"], lines[1]["end"]) == (1, 500, True)
    assert json.loads(lines[1]["data"])["reason"] == "model_failed"
    assert lines[1]["headers"]["x-penstock-reason"] == "model_failed"
    assert lines[2:5] == [
        {"i": 2, **head, "data": 'data: "a"\n\n'},
        {"i": 3, **head, "end": True},
        {
            "i": 4,
            "status": 409,
            "headers": {"content-type": "application/json"},
            "data": '{"no":1}',
            "end": True,
        },
    ]
    assert (lines[5], lines[6]["i"], lines[6]["error"]["reason"]) == (
        {"i": 0, "data": 'data: "b"\n\n'},
        2,
        "model_failed",
    )
    assert lines[7:] == [{"i": 0, "end": True}]


async def test_an_item_that_does_not_fit_has_its_own_status_beside_the_streams_of_others(ask: Ask) -> None:
    @penstock.batched(columns=True)
    def both(a: list[int], b: list[int]) -> Iterator[list[int]]:
        yield [x + y for x, y in zip(a, b, strict=True)]

    _, _, body = await ask(both, {"a": 1}, {"a": 1, "b": 2}, headers=TOGETHER)
    lines = [json.loads(line) for line in body.splitlines()]
    assert (lines[0]["i"], lines[0]["status"]) == (0, 422)
    assert (lines[1]["i"], lines[1]["data"]) == (1, "data: 3\n\n")
    status, _, body = await ask(both, {"a": 1}, headers=EVENTS)
    assert (status, json.loads(body)["reason"]) == (422, "missing_arguments")


@pytest.mark.parametrize(
    ("steps", "status", "said"),
    [
        ([["x"]], 502, WRONG),
        ([KeyError("k")], 500, "the model raised KeyError"),
        (
            [["x", "y"], ["z"]],
            200,
            '"bad_answer","detail":"predict: expected 2 entries in each step, found 1"',
        ),
        ([["x", "y"], KeyError("of one client")], 200, '"model_failed","detail":"the model raised KeyError"'),
    ],
)
async def test_what_concerns_the_whole_batch(ask: Ask, steps: list[Any], status: int, said: str) -> None:
    """Before the first step a sidecar may run it again in parts; later each open stream has the error."""

    @penstock.batched
    def predict(items: list[int]) -> Iterator[Any]:
        for step in steps:
            if isinstance(step, Exception):
                raise step
            yield step

    answered, _, body = await ask(predict, 1, 2, headers=TOGETHER)
    assert answered == status
    assert said in body.decode()
    assert b"of one client" not in body
    if status == 200:
        assert [json.loads(line)["i"] for line in body.splitlines()] == [0, 1, 0, 1]


CUT = [b"data: caf", b"\xc3", b"\xa9 ", "😀".encode()[:3], "😀\n\n".encode()[3:]]


async def test_bytes_are_sent_as_they_are_wherever_they_are_cut(ask: Ask) -> None:
    def raw(item: int) -> Iterator[bytes]:
        yield from CUT

    text = "data: café 😀\n\n"
    assert (await ask(raw, 1, headers=EVENTS))[2].decode() == text
    lines = [json.loads(line) for line in (await ask(raw, 1, 1, headers=TOGETHER))[2].splitlines()]
    for index in (0, 1):
        assert "".join([line.get("data", "") for line in lines if line["i"] == index]) == text
    assert sum(line.get("end", False) for line in lines) == 2
    lines = [json.loads(line) for line in (await ask(raw, 1, 1, headers=LINES))[2].splitlines()]
    for index in (0, 1):
        assert "".join([line.get("piece", "") for line in lines if line["index"] == index]) == text


@pytest.mark.parametrize("bad", [[b"\xff"], [b"\xc3", b"a"], [b"\xc3", 1], [b"\xc3"]])
async def test_bytes_that_are_not_text_end_a_stream_whoever_shares_its_batch(
    ask: Ask, bad: list[Any]
) -> None:
    def raw(item: int) -> Iterator[Any]:
        yield b"data: 1\n\n"
        yield from bad

    said = b"expected text in a stream, found bytes that are not UTF-8"
    alone = (await ask(raw, 1, headers=EVENTS))[2]
    assert alone.startswith(b"data: 1\n\n")
    assert said in alone.partition(b"event: error\ndata: ")[2]
    for headers in (TOGETHER, LINES):
        lines = [json.loads(line) for line in (await ask(raw, 1, 1, headers=headers))[2].splitlines()]
        assert [said.decode() in json.dumps(line) for line in lines].count(True) == 2
        assert not any("end" in line for line in lines)


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("batched", [False, True])
async def test_a_client_that_goes_away_closes_the_generator(send: Ask, blocking: bool, batched: bool) -> None:
    closed_in: list[threading.Thread] = []

    def endless(items: Any) -> Iterator[Any]:
        try:
            while True:
                yield items
        finally:
            closed_in.append(threading.current_thread())

    async def endless_later(items: Any) -> AsyncIterator[Any]:
        try:
            while True:
                yield items
                await asyncio.sleep(0)
        finally:
            closed_in.append(threading.current_thread())

    function = endless if blocking else endless_later
    answer = await send(penstock.batched(function) if batched else function, 1, headers=EVENTS)
    assert await anext(answer.stream) == b"data: 1\n\n"
    await answer.stream.aclose()
    assert [thread is threading.current_thread() for thread in closed_in] == [not blocking]


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (b"text/event-stream", b"text/event-stream"),
        (b"application/json, application/x-ndjson;q=0.5, text/event-stream", b"text/event-stream"),
        (b"text/event-stream, application/x-ndjson", b"text/event-stream"),
        (b"application/x-ndjson, text/event-stream", b"application/x-ndjson"),
        (b"text/event-stream;q=0.1, application/x-ndjson; q=0.9", b"application/x-ndjson"),
        (b"application/json;q=1.0, text/event-stream;q=0.1", None),
        (b"application/json;q=0, text/event-stream ; q=0.5", b"text/event-stream"),
        (b"application/json;q=0.2, */*, text/event-stream;q=0.5", b"text/event-stream"),
        (b"*/*;q=0.8, text/event-stream;q=0.5", None),
        (b"*/*, text/event-stream", b"text/event-stream"),
        (b"text/event-stream;charset=utf-8;q=0.000", None),
        (b"text/event-stream;level=1", b"text/event-stream"),
        (b"Text/Event-Stream", b"text/event-stream"),
        (b"text/event-stream;q=0", None),
        (b"application/json", None),
        (b"*/*", None),
        (b"text/event-streams", None),
    ],
)
def test_a_client_asks_for_a_stream_by_what_it_accepts(accept: bytes, kind: bytes | None) -> None:
    assert stream_type(((b"x", b"text/event-stream"), (b"accept", accept))) == kind
    assert stream_type(()) is None
