"""A served object's `reconfigure`: what it gets, what is said of it, and that nothing waits for it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock.model import Model
from penstock.server import ModelServer
from penstock.signature import read
from penstock.target import Served
from penstock_wire.headers import get
from penstock_wire.http import Request, Response

Ask = Callable[..., Any]


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    """Threads for blocking methods."""
    with ThreadPoolExecutor(4, thread_name_prefix="model") as threads:
        yield threads


def double(item: Any) -> Any:
    return 2 * item


class Tuned:
    """Takes a configuration."""

    def __init__(self) -> None:
        self.taken: list[tuple[Any, str]] = []

    def predict(self, item: Any) -> Any:
        return item

    def reconfigure(self, config: Any) -> None:
        if config == "boom":
            raise RuntimeError("no device left")
        if config == "exit":
            raise SystemExit(3)
        if not isinstance(config, dict):
            raise ValueError(f"expected an object, found {config!r}")
        self.taken.append((config, threading.current_thread().name))


class TunedAsync(Tuned):
    async def reconfigure(self, config: Any) -> None:
        await asyncio.sleep(0)
        super().reconfigure(config)


@pytest.fixture
def configure(executor: ThreadPoolExecutor) -> Ask:
    """Gives a model a configuration."""

    async def send(model: Any, body: bytes) -> tuple[int, str]:
        served = Served(
            shape=read(model.predict, "predict"),
            method=model.predict,
            reconfigure=getattr(model, "reconfigure", None),
        )
        server = ModelServer()
        server.serve(Model(served, executor))
        answer = await server.handle(Request(method="POST", target="/-/reconfigure", headers=(), body=body))
        return answer.status, json.loads(answer.body)["detail"] if answer.body else ""

    return send


@pytest.mark.parametrize("kind", [Tuned, TunedAsync])
async def test_a_configuration_is_taken_and_one_that_is_refused_is_told_why(
    configure: Ask, kind: type[Tuned]
):
    """204 when it is in force; what `reconfigure` raises is the problem's detail."""
    model = kind()
    assert await configure(model, b'{"threshold": 0.5}') == (204, "")
    assert [config for config, _ in model.taken] == [{"threshold": 0.5}]
    assert model.taken[0][1].startswith("model") == (kind is Tuned)
    assert await configure(model, b"7") == (
        422,
        "reconfigure raised ValueError: expected an object, found 7",
    )
    assert await configure(model, b'"boom"') == (500, "reconfigure raised RuntimeError: no device left")
    assert await configure(model, b'"exit"') == (500, "reconfigure raised SystemExit: 3")
    assert (await configure(model, b"{"))[0] == 400
    assert len(model.taken) == 1


async def test_one_that_blocks_stops_no_health_answer_and_goes_to_its_end_before_the_next(
    executor: ThreadPoolExecutor,
) -> None:
    """Who asked may have left: a half of a configuration is none."""
    begun, go_on, taken = threading.Event(), threading.Event(), []

    def reconfigure(config: Any) -> None:
        begun.set()
        assert go_on.wait(60)
        taken.append(config)

    server = ModelServer()
    served = Served(shape=read(double, "predict"), method=double, reconfigure=reconfigure)
    server.serve(Model(served, executor))

    def ask(config: bytes) -> asyncio.Task[Response]:
        headers = ((b"x-penstock-config", b"name of " + config),)
        return asyncio.create_task(server.handle(Request("POST", "/-/reconfigure", headers, config)))

    async def in_force() -> bytes | None:
        answer = await server.handle(Request("GET", "/", (), b""))
        assert answer.status == 200
        return get(answer.headers, b"x-penstock-config")

    first = ask(b"1")
    await asyncio.to_thread(begun.wait)
    assert await in_force() == b""
    second = ask(b"2")
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert (await in_force(), taken) == (b"", [])
    go_on.set()
    assert (await second).status == 204
    assert (await in_force(), taken) == (b"name of 2", [1, 2])


async def test_a_model_without_the_method_takes_no_configuration(configure: Ask):
    """It is no prediction either: 404 says what is missing."""

    class Fixed:
        def predict(self, item: Any) -> Any:
            raise AssertionError

    status, detail = await configure(Fixed(), b'{"instances": [1]}')
    assert (status, "reconfigure(config)" in detail) == (404, True)


async def test_a_configuration_is_taken_from_the_pods_sidecar_alone(executor: ThreadPoolExecutor):
    """Without its secret 403, and nothing changes; the ready path names the one that is in force."""
    model = Tuned()
    server = ModelServer(reconfigure_secret="s3cret")
    served = Served(shape=read(model.predict, "predict"), method=model.predict, reconfigure=model.reconfigure)
    server.serve(Model(served, executor))

    async def send(*headers: tuple[bytes, bytes], body: bytes = b"{}") -> int:
        request = Request(method="POST", target="/-/reconfigure", headers=headers, body=body)
        return (await server.handle(request)).status

    async def in_force() -> bytes | None:
        answer = await server.handle(Request(method="GET", target="/", headers=(), body=b""))
        assert answer.status == 200
        return get(answer.headers, b"x-penstock-config")

    secret = (b"x-penstock-reconfigure", b"s3cret")
    assert await in_force() == b""
    assert await send() == 403
    assert await send((b"x-penstock-reconfigure", b"s3cre")) == 403
    assert await send((b"x-penstock-config", b"mine")) == 403
    assert (model.taken, await in_force()) == ([], b"")
    assert await send(secret, (b"x-penstock-config", b"one")) == 204
    assert await in_force() == b"one"
    assert await send(secret, (b"x-penstock-config", b"two"), body=b"7") == 422
    assert await in_force() == b"one"
    assert await send(secret) == 204
    assert await in_force() == b"unnamed"
    assert len(model.taken) == 2
