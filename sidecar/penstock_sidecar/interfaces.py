"""What the packages and the process expect of each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from penstock_wire.control.report import Fit
from penstock_wire.control.settings import Settings
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.http import Request, Response, UpstreamAnswer

Send = Callable[[Request, float], Awaitable[Response]]
"""Sends a request to the model within so many seconds; raises UpstreamError."""
Open = Callable[[Request, float, float], Awaitable[UpstreamAnswer]]
"""Sends to the model; arguments: the request, seconds until the answer's head, seconds between its pieces."""


@dataclasses.dataclass(slots=True)
class Counts:
    """Counts since the start; a request that is not batched is a batch of one.

    Of batches whose slot was held for callers who were about to ask again: `held_batches`, `held_seconds`,
    `merged_batches` (some came meanwhile), `saved_calls` (and nobody was left waiting, who would have needed
    a call more).
    """

    batches: int = 0
    batch_items: int = 0
    held_seconds: float = 0.0
    held_batches: int = 0
    merged_batches: int = 0
    saved_calls: int = 0


class RequestPath(Protocol):
    """A way of requests to the model: in batches (`batching.dispatcher`), or one by one (`passthrough`).

    A path may have a second one behind it, `unbatched`, for the requests that it does not batch: `queued` and
    `ongoing` count both, and what is done to the first is done to the second as well.
    """

    @property
    def unbatched(self) -> RequestPath | None:
        """The path of requests that are not batched; None where this is it."""
        ...

    @property
    def counts(self) -> Counts:
        """Batches so far."""
        ...

    @property
    def slots(self) -> int:
        """Batches that may be with the model at once now."""
        ...

    @property
    def queue_limit(self) -> int:
        """Items that may wait."""
        ...

    @property
    def queued(self) -> int:
        """Items that wait."""
        ...

    @property
    def ongoing(self) -> int:
        """Items with the model."""
        ...

    @property
    def oldest_age(self) -> float:
        """Seconds that the oldest queued request has waited; 0 where none waits."""
        ...

    @property
    def drain_seconds(self) -> float:
        """Seconds until all that waits is through, at the pace of the latest batches."""
        ...

    @property
    def batch_limit(self) -> int:
        """Items of a batch at most now."""
        ...

    @property
    def batch_wait(self) -> float:
        """Seconds that a part-full batch waits at most now: a user's, or half of a batch's time."""
        ...

    def fits(self) -> Mapping[str, Fit]:
        """The latency model of each class, for reports and metrics."""
        ...

    def lines(self) -> list[dict[str, Any]]:
        """What waits, to look at: a document for each queue."""
        ...

    async def run(self) -> None:
        """Serve until cancelled."""
        ...

    async def idle(self) -> None:
        """Wait until nothing is queued and nothing is with the model."""
        ...

    async def quiet(self) -> None:
        """Wait until nothing is with the model."""
        ...

    def apply(self, settings: Settings) -> None:
        """Obey other settings from now on; what is with the model is not disturbed."""
        ...

    def pause(self) -> None:
        """Send the model nothing more: what comes waits, what is with the model ends."""
        ...

    def resume(self) -> None:
        """Send again."""
        ...

    def model_changed(self, *, loaded: bool, gone: bool) -> None:
        """The model is loaded now or is not, or its process has ended."""
        ...

    def refuse(self, error: PenstockError | None) -> None:
        """Refuse new requests with an error, or take them again (None)."""
        ...

    def refuse_queued(self, error: PenstockError) -> int:
        """Answer all that is queued with an error; returns how many requests that were."""
        ...

    async def abort(self) -> None:
        """End all that is with the model at once."""
        ...


class RequestObserver(Protocol):
    """Counts requests by their end."""

    def arrived(self, items: int) -> None:
        """A request with so many items could be read; one where it was refused unread."""
        ...

    def ended(self, status: int, reason: Reason | None, items: int, said: str = "") -> None:
        """A request ended.

        Args:
            status: status of its answer.
            reason: why, where the answer is an error of ours.
            items: its items, 0 where it could not be read.
            said: why, where the answer is an error of the model's (`model_answers.model_reason`).
        """
        ...
