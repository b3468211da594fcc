"""One accepted request on its way through the queue: its items, its deadlines, and the one answer it gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock_sidecar.queue.key import Key
from penstock_wire._mypyc import mypyc_attr
from penstock_wire.errors import PenstockError
from penstock_wire.headers import Headers
from penstock_wire.http.messages import Request, Response

Outcome = Response | PenstockError
"""What a request ends with: an answer of the model, or an error of ours."""


class TracedRequest(Request):
    """A request with its span, which is set behind its making."""

    __slots__ = ("span",)

    span: Any


@mypyc_attr(allow_interpreted_subclasses=True)
class QueuedRequest:
    """One accepted request. A subclass says what `finish` does with its outcome.

    It is queued until its last item has been cut into a batch; a request larger than a batch is cut into
    several parts, whose answers are joined again.

    Args:
        key: which queue it belongs to.
        request: what came in; its body goes out byte for byte when the request has a batch to itself.
        request_id: the request's `x-request-id`.
        items: the protocol's items; of each, `len()` is its bytes.
        shared: header fields that are forwarded where they are equal across a batch.
        arrived: when it arrived, in the clock's time.
        deadline: until when its answer is of use: the nearest of objective, the client's and the default
            timeout. The queue is in this order.
        expires: until when the client waits; at least `deadline`. Then it is answered, whatever it waits for.
        level: its priority, 1 is the most urgent.
        share: whose share of the slots it uses.

    Of its own it keeps: `size` (items, as units of load), `taken` and `bytes_left` (what has been cut, what
    has not), `parts` (how many batches hold some of it), `queued`, `done` (it has its outcome, or nobody
    waits), `executed` (some of it may have reached the model), `cut_at` (when its first item was cut),
    `subqueue` (the queue's own).
    """

    __slots__ = (
        "_answers",
        "arrived",
        "bytes_left",
        "cut_at",
        "deadline",
        "done",
        "executed",
        "expires",
        "items",
        "key",
        "level",
        "parts",
        "queued",
        "request",
        "request_id",
        "share",
        "shared",
        "size",
        "subqueue",
        "taken",
    )

    def __init__(
        self,
        key: Key,
        request: Request,
        request_id: bytes,
        items: Sequence[Any],
        shared: Headers,
        arrived: float,
        deadline: float,
        expires: float,
        level: int = 1,
        share: bytes = b"",
    ) -> None:
        self.key = key
        self.request = request
        self.request_id = request_id
        self.items = items
        self.shared = shared
        self.arrived = arrived
        self.deadline = deadline
        self.expires = expires
        self.level = level
        self.share = share
        # A request without items still is one unit of load: it passes through the queue and the model.
        count = len(items)
        if count == 1:
            self.size = 1
            self.bytes_left = len(items[0])
        else:
            self.size = count or 1
            self.bytes_left = sum(map(len, items))
        self.taken = self.parts = 0
        self.queued = self.done = self.executed = False
        self.cut_at = 0.0
        self.subqueue: Any = None
        self._answers: dict[int, Response] | None = None

    def finish(self, outcome: Outcome) -> None:
        """Take the one outcome; called once, never after the client has left."""
        raise NotImplementedError

    @property
    def left(self) -> int:
        """Items that have not been cut yet."""
        return self.size - self.taken

    def collect(self, start: int, answer: Response) -> list[Response] | None:
        """Keep the answer to the part that begins at item `start`; all of them in order once complete."""
        if self._answers is None:
            self._answers = {}
        self._answers[start] = answer
        if self.size > self.taken or len(self._answers) < self.parts:
            return None
        return [self._answers[index] for index in sorted(self._answers)]

    def take(self, count: int) -> Slice:
        """Cut the next `count` items off."""
        self.parts += 1
        start = self.taken
        if count == self.size:
            self.taken = count
            self.bytes_left = 0
            return Slice(self, 0, self.items, count)
        self.taken = start + count
        items = self.items[start : self.taken]
        self.bytes_left -= sum(map(len, items))
        return Slice(self, start, items, count)


class Slice:
    """What one batch holds of one request.

    Args:
        work: the request.
        start: index of its first item here.
        items: the items.
        size: how many units of load they are.

    `whole` says that the part is the entire request.
    """

    __slots__ = ("items", "size", "start", "whole", "work")

    def __init__(self, work: QueuedRequest, start: int, items: Sequence[Any], size: int) -> None:
        self.work = work
        self.start = start
        self.items = items
        self.size = size
        self.whole = size == work.size
