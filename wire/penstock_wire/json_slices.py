"""JSON cut at its top level into raw slices: bytes, not objects.

The slices reach the model as sent: integers above 2^53, the spelling of numbers and the order of keys are
untouched. msgspec does the work; if it refuses (`NaN`, `Infinity`, lone surrogates, which Python programs
emit by default), a tolerant scanner decides, which accepts exactly what `json.loads` does.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from penstock_wire._mypyc import mypyc_attr

MAX_DEPTH = 512
"""Most levels of nesting in a body, including the top level."""

# NB: an unterminated string matches to the end of the text: otherwise each quote in it would be tried as the
# beginning of a string, in time that grows with the square of the text.
_TEXT = rb'"(?:[^"\\]+|\\.?)*+(?:"|\Z)'
_STRING = re.compile(_TEXT, re.DOTALL)
_STRUCTURE = re.compile(_TEXT + rb"|[\[\]{},:]", re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_NO_MARKS = bytes(set(range(256)) - set(b"[]{},"))
_INNERMOST = re.compile(rb"(?<=[\[{,])(?:\[,*+\]|\{,*+\})")
"""Containers without containers in them, other than the outermost."""
_FOLDS = 8
_SPACE = b" \t\n\r"


@mypyc_attr(native_class=False)
class NotJSON(ValueError):
    """The bytes are not the expected JSON.

    Args:
        message: what was expected, what was found and where.
        actual: the part on what was found, for callers with their own expectation; by default the message.
    """

    def __init__(self, message: str, actual: str = "") -> None:
        super().__init__(message)
        self.actual = actual or message


@mypyc_attr(native_class=False)
class _Key(str):
    """An object's key; as a separate type, msgspec passes each occurrence to the hook."""

    __slots__ = ()


_seen: list[str] = []


def _hook(kind: type[Any], value: Any) -> Any:
    if kind is _Key:
        _seen.append(value)
        return _Key(value)
    raise NotImplementedError(kind)  # msgspec requires this from a hook for unknown types


_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OBJECT_TOLD = msgspec.json.Decoder(dict[_Key, msgspec.Raw], dec_hook=_hook)
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])


def members(body: bytes) -> dict[str, bytes]:
    """Cut a JSON object into its members as raw slices.

    Args:
        body: a JSON text.

    Returns:
        Name → slice, in the order sent.

    Of two members with the same name msgspec keeps one. No member is lost if the bytes beyond the returned
    members are fewer than the smallest member takes.

    Raises:
        NotJSON: not UTF-8, not JSON, not an object, a name twice, or deeper than `MAX_DEPTH`.
    """
    if not body.isascii() or body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        _check_text(body)
    try:
        decoded = _OBJECT.decode(body)
    except msgspec.ValidationError as other:
        raise _other_kind("object", body) from other
    except (msgspec.DecodeError, RecursionError) as error:
        return _scan_members(body, error)
    result = {}
    slack = len(body) - 1
    for name, raw in decoded.items():
        result[name] = value = bytes(raw)
        slack -= len(name if name.isascii() else name.encode()) + len(value) + 4
    if slack >= _SMALLEST_MEMBER and not _is_spaced(body, slack, result):
        _check_twins(body, len(result))
    return result


_SMALLEST_MEMBER = len(b',"":1')


def _is_spaced(body: bytes, slack: int, fields: dict[str, bytes]) -> bool:
    """Whether the body is just these members in the spelling of `json.dumps`."""
    if slack != 2 * len(fields) - 1:
        return False
    try:
        spaced = b", ".join([b'"%b": %b' % (name.encode(), raw) for name, raw in fields.items()])
    except UnicodeEncodeError:
        return False
    return body == b"{%b}" % spaced


def _check_twins(body: bytes, members_found: int) -> None:
    """Refuse a duplicate name; slow, since it looks at each name."""
    _seen.clear()
    _OBJECT_TOLD.decode(body)
    if members_found != len(_seen):
        raise _twin(_seen)


