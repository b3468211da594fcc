"""The programs of Ray Serve's guide to compositions, ported in the fewest edits.

Each docstring counts the lines of the guide's program that had to change; lines that only broke elsewhere are
not counted. What all share: `from ray import serve` and the imports of handle types become `import penstock`,
`@serve.deployment` becomes `@penstock.backend`, `handle.remote(x)` becomes `handle(x)`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest

import penstock
from penstock import Handle


@penstock.backend
class Adder:
    def __init__(self, increment: int) -> None:
        self._increment = increment

    def __call__(self, val: int) -> int:
        return val + self._increment


@penstock.backend
class Multiplier:
    def __init__(self, multiple: int) -> None:
        self._multiple = multiple

    def __call__(self, val: int) -> int:
        return val * self._multiple


@penstock.backend
class Ingress:
    def __init__(self, adder: Handle, multiplier: Handle) -> None:
        self._adder = adder
        self._multiplier = multiplier

    async def __call__(self, input: int) -> int:
        adder_response = self._adder(input)
        # Pass the adder response directly into the multipler (no `await` needed).
        multiplier_response = self._multiplier(
            adder_response,
        )
        # `await` the final chained response.
        answer: int = await multiplier_response
        return answer


def test_chain() -> None:
    """chain.py: 10 of its 42 lines changed (2 imports, 3 decorators, 4 calls, `serve.run`)."""
    app = Ingress.bind(  # type: ignore[attr-defined]
        Adder.bind(increment=1),  # type: ignore[attr-defined]
        Multiplier.bind(multiple=2),  # type: ignore[attr-defined]
    )
    with penstock.run(app) as handle:
        response = handle(5)
        assert response.result() == 12, "(5 + 1) * 2 = 12"
        assert threading.active_count() > 1
    assert not [each for each in threading.enumerate() if each.name == "penstock-run"]


@penstock.backend
class Streamer:
    def __call__(self, limit: int) -> Generator[int, None, None]:
        yield from range(limit)


@penstock.backend
class Caller:
    def __init__(self, streamer: Handle) -> None:
        self._streamer = streamer.options(
            # Must set `stream=True` on the handle, then the output will be a
            # response generator.
            stream=True,
        )

    async def __call__(self, limit: int) -> AsyncGenerator[int, None]:
        # Response generator can be used in an `async for` block.
        r = self._streamer(limit)
        async for i in r:
            yield i


def test_stream() -> None:
    """stream.py: 7 of its 35 lines changed (2 imports, 2 decorators, 2 calls, `serve.run`)."""
    app = Caller.bind(Streamer.bind())  # type: ignore[attr-defined]
    handle = penstock.run(app).options(
        stream=True,
    )
    # Response generator can also be used as a regular generator in a sync context.
    r = handle(10)
    assert list(r) == list(range(10))


@penstock.backend
class Preprocessor:
    def __call__(self) -> str:
        return "Hello from preprocessor!"


@penstock.backend
class DownstreamModel:
    def pass_by_value(self, result: str) -> str:
        return f"Got result by value: '{result}'"

    async def pass_by_reference(self, wrapped_result: list[str]) -> str:
        # Do some preprocessing work before fetching the result.
        await asyncio.sleep(0)
        result: str = wrapped_result[0]
        return f"Got result by reference: '{result}'"


@penstock.backend
class ByMode:
    def __init__(self, preprocessor: Handle, downstream: Handle) -> None:
        self._preprocessor = preprocessor
        self._downstream = downstream

    async def __call__(self, mode: str) -> Any:
        preprocessor_response = self._preprocessor()
        if mode == "by_value":
            return await self._downstream.pass_by_value(preprocessor_response)
        return await self._downstream.pass_by_reference([await preprocessor_response])


def test_response_to_object_ref(capfd: pytest.CaptureFixture[str]) -> None:
    """response_to_object_ref.py: 16 of its 49 lines changed (4 imports, 3 decorators, 5 calls, `serve.run`).

    There are no references: the other 3 lines await the value before it is sent in a list, and use it.
    """
    app = ByMode.bind(Preprocessor.bind(), DownstreamModel.bind())  # type: ignore[attr-defined]
    with penstock.run(app) as handle:
        by_value_result = handle(mode="by_value").result()
        assert by_value_result == "Got result by value: 'Hello from preprocessor!'"
        by_reference_result = handle(mode="by_reference").result()
        assert by_reference_result == "Got result by reference: 'Hello from preprocessor!'"
    assert "@penstock.batched, if the list is a batch" in capfd.readouterr().err


@penstock.backend
class SayHi:
    def __call__(self) -> str:
        return "Hi from Serve deployment"


def say_hi_task(inp: str) -> str:
    return f"Ray task got message: '{inp}'"


@penstock.backend
class Tasks:
    def __init__(self, say_hi: Handle) -> None:
        self._say_hi = say_hi

    async def __call__(self) -> str:
        # Make a call to the SayHi deployment and pass the result to a downstream task.
        response = self._say_hi()
        return await asyncio.to_thread(say_hi_task, await response)


def test_a_downstream_task() -> None:
    """The guide's last program: 12 of its 26 lines changed; the task, which was Ray's, runs in a thread."""
    app = Tasks.bind(SayHi.bind())  # type: ignore[attr-defined]
    with penstock.run(app) as handle:
        assert handle().result() == "Ray task got message: 'Hi from Serve deployment'"


def test_hello() -> None:
    """Of hello.py's classes the responders are as in the guide; more in tests/process/sdk/ports."""

    @penstock.backend
    class SpanishResponder:
        def say_hello(self, name: str) -> str:
            return f"Hola {name}"

    @penstock.backend
    class Pair:
        def say_hello(self, greeting: str, name: str, mark: str = "!") -> str:
            return f"{greeting} {name}{mark}"

        def say_bye(self, name: str) -> str:
            return f"Adios {name}"

    with penstock.run(SpanishResponder) as spanish:
        assert spanish.say_hello("Dora").result() == "Hola Dora"
    with penstock.run(Pair) as pair:
        assert pair.say_hello("Hola", "Dora").result() == "Hola Dora!"
        assert pair.say_hello("Hola", name="Dora", mark="?").result() == "Hola Dora?"
        assert pair.say_bye("Dora").result() == "Adios Dora"
        with pytest.raises(penstock.UpstreamError, match="expected at most 3 arguments without a name"):
            pair.say_hello(1, 2, 3, 4).result()
        with pytest.raises(penstock.UpstreamError, match="expected a method among say_bye, say_hello"):
            pair("Dora").result()
