"""Cuts batches into free slots: one turn at a time, after arrivals, ended batches, settings and deadlines.

What a batch holds is decided when a slot falls free, never when a timer fires (late binding): a busy model
makes its own batches, an idle one answers at once. All that arrives in one turn of the event loop is there
when its end cuts.

Two guards keep one slow start from locking a healthy model out (L above the deadline → all dropped → no
success → L never falls): samples expire, and a free slot always runs the last one that waits.

Invariants: each accepted request gets exactly one outcome; no exception ends the dispatcher; at most
`maxConcurrentBatches` batches are with the model.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

from penstock_sidecar.admission import errors
from penstock_sidecar.admission.controller import MAX_QUEUED_BYTES, AdmissionController
from penstock_sidecar.batching.fault_tracker import FaultTracker
from penstock_sidecar.batching.runner import BatchRunner, Begin, Observer, Send, Trace
from penstock_sidecar.batching.streaming import StreamedSends
from penstock_sidecar.estimators.concurrency_tuner import ConcurrencyTuner
from penstock_sidecar.estimators.latency_model import LatencyModel
from penstock_sidecar.estimators.linger_tuner import LingerTuner
from penstock_sidecar.estimators.throughput import Throughput
from penstock_sidecar.estimators.wait_estimator import SlotCycle, WaitEstimator
from penstock_sidecar.interfaces import RequestPath
from penstock_sidecar.protocols.base import BatchProtocol
from penstock_sidecar.queue.batch_key import Keys, RequestFields
from penstock_sidecar.queue.batch_limits import Limits
from penstock_sidecar.queue.deadline_list import earlier
from penstock_sidecar.queue.eviction import may_evict
from penstock_sidecar.queue.queue import Queue
from penstock_sidecar.queue.request import Key, Outcome, QueuedRequest
from penstock_wire.control.report import Fit
from penstock_wire.control.settings import Batching
from penstock_wire.errors import PenstockError
from penstock_wire.process import log

TIMER_SLACK = 0.0005
"""uvloop's timers have a resolution of 1 ms and may fire this much early."""
WAIT_MARGIN = 2.0
"""A part-full batch waits no longer than this many mean batch times before its earliest deadline."""
SERVICE_SHARE = 1 / 1.5
"""Share of the objective that a batch may take: one that arrives waits half a batch's time on average."""


@dataclasses.dataclass(slots=True)
class Counts:
    """Counts since the start."""

    batches: int = 0
    batch_items: int = 0


