"""Validates and converts arguments by a method's annotations: with pydantic, and for numpy arrays.

pydantic is imported only if an annotation restricts a value. Without it, msgspec checks plain JSON types.
"""

from __future__ import annotations

import collections.abc
import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from penstock.array_validation import arrays_of
from penstock.errors import ArgumentsError
from penstock_wire.process import log

SHOWN = 10
"""The most faults of one argument that a message lists."""

_LISTS = frozenset(
    {
        list,
        collections.abc.Sequence,
        collections.abc.MutableSequence,
        collections.abc.Collection,
        collections.abc.Iterable,
    }
)
_ONCE = frozenset({collections.abc.Iterable, collections.abc.Generator})
"""Types for which pydantic makes an iterator that can be read once, and checks elements when read."""
_ANY = (Any, object, inspect.Parameter.empty)
_JSON = (Any, bool, int, float, str, list, dict, type(None))
_NOT_VALIDATED = "a parameter is not validated"


class Validator(Protocol):
    """Validates and converts one argument."""

    def __call__(self, value: Any, path: str) -> Any:
        """Make an argument of a JSON value.

        Args:
            value: the value.
            path: its place, for messages.

        Raises:
            ArgumentsError: it is of another type.
        """
        ...

    def schema(self) -> dict[str, Any]:
        """The JSON Schema, with references into `#/components/schemas`, whose entries are in `$defs`."""
        ...


def hints_of(function: Callable[..., Any], names: Sequence[str], where: str) -> dict[str, Any]:
    """The types of a method's parameters; annotations that cannot be resolved are logged and left out.

    Args:
        function: the method.
        names: its parameters.
        where: the method's name in messages.
    """
    plain = inspect.unwrap(function)
    annotations = getattr(plain, "__annotations__", None) or {}
    scope = getattr(plain, "__globals__", {})
    hints: dict[str, Any] = {}
    for name in names:
        if name not in annotations:
            continue
        alone = types.SimpleNamespace(__annotations__={name: annotations[name]})
        try:
            hints |= typing.get_type_hints(alone, scope, _class_names(plain, scope), include_extras=True)
        except (NameError, TypeError, AttributeError, SyntaxError) as error:
            log(
                f"{_NOT_VALIDATED}: its annotation cannot be resolved",
                level="warning",
                parameter=f"{where}: {name}",
                expected="a type that is there when the model is loaded, not under `if TYPE_CHECKING` alone",
                found=str(annotations[name]),
                error=str(error),
            )
    return hints


def is_list_of(hint: Any, kind: type) -> bool:
    """Whether a type is that of a list of objects of a kind."""
    return typing.get_origin(hint) in _LISTS and typing.get_args(hint) == (kind,)


def validators_of(
    function: Callable[..., Any], hints: Mapping[str, Any], *, listed: Sequence[str], where: str
) -> Mapping[str, Validator]:
    """The validators of a method's parameters that are annotated with a type.

    A parameter with an unusable annotation is not validated, and a warning is logged: the annotation can be
    for a type checker alone, or a mistake.

    Args:
        function: the method.
        hints: the types of its parameters (`hints_of`).
        listed: the parameters that get a list of items, with annotations such as `list[int]`.
        where: the method's name in messages.
    """
    validators: dict[str, Validator] = {}
    optional = _none_by_default(function)
    for name, hint in hints.items():
        wanted = _element(hint, f"{where}: {name}") if name in listed else hint
        wanted = _plain(wanted, or_none=name in optional)
        validator = None if _accepts_all(wanted) else _validator(wanted, f"{where}: {name}")
        if validator is not None:
            validators[name] = validator
    return validators


def _accepts_all(hint: Any) -> bool:
    # NB: not `hint in _ANY`: an annotation can be unhashable, such as `Annotated[int, {}]`.
    return isinstance(hint, typing.TypeVar) or any(hint is each for each in _ANY)


def _plain(hint: Any, *, or_none: bool) -> Any:
    """The annotation as unvalidated code means it: iterables can be re-read, a None default allows null."""
    if any(each in _ONCE for each in (typing.get_origin(hint), hint) if isinstance(each, type)):
        hint = list[(typing.get_args(hint) or (Any,))[0]]  # type: ignore[misc]
    if not or_none or _accepts_all(hint):
        return hint
    try:
        return typing.Optional[hint]  # noqa: UP045 - also for hints without `|`
    except TypeError:  # not a type
        return hint


def _none_by_default(function: Callable[..., Any]) -> frozenset[str]:
    """The parameters with the default None: they take null, whatever their annotation is."""
    parameters = inspect.signature(function).parameters.values()
    return frozenset(parameter.name for parameter in parameters if parameter.default is None)


def _class_names(function: Any, scope: Mapping[str, Any]) -> dict[str, Any]:
    """The names defined by the classes around a method, which annotations in text form can use."""
    names: dict[str, Any] = {}
    owner: Any = None
    for part in getattr(function, "__qualname__", "").split(".")[:-1]:
        owner = scope.get(part) if owner is None else getattr(owner, part, None)
        if not isinstance(owner, type):  # within a function: its names are gone
            return {}
        names |= vars(owner)
    return names


