"""The chain of calls that a request belongs to: the endpoints that handles have called, nested calls last.

It is passed in `x-penstock-call-chain` from each call to the calls made for it, so that a cycle of calls is
found although no single process sees all of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

MAX_BYTES: Final = 16 * 1024
"""A longer field is not a chain of Penstock's."""

MAX_SHARED: Final = 8
"""Most calls of a chain that a batch can take from one of its requests for the others."""

_NAMES = re.compile(r"[a-z0-9.-]{1,130}(?:, ?[a-z0-9.-]{1,130})*")


def read_chain(field: bytes | None) -> tuple[str, ...]:
    """Return the endpoints of a chain, the outermost call first; empty if it is unreadable.

    Args:
        field: its value; None if it is missing.
    """
    if field is None or len(field) > MAX_BYTES:
        return ()
    text = field.decode("latin-1")
    return tuple(name.strip() for name in text.split(",")) if _NAMES.fullmatch(text) else ()


def chain_field(chain: Sequence[str]) -> bytes:
    """Render a chain for `read_chain`."""
    return ", ".join(chain).encode()


def deepest(fields: Iterable[bytes]) -> bytes:
    """Return the chain with the most calls among those of several requests: it stands for their batch.

    An unreadable chain counts as empty: it never replaces another request's.

    Args:
        fields: their values; at least one.
    """
    return max(fields, key=_calls)


def _calls(field: bytes) -> tuple[int, bytes]:
    return len(read_chain(field)), field


def stands_alone(field: bytes) -> bool:
    """Whether a chain is only for requests with an equal one: it is long, has a cycle, or is unreadable.

    Any client can send a chain that is nearly at its limit. In a batch it would apply to all requests, and
    end the calls that the model makes for the others.

    Args:
        field: its value.
    """
    names = read_chain(field)
    return not names or len(names) > MAX_SHARED or len(set(names)) < len(names)
