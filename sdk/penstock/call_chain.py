"""How far calls of handles may go round in a circle, and what is said of those that go further.

Each call has the chain of calls that it is made within, inherited as the deadline is. A chain may come back
to endpoints that are in it `MAX_REPEATS` times: that ends each circle before it has become a load, whatever
its length, and leaves room for recursion that is meant. A class that halves its item and calls itself for
both parts has 256 parts then, in 511 calls; one that went two levels further would make four times as many
calls of each request, and no model's load grows so by intention. Recursion that goes deeper than that stays
within a process, or within one method's loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar

from penstock import call_context
from penstock.errors import CallCycle
from penstock_wire.call_chain import chain_field, deepest, read_chain
from penstock_wire.headers import CALL_CHAIN, get

MAX_REPEATS = 8
"""How often a chain may come back to an endpoint that is in it already."""
MAX_CALLS = 32
"""Calls of a chain at most, of whichever endpoints: more than any row of models that anybody has."""

_of_batch: ContextVar[bytes] = ContextVar("chain_of_batch", default=b"")


def inherited() -> bytes:
    """The chain that this code runs in; empty for none."""
    context = call_context.current()
    return _of_batch.get() if context is None else get(context.fields, CALL_CHAIN) or b""


def begin_batch(chains: Iterable[bytes]) -> None:
    """Note that code runs from here on for calls of `@penstock.batch` that were made in these chains."""
    _of_batch.set(deepest(chains))


def longer(chain: bytes, endpoint: str, namespace: str) -> bytes:
    """The chain of a call.

    Args:
        chain: that it is made in.
        endpoint: that is called.
        namespace: the endpoint's; empty where nobody knows.

    Raises:
        CallCycle: it would go round once too often.
    """
    name = f"{endpoint}.{namespace}" if namespace else endpoint
    names = (*read_chain(chain), name)
    repeats = len(names) - len(set(names))
    if repeats <= MAX_REPEATS and len(names) <= MAX_CALLS:
        return chain_field(names)
    found = (
        f"one that comes back for the {repeats}th time to what it has called"
        if repeats > MAX_REPEATS
        else f"one of {len(names)}"
    )
    raise CallCycle(
        f"expected a chain of calls that ends, found {found}: {' → '.join(names)}. Let one of these answer "
        "without a call, or take the handle that closes the circle out of its arguments",
        status=508,
        reason="call_cycle",
        endpoint=endpoint,
    )
