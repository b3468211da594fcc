"""Annotations: each item is checked and made by itself, and what cannot be is said when it is loaded."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import inspect
import json
import sys
import threading
import typing
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Generic, Literal, TypeVar

import numpy as np
import pydantic
import pytest
import typing_extensions

import penstock
from penstock.errors import ArgumentsError
from penstock.model import Model as Served
from penstock.server import ModelServer
from penstock.signature import Shape, read
from penstock.target import target_of
from penstock.testing import serving
from penstock_wire.http import Request

T = TypeVar("T")


class Size(pydantic.BaseModel):
    """A size."""

    width: int
    height: int = 1


class Picture(pydantic.BaseModel):
    """An item."""

    name: str
    sizes: list[Size] = []


class Model:
    """Takes pictures."""

    @penstock.batched
    def predict(
        self, pictures: list[Picture], *, scale: Annotated[int, pydantic.Field(gt=0)] = 1
    ) -> list[Any]:
        return [
            [picture.name, *(size.width * size.height * scale for size in picture.sizes)]
            for picture in pictures
        ]

    @penstock.batched(columns=True)
    def columns(self, size: list[Size], times: list[int] = 2) -> list[int]:  # type: ignore[assignment]
        return [each.width * time for each, time in zip(size, times, strict=True)]


def single(size: Size, word: str) -> Size:
    """An item is an object with both."""
    return size.model_copy(update={"width": len(word)})


async def test_items_arrive_as_their_annotations_say_and_a_bad_one_fails_alone() -> None:
    async with serving(Model) as model:
        good = {"name": "a", "sizes": [{"width": 2, "height": 3}]}
        results = await asyncio.gather(
            model(good),
            model({"name": "b", "sizes": [{"width": 1}, {"width": "wide"}]}),
            model({"sizes": 7}),
            model(good, scale=10),
            return_exceptions=True,
        )
        assert (results[0], results[3]) == (["a", 6], ["a", 60])
        assert isinstance(results[1], ArgumentsError)
        assert isinstance(results[2], ArgumentsError)
        assert str(results[1]).startswith("$.sizes[1].width: Input should be a valid integer")
        assert results[1].paths == ("$.sizes[1].width",)
        assert results[2].paths == ("$.name", "$.sizes")
        assert [len(batch) for batch in model.batches] == [3, 1]
        with pytest.raises(ArgumentsError, match=r"\$\.scale: Input should be greater than 0"):
            model(good, scale=0)
        assert await model.columns({"size": {"width": 4}, "times": "3"}) == 12


async def test_unmarked_methods_and_answers() -> None:
    """A value of pydantic's is an answer; a default of the method's own is not checked."""
    async with serving(single) as model:
        assert await model({"size": {"width": 1}, "word": "four"}) == {"width": 4, "height": 1}
        with pytest.raises(ArgumentsError, match=r"\$\.word: Input should be a valid string"):
            await model({"size": {"width": 1}, "word": 4})
    async with serving(Model) as model:
        with pytest.raises(ArgumentsError, match=r"\$\.size\.width: .*"):
            await model.columns({"size": {}})


@dataclasses.dataclass
class Tree:
    """Names itself."""

    word: str
    left: Tree | None = None


class Options(typing_extensions.TypedDict, total=False):
    """An object that stays one."""

    times: typing_extensions.Required[int]
    scale: float


class Holder(Generic[T]):
    """Its methods name what stands in it."""

    class Inner(pydantic.BaseModel):
        """As here."""

        x: int

    def one(self, item: Inner) -> Inner:
        """One."""
        return item

    @penstock.batched
    def open(self, items: list[T]) -> list[T]:
        """Of any."""
        return items


def of(hint: Any) -> Shape:
    """A function whose parameter has this annotation."""

    def function(item: Any) -> Any:
        return item

    function.__annotations__["item"] = hint
    return read(function, "f")


@pytest.mark.parametrize(
    ("hint", "given", "made", "bad", "path", "schema"),
    [
        (list[float], [1, 2.5], [1.0, 2.5], [1, "x"], "$[1]", {"items": {"type": "number"}, "type": "array"}),
        (int | None, None, None, 1.5, "$", {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        ("int | None", 3, 3, "a", "$", {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Literal["a", "b"], "b", "b", "c", "$", {"enum": ["a", "b"], "type": "string"}),
        (
            Tree,
            {"word": "a", "left": {"word": "b"}},
            Tree("a", Tree("b")),
            {"word": "a", "left": {"word": 1}},
            "$.left.word",
            None,
        ),
        ("list[Tree]", [{"word": "a"}], [Tree("a")], [{"word": "a"}, {}], "$[1].word", None),
        (Options, {"times": 1}, {"times": 1}, {"scale": 1}, "$.times", None),
        (
            dict[str, tuple[int, str]],
            {"a": [1, "b"]},
            {"a": (1, "b")},
            {"a": [1]},
            "$.a[1]",
            None,
        ),
        (Annotated[int, pydantic.Field(gt=0)], 1, 1, 0, "$", {"exclusiveMinimum": 0, "type": "integer"}),
        (
            datetime.date,
            "2026-11-23",
            datetime.date(2026, 11, 23),
            "tomorrow",
            "$",
            {"format": "date", "type": "string"},
        ),
        (uuid.UUID, str(uuid.UUID(int=7)), uuid.UUID(int=7), "7", "$", {"format": "uuid", "type": "string"}),
    ],
)
def test_types_of_python_are_checked_made_and_shown(
    hint: Any, given: Any, made: Any, bad: Any, path: str, schema: Any
) -> None:
    shape = of(hint)
    assert shape.bind(given) == {"item": made}
    with pytest.raises(ArgumentsError) as raised:
        shape.bind(bad)
    assert path in raised.value.paths
    shown = shape.validators["item"].schema()
    assert shown if schema is None else shown == schema


@pytest.mark.parametrize("form", [list[int], Sequence[int], tuple[int, ...], Annotated[list[int], "words"]])
def test_of_a_batched_parameter_the_elements_are_the_items(form: Any) -> None:
    def function(items: Any) -> Any:
        return items

    function.__annotations__["items"] = form
    shape = read(penstock.batched(function), "f")
    assert shape.bind("7") == {"items": 7}
    with pytest.raises(ArgumentsError, match=r"^\$: Input should be a valid integer"):
        shape.bind(1.5)


@pytest.mark.parametrize(
    "hint",
    [Any, object, list, Sequence, inspect.Parameter.empty, typing.List, typing.Sequence, Annotated[Any, {}]],  # noqa: UP006
)
def test_what_says_nothing_of_an_item_is_not_looked_at(hint: Any, capfd: pytest.CaptureFixture[str]) -> None:
    def function(items: Any) -> Any:
        return items

    function.__annotations__["items"] = hint
    assert read(penstock.batched(function), "f").validators == {}
    assert read(Holder.open, "f", skip_self=True).validators == {}
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("hint", "given", "got"),
    [
        (Annotated[float, {"unit": "s"}], "1", 1.0),  # which has no hash
        (Iterable, [1], [1]),
        (Iterable[int], ["1", 2], [1, 2]),  # a list, which can be read twice
        (int, None, None),  # its default is None
        (Iterable[int], None, None),
        (np.ndarray, None, None),
    ],
)
def test_an_annotation_that_was_there_before_any_validation_stays_right(
    hint: Any, given: Any, got: Any
) -> None:
    def function(item: Any = None) -> Any:
        return item

    function.__annotations__["item"] = hint
    assert read(function, "f").bind(given) == {"item": got}


class Unusual:
    """Raises what nobody expects, as a pydantic of another age does."""

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        raise RuntimeError("an unusual type")


def test_a_method_may_name_what_its_class_defines() -> None:
    bound = read(Holder.one, "f", skip_self=True).bind({"x": "1"})
    assert bound == {"item": Holder.Inner(x=1)}


@pytest.mark.parametrize(
    ("hint", "batched", "message", "said"),
    [
        (Unusual, False, "pydantic cannot say what its annotation means", "an unusual type"),
        (threading.Lock, False, "pydantic cannot say what its annotation means", "Unable to generate"),
        (np.ndarray, True, "a batched method gets a list of items", ""),
        (int, True, "a batched method gets a list of items", ""),
        (list[dict[str, np.ndarray]], True, "pydantic cannot say what its annotation means", "ndarray"),
    ],
)
def test_what_cannot_be_validated_is_said_and_stays_as_it_is(
    hint: Any, batched: bool, message: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def function(item: Any) -> Any:
        return item

    function.__annotations__["item"] = hint
    shape = read(penstock.batched(function) if batched else function, "m:function")
    assert shape.bind("as it is") == {"item": "as it is"}
    (line,) = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert (line["level"], line["parameter"]) == ("warning", "m:function: item")
    assert line["message"] == f"a parameter is not validated: {message}"
    assert said in line.get("error", "")
    assert line["found"]


@pytest.mark.parametrize(
    ("annotation", "item", "made", "fault"),
    [
        (float, 1, 1.0, None),
        (float, "wide", None, "$: Expected `float`, got `str`"),
        (int, "5", 5, None),
        (str, 5, None, "$: Expected `str`, got `int`"),
        (list[list[float]], [[1], [2, None]], None, "$[1][1]: Expected `float`, got `null`"),
        (dict[str, Any] | None, [1], None, "$: Expected `object | null`, got `array`"),
        (dict[str, Any] | None, None, None, None),
        # Not plain JSON, or not known to msgspec: left as they are.
        (datetime.date, "soon", "soon", None),
        (list[datetime.date], 7, 7, None),
        (Literal["a"], 7, 7, None),
        (list[int] | list[str], 7, 7, None),
    ],
)
def test_without_pydantic_json_types_alone_are_validated(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    annotation: Any,
    item: Any,
    made: Any,
    fault: str | None,
) -> None:
    """Nothing is logged, so `penstock export` prints what it exports."""
    monkeypatch.setitem(sys.modules, "pydantic", None)
    shape = of(annotation)
    if fault is None:
        assert repr(shape.bind(item)) == repr({"item": made})
    else:
        with pytest.raises(ArgumentsError) as raised:
            shape.bind(item)
        assert (str(raised.value), raised.value.paths) == (fault, (fault.partition(": ")[0],))
    assert capfd.readouterr().err == ""


def test_without_pydantic_arrays_and_schemas_are_made_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)
    assert of(Any).validators == {}
    assert of(np.ndarray).bind([1])["item"].shape == (1,)
    schema = of(list[float]).validators["item"].schema()
    assert schema == {"type": "array", "items": {"type": "number"}}


async def test_without_pydantic_an_item_of_another_type_gets_422(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer says what was expected, what was found, and where; the method is not called."""
    monkeypatch.setitem(sys.modules, "pydantic", None)

    def double(item: list[float]) -> list[float]:
        return [2 * each for each in item]

    server = ModelServer()
    with ThreadPoolExecutor(1) as threads:
        built = target_of("m:double", double).build()
        served = Served(built, threads)
        server.serve(served, {}, default=built.default)
        answers = [
            await server.handle(Request(method="POST", target="/", headers=(), body=body))
            for body in (b'{"instances": [[1]]}', b'{"instances": [[1, "wide"]]}')
        ]
    assert [answer.status for answer in answers] == [200, 422]
    problem = json.loads(answers[1].body)
    assert problem["detail"] == "$[1]: Expected `float`, got `str`"
    assert problem["items"] == [{"index": 0, "paths": ["$[1]"]}]


