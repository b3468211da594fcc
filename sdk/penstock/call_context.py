"""The context of a call: the pod, and the request or batch that the method answers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar

from penstock import request_ids
from penstock_wire.call_chain import deepest
from penstock_wire.contract import BACKEND_ENV, NAMESPACE_ENV, POD_ENV
from penstock_wire.headers import CALL_CHAIN, MODEL_ID, REQUEST_ID, TIMEOUT_MS, Headers, get, timeout_ms


class Context:
    """The pod in which the code runs, and the request or batch that it answers.

    Args:
        fields: the header fields of the request; of a batch those that all its requests share.
        batch_limit: items that a batch holds at most now; None where nobody said.

    Attributes:
        fields: as given, in the order received.
        batch_limit: as given.
        namespace: the pod's namespace; empty outside of a cluster, as the next two.
        backend: the ModelBackend.
        pod: the pod.
        deadline: until when an answer is of use (of a batch: to the last of its requests), by
            `time.monotonic`; None where nobody said.
        calls: each gives up a call that was made from here by a handle and is under way.
        ends: each is called when the answer is complete.
    """

    __slots__ = ("backend", "batch_limit", "calls", "deadline", "ends", "fields", "namespace", "pod")

    def __init__(self, fields: Headers = (), batch_limit: int | None = None) -> None:
        self.fields = fields
        self.batch_limit = batch_limit
        self.calls: set[Callable[[], object]] = set()
        self.ends: list[Callable[[], object]] = []
        self.namespace, self.backend, self.pod = _PLACE
        left = timeout_ms(fields)
        self.deadline = None if left is None or left < 0 else time.monotonic() + left / 1000

    @property
    def request_ids(self) -> tuple[str, ...]:
        """The ids of the requests, in the order of their items (of a large batch, of the first 4 KiB)."""
        field = get(self.fields, REQUEST_ID)
        return tuple(field.decode("latin-1").split(",")) if field else ()

    @property
    def model_id(self) -> str:
        """Which model the requests are for (`x-penstock-model-id`); empty where they do not say."""
        return (get(self.fields, MODEL_ID) or b"").decode("latin-1")

    @property
    def headers(self) -> dict[str, str]:
        """The header fields by name in lower case; values of one name are joined by commas."""
        texts: dict[str, str] = {}
        for name, value in self.fields:
            key, text = name.decode("latin-1"), value.decode("latin-1")
            texts[key] = f"{texts[key]}, {text}" if key in texts else text
        return texts

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the deadline, 0 where it has passed; None where there is none."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def cancel_calls(self) -> None:
        """Nobody waits for the answer any more: give up the calls that were made for it."""
        for cancel in list(self.calls):
            cancel()

    def end(self) -> None:
        """The answer is complete, or nobody waits for it: let go what it used."""
        ends, self.ends = self.ends, []
        for each in ends:
            each()


_PLACE = tuple(os.environ.get(name, "") for name in (NAMESPACE_ENV, BACKEND_ENV, POD_ENV))
_current: ContextVar[Context] = ContextVar("context")


def context() -> Context:
    """The context of the call that this code is in; without a request where it is in none."""
    context = _current.get(None)
    return Context() if context is None else context


def begin(fields: Headers, batch_limit: int | None = None) -> Context:
    """Note the request that is answered from here on; the arguments as of `Context`."""
    begun = Context(fields, batch_limit)
    _current.set(begun)
    return begun


def of_batch(contexts: Sequence[Context], batch_limit: int) -> Context:
    """The context of a batch: what all its requests share, their ids, and the latest of their deadlines.

    Args:
        contexts: of the requests, at least one.
        batch_limit: items that it could hold.
    """
    shared = [field for field in contexts[0].fields if all(field in each.fields for each in contexts)]
    fields = [field for field in shared if field[0] not in (REQUEST_ID, TIMEOUT_MS)]
    chains = [chain for each in contexts if (chain := get(each.fields, CALL_CHAIN)) is not None]
    if chains:
        fields = [*[field for field in fields if field[0] != CALL_CHAIN], (CALL_CHAIN, deepest(chains))]
    ids = b",".join([get(each.fields, REQUEST_ID) or b"" for each in contexts])
    # NB: an object of its own also for one request: what is called for it here ends with it, not with who
    # waits for it.
    of_all = Context((*fields, (REQUEST_ID, ids)) if ids.strip(b",") else tuple(fields), batch_limit)
    deadlines = [each.deadline for each in contexts if each.deadline is not None]
    of_all.deadline = max(deadlines) if len(deadlines) == len(contexts) else None
    return of_all


def current() -> Context | None:
    """The context to give to `resume`, for code that continues in another task or thread."""
    return _current.get(None)


def resume(context: Context | None) -> None:
    """Go on with what a call began: the steps of a stream, which another task may ask for."""
    if context is not None:
        _current.set(context)
        request_ids.begin(get(context.fields, REQUEST_ID))


def deadline() -> float | None:
    """The deadline of the call that this code is in; None where it has none, or is in none."""
    context = _current.get(None)
    return None if context is None else context.deadline
