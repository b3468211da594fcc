"""The chain of calls that a request belongs to: the endpoints that handles have called, one within the other.

It goes from each call to those that are made for it, in `x-penstock-call-chain`, so that calls that go round
in a circle are found where nobody sees the whole circle.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

MAX_BYTES: Final = 16 * 1024
"""A longer field is no chain of ours."""

MAX_SHARED: Final = 8
"""Calls of a chain at most that the requests of one batch may go on with for each other."""

_NAMES = re.compile(r"[a-z0-9.-]{1,130}(?:, ?[a-z0-9.-]{1,130})*")


def read_chain(field: bytes | None) -> tuple[str, ...]:
    """The endpoints of a chain, the first that was called before the others; none where it cannot be read.

    Args:
        field: as it came; None where it did not.
    """
    if field is None or len(field) > MAX_BYTES:
        return ()
    text = field.decode("latin-1")
    return tuple(name.strip() for name in text.split(",")) if _NAMES.fullmatch(text) else ()


def chain_field(chain: Sequence[str]) -> bytes:
    """What `read_chain` reads."""
    return ", ".join(chain).encode()


def deepest(fields: Iterable[bytes]) -> bytes:
    """Of the chains of several requests the one with the most calls: what is true of a batch of them.

    One that cannot be read has none: it takes the place of no other request's.

    Args:
        fields: as they came; at least one.
    """
    return max(fields, key=_calls)


def _calls(field: bytes) -> tuple[int, bytes]:
    return len(read_chain(field)), field


def stands_alone(field: bytes) -> bool:
    """Whether a chain is only for requests that have the very same: it is long, goes round, or is none.

    Any client may send one that is nearly at its end. In a batch it would be that of all, and end the calls
    that the model makes for the others.

    Args:
        field: as it came.
    """
    names = read_chain(field)
    return not names or len(names) > MAX_SHARED or len(set(names)) < len(names)
