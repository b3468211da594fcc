"""One accepted request on its way through the queue: its items, its deadlines, and the one answer it gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock_sidecar.queue.key import BatchKey
from penstock_sidecar.work import WorkFormula
from penstock_wire._mypyc import mypyc_attr
from penstock_wire.errors import PenstockError
from penstock_wire.headers import Headers
from penstock_wire.http.messages import Request, Response

Outcome = Response | PenstockError
"""The end of a request: the model's answer, or an error of the sidecar."""


class TracedRequest(Request):
    """A request with its span, which is set after the request was made."""

    __slots__ = ("span",)

    span: Any


@mypyc_attr(allow_interpreted_subclasses=True)
class QueuedRequest:
    """One accepted request. A subclass defines what `finish` does with its outcome.

    It is queued until its last item has been cut into a batch. A request larger than a batch is cut into
    several parts, and their answers are joined again.

    Args:
        key: the key of its queue.
        request: the request; its body is sent byte for byte if the request has a batch to itself.
        request_id: the request's `x-request-id`.
        items: the protocol's items; `len()` of an item is its bytes.
        shared: header fields that are forwarded if they are equal across a batch.
        arrived: when it arrived, in the clock's time.
        deadline: until when its answer is of use: the nearest of objective, the client's and the default
            timeout. The queue is in this order.
        expires: until when the client waits; at least `deadline`. The request is answered then at the latest.
        level: its priority, 1 is the most urgent.
        share: the share of the slots that it uses: a value of the fairness header.
        costs: the cost of each item; None if it is the item's bytes.

    Further attributes: `size` (items, as units of load), `taken` (items that have been cut), `bytes_left`
    (bytes that have not), `cost_left` (their cost), `longest` (the largest cost of one of them), `parts`
    (batches that hold some of it), `queued`, `done` (it has its outcome, or its client left), `executed`
    (some of it may have reached the model), `cut_at` (when its first item was cut), `subqueue` (for the
    queue alone).
    """

    __slots__ = (
        "_answers",
        "arrived",
        "bytes_left",
        "cost_left",
        "costs",
        "cut_at",
        "deadline",
        "done",
        "executed",
        "expires",
        "items",
        "key",
        "level",
        "longest",
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
        key: BatchKey,
        request: Request,
        request_id: bytes,
        items: Sequence[Any],
        shared: Headers,
        arrived: float,
        deadline: float,
        expires: float,
        level: int = 1,
        share: bytes = b"",
        costs: Sequence[int] | None = None,
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
        # A request without items is still one unit of load: it passes through the queue and the model.
        count = len(items)
        if count == 1:
            self.size = 1
            self.bytes_left = self.cost_left = self.longest = len(items[0])
        else:
            self.size = count or 1
            sizes = [len(item) for item in items]
            self.bytes_left = self.cost_left = sum(sizes)
            self.longest = max(sizes, default=0)
        self.costs = costs
        if costs is not None:
            self.cost_left, self.longest = sum(costs), max(costs, default=0)
        self.taken = self.parts = 0
        self.queued = self.done = self.executed = False
        self.cut_at = 0.0
        self.subqueue: Any = None
        self._answers: dict[int, Response] | None = None

    def finish(self, outcome: Outcome) -> None:
        """Handle the outcome; called at most once, and never after the client has left."""
        raise NotImplementedError

    @property
    def left(self) -> int:
        """Items that have not been cut yet."""
        return self.size - self.taken

    def collect(self, start: int, answer: Response) -> list[Response] | None:
        """Keep the answer to the part that begins at item `start`; return all in order once complete."""
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
        cost, longest = self.cost_left, self.longest
        if count == self.size:
            self.taken = count
            self.bytes_left = self.cost_left = 0
            return Slice(self, 0, self.items, count, cost, longest)
        end = self.taken = start + count
        items = self.items[start:end]
        self.bytes_left -= sum(map(len, items))
        costs = self.costs_of(start, end)
        cost, longest = sum(costs), max(costs)
        self.cost_left -= cost
        self.longest = max(self.costs_of(end, self.size), default=0)
        return Slice(self, start, items, count, cost, longest)

    def costs_of(self, start: int, end: int) -> Sequence[int]:
        """The costs of some of the items."""
        costs = self.costs
        return [len(item) for item in self.items[start:end]] if costs is None else costs[start:end]


class Slice:
    """The part of one request that one batch holds.

    Args:
        work: the request.
        start: index of the first of its items that is in this part.
        items: the items.
        size: the items' units of load.
        cost: the sum of the items' costs.
        longest: the largest of them.

    `whole` is True if the part is the entire request.
    """

    __slots__ = ("cost", "items", "longest", "size", "start", "whole", "work")

    def __init__(
        self,
        work: QueuedRequest,
        start: int,
        items: Sequence[Any],
        size: int,
        cost: int = 0,
        longest: int = 0,
    ) -> None:
        self.work = work
        self.start = start
        self.items = items
        self.size = size
        self.cost = cost
        self.longest = longest
        self.whole = size == work.size


def work_of(parts: Sequence[Slice], items: int, formula: WorkFormula) -> float:
    """The work of a batch of these parts, `items` items."""
    cost = longest = 0
    for part in parts:
        cost += part.cost
        if part.longest > longest:
            longest = part.longest
    return formula.of(items, cost, longest)
