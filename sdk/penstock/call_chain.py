"""Limits circular calls of handles, and raises the error for longer chains.

Each call carries the chain of the calls that led to it, inherited like the deadline. A chain can return
`MAX_REPEATS` times to endpoints that it holds already: this ends each circle, of any length, before it
becomes a load, and leaves room for intended recursion. A class that halves its item and calls itself for both
parts can make 256 parts, in 511 calls; two levels more would be four times as many calls for each request,
and no model's load grows so by intention. Deeper recursion belongs within a process, or within one method's
loop.
"""

from __future__ import annotations

from penstock import call_context
from penstock.errors import CallCycle
from penstock_wire.call_chain import chain_field, read_chain
from penstock_wire.headers import CALL_CHAIN, get

MAX_REPEATS = 8
"""How often a chain can return to endpoints that it holds already."""
MAX_CALLS = 32
"""The most calls of a chain, of any endpoints: longer than any known pipeline of models."""


def inherited() -> bytes:
    """The chain of calls that this code runs in; empty for none."""
    context = call_context.current()
    return b"" if context is None else get(context.fields, CALL_CHAIN) or b""


def longer(chain: bytes, endpoint: str, namespace: str) -> bytes:
    """Append a call to a chain.

    Args:
        chain: the chain that the call is made in.
        endpoint: the endpoint that is called.
        namespace: the endpoint's namespace; empty if unknown.

    Raises:
        CallCycle: the chain would exceed `MAX_REPEATS` or `MAX_CALLS`.
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
