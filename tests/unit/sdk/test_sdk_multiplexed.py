"""Many models in one process: each is loaded once, the least recently used goes, none while it is used."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest

import penstock
import penstock.testing
from penstock.errors import ArgumentsError
from penstock.model import Model
from penstock.multiplexed import MAX_ABSENT, Models
from penstock.server import ModelServer
from penstock.target import find, target_of
from penstock_wire.http import Request, Response
from tests.support.processes.sidecar_process import until

SECONDS = 10


class Weights:
    """A model that notes its end."""

    def __init__(self, model_id: str, noted: list[str]) -> None:
        if model_id == "broken":
            raise LookupError("no such weights")
        self.model_id, self.noted = model_id, noted
        noted.append(f"+{model_id}")

    def close(self) -> None:
        self.noted.append(f"-{self.model_id}")


class Blocking:
    def __init__(self) -> None:
        self.noted: list[str] = []

    @penstock.multiplexed(max_models=2)
    def weights(self, model_id: str) -> Weights:
        return Weights(model_id, self.noted)

    @penstock.batched
    def predict(self, items: list[Any]) -> list[Any]:
        model = self.weights(penstock.context().model_id)
        return [[model.model_id, item] for item in items]


class Awaited:
    def __init__(self) -> None:
        self.noted: list[str] = []
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    @penstock.multiplexed(max_models=2)
    async def weights(self, model_id: str) -> Weights:
        await self.goes_on.wait()
        model = Weights(model_id, self.noted)
        model.close = self.note_end(model_id)  # type: ignore[method-assign,assignment]
        return model

    def note_end(self, model_id: str) -> Any:
        async def close() -> None:
            await asyncio.sleep(0)
            self.noted.append(f"-{model_id}")

        return close

    @penstock.batched
    async def predict(self, items: list[Any]) -> list[Any]:
        model = await self.weights(penstock.context().model_id)
        return [[model.model_id, item] for item in items]


@pytest.fixture(params=[Blocking, Awaited])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


async def test_the_model_that_was_not_used_for_longest_goes(kind: Any) -> None:
    """When the next is loaded; all go at the end."""
    noted: list[str] = []

    class Noted(kind):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.noted = noted

    async with penstock.testing.serving(Noted) as served:
        for model_id in "abac":
            assert await served.options(model_id=model_id)(1) == [model_id, 1]
        assert noted == ["+a", "+b", "+c", "-b"]
    assert sorted(noted[4:]) == ["-a", "-c"]


async def test_requests_for_two_models_share_no_batch(kind: Any) -> None:
    async with penstock.testing.serving(kind) as served:
        calls = [served.options(model_id=model_id)(number) for number, model_id in enumerate("abab")]
        assert await asyncio.gather(*calls) == [["a", 0], ["b", 1], ["a", 2], ["b", 3]]
        assert sorted(served.batches) == [[0, 2], [1, 3]]


async def test_a_load_that_fails_fails_its_callers_and_is_tried_again(kind: Any) -> None:
    made = kind()
    for _ in range(2):
        with pytest.raises(LookupError, match="no such weights"):
            await got(made.weights, "broken")
    assert made.noted == []
    assert (await got(made.weights, "a")).model_id == "a"


class Paths:
    """A loader of files, as most are written."""

    def __init__(self, folder: Path) -> None:
        self.loads: list[str] = []
        self.folder = folder

    @penstock.multiplexed(max_models=1)
    def by_name(self, model_id: str) -> str:
        self.loads.append(model_id)
        return (self.folder / model_id).read_text()

    @penstock.multiplexed(max_models=1)
    def by_table(self, model_id: str) -> str:
        self.loads.append(model_id)
        return {"a": "text of a"}[model_id]

    @penstock.multiplexed(max_models=1)
    async def by_word(self, model_id: str) -> str:
        self.loads.append(model_id)
        if model_id != "a":
            raise penstock.UnknownModel("none")
        return "text of a"

    @penstock.multiplexed(ids="[a-z]+/[a-z]+")
    def in_folders(self, model_id: str) -> str:
        return model_id


@pytest.mark.parametrize("loader", ["by_name", "by_table", "by_word"])
async def test_an_id_that_has_no_model_is_the_clients_error_and_costs_one_load(
    loader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is remembered for a while, and evicts no model."""
    (tmp_path / "a").write_text("text of a")
    made = Paths(tmp_path)
    load = getattr(made, loader)
    assert await got(load, "a") == "text of a"
    for _ in range(3):
        with pytest.raises(ArgumentsError, match="expected the id of a model, found 'b', which has none"):
            await got(load, "b")
    assert await got(load, "a") == "text of a"
    assert made.loads == ["a", "b"]
    monkeypatch.setitem(Models._failed.__globals__, "ABSENT_SECONDS", -1.0)
    for _ in range(2):
        with pytest.raises(ArgumentsError):
            await got(load, "c")
    assert made.loads == ["a", "b", "c", "c"]


