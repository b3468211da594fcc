"""`penstock.Request`: a method that asks for the HTTP request by its annotation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.requests import Request as StarletteRequest

import penstock
from penstock import Request
from penstock.errors import LoadError
from penstock.model import Model
from penstock.server import ModelServer
from penstock.signature import read
from penstock.target import target_of
from penstock.testing import serving
from penstock_wire import http

Ask = Callable[..., Awaitable[tuple[int, bytes, bytes]]]


class Site:
    """Methods that take the request: alone, beside an item, in batches, as a stream."""

    async def __call__(self, request: Request) -> Any:
        if request.method == "POST":
            return {"json": await request.json(), "who": request.headers.get("X-Who")}
        return f"Hello {request.query_params['name']}"

    def echo(self, request: penstock.Request) -> bytes:
        return request.content

    def resized(self, request: Request, image: list[int], size: int = 2) -> list[Any]:
        return [image[:size], request.headers["x-who"], request.path]

    @penstock.batched
    async def many(self, requests: list[Request]) -> list[Any]:
        if any(request.headers.get("x-who") == "nobody" for request in requests):
            raise KeyError("nobody")
        answers = {"teapot": penstock.Response(418, body="short"), "odd": ValueError("odd")}
        return [
            answers.get(request.headers["x-who"]) or [request.headers["x-who"], len(requests)]
            for request in requests
        ]

    @penstock.batched
    def scored(self, items: list[int], requests: list[Request], *, plus: int = 0) -> list[Any]:
        return [
            [item + plus, request.headers.get("x-who"), request.content.decode()]
            for item, request in zip(items, requests, strict=True)
        ]

    @penstock.batched
    async def lines(self, requests: list[Request]) -> AsyncIterator[list[Any]]:
        for step in range(2):
            yield [f"{request.path}{step}" for request in requests]


@pytest.fixture
def ask() -> Iterator[Ask]:
    """Sends a request to a server of `Site`: status, content type and body."""
    threads = ThreadPoolExecutor(4)
    built = target_of("m:Site", Site).build()
    server = ModelServer("/health")
    server.serve(
        Model(built, threads), {name: Model(served, threads) for name, served in built.methods.items()}
    )

    async def ask(method: str, target: str, body: bytes = b"", **fields: str) -> tuple[int, bytes, bytes]:
        headers = tuple((name.replace("_", "-").encode(), text.encode()) for name, text in fields.items())
        answer = await server.handle(http.Request(method, target, headers, body))
        whole = answer.body
        if answer.stream is not None:
            whole = b"".join([piece async for piece in answer.stream])
        return answer.status, dict(answer.headers).get(b"content-type", b""), whole

    yield ask
    threads.shutdown()


async def test_a_request_of_any_kind_reaches_a_method_that_takes_it(ask: Ask) -> None:
    """Of any method, path and content type; the answer is what the method returns, without `predictions`."""
    plain, octets = b"text/plain; charset=utf-8", b"application/octet-stream"
    assert await ask("GET", "/?name=Ann+B%C3%A9&name=Ann+B") == (200, plain, b"Hello Ann B")
    assert await ask("PUT", "/echo", b"\0\xff", content_type="image/png") == (200, octets, b"\0\xff")
    status, kind, body = await ask("POST", "/any/path", b'{"a": [1]}', x_who="ann")
    assert (status, kind, json.loads(body)) == (
        200,
        b"application/json",
        {"json": {"a": [1]}, "who": "ann"},
    )
    assert (await ask("POST", "/", b'{"instances": 7}'))[2] == b'{"json":{"instances":7},"who":null}'
    assert (await ask("GET", "/?age=7"))[0] == 500
    assert (await ask("DELETE", "/resized"))[0] == 405


async def test_a_request_with_instances_is_one_for_each_item(ask: Ask) -> None:
    """As handles send it, and as a sidecar joins it: each item is the body of its own."""
    assert (await ask("POST", "/", b'{"instances": [1, {"b": 2}]}', x_who="ann"))[2] == (
        b'{"predictions":[{"json":1,"who":"ann"},{"json":{"b":2},"who":"ann"}]}'
    )
    two = b'{"instances": [{"image": [1, 2, 3]}, {"image": [4], "size": 1}]}'
    assert (await ask("POST", "/v1/resized?x=1", two, x_who="ann"))[2] == (
        b'{"predictions":[[[1,2],"ann","/v1/resized"],[[4],"ann","/v1/resized"]]}'
    )
    assert (await ask("POST", "/scored", b'{"instances": [1, 2], "plus": 5}'))[2] == (
        b'{"predictions":[[6,null,"1"],[7,null,"2"]]}'
    )
    assert (await ask("POST", "/scored", b'{"items": [1]}'))[0] == 422


async def test_probes_and_pages_are_not_the_methods(ask: Ask) -> None:
    probe = await ask("GET", "/health", x_penstock_batch_limit="4")
    assert probe == (200, b"application/json", b'{"state":"ready"}')
    assert (await ask("GET", "/health"))[2] == b'{"state":"ready"}'
    assert json.loads((await ask("GET", "/openapi.json"))[2])["openapi"] == "3.1.0"


async def test_requests_share_batches_whatever_their_fields_are(ask: Ask) -> None:
    """Each has its own fields; what fails fails alone, also where the whole batch raises."""
    await ask("GET", "/health", x_penstock_batch_limit="8")
    # NB: before any fails: afterwards batches are as large as pays by the times that were measured.
    all_good = await asyncio.gather(*(ask("GET", "/many", x_who=each) for each in ("ann", "bob")))
    assert [body for _, _, body in all_good] == [b'["ann",2]', b'["bob",2]']
    who = ["ann", "bob", "teapot", "odd", "nobody"]
    answers = await asyncio.gather(
        *(ask("GET", "/many", x_who=each, authorization=f"Bearer {each}") for each in who)
    )
    assert [status for status, _, _ in answers] == [200, 200, 418, 500, 500]
    assert answers[0][2].startswith(b'["ann",')
    assert answers[2][2] == b"short"
    streamed = await asyncio.gather(*(ask("GET", "/lines", accept="application/x-ndjson") for _ in "ab"))
    assert [body for _, _, body in streamed] == [b'"/lines0"\n"/lines1"\n'] * 2
    assert (await ask("GET", "/lines"))[2] == b'["/lines0","/lines1"]'


async def test_in_a_test_each_item_has_a_request_of_its_own() -> None:
    """Items share a batch though their fields differ, which part the batches of other methods."""
    async with serving(Site) as site:
        ann, bob = (site.options(headers={"cookie": each, "x-who": each}) for each in ("ann", "bob"))
        answers = await asyncio.gather(ann.scored(1), bob.scored(2))
        assert answers == [[1, "ann", "1"], [2, "bob", "2"]]
        assert site.scored.batches == [[1, 2]]
        assert await site({"a": 1}) == {"json": {"a": 1}, "who": None}
        assert await site.handle.echo([1]) == "WzFd"


@pytest.mark.parametrize(
    ("hints", "message"),
    [
        ({"a": Request, "b": Request}, "expected one parameter for the request, found a, b"),
        ({"a": list[Request]}, "expected Request, of one item, or @batched for a"),
        ({"a": StarletteRequest}, "expected penstock.Request for a, found <class 'starlette"),
        ({"a": list[StarletteRequest]}, "expected penstock.Request for a, found <class 'starlette"),
    ],
)
def test_a_request_in_the_wrong_place_is_refused(hints: dict[str, Any], message: str) -> None:
    def method(a: Any, b: Any = 1) -> None: ...

    method.__annotations__ = hints
    with pytest.raises(LoadError, match=message):
        read(method, "m:C.predict")
    with pytest.raises(LoadError, match=r"expected list\[Request\], one for each item, for a"):
        read(penstock.batched(_of_one), "m:C.predict")


def _of_one(a: Request) -> None: ...


def test_a_request_without_its_type_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    target_of("m:f", lambda request: request)
    assert "request: penstock.Request" in capfd.readouterr().err
    target_of("m:f", lambda item: item)
    assert capfd.readouterr().err == ""
