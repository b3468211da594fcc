"""A request on its way, and what a try to get it answered has come to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from penstock_router.header_policy import RETRY_LINE, AnswerFields, request_lines
from penstock_router.pod import Pod
from penstock_router.pods import Pods
from penstock_router.request_body import KEPT_BYTES, RequestBody
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import Headers
from penstock_wire.http import (
    AnswerUnreadable,
    ConnectFailed,
    ConnectionLost,
    ConnectTimeout,
    Exchange,
    PeerSilent,
    Request,
    RequestNotTaken,
    RequestUnread,
    Response,
    UpstreamAnswer,
    UpstreamError,
    UpstreamTimeout,
)
from penstock_wire.http.messages import CONTINUE

if TYPE_CHECKING:
    from penstock_router.endpoints import EndpointState
    from penstock_router.steering import Steering

TELLING_SECONDS: Final = 0.2
"""A connect attempt cut short in less by the request's own deadline is not held against the pod."""
UNREAD_SECONDS: Final = 1.0
"""A pod that ends a kept connection just when a request is sent on it says so within less. A reset that comes
later may be another's, who has the pod's address by now."""
MAX_MOVES: Final = 4
"""A request that pods have handed back so often goes over HTTP/1.1, where none hands it back: it stays in a
queue."""
CONNECT_FAILED, CONNECTION_CLOSED = "connect_failed", "connection_closed"
"""Why a further try was made, beside the sidecars' own words."""
_UNREADY: Final = frozenset({Reason.MODEL_UNREACHABLE.value, Reason.NOT_READY.value})
"""Refusals by a pod whose model takes no requests now: it would refuse all that it gets."""


class Unexecuted:
    """A try that was surely not executed.

    Args:
        reason: why, one word.
        answer: the sidecar's refusal; None if no connection could be made.
        detail: for people.
    """

    __slots__ = ("answer", "detail", "reason")

    def __init__(self, reason: str, answer: Response | None = None, detail: str = "") -> None:
        self.reason = reason
        self.answer = answer
        self.detail = detail

    @property
    def is_connecting(self) -> bool:
        """No connection could be made."""
        return self.reason == CONNECT_FAILED

    @property
    def is_load(self) -> bool:
        """The pod is well and refused for its load: the same pod again would make no sense."""
        return self.answer is not None and self.reason != Reason.DRAINING.value

    @property
    def is_moved(self) -> bool:
        """The pod has handed the request back, since another one would begin it at once."""
        return self.answer is not None and self.reason == Reason.MOVED.value

    @property
    def is_for_room(self) -> bool:
        """The pod's queue is full: it, or another, may have room in a moment."""
        return self.answer is not None and self.reason == Reason.QUEUE_FULL.value


class RequestTrace(Protocol):
    """Where it is noted what becomes of a request that is traced."""

    def waits(self, now: float) -> None:
        """It may have to be held, from this second of the router's clock on."""

    def goes_on(self, now: float) -> None:
        """It is held no more."""

    def again(self, pod: Pod, reason: str) -> None:
        """It was not executed by a pod, and there is to be another try."""

    def ended(
        self, proxied: ProxiedRequest, now: float, status: int, reason: str, error: Exception | None
    ) -> None:
        """It is over; with an error where its answer ended early."""


class Owner:
    """Who has a request, as that sees it: `forwarder.Forwarder`.

    A base class, not a Protocol: see `answer.Carrier`. No object is made of it.
    """

    def opened(self, proxied: ProxiedRequest, answer: Response | UpstreamAnswer | UpstreamError) -> None:
        """A pod has answered, or will not."""
        raise NotImplementedError

    def leave(self, proxied: ProxiedRequest) -> None:
        """The client of a request has left."""
        raise NotImplementedError


