"""Cuts batches into free slots: one coroutine, woken by arrivals, ended batches, settings and deadlines.

What a batch holds is decided when a slot falls free, never when a timer fires (late binding): a busy model
makes its own batches, an idle one answers at once.

Invariants: each accepted request gets exactly one outcome; no exception ends the dispatcher; at most
`maxConcurrentBatches` batches are with the model; counters fall in `finally`.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from penstock_sidecar import keys
from penstock_sidecar.exchange import Batchable, compose, distribute, failure, from_model, rejoin
from penstock_sidecar.pace import Pace
from penstock_sidecar.queue import DeadlineHeap, Limits, Queue
from penstock_sidecar.work import Outcome, Part, Work
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import SERVER_TIMING
from penstock_wire.http import Request, Response, UpstreamError
from penstock_wire.process import log
from penstock_wire.settings import Batching

TIMER_SLACK = 0.0005
"""uvloop's timers have a resolution of 1 ms and may fire this much early."""
MAX_QUEUED_BYTES = 256 * 1024 * 1024
"""Bytes of items that may wait, whatever their number: a bound on the sidecar's own memory."""
MAX_PASSING = 100
"""Requests without items (GET and the like) that may be with the model at once, beside the slots."""
MIN_RUN_SECONDS = 0.001
WAIT_MARGIN = 2.0
"""A part-full batch waits no longer than this many mean batch times before its earliest deadline."""

Send = Callable[[Request, float], Awaitable[Response]]
"""Sends a request to the model within so many seconds; raises UpstreamError."""


class Observer(Protocol):
    """Is told what happens."""

    def waited(self, seconds: float) -> None:
        """A request was cut into a batch after so many seconds in the queue."""
        ...

    def ran(self, items: int, limit: int, seconds: float) -> None:
        """A batch of so many items, of `limit` possible, was with the model for so many seconds."""
        ...


@dataclasses.dataclass(slots=True)
class Counts:
    """Counts since the start."""

    batches: int = 0
    batch_items: int = 0


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class _Batch:
    parts: list[Part]
    items: int
    limit: int
    in_model: bool = True
    begun: bool = False


