"""Limits on the depth, number and bytes of values in JSON from the apiserver.

The apiserver admits 10 000 levels in a field of any type; Python's parsers, and code that walks a value by
recursion, raise RecursionError at about 1000. Such an object must not affect the others of its page or watch,
so levels below `CUT` are cut off before parsing, and `Store` keeps a stub of an object of more than `LEVELS`.
It also keeps a stub of a resource of more than `VALUES`: 1.5 MB, etcd's limit for an object, can be half a
million empty lists, and one look at these blocks the loop for half a second. It keeps a stub, too, of any
object of more than `BYTES`, and of one for which its namespace has no room: a tenant must not fill the memory
that all namespaces share.
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

LEVELS = 128
"""Levels of containers that an object may have, itself included. All steps behind the store walk values by
recursion; pydantic has the lowest limit, 255 levels."""

VALUES = 50_000
"""Values that the spec of a resource may have, in all its lists and maps together. A look at this many takes
some tens of milliseconds."""

BYTES = 1024 * 1024
"""Bytes that the values of an object may take in this process, as it is kept. What is larger could not be
rendered: a ConfigMap has 1 MiB at most, all annotations of an object 256 KiB."""

LONG = 256 * 1024
"""Bytes from which an answer, or a line of a watch, is long."""
_COLLECTED_BYTES = 8 * 1024 * 1024
"""Bytes of long answers after which the garbage collector runs."""
_uncollected = 0

_MOST_OF_A_BYTE = 64
"""More bytes than a byte of JSON can take here: `{"":` and its brace take 281 for 5."""

CUT = LEVELS + 72
"""Levels of an answer that are parsed if it has too many: more than `LEVELS` for each object in its lists and
watch events, so that the store notices."""

_NAMED = 6
"""Most steps of a path that a message names."""

_TOKEN = re.compile(rb'"(?:[^"\\]+|\\.)*+"|[\[\]{}]', re.DOTALL)


class TooDeep(ValueError):
    """A value has more levels than are read."""


class TooMany(ValueError):
    """A resource has more values than are read."""


class TooLarge(ValueError):
    """An object has more bytes than are kept."""


def is_small(value: Any, most: int = BYTES) -> bool:
    """Whether a value's JSON is so short that it cannot take more bytes, nor have more than `VALUES` values.

    This is a tenth of the work of the exact checks, which take a Python step for each value.
    """
    try:
        return len(msgspec.json.encode(value)) * _MOST_OF_A_BYTE <= most
    except Exception:  # too many levels, or a value that is not JSON's
        return False


def check_bytes(obj: Mapping[str, Any], most: int = BYTES) -> int:
    """Return how many bytes an object's values take.

    Raises:
        TooLarge: it has more; the message names the field with most of them.
    """
    sizes = {
        f"{part}.{name}": weigh(member, most)
        for part, members in obj.items()
        if isinstance(members, dict)
        for name, member in members.items()
    }
    total = sum(sizes.values())
    if total > most:
        largest = max(sizes, key=lambda name: sizes[name])
        raise TooLarge(
            f"{largest}: expected at most {most >> 10} KiB in an object, found {total >> 10} KiB or more"
        )
    return total


def weigh(value: Any, most: int) -> int:
    """How many bytes a value takes in this process, with all in its lists and maps; inexact beyond `most`.

    Texts and numbers that are shared count each time.
    """
    total, waiting = 0, [value]
    while waiting and total <= most:
        member = waiting.pop()
        total += sys.getsizeof(member)
        if isinstance(member, dict):
            total += sum(map(sys.getsizeof, member))
            waiting += member.values()
        elif isinstance(member, list):
            waiting += member
    return total


def check_count(spec: Any, most: int = VALUES) -> None:
    """Check that a spec does not have too many values.

    Raises:
        TooMany: it has more; the message names the field with most of them.
    """
    fields = spec if isinstance(spec, dict) else {}
    counts = {name: count(member, most) for name, member in fields.items()}
    if sum(counts.values()) > most:
        largest = max(counts, key=lambda name: counts[name])
        raise TooMany(f"spec.{largest}: expected at most {most} values in a resource, found more")


def count(value: Any, most: int) -> int:
    """How many values a value's lists and maps have, itself included; inexact beyond `most`."""
    total, waiting = 1, [value]
    while waiting and total <= most:
        members = waiting.pop()
        if isinstance(members, dict | list):
            total += len(members)
            if total <= most:
                waiting += members.values() if isinstance(members, dict) else members
    return total


def decode(data: bytes) -> Any:
    """Parse an answer; if its nesting is too deep for the parser, without the levels below `CUT`.

    Args:
        data: JSON.

    Raises:
        msgspec.MsgspecError: it is not JSON.
    """
    global _uncollected
    if len(data) > LONG:
        # NB: the calls that led here leave cycles, which hold what is parsed until the next collection, and
        # that comes by the number of objects: a hundred answers of a megabyte would wait for it.
        _uncollected += len(data)
        if _uncollected > _COLLECTED_BYTES:
            _uncollected = 0
            gc.collect()
    try:
        return msgspec.json.decode(data)
    except RecursionError:
        return msgspec.json.decode(cut(data))


def cut(text: bytes, levels: int = CUT) -> bytes:
    """Replace each container below so many levels of a JSON text by null."""
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
    """The path of a container below so many levels, for messages; empty if there is none.

    Args:
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