class ProxiedRequest:
    """One client's request on its way.

    Args:
        exchange: where its answer goes.
        state: its endpoint.
        request: as it came, its target without the route.
        shared: the fields for a sidecar that other requests may have as well.
        identity: its `x-request-id`.
        sequence: its number by arrival among all requests.
        arrived: when it came, in seconds of the router's clock.
        client_ms: the client's own time for it, in milliseconds; -1 for one that cannot be read, None for
            none.
        route: what was taken from its target, as the client wrote it; empty for nothing.
        owner: who has it.
    """

    __slots__ = (
        "arrived",
        "backend",
        "body",
        "client_deadline",
        "counted",
        "deadline",
        "drawn",
        "ends",
        "exchange",
        "give_up",
        "identity",
        "left",
        "moves",
        "owner",
        "pod",
        "request",
        "route",
        "sent",
        "sequence",
        "shared",
        "state",
        "steering",
        "trace",
    )

    def __init__(
        self,
        exchange: Exchange,
        state: EndpointState,
        request: Request,
        shared: Headers,
        identity: bytes,
        sequence: int,
        arrived: float,
        client_ms: int | None,
        route: bytes,
        owner: Owner | None = None,
    ) -> None:
        self.owner = owner
        self.exchange: Exchange | None = exchange  # None once it is answered, or its client gone
        self.state = state
        self.request = request
        self.shared = shared
        self.identity = identity
        self.sequence = sequence
        self.arrived = arrived
        self.client_deadline = None if client_ms is None else arrived + client_ms / 1000
        self.route = route
        stream = request.stream
        self.body = None if stream is None else RequestBody(stream, state.settings.max_body_bytes)
        """Its body, where that is a stream."""
        self.ends = None if state.total is None else arrived + state.total
        """When it is over, however far its answer is; None for no such time."""
        self.deadline: float | None = None
        """When its time is over; set when it leaves the hold."""
        self.steering: Steering | None = None
        """What decides who gets it, beside weights and loads; None for nothing."""
        self.drawn: str | None = None
        """The backend that was drawn for it; None before."""
        self.backend = ""
        """Who got its last try; empty before any."""
        self.pod: Pod | None = None
        """Who was asked last; None before any."""
        self.sent = 0.0
        """When its last try began, in seconds of the router's clock."""
        self.left = 0.0
        """Seconds that it had then."""
        self.moves = 0
        """How often a pod has handed it back."""
        self.counted = False
        """A pod has counted it as an arrival, and refused it or handed it back."""
        self.trace: RequestTrace | None = None
        """Where it is noted what becomes of it; None if it is not traced."""
        self.give_up: Callable[[], object] | None = None
        """Ends what is under way for it."""

    def opened(self, answer: Response | UpstreamAnswer | UpstreamError) -> None:
        """A pod has answered, or will not."""
        if self.owner is not None:
            self.owner.opened(self, answer)

    def leave(self) -> None:
        """Its client has left."""
        if self.owner is not None:
            self.owner.leave(self)

    @property
    def kept(self) -> int:
        """Bytes of its body that are kept while it is held."""
        return len(self.request.body) if self.body is None else KEPT_BYTES

    @property
    def received(self) -> int:
        """Bytes of its body that have come."""
        return len(self.request.body) if self.body is None else self.body.received

    @property
    def resendable(self) -> bool:
        """Whether it can be sent once more."""
        return self.body is None or self.body.resendable

    @property
    def idle(self) -> float:
        """Seconds that a piece of its answer may take."""
        idle = self.state.idle
        return self.left if idle is None else idle

    def upstream_request(self, now: float) -> Request:
        """The request for a pod; its time begins with the first one.

        Args:
            now: seconds of the router's clock.

        Raises:
            PenstockError: `deadline`: its time is over.
        """
        deadline = self.deadline
        if deadline is None:
            deadline = now + self.state.first_byte
            if self.client_deadline is not None and self.client_deadline < deadline:
                deadline = self.client_deadline
            if self.ends is not None and self.ends < deadline:
                deadline = self.ends
            self.deadline = deadline
        self.sent = now
        self.left = left = deadline - now
        if left <= 0:
            raise PenstockError(Reason.DEADLINE, "the request's time was over before a pod could be asked")
        request = self.request
        out = Request(
            request.method,
            request.target,
            self.shared,
            request.body,
            interim=self.interim,
            lines=request_lines(self.identity, left),
        )
        if self.counted:
            out.lines += RETRY_LINE
        if self.body is not None:
            out.stream = self.body.begin()
            out.length = request.length
            out.expects = True
        out.upgrade = request.upgrade
        out.fresh = self.moves > MAX_MOVES
        return out

    @property
    def limit(self) -> str:
        """Which time is over at `deadline`, for people."""
        deadline = self.deadline
        if deadline is not None and deadline == self.client_deadline:
            return "the request's x-penstock-timeout-ms"
        if deadline is not None and deadline == self.ends:
            return "the endpoint's timeouts.total"
        timeouts = self.state.settings.timeouts
        named = timeouts is not None and timeouts.first_byte_ms is not None
        return "the endpoint's timeouts.firstByte" if named else "the endpoint's timeout"

    def interim(self, status: int, headers: Headers) -> None:
        """Pass an interim answer of a pod on, unless it concerns our connection there alone."""
        if status == CONTINUE:
            if self.body is not None:
                self.body.go_on()
        elif self.exchange is not None:
            self.exchange.interim(status, AnswerFields(headers).outward)


