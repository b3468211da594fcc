"""Reads settings files that a user wrote: unknown members are refused, durations and sizes can be text.

On the wire unknown members are ignored, so that an older pod understands a newer operator. In a file that a
user wrote an unknown member is a slip: the user believes that it has an effect.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from penstock_wire.durations import parse_ms
from penstock_wire.errors import DocumentError
from penstock_wire.quantities import bytes_of

_MS = "Ms"
_BYTES = "Bytes"


def read(document: Any, kind: Any, *, what: str) -> Any:
    """Check a document's members and put durations into milliseconds, sizes into bytes.

    Args:
        document: the file's content, as plain values.
        kind: the struct that it will become.
        what: name of the document, for the error message.

    Returns:
        The document with each duration such as `batchWaitTimeout: 20ms` as `batchWaitTimeoutMs: 20`, and each
        size such as `maxBodyBytes: 10Ki` as a number. Values of a wrong type stay as they are: the conversion
        refuses them.

    Raises:
        DocumentError: a member is unknown, is missing, is there twice, is not a duration or a size, or has
            none of its listed values; the message says where, and what is near or allowed.
    """
    return _Reader(kind, what).value(document, kind, "$")


class _Reader:
    """Reads one document.

    Args:
        root: the struct that the document will become.
        what: name of the document.
    """

    def __init__(self, root: Any, what: str) -> None:
        self._root = root
        self._what = what

    def value(self, value: Any, kind: Any, path: str) -> Any:
        options = _options(kind)
        if isinstance(value, str | int) and (allowed := _allowed(value, options)):
            raise DocumentError(f"{self._what}: {path}: expected {allowed}, found {value!r}")
        for option in options:
            if isinstance(value, dict) and _is_struct(option):
                return self._members(value, option, path)
            if isinstance(value, list) and get_origin(option) is tuple:
                element = get_args(option)[0]
                return [self.value(each, element, f"{path}[{index}]") for index, each in enumerate(value)]
        if isinstance(value, float) and value.is_integer() and int in options and float not in options:
            return int(value)  # such as 4.0
        if wanted := _wanted(value, options):
            hint = f"; durations go into {path.removesuffix(_MS)}" if path.endswith(_MS) else ""
            raise DocumentError(f"{self._what}: {path}: expected {wanted}, found {value!r:.100}{hint}")
        return value

    def _members(self, members: Mapping[Any, Any], kind: Any, path: str) -> dict[str, Any]:
        types_by_name = _types(kind)
        read: dict[str, Any] = {}
        for name, value in members.items():
            in_ms = f"{name}{_MS}"
            if name in types_by_name and name.endswith(_BYTES) and isinstance(value, str):
                read[name] = self._read_as(bytes_of, value, f"{path}.{name}")
            elif name in types_by_name:
                read[name] = self.value(value, types_by_name[name], f"{path}.{name}")
            elif in_ms not in types_by_name:
                raise self._unknown(str(name), types_by_name, path)
            elif in_ms in members:
                raise DocumentError(f"{self._what}: {path}: expected {name} or {in_ms}, found both")
            else:
                read[in_ms] = None if value is None else self._read_as(parse_ms, str(value), f"{path}.{name}")
        for field in msgspec.structs.fields(kind):
            if field.required and field.encode_name not in read:
                found = ", ".join(map(str, members)) or "none"
                raise DocumentError(
                    f"{self._what}: {path}: expected the member {field.encode_name}, found {found}"
                )
        return read

    def _read_as(self, parse: Callable[[str], int], text: str, path: str) -> int:
        try:
            return parse(text)
        except ValueError as error:
            raise DocumentError(f"{self._what}: {path}: {error}") from error

    def _unknown(self, name: str, types_by_name: Mapping[str, Any], path: str) -> DocumentError:
        places = dict.fromkeys(place for known, place in _places(self._root, "$") if known == name)
        known = [each.removesuffix(_MS) for each in types_by_name]
        near = difflib.get_close_matches(name, known, n=1)
        if places:
            hint = f"{name} belongs in {' or '.join(places)}"
        elif near:
            hint = f"the nearest is {near[0]}"
        else:
            hint = f"known are {', '.join(known)}"
        return DocumentError(f"{self._what}: {path}: unknown member {name}: {hint}")


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _types(kind: Any) -> dict[str, Any]:
    return {field.encode_name: field.type for field in msgspec.structs.fields(kind)}


def _options(kind: Any) -> list[Any]:
    """Return the types that a value can have: a union's members, without annotations and `UnsetType`."""
    origin = get_origin(kind)
    if origin is Annotated:
        return _options(get_args(kind)[0])
    if origin in (Union, types.UnionType):
        return [option for each in get_args(kind) for option in _options(each)]
    return [] if kind is msgspec.UnsetType else [kind]


def _allowed(value: str | int, options: list[Any]) -> str:
    """Return the values that a member can have if it lists them and this is none of them; else empty."""
    listed = [each for option in options if get_origin(option) is Literal for each in get_args(option)]
    others = [option for option in options if get_origin(option) is not Literal and option is not type(None)]
    # NB: in Python True equals 1; in a document they are of different types.
    if not listed or type(value) in others or any(type(value) is type(e) and value == e for e in listed):
        return ""
    numbers = ["a number"] if int in others else []
    return " or ".join([*numbers, *(str(each) or '""' for each in listed)])


_KINDS: dict[Any, tuple[str, tuple[type, ...]]] = {
    bool: ("true or false", (bool,)),
    int: ("a whole number", (int,)),
    float: ("a number", (int, float)),
    str: ("text", (str,)),
    tuple: ("a list", (list,)),
    dict: ("a mapping", (dict,)),
    type(None): ("null", (type(None),)),
}
"""For each type of a member: its name in messages, and the types of a document's values for it."""


def _wanted(value: Any, options: list[Any]) -> str:
    """Return the kinds of value that a member can have if this value is of none of them; else empty."""
    names = []
    for option in options:
        kind = dict if _is_struct(option) else get_origin(option) or option
        if kind is Literal:
            kind = type(get_args(option)[0])
        if kind not in _KINDS:
            return ""
        name, types_of = _KINDS[kind]
        # NB: in Python True is an int; in a document it is not.
        if isinstance(value, types_of) and (kind is bool or not isinstance(value, bool)):
            return ""
        names.append(name)
    return " or ".join(name for name in dict.fromkeys(names) if name != "null")


def _places(kind: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield every member of a document with the path of the object that holds it; durations by both names."""
    for option in _options(kind):
        if get_origin(option) is tuple:
            yield from _places(get_args(option)[0], f"{path}[]")
        elif _is_struct(option):
            for name, member in _types(option).items():
                yield name, path
                yield name.removesuffix(_MS), path
                yield from _places(member, f"{path}.{name}")
