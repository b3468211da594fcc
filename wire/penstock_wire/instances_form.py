"""The JSON form of a request in the `instances` protocol, which the sidecar batches and the SDK serves."""

from __future__ import annotations

import json

import msgspec

from penstock_wire.errors import PenstockError, Reason
from penstock_wire.json_slices import NotJSON, Sole, elements, members

INSTANCES = "instances"
EXAMPLE = '{"instances": [1, 2]}'
"""An example of a request, for errors."""
MAX_ITEMS = 100_000
"""Most items of one request."""
ITEM_ANSWERS_TYPE = b"application/vnd.penstock.items+json"
"""The media type of an answer with separate answers for single items: docs/protocols.md."""
ANSWERS = "answers"
"""The member of such an answer that holds them."""
Parameters = tuple[tuple[str, bytes], ...]

_REQUEST = Sole(INSTANCES)


def read_request(body: bytes) -> tuple[list[bytes], Parameters]:
    """Read a request's body: its items, and its other members sorted by name.

    Raises:
        PenstockError: `bad_json` (400), or `bad_shape` (422) if `instances` is missing or not an array.
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
    """Return the items and the other members of an object.

    Args:
        document: the members of an object that has `instances`; that member is removed.

    Raises:
        PenstockError: `bad_shape` (422), if `instances` is not an array, or holds more than `MAX_ITEMS`.
    """
    try:
        items = elements(document.pop(INSTANCES), MAX_ITEMS)
    except NotJSON as error:
        raise _not_an_array(error) from error
    if len(items) > MAX_ITEMS:
        raise shape_error("$.instances", f"at most {MAX_ITEMS} items", str(len(items)))
    return items, tuple(sorted(document.items())) if document else ()


def member_name(name: str) -> bytes:
    """Encode a member's name as JSON."""
    try:
        return msgspec.json.encode(name)
    except UnicodeEncodeError:  # a lone surrogate, which json.loads accepts and msgspec does not write
        return json.dumps(name).encode()


def shape_error(path: str, expected: str, actual: str) -> PenstockError:
    """Make a `bad_shape` error that gives the place."""
    return PenstockError(
        Reason.BAD_SHAPE,
        f"{path}: expected {expected}, found {actual}",
        extra={"path": path, "expected": expected, "found": actual},
    )


def _not_an_array(error: NotJSON) -> PenstockError:
    expected = f"at most {MAX_ITEMS} items" if error.actual == "more" else "an array of items, such as [1, 2]"
    return shape_error("$.instances", expected, error.actual)
