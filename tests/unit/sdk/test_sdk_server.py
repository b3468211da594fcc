"""The model server's answers, request by request."""

from __future__ import annotations

import asyncio
import dataclasses
import decimal
import json
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import ArgumentsError
from penstock.model import Model
from penstock.server import ModelServer
from penstock.signature import read
from penstock.target import Served
from penstock_wire.http import Request, Response

Ask = Callable[..., Any]


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    """Threads for blocking methods."""
    with ThreadPoolExecutor(4, thread_name_prefix="model") as threads:
        yield threads


@pytest.fixture
def ask(executor: ThreadPoolExecutor) -> Ask:
    """Asks a server of a function and gives status, document and answer."""

    async def send(function: Callable[..., Any], body: Any, **request: Any) -> tuple[int, Any, Response]:
        server = ModelServer()
        server.serve(Model(Served(shape=read(function, "predict"), method=function), executor))
        data = body if isinstance(body, bytes) else json.dumps({"instances": body}).encode()
        answer = await server.handle(
            Request(**({"method": "POST", "target": "/v1/x:predict", "headers": (), "body": data} | request))
        )
        is_json = b"json" in dict(answer.headers).get(b"content-type", b"")
        return answer.status, json.loads(answer.body) if is_json else answer.body, answer

    return send


@penstock.batched
def double(items: list[Any]) -> list[Any]:
    return [2 * item for item in items]


@penstock.batched
async def double_async(items: list[Any]) -> list[Any]:
    await asyncio.sleep(0)
    return [2 * item for item in items]


@penstock.batched(columns=True)
def joined(text: list[str], lang: list[str] = "en") -> list[str]:  # type: ignore[assignment]
    return [f"{word}-{language}" for word, language in zip(text, lang, strict=True)]


def single(item: Any) -> Any:
    return 2 * item


async def single_async(item: Any) -> Any:
    await asyncio.sleep(0)
    return 2 * item


@pytest.mark.parametrize(
    "function", [double, double_async, single, single_async, lambda item: single_async(item)]
)
async def test_every_form_answers_each_item_in_order(ask: Ask, function: Callable[..., Any]) -> None:
    """Batched or not, blocking or not: as many predictions as instances, in order."""
    assert (await ask(function, [1, 2, 3]))[:2] == (200, {"predictions": [2, 4, 6]})


async def test_a_batched_method_is_called_once_and_an_unmarked_one_for_each_item(ask: Ask) -> None:
    calls: list[Any] = []

    def note(item: Any) -> Any:
        calls.append(item)
        return item

    await ask(note, [1, 2])
    await ask(penstock.batched(lambda items: note(items)), [1, 2])
    assert calls == [1, 2, [1, 2]]


async def test_columns_get_one_list_for_each_parameter(ask: Ask) -> None:
    """An item that lacks an argument takes the default; its neighbours keep theirs."""
    answer = await ask(joined, [{"text": "a"}, {"text": "b", "lang": "de"}, {"lang": "", "text": "c"}])
    assert answer[:2] == (200, {"predictions": ["a-en", "b-de", "c-"]})


async def test_no_instances_are_no_predictions_and_no_call(ask: Ask) -> None:
    def never(items: Any) -> Any:
        raise AssertionError

    assert (await ask(penstock.batched(never), []))[:2] == (200, {"predictions": []})


async def test_blocking_code_runs_in_a_thread_and_async_code_on_the_loop(ask: Ask) -> None:
    async def on_loop(item: Any) -> str:
        return threading.current_thread().name

    def in_thread(item: Any) -> str:
        return threading.current_thread().name

    loop = (await ask(on_loop, [1]))[1]["predictions"][0]
    thread = (await ask(in_thread, [1]))[1]["predictions"][0]
    assert (loop, thread.startswith("model")) == (threading.main_thread().name, True)


