"""The dispatcher: takes admitted requests, has them cut into batches for free slots, gives each its outcome.

The items of a batch are chosen when a slot falls free, never when a timer fires (late binding): requests
gather while the model is busy. The parts: `cutter` (what the next batch holds), `runner` (batches with the
model), `turns` (when to look), `admission` (which requests enter) and `estimators` (how fast the model is).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any

from penstock_sidecar.admission.controller import MAX_QUEUED_BYTES, AdmissionController
from penstock_sidecar.admission.slots import Slots
from penstock_sidecar.batching.batch import Batch
from penstock_sidecar.batching.cutter import Cutter
from penstock_sidecar.batching.fault_tracker import FaultTracker
from penstock_sidecar.batching.runner import BatchRunner, Begin, Observer, Trace
from penstock_sidecar.batching.streaming import StreamedSends
from penstock_sidecar.batching.turns import MakeTimer, Turns
from penstock_sidecar.estimators.model_pace import ModelPace
from penstock_sidecar.interfaces import Counts, RequestPath, Send
from penstock_sidecar.protocols.base import BatchProtocol
from penstock_sidecar.queue.batch_key import Keys
from penstock_sidecar.queue.deadline_list import earlier
from penstock_sidecar.queue.eviction import may_evict
from penstock_sidecar.queue.queue import Queue
from penstock_sidecar.queue.request import Outcome, QueuedRequest
from penstock_wire.control.report import Fit
from penstock_wire.control.settings import Batching, Settings
from penstock_wire.errors import PenstockError
from penstock_wire.http import Request
from penstock_wire.process import log
from penstock_wire.timers import TIMER_SLACK


class Dispatcher:
    """The `RequestPath` of requests that are batched; a `runner.BatchListener`.

    Args:
        send: sends to the model.
        protocol: joins and splits.
        batching: the initial policy.
        observer: counts runs.
        clock: the monotonic time in seconds.
        unbatched: the path of requests that are not batched; changes are passed on to it.
        on_room: called when `free`, or the queue, may have changed.
        trace: sends in a span for each batch, None if tracing is off.
        streamed: sends batches that may be answered by a stream for several clients, None if none are.
        begin: begins to send without a task, if that is possible; see `runner.BatchRunner`.
        exact_timer: makes a timer for waits of less than the loop's own resolution.
        cancellable: whether the model ends a call of a request's method when its connection is closed.
        max_queued_bytes: maximum bytes of items that wait.

    Attributes:
        admission: decides whether a request enters the queue.
        queue: the queue.
        keys: reads header fields under the policy in effect.
        pace: the model's pace.
        unbatched: the path of requests that are not batched; None if there is none.
        adapts: the time of one batch affects the size of the next.
    """

    def __init__(
        self,
        *,
        send: Send,
        protocol: BatchProtocol,
        batching: Batching,
        observer: Observer,
        clock: Callable[[], float],
        unbatched: RequestPath | None = None,
        on_room: Callable[[], None] = lambda: None,
        trace: Trace | None = None,
        streamed: StreamedSends | None = None,
        begin: Begin | None = None,
        exact_timer: MakeTimer | None = None,
        cancellable: Callable[[Request], bool] = lambda _: False,
        max_queued_bytes: int = MAX_QUEUED_BYTES,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self.unbatched = unbatched
        self._on_room = on_room
        self._isolates = protocol.isolates
        self._batching = batching
        self._slots = Slots()
        self.pace = ModelPace(batching.max_batch_size)
        self.queue = Queue(evicting=may_evict(batching))
        self.keys = Keys(key_fields=protocol.key_fields, batching=batching, used=self.queue.lines)
        self.admission = AdmissionController(self.queue, self._slots, self.pace, batching, max_queued_bytes)
        self._faults = FaultTracker(self.queue, self.pace.latency_model, clock, self.pace.size)
        self._runner = BatchRunner(
            send=send,
            protocol=protocol,
            observer=observer,
            clock=clock,
            slots=self._slots,
            listener=self,
            faults=self._faults,
            trace=trace,
            streamed=streamed,
            begin=begin,
            cancellable=cancellable,
        )
        self._cutter = Cutter(
            queue=self.queue,
            slots=self._slots,
            pace=self.pace,
            runner=self._runner,
            outcomes=self,
        )
        self._turns = Turns(self._look, clock, exact_timer)
        self._idle = asyncio.Event()
        self._quiet = asyncio.Event()
        self.adapts = False
        self._apply(batching)

    # State

    def kept(self) -> int:
        """Return the bytes that are kept of items and of batches made of them, beside requests' bodies."""
        return self.queue.bytes + self._runner.kept()

    @property
    def batching(self) -> Batching:
        """The policy in effect."""
        return self._batching

    @property
    def counts(self) -> Counts:
        return self._cutter.counts

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._turns.alive

    @property
    def slots(self) -> int:
        return self._slots.count

    @property
    def queue_limit(self) -> int:
        return self.admission.room

    @property
    def queued(self) -> int:
        return self.queue.items + (0 if self.unbatched is None else self.unbatched.queued)

    @property
    def ongoing(self) -> int:
        return self._runner.items + (0 if self.unbatched is None else self.unbatched.ongoing)

    @property
    def free(self) -> int:
        """Items that would begin at once."""
        return max(0, self._slots.free * self.batch_limit - self.queue.items)

    @property
    def capacity(self) -> int:
        """Items that would begin at once if nothing were queued or ongoing."""
        return self._slots.count * self.batch_limit

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued or ongoing."""
        return not (self.queue.items or self._runner.items) and not (self.queued or self.ongoing)

    @property
    def oldest_age(self) -> float:
        oldest = self.queue.oldest
        return 0.0 if oldest is None else max(0.0, self._clock() - oldest)

    @property
    def batch_limit(self) -> int:
        """See `RequestPath`: lower than the policy's while bad requests keep coming."""
        return self._faults.limit(self._batching.max_batch_size)

    @property
    def batch_wait(self) -> float:
        return self._cutter.wait

    @property
    def drain_seconds(self) -> float:
        return self.pace.throughput.drain_seconds(self.queue.items, self._slots.count)

    def fits(self) -> dict[str, Fit]:
        return {
            cls: Fit(
                a_ms=line.a * 1e3,
                b_ms=line.b * 1e3,
                n=line.n,
                items=round(line.items, 3),
                spread=round(line.spread, 3),
            )
            for cls, line in self.pace.latency_model.lines(self._clock()).items()
        }

    def lines(self) -> list[dict[str, Any]]:
        now = self._clock()
        return [
            {
                "key": hashlib.sha256(repr(key).encode()).hexdigest()[:12],
                "requests": len(line.by_arrival),
                "items": line.items,
                "bytes": line.bytes,
                "oldestAgeMs": round((now - line.oldest) * 1000),
            }
            for key, line in self.queue.lines.items()
        ]

    # The life of the process

    async def run(self) -> None:
        """Cut batches until cancelled."""
        self._turns.alive = True
        self._turns.schedule()
        try:
            await self._loop.create_future()
        finally:
            self._turns.alive = False

    async def idle(self) -> None:
        while self.queued or self.ongoing:
            if self.unbatched is not None:
                await self.unbatched.idle()
            if self.queue.items or self._runner.items:
                self._idle.clear()
                await self._idle.wait()

    async def quiet(self) -> None:
        while self._slots.busy:
            self._quiet.clear()
            await self._quiet.wait()
        if self.unbatched is not None:
            await self.unbatched.quiet()

    def apply(self, settings: Settings) -> None:
        """See `RequestPath`: from the next cut on."""
        if self.unbatched is not None:
            self.unbatched.apply(settings)
        before, batching = self._batching, settings.batching
        self._apply(batching)
        if (batching.batch_key_headers, batching.priority, batching.fairness) != (
            before.batch_key_headers,
            before.priority,
            before.fairness,
        ):
            self.keys.apply(batching)
            self.queue.rekey(self.keys.rekey, evicting=may_evict(batching))
        self._turns.schedule()

    def pause(self) -> None:
        self._slots.paused = True
        if self.unbatched is not None:
            self.unbatched.pause()

    def resume(self) -> None:
        self._slots.paused = False
        if self.unbatched is not None:
            self.unbatched.resume()
        self._turns.schedule()
        self._on_room()

    def model_changed(self, *, loaded: bool, gone: bool) -> None:
        """See `RequestPath`: how long batches take is learned only from a model that is loaded."""
        self.pace.latency_model.learning = loaded
        if gone:
            self.pace.forget()
        self.admission.size_queue()

    def refuse(self, error: PenstockError | None) -> None:
        self.admission.refusing = error
        if self.unbatched is not None:
            self.unbatched.refuse(error)

    def refuse_queued(self, error: PenstockError) -> int:
        """See `RequestPath`.

        If part of a request has been sent to the model, its error does not claim that it was never executed.
        """
        works = list(self.queue)
        executed = PenstockError(error.reason, error.detail, retry_after=error.retry_after)
        for work in works:
            self.settle(work, executed if work.executed else error)
        self._check_idle()
        return len(works) + (0 if self.unbatched is None else self.unbatched.refuse_queued(error))

    async def abort(self) -> None:
        """See `RequestPath`; the requests of the batches are answered with `model_unreachable`."""
        await self._runner.abort()
        if self.unbatched is not None:
            await self.unbatched.abort()

    # Requests

    def accept(self, work: QueuedRequest) -> None:
        """Accept a request: its `finish` is called once, unless `leave` is called before.

        Raises:
            PenstockError: it was not admitted.
        """
        evicted = self.admission.admit(work)
        if evicted is not None:
            # NB: their errors are sent later: an answer may start the client's next request, if its
            # connection has read it already.
            self._loop.call_soon(self._settle_all, evicted, self.admission.evicted())
        self.queue.add(work)
        self._cutter.arrived(work)
        if not self._turns.scheduled:
            self._turns.schedule()

    def leave(self, work: QueuedRequest) -> None:
        """Withdraw a request of a client that left: no more of it is sent, and an answer is dropped."""
        work.done = True
        if work.executed:
            self._runner.departed()
        if work.queued:
            self.queue.leave(work)
        self._check_idle()

    # What the runner reports

    def settle(self, work: QueuedRequest, outcome: Outcome) -> None:
        if work.done:
            return
        work.done = True
        if work.queued:
            self.queue.leave(work)
        try:
            work.finish(outcome)
        except Exception as error:
            log("answer failed", level="error", error=repr(error), request_id=work.request_id.decode())

    def slot_released(self, batch: Batch) -> None:
        if batch.turn is not None:
            waiting = self.queue.items > 0 and not batch.given_up
            self.pace.wait_estimator.end(batch.turn, waiting=waiting)
        self._cutter.released(self._clock(), batch)
        if not self._slots.busy:
            self._quiet.set()
        items = self.queue.items
        if items >= self.pace.usual and self._turns.alive:
            # A whole batch waits: send it to the model at once, before the answers to clients.
            try:
                self._cutter.fill(self._clock() + TIMER_SLACK)
            except Exception as error:
                log("dispatch failed", level="error", error=repr(error))
        self._check_idle()
        if items:
            # A part-full batch first takes in the requests that have come to the sockets meanwhile.
            self._turns.schedule_after_reading()
        else:
            self._on_room()

    def batch_succeeded(self, work: QueuedRequest, items: int, seconds: float) -> None:
        now = self._clock()
        known = self.pace.succeeded(now, work.key.cls, items, seconds)
        if known and self._batching.max_queued_items is None:
            self.admission.size_queue()

    def isolates(self) -> bool:
        wanted = self._batching.on_batch_error
        return self._isolates if wanted is None else wanted == "Isolate"

    # Inside

    def _apply(self, batching: Batching) -> None:
        self._batching = batching
        objective = batching.latency_objective_ms
        self.pace.apply(
            limit=batching.max_batch_size, objective=None if objective is None else objective / 1000
        )
        self._slots.count = batching.max_concurrent_batches
        self.adapts = objective is not None
        self.admission.apply(batching)
        self._cutter.apply(batching)

    def _settle_all(self, works: list[QueuedRequest], error: PenstockError) -> None:
        for work in works:
            self.settle(work, error)

    def _check_idle(self) -> None:
        if not self.queue.items and not self._runner.items:
            self._idle.set()

    def _look(self) -> float | None:
        """Answer expired requests and fill the free slots; returns when to look again, if ever."""
        now = self._clock() + TIMER_SLACK
        again = self._cutter.fill(now)
        self._turns.ring_exactly(self._cutter.held_until)
        if self._slots.free:
            self.pace.wait_estimator.rest()
        again = earlier(again, self._cutter.expire(now))
        again = earlier(again, self._runner.expire(now))
        self._check_idle()
        self._on_room()
        return again