def test_one_annotation_that_cannot_be_resolved_leaves_the_others_validated(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A warning names its parameter; what a method returns is not looked at."""

    def mixed(size: Size, other: NotThere, more: "a text", n: int = 1) -> Nor:  # type: ignore # noqa: F722, F821
        """Two annotations for a type checker alone, or mistaken."""

    shape = read(mixed, "m:mixed")
    assert sorted(shape.validators) == ["n", "size"]
    with pytest.raises(ArgumentsError, match=r"\$\.size\.width: Input should be a valid integer"):
        shape.bind({"size": {"width": "wide"}, "other": 1, "more": 2})
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line["level"] for line in lines] == ["warning", "warning"]
    assert [(line["parameter"], line["found"]) for line in lines] == [
        ("m:mixed: other", "NotThere"),
        ("m:mixed: more", "'a text'"),
    ]
    assert lines[0]["error"] == "name 'NotThere' is not defined"


async def test_what_is_served_is_shown_as_a_document() -> None:
    """A path for each method, with the schemas of its annotations; only once the model is there."""
    server = ModelServer()
    asked = Request(method="GET", target="/openapi.json", headers=(), body=b"")
    assert (await server.handle(asked)).status == 503
    with ThreadPoolExecutor(1) as threads:
        built = target_of("m:Model", Model).build()
        methods = {name: Served(served, threads) for name, served in built.methods.items()}
        server.serve(Served(built, threads), methods, default=built.default)
        document = json.loads((await server.handle(asked)).body)
    assert (document["openapi"], sorted(document["paths"])) == ("3.1.0", ["/", "/columns"])
    schemas = document["components"]["schemas"]
    assert sorted(schemas) == ["Problem", "Size"]
    body = document["paths"]["/"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["required"] == ["instances"]
    assert body["properties"]["scale"] == {"default": 1, "exclusiveMinimum": 0, "type": "integer"}
    item = body["properties"]["instances"]["items"]
    assert (item["title"], item["required"]) == ("Picture", ["name"])
    assert item["properties"]["sizes"]["items"] == {"$ref": "#/components/schemas/Size"}
    body = document["paths"]["/columns"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]["instances"]["items"]["required"] == ["size"]