async def test_a_blocked_call_does_not_stop_the_readiness_check(
    ask: Ask, executor: ThreadPoolExecutor
) -> None:
    """While a blocking method is at work, the loop answers."""
    begun, go = threading.Event(), threading.Event()

    def wait(item: Any) -> Any:
        begun.set()
        assert go.wait(60)
        return item

    server = ModelServer()
    server.serve(Model(Served(shape=read(wait, "predict"), method=wait), executor))
    post = Request(method="POST", target="/", headers=(), body=b'{"instances":[1]}')
    call = asyncio.ensure_future(server.handle(post))
    await asyncio.get_running_loop().run_in_executor(None, begun.wait, 60)
    health = await server.handle(Request(method="GET", target="/", headers=(), body=b""))
    assert (health.status, call.done()) == (200, False)
    go.set()
    assert (await call).status == 200


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.arange(3), [0, 1, 2]),
        (
            np.array([[1.5, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype=np.float32),
            [[1.5, 2.0], [3.0, 4.0], [5.0, 6.0]],
        ),
        ([np.float32(1.5), np.int64(2), np.bool_(True)], [1.5, 2, True]),
        ((np.array([1, 2]), {"x": np.array(3)}, None), [[1, 2], {"x": 3}, None]),
        ([float("nan"), math.inf, 1.0], [None, None, 1.0]),
        ([2**70, -(2**63), 0], [2**70, -(2**63), 0]),
        ([decimal.Decimal("1.10"), "ä", ""], ["1.10", "ä", ""]),
    ],
)
async def test_answers_of_numpy_and_python_become_json(ask: Ask, values: Any, expected: list[Any]) -> None:
    status, document, _ = await ask(penstock.batched(lambda items: values), [1, 2, 3])
    assert (status, document) == (200, {"predictions": expected})


async def test_items_arrive_as_python_reads_them(ask: Ask) -> None:
    """Big integers stay exact; NaN and Infinity, which Python clients send, are taken."""
    seen: list[Any] = []

    def note(items: list[Any]) -> list[Any]:
        seen.extend(items)
        return [0] * len(items)

    status, _, _ = await ask(
        penstock.batched(note), b'{"instances":[18446744073709551617,NaN,-Infinity,"\\ud800",1e400]}'
    )
    assert status == 200
    assert seen[0] == 18446744073709551617
    assert math.isnan(seen[1])
    assert seen[2:] == [-math.inf, "\ud800", math.inf]


@pytest.mark.parametrize(
    ("result", "detail"),
    [
        ([1], "predict: expected 2 answers, found 1"),
        ([1, 2, 3], "predict: expected 2 answers, found 3"),
        (None, "predict: expected a list of 2 answers, found NoneType"),
        ("ab", "predict: expected a list of 2 answers, found str"),
        ({"a": 1, "b": 2}, "predict: expected a list of 2 answers, found dict"),
        (np.float64(1), "predict: expected a list of 2 answers, found float"),
        ((item for item in [1, 2]), "predict: expected a list of 2 entries in each step, found int"),
        ([1, object()], "item 1: the answer to the item: a value of type object has no JSON"),
    ],
)
async def test_an_answer_that_cannot_be_sent_is_a_502_that_says_why(
    ask: Ask, result: Any, detail: str
) -> None:
    status, problem, _ = await ask(penstock.batched(lambda items: result), [1, 2])
    assert (status, problem["reason"]) == (502, "bad_answer")
    assert problem["detail"].startswith(detail)


async def test_items_that_do_not_fit_are_a_422_with_their_names(ask: Ask) -> None:
    def fits(a: Any, b: Any = 1) -> Any:
        return a

    status, problem, answer = await ask(fits, [{"a": 1}, {"b": 2}, {"*": [1, 2, 3]}, {"a": 1, "z": 0}])
    assert (status, problem["reason"]) == (422, "missing_arguments")
    assert dict(answer.headers)[b"content-type"] == b"application/problem+json"
    assert [item["index"] for item in problem["items"]] == [1, 2, 3]
    own = [item["body"]["items"] for item in problem["items"]]
    assert own == [[{"index": 0, "missing": ["a"]}], [{"index": 0}], [{"index": 0, "unknown": ["z"]}]]
    assert problem["detail"] == (
        "item 1: missing a. item 2: expected at most 2 arguments without a name, found 3. item 3: unknown z"
    )


async def test_a_problem_names_ten_items_and_counts_the_rest(ask: Ask) -> None:
    _, problem, _ = await ask(lambda a, b: 0, [{}] * 25)
    assert len(problem["items"]) == 10
    assert problem["detail"].endswith("And 15 more items")


