"""The JSON form of a request of the `instances` protocol, which the sidecar batches and the SDK serves."""

from __future__ import annotations

import json

import msgspec

from penstock_wire.errors import PenstockError, Reason
from penstock_wire.json_slices import NotJSON, Sole, elements, members

INSTANCES = "instances"
EXAMPLE = '{"instances": [1, 2]}'
"""A request as errors show it."""
MAX_ITEMS = 100_000
"""Items that one request may have."""
ITEM_ANSWERS_TYPE = b"application/vnd.penstock.items+json"
"""The media type of an answer in which single items have answers of their own: docs/protocols.md."""
ANSWERS = "answers"
"""Its member that holds them."""
Parameters = tuple[tuple[str, bytes], ...]

_REQUEST = Sole(INSTANCES)


def read_request(body: bytes) -> tuple[list[bytes], Parameters]:
    """Read a request's body: its items, and its other members sorted by name.

    Raises:
        PenstockError: `bad_json` (400), or `bad_shape` (422) where `instances` is missing or not an array.
    """
    sole = _REQUEST.elements(body)
    if sole is not None:
        return sole, ()
    try:
        document = members(body)
    except NotJSON as error:
        raise PenstockError(Reason.BAD_JSON, f"{error}; a request looks like {EXAMPLE}") from error
    if INSTANCES not in document:
        names = ", ".join(sorted(document)[:10])
        found = f"an object with {names}" if names else "an object without members"
        raise shape_error("$", f'an object with a member "instances", such as {EXAMPLE}', found)
    return take_items(document)


def take_items(document: dict[str, bytes]) -> tuple[list[bytes], Parameters]:
    """The items and the other members of an object.

    Args:
        document: the members of an object that has `instances`; that member is removed.

    Raises:
        PenstockError: `bad_shape` (422), where `instances` is not an array, or holds more than `MAX_ITEMS`.
    """
    try:
        items = elements(document.pop(INSTANCES), MAX_ITEMS)
    except NotJSON as error:
        raise _not_an_array(error) from error
    if len(items) > MAX_ITEMS:
        raise shape_error("$.instances", f"at most {MAX_ITEMS} items", str(len(items)))
    return items, tuple(sorted(document.items())) if document else ()


def member_name(name: str) -> bytes:
    """A member's name as JSON."""
    try:
        return msgspec.json.encode(name)
    except UnicodeEncodeError:  # a lone surrogate, which json.loads takes and msgspec does not write
        return json.dumps(name).encode()


def shape_error(path: str, expected: str, actual: str) -> PenstockError:
    """A `bad_shape` that says where."""
    return PenstockError(
        Reason.BAD_SHAPE,
        f"{path}: expected {expected}, found {actual}",
        extra={"path": path, "expected": expected, "found": actual},
    )


def _not_an_array(error: NotJSON) -> PenstockError:
    expected = f"at most {MAX_ITEMS} items" if error.actual == "more" else "an array of items, such as [1, 2]"
    return shape_error("$.instances", expected, error.actual)
