"""Runs batches: sends each to the model, splits its answer, and gives every part of it its outcome.

A batch holds its slot until its last run has ended: if parts of a failed batch are run again to find the bad
request, they use no second slot. A request whose deadline passes is answered at that moment; the slot stays
taken until the model has answered or the connection is closed (at the latest deadline of the batch), so that
the model never has more batches than its limit.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

from penstock_sidecar.admission.slots import Slots
from penstock_sidecar.batching.assembly import (
    blames_a_request,
    compose,
    distribute,
    rejoin,
)
from penstock_sidecar.batching.batch import NEVER, Batch
from penstock_sidecar.batching.bisection import Bisection
from penstock_sidecar.batching.failure_log import LOGGED_IDS, log_failed_batch
from penstock_sidecar.batching.fault_tracker import FaultTracker
from penstock_sidecar.batching.item_responses import PartAnswer, refused
from penstock_sidecar.batching.streaming import StreamedSends
from penstock_sidecar.estimators.latency_model import LatencyModel
from penstock_sidecar.interfaces import Done, Send
from penstock_sidecar.model.answers import (
    StreamCompleted,
    admitted,
    failure,
    from_model,
    not_admitted,
    unresolved,
)
from penstock_sidecar.protocols.base import BatchProtocol
from penstock_sidecar.protocols.item_answers import is_form
from penstock_sidecar.queue.batch_key import left_out
from penstock_sidecar.queue.request import Outcome, QueuedRequest, Slice
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import SERVER_TIMING
from penstock_wire.http import (
    AnswerUnreadable,
    ConnectionLost,
    GivenUp,
    GiveUp,
    Request,
    RequestUnread,
    Response,
    UpstreamError,
    UpstreamTimeout,
)
from penstock_wire.process import log

COPIES = 2
"""Of each item that is with the model: its own, and that in the batch's body."""
MIN_RUN_SECONDS = 0.001
TOO_MANY = 429
"""The only 4xx that counts as overload of the model."""
UNAUTHORIZED = (401, 403)

Begin = Callable[[Request, float, Done], GiveUp | None]
"""Begins to send without a task, if that is possible at once; see `Model.begin`."""

Trace = Callable[[Send, Request, float, Sequence[Slice], int], Awaitable[Response]]
"""Sends in a span; last two arguments: the parts that are sent, the items that the batch could have held."""


class Observer(Protocol):
    """Counts batches and further runs."""

    def ran(self, items: int, limit: int, seconds: float, waits: Sequence[float] = ()) -> None:
        """Count a batch that was with the model.

        Args:
            items: its items.
            limit: the items that it could have held.
            seconds: time from its sending to its answer.
            waits: seconds that its requests were queued.
        """
        ...

    def isolated(self) -> None:
        """Count a part of a failed batch that is run again."""
        ...

    def unauthorized(self, status: int, names: Sequence[str]) -> None:
        """Count a batch that the model answered with 401 or 403, although each of its requests alone was not.

        Args:
            status: the model's answer to the batch.
            names: header fields that the requests had and the batch had not, since they differed.
        """
        ...


class BatchListener(Protocol):
    """The part of the dispatcher that a run needs; `adapts`: the result of one batch can change the next."""

    adapts: bool

    def settle(self, work: QueuedRequest, outcome: Outcome) -> None:
        """Give a request its outcome, unless it has one."""
        ...

    def slot_released(self, batch: Batch) -> None:
        """Note that a batch has released its slot: its requests are answered now."""
        ...

    def batch_succeeded(self, parts: Sequence[Slice], items: int, seconds: float) -> None:
        """Note that a run of these parts, `items` items, succeeded after `seconds`."""
        ...

    def isolates(self) -> bool:
        """Whether the bad requests of a failed batch are searched for."""
        ...


