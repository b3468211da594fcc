"""The context of a call: the pod, and the request or batch that the method answers."""

from __future__ import annotations

import os
import threading
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
        batch_limit: the most items that a batch can hold now; None if unknown.

    Attributes:
        fields: as given, in the order received.
        batch_limit: as given.
        namespace: the pod's namespace; empty outside of a cluster, like the next two.
        backend: the ModelBackend's name.
        pod: the pod's name.
        deadline: the time by `time.monotonic` after which the answer is useless (of a batch, the latest of
            its requests' deadlines); None if there is none.
        calls: functions that cancel the handles' calls that were made from here and are under way.
    """

    __slots__ = (
        *("_ended", "_ends", "backend", "batch_limit", "calls", "deadline", "fields", "namespace", "pod"),
    )

    def __init__(self, fields: Headers = (), batch_limit: int | None = None) -> None:
        self.fields = fields
        self.batch_limit = batch_limit
        self.calls: set[Callable[[], object]] = set()
        self._ends: list[Callable[[], object]] = []
        self._ended = False
        self.namespace, self.backend, self.pod = _PLACE
        left = timeout_ms(fields)
        self.deadline = None if left is None or left < 0 else time.monotonic() + left / 1000

    @property
    def request_ids(self) -> tuple[str, ...]:
        """The ids of the requests, in the order of their items (of a large batch, the first 4 KiB of ids)."""
        field = get(self.fields, REQUEST_ID)
        return tuple(field.decode("latin-1").split(",")) if field else ()

    @property
    def model_id(self) -> str:
        """The model that the requests are for (`x-penstock-model-id`); empty if they do not name it."""
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
        """Seconds until the deadline, 0 if it has passed; None if there is none."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def cancel_calls(self) -> None:
        """Cancel the calls that were made for the answer: no client waits for it any more."""
        for cancel in list(self.calls):
            cancel()

    def end(self) -> None:
        """Release what the answer used: it is complete, or no client waits for it any more."""
        with _lock:
            self._ended = True
            _open.discard(self)
        for each in self._ends:
            each()
        self._ends.clear()

    def at_end(self, call: Callable[[], object]) -> bool:
        """Have a function called when the answer is complete; False if it is. Can be called in any thread."""
        with _lock:
            if not self._ended:
                self._ends.append(call)
            return not self._ended


_PLACE = tuple(os.environ.get(name, "") for name in (NAMESPACE_ENV, BACKEND_ENV, POD_ENV))
_current: ContextVar[Context] = ContextVar("context")
_open: set[Context] = set()
_lock = threading.Lock()


def context() -> Context:
    """The context of the call that this code runs in; one without a request if it runs in no call."""
    context = _current.get(None)
    return Context() if context is None else context


def begin(fields: Headers, batch_limit: int | None = None) -> Context:
    """Make a context and set it as the current one; for arguments see `Context`."""
    begun = Context(fields, batch_limit)
    _current.set(begun)
    return begun


def users() -> list[Context]:
    """The contexts in which this code may run: its own, or in a thread that knows none all that are open."""
    context = _current.get(None)
    if context is not None:
        return [context]
    with _lock:
        return list(_open)


def opened(context: Context) -> Context:
    """Note that an answer is under way, and return its context; `Context.end` is sure to be called."""
    with _lock:
        _open.add(context)
    return context


def of_batch(contexts: Sequence[Context], batch_limit: int) -> Context:
    """Make the context of a batch: its requests' common fields, their ids, and their latest deadline.

    Args:
        contexts: contexts of the requests, at least one.
        batch_limit: the most items that the batch could hold.
    """
    shared = [field for field in contexts[0].fields if all(field in each.fields for each in contexts)]
    fields = [field for field in shared if field[0] not in (REQUEST_ID, TIMEOUT_MS)]
    chains = [chain for each in contexts if (chain := get(each.fields, CALL_CHAIN)) is not None]
    if chains:
        fields = [*[field for field in fields if field[0] != CALL_CHAIN], (CALL_CHAIN, deepest(chains))]
    ids = b",".join([get(each.fields, REQUEST_ID) or b"" for each in contexts])
    # NB: a new object even for one request: the calls of the batch must end with the batch, not with the
    # request that waits for it.
    of_all = Context((*fields, (REQUEST_ID, ids)) if ids.strip(b",") else tuple(fields), batch_limit)
    deadlines = [each.deadline for each in contexts if each.deadline is not None]
    of_all.deadline = max(deadlines) if len(deadlines) == len(contexts) else None
    return of_all


def current() -> Context | None:
    """The context to pass to `resume`, for code that continues in another task or thread."""
    return _current.get(None)


def resume(context: Context | None) -> None:
    """Set a call's context again, such as for a stream's steps, which another task can request."""
    if context is not None:
        _current.set(context)
        request_ids.begin(get(context.fields, REQUEST_ID))


def model_id() -> bytes:
    """The id of the model that the call is for; empty for none."""
    context = _current.get(None)
    return b"" if context is None else get(context.fields, MODEL_ID) or b""


def deadline() -> float | None:
    """The deadline of the call that this code runs in; None if it has none, or runs in no call."""
    context = _current.get(None)
    return None if context is None else context.deadline
