"""Items out of JSON, answers into JSON; arrays and scalars of numpy and its kin without importing them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.errors import AnswerError, ArgumentsError


def _hook(value: Any) -> Any:
    for name in ("tolist", "model_dump"):  # arrays, tensors and their scalars; pydantic models
        convert = getattr(value, name, None)
        if callable(convert):
            return convert()
    raise TypeError(f"a value of type {type(value).__name__} has no JSON")


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
        raise AnswerError(str(error)) from error


def _escaped(value: Any) -> bytes:
    """The JSON of a value that holds a lone surrogate, which has an escape in JSON and no UTF-8."""
    if isinstance(value, str):
        return json.dumps(value).encode()
    if isinstance(value, list | tuple):
        return b"[" + b",".join([encode(each) for each in value]) + b"]"
    try:
        plain = msgspec.to_builtins(value, enc_hook=_hook, str_keys=True)
    except _NO_JSON as error:
        raise AnswerError(str(error)) from error
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
