"""Items out of JSON, answers into JSON; arrays and scalars of numpy and its kin without importing them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.errors import AnswerError


def _hook(value: Any) -> Any:
    for name in ("tolist", "model_dump"):  # arrays, tensors and their scalars; pydantic models
        convert = getattr(value, name, None)
        if callable(convert):
            return convert()
    raise TypeError(f"a value of type {type(value).__name__} has no JSON")


_ENCODER = msgspec.json.Encoder(enc_hook=_hook)


def encode(value: Any) -> bytes:
    """The JSON of a value; NaN and the infinities, which JSON does not have, become null.

    Args:
        value: JSON's own kinds, dataclasses, dates, arrays and tensors (by their `tolist`), pydantic models.

    Raises:
        AnswerError: the value has no JSON.
    """
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise AnswerError(str(error)) from error


def decode(raw: Sequence[bytes]) -> list[Any]:
    """The values of raw JSON slices; `NaN` and `Infinity` are taken as Python's `json` takes them.

    Args:
        raw: JSON texts that are known to be JSON.
    """
    text = b"[" + b",".join(raw) + b"]"
    try:
        values: list[Any] = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        values = json.loads(text)
    return values
