"""A request from its arrival to its answer: read it, accept it, answer it once."""

from __future__ import annotations

from collections.abc import Callable

from penstock_sidecar.admission import errors
from penstock_sidecar.admission.error_responses import ErrorResponder
from penstock_sidecar.batching.dispatcher import Dispatcher
from penstock_sidecar.interfaces import RequestObserver
from penstock_sidecar.model.answers import model_reason
from penstock_sidecar.passthrough.passthrough import STREAM_BYTES, Passthrough
from penstock_sidecar.protocols.base import BatchProtocol
from penstock_sidecar.queue.batch_key import RequestFields
from penstock_sidecar.queue.key import BatchKey
from penstock_sidecar.queue.request import Outcome, QueuedRequest
from penstock_wire.errors import PenstockError, Reason, bad_timeout
from penstock_wire.headers import QUEUE, REQUEST_ID
from penstock_wire.http import Exchange, Request, Response
from penstock_wire.http.server.limits import MAX_BODY_BYTES
from penstock_wire.process import log
from penstock_wire.request_ids import RequestIds

_LINES = REQUEST_ID + b": %b\r\n" + QUEUE + b": %d\r\n"


class _BatchedRequest(QueuedRequest):
    """A request on its connection."""

    __slots__ = ("exchange", "handler")

    exchange: Exchange | None
    handler: SidecarHandler

    def finish(self, outcome: Outcome) -> None:
        exchange, self.exchange = self.exchange, None
        self.request.recall = None
        if exchange is not None:
            exchange.gone = None
            self.handler.answer(exchange, outcome, self.request_id, self.size)

    def recall(self) -> int:
        """See `Request.recall`: another pod has a free slot."""
        if self.exchange is None or not self.queued or self.taken or self.executed:
            return 0
        self.handler.hand_back(self)
        return self.size

    def gone(self) -> None:
        """Drop the request: its client went away."""
        if self.exchange is not None:
            self.exchange = None
            self.request.recall = None
            self.handler.left(self)