class Dispatcher:
    """Takes accepted requests, gives each its outcome.

    Args:
        send: sends to the model.
        protocol: joins and splits.
        batching: the policy to begin with.
        observer: is told of waits and runs.
        clock: the monotonic time in seconds.
    """

    def __init__(
        self,
        *,
        send: Send,
        protocol: Batchable,
        batching: Batching,
        observer: Observer,
        clock: Callable[[], float],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._send = send
        self._protocol = protocol
        self._observer = observer
        self._queue = Queue()
        self._unanswered = DeadlineHeap(lambda work: not work.done)
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._runs: set[asyncio.Task[None]] = set()
        self._busy = 0
        self._paused = False
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._passing = 0
        self.ongoing = 0
        self.refusing: PenstockError | None = None
        self.counts = Counts()
        self.pace = Pace()
        self.alive = False
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
    def slots(self) -> int:
        """Batches that may be with the model at once now."""
        slots = self._batching.max_concurrent_batches
        return 1 if slots == "auto" else slots

    @property
    def queued(self) -> int:
        """Items that wait."""
        return self._queue.items

    @property
    def oldest_age(self) -> float:
        """Seconds that the oldest queued request has waited; 0 where none waits."""
        oldest = self._queue.oldest
        return 0.0 if oldest is None else max(0.0, self._clock() - oldest)

    @property
    def drain_seconds(self) -> float:
        """Seconds until all that waits is through, at the pace of the latest batches."""
        return self.pace.drain_seconds(self._queue.items, self.slots)

    def now(self) -> float:
        """The time that arrivals and deadlines are told in."""
        return self._clock()

    async def idle(self) -> None:
        """Wait until nothing is queued and nothing is with the model."""
        while self._queue.items or self.ongoing:
            await self._idle.wait()

    # What others do

    def apply(self, batching: Batching) -> None:
        """Obey another policy from the next cut on; what is with the model is not disturbed."""
        renamed = batching.batch_key_headers != self._batching.batch_key_headers
        self._set(batching)
        if renamed:
            self._queue.rekey(lambda work: keys.rekey(work, self.key_names))
        self._wake.set()

    def pause(self) -> None:
        """Cut no further batch; what comes waits, what is with the model ends."""
        self._paused = True

    def resume(self) -> None:
        """Cut batches again."""
        self._paused = False
        self._wake.set()

    async def quiet(self) -> None:
        """Wait until no batch is with the model."""
        while self._busy:
            await self._quiet.wait()

    async def answer(self, work: Work) -> Outcome:
        """Accept a request and wait for its outcome; cancelled, the request leaves the queue.

        Raises:
            PenstockError: it was not accepted.
        """
        self._admit(work)
        try:
            return await work.future
        finally:
            if not work.done:
                self._leave(work)

    async def pass_through(self, request: Request, request_id: str, deadline: float) -> Outcome:
        """Send a request that holds no items straight to the model, beside the slots; it counts as one item.

        Raises:
            PenstockError: it was not accepted.
        """
        if self.refusing is not None:
            # NB: raised as it is, it would keep the frames of every request that it refused.
            raise self.refusing.with_traceback(None)
        if self._passing >= MAX_PASSING:
            raise self._full(f"expected at most {MAX_PASSING} requests passing through, found as many")
        timeout = deadline - self._clock()
        if timeout <= 0:
            raise self._late()
        self._passing += 1
        self._load(1)
        try:
            headers = keys.lone_fields(request, request_id, timeout)
            answer = await self._send(dataclasses.replace(request, headers=headers), timeout)
            return Response(status=answer.status, headers=from_model(answer.headers), body=answer.body)
        except UpstreamError as error:
            return failure(error, executed=False)
        finally:
            self._passing -= 1
            self._load(-1)

    def refuse(self, error: PenstockError | None) -> None:
        """Refuse new requests with an error, or take them again (None)."""
        self.refusing = error

    def refuse_queued(self, error: PenstockError) -> int:
        """Answer all that is queued with an error; returns how many requests that were.

        A request of which a part is with the model already is not surely unexecuted, and is told so.
        """
        works = list(self._queue)
        for work in works:
            self._queue.leave(work)
            told = error
            if work.executed:
                told = PenstockError(error.reason, error.detail, retry_after=error.retry_after)
            self._settle(work, told)
        self._check_idle()
        return len(works)

    async def run(self) -> None:
        """Cut batches until cancelled."""
        self.alive = True
        try:
            while True:
                try:
                    again = self._turn()
                except Exception as error:
                    log("dispatch failed", level="error", error=repr(error))
                    again = self._clock() + 1.0
                await self._sleep(again)
        finally:
            self.alive = False

    async def abort(self) -> None:
        """End all runs at once; what they held is answered as unreachable."""
        runs = list(self._runs)
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)

    # Inside

    def _set(self, batching: Batching) -> None:
        self._batching = batching
        self.key_names = keys.key_names(batching.batch_key_headers)
        self._limits = Limits(
            size=batching.max_batch_size,
            bytes=batching.max_batch_bytes,
            wait=batching.batch_wait_timeout_ms / 1000,
        )

    def _free(self) -> int:
        return 0 if self._paused else self.slots - self._busy

    def _admit(self, work: Work) -> None:
        if self.refusing is not None:
            # NB: raised as it is, it would keep the frames of every request that it refused.
            raise self.refusing.with_traceback(None)
        if work.deadline <= self._clock():
            raise self._late()
        batching, queued = self._batching, self._queue.items
        free = max(0, self._free())
        # What free slots take at once does not wait; and a request larger than the whole queue gets its
        # chance when nobody else waits.
        room = batching.queue_limit(self.slots) + free * batching.max_batch_size
        if queued + work.size > room and not (free and not queued):
            raise self._full(
                f"expected room for {work.size} items, found {queued} of "
                f"{batching.queue_limit(self.slots)} queued"
            )
        if queued and self._queue.bytes + work.bytes_left > MAX_QUEUED_BYTES:
            raise self._full(f"expected at most {MAX_QUEUED_BYTES} bytes to wait, found more")
        self._queue.add(work)
        self._unanswered.push(work)
        self._idle.clear()
        self._wake.set()

    def _full(self, detail: str) -> PenstockError:
        return PenstockError(
            Reason.QUEUE_FULL,
            detail,
            status=self._batching.overflow_status,
            retry_after=self.pace.retry_after(self._queue.items, self.slots),
            not_admitted=True,
        )

    @staticmethod
    def _late() -> PenstockError:
        return PenstockError(
            Reason.DEADLINE, "the deadline had passed on arrival", status=503, not_admitted=True
        )

    def _settle(self, work: Work, outcome: Outcome) -> None:
        if work.settle(outcome):
            self._unanswered.forget()

    def _leave(self, work: Work) -> None:
        work.done = True
        self._unanswered.forget()
        self._queue.leave(work)
        self._check_idle()

    def _load(self, items: int) -> None:
        self.ongoing += items
        if items > 0:
            self._idle.clear()
        else:
            self._check_idle()

    def _check_idle(self) -> None:
        if not self._queue.items and not self.ongoing:
            self._idle.set()

    def _turn(self) -> float | None:
        """Drop what expired, fill the free slots; returns when to look again, None for at the next event."""
        now = self._clock() + TIMER_SLACK
        while (work := self._unanswered.first()) is not None and work.deadline <= now:
            self._expire(work)
        again = None if work is None else work.deadline
        limits = self._limits
        if limits.wait:
            limits = dataclasses.replace(limits, service=WAIT_MARGIN * self.pace.seconds)
        while self._free() > 0 and self._queue.items:
            choice = self._queue.choose(now, limits)
            if choice.key is None:
                if choice.again is not None:
                    again = choice.again if again is None else min(again, choice.again)
                break
            self._start(self._queue.cut(choice.key, limits))
        return again

    def _expire(self, work: Work) -> None:
        where = "with the model" if work.executed else "in the queue"
        waited = self._clock() - work.arrived
        self._queue.leave(work)
        self._settle(
            work, PenstockError(Reason.DEADLINE, f"the deadline passed after {waited:.3f} s, {where}")
        )
        self._check_idle()

    async def _sleep(self, again: float | None) -> None:
        # NB: not `call_at`: uvloop's own time is cached and in whole milliseconds, so clocks may differ.
        timer = None if again is None else self._loop.call_later(again - self._clock(), self._wake.set)
        try:
            await self._wake.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self._wake.clear()

    def _start(self, parts: list[Part]) -> None:
        now = self._clock()
        for part in parts:
            work = part.work
            work.executed = True
            if not part.start:
                work.cut_at = now
                self._observer.waited(now - work.arrived)
        batch = _Batch(parts=parts, items=sum(part.size for part in parts), limit=self._limits.size)
        self._busy += 1
        self._quiet.clear()
        self._load(batch.items)
        self.counts.batches += 1
        self.counts.batch_items += batch.items
        run = self._loop.create_task(self._run(batch))
        self._runs.add(run)

        def ended(run: asyncio.Task[None]) -> None:
            self._runs.discard(run)
            if not batch.begun:
                # NB: a task that is cancelled before its first step never reaches a `finally` of its own.
                self._release(batch)
                self._fail(parts, _stopped())

        run.add_done_callback(ended)

    def _release(self, batch: _Batch) -> None:
        """Give the batch's slot back, once."""
        if batch.in_model:
            batch.in_model = False
            self._busy -= 1
            if not self._busy:
                self._quiet.set()
            self._load(-batch.items)
            self._wake.set()

    async def _run(self, batch: _Batch) -> None:
        """Send one batch and give each of its parts an outcome."""
        batch.begun = True
        parts = batch.parts
        begun = self._clock()
        try:
            timeout = max(MIN_RUN_SECONDS, max(part.work.deadline for part in parts) - begun)
            request = compose(parts, self._protocol, timeout)
            sent = self._clock()
            try:
                answer = await self._send(request, timeout)
            finally:
                self._release(batch)
            answered = self._clock()
            outcomes = distribute(parts, self._protocol, answer)
            seconds = answered - sent
            self._observer.ran(batch.items, batch.limit, seconds)
            if answer.status < 400:
                self.pace.observe(batch.items, seconds)
            own = self._clock() - begun - seconds
            timing = b'batch;dur=%.3f;desc="%d", model;dur=%.3f' % (own * 1e3, batch.items, seconds * 1e3)
            for part, outcome in zip(parts, outcomes, strict=True):
                self._deliver(part, outcome, timing)
        except UpstreamError as error:
            for part in parts:
                self._fail([part], failure(error, executed=part.work.parts > 1))
        except asyncio.CancelledError:
            self._fail(parts, _stopped())
            raise
        except Exception as error:
            log("batch failed", level="error", error=repr(error))
            self._fail(parts, PenstockError(Reason.INTERNAL, "the batch could not be handled"))
        finally:
            self._release(batch)

    def _deliver(self, part: Part, outcome: Outcome, timing: bytes) -> None:
        work = part.work
        if work.done:
            return
        if not part.whole and isinstance(outcome, Response) and 200 <= outcome.status < 300:
            answers = work.collect(part.start, outcome)
            if answers is None:
                return
            outcome = rejoin(answers, self._protocol)
        if isinstance(outcome, Response):
            queue = b"queue;dur=%.3f, " % ((work.cut_at - work.arrived) * 1e3)
            outcome.headers = (*outcome.headers, (SERVER_TIMING, queue + timing))
        self._queue.leave(work)
        self._settle(work, outcome)
        self._check_idle()

    def _fail(self, parts: Sequence[Part], error: PenstockError) -> None:
        for part in parts:
            if not part.work.done:
                self._queue.leave(part.work)
                self._settle(part.work, error)
        self._check_idle()


def _stopped() -> PenstockError:
    return PenstockError(Reason.MODEL_UNREACHABLE, "the sidecar was stopped at once")