async def test_the_response_to_a_single_item_is_the_answer(ask: Ask) -> None:
    """Status, headers and body as the model gave them."""
    teapot = penstock.Response(418, {"X-Kind": "teapot", "Content-Type": "text/x"}, "short")
    status, body, answer = await ask(penstock.batched(lambda items: [teapot]), [1])
    assert (status, body) == (418, b"short")
    assert answer.headers == ((b"x-kind", b"teapot"), (b"content-type", b"text/x"))


@pytest.mark.parametrize(
    ("body", "kind", "sent"),
    [
        (b"\x00\x01", b"application/octet-stream", b"\x00\x01"),
        ("ä", b"text/plain; charset=utf-8", "ä".encode()),
        ({"a": np.int64(1)}, b"application/json", b'{"a":1}'),
        (b"", None, b""),
    ],
)
async def test_the_body_of_a_response_gets_a_content_type(
    ask: Ask, body: Any, kind: bytes | None, sent: bytes
) -> None:
    _, _, answer = await ask(lambda item: penstock.Response(201, body=body), [1])
    assert (answer.status, answer.body, dict(answer.headers).get(b"content-type")) == (201, sent, kind)


@pytest.mark.parametrize(
    ("answers", "expected", "reason"),
    [
        ([1, ValueError("x")], 500, "model_failed"),
        ([1, penstock.Response(422)], 422, "model_answer"),
        ([1, penstock.Response(404)], 404, "model_answer"),
        ([penstock.Response(400), penstock.Response(404)], 422, "model_answer"),
        ([penstock.Response(400), ArgumentsError("x")], 422, "model_answer"),
        ([1, ArgumentsError("x")], 422, "missing_arguments"),
        ([penstock.Response(400), ValueError("x")], 500, "model_failed"),
        ([1, penstock.Response(200)], 500, "model_failed"),
        ([1, penstock.Response(503)], 503, "model_failed"),
    ],
)
async def test_a_failure_among_several_items_is_a_problem_with_one_status(
    ask: Ask, answers: list[Any], expected: int, reason: str
) -> None:
    """The items' own if they agree; a client's mistake is never the model's failure."""
    status, problem, _ = await ask(penstock.batched(lambda items: answers), [1, 2])
    assert (status, problem["reason"], problem["status"]) == (expected, reason, expected)
    failed = [i for i, answer in enumerate(answers) if answer != 1]
    assert [item["index"] for item in problem["items"]] == failed


async def test_an_exception_as_answer_to_a_single_item_says_what_it_says(ask: Ask) -> None:
    status, problem, _ = await ask(penstock.batched(lambda items: [ValueError("too dark")]), [1])
    assert (status, problem["detail"]) == (500, "the model failed with ValueError: too dark")


async def test_what_one_item_made_the_model_say_is_not_told_to_the_batch(
    ask: Ask, capfd: pytest.CaptureFixture[str]
) -> None:
    """A batch holds requests of several clients: they learn the kind of the failure, the log has the rest."""

    def fail(items: Any) -> Any:
        raise ValueError("secret of item 1")

    status, problem, _ = await ask(penstock.batched(fail), [1, 2])
    assert (status, problem["detail"]) == (500, "the model raised ValueError")
    assert "secret of item 1" in capfd.readouterr().err
    status, problem, _ = await ask(penstock.batched(fail), [1])
    assert (status, problem["detail"]) == (500, "the model raised ValueError: secret of item 1")


