"""One request, from the edge to a pod and back.

The steps: the method, a permit (`endpoints`), a pod (`pods`), one try, and another try on another pod only
where nothing was executed: no connection could be made, the pod had ended the kept one before it read the
request, or the sidecar marked its refusal as not admitted.
A connection that could not be made is no try of the client's where the request may be held: it waits until
one of the backend's pods can be reached. Nor is a refusal for want of room: every other pod that may have
room is asked, then the request waits for room. Once a request went out on a connection and no answer came, it
may have been executed: it is answered 502.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Callable

from penstock_router.cors import is_preflight
from penstock_router.endpoints import EndpointState, HoldOver
from penstock_router.header_policy import (
    allows,
    inward,
    one_hop_less,
    outward,
    outward_fields,
    request_id,
    with_time,
)
from penstock_router.hold_queue import Permit
from penstock_router.metrics import Metrics
from penstock_router.pods import Pod, Pods
from penstock_router.response_body import receive
from penstock_wire.access_log import AccessLog
from penstock_wire.errors import MODEL_ANSWER, PenstockError, Reason, bad_timeout
from penstock_wire.headers import NOT_ADMITTED, QUEUE, REASON, Headers, get, timeout_ms
from penstock_wire.http import (
    AnswerUnreadable,
    ConnectFailed,
    ConnectionLost,
    ConnectTimeout,
    PeerSilent,
    Request,
    RequestUnread,
    Response,
    Upstream,
    UpstreamError,
    UpstreamTimeout,
)
from penstock_wire.http.server.head import METHODS
from penstock_wire.process import log

SAME_POD_PAUSE_SECONDS = 0.1
"""Before the only pod of a backend, which could not be reached, is tried again where there is no room in the
hold."""
TELLING_SECONDS = 0.2
"""A connect attempt cut short in less by the request's own deadline is not held against the pod."""
UNREAD_SECONDS = 1.0
"""A pod that ends a kept connection just when a request is sent on it says so within less. A reset that comes
later may be another's, who has the pod's address by now."""
CONNECT_FAILED, CONNECTION_CLOSED = "connect_failed", "connection_closed"
"""Why a further try was made, beside the sidecars' own words."""
CLIENT_GONE = "499"
"""The code under which a request whose client left is counted."""

_REASONS = {reason.value.encode(): reason.value for reason in Reason}


@dataclasses.dataclass(frozen=True, slots=True)
class Unexecuted:
    """A try that was surely not executed.

    Args:
        reason: why, one word.
        answer: the sidecar's refusal; None where no connection could be made.
        detail: for people.
    """

    reason: str
    answer: Response | None = None
    detail: str = ""

    @property
    def is_connecting(self) -> bool:
        """No connection could be made."""
        return self.reason == CONNECT_FAILED

    @property
    def is_load(self) -> bool:
        """The pod is well and refused for its load: the same pod again would make no sense."""
        return self.answer is not None and self.reason != Reason.DRAINING

    @property
    def is_for_room(self) -> bool:
        """The pod's queue is full: it, or another, may have room in a moment."""
        return self.answer is not None and self.reason == Reason.QUEUE_FULL


@dataclasses.dataclass(slots=True, kw_only=True)
class ProxiedRequest:
    """One client's request on its way.

    Args:
        state: its endpoint.
        request: as it came, its target without the route.
        identity: its `x-request-id`.
        sequence: its number by arrival among all requests.
        arrived: when it came, in seconds of the router's clock.
        headers: the fields for a sidecar.
        client_deadline: the client's own deadline; None for none.
        deadline: when its time is over; set when it leaves the hold.
        backend: who got its last try; "" before any.
    """

    state: EndpointState
    request: Request
    identity: str
    sequence: int
    arrived: float
    headers: Headers
    client_deadline: float | None
    deadline: float | None = None
    backend: str = ""

    def interim(self, status: int, headers: Headers) -> None:
        """Pass an interim answer of a pod on."""
        if self.request.interim is not None:
            self.request.interim(status, outward_fields(headers))