def test_made_up_ids_are_forgotten_again(tmp_path: Path) -> None:
    made = Paths(tmp_path)
    for number in range(MAX_ABSENT + 1):
        with pytest.raises(ArgumentsError):
            made.by_table(f"x{number}")
    with pytest.raises(ArgumentsError):
        made.by_table("x0")
    assert made.loads[-1] == "x0"


@pytest.mark.parametrize(
    "model_id", ["../a", "/a", "a/../b", ".a", "a\\b", "a\n", "a\0", "\u00e4", "-a", "a" * 257]
)
def test_an_id_of_another_form_never_reaches_a_loader(model_id: str, tmp_path: Path) -> None:
    """An id is a file's name by default: a client must not choose a folder."""
    made = Paths(tmp_path)
    with pytest.raises(ArgumentsError, match=r"of the form \[A-Za-z0-9\]"):
        made.by_name(model_id)
    assert made.loads == []
    assert made.in_folders("org/model") == "org/model"
    with pytest.raises(ArgumentsError):
        made.in_folders("model")


class Elsewhere:
    """Its model is asked for in a batch of calls, and in a thread that does not know its request."""

    latest: ClassVar[Elsewhere]

    def __init__(self) -> None:
        self.noted: list[str] = []
        self.ends = asyncio.Event()
        Elsewhere.latest = self

    @penstock.multiplexed(max_models=1)
    def weights(self, model_id: str) -> Weights:
        return Weights(model_id, self.noted)

    @penstock.batch(max_concurrent_batches=2)
    async def gathered(self, items: list[Any]) -> list[Any]:
        model = self.weights(penstock.context().model_id)
        await self.ends.wait()
        return [model.model_id for _ in items]

    @penstock.batched
    async def by_batch(self, items: list[Any]) -> list[Any]:
        return list(await asyncio.gather(*(self.gathered(item) for item in items)))

    @penstock.batched
    async def by_pool(self, items: list[Any]) -> list[Any]:
        loop, model_id = asyncio.get_running_loop(), penstock.context().model_id
        with ThreadPoolExecutor(1) as threads:
            model = await loop.run_in_executor(threads, self.weights, model_id)
        await self.ends.wait()
        return [model.model_id for _ in items]


@pytest.mark.parametrize("method", ["by_batch", "by_pool"])
async def test_a_model_is_not_closed_while_it_is_used_elsewhere(method: str) -> None:
    """In `@penstock.batch`, where the id is that of the request, and in a pool of threads."""
    async with penstock.testing.serving(Elsewhere, max_concurrent_batches=2) as served:
        noted = Elsewhere.latest.noted
        calls = []
        for model_id in "ab":
            calls.append(asyncio.create_task(_answer(served.method(method).options(model_id=model_id))))
            await noted_by_now(noted, f"+{model_id}")
        assert noted == ["+a", "+b"]
        Elsewhere.latest.ends.set()
        assert await asyncio.gather(*calls) == ["a", "b"]
        await noted_by_now(noted, "-a")


async def _answer(method: Any) -> Any:
    return await method(1)


async def test_calls_at_once_load_a_model_once_whoever_leaves() -> None:
    made = Awaited()
    made.goes_on.clear()
    calls = [asyncio.ensure_future(made.weights("a")) for _ in range(3)]
    await asyncio.sleep(0)
    calls[0].cancel()  # it asked first
    await asyncio.sleep(0)
    made.goes_on.set()
    assert len({id(each) for each in await asyncio.gather(*calls[1:])}) == 1
    assert made.noted == ["+a"]