@pytest.mark.parametrize(
    "error", [StopIteration(3), KeyError("x"), MemoryError(), asyncio.InvalidStateError()]
)
async def test_every_exception_is_answered(ask: Ask, error: Exception) -> None:
    """Also a StopIteration, which a future cannot hold."""

    def fail(item: Any) -> Any:
        raise error

    async def fail_async(item: Any) -> Any:
        raise error

    for function in (fail, fail_async, penstock.batched(fail), penstock.batched(fail_async)):
        status, problem, _ = await ask(function, [1])
        assert (status, problem["reason"]) == (500, "model_failed")


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"", 400, "bad_json"),
        (b"{", 400, "bad_json"),
        (b"[1]", 400, "bad_json"),
        (b'{"instances":[1],"instances":[2]}', 400, "bad_json"),
        (b'{"instances":[1', 400, "bad_json"),
        (b'{"inputs":[1]}', 422, "bad_shape"),
        (b'{"instances":{}}', 422, "bad_shape"),
        (b'{"instances":[1],"signature_name":"x"}', 422, "bad_shape"),
    ],
)
async def test_bad_bodies_are_refused_with_a_reason(ask: Ask, body: bytes, status: int, reason: str) -> None:
    answered, problem, _ = await ask(double, body)
    assert (answered, problem["reason"]) == (status, reason)


async def test_a_member_beside_instances_is_named_rather_than_dropped(ask: Ask) -> None:
    """A parameter that the model would never see must not look as if it had counted."""
    _, problem, _ = await ask(double, b'{"instances":[1],"temperature":0.5}')
    assert problem["detail"] == '$: expected no member beside "instances", found temperature'


@pytest.mark.parametrize(
    ("request_", "status", "reason"),
    [
        ({"method": "PUT"}, 405, "method_not_allowed"),
        ({"method": "GET", "target": "/elsewhere"}, 404, "no_route"),
        ({"headers": ((b"content-encoding", b"gzip"),)}, 415, "bad_media_type"),
    ],
)
async def test_what_the_server_does_not_do_has_its_status(
    ask: Ask, request_: dict[str, Any], status: int, reason: str
) -> None:
    answered, problem, _ = await ask(double, [1], **request_)
    assert (answered, problem["reason"]) == (status, reason)


LONG = b"1" * 10_000
"""An integer that Python's `int` does not read."""


@pytest.mark.parametrize("function", [double, double_async, joined, single, single_async])
@pytest.mark.parametrize("item", [LONG, b'{"text":"a","lang":[-%b]}' % LONG])
async def test_an_integer_of_very_many_digits_is_its_own_items_misfit(
    ask: Ask, function: Callable[..., Any], item: bytes
) -> None:
    """It is the client's fault, and no failure of the model: 422 says so and names the item."""
    for body in (b"%b", b"NaN,%b", b'%b,"\\ud800"'):
        status, problem, _ = await ask(function, b'{"instances":[' + body % item + b"]}")
        assert (status, problem["reason"]) == (422, "missing_arguments")
        assert "expected integers of at most 4300 digits, found more" in problem["detail"]
        if function is not joined:  # to which the others are misfits, too
            assert [each["index"] for each in problem["items"]] == [1 if body[:1] == b"N" else 0]


@dataclasses.dataclass
class Named:
    """An answer with members."""

    name: str
    score: float


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("\ud800", "\ud800"),
        (["a\udfff", math.nan, 1e22], ["a\udfff", None, 1e22]),
        ({"\ud800": 1, "b": ("\ud800", b"\0")}, {"\ud800": 1, "b": ["\ud800", "AA=="]}),
        (Named("\ud800", math.inf), {"name": "\ud800", "score": None}),
        (np.array(["\ud800", "b"]), ["\ud800", "b"]),
    ],
)
async def test_a_lone_surrogate_in_an_answer_is_sent_as_an_escape(
    ask: Ask, answer: Any, expected: Any
) -> None:
    """JSON has it, and a client that sent it gets it back; its neighbours' answers keep their bytes."""
    status, document, sent = await ask(penstock.batched(lambda items: [answer, 1e22]), [1, 2])
    assert (status, document) == (200, {"predictions": [expected, 1e22]})
    assert sent.body.endswith(b",1e22]}")
    assert document_of(await ask(lambda item: penstock.Response(body={"a": answer}), [1])) == {"a": expected}


def document_of(reply: tuple[int, Any, Response]) -> Any:
    """The document of an answer of 200."""
    assert reply[0] == 200
    return reply[1]


@pytest.mark.parametrize("answer", [["\ud800", object()], {"a": "\ud800", "b": object()}])
async def test_an_answer_with_a_lone_surrogate_and_without_json_is_bad(ask: Ask, answer: Any) -> None:
    status, problem, _ = await ask(lambda item: answer, [1])
    assert (status, problem["reason"]) == (502, "bad_answer")


