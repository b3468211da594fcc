"""Whatever user code raises or returns, its request is answered, with its traceback in the log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import pydantic
import pytest

import penstock
from penstock.model import Model
from penstock.server import ModelServer
from penstock.signature import read
from penstock.target import Served
from penstock.testing import serving
from penstock.user_code import described
from penstock_wire.http import Request, Response


class RustPanic(BaseException):
    """As PyO3's PanicException."""


class Speechless(Exception):
    """Its message raises."""

    def __str__(self) -> str:
        raise RustPanic


def act(item: Any) -> Any:
    """Raise what an item says; other items are their own answers."""
    raised = {
        "panic": RustPanic,
        "close": GeneratorExit,
        "exit": SystemExit,
        "cancel": asyncio.CancelledError,
    }
    raised["speechless"] = Speechless
    if item in raised:
        raise raised[item]("index out of bounds")
    return item


def batched(items: list[Any]) -> list[Any]:
    return [act(item) for item in items]


async def batched_async(items: list[Any]) -> list[Any]:
    await asyncio.sleep(0)
    return batched(items)


def returned(items: list[Any]) -> list[Any]:
    def outcome(item: Any) -> Any:
        try:
            return act(item)
        except BaseException as error:
            return error

    return [outcome(item) for item in items]


def steps(items: list[Any]) -> Iterator[list[Any]]:
    yield ["first" for _ in items]
    yield batched(items)


async def steps_async(items: list[Any]) -> AsyncIterator[list[Any]]:
    yield ["first" for _ in items]
    yield batched(items)


def single(item: Any) -> Any:
    return act(item)


async def single_async(item: Any) -> Any:
    await asyncio.sleep(0)
    return act(item)


def step(item: Any) -> Iterator[Any]:
    yield act(item)


def validated(items: list[Annotated[Any, pydantic.AfterValidator(act)]]) -> list[Any]:
    return items


def one_for_all(items: list[Any], *, mode: Annotated[Any, pydantic.AfterValidator(act)] = None) -> list[Any]:
    return items


@penstock.multiplexed()
def load(model_id: str) -> Any:
    return act(model_id)


@penstock.multiplexed()
async def load_async(model_id: str) -> Any:
    return act(model_id)


def multiplexed(items: list[Any]) -> list[Any]:
    return [load(item) for item in items]


async def multiplexed_async(items: list[Any]) -> list[Any]:
    return [await load_async(item) for item in items]


BATCHED = [
    batched,
    batched_async,
    returned,
    steps,
    steps_async,
    validated,
    multiplexed,
    multiplexed_async,
]
RAISED = ["panic", "close", "exit", "cancel", "speechless"]


@pytest.fixture
def ask() -> Iterator[Callable[..., Any]]:
    """Sends an item to a server of a function."""
    with ThreadPoolExecutor(4) as executor:

        async def send(function: Callable[..., Any], item: Any, **request: Any) -> Response:
            server = ModelServer()
            server.serve(Model(Served(shape=read(function, "predict"), method=function), executor))
            document = {"instances": [item], **request.pop("members", {})}
            given = {"method": "POST", "target": "/p", "headers": (), "body": json.dumps(document).encode()}
            return await server.handle(Request(**(given | request)))

        yield send


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize(
    "function", [*map(penstock.batched, BATCHED), single, single_async, step], ids=lambda each: each.__name__
)
async def test_what_a_method_raises_is_model_failed_with_its_traceback_in_the_log(
    ask: Callable[..., Any], function: Callable[..., Any], raised: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A panic, SystemExit, GeneratorExit, a cancellation of the method's own, a message that raises."""
    answer = await ask(function, raised)
    assert (answer.status, json.loads(answer.body)["reason"]) == (500, "model_failed")
    assert "raise raised[item]" in capsys.readouterr().err
    assert (await ask(function, "fine")).status == 200


@pytest.mark.parametrize("raised", RAISED)
async def test_what_a_validator_of_a_common_argument_raises_is_model_failed(
    ask: Callable[..., Any], raised: str
) -> None:
    answer = await ask(penstock.batched(one_for_all), 1, members={"mode": raised})
    assert (answer.status, json.loads(answer.body)["reason"]) == (500, "model_failed")


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize("function", [steps, steps_async])
async def test_what_a_step_raises_ends_the_stream_with_an_error(
    ask: Callable[..., Any], function: Callable[..., Any], raised: str
) -> None:
    events = ((b"accept", b"text/event-stream"),)
    answer = await ask(penstock.batched(function), raised, headers=events)
    pieces = [piece async for piece in answer.stream]
    assert pieces[0] == b'data: "first"\n\n'
    assert pieces[1].startswith(b'event: error\ndata: {"status":500,"reason":"model_failed"')


@pytest.mark.parametrize("raised", ["panic", "close", "exit", "cancel"])
@pytest.mark.parametrize("function", [batched, batched_async, returned, validated, multiplexed])
async def test_it_is_raised_at_its_own_caller_in_a_test_of_the_class(
    function: Callable[..., Any], raised: str
) -> None:
    """As behind a sidecar."""
    async with serving(penstock.batched(function)) as method:
        results = await asyncio.gather(method("a"), method(raised), method("b"), return_exceptions=True)
    assert [results[0], results[2]] == ["a", "b"]
    assert isinstance(results[1], penstock.errors.Panic)
    assert "index out of bounds" in str(results[1])


class Unsendable:
    """Its text raises."""

    def __str__(self) -> str:
        raise RustPanic


class Lazy(list[Any]):
    """A list that is made when it is read."""

    def __iter__(self) -> Any:
        raise RustPanic("no device")


@pytest.mark.parametrize(
    "answer",
    [
        penstock.Response(200, headers={"x-a": Unsendable()}),  # type: ignore[dict-item]
        penstock.Response(200, headers=None),  # type: ignore[arg-type]
    ],
)
async def test_a_response_that_cannot_be_rendered_is_a_bad_answer_to_its_item(
    ask: Callable[..., Any], answer: Any
) -> None:
    sent = await ask(penstock.batched(lambda items: [answer]), 1)
    assert (sent.status, json.loads(sent.body)["reason"]) == (502, "bad_answer")


async def test_a_list_of_answers_that_raises_when_it_is_read_is_model_failed(
    ask: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    sent = await ask(penstock.batched(lambda items: Lazy([1])), 1)
    assert (sent.status, json.loads(sent.body)["reason"]) == (500, "model_failed")
    assert "no device" in capsys.readouterr().err


class Silent(penstock.AnswerError):
    """Its message raises what ends a process."""

    def __str__(self) -> str:
        raise SystemExit


@pytest.mark.parametrize("error", [Silent(), penstock.AnswerError("half of a pair: \ud800")])
@pytest.mark.parametrize("count", [1, 2])
async def test_an_error_without_a_message_that_can_be_sent_ends_its_stream_with_an_error(
    ask: Callable[..., Any], error: Exception, count: int
) -> None:
    def fails(item: Any) -> Iterator[Any]:
        yield item
        raise error

    answer = await ask(
        fails, 1, headers=((b"accept", b"text/event-stream"),), members={"instances": [1] * count}
    )
    text = b"".join([piece async for piece in answer.stream])
    assert text.count(b"event: error\ndata: {") == text.count(b'"reason":"bad_answer"') == count


def test_a_long_message_is_cut_after_a_word_in_logs_and_answers() -> None:
    assert described(ValueError("expected " * 100)) == f"ValueError: {'expected ' * 54}expected…"