def test_threads_load_a_model_once() -> None:
    made = Blocking()
    with ThreadPoolExecutor(8) as threads:
        assert len({id(each) for each in threads.map(made.weights, "a" * 64)}) == 1
    assert made.noted == ["+a"]


class Held(Awaited):
    """Its calls go on when they may."""

    latest: ClassVar[Held]

    def __init__(self) -> None:
        super().__init__()
        self.ends = asyncio.Event()
        Held.latest = self

    @penstock.batched
    async def hold(self, items: list[Any]) -> list[Any]:
        await self.weights(penstock.context().model_id)
        await self.ends.wait()
        return items

    @penstock.batched
    async def pieces(self, items: list[Any]) -> Any:
        await self.weights(penstock.context().model_id)
        yield items
        await self.ends.wait()
        yield items


async def noted_by_now(noted: list[str], what: str) -> None:
    async def there() -> bool:
        return what in noted

    await until(there, seconds=SECONDS)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_model_is_not_closed_while_a_call_has_it(streamed: bool) -> None:
    server, fields = serving_held(), {b"accept": b"text/event-stream"} if streamed else {}
    noted, ends = Held.latest.noted, Held.latest.ends
    path = "/pieces" if streamed else "/hold"

    async def use(model_id: str, path: str) -> bytes:
        headers = ((b"x-penstock-model-id", model_id.encode()), *fields.items())
        answer = await server.handle(Request("POST", path, headers, b'{"instances": [1]}'))
        assert answer.status == 200, answer.body
        return answer.body if answer.stream is None else b"".join([part async for part in answer.stream])

    first = asyncio.create_task(use("a", path))
    await noted_by_now(noted, "+a")
    for model_id in "bcd":
        await use(model_id, "/predict")
    assert noted == ["+a", "+b", "+c", "-b", "+d", "-c"]  # "a" was not used for longest, but is in use
    second = asyncio.create_task(use("d", path))
    third = asyncio.create_task(use("e", path))
    await noted_by_now(noted, "+e")
    assert "-a" not in noted
    ends.set()
    await asyncio.gather(first, second, third)
    await noted_by_now(noted, "-a")
    assert noted[6:] == ["+e", "-a"]


def serving_held() -> ModelServer:
    """A server of the class; none of its methods blocks."""
    served = target_of("held", Held).build()
    unused = ThreadPoolExecutor(1)
    server = ModelServer()
    server.serve(Model(served, unused), {name: Model(each, unused) for name, each in served.methods.items()})
    return server


async def got(load: Any, model_id: str) -> Any:
    result = load(model_id)
    return await result if asyncio.iscoroutine(result) else result


async def ask(kind: Any, items: str = "[1, 2, 3]", **headers: str) -> Response:
    """What a server of the class answers to a request for these items."""
    served = target_of(kind.__name__, kind).build()
    with ThreadPoolExecutor(1) as threads:
        server = ModelServer()
        server.serve(
            Model(served, threads), {name: Model(each, threads) for name, each in served.methods.items()}
        )
        fields = tuple((name.replace("_", "-").encode(), text.encode()) for name, text in headers.items())
        return await server.handle(Request("POST", "/", fields, b'{"instances": %b}' % items.encode()))


async def test_a_request_that_says_no_model_is_told_so(kind: Any) -> None:
    answer = await ask(kind)
    problem = json.loads(answer.body)
    assert (answer.status, problem["reason"]) == (422, "missing_arguments")
    assert "x-penstock-model-id" in problem["detail"]
    assert (await ask(kind, x_penstock_model_id="a")).status == 200


class Tables:
    """Its models are in a dict; it takes one item, or a batch."""

    @penstock.multiplexed()
    def table(self, model_id: str) -> str:
        return {"a": "text of a"}[model_id]

    def __call__(self, item: int) -> str:
        return self.table(penstock.context().model_id)

    @penstock.batched
    def many(self, items: list[int]) -> list[str]:
        return [self.table(penstock.context().model_id)] * len(items)


