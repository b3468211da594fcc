"""The decorator `@batched`, which defines how a method takes its items."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, overload

from penstock.in_process.costs import Cost, checked

F = TypeVar("F", bound=Callable[..., Any])
_ATTRIBUTE = "__penstock_batched__"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Batched:
    """The mark of a method that takes a batch.

    Args:
        columns: one list for each parameter instead of one list of items.
        arrays: rows of tensors are arrays.
        cost: what an item costs; None if that does not count, or is its bytes.
    """

    columns: bool = False
    arrays: bool = False
    cost: Cost | None = None


@overload
def batched(method: F, /) -> F: ...
@overload
def batched(*, columns: bool = False, arrays: bool = False, cost: Cost | None = None) -> Callable[[F], F]: ...
def batched(
    method: F | None = None, /, *, columns: bool = False, arrays: bool = False, cost: Cost | None = None
) -> F | Callable[[F], F]:
    """Mark a method or function that takes a whole batch.

    The method is called with a list of items and returns as many answers, in order. It stays an ordinary
    method: your tests can call it with a list. Without the mark it is called with one item at a time.

    Args:
        method: the method, if the decorator is used without brackets.
        columns: pass one list for each of its parameters. Each item is then an object with the arguments as
            its members; an absent one has the parameter's default.
        arrays: give it the rows of tensors (the Open Inference Protocol) as arrays of their own type, texts
            as objects, also where it is not annotated so; what comes as JSON stays as it is.
        cost: what an item costs the model, where its bytes do not show it. A path, such as `$.text`, counts
            as a BatchPolicy's `cost.path`: `penstock run`, `export` and `deploy` hand it to the sidecar. A
            function of an item (as it came in JSON) counts in this process alone: in `penstock.run` and
            `penstock.testing.serving`.

    Raises:
        TypeError: the decorated object is not a method or function, or `cost` neither function nor path.
        ValueError: `cost` is a text, and not a path.
    """
    checked(cost, "penstock.batched")

    def mark(target: F) -> F:
        if isinstance(target, type) or not callable(target):
            raise TypeError(f"penstock.batched: expected a method or a function, found {target!r}")
        setattr(target, _ATTRIBUTE, Batched(columns=columns, arrays=arrays, cost=cost))
        return target

    return mark if method is None else mark(method)


def mark_of(method: object) -> Batched | None:
    """The mark of a method; None if it has none."""
    mark = getattr(method, _ATTRIBUTE, None)
    return mark if isinstance(mark, Batched) else None


def gathers_in_process(target: object) -> bool:
    """Whether `penstock.batch` made this function: written for lists, it is called with single items."""
    return getattr(target, "__penstock_in_process__", False) is True
