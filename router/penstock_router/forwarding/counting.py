"""Counts requests by their answers: all in metrics, and those of a backend drawn by chance for releases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock_router.forwarding.request import ProxiedRequest
from penstock_router.series import Series
from penstock_wire.errors import MODEL_ANSWER, Reason
from penstock_wire.headers import CALL_CHAIN, Headers, get
from penstock_wire.http import AnswerUnreadable, ClientGone, UpstreamTimeout
from penstock_wire.http.messages import Trailers
from penstock_wire.http.tunnel import TunnelIdle
from penstock_wire.http2 import status as grpc_status
from penstock_wire.timers import TIMER_SLACK

CLIENT_GONE: Final = 499
"""The status that is counted for a request if its client left."""
_UNIMPLEMENTED: Final = grpc_status.to_http(grpc_status.UNIMPLEMENTED)


class Counting:
    """Counts into the series of endpoints and backends.

    Args:
        clock: the time in seconds.
    """

    __slots__ = ("_clock",)

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock

    def count(self, proxied: ProxiedRequest, status: int, reason: str, now: float) -> None:
        """Count a request whose answer is sent at once, or not at all."""
        if proxied.trace is not None:
            proxied.trace.ended(proxied, now, status, reason, None)
        drawn = proxied.steering is None and status < 400 and proxied.body is None and bool(proxied.backend)
        if not drawn:
            self.at_head(proxied, status, reason)
        proxied.state.series(proxied.backend).answered(status, reason, now - proxied.arrived, drawn)

    def at_head(self, proxied: ProxiedRequest, status: int, reason: str) -> None:
        """Count only the head of an answer, if the router drew the request's backend by chance.

        Nothing counts that a client decides (docs/releases.md): not which backend gets a request, nor the
        time that it allows, nor that in which it sends a body, nor a chain of calls that it states.
        """
        seconds = self.until_head(proxied)
        if seconds is None:
            return
        if proxied.client_limits and _is_deadline(proxied, status, reason):
            # It would have taken longer than its client allows, whoever found that out, and when.
            allowed = (proxied.client_deadline or proxied.arrived) - proxied.arrived
            seconds = max(self._clock() - proxied.arrived, allowed)
        self._begun(proxied, status, reason, seconds)

    def _begun(self, proxied: ProxiedRequest, status: int, reason: str, seconds: float) -> None:
        """Count a request among those that were drawn by chance, without what its client decides.

        Args:
            seconds: until the head of its answer.
        """
        if reason == Reason.CALL_CYCLE.value and get(proxied.request.headers, CALL_CHAIN) is not None:
            return
        if proxied.client_limits and _is_deadline(proxied, status, reason):
            status, reason = CLIENT_GONE, Reason.CLIENT_GONE.value
        elif status == _UNIMPLEMENTED and reason == MODEL_ANSWER and proxied.request.trailers:
            status = 404  # its client names the method, as one over HTTP names a path
        self._drawn_series(proxied).begun(status, reason, seconds)

    def until_head(self, proxied: ProxiedRequest) -> float | None:
        """The time of a request so far, without its client's; None if its backend was not drawn by chance."""
        steering = proxied.steering
        if not (proxied.backend or proxied.drawn) or (steering is not None and steering.chosen):
            return None
        now = self._clock()
        return now - proxied.arrived - (0.0 if proxied.body is None else proxied.body.awaited(now))

    @staticmethod
    def _drawn_series(proxied: ProxiedRequest) -> Series:
        return proxied.state.series(proxied.backend or proxied.drawn or "")

    @staticmethod
    def meaning(proxied: ProxiedRequest, fields: Headers, status: int, reason: str) -> tuple[int, str]:
        """The status and the reason that a gRPC call counts with: over HTTP, each has 200 (docs/releases.md).

        Args:
            fields: all fields of its answer.
            status: the status over HTTP, which counts if there is no other.
            reason: the reason, if Penstock has answered.
        """
        code = grpc_status.code_of(fields)
        if code < 0:
            if status != 200 or reason:
                return status, reason
            code = grpc_status.UNKNOWN  # as its client reads it
        proxied.state.series(proxied.backend).called(code)
        status = grpc_status.to_http(code)
        return status, MODEL_ANSWER if status >= 400 else ""

    def call_ended(
        self,
        proxied: ProxiedRequest,
        trailers: Trailers,
        status: int,
        reason: str,
        seconds: float | None,
        error: Exception | None,
    ) -> None:
        """Count a streamed gRPC call: only its end says how it went.

        Args:
            seconds: until its head, see `until_head`.
        """
        error = self._cause(proxied, error)
        if error is None:
            status, reason = self.meaning(proxied, trailers.fields, status, reason)
        elif not isinstance(error, ClientGone):  # its client gets UNAVAILABLE
            cut = cut_by(error)
            status, reason = cut.status, cut.value
        if seconds is not None:
            self._begun(proxied, status, reason, seconds)
        self.ended(proxied, status, reason, error)

    def ended(self, proxied: ProxiedRequest, status: int, reason: str, error: Exception | None) -> None:
        """Count a request at the end of its long answer, with an error if that ended early."""
        now, error = self._clock(), self._cause(proxied, error)
        if proxied.trace is not None:
            proxied.trace.ended(proxied, now, status, reason, error)
        series = proxied.state.series(proxied.backend)
        series.answered(status, reason, now - proxied.arrived)
        if error is not None:
            series.cut(cut_by(error).value)

    def _cause(self, proxied: ProxiedRequest, error: Exception | None) -> Exception | None:
        """The error that ended a long answer early."""
        ends = proxied.ends
        if isinstance(error, ClientGone) and ends is not None and self._clock() >= ends - TIMER_SLACK:
            # NB: the end of a request's time stops its stream in the same way as a client that leaves.
            return UpstreamTimeout("the time of the request was over")
        return error


def _is_deadline(proxied: ProxiedRequest, status: int, reason: str) -> bool:
    """Whether a request's time was over, by Penstock's clock or by a model's that has `grpc-timeout`."""
    return reason == Reason.DEADLINE.value or (status == 504 and proxied.request.trailers)


def cut_by(error: Exception) -> Reason:
    """The reason why a stream or a tunnel ended early."""
    if isinstance(error, ClientGone):
        return Reason.CLIENT_GONE
    if isinstance(error, (UpstreamTimeout, TunnelIdle, TimeoutError)):
        return Reason.DEADLINE
    return Reason.BAD_ANSWER if isinstance(error, AnswerUnreadable) else Reason.MODEL_UNREACHABLE