def object_with(name: str, body: bytes) -> dict[str, bytes] | None:
    """Return the members of a JSON object if one of them has a given name; None for every other text.

    Args:
        name: the member's name, of ASCII letters.
        body: a text, JSON or not.

    Raises:
        NotJSON: the text begins as an object and contains the name, but cannot be read.
    """
    if body.lstrip(_SPACE)[:1] != b"{":
        return None
    try:
        fields = members(body)
    except NotJSON:
        if b'"%b"' % name.encode() in body:
            raise
        return None
    return fields if name in fields else None


def elements(array: bytes, limit: int | None = None) -> list[bytes]:
    """Cut a JSON array into its elements as raw slices.

    Args:
        array: a JSON text, usually a slice that `members` returned.
        limit: most elements allowed; checked before any of them takes memory.

    Raises:
        NotJSON: not JSON, not an array, or longer than allowed.
    """
    if limit is not None and len(array) > 2 * limit and array.count(b",") >= limit:
        _check_length(array, limit)
    try:
        return list(map(bytes, _ARRAY.decode(array)))
    except msgspec.ValidationError as other:
        raise _other_kind("array", array) from other
    except (msgspec.DecodeError, RecursionError) as error:
        return _scan_elements(array, error)


class Sole:
    """Reads objects with one member, an array, in the spelling of most programs, in one pass.

    Args:
        name: the member's name, of ASCII letters.
    """

    __slots__ = ("_compact", "_decoder", "_spaced")

    def __init__(self, name: str) -> None:
        self._compact = b'{"%b":[' % name.encode()
        self._spaced = b'{"%b": [' % name.encode()
        kind = msgspec.defstruct(
            "Sole", [("raws", list[msgspec.Raw])], rename={"raws": name}, forbid_unknown_fields=True
        )
        self._decoder: Any = msgspec.json.Decoder(kind)

    def elements(self, body: bytes) -> list[bytes] | None:
        """Return the elements as raw slices; each byte of the text is accounted for, so that none is lost.

        Args:
            body: a JSON text.

        Returns:
            None if the text has another spelling, has other members or is not JSON: use `members`.
        """
        size = len(body)
        if size > _SOLE_BYTES or not body.endswith(b"]}") or not body.isascii():
            return None
        if size > MAX_DEPTH and body.count(b"[") + body.count(b"{") > MAX_DEPTH:
            return None
        compact = body.startswith(self._compact)
        if not compact and not body.startswith(self._spaced):
            return None
        try:
            slices = list(map(bytes, self._decoder.decode(body).raws))
        except (msgspec.MsgspecError, RecursionError):
            return None
        if compact:
            used = (
                len(self._compact) + len(b"]}") + len(slices) - 1
                if slices
                else len(self._compact) + len(b"]}")
            )
            for element in slices:
                used += len(element)
            return slices if used == size else None
        return slices if body == b"%b%b]}" % (self._spaced, b", ".join(slices)) else None


_SOLE_BYTES = 64 * 1024
"""In longer texts the members are cut first, so that elements can be counted before they take memory."""


def _check_length(array: bytes, limit: int) -> None:
    """Refuse an array of more elements than allowed, by its commas."""
    if array.lstrip(_SPACE)[:1] != b"[":
        return
    marks = (_STRING.sub(b"", array) if b'"' in array else array).translate(None, _NO_MARKS)
    for _ in range(_FOLDS):
        if len(marks) <= limit + 1:
            return
        if marks.count(b"[") + marks.count(b"{") == 1:
            break
        marks = _INNERMOST.sub(b"", marks)
    depth = commas = 0
    for mark in marks:
        if mark in b"[{":
            depth += 1
        elif mark in b"]}":
            depth -= 1
        elif depth == 1:
            commas += 1
            if commas >= limit:
                raise NotJSON(f"expected at most {limit} elements, found more", "more")


