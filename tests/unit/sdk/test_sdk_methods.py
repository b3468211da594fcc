"""Several methods a class, arguments for all items of a request, and what a method may know of its call."""

from __future__ import annotations

import asyncio
import contextvars
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import penstock
import penstock.testing
from penstock import call_context
from penstock.model import Model
from penstock.server import ModelServer
from penstock.signature import read
from penstock.target import Served, find
from penstock_wire.headers import get
from penstock_wire.http import Request

MODULE = """
import asyncio
import contextvars
import penstock


def seen():
    found = penstock.context()
    return [list(found.request_ids), found.headers.get("x-who"), found.seconds_left is not None]


class Many:
    @penstock.batched
    def predict(self, items, *, plus: int = 0):
        return [item + plus for item in items]

    @penstock.batched(columns=True)
    async def joined(self, a, b="-", *, sep):
        return [f"{x}{sep}{y}" for x, y in zip(a, b)]

    @penstock.batched
    def stream(self, items, *, times=1):
        for step in range(times):
            yield [[item, seen()] for item in items]

    @penstock.batched
    def blocking(self, items):
        return [seen() for _ in items]

    @penstock.batched
    async def asynchronous(self, items):
        return [seen() for _ in items]

    def greet(self):
        return "hi"

    def pair(self, a, b=0):
        return [a, b]

    def loose(self, *items):
        return items

    def _private(self, item):
        return item


class Two:
    @penstock.batched
    def a(self, items):
        return items

    @penstock.batched
    def b(self, items):
        return [-item for item in items]


def function(item):
    return item
"""
Ask = Callable[..., Any]


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    """Asks a server of a target: status, and the document or the stream's lines."""
    (tmp_path / "many_methods.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    with ThreadPoolExecutor(4) as threads:

        async def ask(target: str, path: str, headers: dict[str, str] | None = None, **body: Any) -> Any:
            built = find(f"many_methods:{target}").build()
            server = ModelServer()
            methods = {name: Model(served, threads) for name, served in built.methods.items()}
            server.serve(Model(built, threads), methods, default=built.default)
            fields = tuple((name.encode(), value.encode()) for name, value in (headers or {}).items())
            answer = await server.handle(
                Request(method="POST", target=path, headers=fields, body=json.dumps(body).encode())
            )
            if answer.stream is None:
                return answer.status, json.loads(answer.body)
            # In another task and context, as a connection may send it.
            lines = await asyncio.create_task(_read(answer.stream), context=contextvars.Context())
            return answer.status, lines

        yield ask
    sys.modules.pop("many_methods", None)


async def _read(stream: AsyncIterator[bytes]) -> list[Any]:
    return [json.loads(piece) for piece in [piece async for piece in stream] if piece]


@pytest.mark.parametrize(
    ("target", "path", "method", "expected"),
    [
        ("Many", "/anything", "", [2]),
        ("Many", "/v1/models/m:predict", "", [2]),
        ("Many", "/v1/x", "predict", [2]),
        ("Many", "/joined?x=predict", "predict", [2]),
        ("Many", "/v1/models/m:greet", "", ["hi"]),
        ("Many", "/predict", "greet", ["hi"]),
        ("Two", "/v1/models/two:b", "", [-2]),
        ("Two", "/a/b", "", [-2]),
        ("Two", "/a", "b", [-2]),
        ("function", "/anything", "", [2]),
        ("function", "/anything", "function", [2]),
    ],
)
async def test_a_request_names_a_method_by_its_header_or_the_end_of_its_path(
    ask: Ask, target: str, path: str, method: str, expected: list[int]
) -> None:
    headers = {"x-penstock-method": method} if method else {}
    assert await ask(target, path, headers, instances=[2]) == (200, {"predictions": expected})


@penstock.batched
def blocks(items: list[Any]) -> list[Any]:
    return items


@penstock.batched
async def waits(items: list[Any]) -> list[Any]:
    return items


@pytest.mark.parametrize(
    ("functions", "default", "said"),
    [
        ({"predict": waits}, True, b"1"),
        ({"predict": blocks}, True, None),
        ({"predict": blocks, "embed": waits}, True, b"predict=0, embed=1, *=0"),
        ({"predict": waits, "embed": blocks}, True, b"predict=1, embed=0, *=1"),
        ({"predict": waits, "embed": blocks}, False, b"predict=1, embed=0"),
    ],
)
async def test_the_ready_path_says_of_which_methods_a_call_ends_with_its_connection(
    functions: dict[str, Callable[..., Any]], default: bool, said: bytes | None
) -> None:
    """A thread would go on."""
    with ThreadPoolExecutor(1) as threads:
        methods = {
            name: Model(Served(shape=read(function, name), method=function), threads)
            for name, function in functions.items()
        }
        server = ModelServer()
        server.serve(methods["predict"], methods, default=default)
        answer = await server.handle(Request("GET", "/", (), b""))
    assert get(answer.headers, b"x-penstock-cancellable") == said


@pytest.mark.parametrize(
    ("target", "path", "method", "said"),
    [
        ("Two", "/c", "", "expected the end of the path to name a method (a, b), found 'c'"),
        ("Two", "/", "", "expected the end of the path to name a method (a, b), found ''"),
        ("Two", "/a", "c", "expected x-penstock-method to name a method (a, b), found 'c'"),
        (
            "Many",
            "/a",
            "_private",
            "(asynchronous, blocking, greet, joined, pair, predict, stream), found '_private'",
        ),
        ("function", "/a", "other", "expected x-penstock-method to name a method (function), found 'other'"),
    ],
)
async def test_a_method_that_is_not_there_is_404_with_the_list(
    ask: Ask, target: str, path: str, method: str, said: str
) -> None:
    """Nor is one whose name begins with an underscore, or whose arguments have no names."""
    headers = {"x-penstock-method": method} if method else {}
    status, problem = await ask(target, path, headers, instances=[2])
    assert (status, problem["reason"]) == (404, "no_route")
    assert problem["detail"].endswith(said)
    assert problem["methods"] == sorted(problem["methods"])


async def test_members_beside_instances_are_arguments_for_all_items(ask: Ask) -> None:
    """Of every form: a list, columns, a stream; one that is left out has its default."""
    assert await ask("Many", "/predict", instances=[1, 2], plus=10) == (200, {"predictions": [11, 12]})
    assert await ask("Many", "/predict", instances=[1, 2]) == (200, {"predictions": [1, 2]})
    columns = await ask("Many", "/joined", instances=[{"a": 1}, {"a": 2, "b": 3}], sep="+")
    assert columns == (200, {"predictions": ["1+-", "2+3"]})
    _, lines = await ask("Many", "/stream", {"accept": "application/x-ndjson"}, instances=[1], times=3)
    assert len(lines) == 3


@pytest.mark.parametrize(
    ("path", "members", "said", "where"),
    [
        ("/blocking", {"plus": 1}, '$: expected no member beside "instances", found plus', ("$", "plus")),
        (
            "/predict",
            {"minus": 1},
            '$: expected no member beside "instances" but plus, found minus',
            ("$", "minus"),
        ),
        ("/joined", {}, '$: expected beside "instances" a member sep, found none', ("$", "none")),
        ("/predict", {"plus": "x"}, "$.plus: ", ("$.plus", "another")),
    ],
)
async def test_members_that_do_not_fit_the_parameters_are_refused(
    ask: Ask, path: str, members: dict[str, Any], said: str, where: tuple[str, str]
) -> None:
    status, problem = await ask("Many", path, instances=[{"a": 1}], **members)
    assert (status, problem["reason"]) == (422, "bad_shape")
    assert problem["detail"].startswith(said)
    assert (problem["path"], problem["found"]) == where


@pytest.mark.parametrize("path", ["/blocking", "/asynchronous", "/stream"])
async def test_a_method_knows_whom_it_answers(ask: Ask, path: str) -> None:
    """In a thread and on the loop, and in every step of a stream, whoever sends that."""
    headers = {
        "x-request-id": "r1,r2",
        "x-who": "me",
        "x-penstock-timeout-ms": "5000",
        "accept": "application/x-ndjson",
    }
    expected = [["r1", "r2"], "me", True]
    _, document = await ask(
        "Many", path, headers, instances=[7], **({"times": 3} if path == "/stream" else {})
    )
    if path == "/stream":
        assert document == [[7, expected]] * 3
    else:
        assert document == {"predictions": [expected]}


def test_outside_of_a_request_only_the_place_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_context, "_PLACE", ("models", "digits", "digits-1"))
    context = penstock.context()
    assert (context.namespace, context.backend, context.pod) == ("models", "digits", "digits-1")
    assert (context.request_ids, context.headers) == ((), {})
    assert (context.deadline, context.seconds_left) == (None, None)
    assert (context.model_id, context.batch_limit) == ("", None)


