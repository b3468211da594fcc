"""The `instances` protocol, TensorFlow Serving's REST form: `{"instances": […]}` → `{"predictions": […]}`.

An item is one element of `instances`. All other top-level members of a request are parameters: part of the
key, since a batch has one set of them. All other members of an answer come back to each request of the batch.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import msgspec

from penstock_wire.errors import PenstockError, Reason
from penstock_wire.json_slices import NotJSON, elements, members

INSTANCES = "instances"
PREDICTIONS = "predictions"
Parameters = tuple[tuple[str, bytes], ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A request that was read.

    Args:
        items: the raw elements of `instances`.
        parameters: the other members, name and raw value, sorted by name.
    """

    items: list[bytes]
    parameters: Parameters


def parse(body: bytes) -> Parsed:
    """Read a request's body.

    Raises:
        PenstockError: `bad_json` (400), or `bad_shape` (422) where `instances` is missing or no array.
    """
    try:
        found = members(body)
    except NotJSON as error:
        raise PenstockError(Reason.BAD_JSON, str(error)) from error
    raw = found.pop(INSTANCES, None)
    if raw is None:
        names = ", ".join(sorted(found)[:10]) or "no members"
        raise _shape("$", 'an object with a member "instances"', names)
    try:
        items = elements(raw)
    except NotJSON as error:
        message = str(error)
        raise _shape("$.instances", "an array", message.rpartition("found ")[2]) from error
    return Parsed(items=items, parameters=tuple(sorted(found.items())))


def join(items: Sequence[bytes], parameters: Parameters) -> bytes:
    """The body of a batch: the items in order, the parameters behind them."""
    parts = [b'{"instances":[', b",".join(items), b"]"]
    for name, raw in parameters:
        parts += (b",", _name(name), b":", raw)
    parts.append(b"}")
    return b"".join(parts)


def split(body: bytes, counts: Sequence[int]) -> list[bytes]:
    """Cut a batch's answer into one body for each request.

    Args:
        body: the model's answer.
        counts: items of each request, in the order joined.

    Raises:
        PenstockError: `bad_answer` (502): not JSON, no `predictions`, or not as many as there were items.
    """
    try:
        found = members(body)
        raw = found.pop(PREDICTIONS, None)
        if raw is None:
            raise NotJSON(
                'expected a member "predictions", found ' + (", ".join(sorted(found)[:10]) or "none")
            )
        predictions = elements(raw)
    except NotJSON as error:
        raise PenstockError(Reason.BAD_ANSWER, f"the model's answer: {error}") from error
    if len(predictions) != sum(counts):
        raise PenstockError(
            Reason.BAD_ANSWER,
            f"the model's answer: expected {sum(counts)} predictions, found {len(predictions)}",
        )
    rest = b"".join(b"," + _name(name) + b":" + raw for name, raw in found.items()) + b"}"
    bodies, start = [], 0
    for count in counts:
        bodies.append(b'{"predictions":[' + b",".join(predictions[start : start + count]) + b"]" + rest)
        start += count
    return bodies


def merge(bodies: Sequence[bytes]) -> bytes:
    """One answer from the answers to the parts of one request, in order; other members come from the first.

    Args:
        bodies: what `split` returned for each part; at least one.
    """
    predictions: list[bytes] = []
    rest: dict[str, bytes] = {}
    for index, body in enumerate(bodies):
        found = members(body)
        predictions += elements(found.pop(PREDICTIONS))
        if index == 0:
            rest = found
    return _answer(predictions, rest)


def _answer(predictions: Sequence[bytes], rest: dict[str, bytes]) -> bytes:
    tail = b"".join(b"," + _name(name) + b":" + raw for name, raw in rest.items())
    return b'{"predictions":[' + b",".join(predictions) + b"]" + tail + b"}"


def _name(name: str) -> bytes:
    try:
        return msgspec.json.encode(name)
    except UnicodeEncodeError:  # a lone surrogate, which json.loads takes and msgspec does not write
        return json.dumps(name).encode()


def _shape(path: str, expected: str, found: str) -> PenstockError:
    return PenstockError(
        Reason.BAD_SHAPE,
        f"{path}: expected {expected}, found {found}",
        extra={"path": path, "expected": expected, "found": found},
    )
