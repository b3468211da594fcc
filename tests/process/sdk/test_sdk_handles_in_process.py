"""Handles of endpoints in the same process: called without HTTP, with the outcomes of HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import penstock
from penstock import Handle, Response, UpstreamError, call_context
from penstock.testing import serving
from tests.support.processes.handle_calls import awaited, in_thread


class Model:
    """What the callers below call."""

    ids: tuple[str, ...] = ()

    @penstock.batched
    def double(self, values: list[Any], *, factor: int = 2) -> list[Any]:
        Model.ids = penstock.context().request_ids
        return [ValueError("a word") if isinstance(value, str) else value * factor for value in values]

    @penstock.batched
    def grow(self, values: list[int]) -> Iterator[list[Any]]:
        yield values
        yield [ValueError("no more") if value == 13 else value + 1 for value in values]

    @penstock.batched
    async def hang(self, values: list[int]) -> list[int]:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()
        return values

    def __call__(self, value: int) -> Any:
        return penstock.Response(422 if value < 0 else 201, body=b"x")


began = asyncio.Event()


gone = asyncio.Event()


class Caller:
    """Calls in a thread."""

    def __init__(self, model: Handle) -> None:
        self.model = model

    def __call__(self, value: Any) -> Any:
        self.context = penstock.context()
        return self.model.double(self.model.double(value, factor=3)).result()

    @penstock.batched
    async def wait(self, values: list[Any]) -> list[Any]:
        return [await self.model.hang(value) for value in values]


@pytest.fixture
async def model() -> AsyncIterator[Handle]:
    app = penstock.backend(type("Caller", (Caller,), {})).bind(
        penstock.backend(type("Model", (Model,), {})).bind()
    )
    began.clear()
    gone.clear()
    async with serving(app):
        yield Handle("model")


async def test_in_one_process_a_handle_calls_without_http(model: Handle) -> None:
    assert await asyncio.gather(*[Handle("caller")(number) for number in range(3)]) == [0, 6, 12]
    call_context.begin(((b"x-request-id", b"r9"),))
    assert await model.double(1) == 2
    assert Model.ids == ("r9",)
    assert await in_thread(lambda: list(model.options(stream=True).grow(4))) == [4, 5]
    assert await model.grow(4) == [4, 5]
    made: Response = await model(1)
    assert (made.status, made.headers, made.body) == (201, {"content-type": "application/octet-stream"}, b"x")


@pytest.mark.parametrize(
    ("call", "status", "reason", "words"),
    [
        (lambda h: h.double("x"), 500, "model_failed", "ValueError: a word"),
        (lambda h: h(-1), 422, "", "422"),
        (
            lambda h: h.nope(1),
            404,
            "no_route",
            "expected a method among __call__, double, grow, hang, found nope",
        ),
        (lambda h: h.double(1, factr=2), 422, "missing_arguments", "factr"),
        (lambda h: h.options(timeout=0.02).hang(1), 504, "deadline", "deadline"),
        (lambda h: h.grow(13), 500, "model_failed", "no more"),
    ],
)
async def test_in_one_process_errors_are_those_of_http(
    model: Handle, call: Callable[[Handle], Any], status: int, reason: str, words: str
) -> None:
    with pytest.raises(UpstreamError) as raised:
        await call(model)
    error = raised.value
    assert (error.status, error.reason, error.endpoint) == (status, reason, "model")
    assert isinstance(error, ValueError) == (reason == "model_failed")
    assert words in str(error)
    assert error.request_id


async def test_in_one_process_a_caller_that_leaves_ends_what_it_called(model: Handle) -> None:
    caller = asyncio.ensure_future(awaited(Handle("caller").wait(1)))
    await asyncio.wait_for(began.wait(), 10)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await asyncio.wait_for(gone.wait(), 10)


async def test_in_one_process_a_name_is_served_once(model: Handle) -> None:
    with pytest.raises(ValueError, match="expected one endpoint 'model' in this process at a time"):
        async with serving(penstock.backend(type("Model", (Model,), {})).bind()):
            pass
