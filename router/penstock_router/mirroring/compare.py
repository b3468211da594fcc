"""Compares a mirror's answer with the served one: status, then JSON by path. Pure, and in small steps.

The bodies are compared as bytes first. If they differ and the served one is JSON, their values are walked
breadth first up to the first difference. The report has its path and the types there, and values only if the
mirror's settings ask for them. Names in a path, and values, come from the model, so they are cut and escaped.

Numbers are equal within a tolerance: relative above a magnitude of 1, absolute below it. 1 and 1.0 are the
same number; `true` is not a number. If an object has a name twice, the last one counts.

`Comparison.step` does a bounded piece of work, so the router's loop is never blocked for long; `MAX_BYTES` of
each body bounds the whole work.
"""

from __future__ import annotations

import json
import re
from collections import deque
from typing import Any

import msgspec

from penstock_wire.headers import Headers, get

MAX_BYTES = 64 * 1024
"""Bodies larger than this are compared only as bytes."""
MAX_NAME = 64
MAX_PATH = 200
"""The most characters of a name, and of a path, that are reported."""
MAX_VALUE = 48
"""The most characters of a value that is reported, as JSON."""
EQUAL = ""
STATUS, TYPE, VALUE, LENGTH, MISSING, EXTRA, BODY, MALFORMED = (
    "status",
    "type",
    "value",
    "length",
    "missing",
    "extra",
    "body",
    "malformed",
)
"""How two answers differ: in status; at a path in type, value or number of elements, by a missing or an extra
member; in bytes, if the served body is not JSON; or only the served body is JSON."""
TOO_LARGE, ENCODED, SERVED_ERROR = "too_large", "encoded", "served_error"
"""Why two bodies that differ as bytes were not compared further."""

_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_STEP = re.compile(r"\.([A-Za-z0-9_-]+|\*)|\[([0-9]+|\*|'[^'\\]+')\]")


class PathStep:
    """The last step of a path, a name or an index, and a link to the steps before it."""

    __slots__ = ("before", "step")

    def __init__(self, before: PathStep | None, step: str | int) -> None:
        self.before = before
        self.step = step


class IgnoreNode:
    """A node in the tree of ignored paths."""

    __slots__ = ("any_index", "any_name", "ends", "steps")

    def __init__(self) -> None:
        self.steps: dict[str | int, IgnoreNode] = {}
        self.any_name: IgnoreNode | None = None
        self.any_index: IgnoreNode | None = None
        self.ends = False


class Rules:
    """The paths that a comparison ignores, and its tolerance for numbers.

    Args:
        ignore: paths, as in `router_settings.Compare`.
        tolerance: as there.
        show_values: as there.
    """

    __slots__ = ("root", "show_values", "tolerance")

    def __init__(
        self, ignore: tuple[str, ...] = (), tolerance: float = 0.0, *, show_values: bool = False
    ) -> None:
        self.tolerance = tolerance
        self.show_values = show_values
        self.root = IgnoreNode()
        for path in ignore:
            node = self.root
            for step in _STEP.finditer(path):
                node = _below(node, step[1], step[2])
            node.ends = True


def _below(node: IgnoreNode, name: str | None, bracket: str | None) -> IgnoreNode:
    if name == "*":
        if node.any_name is None:
            node.any_name = IgnoreNode()
        return node.any_name
    if bracket == "*":
        if node.any_index is None:
            node.any_index = IgnoreNode()
        return node.any_index
    step: str | int
    if name is not None:
        step = name
    elif bracket is not None and bracket.startswith("'"):
        step = bracket[1:-1]
    else:
        step = int(bracket or "0")
    return node.steps.setdefault(step, IgnoreNode())


class FirstDifference:
    """The first difference of two answers.

    Args:
        kind: how they differ.
        path: the path of the difference.
        general: the path with `[*]` for each index.
        expected: the type, value or status in the served answer.
        actual: the same in the mirror's.
    """

    __slots__ = ("actual", "expected", "general", "kind", "path")

    def __init__(self, kind: str, path: str, general: str, expected: str, actual: str) -> None:
        self.kind = kind
        self.path = path
        self.general = general
        self.expected = expected
        self.actual = actual


class Work:
    """Two values that are still to be compared."""

    __slots__ = ("actual", "at", "expected", "link", "nodes", "start")

    def __init__(
        self,
        link: PathStep | None,
        expected: object,
        actual: object,
        nodes: list[IgnoreNode],
        at: list[str],
        start: int,
    ) -> None:
        self.link = link
        self.expected = expected
        self.actual = actual
        self.nodes = nodes  # the nodes of ignored paths that lead here
        self.at = at  # the names of the served object; empty for arrays
        self.start = start  # the index at which to go on


