"""The forms of a request with one item, and whether an answer holds that item."""

from __future__ import annotations

import re
from typing import Protocol


class Form(Protocol):
    """One protocol's JSON."""

    def body(self, number: int) -> bytes:
        """A request with this item."""

    def holds(self, body: bytes, number: int) -> bool:
        """Whether an answer is this item's."""


class Instances:
    """`{"instances": [7]}` → anything with the one-item list `[7]`."""

    _LIST = re.compile(rb"\[ ?(\d+) ?\]")

    def body(self, number: int) -> bytes:
        """A request with this item."""
        return b'{"instances":[%d]}' % number

    def holds(self, body: bytes, number: int) -> bool:
        """Whether an answer is this item's."""
        match = self._LIST.search(body)
        return bool(match and int(match[1]) == number)


class V2:
    """An Open Inference request with one INT64 tensor of one row."""

    _DATA = re.compile(rb'"data": ?\[ ?(\d+) ?\]')

    def body(self, number: int) -> bytes:
        """A request with this item."""
        return b'{"inputs":[{"name":"x","shape":[1],"datatype":"INT64","data":[%d]}]}' % number

    def holds(self, body: bytes, number: int) -> bool:
        """Whether an answer is this item's."""
        match = self._DATA.search(body)
        return bool(match and int(match[1]) == number)


FORMS: dict[str, Form] = {"instances": Instances(), "v2": V2()}
