"""The admission controller, which alone decides whether a request enters the queue.

A request is rejected while all are (a drain), if its time was over on arrival, if there is no room, and
if its answer would come too late. If there is no room, a policy with levels or fairness may evict other
requests instead (`queue.eviction`). A rejection also holds for the next requests, until the queue gets
shorter, a slot falls free, or a batch has shown more of the model's pace: `errors.RejectionCache` keeps it.

Nearly all requests are admitted by a quick check: the fast paths `may_reject` (by the head) and `admit`.
"""

from __future__ import annotations

import math

from penstock_sidecar.admission import errors
from penstock_sidecar.admission.slots import Slots
from penstock_sidecar.estimators.model_pace import ModelPace
from penstock_sidecar.queue.batch_key import RequestFields
from penstock_sidecar.queue.eviction import BYTES, ITEMS
from penstock_sidecar.queue.key import class_of
from penstock_sidecar.queue.queue import Queue
from penstock_sidecar.queue.request import QueuedRequest
from penstock_wire.control.settings import Batching
from penstock_wire.errors import PenstockError

MAX_QUEUED_BYTES = 256 * 1024 * 1024
"""Maximum bytes of items that wait, whatever their number and the sidecar's memory."""

_KEPT = 0.5
"""Share of the time until the next cut that remains when a cached rejection ends."""


