"""One caller's item in the sidecar's queue.

The queue holds requests of bytes. A call is a request with a single item without bytes; all calls have the
same key. Its value is kept beside it.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

from penstock.errors import DeadlineExceeded
from penstock.in_process.stream import Pieces
from penstock.user_code import as_exception
from penstock_sidecar.queue.key import BatchKey
from penstock_sidecar.queue.request import QueuedRequest
from penstock_wire.http import Request

NEVER = math.inf
_REQUEST = Request("POST", "/", (), b"")
_ITEMS = (b"",)


def raisable(error: BaseException) -> Exception:
    """An exception that was raised or returned, as one that can be raised at a caller."""
    error = as_exception(error)
    if isinstance(error, StopIteration | StopAsyncIteration):
        # Neither can be raised from an `await`: it would end the caller's own iteration.
        made = RuntimeError(f"the batch raised {type(error).__name__}")
        made.__cause__ = error
        return made
    return error


class QueuedCall(QueuedRequest):
    """One call.

    Args:
        key: the queue's only key.
        owner: the instance of the called method; None for a function.
        value: the item, or a tuple if there are several arguments.
        arrived: when it was made, by `time.monotonic`.
        deadline: when it raises `DeadlineExceeded`; `NEVER` for never.
        answer: the future, or the pieces, for the answer.
        chain: the chain of calls that it was made in.
        model_id: the model that the request is for in which it was made.
        cost: what the item costs; None if that does not count.

    `batch` is its batch, once it has been cut.
    """

    __slots__ = ("answer", "batch", "chain", "model_id", "owner", "value")

    def __init__(
        self,
        key: BatchKey,
        owner: object,
        value: Any,
        arrived: float,
        deadline: float,
        answer: asyncio.Future[Any] | Pieces,
        chain: bytes = b"",
        model_id: bytes = b"",
        cost: int | None = None,
    ) -> None:
        costs = None if cost is None else (cost,)
        super().__init__(key, _REQUEST, b"", _ITEMS, (), arrived, deadline, deadline, costs=costs)
        self.owner = owner
        self.value = value
        self.answer = answer
        self.chain = chain
        self.model_id = model_id
        self.batch: Any = None

    def succeed(self, value: Any) -> None:
        """Answer the caller, unless it has its answer or has left; an exception object is raised there."""
        if isinstance(value, BaseException):
            self.fail(as_exception(value))
        elif not self.done:
            self.done = True
            answer = self.answer
            if isinstance(answer, Pieces):
                answer.end()
            elif not answer.done():
                answer.set_result(value)

    def fail(self, error: Exception) -> None:
        """Raise an error at the caller, unless it has its answer or has left."""
        if self.done:
            return
        self.done = True
        error = raisable(error)
        answer = self.answer
        if isinstance(answer, Pieces):
            answer.end(error)
        elif not answer.done():
            answer.set_exception(error)

    def expire(self, now: float) -> None:
        """Fail the call: its deadline has passed."""
        where = "with its batch" if self.executed else "in the queue"
        self.fail(DeadlineExceeded(f"the deadline passed after {now - self.arrived:.3f} s {where}"))
