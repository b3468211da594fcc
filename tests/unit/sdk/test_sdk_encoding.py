"""The JSON form of what models return: what FastAPI answers is answered here."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import ipaddress
import json
import math
import pathlib
import re
import types
import uuid
from typing import Any

import numpy as np
import numpy.typing as npt
import pydantic
import pytest
from starlette.responses import JSONResponse

from penstock.encoding import encode
from penstock.errors import AnswerError
from penstock.testing import serving
from tests.support.pages.page import DOCS


class Text(str):
    """As numpy's, or a library's own, text."""


class Whole(int):
    pass


class Real(float):
    pass


class Stamp(datetime.datetime):
    """As pandas.Timestamp."""


class Day(datetime.date):
    pass


class Span(datetime.timedelta):
    """As pandas.Timedelta."""


class Id(uuid.UUID):
    """As asyncpg's UUID."""


class Money(decimal.Decimal):
    pass


def missing(name: str, base: type) -> Any:
    """A missing value of pandas, which is not installed."""
    kind: Any = type(name, (base,), {"__module__": "pandas._libs"})
    return kind.__new__(kind, 1, 1, 1) if base is datetime.datetime else kind()


class Typed(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True, ser_json_timedelta="float")
    url: pydantic.HttpUrl = pydantic.HttpUrl("http://x.example/a")
    file: pathlib.Path = pathlib.Path("/a/b")
    secret: pydantic.SecretStr = pydantic.SecretStr("s")
    address: ipaddress.IPv4Address = ipaddress.IPv4Address("10.0.0.1")
    span: datetime.timedelta = datetime.timedelta(seconds=1.5)
    array: Any
    nested: Any = None


class Listed(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    array: np.ndarray[Any, Any]

    @pydantic.field_serializer("array", when_used="json")
    def out(self, value: Any) -> Any:
        return ["own", *value.tolist()]


@dataclasses.dataclass
class Holder:
    inner: Any


TYPED = {
    "url": "http://x.example/a",
    "file": "/a/b",
    "secret": "**********",
    "address": "10.0.0.1",
    "span": 1.5,
    "array": [1, 2],
    "nested": None,
}
AT = (2026, 1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([Text("a"), Whole(2), Real(1.5), Real("nan")], ["a", 2, 1.5, None]),
        (Stamp(*AT, tzinfo=datetime.UTC), "2026-01-02T03:04:05Z"),
        (Stamp(*AT), "2026-01-02T03:04:05"),
        ([Day(2026, 1, 2), Span(seconds=1)], ["2026-01-02", "PT1S"]),
        ([Id(int=1), Money("1.50")], ["00000000-0000-0000-0000-000000000001", "1.50"]),
        ([missing("NaTType", datetime.datetime), missing("NAType", object)], [None, None]),
        (np.array(["2026-01-02", "NaT"], dtype="datetime64[ns]"), ["2026-01-02T00:00:00", None]),
        (np.timedelta64(1_500_000_000, "ns"), "PT1.5S"),
        ([collections.deque([1]), range(2), {"a": 1}.keys(), {"a": 1}.values()], [[1], [0, 1], ["a"], [1]]),
        ([types.MappingProxyType({"a": 1}), collections.UserDict(a=1)], [{"a": 1}, {"a": 1}]),
        ([pathlib.PurePosixPath("/a"), re.compile("a+")], ["/a", "a+"]),
        ([ipaddress.ip_address("::1"), ipaddress.ip_interface("10.0.0.1/8")], ["::1", "10.0.0.1/8"]),
        (ipaddress.ip_network("10.0.0.0/8"), "10.0.0.0/8"),
        ({True: 1, None: 2, 3: 4, Text("a"): 5, 1.5: 6}, {"true": 1, "null": 2, "3": 4, "a": 5, "1.5": 6}),
        ({np.int64(1): 1, np.str_("b"): 2}, {"1": 1, "b": 2}),
        (
            [pydantic.HttpUrl("http://x.example/"), pydantic.SecretStr("s")],
            ["http://x.example/", "**********"],
        ),
        (Typed(array=np.array([1, 2])), TYPED),
        (Holder([Typed(array=[1, 2], nested=Typed(array=[1, 2]))]), {"inner": [TYPED | {"nested": TYPED}]}),
        (Listed(array=np.array([1])), {"array": ["own", 1]}),
        (
            [{True: "\ud800", None: float("nan")}, Stamp(*AT), (1, np.float32(2))],
            [{"true": "\ud800", "null": None}, "2026-01-02T03:04:05", [1, 2]],
        ),
    ],
)
def test_every_common_type_has_a_json_form(value: Any, expected: Any) -> None:
    assert json.loads(encode(value)) == expected


class Raising:
    """A method that makes the JSON form raises."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def tolist(self) -> Any:
        raise self.error("no device")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({(1, 2): 3}, "expected keys that have a JSON form, found a tuple: make a text of it"),
        ([Typed(array=object())], "a value of type object has no JSON"),
        (JSONResponse({}), "expected a penstock.Response(status, body=…), found a JSONResponse"),
        (
            Raising(KeyError),
            "expected a value that has a JSON form, found one that raised KeyError: 'no device'",
        ),
        (
            Raising(SystemExit),
            "expected a value that has a JSON form, found one that raised SystemExit: no dev",
        ),
        (
            {"a": Raising(GeneratorExit), "b": "\ud800"},
            "expected a value that has a JSON form, found one that ",
        ),
    ],
)
def test_a_value_without_one_is_an_error_of_the_answer(value: Any, said: str) -> None:
    with pytest.raises(AnswerError) as caught:
        encode(value)
    assert str(caught.value).startswith(said)


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Color(enum.Enum):
    RED = "red"


async def test_values_arrive_as_the_page_says() -> None:
    """The table of sdk.md: without an annotation, and with the one that it names."""
    names = globals() | {"NDArray": npt.NDArray, "array": np.array, "float32": np.float32}
    rows = (DOCS / "sdk.md").read_text().split("| sent | arrives as |")[1].split("\n\n")[0].splitlines()[2:]
    assert len(rows) > 10
    for row in rows:
        sent, arrives, annotated = [cell.strip() for cell in row.strip("|").split(" | ")]
        values = [eval(code, names) for code in re.findall(r"`([^`]+)`", sent)]  # noqa: S307 - of our page
        for value in values:
            assert await got(value, Any) == eval(arrives.strip("`"), names)  # noqa: S307
        hint, *expected = re.findall(r"`([^`]+)`", annotated) or [""]
        if expected and "within" not in annotated:
            with_hint = await got(values[0], eval(hint, names))  # noqa: S307
            wanted = eval(expected[0], names)  # noqa: S307
            assert (repr(with_hint), type(with_hint)) == (repr(wanted), type(wanted))
    assert np.isnan((await got([1.0, math.nan], np.ndarray))[1])


async def got(value: Any, hint: Any) -> Any:
    """What a method with this annotation gets for this value."""
    came = []

    class Model:
        def __call__(self, item):  # type: ignore[no-untyped-def]
            came.append(item)

    Model.__call__.__annotations__["item"] = hint
    async with serving(Model) as model:
        await model(value)
    return came[0]
