"""Batches the calls of one queue, by the sidecar's rules, in one event loop.

A batch is cut when a slot becomes free, never by a timer alone (late binding). A call is answered as soon as
its deadline passes. A batch that raises is searched for the call that causes it, as in the sidecar, so that a
caller never gets an exception that another one has caused.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol, cast

from penstock import call_chain, call_context
from penstock.call_context import Context
from penstock.end import END
from penstock.errors import DeadlineExceeded, SlowReader
from penstock.in_process.call import NEVER, QueuedCall
from penstock.in_process.costs import reader
from penstock.in_process.settings import BatchSettings
from penstock.in_process.state import BatchState, RunningBatch, Totals, show
from penstock.in_process.stream import Pieces, Stream
from penstock.item_pieces import Events
from penstock_sidecar.batching.bisection import Bisection
from penstock_sidecar.batching.fault_tracker import FaultTracker
from penstock_sidecar.estimators.hold_policy import HoldPolicy
from penstock_sidecar.estimators.latency_model import LatencyModel
from penstock_sidecar.queue.batch_limits import REACH, Limits, choose_with_wait
from penstock_sidecar.queue.deadline_list import earlier
from penstock_sidecar.queue.key import BatchKey
from penstock_sidecar.queue.queue import Queue
from penstock_sidecar.queue.request import Slice
from penstock_wire.call_chain import deepest, stands_alone
from penstock_wire.headers import CALL_CHAIN, MODEL_ID
from penstock_wire.timers import TIMER_SLACK, EarliestTimer

_BYTES = 1
"""The most bytes of a batch: calls have none."""
MAX_KEYS = 256
"""Most chains and models that have keys of their own; beyond it, those without queued calls are forgotten."""


class CallBatch:
    """A batch that holds one slot. Each of its `parts` is one call."""

    __slots__ = ("began", "due", "in_slot", "parts", "task")

    def __init__(self, parts: list[Slice], began: float) -> None:
        self.parts = parts
        self.began = began
        self.in_slot = True
        self.due = NEVER
        self.task: asyncio.Task[None] | None = None

    def left(self) -> None:
        """Note that a caller has left; after the last one, cancel the batch."""
        if self.task is not None and all(part.work.done for part in self.parts):
            self.task.cancel()


class Code(Protocol):
    """Runs batches: `BatchedCode`, or a served method (`penstock.testing`)."""

    @property
    def streams(self) -> bool:
        """Whether it is a generator."""
        ...

    async def answers(self, owner: object, values: Sequence[Any]) -> list[Any]:
        """See `BatchedCode.answers`."""
        ...

    def pieces(self, owner: object, values: Sequence[Any]) -> AsyncGenerator[Events, None]:
        """See `BatchedCode.pieces`."""
        ...


class Batcher:
    """Batches the calls of one function, or of one instance's method, that are made in one event loop.

    Args:
        code: runs the batches.
        settings: the settings of batching.
        name: the function's name in metrics; empty for none.
    """

    def __init__(self, code: Code, settings: BatchSettings, name: str = "") -> None:
        self.loop = asyncio.get_running_loop()
        self._code = code
        self._totals = show(name, self) if name else Totals()
        self._settings = settings
        self._limits = _limits(settings)
        self._cost = None if settings.cost is None else reader(settings.cost)
        self._hold_policy = HoldPolicy(settings.batch_wait_timeout)
        self._key = BatchKey("POST", "/", (), ())
        self._alone: dict[tuple[bytes, bytes], BatchKey] = {}
        self._queue = Queue()
        self._latency_model = LatencyModel()
        self._faults = FaultTracker(
            self._queue, self._latency_model, time.monotonic, lambda _, __: self._settings.max_batch_size
        )
        self._timer = EarliestTimer(self._schedule, time.monotonic)
        self._batches: set[CallBatch] = set()
        self._busy = 0
        self._scheduled = False
        self._timed = False

    @property
    def idle(self) -> bool:
        """Whether no call waits or runs."""
        return not (self._queue.requests or self._batches)

    # Calls

    async def answer(self, owner: object, value: Any, deadline: float | None = None) -> Any:
        """Make one call and wait for its answer.

        Args:
            owner: the instance, if the code is a method.
            value: the value from `BatchedCode.bind`.
            deadline: the call's deadline, by `time.monotonic`; None = that of the request being answered.

        Raises:
            DeadlineExceeded: it has no answer in time.
            Exception: the exception that the function raised for it, or returned as its answer.
        """
        future: asyncio.Future[Any] = self.loop.create_future()
        call = self._enter(owner, value, future, deadline)
        try:
            return await future
        except BaseException:
            self._leave(call)
            raise

    def stream(self, owner: object, value: Any, deadline: float | None = None) -> Stream[Any]:
        """Make one call of a generator; arguments as for `answer`."""
        pieces = Pieces()
        call = self._enter(owner, value, pieces, deadline)
        return Stream(pieces, lambda: self._leave(call))

    def apply(self, settings: BatchSettings) -> None:
        """Use other settings from the next batch on; can be called in any thread."""
        if settings.cost != self._settings.cost:
            self._cost = None if settings.cost is None else reader(settings.cost)
            self._latency_model.forget()  # what was learned is by other costs
        self._settings = settings
        self._limits = _limits(settings)
        if settings.batch_wait_timeout != self._hold_policy.wait:
            self._hold_policy = HoldPolicy(settings.batch_wait_timeout)
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._schedule)

    def _enter(
        self, owner: object, value: Any, answer: asyncio.Future[Any] | Pieces, given: float | None
    ) -> QueuedCall:
        cost = None if self._cost is None else self._cost(value)
        now = time.monotonic()
        timeout = self._settings.timeout
        if given is None:
            given = call_context.deadline()
        deadline = NEVER if timeout is None else now + timeout
        if given is not None and given < deadline:
            deadline = given
        chain, model_id = call_chain.inherited(), call_context.model_id()
        key = self._key_of(chain if stands_alone(chain) else b"", model_id)
        call = QueuedCall(key, owner, value, now, deadline, answer, chain, model_id, cost)
        self._queue.add(call)
        self._hold_policy.joined(now, first=self._queue.requests == 1)
        if deadline < NEVER:
            self._timed = True
            self._timer.ring_at(deadline)
        if not self._scheduled and self._busy < self._settings.max_concurrent_batches:
            self._schedule()
        return call

    def _key_of(self, chain: bytes, model_id: bytes) -> BatchKey:
        """The key of a call: as in a sidecar, by its chain if that stands alone, and by its model."""
        if not chain and not model_id:
            return self._key
        key = self._alone.get((chain, model_id))
        if key is None:
            if len(self._alone) >= MAX_KEYS:
                lines = self._queue.lines
                self._alone = {each: key for each, key in self._alone.items() if key in lines}
            key = self._alone[chain, model_id] = BatchKey("POST", "/", (), ())
        return key

    def _leave(self, call: QueuedCall) -> None:
        """Remove a call with a caller that waits no longer; no-op if it has its answer."""
        if call.done:
            return
        call.done = True
        if call.queued:
            self._queue.leave(call)
        elif call.batch is not None:
            call.batch.left()

    @property
    def state(self) -> BatchState:
        """See `state.BatchState`; may be read in any thread."""
        now, oldest = time.monotonic(), self._queue.oldest
        return BatchState(
            waiting=self._queue.requests,
            seconds=0.0 if oldest is None else now - oldest,
            batches=tuple(
                RunningBatch(items=len(batch.parts), seconds=max(0.0, now - batch.began), runs_in=batch.task)
                for batch in list(self._batches)
            ),
        )

    # When to look

    def _schedule(self) -> None:
        """Look after all ready callbacks: callers that were just answered can first call again."""
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._look)

    def _look(self) -> None:
        self._scheduled = False
        now = time.monotonic() + TIMER_SLACK
        again = self._expire(now) if self._timed else None
        again = earlier(again, self._fill(now))
        if again is not None:
            self._timer.ring_at(again)

    def _expire(self, now: float) -> float | None:
        """Answer the calls with a passed deadline; return when to look again."""
        queue = self._queue
        while (call := cast("QueuedCall | None", queue.first())) is not None and call.deadline <= now:
            queue.leave(call)
            call.expire(now)
        due = NEVER if call is None else call.deadline
        for batch in self._batches:
            if batch.due <= now:
                for each in _calls(batch.parts):
                    if each.deadline <= now:
                        each.expire(now)
                batch.due = min([each.deadline for each in _calls(batch.parts)], default=NEVER)
                batch.left()
            due = min(due, batch.due)
        return None if due == NEVER else due

    def _fill(self, now: float) -> float | None:
        """Cut batches while slots are free; return when to look again, if queued calls can wait."""
        queue, policy, free = self._queue, self._hold_policy, self._settings.max_concurrent_batches
        while queue.items and self._busy < free and (key := queue.choose(now)) is not None:
            if policy.wait:
                quiet = policy.quiet
                choice = choose_with_wait(queue.lines, key, self._limits, now, wait=policy.wait, quiet=quiet)
                if choice.key is None:
                    return choice.again
                key = choice.key
                policy.waited(now, queue.lines[key].requests)
            self._cut(now, key)
        return None

    def _cut(self, now: float, key: BatchKey) -> None:
        limits, faults = self._limits, key.faults
        if faults is not None and faults.limit < limits.size:
            limits = dataclasses.replace(limits, size=faults.limit)
        dropped: list[Any] = []
        model = self._latency_model

        def finish(work: float) -> float:
            return now + (model.predict(now, key.cls, work) or 0.0)

        formula = model.formula(key.cls) or model.trial(key.cls)
        if formula is not None:
            limits = dataclasses.replace(limits, formula=formula, reach=REACH * (finish(limits.size) - now))
        parts = self._queue.cut(key, limits, finish if self._timed else None, dropped)
        for call in dropped:
            seconds = finish(len(parts) or 1) - now
            detail = f"dropped after {now - call.arrived:.3f} s in the queue: its batch takes {seconds:.3f} s"
            call.fail(DeadlineExceeded(f"{detail} and would be late"))
        if not parts:
            return
        batch = CallBatch(parts, now)
        for call in _calls(parts):
            call.executed = True
            call.batch = batch
            batch.due = min(batch.due, call.deadline)
        self._busy += 1
        self._batches.add(batch)
        # NB: in a new context: a caller's own context variables must not affect the other calls.
        batch.task = self.loop.create_task(self._run(batch), context=contextvars.Context())
        batch.task.add_done_callback(lambda _: self._ended(batch))

    def _release(self, batch: CallBatch) -> None:
        """Free the batch's slot, once; if a full batch waits, cut it before this one's answers go out."""
        if batch.in_slot:
            batch.in_slot = False
            self._busy -= 1
            if self._queue.items >= self._limits.size:
                self._fill(time.monotonic() + TIMER_SLACK)

    # One batch

    async def _run(self, batch: CallBatch) -> None:
        try:
            error = await self._attempt(batch, batch.parts, again=False)
            if error is not None:
                await self._isolate(batch, error)
        except asyncio.CancelledError:
            for call in _calls(batch.parts):
                _cancel(call)
            raise
        except BaseException as error:
            for call in _calls(batch.parts):
                call.fail(error if isinstance(error, Exception) else RuntimeError(repr(error)))
            raise

    def _ended(self, batch: CallBatch) -> None:
        # NB: a callback and not a `finally`, which a task cancelled before its first step never reaches.
        batch.task = None
        self._batches.discard(batch)
        self._release(batch)
        if self._queue.items:
            self._schedule()

    async def _attempt(self, batch: CallBatch, parts: Sequence[Slice], *, again: bool) -> Exception | None:
        """Run once, without the calls that their callers have left.

        Returns:
            The exception, if one of several calls can be the cause, or if a single call that was run again
            has been failed with it; else None, and all calls have their outcomes.
        """
        sent = [part for part in parts if not part.work.done]
        calls = _calls(sent)
        owner, values = calls[0].owner, [call.value for call in calls]
        key = calls[0].key
        context = call_context.opened(_context(calls))
        call_context.resume(context)
        began = time.monotonic()
        try:
            if self._code.streams:
                await self._stream(calls, owner, values)
                answers = None
            else:
                answers = await self._code.answers(owner, values)
        except Exception as error:
            self._totals.failed += 1
            if len(calls) > 1 and self._settings.isolate and not _begun(calls):
                return error
            _fail(calls, error)
            if not again and key.faults is not None:
                self._faults.resolved(parts, parts[:1], time.monotonic() - began, 0.0)
            return error if again and len(calls) == 1 else None
        except asyncio.CancelledError:
            context.cancel_calls()
            raise
        finally:
            context.end()
        now = time.monotonic()
        cost, longest = sum([part.cost for part in sent]), max([part.longest for part in sent])
        self._latency_model.observe(now, key.cls, len(sent), now - began, cost, longest)
        self._totals.ran(len(calls), now - began)
        if not again:
            if key.faults is not None:
                self._faults.resolved(parts, (), now - began, 0.0)
            self._release(batch)
        if answers is not None:
            if self._busy and not again:
                await _let_threads_run()
            for call, answer in zip(calls, answers, strict=True):
                call.succeed(answer)
        return None

    async def _stream(self, calls: list[QueuedCall], owner: object, values: list[Any]) -> None:
        """Run a generator; a call that was left, or has got `END` or an exception, gets no more pieces.

        Raises:
            Exception: whatever it raised; the calls that are not `done` have not got it yet.
        """
        async with contextlib.aclosing(self._code.pieces(owner, values)) as steps:
            async for events in steps:
                for index, piece in events:
                    call = calls[index]
                    if call.done:
                        continue
                    if piece is END or isinstance(piece, BaseException):
                        call.succeed(piece)
                    else:
                        _put(call, piece)
                if all(call.done for call in calls):
                    break
        for call in calls:
            call.succeed(END)

    async def _isolate(self, batch: CallBatch, error: Exception) -> None:
        """Run parts of a batch that raised, until each call has its own outcome."""
        parts = batch.parts
        search = Bisection(len(parts))
        bad: list[Slice] = []
        began = time.monotonic()
        while True:
            span = search.next(self._faults.group(parts[0].work, len(bad), search.resolved))
            if span is None:
                break
            some = parts[slice(*span)]
            calls = _calls(some)
            if not calls:
                search.passed(whole=False)
                continue
            raised = await self._attempt(batch, some, again=True)
            if raised is None:
                search.passed(whole=len(calls) == len(some))
                continue
            alone = len(calls) == 1
            if alone:
                bad += [part for part in some if part.work is calls[0]]
            search.failed(alone=alone)
        now = time.monotonic()
        self._faults.resolved(parts, bad, now - batch.began, now - began)


async def _let_threads_run() -> None:
    """Let the batch that was just begun reach its device before the last batch's answers go out.

    Models run in threads, and cannot begin while this thread holds the interpreter: with a model of 1 ms this
    gains 8 % of all answers (docs/adr/0016).
    """
    await asyncio.sleep(0)
    time.sleep(0)  # noqa: ASYNC251 - releases the interpreter for about a microsecond


def _limits(settings: BatchSettings) -> Limits:
    return Limits(size=settings.max_batch_size, bytes=_BYTES)


def _context(calls: Sequence[QueuedCall]) -> Context:
    """The context of a run: what its calls have in common with each other."""
    fields = []
    if calls[0].model_id:
        fields.append((MODEL_ID, calls[0].model_id))
    if chain := deepest([call.chain for call in calls]):
        fields.append((CALL_CHAIN, chain))
    return Context(tuple(fields))


def _calls(parts: Sequence[Slice]) -> list[QueuedCall]:
    """The calls of these parts that wait for an answer."""
    return [cast("QueuedCall", part.work) for part in parts if not part.work.done]


def _begun(calls: Sequence[QueuedCall]) -> bool:
    """Whether one of these calls has got a piece of its stream, or is done."""
    return any(call.done or (isinstance(call.answer, Pieces) and call.answer.begun) for call in calls)


def _put(call: QueuedCall, piece: Any) -> None:
    try:
        cast("Pieces", call.answer).put(piece)
    except SlowReader as error:
        call.fail(error)
    call.deadline = NEVER  # a stream that has begun has no deadline


def _fail(calls: Sequence[QueuedCall], error: Exception) -> None:
    for call in calls:
        call.fail(error)


def _cancel(call: QueuedCall) -> None:
    call.done = True
    if isinstance(call.answer, Pieces):
        call.answer.end(RuntimeError("the batch was cancelled"))
    else:
        call.answer.cancel()
