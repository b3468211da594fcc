"""Items out of JSON, answers into JSON; arrays and scalars of numpy and its kin without importing them."""

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
"""Values that are looked at to say where one stands that has no JSON."""
NO_JSON: dict[type, str] = {}
"""Types without JSON whose objects seem to have any method, and what to give instead of them."""


class _NoJson(TypeError):
    """A value has no JSON.

    Args:
        value: it.
    """

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def said(self, whole: Any) -> str:
        """The message of the error, with the path of the value.

        Args:
            whole: the value that it stands in, whose JSON was wanted.
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
        # NB: a handle's stream has an `__await__`, too, which says that it cannot be awaited.
        if isinstance(value, AsyncIterable):
            return f"{wanted} a {kind}, whose pieces come one by one: read them into a list first"
        if isinstance(value, Awaitable):
            return f"{wanted} a {kind} that was not awaited: await it first"
        if isinstance(value, Iterable) and not isinstance(value, type):
            return f"{wanted} a {kind}: make a list, or a dict, of it"
        return f"a value of type {kind} has no JSON{at}"


def path_of(whole: Any, wanted: Any) -> str:
    """The JSON path of a value within another one; empty if it is the whole value, or is not found."""
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
"""What is raised where a value has no JSON."""


def encode(value: Any) -> bytes:
    """The JSON of a value; NaN and the infinities, which JSON does not have, become null.

    Args:
        value: JSON's own kinds, dataclasses, dates, arrays and tensors (by their `tolist`), pydantic models.

    Raises:
        AnswerError: the value has no JSON.
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
    """The JSON of a value that holds a lone surrogate, which has an escape in JSON and no UTF-8."""
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
    """The values of raw JSON slices; `NaN` and `Infinity` are taken as Python's `json` takes them.

    Args:
        raw: JSON texts that are known to be JSON.

    Returns:
        A value for each; in place of one that Python cannot hold, the ArgumentsError that says why.
    """
    try:
        values: list[Any] = msgspec.json.decode(b"[" + b",".join(raw) + b"]")
    except (msgspec.DecodeError, RecursionError):
        values = [_value(each) for each in raw]
    return values


def _value(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:  # of JSON, an integer alone can raise it: `int` limits the digits that it takes
        limit = sys.get_int_max_str_digits()
        return ArgumentsError(f"expected integers of at most {limit} digits, found more")
