"""`penstock.testing`: a served class in a process, batched as behind a sidecar."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import ArgumentsError, LoadError
from penstock.testing import serving


class Model:
    """Methods of all kinds, and hooks that say that they were called."""

    hooks: list[str] = []  # noqa: RUF012 - what all objects of a test have in common

    def __init__(self, plus: int = 0) -> None:
        self.plus = plus

    async def load(self) -> None:
        self.hooks.append("load")

    def warmup(self) -> None:
        self.hooks.append("warmup")

    def close(self) -> None:
        self.hooks.append("close")

    @penstock.batched
    def predict(self, items: list[Any], *, times: int = 1) -> Any:
        if "raise" in items:
            raise KeyError("all")
        special = {"odd": ValueError("mine"), "own": penstock.Response(409), "bad": object()}
        return [special.get(item) or np.int64(len(item) * times + self.plus) for item in items]

    @penstock.batched(columns=True)
    def joined(self, a: list[str], b: list[str]) -> list[str]:
        return [x + y for x, y in zip(a, b, strict=True)]

    @penstock.batched
    async def letters(self, items: list[str]) -> AsyncIterator[list[Any]]:
        for step in range(9):
            yield [
                ValueError("q") if item[step : step + 1] == "?" else item[step : step + 1] or penstock.END
                for item in items
            ]


async def test_calls_share_batches_and_answers_are_those_of_a_client() -> None:
    """Arrays have become JSON's values; what differs in a parameter is in another batch; hooks are called."""
    Model.hooks.clear()
    async with serving(Model, {"plus": 1}, max_batch_size=2) as model:
        results = await asyncio.gather(model("a"), model("bb"), model("ccc"), model("d", times=5))
        assert results == [2, 3, 4, 6]
        assert [type(each) for each in results] == [int] * 4
        assert model.batches == [["a", "bb"], ["ccc"], ["d"]] or model.batches == [
            ["a", "bb"],
            ["d"],
            ["ccc"],
        ]
        assert await model.joined({"a": "x", "b": "y"}) == "xy"
        assert model.joined.batches == [[{"a": "x", "b": "y"}]]
        assert Model.hooks == ["load", "warmup"]
    assert Model.hooks == ["load", "warmup", "close"]


async def test_what_fails_fails_alone() -> None:
    async with serving(Model) as model:
        items = ["a", "odd", "own", "raise", "bad", "bb"]
        results = await asyncio.gather(*map(model, items), return_exceptions=True)
        assert (results[0], results[5]) == (1, 2)
        assert [type(each).__name__ for each in results[1:5]] == [
            "ValueError",
            "Response",
            "KeyError",
            "AnswerError",
        ]
        both = await asyncio.gather(
            model.joined({"a": "x"}), model.joined({"a": "x", "b": "y"}), return_exceptions=True
        )
        assert isinstance(both[0], ArgumentsError)
        assert (str(both[0]), both[1]) == ("missing b", "xy")
        with pytest.raises(ArgumentsError, match='no member beside "instances" but times, found size'):
            model("a", size=1)


async def test_a_generator_gives_each_caller_its_stream() -> None:
    async def read(stream: AsyncIterator[Any]) -> list[Any]:
        return [piece async for piece in stream]

    async with serving(Model) as model:
        results = await asyncio.gather(
            *(read(model.letters(text)) for text in ("ab", "c?", "")), return_exceptions=True
        )
        assert (results[0], str(results[1]), results[2]) == (["a", "b"], "q", [])
        assert model.letters.batches == [["ab", "c?", ""]]


async def test_a_handle_of_it_is_as_elsewhere() -> None:
    """It streams, is an argument of another call, and its calls can be waited for in threads."""
    async with serving(Model, {"plus": 1}) as model, serving(Model) as other:
        handle = model.handle
        assert await handle(handle.joined(a="x", b="yz")) == 4
        assert [piece async for piece in handle.letters.options(stream=True)("ab")] == ["a", "b"]
        assert await asyncio.to_thread(lambda: handle.joined("x", "y").result()) == "xy"
        assert (model.batches, other.batches) == ([["xyz"]], [])
        assert await other.handle("a") == 1
    with pytest.raises(penstock.EndpointNotFound):
        await handle("a")


class Two:
    """No default."""

    @penstock.batched
    def a(self, items: list[Any]) -> list[Any]:
        return items

    b = a


async def test_targets_that_are_called_wrongly_say_so() -> None:
    async with serving(Two) as two:
        assert await two.a(1) == 1
        with pytest.raises(TypeError, match="expected one of the methods a, b to be named, found none"):
            two(1)
        with pytest.raises(AttributeError, match="expected one of the methods a, b, found c"):
            two.c  # noqa: B018 - the access is what is refused
    with pytest.raises(LoadError, match="expected a class, a function or an application, found 7"):
        async with serving(7):
            pass
    async with serving(len) as length:
        assert await length("abc") == 3


