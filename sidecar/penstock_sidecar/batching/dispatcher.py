"""The dispatcher: takes admitted requests, has them cut into batches for free slots, gives each its outcome.

The items of a batch are chosen when a slot falls free, never when a timer fires (late binding): requests
gather while the model is busy. The parts: `cutter` (what the next batch holds), `runner` (batches with the
model), `turns` (when to look), `admission` (which requests enter) and `estimators` (how fast the model is).
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from penstock_sidecar.admission.controller import MAX_QUEUED_BYTES, AdmissionController
from penstock_sidecar.admission.errors import expired
from penstock_sidecar.admission.slots import Slots
from penstock_sidecar.batching.batch import Batch
from penstock_sidecar.batching.cutter import Cutter
from penstock_sidecar.batching.fault_tracker import FaultTracker
from penstock_sidecar.batching.reuse import InFlight
from penstock_sidecar.batching.runner import BatchRunner, Begin, Observer, Trace
from penstock_sidecar.batching.streaming import StreamedSends
from penstock_sidecar.batching.turns import MakeTimer, Turns
from penstock_sidecar.estimators.model_pace import ModelPace
from penstock_sidecar.interfaces import Counts, RequestPath, Send
from penstock_sidecar.protocols.base import BatchProtocol
from penstock_sidecar.protocols.item_costs import ItemCosts
from penstock_sidecar.queue.batch_key import Keys
from penstock_sidecar.queue.deadline_list import earlier
from penstock_sidecar.queue.eviction import may_evict
from penstock_sidecar.queue.queue import Queue
from penstock_sidecar.queue.request import Outcome, QueuedRequest, Slice
from penstock_wire.control.report import ByCost, Fit
from penstock_wire.control.settings import Batching, Settings
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.http import Request, Response
from penstock_wire.process import log
from penstock_wire.timers import TIMER_SLACK

_UNANSWERED = (Reason.DEADLINE, Reason.QUEUE_FULL, Reason.MOVED)
"""Ends of one request that say nothing of others that are the same."""


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
        costs: reads what items cost under the policy in effect; None if that is their bytes.
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
        self._batching = batching
        self._slots = Slots()
        self.pace = ModelPace(batching.max_batch_size)
        self.queue = Queue(evicting=may_evict(batching))
        self.keys = Keys(key_fields=True, batching=batching, used=self.queue.lines)
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
        self.costs: ItemCosts | None = None
        self._in_flight = InFlight()
        self._aborted = False
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
        counts = self._cutter.counts
        counts.reused = self._in_flight.reused
        return counts

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
    def work(self) -> float | None:
        """See `RequestPath`."""
        model = self.pace.latency_model
        if not model.by_cost:
            return None
        waiting = sum(
            [model.load(work.key.cls, work.left, work.cost_left, work.longest) for work in self.queue]
        )
        beside = 0 if self.unbatched is None else self.unbatched.queued + self.unbatched.ongoing
        return waiting + self._runner.work(model) + beside

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
        model = self.pace.latency_model
        return {
            cls: Fit(
                a_ms=line.a * 1e3,
                b_ms=line.b * 1e3,
                n=line.n,
                items=round(line.items, 3),
                spread=round(line.spread, 3),
                work=UNSET if (known := model.batches(cls)) is None else known.formula.terms(),
                batch=UNSET
                if known is None
                else ByCost(
                    items=round(known.items, 3),
                    cost=round(known.cost, 3),
                    error=round(known.error, 3),
                    error_by_items=round(known.error_by_items, 3),
                    cap=UNSET if math.isinf(known.formula.cap) else known.formula.cap,
                    limit=UNSET if math.isinf(known.formula.thrifty) else round(known.formula.thrifty, 3),
                ),
            )
            for cls, line in model.lines(self._clock()).items()
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
        executed = PenstockError(error.reason, error.detail, retry_after=error.retry_after)
        refused = 0
        # NB: who followed one of them is queued then, and comes next.
        while works := list(self.queue):
            refused += len(works)
            for work in works:
                self.settle(work, executed if work.executed else error)
        self._check_idle()
        return refused + (0 if self.unbatched is None else self.unbatched.refuse_queued(error))

    async def abort(self) -> None:
        """See `RequestPath`; the requests of the batches are answered with `model_unreachable`."""
        self._aborted = True
        await self._runner.abort()
        if self.unbatched is not None:
            await self.unbatched.abort()

    # Requests

    def arrived(self, work: QueuedRequest) -> None:
        """Count what a request costs, beside the number of its items; before it is accepted."""
        model, counts = self.pace.latency_model, self._cutter.counts
        load = model.load(work.key.cls, work.size, work.cost_left, work.longest)
        counts.work_beyond += load - work.size

    def accept(self, work: QueuedRequest) -> None:
        """Accept a request: its `finish` is called once, unless `leave` is called before.

        Raises:
            PenstockError: it was not admitted.
        """
        reuses = self._batching.reuse == "InFlight" and not (work.key.lone or work.key.streamed)
        if reuses and work.expires > work.arrived and self._in_flight.follow(work, self._most_followers()):
            self._in_flight.reused += 1
            self._turns.schedule()  # it may be the first to expire
            return
        self._enter(work)
        if reuses:
            self._in_flight.lead(work)

    def _enter(self, work: QueuedRequest) -> None:
        """Admit a request to the queue (raises PenstockError)."""
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
        if self._in_flight.runs:
            unwanted = self._in_flight.left(work)
            if unwanted is None:
                return
            work = unwanted
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
        if work.queued:
            self.queue.leave(work)
        if not self._in_flight.runs:
            self._finish(work, outcome)
            return
        heir = self._in_flight.succeed(work) if _unanswered(outcome) else None
        if heir is not None:
            self._finish(work, outcome)
            refused = self._run_after_all(heir, outcome, leads=True)
            if refused is None:
                return
            work, outcome = heir, refused
        followers = self._in_flight.ended(work)
        copies = [_copied(outcome) for _ in followers]
        self._finish(work, outcome)
        for follower, copy in zip(followers, copies, strict=True):
            own = copy or self._run_after_all(follower, outcome)
            if own is not None:
                self._finish(follower, own)

    def _finish(self, work: QueuedRequest, outcome: Outcome) -> None:
        if work.done:
            return  # its client left meanwhile
        work.done = True
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

    def batch_succeeded(self, parts: Sequence[Slice], items: int, seconds: float) -> None:
        now, cost, longest = self._clock(), 0, 0
        for part in parts:
            cost += part.cost
            if part.longest > longest:
                longest = part.longest
        cls, model = parts[0].work.key.cls, self.pace.latency_model
        if model.by_cost and self._batching.fairness is not None:
            self.queue.measured(parts, model.beyond(cls, items, seconds, cost, longest))
        known = self.pace.succeeded(now, cls, items, seconds, cost, longest)
        if known and self._batching.max_queued_items is None:
            self.admission.size_queue()

    def isolates(self) -> bool:
        return self._batching.on_batch_error != "Fail"

    # Inside

    def _apply(self, batching: Batching) -> None:
        if batching.cost != self._batching.cost:
            self.pace.forget()  # what was learned is by other costs
        self._batching = batching
        self.costs = None if isinstance(batching.cost, UnsetType) else ItemCosts(batching.cost.path)
        objective = batching.latency_objective_ms
        self.pace.apply(
            limit=batching.max_batch_size,
            objective=None if objective is None else objective / 1000,
            slots=batching.max_concurrent_batches,
        )
        self._slots.count = batching.max_concurrent_batches
        self.adapts = objective is not None
        self.admission.apply(batching)
        self._cutter.apply(batching)

    def _run_after_all(self, work: QueuedRequest, outcome: Outcome, *, leads: bool = False) -> Outcome | None:
        """Queue a request that followed one without a success, or let it follow the next; or return its end.

        Args:
            work: the request.
            outcome: the end of the one that it followed.
            leads: others follow it already.
        """
        now = self._clock()
        if work.done:
            return None
        if self._aborted:
            return outcome
        if work.expires <= now:
            return expired(now - work.arrived)
        self.keys.rekey(work)  # the policy, or the queue of its sender, may be another by now
        shares = not leads and _unanswered(outcome)
        if shares and self._in_flight.follow(work, self._most_followers()):
            return None
        work.arrived = now  # the queue is in the order of arrival
        try:
            self._enter(work)
        except PenstockError as error:
            return error
        if shares:
            self._in_flight.lead(work)
        return None

    def _most_followers(self) -> int:
        return max(self.admission.room, self.batch_limit)

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
        if self._in_flight.runs:
            while (follower := self._in_flight.expired(now)) is not None:
                run = self._in_flight.runs[follower]
                self.settle(follower, expired(now - follower.arrived))
                if run.deserted and not run.followers:
                    self.leave(run.leader)  # nobody waits for it any more
            again = earlier(again, self._in_flight.due)
        self._check_idle()
        self._on_room()
        return again


def _unanswered(outcome: Outcome) -> bool:
    return isinstance(outcome, PenstockError) and outcome.reason in _UNANSWERED


def _copied(outcome: Outcome) -> Response | None:
    """The answer for another client; None if it is not shared."""
    if not isinstance(outcome, Response) or outcome.stream is not None or not 200 <= outcome.status < 300:
        return None
    if outcome.status == 206:
        return None  # a part of the answer
    fields = tuple([field for field in outcome.headers if field[0] != b"set-cookie"])
    return Response(outcome.status, fields, outcome.body)
