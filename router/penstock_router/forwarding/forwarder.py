"""Forwards requests and returns answers: without a task, if a pod can be asked at once.

The steps of a request, each in the turn of the loop in which its cause arrives:

- **place**: find its endpoint and the decisions for all requests with its head (`arrived_head.ArrivedHead`);
- **pick**: choose a backend by weight, a pod by load;
- **send**: over a connection, which is made if none is idle;
- **answer**: return the pod's answer with the router's own fields, and count it.

A request that cannot go on at once continues in a task of its own (`proxy`): it must be held, it is
tried again for another reason than that a pod handed it back, its method is not simply passed on, its body
is a stream, or it asks to switch protocols.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from typing import Final

from penstock_router.endpoints import EndpointState
from penstock_router.forwarding.counting import CLIENT_GONE, Counting, cut_by
from penstock_router.forwarding.error_log import ErrorLog
from penstock_router.forwarding.outcome import answered, failed
from penstock_router.forwarding.proxy import Proxy, Switched, carry
from penstock_router.forwarding.request import Owner, ProxiedRequest, RequestTrace
from penstock_router.forwarding.retry import GiveUp, Unexecuted
from penstock_router.messages.arrived_head import MAX_HEAD_SIZE
from penstock_router.messages.header_policy import AnswerFields, own_lines, under_route
from penstock_router.messages.response_body import WHOLE_BYTES, EndingStream
from penstock_router.metrics import Metrics
from penstock_router.mirroring.copy import Original
from penstock_router.mirroring.eligibility import UPGRADE
from penstock_router.pods.pod import Pod
from penstock_router.pods.pool import Pods
from penstock_wire.access_log import AccessLog
from penstock_wire.errors import MODEL_ANSWER, PenstockError, Reason
from penstock_wire.headers import Headers, get
from penstock_wire.hop.frames import PROTOCOL
from penstock_wire.http import (
    ClientGone,
    ConnectFailed,
    Exchange,
    Response,
    Upstream,
    UpstreamAnswer,
    UpstreamError,
)
from penstock_wire.http.answer_stream import AnswerStream
from penstock_wire.http.caches import Caches
from penstock_wire.http.server import head as heads
from penstock_wire.http.server.streams import close_in_background
from penstock_wire.process import NOWHERE, log
from penstock_wire.request_ids import RequestIds

MAX_KNOWN: Final = 256
_CLOSED: Final = "expected another path, found one that is a model's and its sidecar's own"


class Forwarder(Owner):
    """Answers the requests of endpoints.

    Args:
        pod: name of this router's pod, for problem documents.
        caches: bounds its cache with others; None = it is bounded alone.
        where: fields of each log line.
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
        caches: Caches | None = None,
        where: Mapping[str, str] = NOWHERE,
    ) -> None:
        self._access = AccessLog(0.0) if access is None else access
        self._counting = Counting(clock)
        self._errors = ErrorLog(clock, where)
        self._where = where
        self._pods = pods
        self._upstream = upstream
        self._proxy = Proxy(pods=pods, upstream=upstream, metrics=metrics, clock=clock)
        self._metrics = metrics
        self._clock = clock
        self._pod = pod
        self._ids = RequestIds()
        self._sequence = 0
        self._fields = AnswerFields(())  # the last answer's
        self._caches = Caches() if caches is None else caches
        self._outwards: dict[Headers, Headers] = {}  # cached answer fields: a front sends known ones faster

    def begin(
        self,
        state: EndpointState,
        exchange: Exchange,
        route: bytes = b"",
        trace: RequestTrace | None = None,
    ) -> None:
        """Take a request of an endpoint.

        Args:
            exchange: its request's target is what the model sees.
            route: the route that was taken from the target, as the client wrote it.
            trace: records the request's course; None if it is not traced.
        """
        request = exchange.request
        if request.upgrade and PROTOCOL in request.upgrade.lower():
            request.upgrade = b""  # a client's hop would bypass all checks made here
        head = state.head(request)
        self._sequence += 1
        proxied = ProxiedRequest(
            exchange,
            state,
            request,
            head.shared,
            head.identity or self._ids.of(None),
            self._sequence,
            self._clock(),
            head.client_ms,
            route,
            self,
        )
        proxied.trace = trace
        if head.closed:
            self._refuse_closed(proxied)
            return
        if head.static is not None:
            self._answer(proxied, head.static, AnswerFields(head.static.headers), proxied.arrived)
            return
        if head.steering is not None:
            proxied.steering = state.begin(head.steering, route)
        exchange.gone = proxied.leave
        most = state.settings.max_body_bytes
        if most is not None and max(len(request.body), request.length or 0) > most:
            size = f"one of {request.length or len(request.body)} bytes"
            self._answer_error(proxied, _too_long(state, size))
            return
        if head.plain and proxied.body is None and not request.upgrade:
            backend, at_once = state.enter(proxied.steering)
            proxied.drawn = backend
            if at_once and backend is not None and self._send(proxied, backend, proxied.arrived):
                return
        self._in_task(proxied)

    def refuse(self, exchange: Exchange, error: PenstockError) -> None:
        """Answer a request that belongs to no endpoint."""
        request = exchange.request
        head = get(request.headers, b"x-request-id")
        identity = self._ids.of(head)
        answer = error.response(request_id=identity.decode(), pod=self._pod)
        self._metrics.series("", "").answered(answer.status, error.reason.value, 0.0)
        if self._access.on:
            self._access.write(
                request,
                answer,
                request_id=identity.decode(),
                status=answer.status,
                reason=error.reason.value,
                seconds=0.0,
                received=len(request.body),
            )
        exchange.answer(self._outward(answer, identity, ""))

    def _refuse_closed(self, proxied: ProxiedRequest) -> None:
        """Refuse a request for a path that is reserved to a model and its sidecar."""
        exchange, error = proxied.exchange, PenstockError(Reason.FORBIDDEN, _CLOSED)
        assert exchange is not None  # noqa: S101 - it has just come
        if proxied.trace is not None:
            proxied.trace.ended(proxied, self._clock(), error.status, error.reason.value, None)
        self.refuse(exchange, error)

    # -- at once --------------------------------------------------------------------------------------------

    def _send(self, proxied: ProxiedRequest, backend: str, now: float) -> bool:
        """Send a request to a pod that is picked for it.

        Returns:
            Whether it was sent, or answered: False if there is no pod.
        """
        steering = proxied.steering
        pod = self._pods.pick(backend) if steering is None else proxied.state.pick(backend, steering)
        if pod is None:
            return False
        address = pod.address
        try:
            give_up = self._upstream.begin(
                address.host,
                address.port,
                proxied.upstream_request(now),
                proxied.left,
                proxied.idle,
                WHOLE_BYTES,
                proxied.opened,
                proxied.connected,
            )
        except PenstockError as error:
            self._answer_error(proxied, error)
            return True
        except UpstreamError as unsendable:
            self._answer_error(proxied, PenstockError(Reason.BAD_REQUEST, str(unsendable)))
            return True
        except Exception as unforeseen:  # whatever it was, it is answered and counted as any other
            self._broken(proxied, unforeseen)
            return True
        if proxied.tries is not None:
            self._proxy.count_retry(proxied)
        proxied.backend = backend
        proxied.pod = pod
        proxied.give_up = give_up
        pod.begins(stays=steering is not None and steering.key is not None)
        if steering is not None:
            proxied.state.sent(backend, steering, pod)
        return True

    def opened(self, proxied: ProxiedRequest, answer: Response | UpstreamAnswer | UpstreamError) -> None:
        pod = proxied.pod
        assert pod is not None  # noqa: S101 - `begin` calls back later
        try:
            self._judge(proxied, pod, answer)
        except PenstockError as error:
            self._answer_error(proxied, error)
        except Exception as unforeseen:  # whatever it was, the client gets an answer
            self._broken(proxied, unforeseen)

    def connected(self, proxied: ProxiedRequest) -> None:
        pod = proxied.pod
        if pod is not None and not pod.unreachable:
            self._pods.reached(pod)

    def _judge(
        self, proxied: ProxiedRequest, pod: Pod, answer: Response | UpstreamAnswer | UpstreamError
    ) -> None:
        refused: Unexecuted | None
        now = self._clock()
        # NB: the first test is cheap and nearly always true; a test for an exception is slow.
        if isinstance(answer, Response) or not isinstance(answer, UpstreamError):
            fields = self._read(answer)
            whole = answer if isinstance(answer, Response) else self._stream(proxied, pod, answer, fields)
            if isinstance(answer, Response):
                pod.ends()
            refused = answered(proxied, pod, fields, whole, self._pods, now)
            if refused is None:
                if isinstance(answer, Response):
                    self._pods.freed(proxied.backend, pod)
                self._answer(proxied, whole, fields, now)
                return
        else:
            pod.ends()
            if not isinstance(answer, ConnectFailed):
                self._pods.freed(proxied.backend, pod)
            if proxied.exchange is None:
                return
            refused = failed(proxied, pod, answer, self._pods, now)
        if proxied.exchange is None:
            return
        step = proxied.step_after(refused, pod, self._pods)
        if isinstance(step, GiveUp):
            whole = self._proxy.give_up(refused)
            self._answer(proxied, whole, AnswerFields(whole.fields), now)
        elif not (refused.is_moved and not proxied.stays and self._send(proxied, proxied.backend, now)):
            self._in_task(proxied)

    def _read(self, answer: Response | UpstreamAnswer) -> AnswerFields:
        """Read the fields of an answer; fields that it shares with the last answer are not read again."""
        headers = answer.headers
        fields = self._fields
        if fields.headers is not headers:
            fields = self._fields = self._fields_of(headers)
        fields.take(answer.lines if isinstance(answer, Response) else b"")
        return fields

    def _fields_of(self, headers: Headers) -> AnswerFields:
        fields = AnswerFields(headers)
        fields.outward = self._known(fields.outward)
        return fields

    def _known(self, headers: Headers) -> Headers:
        """The same fields, as one object for all answers that have them."""
        known = self._outwards.get(headers)
        if known is None:
            size = heads.size("", headers)
            if size > MAX_HEAD_SIZE:
                return headers
            if len(self._outwards) >= MAX_KNOWN:
                self._outwards.clear()
                self._caches.cleared(self._outwards)
            known = self._outwards[headers] = headers
            self._caches.grew(self._outwards, size)
        return known

    def _stream(
        self, proxied: ProxiedRequest, pod: Pod, answer: UpstreamAnswer, fields: AnswerFields
    ) -> Response:
        """Make the response of a long answer."""
        over = functools.partial(self._stream_over, "" if fields.refuses else proxied.backend, pod)
        whole = Response(
            answer.status, answer.headers, stream=AnswerStream(answer, over), length=answer.length
        )
        whole.trailers = answer.trailers
        return whole

    def _stream_over(self, backend: str, pod: Pod, error: Exception | None) -> None:
        """End a long answer, and free its room at the pod of `backend`, which is empty for a refusal."""
        pod.ends()
        if backend:
            self._pods.freed(backend, pod)

    # -- in a task ------------------------------------------------------------------------------------------

    def _in_task(self, proxied: ProxiedRequest) -> None:
        if proxied.exchange is None:
            return
        proxied.give_up = asyncio.ensure_future(self._run(proxied)).cancel

    async def _run(self, proxied: ProxiedRequest) -> None:
        try:
            answer = await self._proxy.forward(proxied)
            if isinstance(answer, Switched):
                await self._switch(proxied, answer)
                return
        except PenstockError as error:
            self._answer_error(proxied, error)
        except ClientGone:
            if proxied.body is not None and proxied.body.too_long:
                self._answer_error(proxied, _too_long(proxied.state, "a longer one"))
            else:
                self.leave(proxied)
        except asyncio.CancelledError as cancelled:
            if proxied.exchange is None:
                raise  # its client left
            self._broken(proxied, cancelled)
        except Exception as unforeseen:  # whatever it was, the client gets an answer
            self._broken(proxied, unforeseen)
        else:
            self._answer(proxied, answer, AnswerFields(answer.fields), self._clock())

    async def _switch(self, proxied: ProxiedRequest, switched: Switched) -> None:
        """Switch protocols on both sides, and carry bytes until both sides have ended."""
        fields = AnswerFields(switched.answer.headers)
        own = own_lines(proxied.identity, proxied.backend.encode()).splitlines()
        lines = [line.partition(b": ") for line in own]
        headers = (*fields.outward, *[(name, value) for name, _, value in lines])
        if proxied.steering is not None and proxied.steering.cookie:
            headers = (*headers, (b"set-cookie", proxied.steering.cookie))
        status = switched.answer.status
        if proxied.state.mirrors is not None:
            proxied.state.mirrors.pass_over(proxied.request, UPGRADE)
        series = proxied.state.series(proxied.backend)
        opened = 0

        def begun() -> None:
            nonlocal opened
            opened = 1
            series.tunnels += 1
            self._note(proxied, None, status, "")

        try:
            error = await carry(proxied, switched, headers, begun)
            if opened and error is not None:
                series.cut(cut_by(error).value)
        finally:
            series.tunnels -= opened

    # -- answers --------------------------------------------------------------------------------------------

    def _answer_error(self, proxied: ProxiedRequest, error: PenstockError) -> None:
        answer = error.response(request_id=proxied.identity.decode(), backend=proxied.backend, pod=self._pod)
        self._answer(proxied, answer, AnswerFields(answer.headers), self._clock())

    def _broken(self, proxied: ProxiedRequest, error: BaseException) -> None:
        identity = proxied.identity.decode()
        log("request failed", level="error", error=repr(error), request_id=identity, **self._where)
        self._answer_error(proxied, PenstockError(Reason.INTERNAL, "the router failed to handle the request"))

    def _answer(self, proxied: ProxiedRequest, answer: Response, fields: AnswerFields, now: float) -> None:
        """Send an answer, and count it."""
        exchange = proxied.exchange
        if exchange is None:  # its client left meanwhile
            if answer.stream is not None:
                close_in_background(answer.stream)
            return
        proxied.exchange = proxied.give_up = None
        reason = fields.reason or (MODEL_ANSWER if answer.status >= 400 else "")
        out = self._outward(answer, proxied.identity, proxied.backend, fields)
        state = proxied.state
        if state.cors is not None:
            out.headers = state.cors.marked(out.headers, proxied.request.headers)
        steering = proxied.steering
        if steering is not None and steering.cookie:
            out.headers = (*out.headers, (b"set-cookie", steering.cookie))
        if proxied.route:
            host = get(proxied.request.headers, b"host") or b""
            out.headers = under_route(out.headers, route=proxied.route, host=host)
        status, stream, trailers = answer.status, answer.stream, answer.trailers
        if trailers is not None and stream is None:
            status, reason = self._counting.meaning(proxied, answer.headers + trailers.fields, status, reason)
        self._log(proxied, out, status, reason)
        if not isinstance(stream, AnswerStream):
            self._counting.count(proxied, status, reason, now)
        elif trailers is None:
            self._counting.at_head(proxied, status, reason)
            stream.then(functools.partial(self._counting.ended, proxied, status, reason))
        else:
            seconds = self._counting.until_head(proxied)
            stream.then(
                functools.partial(self._counting.call_ended, proxied, trailers, status, reason, seconds)
            )
        if out.stream is not None and proxied.ends is not None:
            out.stream = EndingStream(out.stream, proxied.ends)
        exchange.answer(out)
        if state.mirrors is not None:
            original = Original(
                proxied.request,
                proxied.shared,
                proxied.identity,
                proxied.pod is not None,
                now - proxied.sent,
                state.first_byte,
            )
            state.mirrors.offer(original, answer, reason, bool(state.held.count))

    def leave(self, proxied: ProxiedRequest) -> None:
        if proxied.exchange is None:
            return
        proxied.exchange = None
        give_up, proxied.give_up = proxied.give_up, None
        if give_up is not None:
            give_up()
        self._note(proxied, None, CLIENT_GONE, Reason.CLIENT_GONE.value)

    def _note(self, proxied: ProxiedRequest, answer: Response | None, status: int, reason: str) -> None:
        self._log(proxied, answer, status, reason)
        self._counting.count(proxied, status, reason, self._clock())

    def _log(self, proxied: ProxiedRequest, answer: Response | None, status: int, reason: str) -> None:
        """Log a request when the head of its answer is sent, or its client has left."""
        if status >= 500:
            pod = proxied.pod
            self._errors.write(
                request_id=proxied.identity.decode(),
                status=status,
                reason=reason,
                endpoint=proxied.state.name,
                backend=proxied.backend or proxied.drawn or "",
                pod="" if pod is None else pod.address.pod or f"{pod.address.host}:{pod.address.port}",
            )
        access = self._access if proxied.state.access is None else proxied.state.access
        if access.on:
            access.write(
                proxied.request,
                answer,
                request_id=proxied.identity.decode(),
                status=status,
                reason=reason,
                seconds=self._clock() - proxied.arrived,
                received=proxied.received,
                endpoint=proxied.state.name,
                backend=proxied.backend,
                **self._where,
            )

    @staticmethod
    def _outward(
        answer: Response, identity: bytes, backend: str, fields: AnswerFields | None = None
    ) -> Response:
        if fields is None:
            fields = AnswerFields(answer.headers)
        out = Response(answer.status, fields.outward, answer.body, answer.stream, answer.length)
        out.trailers = answer.trailers
        lines = own_lines(identity, backend.encode())
        out.lines = lines + fields.lines if fields.lines else lines
        return out


def _too_long(state: EndpointState, size: str) -> PenstockError:
    most = f"at most {state.settings.max_body_bytes} bytes (maxBodyBytes of endpoint {state.name})"
    return PenstockError(Reason.TOO_LARGE, f"expected a body of {most}, found {size}")
