"""`penstock.run`: an application in the process of a script."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

import penstock
from penstock.composition import Application, bound
from penstock.errors import LoadError


class Echo:
    """Says what it was given; counts the objects that are open."""

    open = 0

    def __init__(self, mark: str = "") -> None:
        self.mark = mark
        if mark == "broken":
            raise ValueError("no such file")

    def load(self) -> None:
        Echo.open += 1

    def close(self) -> None:
        Echo.open -= 1
        if self.mark == "unclosed":
            raise OSError("cannot close")

    @penstock.batched
    async def predict(self, items: list[Any]) -> list[Any]:
        await asyncio.sleep(0)
        return [[self.mark, item, len(items)] for item in items]


def echo(mark: str) -> Application:
    return bound(Echo, {"mark": mark})


def test_a_second_run_of_the_same_name_replaces_the_first() -> None:
    """As when a cell of a notebook runs again: one object is open at a time, and old handles call the new."""
    first = penstock.run(echo("a"))
    assert first(1).result() == ["a", 1, 1]
    with penstock.run(echo("b")) as second:
        assert Echo.open == 1
        assert first(1).result() == second(1).result() == ["b", 1, 1]
        assert pickle.loads(pickle.dumps(second)) == second  # noqa: S301 - of this test
    assert Echo.open == 0
    second.close()
    with pytest.raises(penstock.EndpointNotFound):
        second(1).result()


def test_its_calls_share_batches_by_the_settings_of_the_class() -> None:
    @penstock.backend(name="small", batching={"maxBatchSize": 2, "batchWaitTimeout": "1m"})
    class Small(Echo):
        pass

    with penstock.run(Small.bind()) as handle:  # type: ignore[attr-defined]
        calls = [handle(item) for item in range(4)]
        assert [call.result() for call in calls] == [["", item, 2] for item in range(4)]


def test_the_user_config_of_the_class_is_in_force_when_it_is_ready() -> None:
    @penstock.backend(name="tuned", spec={"userConfig": {"mark": "x"}, "replicas": 2})
    class Tuned(Echo):
        def reconfigure(self, config: dict[str, str]) -> None:
            self.mark = config["mark"]

    with penstock.run(Tuned.bind()) as handle:  # type: ignore[attr-defined]
        assert handle(1).result() == ["x", 1, 1]


def test_names_of_ray_serve_are_refused_with_those_here() -> None:
    with penstock.run(echo("a")) as handle:
        with pytest.raises(AttributeError, match=r"expected predict\(…\), found predict.remote: drop"):
            handle.predict.remote(1)
        with pytest.raises(AttributeError, match=r"expected handle\(…\), found handle.remote"):
            handle.remote(1)
        with pytest.raises(TypeError, match=r"found method_name: did you mean method\?"):
            handle.options(method_name="predict")  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"did you mean model_id\?"):
            handle.options(multiplexed_model_id="1")  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"expected result\(timeout\), in seconds, found timeout_s"):
            handle(1).result(timeout_s=5)  # type: ignore[arg-type]


async def test_in_a_notebook_a_call_is_awaited() -> None:
    """A notebook's cells run in an event loop of their own."""
    with penstock.run(echo("a")) as handle:
        assert await handle(1) == ["a", 1, 1]
        with pytest.raises(RuntimeError, match="await the call"):
            handle(1).result()


def test_what_cannot_begin_or_end_raises_where_it_was_asked_for() -> None:
    with pytest.raises(ValueError, match="no such file"):
        penstock.run(echo("broken"))
    with pytest.raises(LoadError, match="expected a class, a function or an application, found 7"):
        penstock.run(7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"expected blocking, port, .*, found name, route_prefix"):
        penstock.run(echo("a"), name="a", route_prefix="/")  # type: ignore[call-arg]
    with pytest.raises(LoadError, match="echo: expected a method reconfigure for its userConfig, found none"):
        penstock.run(Application(Echo, {}, spec={"userConfig": 1}))
    handle = penstock.run(echo("unclosed"))
    with pytest.raises(OSError, match="cannot close"):
        handle.close()


def test_a_batch_size_for_a_class_that_takes_no_batches_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    """Ray's `max_batch_size` would have batched it."""

    def score(item: int) -> int:
        return item

    penstock.backend(batching={"maxBatchSize": 8})(score)
    assert '"found":"maxBatchSize 8"' in capfd.readouterr().err.replace(": ", ":")
    penstock.backend(batching={"maxBatchSize": 8})(penstock.batched(lambda items: items))
    assert capfd.readouterr().err == ""
    with pytest.raises(penstock.CompositionError, match="expected batching once"):
        penstock.backend(batching={}, spec={"batching": {}})


def test_a_method_for_batches_beside_a_default_one_for_items_is_told(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Its node has maxBatchSize 1, so each of its batches would be of one item."""

    @penstock.backend
    class Mixed:
        def __call__(self, item: int) -> int:
            return item

        @penstock.batched
        def embed(self, items: list[int]) -> list[int]:
            return items

    Mixed.bind()  # type: ignore[attr-defined]
    assert "a method that takes batches gets one item a call" in capfd.readouterr().err
    penstock.backend(batching={"maxBatchSize": 4})(type("Own", (Mixed,), {})).bind()  # type: ignore[attr-defined]
    bound(Echo, {})
    assert capfd.readouterr().err == ""
