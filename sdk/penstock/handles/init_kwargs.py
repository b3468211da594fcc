"""Handles in the keyword arguments of a class: `{"handle": "name"}` becomes a `Handle`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.errors import LoadError
from penstock.handles.handle import Handle

MAX_LEVELS = 32
_MEMBERS = ({"handle"}, {"handle", "namespace"})


def with_handles(init_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Replace each object `{"handle": name}`, also with a `namespace`, by a handle.

    An endpoint that does not exist yet is not an error: backends of one application start in any order.

    Args:
        init_kwargs: JSON values.

    Raises:
        LoadError: a handle's name or namespace is not valid.
    """
    return {name: _changed(value, name, 0) for name, value in init_kwargs.items()}


def _changed(value: Any, path: str, level: int) -> Any:
    if level > MAX_LEVELS:
        return value
    if type(value) in (list, tuple):
        return type(value)(_changed(each, f"{path}[{i}]", level + 1) for i, each in enumerate(value))
    if type(value) is not dict:
        return value
    if set(value) not in _MEMBERS:
        return {key: _changed(each, f"{path}.{key}", level + 1) for key, each in value.items()}
    try:
        return Handle(value["handle"], value.get("namespace"), missing_ok=True)
    except (TypeError, ValueError) as error:
        raise LoadError(f"initKwargs.{path}: {error}") from error