class Dispatcher:
    """Takes accepted requests, gives each its outcome.

    Args:
        send: sends to the model.
        protocol: joins and splits.
        batching: the policy to begin with.
        observer: is told of runs.
        clock: the monotonic time in seconds.
        passthrough: sends what is not batched; what is said to the dispatcher is said to it, too.
        trace: sends in a span of each batch, None where nothing is traced.
        streamed: sends what may be answered by a stream for several clients, None where nothing is.
        begin: begins to send without a task, where that is possible; see `runner.BatchRunner`.

    `slots` batches may be with the model at once now; `alive` while it runs; `refusing` is the error of new
    requests while they are refused; `adapts` while what one batch took decides what the next one holds;
    `room` items may wait; `rejections` are errors that hold for the next requests too; `keys` reads header
    fields under the policy in effect.
    """

    def __init__(
        self,
        *,
        send: Send,
        protocol: BatchProtocol,
        batching: Batching,
        observer: Observer,
        clock: Callable[[], float],
        passthrough: RequestPath | None = None,
        trace: Trace | None = None,
        streamed: StreamedSends | None = None,
        begin: Begin | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._passthrough = passthrough
        self._isolates = protocol.isolates
        self._queue = Queue(evicting=may_evict(batching))
        self._latency_model = LatencyModel()
        self._wait_estimator = WaitEstimator(self._latency_model)
        self._faults = FaultTracker(self._queue, self._latency_model, clock, self._size)
        self._runs = BatchRunner(
            send=send,
            protocol=protocol,
            observer=observer,
            clock=clock,
            flow=self,
            faults=self._faults,
            trace=trace,
            streamed=streamed,
            begin=begin,
        )
        self.throughput = Throughput()
        self._admission = AdmissionController(self._queue, self._wait_estimator, self.throughput)
        self.rejections = self._admission.rejections
        self._late = errors.late_on_arrival()
        self._auto: ConcurrencyTuner | None = None
        self._idle = asyncio.Event()
        self._quiet = asyncio.Event()
        self._scheduled = False
        self._reads_on = False
        self._paused = False
        self._drawn = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        # What a batch takes at most, of the classes that ran lately, and how many items it has at most.
        self._slow = 0.0
        # Items that one slot answers in a second, of the fastest class that ran lately; 0 = none did.
        self._rate = 0.0
        self._usual = batching.max_batch_size
        self.slots = 1
        self.adapts = False
        self.refusing: PenstockError | None = None
        self.counts = Counts()
        self.alive = False
        self.keys = Keys(key_fields=protocol.key_fields, batching=batching)
        self._set(batching)

    # What others see

    @property
    def batching(self) -> Batching:
        """The policy in effect."""
        return self._batching

    @property
    def queue(self) -> Queue:
        """The queue, to look at."""
        return self._queue

    @property
    def passthrough(self) -> RequestPath | None:
        """What is not batched."""
        return self._passthrough

    @property
    def queued(self) -> int:
        """Items that wait."""
        return self._queue.items + (0 if self._passthrough is None else self._passthrough.queued)

    @property
    def ongoing(self) -> int:
        """Items with the model."""
        return self._runs.items + (0 if self._passthrough is None else self._passthrough.ongoing)

    @property
    def is_idle(self) -> bool:
        """Nothing waits and nothing is with the model."""
        return not (self._queue.items or self._runs.items) and not (self.queued or self.ongoing)

    @property
    def oldest_age(self) -> float:
        """Seconds that the oldest queued request has waited; 0 where none waits."""
        oldest = self._queue.oldest
        return 0.0 if oldest is None else max(0.0, self._clock() - oldest)

    @property
    def batch_limit(self) -> int:
        """Items of a batch at most: fewer than the policy's where bad requests keep coming."""
        return self._faults.limit(self._batching.max_batch_size)

    @property
    def drain_seconds(self) -> float:
        """Seconds until all that waits is through, at the pace of the latest batches."""
        return self.throughput.drain_seconds(self._queue.items, self.slots)

    def fits(self) -> dict[str, Fit]:
        """The service curve of each class, for reports and metrics."""
        found = self._latency_model.fits(self._clock())
        return {cls: Fit(a_ms=a * 1e3, b_ms=b * 1e3, n=n) for cls, (a, b, n) in found.items()}

    def now(self) -> float:
        """The time that arrivals and deadlines are told in."""
        return self._clock()

    def until(self, arrived: float, timeout_ms: int | None) -> tuple[float, float]:
        """When the answer to a request is of no more use, and when its client waits no longer.

        Args:
            arrived: when it arrived.
            timeout_ms: the time that its client gave it, None for none.
        """
        seconds = self._default_timeout
        if timeout_ms is not None and timeout_ms / 1000 < seconds:
            seconds = timeout_ms / 1000
        objective = self._objective
        return arrived + (
            seconds if objective is None or seconds < objective else objective
        ), arrived + seconds

    async def idle(self) -> None:
        """Wait until nothing is queued and nothing is with the model."""
        while self.queued or self.ongoing:
            if self._passthrough is not None:
                await self._passthrough.idle()
            if self._queue.items or self._runs.items:
                self._idle.clear()
                await self._idle.wait()

    async def quiet(self) -> None:
        """Wait until no batch is with the model."""
        while self._runs.busy:
            self._quiet.clear()
            await self._quiet.wait()
        if self._passthrough is not None:
            await self._passthrough.quiet()

    # What others do

    def apply(self, batching: Batching) -> None:
        """Obey another policy from the next cut on; what is with the model is not disturbed."""
        before = self._batching
        self._set(batching)
        if (batching.batch_key_headers, batching.priority, batching.fairness) != (
            before.batch_key_headers,
            before.priority,
            before.fairness,
        ):
            self.keys.apply(batching)
            self._queue.rekey(self.keys.rekey, evicting=may_evict(batching))
        self._schedule()

    def pause(self) -> None:
        """Cut no further batch; what comes waits, what is with the model ends."""
        self._paused = True
        self.rejections.clear()
        if self._passthrough is not None:
            self._passthrough.pause()

    def resume(self) -> None:
        """Cut batches again."""
        self._paused = False
        if self._passthrough is not None:
            self._passthrough.resume()
        self._schedule()

    def model_changed(self, *, loaded: bool, gone: bool) -> None:
        """Learn how long batches take only from a model that is loaded, and forget it with the process."""
        self.rejections.clear()
        self._latency_model.learning = loaded
        if gone:
            self._latency_model.forget()
            self._rate = 0.0
            self._set_room()

    def check_head(
        self, target: str, told: RequestFields, arrived: float, deadline: float, expires: float
    ) -> PenstockError | None:
        """What `accept` would say of a request whatever its body holds, for little; None if it depends.

        Args:
            target: path and query.
            told: what its header fields say.
            arrived: when it arrived.
            deadline: until when its answer is of use.
            expires: until when its client waits.
        """
        if self.refusing is not None:
            return self.refusing
        if expires <= arrived:
            return self._late
        return self._admission.check_head(target, told, arrived, deadline, max(0, self._free()))

    def queue_full(self, size: int) -> PenstockError:
        """What a request of so many items hears for which there is no room; the same object to all."""
        return self._admission.queue_full(size)

    def accept(self, work: QueuedRequest) -> None:
        """Accept a request: its `finish` is called once, unless `leave` is called before.

        Raises:
            PenstockError: it was not accepted.
        """
        if self.refusing is not None:
            # NB: raised as it is, it would keep the frames of every request that it refused.
            raise self.refusing.with_traceback(None)
        if work.expires <= work.arrived:
            raise self._late.with_traceback(None)
        queue = self._queue
        queued = queue.items
        if queued or self._paused or self._runs.busy >= self.slots:
            after = queued + work.size
            # NB: what most requests are let in by, in one look; `_check_room` says it in full.
            if (
                after > self.room
                or queue.bytes + work.bytes_left > MAX_QUEUED_BYTES
                or work.arrived + 2.0 * (after // self._usual + 2) * self._slow >= work.deadline
            ):
                self._check_room(work)
        queue.add(work)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def leave(self, work: QueuedRequest) -> None:
        """The client went away: nothing of the request is sent any more, and an answer is dropped."""
        work.done = True
        if work.queued:
            self.rejections.clear()
            self._queue.leave(work)
        self._check_idle()

    def refuse(self, error: PenstockError | None) -> None:
        """Refuse new requests with an error, or take them again (None)."""
        self.refusing = error
        if self._passthrough is not None:
            self._passthrough.refuse(error)

    def refuse_queued(self, error: PenstockError) -> int:
        """Answer all that is queued with an error; returns how many requests that were.

        A request of which a part is with the model already is not surely unexecuted, and is told so.
        """
        works = list(self._queue)
        executed = PenstockError(error.reason, error.detail, retry_after=error.retry_after)
        for work in works:
            self.settle(work, executed if work.executed else error)
        self._check_idle()
        return len(works) + (0 if self._passthrough is None else self._passthrough.refuse_queued(error))

    async def run(self) -> None:
        """Cut batches until cancelled."""
        self.alive = True
        self._schedule()
        try:
            await self._loop.create_future()
        finally:
            self.alive = False

    async def abort(self) -> None:
        """End all runs at once; what they held is answered as unreachable."""
        await self._runs.abort()
        if self._passthrough is not None:
            await self._passthrough.abort()

    # What the runs tell (runs.Flow)

    def settle(self, work: QueuedRequest, outcome: Outcome) -> None:
        """See `runner.BatchListener`."""
        if work.done:
            return
        work.done = True
        if work.queued:
            self._queue.leave(work)
            self.rejections.clear()
        try:
            work.finish(outcome)
        except Exception as error:
            log("answer failed", level="error", error=repr(error), request_id=work.request_id.decode())

    def slot_released(self, turn: SlotCycle | None) -> None:
        """See `runner.BatchListener`."""
        self.rejections.clear()
        if turn is not None:
            self._wait_estimator.end(turn, waiting=self._queue.items > 0)
        if not self._runs.busy:
            self._quiet.set()
        items = self._queue.items
        if items >= self._usual and self.alive:
            # A whole batch waits: the model has it at once, before what it answered goes out.
            try:
                self._fill(self._clock() + TIMER_SLACK)
            except Exception as error:
                log("dispatch failed", level="error", error=repr(error))
        self._check_idle()
        if items:
            # A part-full one first takes in what has come to the sockets meanwhile.
            self._reads_on = True
            self._schedule()

    def batch_succeeded(self, work: QueuedRequest, items: int, seconds: float, *, again: bool) -> None:
        """See `runner.BatchListener`."""
        now, cls = self._clock(), work.key.cls
        self.rejections.clear()
        self.throughput.observe(items, seconds)
        self._latency_model.observe(now, cls, items, seconds)
        self._usual = self._size(now, cls)
        service = self._latency_model.predict(now, cls, self._usual)
        slow = (service or 0.0) + self._wait_estimator.extra
        self._slow = max(0.9 * self._slow, slow)
        if service is not None and slow > 0.0:
            self._rate = max(0.9 * self._rate, self._usual / slow)
            if self._batching.max_queued_items is None:
                self._set_room()
        if self._auto is not None and not again:
            self._tell(self._auto, now, items, seconds, ok=True)

    def overloaded(self, work: QueuedRequest, items: int, seconds: float, *, timeout: bool) -> None:
        """See `runner.BatchListener`."""
        if self._auto is None:
            return
        now = self._clock()
        # Who gives the model less time than it takes says nothing of how many batches it bears.
        if not timeout or seconds >= (self._latency_model.predict(now, work.key.cls, items) or 0.0):
            self._tell(self._auto, now, items, seconds, ok=False)

    def isolates(self) -> bool:
        """See `runner.BatchListener`."""
        wanted = self._batching.on_batch_error
        return self._isolates if wanted is None else wanted == "Isolate"

    # Inside

    def _set(self, batching: Batching) -> None:
        self._batching = batching
        self.rejections.clear()
        self._default_timeout = batching.default_timeout_ms / 1000
        objective = batching.latency_objective_ms
        self._objective = None if objective is None else objective / 1000
        self._service = None if self._objective is None else self._objective * SERVICE_SHARE
        slots = batching.max_concurrent_batches
        if slots != "auto":
            self._auto = None
        elif self._auto is None:
            self._auto = ConcurrencyTuner(start=self.slots, max_seconds=self._service)
        else:
            self._auto.max_seconds = self._service
        self._admission.batch, self._admission.status = batching.max_batch_size, batching.overflow_status
        self._allow(self.slots if slots == "auto" else slots)
        self.adapts = self._auto is not None or self._objective is not None
        self._usual = min(self._usual, batching.max_batch_size)
        wait = batching.batch_wait_timeout_ms / 1000
        self._limits = Limits(size=batching.max_batch_size, bytes=batching.max_batch_bytes, wait=wait)
        self._eager = dataclasses.replace(self._limits, wait=0.0)
        self._linger_tuner = LingerTuner() if wait > 0.0 else None

    def _tell(self, auto: ConcurrencyTuner, now: float, items: int, seconds: float, *, ok: bool) -> None:
        """A batch has ended."""
        self._allow(auto.ended(now, items, seconds, pressed=self._queue.items > 0, ok=ok))

    def _allow(self, slots: int) -> None:
        """So many batches at once, and the queue that goes with it, from now on."""
        self.slots = self._admission.slots = slots
        self._set_room()
        self.rejections.clear()

    def _set_room(self) -> None:
        seconds = self._default_timeout if self._objective is None else self._objective
        self.room = self._admission.room = self._batching.queue_limit(self.slots, self._rate * seconds)

    def _free(self) -> int:
        return 0 if self._paused else self.slots - self._runs.busy

    def _check_room(self, work: QueuedRequest) -> None:
        admission, queued, free = self._admission, self._queue.items, max(0, self._free())
        full = admission.needs_eviction(work, free)
        # Nearly all deadlines are far beyond twice the time that the queue takes: they cost no prediction.
        batches = (queued + work.size) // self._usual + 2
        if work.arrived + 2.0 * batches * self._slow >= work.deadline and (queued or not free):
            size = self._size(work.arrived, work.key.cls)
            if not self._paused:
                admission.check_deadline(work, size, free)
        if full:
            # NB: they are told later: one's next request, which its connection may have read, comes then.
            self._loop.call_soon(self._give_way, admission.make_room(work, free), admission.evicted())

    def _give_way(self, works: list[QueuedRequest], error: PenstockError) -> None:
        for work in works:
            self.settle(work, error)

    def _size(self, now: float, cls: str) -> int:
        """Items of a batch at most: those of the policy, or fewer where that keeps the objective."""
        limit = self._batching.max_batch_size
        objective, service = self._objective, self._service
        if objective is None or service is None:
            return limit
        return self._latency_model.largest(now, cls, limit, service, objective)

    def _check_idle(self) -> None:
        if not self._queue.items and not self._runs.items:
            self._idle.set()

    # A turn

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = self._reads_on
        if self._reads_on:
            # NB: what is called soon from here is called after the loop has read what is there to be read.
            self._reads_on = False
            self._loop.call_soon(self._turn)
            return
        if not self.alive:
            return
        try:
            again = self._look()
        except Exception as error:
            log("dispatch failed", level="error", error=repr(error))
            again = self._clock() + 1.0
        if again is not None and (self._timer is None or again < self._timer_at):
            if self._timer is not None:
                self._timer.cancel()
            # NB: not `call_at`: uvloop's own time is cached and in whole milliseconds, so clocks may differ.
            self._timer_at = again
            self._timer = self._loop.call_later(max(0.0, again - self._clock()), self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._schedule()

    def _look(self) -> float | None:
        """Answer what expired, fill the free slots; returns when to look again, if ever."""
        now = self._clock() + TIMER_SLACK
        again = self._fill(now)
        if self._free() > 0:
            self._wait_estimator.rest()
        again = earlier(again, self._expire(now))
        again = earlier(again, self._runs.expire(now))
        self._check_idle()
        if not self._drawn and self._queue.items >= self._usual and self._free() <= 0:
            self._drawn = True  # once a batch, whatever becomes of it
            # NB: with an objective the size changes with each batch: what is drawn up is seldom what is cut.
            if self._runs.drafts and self._objective is None:
                self._runs.prepare(self._queue.prepare_next(self._usual, self._limits.bytes))
        return again

    def _fill(self, now: float) -> float | None:
        """Cut batches while slots are free; returns when to ask again, where what waits may wait."""
        queue = self._queue
        while queue.items and self._free() > 0:
            choice = queue.choose(now, self._choosing())
            if choice.key is None:
                if self._linger_tuner is not None:
                    self._linger_tuner.held(now)
                return choice.again
            self._cut(now, choice.key)
        return None

    def _choosing(self) -> Limits:
        if self._linger_tuner is None or not self._linger_tuner.waits:
            return self._eager
        return dataclasses.replace(self._limits, service=WAIT_MARGIN * self.throughput.seconds)

    def _cut(self, now: float, key: Key) -> None:
        """Send the next batch of a line, without those at its head that would be late."""
        queue, latency_model, cls = self._queue, self._latency_model, key.cls
        size = self._size(now, cls)
        if key.faults is not None and key.faults.limit < size:
            size = key.faults.limit
        limits = self._limits if size == self._limits.size else dataclasses.replace(self._limits, size=size)
        if (head := queue.lines[key].first()) is not None and head.expires <= now:
            self.settle(head, errors.expired(now - head.arrived))
            return
        self.rejections.clear()
        self._drawn = False
        dropped: list[QueuedRequest] = []
        before, waited, prepared = queue.items, queue.lines[key].items, queue.prepared
        parts = queue.cut(
            key, limits, lambda items: now + (latency_model.predict(now, cls, items) or 0.0), dropped
        )
        items = before - queue.items
        for work in dropped:
            items -= work.size - work.taken
            service = latency_model.predict(now, cls, size) or 0.0
            self.settle(work, errors.dropped(now - work.arrived, service))
        if not parts:
            return
        drawn = prepared if prepared is not None and parts is prepared.parts else None
        batch = self._runs.start(parts, items, self._limits.size, drawn)
        # NB: all that can be noted after the sending is: the model waits for it.
        batch.turn = self._wait_estimator.begin(now - TIMER_SLACK, cls, items, possible=size, waited=waited)
        if self._linger_tuner is not None:
            self._linger_tuner.cut(now, items)
        self.counts.batches += 1
        self.counts.batch_items += items
        self.keys.forget(queue.lines)

    def _expire(self, now: float) -> float | None:
        """Answer those in the queue whose time is over; returns when the next one's is.

        What is past its deadline while its client still waits goes too, but for the last one: a slot that
        falls free will run that.
        """
        queue = self._queue
        while (work := queue.first()) is not None and work.deadline <= now:
            if work.expires > now and queue.requests == 1:
                return work.expires
            self.settle(work, errors.expired(now - work.arrived))
        return None if work is None else work.deadline