class Comparison:
    """A comparison of two answers, in progress or done.

    Args:
        rules: the ignored paths and the tolerance.
        status, body, headers: the served answer's; the other three are the mirror's.
    """

    __slots__ = ("_begun", "_bodies", "_rules", "_work", "difference", "skipped")

    def __init__(
        self,
        rules: Rules,
        status: int,
        body: bytes,
        headers: Headers,
        other_status: int,
        other_body: bytes,
        other_headers: Headers,
    ) -> None:
        self._rules = rules
        self._bodies = (body, other_body)
        self._work: deque[Work] = deque()
        self._begun = False
        self.difference: FirstDifference | None = None
        """The first difference; None if none was found."""
        self.skipped = ""
        """Why the answers were not compared to the end; empty if they were."""
        if status >= 400 and (status >= 500 or other_status < 500):
            self.skipped = SERVED_ERROR  # what a client asked wrongly is not held against a version
            self._begun = True
        elif status != other_status:
            self.difference = FirstDifference(STATUS, "$", "$", str(status), str(other_status))
            self._begun = True
        elif body == other_body:
            self._begun = True
        elif len(body) > MAX_BYTES or len(other_body) > MAX_BYTES:
            self.skipped = TOO_LARGE
            self._begun = True
        elif _encoded(headers) or _encoded(other_headers):
            self.skipped = ENCODED
            self._begun = True

    @property
    def settled(self) -> bool:
        """Whether the comparison is finished."""
        return self._begun and not self._work

    def step(self, most: int) -> bool:
        """Do a piece of the comparison.

        Args:
            most: the number of values to compare.

        Returns:
            Whether it is finished.
        """
        if not self._begun:
            self._begun = True
            self._read()
            return not self._work
        left = most
        while self._work and left > 0:
            work = self._work.popleft()
            if isinstance(work.expected, list):
                left = self._lists(work, left)
            elif isinstance(work.expected, dict):
                left = self._objects(work, left)
            if self.difference is not None:
                self._work.clear()
        return not self._work

    def _read(self) -> None:
        """Parse both bodies."""
        body, other = self._bodies
        self._bodies = (b"", b"")
        expected = _json(body)
        actual = _json(other)
        if expected is _NOT_JSON:
            self.difference = FirstDifference(BODY, "$", "$", "bytes", "bytes")
        elif actual is _NOT_JSON:
            self.difference = FirstDifference(MALFORMED, "$", "$", _type(expected), "bytes")
        else:
            self._pair(None, expected, actual, [self._rules.root])

    def _pair(self, link: PathStep | None, expected: object, actual: object, nodes: list[IgnoreNode]) -> None:
        """Compare two scalars, or queue two containers to be compared."""
        if isinstance(expected, list) and isinstance(actual, list):
            if any(node.any_index is not None and node.any_index.ends for node in nodes):
                return
            if len(expected) != len(actual):
                self._differ(LENGTH, link, "array", "array")
            elif expected:
                self._work.append(Work(link, expected, actual, nodes, [], 0))
        elif isinstance(expected, dict) and isinstance(actual, dict):
            self._work.append(Work(link, expected, actual, nodes, list(expected), 0))
        else:
            kind, other = _type(expected), _type(actual)
            if kind != other:
                self._differ(TYPE, link, kind, other)
            elif kind == "number":
                if not self._near(expected, actual):
                    self._differ(VALUE, link, self._shown(expected), self._shown(actual))
            elif expected != actual:
                self._differ(VALUE, link, self._shown(expected), self._shown(actual))

    def _lists(self, work: Work, left: int) -> int:
        """Continue with two arrays of equal length; returns how many more values may be compared."""
        expected: list[Any] = work.expected  # type: ignore[assignment]  # as its caller has seen
        actual: list[Any] = work.actual  # type: ignore[assignment]
        place, end = work.start, min(len(expected), work.start + left)
        tolerance, nodes = self._rules.tolerance, work.nodes
        while place < end:
            value, other = expected[place], actual[place]
            if not nodes and type(value) is float and type(other) is float:
                if value != other:
                    apart = value - other if value > other else other - value
                    scale = max(1.0, abs(value), abs(other))
                    if apart > tolerance * scale:
                        at = PathStep(work.link, place)
                        self._differ(VALUE, at, self._shown(value), self._shown(other))
            else:
                below = _into(nodes, place, of_array=True) if nodes else nodes
                if below is not None:
                    self._pair(PathStep(work.link, place), value, other, below)
            place += 1
            if self.difference is not None:
                return left
        left -= place - work.start
        if place < len(expected):
            work.start = place
            self._work.appendleft(work)
        return left

    def _objects(self, work: Work, left: int) -> int:
        """Continue with two objects; returns how many more values may be compared."""
        expected: dict[str, Any] = work.expected  # type: ignore[assignment]  # as its caller has seen
        actual: dict[str, Any] = work.actual  # type: ignore[assignment]
        names, nodes = work.at, work.nodes
        place, end = work.start, min(len(names), work.start + left)
        while place < end:
            name = names[place]
            below = _into(nodes, name, of_array=False) if nodes else nodes
            if below is not None:
                if name in actual:
                    self._pair(PathStep(work.link, name), expected[name], actual[name], below)
                else:
                    self._differ(MISSING, PathStep(work.link, name), _type(expected[name]), "")
            place += 1
            if self.difference is not None:
                return left
        left -= place - work.start
        if place < len(names):
            work.start = place
            self._work.appendleft(work)
            return left
        for name in actual:
            if name not in expected and _into(nodes, name, of_array=False) is not None:
                self._differ(EXTRA, PathStep(work.link, name), "", _type(actual[name]))
                break
        return left - 1

    def _near(self, value: Any, other: Any) -> bool:
        if value == other:
            return True
        try:
            return bool(abs(value - other) <= self._rules.tolerance * max(1, abs(value), abs(other)))
        except OverflowError:  # an integer beyond all floats
            return False

    def _shown(self, value: object) -> str:
        """A scalar as JSON, if the rules ask for values; else its type."""
        if not self._rules.show_values:
            return _type(value)
        if isinstance(value, str):
            return _quoted(value)
        text = json.dumps(value)
        return text if len(text) <= MAX_VALUE else text[: MAX_VALUE - 1] + "…"

    def _differ(self, kind: str, link: PathStep | None, expected: str, actual: str) -> None:
        if self.difference is None:
            self.difference = FirstDifference(
                kind, _path(link, general=False), _path(link, general=True), expected, actual
            )


