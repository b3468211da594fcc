"""Decodes items and encodes answers; arrays and scalars of numpy and similar libraries without an import."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import ipaddress
import itertools
import json
import math
import pathlib
import re
import sys
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence, ValuesView
from collections.abc import Set as AbstractSet
from typing import Any

import msgspec

from penstock.end import END
from penstock.errors import AnswerError, ArgumentsError
from penstock.user_code import USER_CODE, described, text_of

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

    def message(self, whole: Any) -> str:
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
        if kind.endswith("Response"):  # another framework's
            return f"expected a penstock.Response(status, body=…){at}, found a {kind}"
        # NB: check this first: a handle's stream has an `__await__`, too, which only raises.
        if isinstance(value, AsyncIterable):
            return f"{wanted} a {kind}, whose pieces come one by one: read them into a list first"
        if isinstance(value, Awaitable):
            return f"{wanted} a {kind} that was not awaited: await it first"
        if type(value) in (tuple, frozenset):  # as values they have a JSON form
            return f"expected keys that have a JSON form, found a {kind}: make a text of it"
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


def _datetime(value: datetime.datetime) -> datetime.datetime:
    at = (value.hour, value.minute, value.second, value.microsecond, value.tzinfo)
    return datetime.datetime(value.year, value.month, value.day, *at)  # noqa: DTZ001 - may have none


_FORMS: tuple[tuple[type | tuple[type, ...], Callable[[Any], Any]], ...] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
    (datetime.datetime, _datetime),
    (datetime.date, lambda value: datetime.date(value.year, value.month, value.day)),
    (datetime.time, datetime.time.isoformat),
    (
        datetime.timedelta,
        lambda value: datetime.timedelta(value.days, value.seconds, value.microseconds),
    ),
    (decimal.Decimal, decimal.Decimal),
    ((bytes, bytearray), bytes),
    (Mapping, dict),
    ((Sequence, AbstractSet, deque, ValuesView), list),
    (pathlib.PurePath, str),
    ((ipaddress.IPv4Address, ipaddress.IPv6Address, ipaddress.IPv4Network, ipaddress.IPv6Network), str),
    (re.Pattern, lambda value: value.pattern),
)
"""Types that msgspec does not know, most of them subclasses of types that it knows, with what they become."""


def _hook(value: Any) -> Any:
    """The JSON form of a value that msgspec does not know, or of a key, in types that it knows."""
    if value is None or isinstance(value, bool):  # a key: msgspec knows them as values
        return "null" if value is None else str(value).lower()
    kind = type(value)
    if kind in NO_JSON or kind in (tuple, frozenset):
        raise _NoJson(value)
    dtype = getattr(value, "dtype", None)
    if kind.__module__ == "numpy" and getattr(dtype, "kind", "") in ("m", "M"):
        value = value.astype(f"{value.dtype.kind}8[us]")  # of nanoseconds its `tolist` makes integers
    if callable(tolist := getattr(value, "tolist", None)):  # arrays, tensors and their scalars
        return tolist()
    if callable(dump := getattr(value, "model_dump", None)):
        return _dumped(dump)
    if kind.__name__ in ("NaTType", "NAType") and kind.__module__.startswith("pandas."):
        return None
    for kinds, form in _FORMS:
        if isinstance(value, kinds):
            return form(value)
    if kind.__module__.partition(".")[0] in ("pydantic", "pydantic_core"):  # URLs, secrets
        return str(value)
    raise _NoJson(value)


def _dumped(dump: Callable[..., Any]) -> Any:
    """A pydantic model in its own JSON form; what has none in pydantic (an array, say) in that of `_hook`."""
    try:
        return dump(mode="json", fallback=_hook)
    except (TypeError, ValueError):
        return dump()


_ENCODER = msgspec.json.Encoder(enc_hook=_hook)


def encode(value: Any) -> bytes:
    """Encode a value as JSON; NaN and the infinities, which JSON does not have, become null.

    Args:
        value: JSON's own types, dataclasses, dates, arrays and tensors (by their `tolist`), pydantic models,
            and what else `_FORMS` has.

    Raises:
        AnswerError: the value has no JSON form.
    """
    try:
        with USER_CODE:
            try:
                return _ENCODER.encode(value)
            except UnicodeEncodeError:
                return _escaped(value)
    except Exception as error:  # a value's own methods run here
        raise AnswerError(_message(error, value)) from error


def _message(error: Exception, whole: Any) -> str:
    if isinstance(error, RecursionError):
        return "expected a value that has a JSON form, found one that holds itself, or is nested too deep"
    if isinstance(error, _NoJson):
        return error.message(whole)
    if isinstance(error, TypeError | ValueError | OverflowError | msgspec.MsgspecError):
        return text_of(error)
    return f"expected a value that has a JSON form, found one that raised {described(error)}"


def _escaped(value: Any) -> bytes:
    """Encode a value that holds a lone surrogate, which has an escape in JSON, but no UTF-8 form.

    Other entries of a list, such as the answers to other items, are encoded as without it.
    """
    if type(value) is not list:
        return _by_python(value)
    texts = []
    for each in value:
        try:
            texts.append(_ENCODER.encode(each))
        except UnicodeEncodeError:
            texts.append(_by_python(each))
    return b"[" + b",".join(texts) + b"]"


def _by_python(value: Any) -> bytes:
    plain = _finite(msgspec.to_builtins(value, enc_hook=_hook))
    return json.dumps(plain, separators=(",", ":")).encode()


def _finite(value: Any) -> Any:
    """A value of JSON's types with null for NaN and the infinities."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
