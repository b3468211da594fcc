"""W3C trace context and OpenTelemetry, as far as sidecar and router have them alike.

Until `Spans` is made, OpenTelemetry is not imported. Spans hold no request data: no path, no header, no body.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from penstock_wire.headers import TRACEPARENT, TRACESTATE, Headers
from penstock_wire.http import Request
from penstock_wire.process import log

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.sdk.trace.sampling import Sampler
    from opentelemetry.trace import Span, SpanContext, Tracer

T = TypeVar("T")

FLUSH_SECONDS = 2.0
"""How long the last spans may take to leave when the process ends."""

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_ENABLING = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class Unavailable(Exception):
    """OpenTelemetry is not installed."""


def parse(value: bytes) -> tuple[int, int, bool] | None:
    """Read a `traceparent` (W3C Trace Context level 1, section 3.2).

    Args:
        value: the field's value.

    Returns:
        Trace id, parent id and whether it is sampled; None where it is to be ignored.
    """
    match = _TRACEPARENT.fullmatch(value)
    if match is None or match[1] == b"ff" or (match[1] == b"00" and match[5] is not None):
        return None
    trace, parent = int(match[2], 16), int(match[3], 16)
    if not trace or not parent:
        return None
    return trace, parent, bool(int(match[4], 16) & 1)


def asked_by(environment: Mapping[str, str]) -> bool:
    """Whether OpenTelemetry's own variables ask for traces to be exported."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "")
    return exporter == "otlp" or (not exporter and any(environment.get(name) for name in _ENABLING))


def started(make: Callable[[SpanProcessor], T], *, by_name: bool) -> T | None:
    """Trace where it is asked for, and export as the OTEL_* environment says (OTLP over HTTP).

    Args:
        make: makes what traces.
        by_name: it is asked for by a flag of the process, not by the environment alone.

    Returns:
        None where it is not asked for, or the packages are missing and the environment alone asked.

    Raises:
        Unavailable: the packages are missing.
    """
    if not (by_name or asked_by(os.environ)):
        return None
    try:
        return make(_exporting())
    except Unavailable as error:
        # Asked for by name it must not be missing; the environment may be meant for others in the pod.
        if by_name:
            raise
        log("tracing is off", level="warning", error=str(error))
        return None


def _exporting() -> SpanProcessor:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise Unavailable(f"expected the packages of penstock[tracing], found {error}") from error
    return BatchSpanProcessor(OTLPSpanExporter())


class Spans:
    """Where the spans of one process begin and go.

    Args:
        processor: takes ended spans.
        service: the process' name, where OTEL_SERVICE_NAME has none.
        attributes: of the process, beside what OTEL_RESOURCE_ATTRIBUTES says.
    """

    def __init__(self, processor: SpanProcessor, service: str, attributes: Mapping[str, str]) -> None:
        from opentelemetry.sdk.resources import Resource

        named = {"service.name": os.environ.get("OTEL_SERVICE_NAME") or service}
        self._resource = Resource.create(
            {**named, **{name: text for name, text in attributes.items() if text}}
        )
        self._processor = processor
        self._requests = self.tracer()

    def tracer(self, sampler: Sampler | None = None) -> Tracer:
        """Makes spans.

        Args:
            sampler: decides which are recorded; None: as the OTEL_* environment says.
        """
        from opentelemetry.sdk.trace import TracerProvider

        provider = TracerProvider(resource=self._resource, sampler=sampler, shutdown_on_exit=False)
        provider.add_span_processor(self._processor)
        return provider.get_tracer("penstock")

    def arrive(self, request: Request) -> Span | None:
        """The span (SERVER) of a request, the child of what its `traceparent` names.

        Args:
            request: one that has just come.

        Returns:
            None where it is not sampled.
        """
        from opentelemetry import trace

        parents = [value for name, value in request.headers if name == TRACEPARENT]
        parent = parse(parents[0]) if len(parents) == 1 else None
        context = None
        if parent is not None:
            trace_id, span_id, sampled = parent
            caller = trace.SpanContext(
                trace_id,
                span_id,
                is_remote=True,
                trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED if sampled else 0),
                trace_state=_state(request.headers),
            )
            context = trace.set_span_in_context(trace.NonRecordingSpan(caller))
        span = self._requests.start_span(request.method, context, kind=trace.SpanKind.SERVER)
        if not span.is_recording():
            return None
        span.set_attribute("http.request.method", request.method)
        return span

    def close(self) -> None:
        """Send the last spans; blocks up to `FLUSH_SECONDS`, however long the exporter tries."""
        # NB: a daemon, and so given up: the exporter goes on trying while its collector is gone.
        last = threading.Thread(target=self._processor.shutdown, daemon=True)
        last.start()
        last.join(FLUSH_SECONDS)


def note_status(span: Span, status: int, *, failed: int) -> None:
    """Note a status; for a server 4xx is no failure, for a client it is (OpenTelemetry's conventions).

    Args:
        span: of the request.
        status: of its answer.
        failed: the least status that is a failure.
    """
    span.set_attribute("http.response.status_code", status)
    if status >= failed:
        from opentelemetry.trace import StatusCode

        span.set_attribute("error.type", str(status))
        span.set_status(StatusCode.ERROR)


def named(headers: Headers, context: SpanContext) -> Headers:
    """The fields with another `traceparent`; the `tracestate` stays only where there was a `traceparent`.

    Args:
        headers: of a request.
        context: what is named instead.
    """
    # NB: level 1 knows one flag; level 2's others are not passed on.
    value = b"00-%032x-%016x-%02x" % (context.trace_id, context.span_id, context.trace_flags & 1)
    kept = [field for field in headers if field[0] != TRACEPARENT and field[0] != TRACESTATE]
    state = context.trace_state.to_header().encode()
    return (*kept, (TRACEPARENT, value), *(((TRACESTATE, state),) if state else ()))


def _state(headers: Headers) -> Any:
    from opentelemetry.trace import TraceState

    states = [value.decode("latin-1") for name, value in headers if name == TRACESTATE]
    return TraceState.from_header(states)
