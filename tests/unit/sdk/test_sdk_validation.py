"""Annotations with pydantic's types: each item is checked and made by itself."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import pydantic
import pytest

import penstock
from penstock.errors import ArgumentsError
from penstock.model import Model as Served
from penstock.server import ModelServer
from penstock.signature import read
from penstock.target import target_of
from penstock.testing import serving
from penstock_wire.http import Request


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


def plain(items: list[int]) -> list[Any]:
    """No type of pydantic's: nothing is checked."""
    return items


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


def test_only_annotations_with_types_of_pydantics_are_looked_at() -> None:
    assert read(penstock.batched(plain), "f").validators == {}
    assert set(read(single, "f").validators) == {"size", "word"}


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
