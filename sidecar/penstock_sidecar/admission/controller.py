"""Who is let into the queue: whether there is room, and whether an answer would come in time.

Where there is none, a policy with levels or fairness may have others give way (`eviction`); they hear what
the newcomer would have heard. All else is a refusal that holds for those behind it as well, see `errors`.
"""

from __future__ import annotations

from penstock_sidecar.admission import errors
from penstock_sidecar.estimators.throughput import Throughput
from penstock_sidecar.estimators.wait_estimator import WaitEstimator
from penstock_sidecar.queue.batch_key import RequestFields
from penstock_sidecar.queue.eviction import BYTES, ITEMS
from penstock_sidecar.queue.queue import Queue
from penstock_sidecar.queue.request import QueuedRequest, class_of
from penstock_wire.errors import PenstockError

MAX_QUEUED_BYTES = 256 * 1024 * 1024
"""Bytes of items that may wait, whatever their number: a bound on the sidecar's own memory."""


class AdmissionController:
    """The way into one queue.

    Args:
        queue: the queue.
        wait_estimator: when an answer would come.
        throughput: how fast the queue moves.

    `rejections` is what whoever comes next would hear. To be kept in step with the policy: `slots`, batches
    that may be with the model at once; `batch`, items of one at most; `room`, items that may wait beyond what
    free slots take; `status` of the refusal for want of it.
    """

    __slots__ = ("_queue", "_throughput", "_wait_estimator", "batch", "rejections", "room", "slots", "status")

    def __init__(self, queue: Queue, wait_estimator: WaitEstimator, throughput: Throughput) -> None:
        self._queue = queue
        self._wait_estimator = wait_estimator
        self._throughput = throughput
        self.rejections = errors.RejectionCache()
        self.slots = self.batch = 1
        self.room = 0
        self.status = 503

    def check_head(
        self, target: str, told: RequestFields, arrived: float, deadline: float, free: int
    ) -> PenstockError | None:
        """What is said of a request whatever its body holds, for little; None if it depends.

        Args:
            target: path and query.
            told: what its header fields say.
            arrived: when it arrived.
            deadline: until when its answer is of use.
            free: slots that are free.
        """
        queue, rejections = self._queue, self.rejections
        if queue.items >= self.room and self._is_full(1, free):
            limit = self.room + free * self.batch
            if queue.can_evict(told.level, told.share, arrived, ITEMS, 1, limit):
                return None
            return self.queue_full(1)
        # NB: a deadline before the latest one may be kept though that one cannot; a share may be the next.
        if rejections.late and not told.share and deadline >= queue.latest:
            found = rejections.late.get(class_of(target, told.fields))
            if found is not None and found[0] > deadline:
                return found[1]
        return None

    def queue_full(self, size: int) -> PenstockError:
        """What a request of so many items hears for which there is no room; the same object to all."""
        error = self.rejections.full.get(size)
        if error is None:
            error = self._full(
                f"expected room for {size} more in the queue, found {self._queue.items} items waiting, "
                f"where {self.room} may"
            )
            self.rejections.keep_full(size, error)
        return error

    def evicted(self) -> PenstockError:
        """What they hear who had a place in a full queue, and lost it to another."""
        return self._full("found the queue full, and another with more right to a place in it")

    def needs_eviction(self, work: QueuedRequest, free: int) -> bool:
        """Whether others must give way to a request.

        Args:
            work: the request.
            free: slots that are free.

        Raises:
            PenstockError: there is no room, and nobody who must.
        """
        queue, size, length = self._queue, work.size, work.bytes_left
        if self._is_full(size, free):
            limit = self.room + free * self.batch
            if not queue.can_evict(work.level, work.share, work.arrived, ITEMS, size, limit):
                raise self.queue_full(size).with_traceback(None)
            return True
        if not queue.items or queue.bytes + length <= MAX_QUEUED_BYTES:
            return False
        if not queue.can_evict(work.level, work.share, work.arrived, BYTES, length, MAX_QUEUED_BYTES):
            raise self._no_space()
        return True

    def make_room(self, work: QueuedRequest, free: int) -> list[QueuedRequest]:
        """Take those out of the queue that must give way; arguments and errors as for `crowded`."""
        limit = self.room + free * self.batch
        gone = self._queue.evict_for(work, work.arrived, limit=limit, space=MAX_QUEUED_BYTES)
        if gone:
            self.rejections.clear()
            return gone
        if self._is_full(work.size, free):
            raise self.queue_full(work.size).with_traceback(None)
        raise self._no_space()

    def check_deadline(self, work: QueuedRequest, size: int, free: int) -> None:
        """Refuse what would not be answered in time (raises PenstockError).

        Args:
            work: the request.
            size: items of a batch of its class at most.
            free: slots that are free.
        """
        queue, now, cls = self._queue, work.arrived, work.key.cls
        items, lines = queue.ahead(work)
        last = items + work.size - 1
        finish = self._wait_estimator.finish(
            now, cls, size, items=last, lines=lines, free=free, slots=self.slots
        )
        if finish is None or now + finish <= work.deadline:
            return
        if work.level == 1 and not work.share:
            least = finish
            if work.size > 1:
                least = (
                    self._wait_estimator.finish(
                        now, cls, size, items=items, lines=lines, free=free, slots=self.slots
                    )
                    or 0.0
                )
            if now + least > work.deadline:
                self.rejections.keep(cls, now + least, errors.unmeetable(least, work.deadline - now))
        raise errors.unmeetable(finish, work.deadline - now)

    def _is_full(self, size: int, free: int) -> bool:
        # What free slots take at once does not wait; and a request larger than the whole queue gets its
        # chance when nobody else waits.
        queued = self._queue.items
        return queued + size > self.room + free * self.batch and not (free and not queued)

    def _no_space(self) -> PenstockError:
        return self._full(f"expected at most {MAX_QUEUED_BYTES} bytes to wait, found more")

    def _full(self, detail: str) -> PenstockError:
        retry_after = self._throughput.retry_after(self._queue.items, self.slots)
        return errors.full(detail, status=self.status, retry_after=retry_after)