_NOT_JSON = object()


def _json(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return _NOT_JSON


def _encoded(headers: Headers) -> bool:
    encoding = get(headers, b"content-encoding")
    return encoding is not None and encoding.strip().lower() not in (b"", b"identity")


def _quoted(value: str) -> str:
    """A string as JSON, cut between two characters if it is long; what cannot be printed is escaped."""
    characters = [
        json.dumps(each, ensure_ascii=not each.isprintable())[1:-1] for each in value[: MAX_VALUE + 1]
    ]
    pieces = ['"', *characters, '"']
    while sum([len(piece) for piece in pieces]) > MAX_VALUE:
        pieces[-2:] = ["…"]
    return "".join(pieces)


def _type(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, list):
        return "array"
    return "object" if isinstance(value, dict) else "number"


def _into(nodes: list[IgnoreNode], step: str | int, *, of_array: bool) -> list[IgnoreNode] | None:
    """The nodes of ignored paths below a step; None if one of the paths ends there."""
    below: list[IgnoreNode] = []
    for node in nodes:
        exact = node.steps.get(step)
        wild = node.any_index if of_array else node.any_name
        if (exact is not None and exact.ends) or (wild is not None and wild.ends):
            return None
        if exact is not None:
            below.append(exact)
        if wild is not None:
            below.append(wild)
    return below


def _path(link: PathStep | None, *, general: bool) -> str:
    """Render a path as text, cut if it is long."""
    steps: list[str | int] = []
    while link is not None:
        steps.append(link.step)
        link = link.before
    parts = ["$"]
    length = 1
    for step in reversed(steps):
        part = _step_text(step, general=general)
        length += len(part)
        if length > MAX_PATH:
            parts.append("…")
            break
        parts.append(part)
    return "".join(parts)


def _step_text(step: str | int, *, general: bool) -> str:
    if isinstance(step, int):
        return "[*]" if general else f"[{step}]"
    name = step if len(step) <= MAX_NAME else step[:MAX_NAME] + "…"
    if _PLAIN.fullmatch(name):
        return f".{name}"
    return "['" + json.dumps(name)[1:-1].replace("'", "\\u0027") + "']"
