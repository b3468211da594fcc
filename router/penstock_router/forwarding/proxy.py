"""Takes one request to a pod and back if it may have to wait or to be tried again.

`forwarder` hands over requests that it could not finish at once. The steps: check the method, get a permit
(`endpoints`), pick a pod (`pods`), try it, and try another pod only if nothing was executed: no connection
could be made, the pod had closed the kept connection before it read the request, or the sidecar marked its
refusal as not admitted.
A failed connect does not count as a try if the request may be held: it waits until one of the backend's pods
can be reached. Nor does a refusal for lack of room: every other pod that may have room is asked, then the
request waits for room. If a request was sent on a connection and no answer came, it may have been executed:
it is answered 502.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

from penstock_router.endpoints import HoldOver
from penstock_router.forwarding.outcome import answered, failed
from penstock_router.forwarding.request import ProxiedRequest
from penstock_router.forwarding.retry import GiveUp, Tries, Unexecuted
from penstock_router.holding.release_window import Permit
from penstock_router.messages.cors import is_preflight
from penstock_router.messages.header_policy import AnswerFields, allows, one_hop_less
from penstock_router.messages.response_body import receive
from penstock_router.metrics import Metrics
from penstock_router.pods.pod import Pod
from penstock_router.pods.pool import Pods
from penstock_wire.errors import PenstockError, Reason, bad_timeout
from penstock_wire.headers import Headers
from penstock_wire.http import (
    ClientGone,
    ConnectFailed,
    Response,
    Tunnel,
    Upstream,
    UpstreamAnswer,
    UpstreamError,
    tunnel,
)
from penstock_wire.http.client.answer import UpstreamTunnel
from penstock_wire.http.sending import open_answer
from penstock_wire.http.server.head import METHODS
from penstock_wire.http.server.streams import Inbound
from penstock_wire.process import log

SAME_POD_PAUSE_SECONDS = 0.1
"""The pause before a backend's only pod, which was unreachable, is tried again if the hold has no room."""

TAKEN_SECONDS = 0.1
"""A pod that could not be reached takes requests again if it has not refused one for so long."""


@dataclasses.dataclass(frozen=True, slots=True)
class Switched:
    """A pod's answer by which both sides switch protocols.

    Args:
        tunnel: the connection to the pod.
        over: must be called at the tunnel's end.
    """

    answer: UpstreamAnswer
    tunnel: Tunnel
    over: Callable[[], None]


async def carry(
    proxied: ProxiedRequest, switched: Switched, headers: Headers, begun: Callable[[], None]
) -> Exception | None:
    """Switch protocols on the client's side, too, and carry bytes until both sides have ended.

    Args:
        headers: the fields for the client.
        begun: called when the client's side has switched.

    Returns:
        The error that ended it early; None if both sides have ended.
    """
    idle = tunnel.IDLE_SECONDS if proxied.state.idle is None else proxied.state.idle
    exchange = proxied.exchange
    carried = False
    try:
        if exchange is None:
            raise ClientGone("the client went away")
        client = exchange.switch(headers)
        if isinstance(client, Inbound) and isinstance(switched.tunnel, UpstreamTunnel):
            client.beyond = switched.tunnel
        proxied.exchange = proxied.give_up = None
        begun()
        async with asyncio.timeout_at(proxied.ends):
            await tunnel.join(client, switched.tunnel, idle)
        carried = True
        return None
    except (ClientGone, UpstreamError, tunnel.TunnelIdle, TimeoutError) as error:
        log("tunnel cut", level="debug", error=str(error), request_id=proxied.identity.decode())
        return error
    finally:  # a cancellation too: the pod must see the end
        if not carried:
            switched.answer.abort()
        switched.over()


def _nothing() -> None:
    """Do nothing."""


def _last_hop(proxied: ProxiedRequest) -> Response:
    """Answer an `OPTIONS` or `TRACE` whose `Max-Forwards` ends at the router."""
    methods = proxied.state.settings.methods or tuple(sorted(METHODS.values()))
    allow = (b"allow", ", ".join(name for name in methods if name != "TRACE").encode())
    if proxied.request.method == "OPTIONS":
        return Response(204, (allow,))
    # NB: RFC 9110 section 9.3.8 lets a server echo the request, with fields that a page must not read.
    raise PenstockError(Reason.METHOD_NOT_ALLOWED, "the router does not echo requests", headers=(allow,))


