"""A request in progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock_router.choice.steering import Steering
from penstock_router.endpoints import EndpointState
from penstock_router.forwarding.retry import MAX_MOVES, Hold, Step, Tries, Unexecuted, next_step
from penstock_router.messages.header_policy import (
    HELD_LINE,
    RETRY_LINE,
    UNREAD_LINE,
    AnswerFields,
    request_lines,
)
from penstock_router.messages.request_body import KEPT_BYTES, RequestBody
from penstock_router.pods.pod import Pod
from penstock_router.pods.pool import Pods
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import Headers
from penstock_wire.http import Exchange, Request, Response, UpstreamAnswer, UpstreamError
from penstock_wire.http.messages import CONTINUE


class RequestTrace(Protocol):
    """Records the course of a request that is traced. Times are seconds of the router's clock."""

    def waits(self, now: float) -> None:
        """Note that the request may be held from now on."""

    def goes_on(self, now: float) -> None:
        """Note that the request is no longer held."""

    def again(self, pod: Pod, reason: str) -> None:
        """Note that a pod did not execute the request, and that another try follows."""

    def ended(
        self, proxied: ProxiedRequest, now: float, status: int, reason: str, error: Exception | None
    ) -> None:
        """Note that the request is over; with an error if its answer ended early."""


class Owner:
    """The interface of a request's owner, which is `forwarder.Forwarder`.

    A base class, not a Protocol: see `answer.Carrier`. It is not instantiated.
    """

    def opened(self, proxied: ProxiedRequest, answer: Response | UpstreamAnswer | UpstreamError) -> None:
        """Take a pod's answer, or the error instead of it."""
        raise NotImplementedError

    def connected(self, proxied: ProxiedRequest) -> None:
        """Note that a connection to its pod was made for a request."""
        raise NotImplementedError

    def leave(self, proxied: ProxiedRequest) -> None:
        """End a request whose client has left."""
        raise NotImplementedError


class ProxiedRequest:
    """One client's request in progress.

    Args:
        exchange: takes its answer.
        request: the request as received, its target without the route.
        shared: the fields for a sidecar, which requests with the same head share.
        identity: its `x-request-id`.
        sequence: its number by arrival among all requests.
        arrived: when it arrived, in seconds of the router's clock.
        client_ms: the client's own timeout for it, in milliseconds; -1 for an unreadable one, None for none.
        route: the route that was taken from its target, as the client wrote it; empty for none.
        owner: handles its answer.
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
        "held",
        "identity",
        "left",
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
        "tries",
        "unread",
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
        self.exchange: Exchange | None = exchange  # None once it is answered, or its client has left
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
        """Its body, if that is a stream; else None."""
        self.ends = None if state.total is None else arrived + state.total
        """When it is cut off, however far its answer is; None for no limit."""
        self.deadline: float | None = None
        """When the head of its answer is due; set when it leaves the hold."""
        self.steering: Steering | None = None
        """The choices of backend and pod by its fields; None for none."""
        self.drawn: str | None = None
        """The backend that was drawn for it; None before."""
        self.backend = ""
        """The backend of its last try; empty before any."""
        self.pod: Pod | None = None
        """The pod of its last try; None before any."""
        self.sent = 0.0
        """When its last try began, in seconds of the router's clock."""
        self.left = 0.0
        """Seconds that it had left then."""
        self.tries: Tries | None = None
        """Its tries that were not executed; None for none."""
        self.counted = False
        """Whether a pod has counted it as an arrival, and refused it or handed it back."""
        self.unread = False
        """Whether it was counted as one item, since no pod has read it."""
        self.held = False
        """Whether it was held for a pod, and not only for room in one."""
        self.trace: RequestTrace | None = None
        """Its trace; None if it is not traced."""
        self.give_up: Callable[[], object] | None = None
        """Cancels its present try; None if there is none."""

    def opened(self, answer: Response | UpstreamAnswer | UpstreamError) -> None:
        """Pass a pod's answer, or the error instead of it, to the owner."""
        if self.owner is not None:
            self.owner.opened(self, answer)

    def connected(self) -> None:
        """Report to the owner that a connection to its pod was made."""
        if self.owner is not None:
            self.owner.connected(self)

    def leave(self) -> None:
        """Report to the owner that the client has left."""
        if self.owner is not None:
            self.owner.leave(self)

    @property
    def kept(self) -> int:
        """Bytes of its body that are kept while it is held."""
        return len(self.request.body) if self.body is None else KEPT_BYTES

    @property
    def received(self) -> int:
        """Bytes of its body that have been received."""
        return len(self.request.body) if self.body is None else self.body.received

    @property
    def resendable(self) -> bool:
        """Whether it can be sent again."""
        return self.body is None or self.body.resendable

    @property
    def stays(self) -> bool:
        """Whether it is sent over HTTP/1.1, so that the pod that gets it keeps it."""
        return self.tries is not None and self.tries.moves > MAX_MOVES

    @property
    def idle(self) -> float:
        """Seconds that a piece of its answer may take."""
        idle = self.state.idle
        return self.left if idle is None else idle

    def upstream_request(self, now: float) -> Request:
        """Make the request for a pod; the first call sets the deadline.

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
            out.lines += UNREAD_LINE if self.unread else RETRY_LINE
        if self.held:
            out.lines += HELD_LINE
        if self.body is not None:
            out.stream = self.body.begin()
            out.length = request.length
            out.expects = not request.trailers  # a gRPC call's body is not asked for first
            if request.trailers:
                self.body.go_on()
        out.trailers = request.trailers
        out.upgrade = request.upgrade
        out.fresh = self.stays
        return out

    def step_after(self, outcome: Unexecuted, pod: Pod, pods: Pods) -> Step:
        """Record a try that was not executed, and decide what follows it."""
        tries = self.tries
        if tries is None:
            tries = self.tries = Tries()
        size = None if tries.again or outcome.is_draining else self.kept
        step = next_step(
            outcome,
            tries,
            most=self.state.settings.retries,
            resendable=self.resendable,
            room=outcome.is_for_room and pods.has_room(self.backend, without=[*tries.without, pod]),
            holdable=self.state.may_hold(self.arrived, size),
        )
        tries.take(step, outcome, pod, self.backend)
        if isinstance(step, Hold) and not step.for_room:
            self.deadline = None  # its time begins with a pod that takes it
        return step

    @property
    def client_limits(self) -> bool:
        """Whether the client's own timeout is the shortest limit until the head of its answer."""
        own = self.client_deadline
        return own is not None and (self.deadline is None or own <= self.deadline)

    @property
    def limit(self) -> str:
        """The name of the limit that set `deadline`, for people."""
        if self.client_limits:
            return "the request's x-penstock-timeout-ms"
        deadline = self.deadline
        if deadline is not None and deadline == self.ends:
            return "the endpoint's timeouts.total"
        timeouts = self.state.settings.timeouts
        named = timeouts is not None and timeouts.first_byte_ms is not None
        return "the endpoint's timeouts.firstByte" if named else "the endpoint's timeout"

    def interim(self, status: int, headers: Headers) -> None:
        """Pass on a pod's interim answer, unless it concerns only the router's connection to the pod."""
        if status == CONTINUE:
            if self.body is not None:
                self.body.go_on()
        elif self.exchange is not None:
            self.exchange.interim(status, AnswerFields(headers).outward)
