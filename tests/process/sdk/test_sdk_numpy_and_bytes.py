"""Arrays and bytes as arguments of calls, by HTTP and in one process, and what annotations make of them."""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import penstock
from penstock import Handle, UpstreamError
from penstock.errors import ArgumentsError
from penstock.model import Model
from penstock.server import ModelServer
from penstock.signature import read
from penstock.target import target_of
from penstock.testing import serving
from penstock_wire.http.server.server import H1Front

RAW = b"\x00\xff raw"
BASE64 = base64.b64encode(RAW).decode()


@dataclasses.dataclass
class Recording:
    """An argument with both in it."""

    sound: bytes
    loud: list[float]


class Echo:
    """Says what it got."""

    def __call__(self, item: Any) -> Any:
        return [type(item).__name__, item]

    @penstock.batched
    def arrays(self, rows: list[NDArray[np.float32]], *, offset: np.ndarray | None = None) -> list[Any]:  # type: ignore[type-arg]
        return [[str(row.dtype), row.shape, row if offset is None else row + offset] for row in rows]

    @penstock.batched
    def sounds(self, sounds: list[bytes]) -> list[Any]:
        return [[type(sound).__name__, len(sound), sound] for sound in sounds]

    @penstock.batched(columns=True)
    def named(self, recording: list[Recording], pixels: list[NDArray[np.uint8]]) -> list[Any]:
        return [
            [each.sound == RAW, each.loud, str(row.dtype)]
            for each, row in zip(recording, pixels, strict=True)
        ]

    @penstock.batched
    def stream(self, items: list[bytes]) -> Iterator[list[Any]]:
        for piece in (b'data: [1, "a"]\n\n', b"data: cut", b" in two\n\ndata: 3\n\n", np.arange(2)):
            yield [piece for _ in items]

    @penstock.batched
    def cut(self, items: list[Any]) -> Iterator[list[Any]]:
        yield [b"data: half" for _ in items]

    @penstock.batched
    def answers(self, items: list[Any]) -> Iterator[list[Any]]:
        for piece in [1] * items[0]:
            yield [piece]
        yield [penstock.Response(201, body=b"made")]

    @penstock.batched
    def returns(self, items: list[Any]) -> Iterator[list[Any]]:
        yield from ()
        return items  # type: ignore[return-value]

    @penstock.batched
    def wrong(self, items: list[Any]) -> Iterator[list[Any]]:
        yield [
            b'event: error\ndata: {"status": 507, "reason": "full", "detail": "no room"}\n\n' for _ in items
        ]


@pytest.fixture(params=["by HTTP", "in one process"])
async def echo(request: pytest.FixtureRequest) -> AsyncIterator[Handle]:
    if request.param == "in one process":
        async with serving(penstock.backend(type("Echo", (Echo,), {})).bind()):
            yield Handle("echo")
        return
    front, server = H1Front(), ModelServer()
    with ThreadPoolExecutor(2) as threads:
        built = target_of("Echo", Echo).build()
        server.serve(
            Model(built, threads), {name: Model(each, threads) for name, each in built.methods.items()}
        )
        listener = await front.listen("127.0.0.1", 0, server.handle)
        yield Handle("echo", url=f"http://127.0.0.1:{listener.address[1]}")
        await front.close(0)


@pytest.mark.parametrize(
    ("given", "kind", "got"),
    [
        (np.array([[1.5, math.nan]], np.float32), "list", [[1.5, None]]),
        (np.int64(7), "int", 7),
        ([np.arange(2), {"a": np.float64(0.5)}], "list", [[0, 1], {"a": 0.5}]),
        (RAW, "str", BASE64),
        (memoryview(RAW), "str", BASE64),
        ({"sound": bytearray(RAW)}, "dict", {"sound": BASE64}),
        (Recording(RAW, [1.0]), "dict", {"sound": BASE64, "loud": [1.0]}),
    ],
)
async def test_an_argument_arrives_as_json_has_it(echo: Handle, given: Any, kind: str, got: Any) -> None:
    assert await echo(given) == [kind, got]


async def test_an_annotation_makes_arrays_and_bytes_of_it_again(echo: Handle) -> None:
    row = np.array([[1.5, math.nan], [0, -3]], np.float32)
    assert await echo.arrays(row, offset=None) == ["float32", [2, 2], [[1.5, None], [0, -3]]]
    assert await echo.arrays([1], offset=np.array([2])) == ["float32", [1], [3]]
    assert await echo.sounds(RAW) == ["bytes", len(RAW), BASE64]
    assert await echo.sounds(BASE64) == await echo.sounds(RAW)
    recording = Recording(RAW, [1])
    assert await echo.named(recording=recording, pixels=np.arange(3)) == [True, [1.0], "uint8"]


