"""JSON cut at its top level into raw slices: bytes, not objects.

The slices reach the model as sent: integers above 2^53, the spelling of numbers and the order of keys are
untouched. msgspec does the work. It refuses some texts that `json.loads` accepts and Python programs emit by
default (`NaN`, `Infinity`, lone surrogates); such a text is cut where msgspec cuts its double with stand-ins.

NB: each step takes time and memory in proportion to the text, whatever it holds. A few statements for each
token, or an object for each value, would let one request stop the loop for seconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, cast

import msgspec

from penstock_wire._mypyc import mypyc_attr

MAX_DEPTH = 512
"""Most levels of nesting in a body, including the top level."""

MAX_MEMBERS = 10_000
"""Most members of an object that is cut."""

_NAME = re.compile(rb'[ \t\n\r,{]*+("(?:[^"\\]++|\\.)*+")[ \t\n\r]*+:[ \t\n\r]*+')
# NB: an unterminated string matches to the end of the text: otherwise each quote in it would be tried as the
# beginning of a string, in time that grows with the square of the text.
_QUOTED = re.compile(rb'"[^"]*+(?:"|\Z)')
_NO_MARKS = bytes(set(range(256)) - set(b'[]{},"'))
_INNERMOST = re.compile(rb"(?<=[\[{,])(?:\[,*+\]|\{,*+\})")
"""Containers without containers in them, other than the outermost."""
_SPACE = b" \t\n\r"
_COMMA, _ARRAY_OPENS, _OBJECT_OPENS = b",[{"

_STAND_INS = (
    (b"NaN", b"[ ]"),
    (b"-Infinity", b"[       ]"),
    (b"Infinity", b"[      ]"),
    (rb"\ud", rb"\u0"),
    (rb"\uD", rb"\u0"),
)
"""What only `json.loads` reads, and what msgspec reads in its place: as long, and wrong wherever it is wrong.

An array stands where `NaN` may stand, and nowhere else: not beside a digit or a sign, nor as a key. Within a
string both are text, and neither has a hexadecimal digit. `\\u0…` is no half of a character.
"""


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
    """A member's name, unlike every other: a dict keeps all members, also those of one name."""

    __slots__ = ()
    __hash__ = object.__hash__
    __eq__ = object.__eq__


@mypyc_attr(native_class=False)
class _TooManyError(Exception):
    """An object has more than `MAX_MEMBERS` members."""


_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])


def members(body: bytes) -> dict[str, bytes]:
    """Cut a JSON object into its members as raw slices.

    Args:
        body: a JSON text.

    Returns:
        Name → slice, in the order sent.

    Raises:
        NotJSON: not UTF-8, not JSON, not an object, a name twice, more than `MAX_MEMBERS`, or deeper than
            `MAX_DEPTH`.
    """
    if not body.isascii() or body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        _check_text(body)
    if len(body) > MAX_MEMBERS * _SMALLEST_MEMBER:
        return _every_member(body)
    try:
        decoded = _OBJECT.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return _every_member(body)
    # Of two members with one name msgspec keeps one. None is lost if fewer bytes than the smallest member has
    # are beyond these members.
    result = {}
    slack = len(body) - 1
    for name, raw in decoded.items():
        result[name] = value = bytes(raw)
        slack -= len(name if name.isascii() else name.encode()) + len(value) + 4
    if slack >= _SMALLEST_MEMBER and not _is_spaced(body, slack, result):
        return _every_member(body)
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


def _every_member(body: bytes) -> dict[str, bytes]:
    """Cut an object in any spelling, with a look at each name (see `members`)."""
    try:
        decoded, exact = _decode(_decode_members, body, "object")
    except _TooManyError:
        raise NotJSON(f"expected at most {MAX_MEMBERS} members, found more", "more members") from None
    values = list(map(bytes, decoded.values()))
    result: dict[str, bytes] = {}
    end = 0
    for key, value in zip(decoded, values, strict=True):
        name = str(key)
        if not exact:  # the name can have stand-ins
            match = cast("re.Match[bytes]", _NAME.match(body, end))
            name = json.loads(match[1])
            end = match.end() + len(value)
        if name in result:
            raise NotJSON(f"member {name!r} is there twice", f"member {name!r} twice")
        result[name] = value
    return result


def _decode_members(text: bytes | bytearray) -> Any:
    count = 0

    def key(kind: type[Any], name: str) -> _Key:
        nonlocal count
        count += 1
        if count > MAX_MEMBERS:
            raise _TooManyError
        return _Key(name)

    return msgspec.json.decode(text, type=dict[_Key, msgspec.Raw], dec_hook=key)