async def test_the_ready_path_answers_with_and_without_a_query(ask: Ask) -> None:
    for method, target in (("GET", "/"), ("HEAD", "/"), ("GET", "/?x=1")):
        assert (await ask(double, [], method=method, target=target))[0] == 200


async def test_before_it_is_loaded_the_server_is_not_ready() -> None:
    server = ModelServer("/health")
    for method, target in (("GET", "/health"), ("POST", "/")):
        answer = await server.handle(Request(method=method, target=target, headers=(), body=b""))
        assert (answer.status, json.loads(answer.body)["reason"]) == (503, "not_ready")
        assert dict(answer.headers)[b"retry-after"] == b"1"


async def test_the_request_id_is_echoed(ask: Ask) -> None:
    for body in ([1], b"{"):
        _, _, answer = await ask(double, body, headers=((b"x-request-id", b"r-1"),))
        assert [value for name, value in answer.headers if name == b"x-request-id"] == [b"r-1"]


@pytest.mark.parametrize(
    "headers", [{"x-a": "1\r\nset-cookie: a=b"}, {"x-a\n": "1"}, {"a b": "1"}, {"": "1"}]
)
async def test_a_header_that_would_be_two_is_a_bad_answer(ask: Ask, headers: dict[str, str]) -> None:
    """A model may repeat what a client said; its answer must not become another one."""
    status, document, _ = await ask(lambda item: penstock.Response(headers=headers), [1])
    assert (status, document["reason"]) == (502, "bad_answer")


async def fails_async(item: Any) -> Any:
    raise RuntimeError(f"no place for {item}")


def fails(item: Any) -> Any:
    raise RuntimeError(f"no place for {item}")


@pytest.mark.parametrize(
    "function", [fails, fails_async, penstock.batched(fails), penstock.batched(fails_async)]
)
async def test_what_the_model_raises_is_logged_with_the_ids_of_its_requests(
    ask: Ask, capsys: pytest.CaptureFixture[str], function: Callable[..., Any]
) -> None:
    """In threads as on the loop; of a batch the first sixteen, and how many there are."""
    asked = [[(b"x-request-id", b"r-1")], [(b"x-request-id", b",".join(b"b-%d" % n for n in range(40)))], []]
    answers = await asyncio.gather(*[ask(function, [1], headers=tuple(headers)) for headers in asked])
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert {line["message"] for line in lines} == {"the model raised an exception"}
    named = [{name: line[name] for name in line if "request" in name} for line in lines]
    assert {"request_id": "r-1"} in named
    assert {"requests": 40, "request_ids": [f"b-{n}" for n in range(16)]} in named
    assert {} in named
    # A problem of a batch goes to several clients, and names none of their requests.
    assert [answer[1].get("request_id") for answer in answers] == ["r-1", None, None]


async def test_an_exception_in_a_slot_is_logged_with_the_ids(
    ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    """The caller may be told its type alone, so the author finds the text here."""

    @penstock.batched
    def returns(items: list[Any]) -> list[Any]:
        return [ValueError(f"no {item}") if item == 2 else item for item in items]

    assert (await ask(returns, [1, 2], headers=((b"x-request-id", b"r-1"),)))[0] == 500
    (line,) = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert (line["message"], line["request_id"]) == ("the model returned an exception", "r-1")
    assert "ValueError: no 2" in line["traceback"]


async def test_an_answer_that_cannot_be_used_is_logged_with_the_ids(
    ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong number of answers, and one that has no JSON."""
    headers = ((b"x-request-id", b"a,b"),)
    few = penstock.batched(lambda items: items[1:])
    odd = penstock.batched(lambda items: [object() for _ in items])
    assert [(await ask(each, [1, 2], headers=headers))[0] for each in (few, odd)] == [502, 502]
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["message"] for line in lines] == [
        "the model's answer cannot be used",
        *["the answer to an item cannot be used"] * 2,
    ]
    assert [line["request_ids"] for line in lines] == [["a", "b"]] * 3
    assert "expected 2 answers, found 1" in lines[0]["error"]
