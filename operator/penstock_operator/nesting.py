"""JSON of the apiserver, however deeply its values are nested, and however many they are.

The apiserver admits 10 000 levels in a field of any type; Python's parsers, and whatever walks a value by
recursion, raise RecursionError at about 1000. One such object must not cost the others of its page or watch
anything, so what lies below `CUT` is cut off before it is parsed, and `Store` keeps a stub of an object of
more than `LEVELS`. The same becomes of a resource of more than `VALUES`: 1.5 MB, which is what etcd takes of
an object, may be half a million empty lists, over which one look takes the loop half a second.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

LEVELS = 128
"""Levels of containers that an object may have, itself included. Every step behind the store walks values by
recursion; the shortest reach is pydantic's, 255 levels."""

VALUES = 50_000
"""Values that the spec of a resource may have, in all its lists and maps together. A look at so many takes
some tens of milliseconds."""

CUT = LEVELS + 72
"""Levels of an answer that are parsed where it has too many: more than `LEVELS` in each of its objects, which
lie within lists and watch events, so that the store notices."""

_NAMED = 6
"""Steps of a path that a message names."""

_TOKEN = re.compile(rb'"(?:[^"\\]+|\\.)*+"|[\[\]{}]', re.DOTALL)


class TooDeep(ValueError):
    """A value has more levels than are read."""


class TooMany(ValueError):
    """A resource has more values than are read."""


def check_count(spec: Any, most: int = VALUES) -> None:
    """See that a spec is not too large to be looked at.

    Args:
        spec: of a resource.
        most: values that it may have.

    Raises:
        TooMany: it has more; the message says where most of them are.
    """
    fields = spec if isinstance(spec, dict) else {}
    counts = {name: count(member, most) for name, member in fields.items()}
    if sum(counts.values()) > most:
        largest = max(counts, key=lambda name: counts[name])
        raise TooMany(f"spec.{largest}: expected at most {most} values in a resource, found more")


def count(value: Any, most: int) -> int:
    """How many values there are in a value's lists and maps, itself included; beyond `most`, not exactly.

    Args:
        value: what a parser gave.
        most: where counting ends.
    """
    total, waiting = 1, [value]
    while waiting and total <= most:
        members = waiting.pop()
        if isinstance(members, dict | list):
            total += len(members)
            if total <= most:
                waiting += members.values() if isinstance(members, dict) else members
    return total


def decode(data: bytes) -> Any:
    """Parse an answer; where its nesting is too deep for a parser, without what lies below `CUT`.

    Args:
        data: JSON.

    Raises:
        msgspec.MsgspecError: it is not JSON.
    """
    try:
        return msgspec.json.decode(data)
    except RecursionError:
        return msgspec.json.decode(cut(data))


def cut(text: bytes, levels: int = CUT) -> bytes:
    """JSON text with null in place of each container that lies below so many levels.

    Args:
        text: valid JSON.
        levels: levels that are kept.
    """
    if text.count(b"[") + text.count(b"{") <= levels:
        return text
    parts: list[bytes] = []
    depth = kept = 0
    for match in _TOKEN.finditer(text):
        mark = text[match.start()]
        if mark in b"[{":
            depth += 1
            if depth == levels + 1:
                parts += [text[kept : match.start()], b"null"]
        elif mark in b"]}":
            depth -= 1
            if depth == levels:
                kept = match.end()
    if not parts:
        return text
    return b"".join([*parts, text[kept:]])


def where(obj: Mapping[str, Any], levels: int = LEVELS) -> str:
    """The path of a container that lies below so many levels, for people; empty where there is none.

    Args:
        obj: a Kubernetes object.
        levels: levels that are read, the object's own included.
    """
    waiting: list[tuple[Any, int, tuple[str, ...]]] = [(obj, 1, ())]
    while waiting:
        value, level, path = waiting.pop()
        if level > levels:
            return ".".join(path)
        for step, member in value.items() if isinstance(value, Mapping) else enumerate(value):
            if isinstance(member, dict | list):
                below = path if len(path) == _NAMED else (*path, str(step))
                waiting.append((member, level + 1, below))
    return ""