class BatchRunner:
    """All batches that are with the model; `items` is the sum of their items.

    Args:
        send: sends to the model.
        protocol: joins and splits.
        observer: counts runs.
        clock: the monotonic time in seconds.
        slots: the slots that batches run in.
        listener: the dispatcher.
        faults: notes which requests are bad.
        trace: sends in a span, None if nothing is traced.
        streamed: sends batches that may be answered by a stream for several clients, None if there are none.
        begin: begins to send without a task, if that is possible; not used for runs that are traced or may
            be streamed.
        cancellable: whether the model ends a call of a request's method when its connection is closed.
    """

    def __init__(
        self,
        *,
        send: Send,
        protocol: BatchProtocol,
        observer: Observer,
        clock: Callable[[], float],
        slots: Slots,
        listener: BatchListener,
        faults: FaultTracker,
        begin: Begin | None = None,
        trace: Trace | None = None,
        streamed: StreamedSends | None = None,
        cancellable: Callable[[Request], bool] = lambda _: False,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._cancellable = cancellable
        self._send = send
        self._protocol = protocol
        self._observer = observer
        self._clock = clock
        self._slots = slots
        self._listener = listener
        self._faults = faults
        self._trace = trace
        self._streamed = streamed
        self._begin = begin if trace is None else None
        self._batches: set[Batch] = set()
        self.items = 0

    def kept(self) -> int:
        """Return the bytes that are kept of items that are with the model."""
        return COPIES * sum(
            len(item) for batch in self._batches for part in batch.parts for item in part.items
        )

    def work(self, model: LatencyModel) -> float:
        """Return the items that are with the model, in items of the usual cost."""
        return sum(
            [
                model.load(part.work.key.cls, part.size, part.cost, part.longest)
                for batch in self._batches
                if batch.in_model
                for part in batch.parts
            ]
        )

    def start(self, parts: list[Slice], items: int, limit: int) -> Batch:
        """Send a batch of these parts.

        Args:
            parts: its parts of requests.
            items: the items of all parts.
            limit: the items that it could have held.
        """
        now = self._clock()
        batch = Batch(parts, items, limit, now)
        self._batches.add(batch)
        self._slots.busy += 1
        self.items += items
        sent = (
            self._begin is not None
            and self._stream_sends(parts) is None
            and self._send_now(batch, self._begin)
        )
        # NB: after the sending, not before: the model has been idle since it answered the last batch.
        due, waits = NEVER, batch.waits
        for part in parts:
            work = part.work
            work.executed = True
            if not part.start:
                work.cut_at = now
                waits.append(now - work.arrived)
            if work.expires < due:
                due = work.expires
        batch.due = due
        if not sent:
            self._start_task(batch, self._run(batch))
        return batch

    def _stream_sends(self, parts: Sequence[Slice]) -> StreamedSends | None:
        """Return what sends a batch whose clients asked for streams; None for all other batches."""
        return self._streamed if parts[0].work.key.streamed else None

    def _start_task(self, batch: Batch, work: Coroutine[Any, Any, None]) -> None:
        batch.task = self._loop.create_task(work)
        batch.task.add_done_callback(lambda _: self._ended(batch))

    def _send_now(self, batch: Batch, begin: Begin) -> bool:
        """Send a batch without a task; False if it needs one."""
        now = batch.began
        # The model has until the latest of their deadlines.
        latest = max([part.work.expires for part in batch.parts])
        timeout = max(MIN_RUN_SECONDS, latest - now)
        try:
            request = compose(batch.parts, self._protocol, timeout, 0)
        except Exception:
            return False  # nothing was sent; the task gets the same error and reports it
        batch.sent = self._clock()
        try:
            give_up = begin(request, timeout, functools.partial(self._came, batch))
        except UpstreamError:
            return False  # likewise
        except Exception as error:
            # The sidecar's own fault, perhaps after the sending: report it, and do not send the batch again.
            lost = ConnectionLost(f"sending failed: {error!r}")
            batch.begun = True
            self._loop.call_soon(self._came, batch, lost)
            return True
        batch.give_up = give_up
        batch.begun = give_up is not None
        return batch.begun

    def _came(self, batch: Batch, answer: Response | UpstreamError) -> None:
        """Handle the answer to a batch that `_send_now` has sent."""
        batch.give_up = None
        outcome: Outcome | None = None
        unread = isinstance(answer, RequestUnread)  # so it is sent again
        try:
            if isinstance(answer, Response) and not admitted(answer):
                self._lost(batch, not_admitted(answer))
            elif isinstance(answer, Response):
                outcome = self._answered(batch, batch.parts, 0, answer, batch.began, batch.sent)
            elif isinstance(answer, AnswerUnreadable):
                outcome = self._unreadable(batch.parts, 0, answer, batch.sent)
            elif not unread:
                self._lost(batch, answer)
        except Exception as error:
            self._failed(batch, error)
        if outcome is None and not unread:
            self._ended(batch)
        else:
            batch.begun = False
            self._start_task(batch, self._run(batch, outcome))

    def departed(self) -> None:
        """End the batches that no client waits for any more: clients have left."""
        for batch in list(self._batches):
            self._end_unwanted(batch)

    def _end_unwanted(self, batch: Batch) -> None:
        if batch.drop_departed is not None:
            batch.drop_departed()
        # NB: if the model went on after its client has left, the slot would be free too early.
        elif not batch.given_up and not batch.is_wanted() and self._is_cancellable(batch):
            batch.given_up = True
            if batch.give_up is not None:
                batch.give_up()
            elif batch.task is not None:
                batch.task.cancel()

    def _is_cancellable(self, batch: Batch) -> bool:
        # The requests of a batch have one key, and so one method.
        return self._cancellable(batch.parts[0].work.request)

    def expire(self, now: float) -> float | None:
        """Answer the requests whose deadline has passed; returns the next deadline, None without one."""
        following: float | None = None
        for batch in list(self._batches):
            if batch.due <= now:
                self._expire(batch, now)
                if batch.due == NEVER and max([part.work.expires for part in batch.parts]) > now:
                    self._end_unwanted(batch)  # the clients with later deadlines have left
            if batch.due < NEVER and (following is None or batch.due < following):
                following = batch.due
        return following

    async def abort(self) -> None:
        """End all runs at once; their requests get `model_unreachable`."""
        for batch in list(self._batches):
            if batch.give_up is not None:
                batch.give_up()
        # The callbacks of exchanges that were given up run in the loop's next turn.
        await asyncio.sleep(0)
        tasks = [batch.task for batch in self._batches if batch.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # One batch

    def _expire(self, batch: Batch, now: float) -> None:
        due = NEVER
        for part in batch.parts:
            work = part.work
            if work.done:
                continue
            if work.expires <= now:
                detail = f"the deadline passed after {now - work.arrived:.3f} s, while it was with the model"
                self._listener.settle(work, PenstockError(Reason.DEADLINE, detail))
            else:
                due = min(due, work.expires)
        batch.due = due

    def _release(self, batch: Batch) -> None:
        """Give the batch's slot back, once."""
        if batch.in_model:
            batch.in_model = False
            self._slots.busy -= 1
            self.items -= batch.items
            self._listener.slot_released(batch)

    def _ended(self, batch: Batch) -> None:
        self._batches.discard(batch)
        batch.task = None
        self._release(batch)
        if not batch.begun:
            # NB: a task that is cancelled before its first step never reaches its own `except`.
            self._settle_all(batch.parts, _stopped())

    async def _run(self, batch: Batch, outcome: Outcome | None = None) -> None:
        """Send one batch and give each of its parts an outcome, in as many runs as that takes.

        Args:
            batch: the batch.
            outcome: the outcome of its first run, if that is over and has failed.
        """
        batch.begun = True
        try:
            if outcome is None:
                outcome = await self._attempt(batch, batch.parts, 0)
            if outcome is not None:
                await self._isolate(batch, outcome)
        except UpstreamError as lost:
            self._lost(batch, lost)
        except asyncio.CancelledError:
            self._settle_all(batch.parts, _stopped())
            raise
        except Exception as error:
            self._failed(batch, error)

    def _lost(self, batch: Batch, error: UpstreamError) -> None:
        """End a batch that got no answer from the model."""
        if batch.given_up and isinstance(error, GivenUp):
            self._release(batch)
            return
        self._release(batch)
        log_failed_batch(batch.parts, failure(error, executed=True))
        for part in batch.parts:
            self._settle_all([part], failure(error, executed=part.work.parts > 1))

    def _failed(self, batch: Batch, error: Exception) -> None:
        """End a batch after a fault of the sidecar itself."""
        ids = [part.work.request_id.decode() for part in batch.parts]
        log("batch failed", level="error", error=repr(error), requests=len(ids), request_ids=ids[:LOGGED_IDS])
        self._release(batch)
        self._settle_all(batch.parts, PenstockError(Reason.INTERNAL, "the batch could not be handled"))

    async def _isolate(self, batch: Batch, outcome: Outcome) -> None:
        """Run parts of a failed batch again until each of its requests has an outcome of its own.

        Args:
            batch: the batch, of several parts.
            outcome: its outcome.
        """
        parts = batch.parts
        search = Bisection(len(parts))
        bad: list[Slice] = []
        began = self._clock()
        attempt = 0
        while (span := search.next(self._faults.group(parts[0].work, len(bad), search.resolved))) is not None:
            held = parts[slice(*span)]
            waiting = [part for part in held if not part.work.done]
            if not waiting:
                search.passed(whole=False)
                continue
            attempt += 1
            self._observer.isolated()
            try:
                failed = await self._attempt(batch, waiting, attempt)
            except UpstreamTimeout as late:
                # Their time is over; other requests may have time left.
                self._settle_all(waiting, failure(late, executed=True))
                search.passed(whole=False)
                continue
            except UpstreamError as error:
                # It may be the model's own fault now: no further run is sent.
                self._settle_all(waiting, failure(error, executed=True))
                break
            if failed is None:
                search.passed(whole=len(waiting) == len(held))
                continue
            alone = len(waiting) == 1
            if alone:
                bad.append(waiting[0])
                log_failed_batch(waiting, failed)
            search.failed(alone=alone)
        if search.resolved:
            now = self._clock()
            self._faults.resolved(parts[: search.resolved], bad, now - batch.sent, now - began)
            if outcome.status in UNAUTHORIZED and not bad and search.resolved == len(parts):
                self._observer.unauthorized(outcome.status, left_out([part.work for part in parts]))
        self._release(batch)
        if search.resolved < len(parts):
            self._settle_all(parts[search.resolved :], unresolved(outcome, len(parts)))

    async def _attempt(self, batch: Batch, parts: list[Slice], attempt: int) -> Outcome | None:
        """Run once.

        Args:
            batch: the batch; the run uses its slot.
            parts: the parts to send.
            attempt: 0, or the number of the further run.

        Returns:
            The outcome of a run that failed if one of its requests may be the cause; a single request has
            got it by then, several have not. Else None: all have their outcomes.

        Raises:
            UpstreamError: there is no answer.
        """
        begun = self._clock()
        timeout = max(MIN_RUN_SECONDS, max([part.work.expires for part in parts]) - begun)
        request = compose(parts, self._protocol, timeout, attempt)
        sent = self._clock()
        send = self._send
        if (streamed := self._stream_sends(parts)) is not None:
            send = functools.partial(streamed.send, parts, self._listener.settle, batch.streams)
        try:
            if self._trace is None:
                answer = await send(request, timeout)
            else:
                answer = await self._trace(send, request, timeout, parts, batch.limit)
        except AnswerUnreadable as error:
            return self._unreadable(parts, attempt, error, sent)
        finally:
            batch.drop_departed = None
        if isinstance(answer, StreamCompleted):
            seconds = self._clock() - sent
            items = batch.items if not attempt else sum([part.size for part in parts])
            self._observer.ran(items, batch.limit, seconds, batch.waits)
            self._listener.batch_succeeded(parts, items, seconds)
            return None
        if not admitted(answer):
            raise not_admitted(answer)
        return self._answered(batch, parts, attempt, answer, begun, sent)

    def _unreadable(
        self, parts: list[Slice], attempt: int, error: AnswerUnreadable, sent: float
    ) -> Outcome | None:
        """As `_answered`, for a run whose answer cannot be read: one of its requests may be the cause.

        Args:
            parts: the parts that were sent.
            attempt: as in `_attempt`.
            error: the fault of the answer.
            sent: when the run was sent.
        """
        outcome = failure(error, executed=True)
        several = len(parts) > 1
        if not attempt:
            log_failed_batch(parts, outcome)
        if several and self._listener.isolates():
            return outcome
        if not several and not attempt and parts[0].work.key.faults is not None:
            self._faults.resolved(parts, parts, self._clock() - sent, 0.0)
        self._settle_all(parts, unresolved(outcome, len(parts)) if several else outcome)
        return None if several or not attempt else outcome

    def _answered(
        self, batch: Batch, parts: list[Slice], attempt: int, answer: Response, begun: float, sent: float
    ) -> Outcome | None:
        """Give the parts of a run their answers.

        Args:
            batch: the batch.
            parts: the parts that were sent.
            attempt: as in `_attempt`.
            answer: the model's answer.
            begun: when the composing of the request began.
            sent: when the request was sent.

        Returns:
            As `_attempt`.
        """
        seconds = self._clock() - sent
        items = batch.items if not attempt else sum([part.size for part in parts])
        several = len(parts) > 1
        answer.headers = from_model(answer.headers)
        outcome: Outcome = answer
        answers: Sequence[Outcome] = ()
        if answer.status < 300 or not several:
            try:
                answers = distribute(parts, self._protocol, answer)
            except PenstockError as error:
                outcome = error
        ok = bool(answers) and answer.status < 300
        if not ok and not attempt:
            log_failed_batch(parts, outcome)
        ran = items
        if ok and is_form(answer.headers):
            ran -= refused(parts, answers)
        if ok and not attempt and not self._listener.adapts:
            # NB: released before the answers are sent: if a whole batch waits, it goes to the model first,
            # and all other work is done later.
            self._release(batch)
        if not attempt:
            self._observer.ran(items, batch.limit, seconds, batch.waits)
        if ok and ran:
            self._listener.batch_succeeded(parts, ran, seconds)
        if several and not answers:
            if blames_a_request(answers, answer) and self._listener.isolates():
                return outcome
            outcome = unresolved(outcome, len(parts))
        elif not attempt and parts[0].work.key.faults is not None:
            self._faults.resolved(parts, parts if blames_a_request(answers, answer) else (), seconds, 0.0)
        if ok and not attempt:
            self._release(batch)
        if answers:
            own = self._clock() - begun - seconds
            timing = b'batch;dur=%.3f;desc="%d", model;dur=%.3f' % (own * 1e3, items, seconds * 1e3)
            self._deliver(parts, answers, timing)
        else:
            self._settle_all(parts, outcome)
        if not attempt:
            self._release(batch)
            return None
        return outcome if not several and blames_a_request(answers, answer) else None

    def _deliver(self, parts: Sequence[Slice], answers: Sequence[Outcome], timing: bytes) -> None:
        settle = self._listener.settle
        for part, answer in zip(parts, answers, strict=True):
            work = part.work
            if work.done:
                continue
            if isinstance(answer, PenstockError):
                settle(work, answer)
                continue
            outcome: Outcome = answer
            if not part.whole and (200 <= answer.status < 300 or isinstance(answer, PartAnswer)):
                collected = work.collect(part.start, answer)
                if collected is None:
                    continue
                try:
                    outcome = answer = rejoin(collected, self._protocol, work.key.parameters)
                except PenstockError as error:
                    settle(work, error)
                    continue
            waited = (work.cut_at - work.arrived) * 1e3
            answer.lines = b"%b: queue;dur=%.3f, %b\r\n" % (SERVER_TIMING, waited, timing)
            settle(work, outcome)

    def _settle_all(self, parts: Sequence[Slice], outcome: Outcome) -> None:
        """Give the same outcome to each request that still waits for one."""
        for part in parts:
            if part.work.done:
                continue
            if isinstance(outcome, Response):
                self._listener.settle(part.work, Response(outcome.status, outcome.headers, outcome.body))
            else:
                self._listener.settle(part.work, outcome)


def _stopped() -> PenstockError:
    return PenstockError(Reason.MODEL_UNREACHABLE, "the sidecar was stopped before the model answered")
