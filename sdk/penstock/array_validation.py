"""Makes numpy arrays of arguments annotated as such; the annotating module imports numpy, not this one."""

from __future__ import annotations

import itertools
import sys
import types
import typing
from typing import Any

from penstock.errors import ArgumentsError

ROOM = 2**20
"""Characters that an array of texts can always allocate."""
SPREAD = 16
"""Characters that an array of texts can allocate, as a multiple of those in the texts."""


def _array_type(hint: Any) -> Any:
    """The element type of an annotation `numpy.ndarray` or `NDArray[…]`; None for any other.

    Returns:
        A numpy dtype, or `Any` if the annotation leaves it open.
    """
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return None
    if hint is numpy.ndarray:
        return Any
    if typing.get_origin(hint) is not numpy.ndarray:
        return None
    of_array = typing.get_args(hint)[1:]
    kinds = typing.get_args(of_array[0]) if of_array else ()
    try:
        return Any if kinds in ((), (Any,)) else numpy.dtype(kinds[0])
    except (TypeError, ValueError):  # a kind of numbers, such as numpy.floating
        return Any


def _check_texts(value: list[Any]) -> None:
    """Raise ValueError for texts of too uneven length: numpy gives each the room of the longest."""
    leaves: list[Any] = [value]
    texts: list[str] = []
    while leaves:
        kinds = set(map(type, leaves))
        if str in kinds:
            texts += [leaf for leaf in leaves if type(leaf) is str]
        if list not in kinds:
            break
        lists = leaves if len(kinds) == 1 else [leaf for leaf in leaves if type(leaf) is list]
        leaves = list(itertools.chain.from_iterable(lists))
    longest = max(map(len, texts), default=0)
    if longest * len(leaves) > max(ROOM, SPREAD * sum(map(len, texts))):
        raise ValueError(f"texts of which one has {longest} characters, and most have few")


def arrays_of(hint: Any) -> Arrays | None:
    """The validator for the annotation of an array or an optional array; None for any other."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        others = [each for each in typing.get_args(hint) if each is not type(None)]
        kind = _array_type(others[0]) if len(others) == 1 else None
        return None if kind is None else Arrays(kind, optional=True)
    kind = _array_type(hint)
    return None if kind is None else Arrays(kind)


class Arrays:
    """A `validation.Validator` that makes arrays from lists, and takes the rows of tensors.

    Args:
        kind: the elements' dtype; `Any`: the one that fits them.
        optional: null is allowed, and becomes None.
    """

    def __init__(self, kind: Any, *, optional: bool = False) -> None:
        self.kind = kind
        """The elements' dtype, or `Any`."""
        self._optional = optional

    def __call__(self, value: Any, path: str) -> Any:
        """See `Validator`; a null in a list stands for NaN, which JSON lacks, and becomes NaN again."""
        if value is None and self._optional:
            return None
        numpy: Any = sys.modules["numpy"]
        wanted = "an array" if self.kind is Any else f"an array of {self.kind}"
        of_tensor = isinstance(value, numpy.ndarray | numpy.generic)
        if not (of_tensor or isinstance(value, list)):
            raise ArgumentsError(f"{path}: expected {wanted}, found {type(value).__name__}", paths=[path])
        try:
            if not of_tensor:
                _check_texts(value)
            array = numpy.asarray(value)
            if array.dtype == object:
                array = numpy.asarray(value, dtype=float)
            if self.kind is Any or array.dtype == self.kind or not array.size:
                return array if self.kind is Any else array.astype(self.kind, copy=False)
            self._check(array, numpy)
            # From the values, not the array: numpy refuses too large values, but truncates those of an array.
            return numpy.asarray(array.tolist() if of_tensor else value, dtype=self.kind)
        except (ValueError, TypeError, OverflowError) as error:
            raise ArgumentsError(f"{path}: expected {wanted}, found {error}", paths=[path]) from error

    def _check(self, array: Any, numpy: Any) -> None:
        """Raise ValueError if numpy's conversion would change an array's values."""
        wanted, given = self.kind.kind, array.dtype.kind
        if wanted in "biufc" and given not in "biuf":
            raise ValueError("an array of texts")
        if wanted == "b":
            raise ValueError("numbers")
        if wanted in "iu" and given == "f":
            bounds = numpy.iinfo(self.kind)
            if (array % 1).any():
                raise ValueError("numbers that are not whole")
            if array.min() < bounds.min or array.max() > bounds.max:
                raise ValueError("numbers that are out of its bounds")

    def schema(self) -> dict[str, Any]:
        """See `Validator.schema`."""
        return {"type": ["array", "null"] if self._optional else "array"}
