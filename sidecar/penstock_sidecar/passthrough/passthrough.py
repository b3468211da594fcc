"""Passes requests through to the model one by one: all with `protocol: none`, else those not batched.

At most `maxOngoingRequests` are with the model; further requests wait in a `Queue` of one key, up to
`maxQueuedItems` (8 · maxOngoingRequests unless set); those beyond are refused, or evict others. A request is
ongoing until its answer's body has ended, or both sides of its tunnel have. Its deadline counts until the
head of the answer; after that a stream may go on while each piece comes within the time that the router asks
for (`x-penstock-idle-ms`), or else within the sidecar's own limit.

Bodies stream both ways with backpressure: data that one side does not take is not read from the other. If a
client leaves, its request leaves the queue in O(1), or its connection to the model is closed as a signal.

`Passthrough` is a `RequestPath`, as the dispatcher is.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from penstock_sidecar.admission import errors
from penstock_sidecar.admission.error_responses import ErrorResponder
from penstock_sidecar.estimators.throughput import MAX_RETRY_AFTER, Throughput
from penstock_sidecar.interfaces import Counts, Open, RequestObserver, RequestPath
from penstock_sidecar.model.answers import (
    SharedFields,
    admitted,
    failure,
    from_model,
    model_reason,
    not_admitted,
)
from penstock_sidecar.passthrough.outgoing import idle_seconds, outgoing
from penstock_sidecar.queue.batch_key import Keys
from penstock_sidecar.queue.batch_limits import Limits
from penstock_sidecar.queue.eviction import may_evict
from penstock_sidecar.queue.key import BatchKey
from penstock_sidecar.queue.queue import Queue
from penstock_sidecar.queue.request import Outcome, QueuedRequest
from penstock_wire.control.report import Fit
from penstock_wire.control.settings import Batching, Settings
from penstock_wire.errors import PenstockError, Reason, bad_timeout
from penstock_wire.headers import QUEUE, REQUEST_ID, RETRY, SERVER_TIMING, STICKY, get, timeout_ms
from penstock_wire.http import (
    ClientGone,
    Exchange,
    Request,
    Response,
    Tunnel,
    UpstreamAnswer,
    UpstreamError,
    tunnel,
)
from penstock_wire.http.answer_stream import AnswerStream
from penstock_wire.http2 import status as grpc_status
from penstock_wire.process import log
from penstock_wire.request_ids import RequestIds
from penstock_wire.timers import TIMER_SLACK, EarliestTimer

NONE = "none"
"""The value of `--protocol` if nothing is batched."""
QUEUE_FACTOR = 8
"""Requests that may wait for each one that may be with the model, unless the policy sets a limit."""
STREAM_BYTES = 64 * 1024
"""Maximum size of a request body that is received whole: one write instead of a stream."""
STREAM_IDLE_SECONDS = 60.0
"""Maximum silence of the model in a stream (or defaultTimeout, if that is longer) before the stream is cut,
unless its request sets a limit."""
MIN_SECONDS = 0.001
_KEY = BatchKey("", "", (), ())
_ONE = Limits(size=1, bytes=1)
_LINES = b"%b: queue;dur=%%.3f, model;dur=%%.3f\r\n%b: %%b\r\n%b: %%d\r\n" % (
    SERVER_TIMING,
    REQUEST_ID,
    QUEUE,
)


class RunObserver(RequestObserver, Protocol):
    """Counts requests, and those that were with the model."""

    def ran(self, items: int, limit: int, seconds: float, waits: tuple[float, ...] = ()) -> None:
        """Count a request that was with the model for `seconds`, after it had waited."""
        ...


class _PassedRequest(QueuedRequest):
    """One request on its way through: a single item."""

    __slots__ = ("begun", "exchange", "passthrough", "relay", "task")

    def __init__(
        self, passthrough: Passthrough, exchange: Exchange, request_id: bytes, arrived: float, expires: float
    ) -> None:
        super().__init__(_KEY, exchange.request, request_id, (b"",), (), arrived, expires, expires)
        self.passthrough = passthrough
        self.exchange = exchange
        self.begun = 0.0  # when it was sent to the model, 0 = not yet
        self.task: asyncio.Task[None] | None = None
        self.relay: AnswerStream | None = None

    def finish(self, outcome: Outcome) -> None:
        """Answer with an error of the sidecar."""
        if isinstance(outcome, PenstockError):
            self.passthrough.refuse_call(self, outcome)

    def gone(self) -> None:
        """Drop the request: its client went away before the answer."""
        self.passthrough.leave(self)

    def recall(self) -> int:
        """See `Request.recall`: another pod has a free slot."""
        return self.passthrough.hand_back(self)


class Passthrough:
    """Passes requests through.

    Args:
        open: sends to the model.
        settings: the settings to begin with.
        observer: counts requests.
        clock: the monotonic time in seconds.
        backend: name of the backend, for error documents; called each time, since settings bring it.
        pod: name of the pod, for error documents.
        first: called when a request arrives while nothing is queued or ongoing.
        on_room: called when `free`, or the queue, may have changed.
        trusts: whether the fields of a router count in requests from an address.
        takes_calls: whether the model takes gRPC calls as they are.

    `slots` requests may be with the model at once; `refusing` is the error of new requests while they are
    refused; `open_streams` and `open_tunnels` are the numbers of both.
    """

    def __init__(
        self,
        *,
        open: Open,
        settings: Settings,
        observer: RunObserver,
        clock: Callable[[], float],
        backend: Callable[[], str] = lambda: "",
        pod: str = "",
        first: Callable[[], None] = lambda: None,
        on_room: Callable[[], None] = lambda: None,
        trusts: Callable[[str], bool] = lambda _: True,
        takes_calls: bool = False,
    ) -> None:
        self._takes_calls = takes_calls
        self._loop = asyncio.get_running_loop()
        self._open = open
        self._observer = observer
        self._clock = clock
        self._first = first
        self._on_room = on_room
        self._trusts = trusts
        self._batching = settings.batching
        self._evicts = may_evict(settings.batching)
        self._queue = Queue(evicting=self._evicts)
        self._keys = Keys(key_fields=False, batching=settings.batching)
        self._calls: set[_PassedRequest] = set()
        self._tunnels: set[_PassedRequest] = set()
        self._changed = asyncio.Event()
        self._paused = False
        self._timer = EarliestTimer(self._ring, clock)
        self._ids = RequestIds()
        self._shared = SharedFields()
        self._responder = ErrorResponder(backend=backend, pod=pod, queued=lambda: self._queue.requests)
        # Cached queue-full error, and the state that it was built from.
        self._full: PenstockError | None = None
        self._full_of: tuple[int, int, int, float] = (0, 0, 0, 0.0)
        self.refusing: PenstockError | None = None
        self.counts = Counts()
        self.throughput = Throughput()
        self.open_streams = 0
        self.apply(settings)

    # State for others

    @property
    def unbatched(self) -> RequestPath | None:
        """See `RequestPath`: this is the last path."""
        return None

    @property
    def batching(self) -> Batching:
        """The policy in effect."""
        return self._batching

    @property
    def queued(self) -> int:
        """Number of requests that wait."""
        return self._queue.requests

    @property
    def ongoing(self) -> int:
        """Number of requests with the model."""
        return len(self._calls)

    @property
    def work(self) -> float | None:
        """See `RequestPath`: each request counts as one."""
        return None

    @property
    def free(self) -> int:
        """Number of requests that would be sent at once."""
        return 0 if self._paused or self._queue.requests else max(0, self.slots - len(self._calls))

    @property
    def open_tunnels(self) -> int:
        """Number of connections that have switched protocols."""
        return len(self._tunnels)

    @property
    def oldest_age(self) -> float:
        """Seconds that the oldest queued request has waited; 0 if none waits."""
        oldest = self._queue.oldest
        return 0.0 if oldest is None else max(0.0, self._clock() - oldest)

    @property
    def drain_seconds(self) -> float:
        """Seconds until all waiting requests are served, at the pace of the latest requests."""
        return self.throughput.drain_seconds(self._queue.requests, self.slots)

    @property
    def batch_limit(self) -> int:
        """See `RequestPath`: always 1, since requests are not batched."""
        return 1

    @property
    def batch_wait(self) -> float:
        """See `RequestPath`: requests that are not batched never wait for others."""
        return 0.0

    @property
    def queue_limit(self) -> int:
        """Maximum number of requests that may wait."""
        limit = self._batching.max_queued_items
        return QUEUE_FACTOR * self.slots if limit is None else limit

    def lines(self) -> list[dict[str, Any]]:
        """See `RequestPath`: there is one queue, of all requests."""
        if not self._queue.requests:
            return []
        return [{"requests": self._queue.requests, "oldestAgeMs": round(self.oldest_age * 1000)}]

    def fits(self) -> Mapping[str, Fit]:
        """See `RequestPath`: there are no batches to fit a latency model to."""
        return {}

    async def idle(self) -> None:
        """Wait until nothing is queued and nothing is with the model."""
        while self._queue.requests or self._calls:
            self._changed.clear()
            await self._changed.wait()

    async def quiet(self) -> None:
        """Wait until nothing is with the model."""
        while self._calls:
            self._changed.clear()
            await self._changed.wait()

    @staticmethod
    def streams(request: Request) -> bool:
        """Whether a request's body is large or of unknown length, and so a stream (a `wire.http.Streams`)."""
        return request.length is None or request.length > STREAM_BYTES

    # Actions of others

    def apply(self, settings: Settings) -> None:
        """Apply new settings; requests with the model are not disturbed."""
        before, batching = self._batching, settings.batching
        self._batching = batching
        if (batching.priority, batching.fairness) != (before.priority, before.fairness):
            self._keys.apply(batching)
            self._evicts = may_evict(batching)
            self._queue.rekey(self._rank, evicting=self._evicts)
        self.slots = settings.max_ongoing_requests
        self._fill()

    def pause(self) -> None:
        """Send nothing more; new requests wait."""
        self._paused = True
        self._on_room()

    def resume(self) -> None:
        """Send again."""
        self._paused = False
        self._fill()

    def model_changed(self, *, loaded: bool, gone: bool) -> None:
        """Forget how long requests took if the model's process has ended."""
        if gone:
            self.throughput = Throughput()

    def refuse(self, error: PenstockError | None) -> None:
        """Refuse new requests with an error, or take them again (None)."""
        self.refusing = error

    def refuse_queued(self, error: PenstockError) -> int:
        """Answer all queued requests with an error; returns their number.

        Tunnels are closed, too: they would never end by themselves.
        """
        for call in list(self._tunnels):
            if call.task is not None:
                call.task.cancel()
        waiting = list(self._queue)
        for work in waiting:
            self._queue.leave(work)
            work.finish(error)
        self._changed.set()
        self._on_room()
        return len(waiting)

    async def run(self) -> None:
        """Wait until cancelled: nothing runs by itself."""
        await self._loop.create_future()

    async def abort(self) -> None:
        """End all requests with the model at once; those without an answer get `model_unreachable`."""
        for call in list(self._calls):
            if call.relay is not None:
                await call.relay.aclose()
            elif call.task is not None:
                call.task.cancel()
                await asyncio.wait({call.task})
                stopped = "the sidecar was stopped before the model answered"
                self.refuse_call(call, PenstockError(Reason.MODEL_UNREACHABLE, stopped))

    def begin(self, exchange: Exchange) -> None:
        """Take a request (a `Service`)."""
        arrived = self._clock()
        request = exchange.request
        headers = request.headers
        request_id = self._ids.of(get(headers, REQUEST_ID))
        milliseconds = self._batching.default_timeout_ms
        asked = timeout_ms(headers)
        if asked is not None:
            if asked < 0:
                self._refuse(exchange, bad_timeout(headers), request_id)
                return
            milliseconds = min(milliseconds, asked)
        routed = self._trusts(request.peer)
        retry = routed and get(headers, RETRY) is not None
        call = self.take(exchange, request_id, arrived, arrived + milliseconds / 1000, retry=retry)
        # NB: a router keeps only a stream's first bytes, so it may be unable to send it to another pod.
        if call is not None and request.stream is None and not (routed and get(headers, STICKY) is not None):
            request.recall = call.recall

    def take(
        self, exchange: Exchange, request_id: bytes, arrived: float, expires: float, *, retry: bool
    ) -> _PassedRequest | None:
        """Take a request whose header fields were read.

        Args:
            exchange: the request's exchange.
            request_id: its id.
            arrived: when it arrived, in the clock's time.
            expires: deadline of the head of its answer, in the clock's time.
            retry: whether a pod has counted it before.

        Returns:
            The call if it waits, else None.
        """
        if self.refusing is not None:
            self._refuse(exchange, self.refusing, request_id)
            return None
        if exchange.request.trailers and not self._takes_calls:
            self._refuse(exchange, errors.no_grpc_port(exchange.request.path), request_id)
            return None
        if not retry:
            self._observer.arrived(1)
        if not self._queue.requests and not self._calls:
            self._first()
        if expires <= arrived:
            self._refuse(exchange, errors.late_on_arrival(), request_id)
            return None
        goes = not self._paused and len(self._calls) < self.slots and not self._queue.requests
        full = not goes and self._queue.requests >= self.queue_limit
        if full and not self._evicts:
            self._refuse(exchange, self._no_room(), request_id)
            return None
        call = _PassedRequest(self, exchange, request_id, arrived, expires)
        if self._evicts:
            self._rank(call)
        if full and not self._evict_for(call):
            self._refuse(exchange, self._no_room(), request_id)
            return None
        exchange.gone = call.gone
        if goes:
            self._start(call)
            self._on_room()
            return None
        self._queue.add(call)
        self._timer.ring_at(expires)
        self._on_room()
        return call

    def hand_back(self, call: _PassedRequest) -> int:
        """Give a waiting request back, for another pod; returns 1, or 0 if it does not wait."""
        if call.done or not call.queued:
            return 0
        self._queue.leave(call)
        self._changed.set()
        self.refuse_call(call, errors.handed_back())
        self._on_room()
        return 1

    def leave(self, call: _PassedRequest) -> None:
        """Drop a request whose client went away before its answer."""
        if call.done:
            return
        call.done = True
        call.exchange.request.recall = None
        self._observer.ended(499, Reason.CLIENT_GONE, 1)
        if call.queued:
            self._queue.leave(call)
            self._changed.set()
            self._on_room()
        elif call.task is not None:
            call.task.cancel()

    # Internals

    def _rank(self, work: QueuedRequest) -> None:
        """Set a request's level and share by the policy in effect."""
        read = self._keys.read_of(work.request)
        work.level, work.share = read.level, read.share

    def _evict_for(self, call: _PassedRequest) -> bool:
        """Make room in a full queue; returns whether there is room now."""
        limit = self.queue_limit
        evicted = self._queue.evict_for(call, call.arrived, limit=limit, space=sys.maxsize)
        for work in evicted:
            # NB: later: an answer may start the client's next request, if its connection has read it already.
            self._loop.call_soon(work.finish, self._no_room())
        return bool(evicted)

    def _next(self) -> _PassedRequest | None:
        """Take the request whose turn it is out of the queue."""
        if self._queue.choose(self._clock()) is None:
            return None
        (part,) = self._queue.cut(_KEY, _ONE)
        return cast("_PassedRequest", part.work)

    def _no_room(self) -> PenstockError:
        """The queue-full error; the same object while the numbers in it are the same."""
        limit, queued, ongoing = self.queue_limit, self._queue.requests, len(self._calls)
        # The newcomer would wait behind all in the queue; `slots` requests are served at once.
        seconds = (queued + 1) * self.throughput.seconds / self.slots
        state = (limit, queued, ongoing, seconds)
        if self._full is None or state != self._full_of:
            self._full_of = state
            self._full = errors.full(
                f"expected at most {limit} requests to wait, found {queued}; {ongoing} are ongoing",
                retry_after=min(MAX_RETRY_AFTER, max(1.0, seconds)),
            )
        return self._full

    def _refuse(self, exchange: Exchange, error: PenstockError, request_id: bytes) -> None:
        """Reject a request with an error that many requests share."""
        self._observer.ended(error.status, error.reason, 1)
        self._responder.reject(exchange, error, request_id)

    def _start(self, call: _PassedRequest) -> None:
        call.begun = self._clock()
        call.exchange.request.recall = None  # NB: it refers back to the request: a reference cycle
        self._calls.add(call)
        self.counts.batches += 1
        self.counts.batch_items += 1
        call.task = task = self._loop.create_task(self._pass(call))

        def ended(_: asyncio.Task[None]) -> None:
            # NB: a task that is cancelled before its first step never reaches its own `except`.
            if call in self._calls and call.relay is None:
                self._release(call)

        task.add_done_callback(ended)

    def _fill(self) -> None:
        """Send waiting requests while slots are free."""
        while self._queue.requests and not self._paused and len(self._calls) < self.slots:
            self._expire()
            call = self._next()
            if call is not None:
                self._start(call)
        self._on_room()

    def _expire(self) -> None:
        now = self._clock()
        while (work := self._queue.first()) is not None and work.deadline <= now + TIMER_SLACK:
            self._queue.leave(work)
            work.finish(errors.expired(now - work.arrived))

    def _ring(self) -> None:
        self._expire()
        self._changed.set()
        self._on_room()
        first = self._queue.first()
        if first is not None:
            self._timer.ring_at(first.deadline)

    async def _pass(self, call: _PassedRequest) -> None:
        """Send one request, and wait for the head of its answer, or the end of its tunnel."""
        try:
            exchange = call.exchange
            timeout = max(MIN_SECONDS, call.expires - call.begun)
            between = idle_seconds(exchange.request)
            if between is None:
                between = max(STREAM_IDLE_SECONDS, self._batching.default_timeout_ms / 1000)
            answer = await self._open(outgoing(exchange, call.request_id, timeout), timeout, between)
            if not admitted(answer):
                answer.abort()
                raise not_admitted(answer)
        except PenstockError as error:
            self._finish(call, error)
        except UpstreamError as error:
            whose = errors.whose(call.expires - call.arrived, self._batching.default_timeout_ms)
            failed = failure(error, executed=False, whose=whose)
            request_id = call.request_id.decode()
            log("the model did not answer", level="warning", reason=failed.reason, request_id=request_id)
            self._finish(call, failed)
        except ClientGone:
            self.leave(call)
            self._finish(call, None)
        except asyncio.CancelledError:
            self._finish(call, None)
            raise
        except Exception as error:
            log("request failed", level="error", error=repr(error), request_id=call.request_id.decode())
            self._finish(call, PenstockError(Reason.INTERNAL, "the request could not be handled"))
        else:
            if call.done:  # the client left meanwhile
                answer.abort()
                self._finish(call, None)
            elif answer.tunnel is not None:
                await self._tunnel(call, answer, answer.tunnel)
            else:
                self._answer(call, answer)

    def _lines(self, call: _PassedRequest) -> bytes:
        """The header lines that are specific to one answer: its times, its id, the queue."""
        queued, head = (call.begun - call.arrived) * 1e3, (self._clock() - call.begun) * 1e3
        return _LINES % (queued, head, call.request_id, self._queue.requests)

    def _answer(self, call: _PassedRequest, answer: UpstreamAnswer) -> None:
        """Answer the client; a body that is not complete yet follows as it comes."""
        headers, lines = self._shared.of(from_model(answer.headers)), self._lines(call)
        body = answer.whole()
        if body is not None:
            response = Response(answer.status, headers, body)
            response.lines, response.trailers = lines, answer.trailers
            if call.exchange.request.method == "HEAD":
                response.length = answer.length
            self._answered(call, answer)
            call.exchange.answer(response)
            return

        def ended(error: Exception | None) -> None:
            self.open_streams -= 1
            if error is None:
                self._answered(call, answer)
            elif isinstance(error, UpstreamError):
                request_id = call.request_id.decode()
                log("answer broke off", level="warning", error=str(error), request_id=request_id)
                self._ended(call, answer.status, failure(error, executed=True).reason)
            elif isinstance(error, ClientGone):
                self._ended(call, 499, Reason.CLIENT_GONE)
            else:
                request_id = call.request_id.decode()
                log("request failed", level="error", error=repr(error), request_id=request_id)
                self._ended(call, answer.status, Reason.INTERNAL)

        self.open_streams += 1
        call.relay = relay = AnswerStream(answer, ended)
        response = Response(answer.status, headers, stream=relay, length=answer.length)
        response.lines, response.trailers = lines, answer.trailers
        call.exchange.answer(response)

    async def _tunnel(self, call: _PassedRequest, answer: UpstreamAnswer, model: Tunnel) -> None:
        reason: Reason | None = None
        self._tunnels.add(call)
        try:
            switched = Response(101, from_model(answer.headers))
            switched.lines = self._lines(call)
            client = call.exchange.switch(switched.fields)
            call.done = True  # from here on no answer can be sent
            await tunnel.join(client, model, idle_seconds(call.exchange.request) or tunnel.IDLE_SECONDS)
        except tunnel.TunnelIdle as error:
            reason = Reason.DEADLINE
            log("tunnel was idle", error=str(error), request_id=call.request_id.decode())
        except ClientGone:
            answer.abort()
            reason = Reason.CLIENT_GONE
        except UpstreamError:
            reason = Reason.MODEL_UNREACHABLE
        except asyncio.CancelledError:
            answer.abort()
            reason = Reason.DRAINING
            raise
        except Exception as error:
            answer.abort()
            reason = Reason.INTERNAL
            log("tunnel failed", level="error", error=repr(error), request_id=call.request_id.decode())
        finally:
            self._tunnels.discard(call)
            call.done = False
            self._ended(call, 101, reason)

    def _finish(self, call: _PassedRequest, error: PenstockError | None) -> None:
        """End a request that got no answer from the model."""
        self._release(call)
        if error is not None:
            self.refuse_call(call, error)

    def _answered(self, call: _PassedRequest, answer: UpstreamAnswer) -> None:
        """End a request whose answer is complete; that of a gRPC call says at its end how the call went."""
        status = answer.status
        if call.exchange.request.trailers and status == 200:
            behind = () if answer.trailers is None else answer.trailers.fields
            code = grpc_status.code_of((*answer.headers, *behind))
            status = grpc_status.to_http(grpc_status.UNKNOWN if code < 0 else code)
        self._ended(call, status, None, model_reason(status, answer.headers))

    def _ended(self, call: _PassedRequest, status: int, reason: Reason | None, cause: str = "") -> None:
        """End a request whose answer is complete, or broke off."""
        if not call.done:
            call.done = True
            self._observer.ended(status, reason, 1, cause)
        if call in self._calls:
            seconds = self._clock() - call.begun
            self._observer.ran(1, 1, seconds, (call.begun - call.arrived,))
            if reason is None and status < 400:
                self.throughput.observe(1, seconds)
        self._release(call)

    def _release(self, call: _PassedRequest) -> None:
        self._calls.discard(call)
        call.task = call.relay = None
        self._changed.set()
        self._fill()

    def refuse_call(self, call: _PassedRequest, error: PenstockError) -> None:
        """Answer with the sidecar's own error, unless the client left or has its answer."""
        if call.done:
            return
        call.done = True
        call.exchange.request.recall = None
        self._observer.ended(error.status, error.reason, 1)
        call.exchange.answer(self._responder.own(error, call.request_id))