def failed(proxied: ProxiedRequest, pod: Pod, error: UpstreamError, pods: Pods, now: float) -> Unexecuted:
    """What a try without an answer comes to.

    Args:
        proxied: the request.
        pod: who was asked.
        error: why there is no answer.
        pods: where it is noted.
        now: seconds of the router's clock.

    Returns:
        That it was surely not executed.

    Raises:
        PenstockError: it may have been executed, or can be sent to no pod.
    """
    left = proxied.left
    if isinstance(error, ConnectFailed):
        if isinstance(error, ConnectTimeout) and now - proxied.sent < TELLING_SECONDS:
            raise PenstockError(Reason.DEADLINE, str(error)) from error
        pods.failed(pod, str(error))
        return Unexecuted(CONNECT_FAILED, None, str(error))
    if isinstance(error, UpstreamTimeout):
        raise PenstockError(Reason.DEADLINE, f"no answer within {left:.3f} s ({proxied.limit})") from error
    if isinstance(error, ConnectionLost):
        early = now - proxied.sent < UNREAD_SECONDS
        if isinstance(error, RequestNotTaken) or (early and isinstance(error, RequestUnread)):
            return Unexecuted(CONNECTION_CLOSED, None, str(error))
        if isinstance(error, PeerSilent):
            pod.silent(now)
        unreadable = isinstance(error, AnswerUnreadable)
        reason = Reason.BAD_ANSWER if unreadable else Reason.MODEL_UNREACHABLE
        raise PenstockError(reason, str(error)) from error
    raise PenstockError(Reason.BAD_REQUEST, str(error)) from error


def answered(
    proxied: ProxiedRequest, pod: Pod, fields: AnswerFields, answer: Response, pods: Pods, now: float
) -> Unexecuted | None:
    """What a try with an answer comes to: None if that is the client's.

    Args:
        proxied: the request.
        pod: who has answered.
        fields: the answer's.
        answer: the answer.
        pods: where it is noted.
        now: seconds of the router's clock.
    """
    if fields.queued >= 0:
        pod.reports_queue(fields.queued, now)
    if not fields.refuses:
        pods.reached(pod)
        return None
    word = fields.reason or "other"
    if word in _UNREADY:
        pods.unready(pod)
    else:
        pods.reached(pod)
    if word == Reason.DRAINING.value:
        pods.refuses(pod)  # NB: one that drains counts no arrivals
    else:
        proxied.counted = True
    if word == Reason.QUEUE_FULL.value:
        pods.full(pod)
    elif word == Reason.MOVED.value:
        pod.unproven = 0
    if answer.stream is not None:  # no sidecar's: its refusals are short
        answer = Response(answer.status, answer.headers)
    return Unexecuted(word, answer)