def _decode(decode: Callable[[bytes | bytearray], Any], text: bytes, kind: str) -> tuple[Any, bool]:
    """Decode a text into raw slices as if msgspec read all that `json.loads` reads.

    Args:
        decode: msgspec's part.
        text: the text.
        kind: what it should be, an array or an object.

    Returns:
        The result, and whether its names are the text's; else they can have stand-ins. Its slices have none.

    Raises:
        NotJSON: not JSON, or of another kind.
    """
    try:
        return decode(text), True
    except msgspec.ValidationError as other:
        raise _other_kind(kind, text) from other
    except (msgspec.DecodeError, RecursionError):
        double = text
    for word, stand_in in _STAND_INS:
        double = double.replace(word, stand_in)
    lent = bytearray(double)
    try:
        decoded = decode(lent)
    except msgspec.ValidationError as another:
        raise _other_kind(kind, text) from another
    except (msgspec.DecodeError, RecursionError) as error:
        message = str(error).removeprefix("JSON is malformed: ")
        actual = f"bytes that are not JSON ({message})"
        raise NotJSON(f"the bytes are not JSON: {message}", actual) from error
    if text.lstrip(_SPACE)[:1] not in (b"[", b"{"):  # a stand-in is all of it
        raise _other_kind(kind, text)
    # NB: the slices are views of what was decoded, so they get the text's own bytes.
    memoryview(lent)[:] = text
    return decoded, False


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
    return list(map(bytes, _decode(_ARRAY.decode, array, "array")[0]))


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
    marks = structure(array)
    while len(marks) > limit + 1 and marks.count(b"[") + marks.count(b"{") > 1:
        folded = b"".join(_INNERMOST.split(marks.replace(b"[]", b"").replace(b"{}", b"")))
        if len(folded) > len(marks) // 2:
            break
        marks = folded
    depth = commas = 0
    for mark in marks:
        if mark == _COMMA:
            commas += depth == 1
            if commas >= limit:
                raise NotJSON(f"expected at most {limit} elements, found more", "more")
        elif mark == _ARRAY_OPENS or mark == _OBJECT_OPENS:  # noqa: SIM109 - mypyc makes no tuple of this
            depth += 1
        else:
            depth -= 1


def _check_text(body: bytes) -> None:
    if not body.isascii():
        try:
            body.decode("utf-8")
        except UnicodeDecodeError as error:
            actual = f"byte {body[error.start]:#04x} at {error.start}"
            raise NotJSON(f"expected UTF-8, found {actual}", actual) from error
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        brackets = structure(body).replace(b",", b"")
        # Tensors as nested lists have very many brackets and few levels: remove the innermost ones, at most
        # two levels each time, before counting the rest.
        folded, levels = brackets, 0
        while len(rest := folded.replace(b"[]", b"").replace(b"{}", b"")) < len(folded) // 2:
            folded, levels = rest, levels + 2
        if _is_deeper(folded, MAX_DEPTH - levels) and _is_deeper(brackets, MAX_DEPTH):
            raise NotJSON(
                f"expected at most {MAX_DEPTH} levels of nesting, found more", "more levels of nesting"
            )


_STRIDE = 128


def _is_deeper(brackets: bytes, most: int) -> bool:
    """Whether brackets have more levels than `most`; looks at each only where there can be so many."""
    level = 0
    for start in range(0, len(brackets), _STRIDE):
        some = brackets[start : start + _STRIDE]
        openings = some.count(b"[") + some.count(b"{")
        if level + openings > most:
            depth = level
            for bracket in some:
                depth += 1 if bracket in b"[{" else -1
                if depth > most:
                    return True
        level += 2 * openings - len(some)
    return False


def _kind(body: bytes) -> str:
    first = body.lstrip(_SPACE)[:1]
    names = {b"[": "an array", b"{": "an object", b'"': "a string", b"": "nothing", b"n": "null"}
    return names.get(first, "a boolean" if first in (b"t", b"f") else "a number")


def _other_kind(expected: str, body: bytes) -> NotJSON:
    kind = _kind(body)
    return NotJSON(f"expected a JSON {expected}, found {kind}", kind)


def structure(text: bytes) -> bytes:
    """Return the brackets and commas of a JSON text without those in its strings."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = text.translate(None, _NO_MARKS).replace(b'""', b"")
    return b"".join(_QUOTED.split(marks)) if b'"' in marks else marks
