"""Decodes items and encodes answers; arrays and scalars of numpy and similar libraries without an import."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from collections.abc import AsyncIterable, Awaitable, Iterable, Sequence
from typing import Any

import msgspec

from penstock.end import END
from penstock.errors import AnswerError, ArgumentsError

SEEN = 10_000
"""The most values that are searched for the path of a value without a JSON form."""
NO_JSON: dict[type, str] = {}
"""Types without a JSON form whose objects seem to have every method, with the hint for the error."""


class _NoJson(TypeError):
    """A value has no JSON form.

    Args:
        value: the value.
    """

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def said(self, whole: Any) -> str:
        """The message of the error, with the path of the value.

        Args:
            whole: the value to encode, which holds this value.
        """
        value = self.value
        path = path_of(whole, value)
        at = f" at {path}" if path else ""
        wanted, kind = f"expected a value that has a JSON form{at}, found", type(value).__name__
        if value is END:
            return (
                f"{wanted} penstock.END, which ends a stream only as a whole piece: yield it by itself, and "
                "return None where there is no answer"
            )
        if type(value) in NO_JSON:
            return f"{wanted} a {kind}: {NO_JSON[type(value)]}"
        # NB: check this first: a handle's stream has an `__await__`, too, which only raises.
        if isinstance(value, AsyncIterable):
            return f"{wanted} a {kind}, whose pieces come one by one: read them into a list first"
        if isinstance(value, Awaitable):
            return f"{wanted} a {kind} that was not awaited: await it first"
        if isinstance(value, Iterable) and not isinstance(value, type):
            return f"{wanted} a {kind}: make a list, or a dict, of it"
        return f"a value of type {kind} has no JSON{at}"


def path_of(whole: Any, wanted: Any) -> str:
    """The JSON path of a value within another; empty if it is the whole value, or is not found."""
    left: list[tuple[Any, str]] = [(whole, "$")]
    for _ in range(SEEN):
        if not left:
            break
        each, path = left.pop()
        if each is wanted:
            return "" if each is whole else path
        inner: Iterable[tuple[str, Any]] = ()
        if isinstance(each, list | tuple):
            inner = ((f"[{index}]", part) for index, part in enumerate(each))
        elif isinstance(each, dict):
            inner = ((f".{str(name)[:64]}", part) for name, part in each.items())
        elif dataclasses.is_dataclass(each):
            inner = ((f".{part.name}", getattr(each, part.name, None)) for part in dataclasses.fields(each))
        if len(left) < SEEN:
            left += [(part, path + name) for name, part in itertools.islice(inner, SEEN)]
    return ""


def _hook(value: Any) -> Any:
    if type(value) in NO_JSON:
        raise _NoJson(value)
    for name in ("tolist", "model_dump"):  # arrays, tensors and their scalars; pydantic models
        convert = getattr(value, name, None)
        if callable(convert):
            return convert()
    raise _NoJson(value)


_ENCODER = msgspec.json.Encoder(enc_hook=_hook)
_NO_JSON = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
"""The exceptions of encoding a value that has no JSON form."""


def encode(value: Any) -> bytes:
    """Encode a value as JSON; NaN and the infinities, which JSON does not have, become null.

    Args:
        value: JSON's own types, dataclasses, dates, arrays and tensors (by their `tolist`), pydantic models.

    Raises:
        AnswerError: the value has no JSON form.
    """
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        return _escaped(value)
    except _NO_JSON as error:
        raise AnswerError(_said(error, value)) from error


def _said(error: Exception, whole: Any) -> str:
    if isinstance(error, RecursionError):
        return "expected a value that has a JSON form, found one that holds itself, or is nested too deep"
    return error.said(whole) if isinstance(error, _NoJson) else str(error)


def _escaped(value: Any) -> bytes:
    """Encode a value that holds a lone surrogate, which has an escape in JSON, but no UTF-8 form."""
    if isinstance(value, str):
        return json.dumps(value).encode()
    if isinstance(value, list | tuple):
        return b"[" + b",".join([encode(each) for each in value]) + b"]"
    try:
        plain = msgspec.to_builtins(value, enc_hook=_hook, str_keys=True)
    except _NO_JSON as error:
        raise AnswerError(_said(error, value)) from error
    if not isinstance(plain, dict):
        return encode(plain)
    return b"{" + b",".join([encode(name) + b":" + encode(each) for name, each in plain.items()]) + b"}"


def decode(raw: Sequence[bytes]) -> list[Any]:
    """Decode raw JSON slices; `NaN` and `Infinity` are accepted, as in Python's `json`.

    Args:
        raw: texts that are known to be JSON.

    Returns:
        A value for each; an ArgumentsError with the reason in place of a value that Python cannot hold.
    """
    try:
        values: list[Any] = msgspec.json.decode(b"[" + b",".join(raw) + b"]")
    except (msgspec.DecodeError, RecursionError):
        values = [_value(each) for each in raw]
    return values


def _value(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:  # only an integer can raise it: `int` limits the number of digits
        limit = sys.get_int_max_str_digits()
        return ArgumentsError(f"expected integers of at most {limit} digits, found more")
