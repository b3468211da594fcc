"""A kept mutant, and the promises that mutants break."""

from __future__ import annotations

import dataclasses

SIDECAR, WIRE, ROUTER = "penstock_sidecar", "penstock_wire", "penstock_router"

OWN_ANSWER = "each request gets its own answer"
SIZE = "no batch is over size"
ALIKE = "unlike requests never share a batch"
CANCEL = "who leaves is sent no more, and takes nobody along"
EXPIRED = "what has expired is never sent"
BROKEN = "a broken connection is never used again"
GUARDS = "one slow start locks no healthy model out"
ONCE = "each request is answered exactly once"
HONEST = "what is said of a request is true"
PREPARED = "nothing is sent to a model that was not prepared"
ROOM = "what a pod has room for is given away once"
OVERLOAD = "refusing the many keeps nobody from being served"

CORE = (OWN_ANSWER, SIZE, ALIKE, CANCEL, EXPIRED, BROKEN, GUARDS)
"""The promises of which two mutants at least are kept."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One edit.

    Args:
        name: what it does.
        breaks: the promise.
        package: where `old` is, exactly once.
        old: the text.
        new: what it becomes.
        tests: pytest's node ids; each of them must fail.
    """

    name: str
    breaks: str
    package: str
    old: str
    new: str
    tests: tuple[str, ...]
