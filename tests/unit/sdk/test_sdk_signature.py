"""What a method wants, and how an item is bound to it."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.errors import ArgumentsError, LoadError
from penstock.signature import read


def two(a, b=7): ...


def falsy(a=0, b="", c=False, d=None): ...


def positional(a, /, b, *, c=3):
    return (a, b, c)


def anything(a, **more): ...


def annotated(a: str): ...


@pytest.mark.parametrize(
    ("function", "item", "expected"),
    [
        (two, {"a": 1}, {"a": 1, "b": 7}),
        (two, {"b": 2, "a": 1}, {"a": 1, "b": 2}),
        (two, {"a": None, "b": 0}, {"a": None, "b": 0}),
        (falsy, {}, {"a": 0, "b": "", "c": False, "d": None}),
        (falsy, {"d": 1}, {"a": 0, "b": "", "c": False, "d": 1}),
        (anything, {"a": 1, "z": 2}, {"a": 1, "z": 2}),
        (two, {"*": [1, 2]}, {"a": 1, "b": 2}),
        (two, {"*": [1], "b": 2}, {"a": 1, "b": 2}),
        (two, [1, 2], {"a": [1, 2], "b": 7}),
        (anything, {"*": [1], "z": 2}, {"a": 1, "z": 2}),
        (lambda: 0, [1], {}),
        (annotated, {"a": "x"}, {"a": "x"}),
        (lambda a: a, {"b": 1}, {"a": {"b": 1}}),
        (lambda a: a, {"*": [1]}, {"a": {"*": [1]}}),
        (lambda a=1: a, [1, 2], {"a": [1, 2]}),
    ],
)
def test_items_are_bound_by_name_with_the_signatures_defaults(
    function: Callable[..., Any], item: Any, expected: dict[str, Any]
) -> None:
    """Absent arguments take the defaults, falsy ones included; a single parameter is the item itself."""
    assert read(function, "f").bind(item) == expected


@pytest.mark.parametrize(
    ("item", "message", "missing", "unknown"),
    [
        ({}, "missing a", ("a",), ()),
        ({"b": 1}, "missing a", ("a",), ()),
        ({"a": 1, "c": 2}, "unknown c", (), ("c",)),
        ({"c": 2, "d": 3}, "missing a; unknown c, d", ("a",), ("c", "d")),
        ({"*": [1, 2, 3]}, "expected at most 2 arguments without a name, found 3", (), ()),
        ({"*": [1], "a": 2}, "expected one value for a, found two", (), ("a",)),
    ],
)
def test_a_misfit_names_what_is_missing_and_unknown(
    item: Any, message: str, missing: tuple[str, ...], unknown: tuple[str, ...]
) -> None:
    with pytest.raises(ArgumentsError) as caught:
        read(two, "f").bind(item)
    assert (str(caught.value), caught.value.missing, caught.value.unknown) == (message, missing, unknown)


@pytest.mark.parametrize(
    ("function", "item", "message"),
    [
        (lambda a, b: 0, [1, 2], "expected an object with the arguments a, b, found an array"),
        (lambda a, b: 0, None, "expected an object with the arguments a, b, found null"),
        (lambda a: 0, {"*": [1, 2]}, "expected at most 1 arguments without a name, found 2"),
        (lambda: 0, {"*": [1, 2]}, "expected at most 0 arguments without a name, found 2"),
    ],
)
def test_arguments_without_names_that_do_not_fit_are_refused(
    function: Callable[..., Any], item: Any, message: str
) -> None:
    with pytest.raises(ArgumentsError, match=message):
        read(function, "f").bind(item)


def test_an_unmarked_method_gets_members_beside_its_first_argument() -> None:
    """As `handle(x, b=2)` sends them: the item is then the first argument, whatever it is."""
    shape = read(two, "f")
    assert shape.bind({"b": 1}, shape.bind_shared({"b": 2})) == {"a": {"b": 1}, "b": 2}
    with pytest.raises(ArgumentsError, match='no member beside "instances" but b, found a'):
        shape.bind_shared({"a": 2})


def test_a_misfit_with_very_many_names_stays_short() -> None:
    """A hostile item cannot make the answer long."""
    with pytest.raises(ArgumentsError) as caught:
        read(two, "f").bind({f"{n:04d}" + "x" * 500: n for n in range(1000)})
    assert len(str(caught.value)) < 1000
    assert "and 990 more" in str(caught.value)


def test_positional_only_and_keyword_only_parameters_are_called_as_they_must_be() -> None:
    shape = read(positional, "f")
    assert shape.call(positional, shape.bind({"a": 1, "b": 2})) == (1, 2, 3)


@given(st.dictionaries(st.sampled_from("abcdx"), st.integers(), max_size=5))
def test_binding_agrees_with_python(item: dict[str, int]) -> None:
    """An item binds exactly when Python would take it as keyword arguments."""

    def function(a, b, c=3, *, d=4):
        return (a, b, c, d)

    shape = read(function, "f")
    try:
        expected = function(**item)
    except TypeError:
        with pytest.raises(ArgumentsError):
            shape.bind(item)
    else:
        assert shape.call(function, shape.bind(item)) == expected


@penstock.batched
def items(values): ...


@penstock.batched(columns=True)
def columns(a, b=1): ...


@penstock.batched(columns=True)
def column(a): ...


async def coroutine(a, b): ...


def test_shapes_are_read_from_the_mark_and_the_signature() -> None:
    flags = {
        function: (shape.batched, shape.columns, shape.whole, shape.asynchronous)
        for function in (items, columns, column, two, coroutine)
        for shape in [read(function, "f")]
    }
    assert flags == {
        items: (True, False, True, False),
        columns: (True, True, False, False),
        column: (True, True, False, False),
        two: (False, False, False, False),
        coroutine: (False, False, False, True),
    }


def test_a_wrapped_method_is_read_through_its_wrapper() -> None:
    @functools.wraps(two)
    def wrapper(*args: Any, **kwargs: Any) -> None: ...

    assert [parameter.name for parameter in read(wrapper, "f").parameters] == ["a", "b"]


def generator(a) -> Iterator[int]:
    yield a


async def async_generator(a) -> AsyncIterator[int]:
    yield a


def test_a_generator_is_read_as_one() -> None:
    """Also an object whose call is one; where the code runs is as for others."""

    class Both:
        def __call__(self, a) -> Iterator[int]:
            yield a

    shapes = [read(each, "f") for each in (generator, async_generator, Both(), two)]
    assert [shape.generator for shape in shapes] == [True, True, True, False]
    assert [shape.asynchronous for shape in shapes] == [False, True, False, False]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            penstock.batched(lambda a, b: 0),
            r"expected one parameter, the list of items, found \(a, b\); with",
        ),
        (penstock.batched(lambda: 0), r"expected one parameter, the list of items, found \(\)"),
        (penstock.batched(columns=True)(lambda: 0), r"expected a parameter for the items, found \(\)"),
        (penstock.batched(lambda a, **k: 0), r"batched method without \*\*kwargs, found \(a, \*\*k\)"),
        (penstock.batched(columns=True)(lambda **k: 0), r"batched method without \*\*kwargs"),
        (lambda *a: 0, r"expected named parameters, found \(\*a\)"),
        (
            penstock.batch(lambda items: items),
            r"expected @penstock\.batched, .*found @penstock\.batch, which",
        ),
    ],
)
def test_a_shape_that_cannot_be_served_is_refused_when_it_is_read(
    function: Callable[..., Any], message: str
) -> None:
    with pytest.raises(LoadError, match=message):
        read(function, "m:C.predict")


def test_a_method_that_gathers_calls_in_its_process_is_refused() -> None:
    """What others call `batch` on what they serve: the message names the decorator that does it here."""

    class Model:
        @penstock.batch(max_batch_size=4)
        def predict(self, items: list[int]) -> list[int]:
            return items

    for method in (Model.predict, Model().predict):
        with pytest.raises(LoadError, match=r"expected @penstock\.batched"):
            read(method, "m:Model.predict", skip_self=method is Model.predict)


def test_a_method_without_self_is_refused() -> None:
    with pytest.raises(LoadError, match="first parameter is self"):
        read(lambda: 0, "m:C.predict", skip_self=True)