async def test_the_batch_limit_is_what_the_sidecar_said_last() -> None:
    """With its probes; a client's field says nothing."""

    @penstock.batched
    def limit(items: list[int]) -> list[int | None]:
        return [penstock.context().batch_limit for _ in items]

    server = ModelServer("/health")
    with ThreadPoolExecutor(1) as threads:
        server.serve(Model(Served(shape=read(limit, "limit"), method=limit), threads))
        for method, path, said, expected in (
            ("POST", "/health", b"9", b"null"),
            ("GET", "/health", b"16", b"16"),
            ("GET", "/health", b"8", b"8"),
            ("GET", "/other", b"7", b"8"),
            ("GET", "/health", b"many", b"8"),
        ):
            await server.handle(Request(method, path, ((b"x-penstock-batch-limit", said),), b"{}"))
            answer = await server.handle(Request("POST", "/", (), b'{"instances": [1]}'))
            assert answer.body == b'{"predictions":[%b]}' % expected
    async with penstock.testing.serving(limit, max_batch_size=5) as served:
        assert await served(1) == 5


async def test_calls_in_process_inherit_the_deadline_of_their_request() -> None:
    """A `__call__` that works around a batch does not wait longer than its own client."""

    @penstock.batch(timeout=3600)
    async def never(items: list[int]) -> list[int]:
        await asyncio.Event().wait()
        return items

    async def request() -> int:
        call_context.begin(((b"x-penstock-timeout-ms", b"20"), (b"a", b"1"), (b"a", b"2")))
        assert penstock.context().headers["a"] == "1, 2"
        return await never(1)

    with pytest.raises(penstock.DeadlineExceeded):
        await asyncio.create_task(request())