class SidecarHandler:
    """Answers the requests of the data port: `begin` is a `Service`.

    Args:
        dispatcher: takes the requests that were read.
        protocol: reads requests.
        passthrough: takes requests that are not of the protocol.
        observer: counts requests.
        clock: the time in seconds.
        backend: name of the backend, for error documents; called each time, since settings bring it.
        pod: name of the pod, for error documents.
        first: called when a request arrives while nothing is queued or ongoing.
        max_body_bytes: a larger body of a batched request is refused by the front.
        trusts: whether the fields of a router count in requests from an address.
        whole: whether requests that pass through are sent whole, since the model speaks gRPC alone.
    """

    def __init__(
        self,
        *,
        dispatcher: Dispatcher,
        protocol: BatchProtocol,
        passthrough: Passthrough,
        observer: RequestObserver,
        clock: Callable[[], float],
        backend: Callable[[], str] = lambda: "",
        pod: str = "",
        first: Callable[[], None] = lambda: None,
        max_body_bytes: int = MAX_BODY_BYTES,
        trusts: Callable[[str], bool] = lambda _: True,
        whole: bool = False,
    ) -> None:
        self._whole = whole
        self._max_body_bytes = max_body_bytes
        self._dispatcher = dispatcher
        self._admission = dispatcher.admission
        self._pace = dispatcher.pace
        self._keys = dispatcher.keys
        self._protocol = protocol
        self._observer = observer
        self._clock = clock
        self._responder = ErrorResponder(backend=backend, pod=pod, queued=lambda: dispatcher.queued)
        self._first = first
        self._trusts = trusts
        self._passthrough = passthrough
        self._ids = RequestIds()

    def streams(self, request: Request) -> bool:
        """Whether a request's body is to be a stream (a `Streams`).

        It is if the body is large and the request passes through, or if the request would be refused: then
        its body need not come at all.
        """
        if self._protocol.passes(request):
            return not self._whole and self._passthrough.streams(request)
        length = request.length
        if length is None or not STREAM_BYTES < length <= self._max_body_bytes:
            return False
        admission, now = self._admission, self._clock()
        fields = self._read(request)
        if fields.timeout_ms is not None and fields.timeout_ms < 0:
            return True
        deadline, expires = admission.deadlines(now, fields.timeout_ms, held=fields.held)
        return admission.check_head(request.target, fields, now, deadline, expires) is not None

    def begin(self, exchange: Exchange) -> None:
        """Take a request (a `Service`)."""
        admission, keys = self._admission, self._keys
        request = exchange.request
        arrived = self._clock()
        fields = self._read(request)
        request_id = self._ids.of(fields.request_id)
        size = 0
        try:
            if admission.refusing is not None:
                self._refuse(exchange, admission.refusing, request_id, 0)
                return
            if fields.timeout_ms is not None and fields.timeout_ms < 0:
                raise bad_timeout(request.headers)
            deadline, expires = admission.deadlines(arrived, fields.timeout_ms, held=fields.held)
            if request.upgrade or self._protocol.passes(request):
                self._passthrough.take(exchange, request_id, arrived, expires, retry=fields.retry)
                return
            if request.stream is not None or admission.may_reject(arrived, expires):
                rejected = admission.check_head(request.target, fields, arrived, deadline, expires)
                if rejected is None and request.stream is not None:
                    # The request was to be rejected by its head, so its body was not read; now there is room.
                    rejected = admission.queue_full(1)
                if rejected is not None:
                    self._arrived(1, fields)
                    self._refuse(exchange, rejected, request_id, 1)
                    return
            parsed = self._protocol.parse(request)
            if parsed is None:
                self._passthrough.take(exchange, request_id, arrived, expires, retry=fields.retry)
                return
            if parsed.fields is not None:
                request.headers = parsed.fields
                request.shared = None
                fields = self._of_sender(keys.read(parsed.fields), request)
            items = parsed.items
            if items and not parsed.lone:
                key = keys.key(request.method, request.target, fields.fields, parsed.parameters, fields.share)
                if key.streamed and len(items) > 1 and self._protocol.item_streams:
                    # A stream answers one item; only the model can define one for several items.
                    key = BatchKey(
                        request.method, request.target, fields.fields, parsed.parameters, lone=True
                    )
            else:
                # A request without items cannot be joined with others: only the model can interpret it.
                key = BatchKey(request.method, request.target, fields.fields, parsed.parameters, lone=True)
            reader = self._dispatcher.costs
            call = _BatchedRequest(
                key,
                request,
                request_id,
                items,
                fields.shared,
                arrived,
                deadline,
                expires,
                fields.level,
                fields.share,
                None if reader is None or key.lone else reader.of(items),
            )
            size = call.size
            call.exchange = exchange
            call.handler = self
            self._arrived(size, fields)
            if self._pace.latency_model.by_cost and (fields.unread or not fields.retry):
                self._dispatcher.arrived(call)
            self._dispatcher.accept(call)
            exchange.gone = call.gone
            if not fields.sticky:
                request.recall = call.recall
        except PenstockError as refusal:
            if refusal.reason is Reason.QUEUE_FULL:
                refusal.__traceback__ = None  # other requests get the same object; it must keep no frame
                self._refuse(exchange, refusal, request_id, size)
            else:
                self.answer(exchange, refusal, request_id, size)
        except Exception as error:
            log("request failed", level="error", error=repr(error), request_id=request_id.decode())
            failed = PenstockError(Reason.INTERNAL, "the request could not be handled")
            self.answer(exchange, failed, request_id, size)

    def answer(self, exchange: Exchange, outcome: Outcome, request_id: bytes, items: int) -> None:
        """Send an outcome to the client.

        Args:
            exchange: the client's exchange.
            outcome: the answer or error.
            request_id: the request's id.
            items: its items, 0 if it could not be read.
        """
        if isinstance(outcome, Response):
            outcome.lines += _LINES % (request_id, self._dispatcher.queued)
            cause = model_reason(outcome.status, outcome.headers) if outcome.status >= 400 else ""
            self._observer.ended(outcome.status, None, items, cause)
            exchange.answer(outcome)
            return
        self._observer.ended(outcome.status, outcome.reason, items)
        exchange.answer(self._responder.own(outcome, request_id))

    def _refuse(self, exchange: Exchange, error: PenstockError, request_id: bytes, items: int) -> None:
        """Reject a request with an error that many requests share."""
        self._observer.ended(error.status, error.reason, items)
        self._responder.reject(exchange, error, request_id)

    def hand_back(self, work: QueuedRequest) -> None:
        """Give a queued request back, for another pod."""
        self._dispatcher.settle(work, errors.handed_back())
        self._dispatcher.leave(work)  # wakes those that wait until nothing is left

    def left(self, work: QueuedRequest) -> None:
        """Drop an accepted request whose client went away."""
        self._observer.ended(499, Reason.CLIENT_GONE, work.size)
        self._dispatcher.leave(work)

    def _read(self, request: Request) -> RequestFields:
        return self._of_sender(self._keys.read_of(request), request)

    def _of_sender(self, fields: RequestFields, request: Request) -> RequestFields:
        """The fields, without those of a router if another has sent them."""
        if (fields.retry or fields.held or fields.sticky) and not self._trusts(request.peer):
            return fields.of_client()
        return fields

    def _arrived(self, items: int, fields: RequestFields) -> None:
        if not fields.retry:
            self._observer.arrived(items)
        elif fields.unread and items > 1:
            self._observer.arrived(items - 1)
        if self._dispatcher.is_idle:
            self._first()
