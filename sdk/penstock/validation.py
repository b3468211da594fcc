"""Arguments checked and made by pydantic, where a method's annotations name a type of pydantic's.

pydantic is never imported here: who annotates with one of its types has imported it.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from penstock.errors import ArgumentsError
from penstock_wire.process import log

SHOWN = 10
"""Faults of one argument that are said at most."""


class Validator(Protocol):
    """Checks and makes one argument."""

    def __call__(self, value: Any, path: str) -> Any:
        """The argument that a value of JSON makes.

        Args:
            value: the value.
            path: where it stands, for messages.

        Raises:
            ArgumentsError: it is of another type.
        """
        ...

    def schema(self) -> dict[str, Any]:
        """Its JSON Schema, with references into `#/components/schemas`, and these as `$defs`."""
        ...


def validators_of(
    function: Callable[..., Any], names: Sequence[str], *, listed: Sequence[str], where: str
) -> Mapping[str, Validator]:
    """The validators of a method's parameters; none, unless one of them is annotated with a pydantic type.

    A parameter whose annotation means nothing here is not validated, and a warning says so: it may be there
    for a type checker alone, or a mistake.

    Args:
        function: the method.
        names: its parameters.
        listed: those of them that get a list, whose annotation is that of its elements.
        where: how messages call the method.
    """
    if "pydantic" not in sys.modules:
        return {}
    hints = _hints(function, names, where)
    wanted: dict[str, Any] = {}
    for name in names:
        hint = hints.get(name, Any)
        if name in listed:
            elements = typing.get_args(hint)
            hint = elements[0] if len(elements) == 1 else Any
        if hint is not Any:
            wanted[name] = hint
    if not any(map(_is_pydantic, wanted.values())):
        return {}
    return {name: _Pydantic(hint) for name, hint in wanted.items()}


def _hints(function: Callable[..., Any], names: Sequence[str], where: str) -> dict[str, Any]:
    """The types of the parameters, but for those that cannot be resolved, which are logged."""
    plain = inspect.unwrap(function)
    annotations = getattr(plain, "__annotations__", None) or {}
    scope = getattr(plain, "__globals__", {})
    hints: dict[str, Any] = {}
    for name in names:
        if name not in annotations:
            continue
        alone = types.SimpleNamespace(__annotations__={name: annotations[name]})
        try:
            hints |= typing.get_type_hints(alone, globalns=scope, include_extras=True)
        except (NameError, TypeError, AttributeError, SyntaxError) as error:
            log(
                "a parameter is not validated: its annotation cannot be resolved",
                level="warning",
                parameter=f"{where}: {name}",
                expected="a type that is there when the model is loaded, not under `if TYPE_CHECKING` alone",
                found=str(annotations[name]),
                error=str(error),
            )
    return hints


def _is_pydantic(hint: Any) -> bool:
    """Whether a type is of pydantic's, or consists of such, `Annotated` with its fields included."""
    pending = [hint]
    while pending:
        each = pending.pop()
        if hasattr(each, "__pydantic_core_schema__") or type(each).__module__.partition(".")[0] == "pydantic":
            return True
        pending += [*typing.get_args(each), *getattr(each, "__metadata__", ())]
    return False


class _Pydantic:
    """A `Validator` by pydantic.

    Args:
        hint: the type.
    """

    def __init__(self, hint: Any) -> None:
        import pydantic

        self._adapter = pydantic.TypeAdapter(hint)
        self._error = pydantic.ValidationError

    def __call__(self, value: Any, path: str) -> Any:
        try:
            return self._adapter.validate_python(value)
        except self._error as error:
            faults = error.errors(include_url=False, include_context=False, include_input=False)
        paths = [path + _path(fault["loc"]) for fault in faults[:SHOWN]]
        said = [f"{where}: {fault['msg']}" for where, fault in zip(paths, faults, strict=False)]
        more = f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        raise ArgumentsError("; ".join(said) + more, paths=paths)

    def schema(self) -> dict[str, Any]:
        """See `Validator.schema`."""
        return self._adapter.json_schema(ref_template="#/components/schemas/{model}")


def _path(place: Sequence[int | str]) -> str:
    return "".join(f"[{each}]" if isinstance(each, int) else f".{each[:64]}" for each in place[:16])