def _nothing() -> None:
    """Nothing is to be done."""


def _last_hop(proxied: ProxiedRequest) -> Response:
    """The answer to an `OPTIONS` or `TRACE` that was to come as far as here and no further."""
    methods = proxied.state.settings.methods or tuple(sorted(METHODS.values()))
    allow = (b"allow", ", ".join(name for name in methods if name != "TRACE").encode())
    if proxied.request.method == "OPTIONS":
        return Response(204, (allow,))
    # NB: RFC 9110 section 9.3.8 lets a server echo the request, with fields that a page must not read.
    raise PenstockError(Reason.METHOD_NOT_ALLOWED, "the router does not echo requests", headers=(allow,))


class Proxy:
    """Sends requests to pods.

    Args:
        pods: who there is.
        upstream: sends them.
        metrics: counts them.
        clock: the event loop's time, seconds.
        pod: name of this router's pod, for problem documents.
        access: logs requests, None = none of them.
    """

    def __init__(
        self,
        *,
        pods: Pods,
        upstream: Upstream,
        metrics: Metrics,
        clock: Callable[[], float],
        pod: str = "",
        access: AccessLog | None = None,
    ) -> None:
        self._access = AccessLog(0.0) if access is None else access
        self._pods = pods
        self._upstream = upstream
        self._metrics = metrics
        self._clock = clock
        self._pod = pod
        self._sequences = itertools.count()

    async def serve(self, state: EndpointState, request: Request) -> Response:
        """Answer a request of an endpoint.

        Args:
            state: the endpoint.
            request: its target is what the model sees.
        """
        arrived = self._clock()
        identity = request_id(request.headers)
        client_ms = timeout_ms(request.headers)
        proxied = ProxiedRequest(
            state=state,
            request=request,
            identity=identity,
            sequence=next(self._sequences),
            arrived=arrived,
            headers=inward(request.headers, identity=identity),
            client_deadline=None if client_ms is None else arrived + client_ms / 1000,
        )
        code, reason = CLIENT_GONE, Reason.CLIENT_GONE.value
        answer: Response | None = None
        try:
            answer = await self._answer(proxied)
            other = MODEL_ANSWER if answer.status >= 400 else ""
            code, reason = str(answer.status), _REASONS.get(get(answer.headers, REASON) or b"", other)
            answer = outward(answer, identity=identity, backend=proxied.backend)
            if state.cors is not None:
                answer.headers = state.cors.marked(answer.headers, request.headers)
            return answer
        finally:
            if proxied.backend:
                totals = state.of_backend(proxied.backend)
                totals.requests += 1
                totals.codes[code] += 1
            self._metrics.answered(
                endpoint=state.name,
                backend=proxied.backend,
                code=code,
                reason=reason,
                seconds=self._clock() - arrived,
            )
            self._access.write(
                request,
                answer,
                request_id=identity,
                status=int(code),
                reason=reason,
                seconds=self._clock() - arrived,
                received=len(request.body),
                endpoint=state.name,
                backend=proxied.backend,
            )

    def problem(self, error: PenstockError, request: Request) -> Response:
        """The answer to a request that no endpoint has."""
        identity = request_id(request.headers)
        answer = error.response(request_id=identity, pod=self._pod)
        self._metrics.answered(
            endpoint="", backend="", code=str(answer.status), reason=error.reason.value, seconds=0.0
        )
        self._access.write(
            request,
            answer,
            request_id=identity,
            status=answer.status,
            reason=error.reason.value,
            seconds=0.0,
            received=len(request.body),
        )
        return outward(answer, identity=identity, backend="")

    async def _answer(self, proxied: ProxiedRequest) -> Response:
        try:
            return await self._forward(proxied)
        except PenstockError as error:
            problem = error
        except Exception as error:  # whatever it was, the client gets an answer
            log("request failed", level="error", error=repr(error), request_id=proxied.identity)
            problem = PenstockError(Reason.INTERNAL, "the router failed to handle the request")
        return problem.response(request_id=proxied.identity, backend=proxied.backend, pod=self._pod)

    async def _forward(self, proxied: ProxiedRequest) -> Response:
        state = proxied.state
        if proxied.request.upgrade.lower() == b"websocket":
            detail = f"expected an HTTP request for endpoint {state.name}, found one for a WebSocket; "
            raise PenstockError(Reason.NOT_IMPLEMENTED, detail + "the Service of a backend carries them")
        preflight = is_preflight(proxied.request)
        if preflight and state.cors is not None:
            return state.cors.preflight(proxied.request)
        if not preflight and not allows(state.settings, proxied.request.method):
            allowed = ", ".join(state.settings.methods)
            raise PenstockError(
                Reason.METHOD_NOT_ALLOWED,
                f"endpoint {state.name} takes {allowed}, found {proxied.request.method}",
                headers=((b"allow", allowed.encode()),),
            )
        if proxied.client_deadline is not None and proxied.client_deadline < proxied.arrived:
            # NB: only what cannot be read is below zero (`timeout_ms`).
            raise bad_timeout(proxied.request.headers)
        forwarded = one_hop_less(proxied.request.method, proxied.headers)
        if forwarded is None:
            return _last_hop(proxied)
        proxied.headers = forwarded
        tried: list[Pod] = []
        asked: list[Pod] = []  # for room, since it was held last; they are many where each takes its time
        unexecuted: Unexecuted | None = None
        full: Unexecuted | None = None  # the last refusal for want of room
        for_room = False
        tries = 0
        again = False  # it has had room in the hold, or a pod that drains
        while True:
            try:
                permit = await state.acquire(
                    size=len(proxied.request.body),
                    sequence=proxied.sequence,
                    arrived=proxied.arrived,
                    deadline=(proxied.deadline if full is not None else None) or proxied.client_deadline,
                    backend=proxied.backend or None,
                    again=again,
                    for_room=for_room,
                )
            except HoldOver:
                if full is None:
                    raise
                return self._give_up(full)
            if for_room:
                asked.clear()
            if permit.window is not None:
                again = True
                if full is None:
                    proxied.deadline = None  # its time begins when it leaves the hold
            answered = queue_full = False
            try:
                proxied.backend = permit.backend
                if permit.window is not None and unexecuted is not None and unexecuted.answer is None:
                    tried.clear()  # much may have changed in the hold
                if permit.probes:
                    pod = self._pods.pick_probe(permit.backend)
                else:
                    pod = permit.pod or self._pods.pick(permit.backend, without=[*tried, *asked])
                if pod is None:
                    if unexecuted is not None and unexecuted.is_load:
                        return self._give_up(unexecuted)
                    # The pods went away since, or there is only the one that could not be reached.
                    tried.clear()
                    asked.clear()
                    await asyncio.sleep(SAME_POD_PAUSE_SECONDS)
                    continue
                tries += 1
                outcome = await self._try(proxied, pod, permit)
                if isinstance(outcome, Response):
                    answered = True
                    return outcome
                unexecuted = outcome
                queue_full = unexecuted.is_for_room
            finally:
                state.give_back(permit, answered=answered, queue_full=queue_full)
            if queue_full:
                full = unexecuted
                tries -= 1
                asked.append(pod)
                for_room = not self._pods.has_room(permit.backend, without=[*tried, *asked])
                if not for_room:
                    self._again(proxied, unexecuted)
                continue
            for_room = False
            if unexecuted.answer is not None:
                again = True
            elif unexecuted.is_connecting and state.may_hold(
                proxied.arrived, None if again else len(proxied.request.body)
            ):
                tries -= 1
                proxied.deadline = None  # its time begins with a connection
            if tries > state.settings.retries:
                return self._give_up(unexecuted)
            tried.append(pod)
            self._again(proxied, unexecuted)

    def _again(self, proxied: ProxiedRequest, unexecuted: Unexecuted) -> None:
        """Count a further try."""
        proxied.state.of_backend(proxied.backend).retries += 1
        self._metrics.retried(unexecuted.reason)

    async def _try(self, proxied: ProxiedRequest, pod: Pod, permit: Permit) -> Response | Unexecuted:
        now = self._clock()
        if proxied.deadline is None:
            proxied.deadline = now + proxied.state.settings.timeout_ms / 1000
            if proxied.client_deadline is not None:
                proxied.deadline = min(proxied.deadline, proxied.client_deadline)
        left = proxied.deadline - now
        if left <= 0:
            raise PenstockError(Reason.DEADLINE, "the request's time was over before a pod could be asked")
        request = Request(
            method=proxied.request.method,
            target=proxied.request.target,
            headers=with_time(proxied.headers, left),
            body=proxied.request.body,
            interim=proxied.interim,
        )
        address = pod.address

        def connected() -> None:
            self._pods.reached(pod)
            proxied.state.connected(permit)

        def done() -> None:
            pod.ends()
            self._pods.freed(permit.backend, pod)

        pod.begins()
        over = done
        try:
            opened = await self._upstream.open(
                address.host, address.port, request, timeout=left, connected=connected
            )
            over = _nothing  # from here on the answer's reader calls it
            seconds = proxied.deadline - self._clock()
            refuses = get(opened.headers, NOT_ADMITTED) is not None
            answer = await receive(
                opened,
                head_only=request.method == "HEAD",
                seconds=max(0.0, seconds),
                over=pod.ends if refuses else done,
            )
        except ConnectFailed as error:
            over = pod.ends
            if isinstance(error, ConnectTimeout) and self._clock() - now < TELLING_SECONDS:
                raise PenstockError(Reason.DEADLINE, str(error)) from error
            self._pods.failed(pod, str(error))
            return Unexecuted(CONNECT_FAILED, None, str(error))
        except UpstreamTimeout as error:
            raise PenstockError(Reason.DEADLINE, f"no answer within {left:.3f} s") from error
        except ConnectionLost as error:
            if isinstance(error, RequestUnread) and self._clock() - now < UNREAD_SECONDS:
                return Unexecuted(CONNECTION_CLOSED, None, str(error))
            if isinstance(error, PeerSilent):
                pod.silent(self._clock())
            unreadable = isinstance(error, AnswerUnreadable)
            reason = Reason.BAD_ANSWER if unreadable else Reason.MODEL_UNREACHABLE
            raise PenstockError(reason, str(error)) from error
        except UpstreamError as error:
            raise PenstockError(Reason.BAD_REQUEST, str(error)) from error
        finally:
            over()
        self._pods.reached(pod)
        queued = get(answer.headers, QUEUE)
        if queued is not None and queued.isdigit() and len(queued) < 10:
            pod.reports_queue(int(queued), self._clock())
        if not refuses:
            return answer
        word = _REASONS.get(get(answer.headers, REASON) or b"", "other")
        if word == Reason.DRAINING:
            self._pods.refuses(pod)
        elif word == Reason.QUEUE_FULL:
            self._pods.full(pod)
        if answer.stream is not None:  # no sidecar's: its refusals are short
            answer = Response(answer.status, answer.headers)
        return Unexecuted(word, answer)

    @staticmethod
    def _give_up(unexecuted: Unexecuted) -> Response:
        """The answer when no try is left: the sidecar's own refusal, else that no pod could be reached."""
        if unexecuted.answer is not None:
            return unexecuted.answer
        raise PenstockError(Reason.MODEL_UNREACHABLE, unexecuted.detail)