class Tunable:
    """Says what it knows of its call, and takes a configuration."""

    threshold = 0

    def __init__(self) -> None:
        self.busy = asyncio.Event()
        self.go_on = asyncio.Event()
        self.ended = asyncio.Event()

    @penstock.batched
    async def predict(self, items: list[Any]) -> list[Any]:
        context = penstock.context()
        return [
            [self.threshold, context.headers.get("x-who"), context.headers.get("cookie"), context.request_ids]
            for _ in items
        ]

    @penstock.batched
    async def hang(self, items: list[Any]) -> list[Any]:
        self.busy.set()
        try:
            await self.go_on.wait()
        finally:
            self.ended.set()
        return [[self.threshold, penstock.context().seconds_left is not None] for _ in items]

    @penstock.batched
    async def options(self, items: list[Any]) -> list[Any]:
        return items

    async def reconfigure(self, config: Any) -> None:
        if config["threshold"] < 0:
            raise ValueError(f"expected a threshold of 0 or more, found {config['threshold']}")
        self.threshold = config["threshold"]


def kept_in(made: list[Tunable]) -> type[Tunable]:
    """A class that notes its objects."""

    class Kept(Tunable):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    return Kept


async def test_requests_have_header_fields_and_part_where_a_sidecars_do() -> None:
    """A batch has the fields that all its requests share; who is logged in as another shares none."""
    async with serving(Tunable) as model:
        who = model.options(headers={"X-Who": "me", "x-request-id": "r1"})
        ann = who.options(headers={"cookie": "ann"})
        answers = await asyncio.gather(who(1), model(2), ann(3), ann.method("predict")(4))
        assert answers[:2] == [[0, None, None, ["r1", ""]]] * 2
        assert answers[2] == answers[3] == [0, "me", "ann", ["r1"]]
        assert model.batches == [[1, 2], [3]]
        assert await model.method("options")(5) == 5
        with pytest.raises(
            AttributeError, match="expected one of the methods hang, options, predict, found x"
        ):
            model.method("x")


async def test_a_calls_time_and_its_cancellation_reach_the_method() -> None:
    made: list[Tunable] = []
    async with serving(kept_in(made)) as model:
        call = asyncio.ensure_future(model.hang(2))
        await made[0].busy.wait()
        call.cancel()
        await made[0].ended.wait()
        await asyncio.gather(call, return_exceptions=True)
        hurried = model.options(timeout=0.05)
        with pytest.raises(penstock.DeadlineExceeded):
            await hurried.hang(1)
    for timeout in (0, float("nan"), True):
        with pytest.raises(ValueError, match="expected a timeout above 0 seconds"):
            model.options(timeout=timeout)


async def test_a_configuration_is_given_while_no_batch_runs() -> None:
    """What is asked meanwhile waits; one that is refused changes nothing."""
    made: list[Tunable] = []
    async with serving(kept_in(made)) as model:
        await model.reconfigure({"threshold": 1})
        running = asyncio.ensure_future(model.options(timeout=60).hang(0))
        await made[0].busy.wait()
        change = asyncio.ensure_future(model.reconfigure({"threshold": 2}))
        later = asyncio.ensure_future(model(0))
        for _ in range(20):
            await asyncio.sleep(0)
        assert (change.done(), later.done(), model.batches) == (False, False, [])
        made[0].go_on.set()
        assert await running == [1, True]
        await change
        assert (await later)[0] == 2
        with pytest.raises(ValueError, match="expected a threshold of 0 or more, found -1"):
            await model.reconfigure({"threshold": -1})
        assert (await model(0))[0] == 2
    async with serving(Model) as model:
        with pytest.raises(TypeError, match="expected a method reconfigure, found none"):
            await model.reconfigure({})


async def test_each_run_of_a_method_has_items_of_its_own() -> None:
    """As behind a sidecar, which sends a batch anew: a method may change what it was given."""

    class Popping:
        @penstock.batched
        def predict(self, items: list[Any], *, options: dict[str, int]) -> list[Any]:
            plus = options.pop("plus")
            values = [item.pop("a") + plus for item in items]
            if len(items) > 1 and 3 in values:
                raise ValueError("three")
            return values

    async with penstock.testing.serving(Popping) as popping:
        calls = [popping({"a": value}, options={"plus": 1}) for value in range(6)]
        assert await asyncio.gather(*calls) == [*range(1, 7)]
        assert popping.batches[0] == [{"a": value} for value in range(6)]
