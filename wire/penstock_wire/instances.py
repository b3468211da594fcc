"""The `instances` protocol, TensorFlow Serving's REST form: `{"instances": […]}` → `{"predictions": […]}`.

An item is one element of `instances`. All other top-level members of a request are parameters: part of the
key, since a batch has one set of them. All other members of an answer come back to each request of the batch.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Sequence
from itertools import chain
from typing import cast

import msgspec

from penstock_wire.batch_protocol import Message, Parsed
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.http import Request, Response
from penstock_wire.json_slices import NotJSON, Sole, elements, members
from penstock_wire.media_types import check_json

INSTANCES = "instances"
PREDICTIONS = "predictions"
MAX_ITEMS = 100_000
"""Items that one request may have."""
Parameters = tuple[tuple[str, bytes], ...]

_REQUEST = Sole(INSTANCES)
_ANSWER = Sole(PREDICTIONS)
_NO_MORE = b"]}"


def parse(body: bytes) -> Parsed:
    """Read a request's body.

    Raises:
        PenstockError: `bad_json` (400), or `bad_shape` (422) where `instances` is missing or no array.
    """
    sole = _REQUEST.elements(body)
    if sole is not None:
        return Parsed(items=sole, parameters=())
    try:
        found = members(body)
    except NotJSON as error:
        raise PenstockError(Reason.BAD_JSON, str(error)) from error
    raw = found.pop(INSTANCES, None)
    if raw is None:
        names = ", ".join(sorted(found)[:10]) or "no members"
        raise shape_error("$", 'an object with a member "instances"', names)
    try:
        items = elements(raw, MAX_ITEMS)
    except NotJSON as error:
        raise _not_an_array(error) from error
    if len(items) > MAX_ITEMS:
        raise shape_error("$.instances", f"at most {MAX_ITEMS} items", str(len(items)))
    return Parsed(items=items, parameters=tuple(sorted(found.items())) if found else ())


def join(items: Iterable[bytes], parameters: Parameters) -> bytes:
    """The body of a batch: the items in order, the parameters behind them."""
    return b'{"instances":[' + b",".join(items) + _tail(parameters)


def split(body: bytes, counts: Sequence[int]) -> list[bytes]:
    """Cut a batch's answer into one body for each request.

    Args:
        body: the model's answer.
        counts: items of each request, in the order joined.

    Raises:
        PenstockError: `bad_answer` (502): not JSON, no `predictions`, or not as many as there were items.
    """
    tail = _NO_MORE
    predictions = _ANSWER.elements(body)
    if predictions is None:
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
        tail = _tail(found.items())
    if len(predictions) != sum(counts):
        raise PenstockError(
            Reason.BAD_ANSWER,
            f"the model's answer: expected {sum(counts)} predictions, found {len(predictions)}",
        )
    bodies, start = [], 0
    for count in counts:
        some = predictions[start] if count == 1 else b",".join(predictions[start : start + count])
        bodies.append(b'{"predictions":[' + some + tail)
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
    return b'{"predictions":[' + b",".join(predictions) + _tail(rest.items())


class _Instances:
    """The protocol on the functions above."""

    name = "instances"
    isolates = True
    key_fields = True

    def passes(self, request: Request) -> bool:
        return request.method != "POST"

    def parse(self, request: Request) -> Parsed:
        check_json(request.headers)
        return parse(request.body)

    def join(self, parts: Sequence[Sequence[bytes]], parameters: Hashable) -> Message:
        return Message(headers=(), body=join(chain.from_iterable(parts), cast("Parameters", parameters)))

    def split(
        self, answer: Response, parts: Sequence[Sequence[bytes]], parameters: Hashable
    ) -> list[Response]:
        status, headers = answer.status, answer.headers
        return [Response(status, headers, body) for body in split(answer.body, list(map(len, parts)))]

    def merge(self, answers: Sequence[Response]) -> Response:
        first = answers[0]
        return Response(first.status, first.headers, merge([answer.body for answer in answers]))


INSTANCES_PROTOCOL = _Instances()


def _tail(more: Iterable[tuple[str, bytes]]) -> bytes:
    """The end of a body: of its array, then its other members."""
    return b"".join([b"]", *(b"," + member_name(name) + b":" + raw for name, raw in more), b"}"])


def member_name(name: str) -> bytes:
    """A member's name as JSON."""
    try:
        return msgspec.json.encode(name)
    except UnicodeEncodeError:  # a lone surrogate, which json.loads takes and msgspec does not write
        return json.dumps(name).encode()


def shape_error(path: str, expected: str, found: str) -> PenstockError:
    """A `bad_shape` that says where."""
    return PenstockError(
        Reason.BAD_SHAPE,
        f"{path}: expected {expected}, found {found}",
        extra={"path": path, "expected": expected, "found": found},
    )


def _not_an_array(error: NotJSON) -> PenstockError:
    message = str(error)
    if message.startswith("expected at most"):
        return shape_error("$.instances", f"at most {MAX_ITEMS} items", "more")
    return shape_error("$.instances", "an array", message.rpartition("found ")[2])