class Proxy:
    """Sends requests to pods, and waits and tries again if needed."""

    def __init__(
        self, *, pods: Pods, upstream: Upstream, metrics: Metrics, clock: Callable[[], float]
    ) -> None:
        self._pods = pods
        self._upstream = upstream
        self._metrics = metrics
        self._clock = clock

    async def forward(self, proxied: ProxiedRequest) -> Response | Switched:
        """Get a request answered, which may have been tried before.

        Raises:
            PenstockError: no pod can answer it.
            ClientGone: its body ended early, or is too long.
        """
        if proxied.tries is None:
            answer = self._answer_here(proxied)
            if answer is not None:
                proxied.steering = None  # no pod answers, so there is none to stick to: no cookie
                return answer
        try:
            async with asyncio.timeout_at(proxied.ends):
                return await self._send(proxied)
        except TimeoutError as error:
            total = (proxied.ends or proxied.arrived) - proxied.arrived
            detail = f"no answer within {total:.3f} s (the endpoint's timeouts.total)"
            raise PenstockError(Reason.DEADLINE, detail) from error

    @staticmethod
    def _answer_here(proxied: ProxiedRequest) -> Response | None:
        """Answer a request that needs no pod; returns None if a pod must answer it."""
        state = proxied.state
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
            # NB: only an unreadable timeout is below zero (`timeout_ms`).
            raise bad_timeout(proxied.request.headers)
        forwarded = one_hop_less(proxied.request.method, proxied.shared)
        if forwarded is None:
            return _last_hop(proxied)
        proxied.shared = forwarded
        return None

    async def _send(self, proxied: ProxiedRequest) -> Response | Switched:
        state, tries = proxied.state, proxied.tries
        if tries is None:
            tries = proxied.tries = Tries()
        if proxied.drawn is None:
            proxied.drawn, _ = state.enter(proxied.steering)
        while True:
            full = tries.full
            if proxied.trace is not None:
                proxied.trace.waits(self._clock())
            try:
                permit = await state.acquire(
                    size=proxied.kept,
                    sequence=proxied.sequence,
                    arrived=proxied.arrived,
                    deadline=(proxied.deadline if full is not None else None) or proxied.client_deadline,
                    backend=proxied.drawn,
                    again=tries.again,
                    for_room=tries.for_room,
                    steering=proxied.steering,
                )
            except HoldOver:
                if full is None:
                    raise
                return self.give_up(full)
            if proxied.trace is not None:
                proxied.trace.goes_on(self._clock())
            proxied.drawn = permit.backend
            if tries.for_room:
                tries.asked.clear()
            elif permit.window is not None:
                proxied.held = True
            if permit.window is not None:
                tries.again = True
                if full is None:
                    proxied.deadline = None  # its time begins when it leaves the hold
            answered = queue_full = False
            try:
                proxied.backend = permit.backend
                last = tries.last
                if permit.window is not None and last is not None and not last.is_load:
                    tries.tried.clear()  # much may have changed in the hold
                if permit.probes:
                    pod = self._pods.pick_probe(permit.backend)
                else:
                    pod = permit.pod or state.pick(permit.backend, proxied.steering, tries.without)
                if pod is None:
                    if last is not None and last.is_load:
                        return self.give_up(last)
                    # The pods have gone since, or there is only the one that could not be reached.
                    tries.tried.clear()
                    tries.asked.clear()
                    await asyncio.sleep(SAME_POD_PAUSE_SECONDS)
                    continue
                now = self._clock()
                if full is not None and proxied.deadline is not None and now >= proxied.deadline:
                    return self.give_up(full)
                outcome = await self._try(proxied, pod, permit, now)
                if not isinstance(outcome, Unexecuted):
                    answered = True
                    return outcome
                queue_full = outcome.is_for_room
            finally:
                state.give_back(permit, answered=answered, queue_full=queue_full)
            if isinstance(proxied.step_after(outcome, pod, self._pods), GiveUp):
                return self.give_up(outcome)

    def count_retry(self, proxied: ProxiedRequest) -> None:
        """Count a try that begins, if it is a further one; `proxied.pod` is still the pod of the last."""
        tries = proxied.tries
        if tries is None or tries.due is None:
            return
        (backend, unexecuted), tries.due = tries.due, None
        proxied.state.series(backend).retries += 1
        self._metrics.retried(unexecuted.reason)
        if proxied.trace is not None and proxied.pod is not None:
            proxied.trace.again(proxied.pod, unexecuted.reason)

    async def _try(
        self, proxied: ProxiedRequest, pod: Pod, permit: Permit, now: float
    ) -> Response | Switched | Unexecuted:
        request = proxied.upstream_request(now)
        self.count_retry(proxied)
        proxied.pod = pod
        address = pod.address

        def taken() -> None:
            self._pods.reached(pod)
            proxied.state.connected(permit)

        def connected() -> None:
            if not pod.unreachable:
                taken()
            elif permit.probes:  # where the model is away, the sidecar refuses at once
                self._pods.later(TAKEN_SECONDS, lambda: taken() if permit.probes else None)

        def done() -> None:
            pod.ends()
            self._pods.freed(permit.backend, pod)

        steering = proxied.steering
        pod.begins(stays=request.fresh or (steering is not None and steering.key is not None))
        if steering is not None:
            proxied.state.sent(permit.backend, steering, pod)
        over = done
        try:
            opened = await open_answer(
                self._upstream,
                address.host,
                address.port,
                request,
                timeout=proxied.left,
                idle=proxied.idle,
                connected=connected,
            )
            over = _nothing  # from here on the answer's reader calls it
            if opened.tunnel is not None:
                self._pods.reached(pod)
                return Switched(opened, opened.tunnel, done)
            fields = AnswerFields(opened.headers)
            # NB: while a body streams, the client uses up the time, not the pod.
            begun = proxied.sent if proxied.body is None else self._clock()
            answer = await receive(
                opened,
                head_only=request.method == "HEAD",
                seconds=max(0.0, begun + proxied.left - self._clock()),
                over=pod.ends if fields.refuses else done,
            )
        except UpstreamError as error:
            if isinstance(error, ConnectFailed):
                over = pod.ends
            return failed(proxied, pod, error, self._pods, self._clock())
        finally:
            over()
        refused = answered(proxied, pod, fields, answer, self._pods, self._clock())
        return answer if refused is None else refused

    @staticmethod
    def give_up(unexecuted: Unexecuted) -> Response:
        """Return the last refusal of a sidecar when no try is left, else raise that no pod was reached."""
        if unexecuted.answer is not None:
            return unexecuted.answer
        raise PenstockError(Reason.MODEL_UNREACHABLE, unexecuted.detail)