def _check_text(body: bytes) -> None:
    if not body.isascii():
        try:
            body.decode("utf-8")
        except UnicodeDecodeError as error:
            actual = f"byte {body[error.start]:#04x} at {error.start}"
            raise NotJSON(f"expected UTF-8, found {actual}", actual) from error
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        brackets = _STRING.sub(b"", body).translate(None, _NO_BRACKETS)
        # Tensors as nested lists have very many brackets and few levels: remove the innermost ones, at most
        # two levels each time, before counting the rest.
        folded = brackets
        for _ in range(_FOLDS):
            folded = folded.replace(b"[]", b"").replace(b"{}", b"")
        if _depth(folded) + 2 * _FOLDS > MAX_DEPTH and (deepest := _depth(brackets)) > MAX_DEPTH:
            message = f"expected at most {MAX_DEPTH} levels of nesting, found {deepest}"
            raise NotJSON(message, f"{deepest} levels of nesting")


def _depth(brackets: bytes) -> int:
    depth = deepest = 0
    for bracket in brackets:
        if bracket in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth -= 1
    return deepest


def _kind(body: bytes) -> str:
    first = body.lstrip(_SPACE)[:1]
    names = {b"[": "an array", b"{": "an object", b'"': "a string", b"": "nothing", b"n": "null"}
    return names.get(first, "a boolean" if first in (b"t", b"f") else "a number")


def _other_kind(expected: str, body: bytes) -> NotJSON:
    kind = _kind(body)
    return NotJSON(f"expected a JSON {expected}, found {kind}", kind)


def _twin(names: list[str]) -> NotJSON:
    name = next(name for index, name in enumerate(names) if name in names[:index])
    return NotJSON(f"member {name!r} is there twice", f"member {name!r} twice")


def _check_loads(body: bytes, cause: Exception) -> None:
    # NB: the scanner below only finds boundaries; json.loads decides whether the text is JSON.
    try:
        json.loads(body, parse_int=float)  # an integer can have more digits than `int` accepts
    except (ValueError, RecursionError):
        message = str(cause).removeprefix("JSON is malformed: ")
        actual = f"bytes that are not JSON ({message})"
        raise NotJSON(f"the bytes are not JSON: {message}", actual) from cause


def _split(body: bytes, opening: bytes, closing: bytes) -> tuple[list[bytes], list[int]]:
    """Cut a container that json.loads accepted into its parts; also return each part's colon, -1 for none."""
    text = body.strip(_SPACE)
    if text[:1] != opening or text[-1:] != closing:
        raise _other_kind("object" if opening == b"{" else "array", body)
    parts: list[bytes] = []
    colons: list[int] = []
    depth, start, colon = 0, 1, -1
    for match in _STRUCTURE.finditer(text):
        token = match.group()
        if token in (b"[", b"{"):
            depth += 1
        elif token in (b"]", b"}"):
            depth -= 1
        elif depth == 1 and token == b":" and colon < 0:
            colon = match.start() - start
        elif depth == 1 and token == b",":
            parts.append(text[start : match.start()])
            colons.append(colon)
            start, colon = match.end(), -1
    last = text[start:-1]
    if parts or last.strip(_SPACE):
        parts.append(last)
        colons.append(colon)
    return parts, colons


def _scan_members(body: bytes, cause: Exception) -> dict[str, bytes]:
    _check_loads(body, cause)
    names: list[str] = []
    result: dict[str, bytes] = {}
    for part, colon in zip(*_split(body, b"{", b"}"), strict=True):
        name = json.loads(part[:colon])
        names.append(name)
        result[name] = part[colon + 1 :].strip(_SPACE)
    if len(result) != len(names):
        raise _twin(names)
    return result


def _scan_elements(array: bytes, cause: Exception) -> list[bytes]:
    _check_loads(array, cause)
    return [part.strip(_SPACE) for part in _split(array, b"[", b"]")[0]]


def without_strings(text: bytes) -> bytes:
    """Return a JSON text without its strings, for counting its brackets and commas."""
    return _STRING.sub(b"", text)