def _element(hint: Any, parameter: str) -> Any:
    """The type of one item, for a parameter that gets the list of a batch's items."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _element(arguments[0], parameter)
    if origin in _LISTS:
        return arguments[0] if arguments else Any
    if origin is tuple and arguments[1:] == (...,):
        return arguments[0]
    if not (_accepts_all(hint) or hint is tuple or any(hint is each for each in _LISTS)):
        log(
            f"{_NOT_VALIDATED}: a batched method gets a list of items",
            level="warning",
            parameter=parameter,
            expected="an annotation such as list[int], whose elements are items",
            found=_shown(hint),
        )
    return Any


def _validator(hint: Any, parameter: str) -> Validator | None:
    """Make the validator of a parameter; None if nothing can check it (logged if pydantic is installed)."""
    if (arrays := arrays_of(hint)) is not None:
        return arrays
    try:
        import pydantic  # noqa: F401
    except ImportError:  # it is optional: no warning at each start, nor from `penstock export`
        return _Json.of(hint)
    try:
        return _Pydantic(hint)
    except Exception as error:  # the type's own code runs here, and any version of pydantic
        log(
            f"{_NOT_VALIDATED}: pydantic cannot say what its annotation means",
            level="warning",
            parameter=parameter,
            expected="a type that a value of JSON can have or make",
            found=_shown(hint),
            error=str(error).partition("\n")[0],
        )
        return None


def _shown(hint: Any) -> str:
    return hint.__qualname__ if type(hint) is type else str(hint)


class _Json:
    """A `Validator` of plain JSON types by msgspec, for a process without pydantic.

    Args:
        hint: the type.
        schema: its JSON Schema.
    """

    def __init__(self, hint: Any, schema: dict[str, Any]) -> None:
        self._hint, self._schema = hint, schema

    @classmethod
    def of(cls, hint: Any) -> _Json | None:
        """Make it; None if a part of the type is not a plain one, or msgspec does not know such a union."""
        try:
            return cls(hint, msgspec.json.schema(hint)) if _is_json(hint) else None
        except TypeError:
            return None

    def __call__(self, value: Any, path: str) -> Any:
        try:
            return msgspec.convert(value, self._hint, strict=False)
        except msgspec.ValidationError as error:
            message, _, place = str(error).partition(" - at ")
        where = path + place.rpartition("`$")[2].rstrip("`")
        raise ArgumentsError(f"{where}: {message}", paths=[where])

    def schema(self) -> dict[str, Any]:
        """See `Validator.schema`."""
        return self._schema


def _examples(hint: Any) -> list[Any]:
    """The examples that a type has by `msgspec.Meta`."""
    given = getattr(hint, "__metadata__", ())
    return [example for each in given if isinstance(each, msgspec.Meta) for example in each.examples or ()]


def _is_json(hint: Any) -> bool:
    """Whether a type consists of JSON's own types alone, which all validators read nearly alike."""
    if any(hint is each for each in _JSON):
        return True
    if typing.get_origin(hint) is typing.Annotated and _examples(hint):
        return _is_json(typing.get_args(hint)[0])
    kinds = (list, dict, typing.Union, types.UnionType)
    return typing.get_origin(hint) in kinds and all(map(_is_json, typing.get_args(hint)))


class _Pydantic:
    """A `Validator` by pydantic.

    Args:
        hint: the type.
    """

    def __init__(self, hint: Any) -> None:
        import pydantic

        self._error = pydantic.ValidationError
        self._examples = {"examples": given} if (given := _examples(hint)) else {}
        self._adapter = pydantic.TypeAdapter(hint)
        self._unusual = pydantic.errors.PydanticUserError
        # Bytes are base64 in JSON, here as in answers. pydantic decodes that only from JSON text, and takes
        # the setting only for a type without its own config, hence the list.
        self._of_text: pydantic.TypeAdapter[list[Any]] | None = None
        self.base64 = False
        """Whether it reads bytes from text in base64."""
        if _has_bytes(self._adapter.core_schema):
            config = pydantic.ConfigDict(val_json_bytes="base64", ser_json_bytes="base64")
            self._of_text = pydantic.TypeAdapter(list[hint], config=config)
            self.base64 = True

    def __call__(self, value: Any, path: str) -> Any:
        of_text = self._of_text
        try:
            if of_text is None:
                return self._adapter.validate_python(value)
            return of_text.validate_json(json.dumps([value]))[0]
        except self._error as error:
            faults = error.errors(include_url=False, include_context=False, include_input=False)
        within = 0 if of_text is None else 1
        paths = [path + _path(fault["loc"][within:]) for fault in faults[:SHOWN]]
        messages = [f"{where}: {fault['msg']}" for where, fault in zip(paths, faults, strict=False)]
        more = f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        raise ArgumentsError("; ".join(messages) + more, paths=paths)

    def schema(self) -> dict[str, Any]:
        """See `Validator.schema`; empty for a type that JSON Schema cannot express."""
        adapter = self._adapter if self._of_text is None else self._of_text
        try:
            schema: dict[str, Any] = adapter.json_schema(ref_template="#/components/schemas/{model}")
        except self._unusual:
            return {}
        if self._of_text is None:
            return schema | self._examples
        items: dict[str, Any] = schema["items"]
        return items | ({"$defs": schema["$defs"]} if "$defs" in schema else {})


def _has_bytes(schema: Any) -> bool:
    """Whether a type holds bytes, outside of pydantic models: they define themselves how to read theirs."""
    left = [schema]
    while left:
        each = left.pop()
        if isinstance(each, Mapping):
            if each.get("type") == "bytes":
                return True
            if each.get("type") != "model":
                left += each.values()
        elif isinstance(each, list | tuple):
            left += each
    return False


def _path(place: Sequence[int | str]) -> str:
    return "".join(f"[{each}]" if isinstance(each, int) else f".{each[:64]}" for each in place[:16])
