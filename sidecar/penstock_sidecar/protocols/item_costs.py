"""Reads what an item costs from the item itself, by the path that `batching.cost` gives. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock_wire.instances_form import shape_error
from penstock_wire.json_slices import NotJSON, elements, members

MOST = 1e9
"""The largest cost of an item."""


class ItemCosts:
    """Reads costs: the characters of a text, the elements of an array, or a number.

    Args:
        path: where each item has it: `$`, or members as in `$.input.text`.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._names = path.split(".")[1:]
        kind: Any = msgspec.Raw
        for depth, name in enumerate(reversed(self._names)):
            absent = msgspec.Raw(b"") if not depth else None
            kind = msgspec.defstruct(
                "Item",
                [("value", kind if not depth else kind | None, msgspec.field(name=name, default=absent))],
            )
        self._decoder = msgspec.json.Decoder(kind)

    def of(self, items: Sequence[Any]) -> list[int] | None:
        """Return the cost of each item; None if they are not JSON: the tensors of `v2` cost their bytes.

        Raises:
            PenstockError: `bad_shape` (422): an item has nothing there, or what is there is not a cost.
        """
        if not isinstance(items[0], bytes):
            return None
        costs: list[int] = []
        for index, item in enumerate(items):
            raw = self._value(item)
            cost = _cost(raw)
            if cost is None:
                found = raw[:40].decode("utf-8", "replace") or "nothing"
                expected = f"a text, an array, or a number from 0 to {MOST:.0f}, by which batches are cut"
                raise shape_error(f"{self._path} of item {index}", expected, found)
            costs.append(cost)
        return costs

    def _value(self, item: bytes) -> bytes:
        """What an item has at the path; empty for nothing."""
        try:
            value = self._decoder.decode(item)
            for _ in self._names:
                if value is None:
                    return b""
                value = value.value
            return bytes(value)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            pass  # NaN and the like, or not an object
        try:
            for name in self._names:
                item = members(item).get(name, b"")
        except NotJSON:
            return b""
        return item


def _cost(raw: bytes) -> int | None:
    """The cost that a value stands for; None if it is not one."""
    first = raw[:1]
    try:
        if first == b'"':
            return len(msgspec.json.decode(raw, type=str))
        if first == b"[":
            if b'"' in raw or raw.count(b"[") > 1:
                return len(elements(raw))
            return raw.count(b",") + 1 if raw[1:-1].strip() else 0
        value = float(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return len(raw) - 2  # half a character, which only some readers take
    except (NotJSON, ValueError):
        return None
    return math.ceil(value) if 0.0 <= value <= MOST else None
