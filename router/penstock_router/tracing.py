"""Makes an OpenTelemetry span for each sampled request of an endpoint, the parent of the sidecar's span.

If tracing is off, which is the default, no code of this is in a request's path, and OpenTelemetry is not
imported. Spans hold no request data: no path, no header, no body.

A request's span (SERVER) is the child of the span that its `traceparent` names, and the pod gets its context
as `traceparent`. It ends with the end of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from penstock_router.endpoints import EndpointState
from penstock_router.forwarding.request import ProxiedRequest, RequestTrace
from penstock_router.pods.pod import Pod
from penstock_wire.http import Exchange
from penstock_wire.tracing import Spans, named, note_status

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span

Begin = Callable[[EndpointState, Exchange, bytes, RequestTrace | None], None]
"""Takes a request of an endpoint (`Forwarder.begin`)."""
SERVICE_NAME = "penstock-router"


class Tracing:
    """Makes the spans of one process.

    Args:
        processor: takes ended spans.
        attributes: the process's, beside those of OTEL_RESOURCE_ATTRIBUTES.
    """

    def __init__(self, processor: SpanProcessor, attributes: Mapping[str, str]) -> None:
        self._spans = Spans(processor, SERVICE_NAME, attributes)

    def traced(self, begin: Begin, where: Mapping[str, str]) -> Begin:
        """Wrap `begin` so that each sampled request gets a span, with attributes of where it came."""
        more = {f"penstock.{name}": value for name, value in where.items()}

        def arrive(
            state: EndpointState, exchange: Exchange, route: bytes, _trace: RequestTrace | None
        ) -> None:
            request = exchange.request
            span = self._spans.arrive(request)
            trace = None
            if span is not None:
                span.set_attribute("penstock.endpoint", state.name)
                span.set_attributes(more)
                request.headers = named(request.headers, span.get_span_context())
                trace = _Notes(span)
            begin(state, exchange, route, trace)

        return arrive

    def close(self) -> None:
        self._spans.close()


class _Notes:
    """Records the course of one request in its span."""

    __slots__ = ("_held", "_since", "_span", "_tries")

    def __init__(self, span: Span) -> None:
        self._span = span
        self._held = 0.0
        self._since: float | None = None
        self._tries = 1

    def waits(self, now: float) -> None:
        self._since = now

    def goes_on(self, now: float) -> None:
        if self._since is not None:
            self._held += now - self._since
        self._since = None

    def again(self, pod: Pod, reason: str) -> None:
        self._tries += 1
        self._span.add_event("retry", {"penstock.reason": reason, "penstock.pod": _name(pod)})

    def ended(
        self, proxied: ProxiedRequest, now: float, status: int, reason: str, error: Exception | None
    ) -> None:
        self.goes_on(now)
        span = self._span
        if proxied.pod is not None:
            span.set_attribute("penstock.backend", proxied.backend)
            span.set_attribute("penstock.pod", _name(proxied.pod))
            span.set_attribute("penstock.tries", self._tries)
        span.set_attribute("penstock.hold_seconds", self._held)
        if reason:
            span.set_attribute("penstock.reason", reason)
        note_status(span, status, failed=500)
        if error is not None:
            from opentelemetry.trace import StatusCode

            span.set_attribute("error.type", type(error).__name__)
            span.set_status(StatusCode.ERROR)
        span.end()


def _name(pod: Pod) -> str:
    """A pod's name; its address if it has none."""
    return pod.address.pod or f"{pod.address.host}:{pod.address.port}"