@pytest.mark.parametrize("method", ["__call__", "many"])
async def test_a_caller_may_catch_an_unknown_model_as_the_key_error_that_it_is(method: str) -> None:
    """In one process, and by the names of its classes over HTTP; the second time without a load."""
    problem = json.loads((await ask(Tables, "[1]", x_penstock_method=method, x_penstock_model_id="b")).body)
    assert problem["exception"] == ["builtins:KeyError", "builtins:LookupError"]
    async with penstock.testing.serving(Tables) as tables:
        for _ in range(2):
            with pytest.raises(KeyError, match="found 'b', which has none") as raised:
                await tables.handle.options(model_id="b", method=method)(1)
            assert isinstance(raised.value, penstock.UpstreamError)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda: penstock.multiplexed(0), ValueError, "1 or more, found 0"),
        (lambda: penstock.multiplexed(Blocking.predict), TypeError, "a number of models in brackets"),  # type: ignore[arg-type]
        (lambda: penstock.multiplexed(2)(Blocking), TypeError, "a method or a function, found <class"),
        (lambda: Models(str, 2)(7), TypeError, "as text, found 7"),  # type: ignore[arg-type]
        (lambda: Models(str, 2)(""), ArgumentsError, "in the header x-penstock-model-id"),
    ],
)
def test_what_is_wrong_is_said(wrong: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        wrong()


def test_a_loader_is_no_method_that_requests_may_name() -> None:
    assert list(find(f"{__name__}:Blocking").build().methods) == ["predict"]


class Odd:
    """A model whose `close` cannot even be looked up."""

    def __getattr__(self, name: str) -> Any:
        raise LookupError(name)


async def test_however_a_model_ends_the_others_are_served_and_closed() -> None:
    """An odd `close`, an asynchronous one beside a blocking loader, and a hook of the class that raises."""
    noted: list[str] = []

    class Closing:
        def __init__(self, model_id: str) -> None:
            self.model_id = model_id

        async def close(self) -> None:
            await asyncio.sleep(0)
            noted.append(self.model_id)

    class Mixed:
        @penstock.multiplexed(max_models=2)
        def weights(self, model_id: str) -> Any:
            return Odd() if model_id == "odd" else Closing(model_id)

        def predict(self, item: str) -> str:
            self.weights(item)
            return item

        def close(self) -> None:
            raise OSError("no disk")

    async def use() -> None:
        async with penstock.testing.serving(Mixed) as mixed:
            assert [await mixed(each) for each in ("odd", "a", "b", "c")] == ["odd", "a", "b", "c"]
            await until(lambda: noted == ["a"])

    with pytest.raises(OSError, match="no disk"):
        await use()
    assert noted == ["a", "b", "c"]


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_loaders_that_wait_for_each_others_models_in_two_requests(*, asynchronous: bool) -> None:
    """Neither request is part of the other: what would close the circle fails, and with it the first."""
    other = {"a": "b", "b": "a"}
    begun, begun_async = threading.Barrier(2), asyncio.Barrier(2)

    def load(model_id: str) -> Any:
        begun.wait(SECONDS)
        return models(other[model_id])

    async def load_async(model_id: str) -> Any:
        await begun_async.wait()
        return await models(other[model_id])

    models = Models(load_async if asynchronous else load, most=3)
    calls = (models(each) if asynchronous else asyncio.to_thread(models, each) for each in other)
    failed = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), SECONDS)
    assert ["by way of the loader of" in str(each) for each in failed] == [True, True]
    await models.close()


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("ids", [{"a": "a"}, {"a": "b", "b": "a"}], ids=["own", "by-another"])
async def test_a_loader_that_asks_for_its_own_model(asynchronous: bool, ids: dict[str, str]) -> None:
    """It would wait for itself for good; the next call with another id is loaded."""

    def load(model_id: str) -> Any:
        return models(ids[model_id]) if model_id in ids else model_id

    async def load_async(model_id: str) -> Any:
        return await models(ids[model_id]) if model_id in ids else model_id

    models = Models(load_async if asynchronous else load, most=3)

    async def loaded(model_id: str) -> Any:
        call = models(model_id) if asynchronous else asyncio.to_thread(models, model_id)
        return await asyncio.wait_for(call, SECONDS)

    for _ in range(2):
        with pytest.raises(RuntimeError, match="expected a loader that loads 'a', found that it asks for it"):
            await loaded("a")
    assert await loaded("c") == "c"
    await models.close()
