"""Our objects take no weak reference that they do not end: following it would read freed memory."""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import compile_modules
from penstock_sidecar.queue.request import Outcome, QueuedRequest


def classes() -> Iterator[type[Any]]:
    """All classes of the modules that are compiled."""
    for name in compile_modules.texts():
        module = importlib.import_module(name)
        yield from (
            value for value in vars(module).values() if isinstance(value, type) and value.__module__ == name
        )


def is_native(cls: type[Any]) -> bool:
    """Whether mypyc has made the class; what it leaves to Python lacks the mark."""
    return "__mypyc_attrs__" in vars(cls)


@pytest.mark.parametrize("cls", list(classes()), ids=lambda cls: cls.__qualname__)
def test_weak_references_are_refused_or_ended(cls: type[Any]) -> None:
    """Compiled classes refuse them, since they lack the slot; Python's classes end them."""
    if is_native(cls) and not getattr(cls, "_is_protocol", False):
        assert cls.__weakrefoffset__ == 0
    try:
        instance = cls.__new__(cls)
    except (TypeError, RuntimeError):  # what a `Protocol` or a builtin says, or who needs a running loop
        return
    try:
        reference = weakref.ref(instance)
    except TypeError:
        return
    assert not is_native(cls)
    del instance
    assert reference() is None


def test_a_request_that_python_extends_ends_its_weak_references() -> None:
    """The one class that code in Python may extend."""

    class Extended(QueuedRequest):
        def finish(self, outcome: Outcome) -> None:
            """See `QueuedRequest.finish`."""

    instance = Extended.__new__(Extended)
    ended = []
    reference = weakref.ref(instance, ended.append)
    del instance
    assert (reference(), ended) == (None, [reference])
