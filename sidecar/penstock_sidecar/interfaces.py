"""The interfaces between the packages and the process."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from penstock_wire.control.report import Fit
from penstock_wire.control.settings import Settings
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.http import Request, Response, UpstreamAnswer, UpstreamError

Send = Callable[[Request, float], Awaitable[Response]]
"""Sends a request to the model; arguments: the request, seconds until the answer; raises UpstreamError."""
Done = Callable[[Response | UpstreamError], None]
"""Gets the model's whole answer, or the error."""
Open = Callable[[Request, float, float], Awaitable[UpstreamAnswer]]
"""Sends to the model; arguments: the request, seconds until the answer's head, seconds between its pieces."""


@dataclasses.dataclass(slots=True)
class Counts:
    """Counts since the start; a request that is not batched is a batch of one.

    Four count batches whose slot was held for callers who were about to ask again: `held_batches`,
    `held_seconds`, `merged_batches` (some came meanwhile) and `saved_calls` (and no request was left waiting
    that would have needed one more call). `reused` are requests that waited for the answer of an equal one.
    `work_beyond` is by how much the work of what arrived is more than its number of items, in items of the
    usual cost.
    """

    batches: int = 0
    batch_items: int = 0
    held_seconds: float = 0.0
    held_batches: int = 0
    merged_batches: int = 0
    saved_calls: int = 0
    reused: int = 0
    work_beyond: float = 0.0


class RequestPath(Protocol):
    """A path of requests to the model: in batches (`batching.dispatcher`), or one by one (`passthrough`).

    A path can have a second one behind it, `unbatched`, for the requests that it does not batch: `queued` and
    `ongoing` count both, and each method acts on both.
    """

    @property
    def unbatched(self) -> RequestPath | None:
        """The path of requests that are not batched; None if it is this one."""
        ...

    @property
    def counts(self) -> Counts:
        """The counts so far."""
        ...

    @property
    def slots(self) -> int:
        """Maximum number of batches that may be with the model at once now."""
        ...

    @property
    def queue_limit(self) -> int:
        """Maximum number of items that may wait."""
        ...

    @property
    def queued(self) -> int:
        """Number of items that wait."""
        ...

    @property
    def ongoing(self) -> int:
        """Number of items with the model."""
        ...

    @property
    def work(self) -> float | None:
        """Queued and ongoing items, in items of the usual cost; None if costs do not count."""
        ...

    @property
    def oldest_age(self) -> float:
        """Seconds that the oldest queued request has waited; 0 if none waits."""
        ...

    @property
    def drain_seconds(self) -> float:
        """Seconds until all waiting requests are served, at the pace of the latest batches."""
        ...

    @property
    def batch_limit(self) -> int:
        """Maximum number of items in a batch now."""
        ...

    @property
    def batch_wait(self) -> float:
        """Maximum seconds that a part-full batch waits now: the user's value, or half of a batch's time."""
        ...

    def fits(self) -> Mapping[str, Fit]:
        """The latency model of each class, for reports and metrics."""
        ...

    def lines(self) -> list[dict[str, Any]]:
        """The waiting requests, for a person to look at: a document for each queue."""
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
        """Apply new settings; requests with the model are not disturbed."""
        ...

    def pause(self) -> None:
        """Send the model nothing more: new requests wait, those with the model end."""
        ...

    def resume(self) -> None:
        """Send again."""
        ...

    def model_changed(self, *, loaded: bool, gone: bool) -> None:
        """Note whether the model is loaded now, and whether its process has ended."""
        ...

    def refuse(self, error: PenstockError | None) -> None:
        """Refuse new requests with an error, or take them again (None)."""
        ...

    def refuse_queued(self, error: PenstockError) -> int:
        """Answer all queued requests with an error; returns their number."""
        ...

    async def abort(self) -> None:
        """End all requests with the model at once."""
        ...


class RequestObserver(Protocol):
    """Counts requests by how they ended."""

    def arrived(self, items: int) -> None:
        """Count a request's items; 1 if it was refused unread."""
        ...

    def ended(self, status: int, reason: Reason | None, items: int, cause: str = "") -> None:
        """Count a request that ended.

        Args:
            status: status of its answer.
            reason: why, if the answer is the sidecar's own error.
            items: its items, 0 if it could not be read.
            cause: why, if the answer is the model's error (`model.answers.model_reason`).
        """
        ...