class AdmissionController:
    """Admits requests to one queue, or rejects them.

    Args:
        queue: the queue.
        slots: the slots that its batches run in.
        pace: the model's pace.
        batching: the initial policy.
        space: maximum bytes of items that wait.

    Attributes:
        refusing: the error of all new requests; None while they are not all refused.
        room: items that may wait, in addition to those that free slots take.
    """

    __slots__ = (
        "_batch",
        "_batching",
        "_late",
        "_pace",
        "_queue",
        "_rejections",
        "_slots",
        "_space",
        "_timeout",
        "refusing",
        "room",
    )

    def __init__(
        self, queue: Queue, slots: Slots, pace: ModelPace, batching: Batching, space: int = MAX_QUEUED_BYTES
    ) -> None:
        self._space = space
        self._queue = queue
        self._slots = slots
        self._pace = pace
        self._late = errors.late_on_arrival()
        self._rejections = errors.RejectionCache()
        self.refusing: PenstockError | None = None
        self.room = 0
        self.apply(batching)

    def apply(self, batching: Batching) -> None:
        """Use another policy; the slots and the pace use it already."""
        self._batching = batching
        self._batch = batching.max_batch_size
        self._timeout = batching.default_timeout_ms / 1000
        self.size_queue()

    def size_queue(self) -> None:
        """Set `room` to the policy's limit, or to the items that can be answered in time."""
        objective = self._pace.objective
        seconds = self._timeout if objective is None else objective
        self.room = self._batching.queue_limit(self._slots.count, self._pace.rate * seconds)
        self._rejections.clear()

    def deadlines(self, arrived: float, timeout_ms: int | None, *, held: bool = False) -> tuple[float, float]:
        """Return until when the answer to a request is of use, and until when its client waits.

        Args:
            arrived: when it arrived.
            timeout_ms: the time that its client gave it, None for none.
            held: whether a router held it for a pod: no objective can be kept for it any more.
        """
        seconds = self._timeout
        if timeout_ms is not None and timeout_ms / 1000 < seconds:
            seconds = timeout_ms / 1000
        objective = self._pace.objective
        useful = seconds if objective is None or held or seconds < objective else objective
        return arrived + useful, arrived + seconds

    # A request's head

    def may_reject(self, arrived: float, expires: float) -> bool:
        """Fast path: whether `check_head` may reject a request; False for nearly all.

        Args:
            arrived: when it arrived.
            expires: until when its client waits.
        """
        return self._queue.items >= self.room or expires <= arrived or bool(self._rejections.late)

    def check_head(
        self, target: str, fields: RequestFields, arrived: float, deadline: float, expires: float
    ) -> PenstockError | None:
        """Return the error with which `admit` would reject a request whatever its body, or None.

        Args:
            target: path and query.
            fields: the values of its header fields.
            arrived: when it arrived.
            deadline: until when its answer is of use.
            expires: until when its client waits.
        """
        if self.refusing is not None:
            return self.refusing
        if expires <= arrived:
            return self._late
        queue, free = self._queue, self._slots.free
        if queue.items >= self.room and self._is_full(1, free):
            limit = self.room + free * self._batch
            if queue.can_evict(fields.level, fields.share, arrived, ITEMS, 1, limit):
                return None
            return self.queue_full(1)
        late = self._cached().late
        # NB: a deadline before the latest one may be kept even if the latest cannot; a share may be next.
        if late and not fields.share and deadline >= queue.latest:
            rejection = late.get(class_of(target, fields.fields))
            if rejection is not None and rejection[0] > deadline and arrived < rejection[1]:
                # NB: the head of a request with a large body is checked twice, and counts twice.
                self._pace.wait_estimator.refused += 1
                return rejection[2]
        return None

    # A whole request

    def admit(self, work: QueuedRequest) -> list[QueuedRequest] | None:
        """Admit a request; the caller puts it into the queue.

        Returns:
            The requests that were evicted for it, which get the error `evicted`; None for nearly all.

        Raises:
            PenstockError: it is rejected.
        """
        if self.refusing is not None:
            # NB: otherwise the traceback of the shared error would keep the frames of all refused requests.
            raise self.refusing.with_traceback(None)
        if work.expires <= work.arrived:
            raise self._late.with_traceback(None)
        queue, slots, pace = self._queue, self._slots, self._pace
        queued = queue.items
        if queued or slots.paused or slots.busy >= slots.count:
            after = queued + work.size
            # NB: the fast path; `_check` is the full check.
            if (
                after > self.room
                or queue.bytes + work.bytes_left > self._space
                or work.arrived + 2.0 * (after // pace.usual + 2) * pace.slow >= work.deadline
            ):
                return self._check(work)
        return None

    def _check(self, work: QueuedRequest) -> list[QueuedRequest] | None:
        """The full check of `admit`, for a request that still has time."""
        queue, slots, pace = self._queue, self._slots, self._pace
        queued, free = queue.items, slots.free
        evicts = self._needs_eviction(work, free)
        # Nearly all deadlines are far beyond twice the time that the queue takes, and need no prediction.
        batches = (queued + work.size) // pace.usual + 2
        if work.arrived + 2.0 * batches * pace.slow >= work.deadline and (queued or not free):
            size = pace.size(work.arrived, work.key.cls)
            if not slots.paused:
                self._check_deadline(work, size, free)
        return self._evict(work, free) if evicts else None

    def queue_full(self, size: int) -> PenstockError:
        """Return the error if there is no room for `size` items; the same object each time."""
        error = self._cached().full.get(size)
        if error is None:
            error = self._full(
                f"expected room for {size} more in the queue, found {self._queue.items} items waiting, "
                f"where {self.room} may"
            )
            error.unread = size == 1  # what is refused by its head counts as one item
            self._cached().keep_full(size, error)
        return error

    def evicted(self) -> PenstockError:
        """The error of requests that were evicted from a full queue."""
        return self._full("found the queue full, and another with more right to a place in it")

    def _needs_eviction(self, work: QueuedRequest, free: int) -> bool:
        """Whether other requests must be evicted for a request.

        Args:
            work: the request.
            free: slots that are free.

        Raises:
            PenstockError: there is no room, and no request that may be evicted.
        """
        queue, size, length = self._queue, work.size, work.bytes_left
        if self._is_full(size, free):
            limit = self.room + free * self._batch
            if not queue.can_evict(work.level, work.share, work.arrived, ITEMS, size, limit):
                raise self.queue_full(size).with_traceback(None)
            return True
        if not queue.items or queue.bytes + length <= self._space:
            return False
        if not queue.can_evict(work.level, work.share, work.arrived, BYTES, length, self._space):
            raise self._no_space()
        return True

    def _evict(self, work: QueuedRequest, free: int) -> list[QueuedRequest]:
        """Evict requests from the queue; arguments and errors as for `_needs_eviction`."""
        limit = self.room + free * self._batch
        gone = self._queue.evict_for(work, work.arrived, limit=limit, space=self._space)
        if gone:
            return gone
        if self._is_full(work.size, free):
            raise self.queue_full(work.size).with_traceback(None)
        raise self._no_space()

    def _check_deadline(self, work: QueuedRequest, size: int, free: int) -> None:
        """Reject a request that would not be answered in time (raises PenstockError).

        Args:
            work: the request.
            size: maximum items of a batch of its class.
            free: slots that are free.
        """
        queue, now, cls, slots = self._queue, work.arrived, work.key.cls, self._slots.count
        estimator = self._pace.wait_estimator
        items, lines = queue.ahead(work)
        last, waiting = items + work.size - 1, queue.items
        each, beside, most = 1.0, 0.0, math.inf
        formula = self._pace.latency_model.formula(cls)
        if formula is not None:
            longest = formula.of(1, work.longest, work.longest)
            most = max(self._pace.work(now, cls), longest)
            if formula.pads:
                each = longest
            else:
                beside = formula.of(work.size, work.cost_left, work.longest) - work.size
        finish = estimator.finish(
            now,
            cls,
            size,
            items=last,
            waiting=waiting + work.size,
            lines=lines,
            free=free,
            slots=slots,
            each=each,
            beside=beside,
            most=most,
        )
        if finish is None or now + finish <= work.deadline:
            return
        estimator.refused += work.size
        if work.level == 1 and not work.share:
            # The least time: for one item, and if nothing arrives for as long as the rejection is kept.
            least = (
                estimator.finish(
                    now,
                    cls,
                    size,
                    items=items,
                    waiting=waiting + 1,
                    lines=lines,
                    free=free,
                    slots=slots,
                    until=_KEPT,
                )
                or 0.0
            )
            if now + least > work.deadline:
                left = estimator.next_release - now
                until = now + (1.0 - _KEPT) * left if left > 0.0 else math.inf
                error = errors.unmeetable(least, work.deadline - now)
                error.unread = True
                self._cached().keep(cls, now + least, until, error)
        raise errors.unmeetable(finish, work.deadline - now)

    def _cached(self) -> errors.RejectionCache:
        """The rejections that still hold: the queue, the free slots and the pace have not changed."""
        rejections, slots = self._rejections, self._slots
        epoch = self._queue.epoch + self._pace.epoch
        free = -1 if slots.paused else slots.free
        if rejections.epoch != epoch or rejections.free != free:
            rejections.clear()
            rejections.epoch, rejections.free = epoch, free
        return rejections

    def _is_full(self, size: int, free: int) -> bool:
        # Items that free slots take at once do not wait. A request larger than the whole queue gets its
        # chance when no other request waits.
        queued = self._queue.items
        return queued + size > self.room + free * self._batch and not (free and not queued)

    def _no_space(self) -> PenstockError:
        return self._full(f"expected at most {self._space} bytes to wait, found more")

    def _full(self, detail: str) -> PenstockError:
        retry_after = self._pace.throughput.retry_after(self._queue.items, self._slots.count)
        return errors.full(detail, retry_after=retry_after)
