"""What the next batch holds: batches are cut from the queue while slots are free, without what expired."""

from __future__ import annotations

import dataclasses

from penstock_sidecar.admission import errors
from penstock_sidecar.admission.slots import Slots
from penstock_sidecar.batching.runner import BatchListener, BatchRunner
from penstock_sidecar.estimators.linger_tuner import LingerTuner
from penstock_sidecar.estimators.model_pace import ModelPace
from penstock_sidecar.interfaces import Counts
from penstock_sidecar.queue.batch_key import Keys
from penstock_sidecar.queue.batch_limits import Limits
from penstock_sidecar.queue.queue import Queue
from penstock_sidecar.queue.request import Key, QueuedRequest
from penstock_wire.control.settings import Batching
from penstock_wire.timers import TIMER_SLACK

WAIT_MARGIN = 2.0
"""A part-full batch waits no longer than this many mean batch times before its earliest deadline."""


class Cutter:
    """Cuts batches for free slots.

    Args:
        queue: what waits.
        slots: what is free.
        pace: what is known of the model's pace.
        keys: the keys of the queue.
        runner: sends batches.
        outcomes: gives requests their outcomes.

    Attributes:
        counts: batches that were cut.
    """

    __slots__ = (
        "_eager",
        "_keys",
        "_limits",
        "_linger_tuner",
        "_outcomes",
        "_pace",
        "_queue",
        "_runner",
        "_slots",
        "counts",
    )

    def __init__(
        self,
        *,
        queue: Queue,
        slots: Slots,
        pace: ModelPace,
        keys: Keys,
        runner: BatchRunner,
        outcomes: BatchListener,
    ) -> None:
        self._queue = queue
        self._slots = slots
        self._pace = pace
        self._keys = keys
        self._runner = runner
        self._outcomes = outcomes
        self._limits = self._eager = Limits(size=1, bytes=1)
        self._linger_tuner: LingerTuner | None = None
        self.counts = Counts()

    @property
    def wait(self) -> float:
        """Seconds that a part-full batch waits at most now."""
        return self._choosing().wait

    def apply(self, batching: Batching) -> None:
        """Obey another policy from the next cut on."""
        wait = batching.batch_wait_timeout_ms / 1000
        self._limits = Limits(size=batching.max_batch_size, bytes=batching.max_batch_bytes, wait=wait)
        self._eager = dataclasses.replace(self._limits, wait=0.0)
        self._linger_tuner = LingerTuner() if wait > 0.0 else None

    def fill(self, now: float) -> float | None:
        """Cut batches while slots are free; returns when to ask again, where what waits may wait."""
        queue, slots = self._queue, self._slots
        while queue.items and slots.free:
            choice = queue.choose(now, self._choosing())
            if choice.key is None:
                if self._linger_tuner is not None:
                    self._linger_tuner.held(now)
                return choice.again
            self._cut(now, choice.key)
        return None

    def expire(self, now: float) -> float | None:
        """Answer those in the queue whose time is over; returns when the next one's is.

        A request that is past its deadline while its client still waits goes too, but for the last one: a
        slot that falls free will run that.
        """
        queue = self._queue
        while (work := queue.first()) is not None and work.deadline <= now:
            if work.expires > now and queue.requests == 1:
                return work.expires
            self._outcomes.settle(work, errors.expired(now - work.arrived))
        return None if work is None else work.deadline

    def _choosing(self) -> Limits:
        if self._linger_tuner is None or not self._linger_tuner.waits:
            return self._eager
        return dataclasses.replace(self._limits, service=WAIT_MARGIN * self._pace.throughput.seconds)

    def _cut(self, now: float, key: Key) -> None:
        """Send the next batch of a key, without those at its head that would be late."""
        queue, pace, cls = self._queue, self._pace, key.cls
        latency_model = pace.latency_model
        size = pace.size(now, cls)
        if key.faults is not None and key.faults.limit < size:
            size = key.faults.limit
        limits = self._limits if size == self._limits.size else dataclasses.replace(self._limits, size=size)
        if (head := queue.lines[key].first()) is not None and head.expires <= now:
            self._outcomes.settle(head, errors.expired(now - head.arrived))
            return
        dropped: list[QueuedRequest] = []
        before, waited = queue.items, queue.lines[key].items
        parts = queue.cut(
            key, limits, lambda items: now + (latency_model.predict(now, cls, items) or 0.0), dropped
        )
        items = before - queue.items
        for work in dropped:
            items -= work.size - work.taken
            service = latency_model.predict(now, cls, size) or 0.0
            self._outcomes.settle(work, errors.dropped(now - work.arrived, service))
        if not parts:
            return
        batch = self._runner.start(parts, items, self._limits.size)
        # NB: all that can be noted after the sending is: the model waits for it.
        batch.turn = pace.wait_estimator.begin(now - TIMER_SLACK, cls, items, possible=size, waited=waited)
        if self._linger_tuner is not None:
            self._linger_tuner.cut(now, items)
        self.counts.batches += 1
        self.counts.batch_items += items
        self._keys.forget(queue.lines)
