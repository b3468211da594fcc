"""One accepted request on its way through the queue: its items, its deadline, and the one answer it gets."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from penstock_wire.errors import PenstockError
from penstock_wire.headers import Headers
from penstock_wire.http import Request, Response


class Key(NamedTuple):
    """What must be equal for two requests to share a batch, as raw bytes.

    Args:
        method: the method.
        target: path and query.
        fields: the header fields that a model may act upon, sorted by name.
        parameters: what the protocol sends once for a batch.
        lone: 0, or a number of its own for a request that shares its batch with nobody.
    """

    method: str
    target: str
    fields: Headers
    parameters: tuple[tuple[str, bytes], ...]
    lone: int = 0


Outcome = Response | PenstockError
"""What a request ends with: an answer of the model, or an error of ours."""


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class Work:
    """One accepted request.

    It is queued until its last item has been cut into a batch; a request larger than a batch is cut into
    several parts, whose answers are joined again.

    Args:
        key: which queue it belongs to.
        request: what came in; its body goes out byte for byte when the request has a batch to itself.
        request_id: the request's `x-request-id`.
        items: the raw items.
        shared: header fields that are forwarded where they are equal across a batch.
        arrived: when it arrived, in the clock's time.
        deadline: until when it must be answered, in the clock's time.
        future: gets the outcome.

    Of its own it keeps: `size` (items, as units of load), `taken` and `bytes_left` (what has been cut, what
    has not), `parts` (how many batches hold some of it), `queued`, `done` (it has its outcome, or nobody
    waits), `executed` (some of it may have reached the model), `cut_at` (when its first item was cut).
    """

    key: Key
    request: Request
    request_id: str
    items: list[bytes]
    shared: Headers
    arrived: float
    deadline: float
    future: asyncio.Future[Outcome]
    size: int = dataclasses.field(init=False)
    bytes_left: int = dataclasses.field(init=False)
    taken: int = dataclasses.field(init=False, default=0)
    queued: bool = dataclasses.field(init=False, default=False)
    done: bool = dataclasses.field(init=False, default=False)
    executed: bool = dataclasses.field(init=False, default=False)
    cut_at: float = dataclasses.field(init=False, default=0.0)
    parts: int = dataclasses.field(init=False, default=0)
    _answers: dict[int, Response] = dataclasses.field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        # A request without items still is one unit of load: it passes through the queue and the model.
        self.size = max(1, len(self.items))
        self.bytes_left = sum(map(len, self.items))

    @property
    def left(self) -> int:
        """Items that have not been cut yet."""
        return self.size - self.taken

    def settle(self, outcome: Outcome) -> bool:
        """Give the request its one outcome; returns False where it has one, or nobody waits any more."""
        if self.done:
            return False
        self.done = True
        if not self.future.done():
            self.future.set_result(outcome)
        return True

    def collect(self, start: int, answer: Response) -> list[Response] | None:
        """Keep the answer to the part that begins at item `start`; all of them in order once complete."""
        self._answers[start] = answer
        if self.left or len(self._answers) < self.parts:
            return None
        return [self._answers[index] for index in sorted(self._answers)]

    def take(self, count: int) -> Part:
        """Cut the next `count` items off."""
        start, self.taken = self.taken, self.taken + count
        self.parts += 1
        items = self.items[start : self.taken]
        self.bytes_left -= sum(map(len, items))
        return Part(work=self, start=start, items=items, size=count)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one batch holds of one request.

    Args:
        work: the request.
        start: index of its first item here.
        items: the raw items.
        size: how many units of load they are.
    """

    work: Work
    start: int
    items: Sequence[bytes]
    size: int

    @property
    def whole(self) -> bool:
        """The part is the entire request."""
        return self.size == self.work.size
