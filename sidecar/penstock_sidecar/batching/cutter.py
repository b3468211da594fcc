"""Cuts batches from the queue while slots are free, without requests that expired.

A batch is cut at once, unless the last free slot is held for callers who are about to ask again
or part-full batches wait (`estimators.hold_policy`).
"""

from __future__ import annotations

import dataclasses
import math

from msgspec import UnsetType

from penstock_sidecar.admission import errors
from penstock_sidecar.admission.slots import Slots
from penstock_sidecar.batching.batch import Batch
from penstock_sidecar.batching.runner import BatchListener, BatchRunner
from penstock_sidecar.estimators.hold_policy import BOUND, HoldPolicy
from penstock_sidecar.estimators.model_pace import ModelPace
from penstock_sidecar.interfaces import Counts
from penstock_sidecar.queue.batch_limits import REACH, Limits, choose_with_wait, deadline_margin, fills
from penstock_sidecar.queue.key import BatchKey
from penstock_sidecar.queue.queue import Queue
from penstock_sidecar.queue.request import QueuedRequest, work_of
from penstock_wire.control.settings import Batching
from penstock_wire.timers import TIMER_SLACK

WAIT_MARGIN = 2.0
"""Batch times before its earliest deadline at which a part-full batch stops waiting."""


class Cutter:
    """Cuts batches for free slots.

    Args:
        queue: the queue.
        slots: the slots.
        pace: the model's pace.
        runner: sends batches.
        outcomes: gives requests their outcomes.

    Attributes:
        counts: batches that were cut.
        held_until: until when the last free slot is held; 0 if it is not.
    """

    __slots__ = (
        "_hold_policy",
        "_left",
        "_limits",
        "_outcomes",
        "_pace",
        "_queue",
        "_runner",
        "_slots",
        "counts",
        "held_until",
    )

    def __init__(
        self,
        *,
        queue: Queue,
        slots: Slots,
        pace: ModelPace,
        runner: BatchRunner,
        outcomes: BatchListener,
    ) -> None:
        self._queue = queue
        self._slots = slots
        self._pace = pace
        self._runner = runner
        self._outcomes = outcomes
        self._limits = Limits(size=1, bytes=1)
        # None if no slot is held and no batch waits.
        self._hold_policy: HoldPolicy | None = HoldPolicy()
        # Items that the last cut left in the queue, less those that have expired since.
        self._left = 0
        self.counts = Counts()
        self.held_until = 0.0

    @property
    def wait(self) -> float:
        """The present maximum wait of a part-full batch, in seconds."""
        policy = self._hold_policy
        if policy is None:
            return 0.0
        hold = BOUND * self._pace.throughput.seconds
        if policy.wait is None:
            return hold
        return policy.wait if policy.waits else min(hold, policy.wait)

    def apply(self, batching: Batching) -> None:
        """Use another policy from the next cut on."""
        timeout = batching.batch_wait_timeout_ms
        wait = None if isinstance(timeout, UnsetType) else timeout / 1000
        if wait == 0.0:
            self._hold_policy = None
        elif self._hold_policy is None or self._hold_policy.wait != wait:
            self._hold_policy = HoldPolicy(wait)
        cost = batching.max_batch_cost
        self._limits = Limits(
            size=batching.max_batch_size,
            bytes=batching.max_batch_bytes,
            cost=math.inf if isinstance(cost, UnsetType) else cost,
        )

    def arrived(self, work: QueuedRequest) -> None:
        """Record that a request was accepted."""
        if self._hold_policy is not None:
            self._hold_policy.arrived(work.arrived, work.key)
            self._hold_policy.joined(work.arrived, first=self._queue.requests == 1)

    def released(self, now: float, batch: Batch) -> None:
        """Record that a batch has left the model: the callers of the requests it completed are answered."""
        if batch.merged and not self._queue.items:
            self.counts.saved_calls += 1
        policy, parts = self._hold_policy, batch.parts
        if policy is None or not parts or batch.given_up:
            return
        key = parts[0].work.key
        if batch.items >= batch.limit and self._queue.items:
            policy.crowded(key)
            return
        requests = len(parts) - 1 if parts[-1].work.queued else len(parts)
        seconds = self._pace.latency_model.middle(
            now, key.cls, batch.items if batch.turn is None else batch.turn.work
        )
        if seconds is not None and requests and not (key.lone or key.large):
            policy.answered(now, key, requests, seconds)

    def fill(self, now: float) -> float | None:
        """Cut batches while slots are free; returns when to call again, if part-full batches wait.

        If the last free slot is held, `held_until` is when to call again.
        """
        queue, slots, policy = self._queue, self._slots, self._hold_policy
        self.held_until = 0.0
        while queue.items and slots.free and (key := queue.choose(now)) is not None:
            if policy is not None:
                if policy.wait and policy.waits:
                    choice = choose_with_wait(
                        queue.lines,
                        key,
                        self._limits,
                        now,
                        wait=policy.wait,
                        quiet=policy.quiet,
                        service=WAIT_MARGIN * self._pace.throughput.seconds,
                    )
                    if choice.key is None:
                        return choice.again
                    key = choice.key
                    policy.waited(now, queue.lines[key].requests)
                if self._holds(policy, now - TIMER_SLACK, key):
                    return None
            self._cut(now, key)
        if policy is not None and not queue.items:
            policy.forget_hold()
        return None

    def expire(self, now: float) -> float | None:
        """Answer expired requests in the queue; returns when the next one expires.

        A request past its deadline is answered even if its client still waits, except for the last one in
        the queue: the next free slot will run it.
        """
        queue = self._queue
        while (work := queue.first()) is not None and work.deadline <= now:
            if work.expires > now and queue.requests == 1:
                return work.expires
            self._left -= work.size - work.taken
            self._outcomes.settle(work, errors.expired(now - work.arrived))
        return None if work is None else work.deadline

    def _holds(self, policy: HoldPolicy, now: float, key: BatchKey) -> bool:
        """Whether the last free slot is held for callers who are about to come back; notes until when."""
        out = policy.out(key)
        queue, slots = self._queue, self._slots
        if not out or slots.free > 1 or len(queue.lines) > 1:
            return False
        limits, line = self._cut_limits(now, key), queue.lines[key]
        if fills(line, limits):
            return False
        requests, items, oldest = line.requests, line.items, line.oldest
        each = items / requests
        model = self._pace.latency_model
        # Work is in items of the usual cost, as these count in `fills`.
        most = min(float(limits.size), limits.work)
        then = min(most, round(items + out * each))
        alone, all_of_them = model.middle(now, key.cls, items), model.middle(now, key.cls, then)
        if alone is None or all_of_them is None:
            return False
        estimator = self._pace.wait_estimator
        latest = line.deadline - deadline_margin(line, WAIT_MARGIN * all_of_them)
        if policy.wait is not None:
            latest = min(latest, oldest + policy.wait)
        until = policy.until(
            now,
            key,
            requests=requests,
            room=(most - items) / each,
            saved=min(alone + max(0.0, estimator.extra), estimator.next_release - now),
            bound=BOUND * all_of_them,
            latest=latest,
        )
        if until <= now:
            return False
        self.held_until = until
        return True

    def _cut_limits(self, now: float, key: BatchKey) -> Limits:
        """The limits of the next batch of a key."""
        pace, cls = self._pace, key.cls
        formula = pace.latency_model.formula(cls)
        size = pace.size(now, cls) if formula is None else self._limits.size
        if key.faults is not None and key.faults.limit < size:
            size = key.faults.limit
        if formula is not None:
            return dataclasses.replace(
                self._limits,
                size=size,
                formula=formula,
                work=pace.work(now, cls),
                reach=REACH * pace.throughput.seconds,
            )
        return self._limits if size == self._limits.size else dataclasses.replace(self._limits, size=size)

    def _cut(self, now: float, key: BatchKey) -> None:
        """Send the next batch of a key, and drop requests at its head that would be late."""
        queue, pace, cls = self._queue, self._pace, key.cls
        latency_model = pace.latency_model
        limits = self._cut_limits(now, key)
        size, formula = limits.size, limits.formula
        if formula is None and (trial := latency_model.trial(cls)) is not None:
            reach = REACH * pace.throughput.seconds
            limits = dataclasses.replace(limits, formula=trial, reach=reach)
        if (head := queue.lines[key].first()) is not None and head.expires <= now:
            self._left -= head.size - head.taken
            self._outcomes.settle(head, errors.expired(now - head.arrived))
            return
        dropped: list[QueuedRequest] = []
        before, waited = queue.items, queue.lines[key].items
        parts = queue.cut(
            key, limits, lambda work: now + (latency_model.predict(now, cls, work) or 0.0), dropped
        )
        items = before - queue.items
        for work in dropped:
            items -= work.size - work.taken
            service = latency_model.predict(now, cls, size) or 0.0
            self._outcomes.settle(work, errors.dropped(now - work.arrived, service))
        if not parts:
            self._left -= before - queue.items
            return
        came, self._left = max(0, before - self._left), queue.items
        batch = self._runner.start(parts, items, self._limits.size)
        # NB: all bookkeeping that can follow the sending is done here, since the model waits for the batch.
        amount: float | None = None
        if formula is not None:
            size = pace.size(now, cls)
            amount = work_of(parts, items, formula)
        batch.turn = pace.wait_estimator.begin(
            now - TIMER_SLACK, cls, items, work=amount, possible=size, waited=waited, came=came
        )
        if self._hold_policy is not None:
            self._note(self._hold_policy, now - TIMER_SLACK, key, batch)
        self.counts.batches += 1
        self.counts.batch_items += items

    def _note(self, policy: HoldPolicy, now: float, key: BatchKey, batch: Batch) -> None:
        """Count how long a batch's slot was held, and whether requests came meanwhile."""
        counts, held = self.counts, policy.cut(now, key, len(batch.parts))
        if held > 0.0:
            counts.held_seconds += held
            counts.held_batches += 1
            if policy.merged:
                batch.merged = True
                counts.merged_batches += 1