@pytest.mark.parametrize(
    ("method", "item", "said"),
    [
        ("arrays", [[1], [1, 2]], r"\$: expected an array of float32, found .*inhomogeneous"),
        ("arrays", "text", r"\$: expected an array of float32, found str"),
        ("arrays", ["1"], r"\$: expected an array of float32, found an array of texts"),
        ("sounds", "not base64", r"\$: Data should be valid base64"),
        ("sounds", [1], r"\$: Input should be a valid bytes"),
        (
            "named",
            {"recording": {"sound": "?", "loud": ["x"]}, "pixels": []},
            r"\$\.recording\.sound: .*base64.*; ",
        ),
        (
            "named",
            {"recording": Recording(RAW, []), "pixels": [300]},
            r"\$\.pixels: .* found Python integer 300 out",
        ),
        (
            "named",
            {"recording": Recording(RAW, []), "pixels": [1.5]},
            r"\$\.pixels: .* numbers that are not whole",
        ),
    ],
)
async def test_what_they_cannot_be_made_of_is_refused_with_its_path(
    echo: Handle, method: str, item: Any, said: str
) -> None:
    call = getattr(echo, method)
    with pytest.raises(UpstreamError, match=said) as raised:
        await (call(**item) if isinstance(item, dict) else call(item))
    assert (raised.value.status, raised.value.reason) == (422, "missing_arguments")


async def test_bytes_that_a_stream_yields_are_the_events_that_they_say(echo: Handle) -> None:
    stream = echo.options(stream=True).stream(RAW)
    assert [piece async for piece in stream] == [[1, "a"], "cut in two", 3, [0, 1]]
    with pytest.raises(UpstreamError, match="the stream ended within an event") as raised:
        _ = [piece async for piece in echo.options(stream=True).cut(0)]
    assert (raised.value.status, raised.value.reason) == (502, "connection_lost")
    with pytest.raises(UpstreamError, match="the stream failed: full: no room") as raised:
        _ = [piece async for piece in echo.options(stream=True).wrong(0)]
    assert (raised.value.status, raised.value.reason) == (507, "full")
    whole = await echo.stream(RAW)
    assert (base64.b64decode(whole[0]), whole[3]) == (b'data: [1, "a"]\n\n', [0, 1])


async def test_a_generator_that_answers_or_returns(echo: Handle) -> None:
    """A `Response` is the whole answer where a stream has not begun; what is returned nobody would see."""
    answer = await echo.answers(1)
    assert (answer.status, answer.body) == (201, b"made")
    stream = echo.options(stream=True)
    with pytest.raises(TypeError, match="found an answer that is not a stream"):
        await anext(stream.answers(0))
    with pytest.raises(UpstreamError, match="expected a Response before the first piece") as raised:
        _ = [piece async for piece in stream.answers(1)]
    assert (raised.value.status, raised.value.reason) == (502, "bad_answer")
    for call in (echo.returns([1]), anext(stream.returns([1]))):
        with pytest.raises(UpstreamError, match="found a list that it returns: yield it") as raised:
            await call
        assert raised.value.reason == "bad_answer"


async def test_in_a_test_a_stream_of_bytes_has_them_as_they_are() -> None:
    async with serving(Echo) as echo:
        assert [piece async for piece in echo.cut(0)] == [b"data: half"]


def test_an_array_of_any_kind_and_one_of_none() -> None:
    def method(any_kind: np.ndarray, floats: NDArray[np.floating[Any]], flags: NDArray[np.bool_]) -> None:  # type: ignore[type-arg]
        """Three kinds."""

    shape = read(method, "f")
    bound = shape.bind({"any_kind": [1], "floats": [None], "flags": [True, False]})
    assert [value.dtype.kind for value in bound.values()] == ["i", "f", "b"]
    assert shape.validators["flags"].schema() == {"type": "array"}
    assert read(Echo.arrays, "f", skip_self=True).validators["offset"].schema() == {"type": ["array", "null"]}
    for flags in ([1, 2], [None]):
        with pytest.raises(ArgumentsError, match=r"\$\.flags: expected an array of bool, found numbers"):
            shape.bind({"any_kind": [], "floats": [], "flags": flags})


def test_one_long_text_among_many_short_ones_does_not_fill_the_memory() -> None:
    """In an array each text has the room of the longest: 0.8 GB here, of 200 kB of JSON."""

    def function(texts: np.ndarray) -> Any:  # type: ignore[type-arg]
        return texts

    function.__annotations__["texts"] = np.ndarray
    shape = read(function, "f")
    with pytest.raises(ArgumentsError, match=r"^\$: expected an array, found texts of which one has 200000"):
        shape.bind([["x" * 200_000, *[""] * 1_000]])
    assert shape.bind([["x" * 200_000, 1]])["texts"].shape == (1, 2)
    assert shape.bind(["x" * 300, *["short"] * 999])["texts"].shape == (1000,)
