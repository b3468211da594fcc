"""W3C trace context and OpenTelemetry: the part that sidecar and router share.

OpenTelemetry is imported only when `Spans` is made. Spans hold no request data: no path, no header, no body.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from penstock_wire.extras import missing
from penstock_wire.headers import TRACEPARENT, TRACESTATE, Headers
from penstock_wire.http import Request
from penstock_wire.process import log

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.sdk.trace.sampling import Sampler
    from opentelemetry.trace import Span, SpanContext, Tracer

T = TypeVar("T")

FLUSH_SECONDS = 2.0
"""How long sending the last spans can take when the process ends."""

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_ENABLING = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class Unavailable(Exception):
    """OpenTelemetry is not installed."""


def parse(value: bytes) -> tuple[int, int, bool] | None:
    """Read a `traceparent` (W3C Trace Context level 1, section 3.2).

    Args:
        value: the field's value.

    Returns:
        Trace id, parent id and whether the trace is sampled; None if the field is to be ignored.
    """
    match = _TRACEPARENT.fullmatch(value)
    if match is None or match[1] == b"ff" or (match[1] == b"00" and match[5] is not None):
        return None
    trace, parent = int(match[2], 16), int(match[3], 16)
    if not trace or not parent:
        return None
    return trace, parent, bool(int(match[4], 16) & 1)


def asked_by(environment: Mapping[str, str]) -> bool:
    """Whether OpenTelemetry's own variables ask for the export of traces."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "")
    return exporter == "otlp" or (not exporter and any(environment.get(name) for name in _ENABLING))


def started(make: Callable[[SpanProcessor], T], *, by_name: bool) -> T | None:
    """Start tracing if it is asked for, with an exporter as in the OTEL_* environment (OTLP over HTTP).

    Args:
        make: makes the tracing object from the exporting processor.
        by_name: a flag of the process asks for it, not only the environment.

    Returns:
        None if it is not asked for, or if the packages are missing and only the environment asked.

    Raises:
        Unavailable: the packages are missing and a flag asked.
    """
    if not (by_name or asked_by(os.environ)):
        return None
    try:
        return make(_exporting())
    except Unavailable as error:
        # If a flag asks, the packages are required; the environment can be meant for other containers.
        if by_name:
            raise
        log("tracing is off", level="warning", error=str(error))
        return None


def _exporting() -> SpanProcessor:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise Unavailable(missing("--tracing", "tracing", str(error))) from error
    return BatchSpanProcessor(OTLPSpanExporter())


class Spans:
    """Makes and exports the spans of one process.

    Args:
        processor: takes ended spans.
        service: the process's name, unless OTEL_SERVICE_NAME has one.
        attributes: of the process, beside those in OTEL_RESOURCE_ATTRIBUTES.
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
        """Make a tracer.

        Args:
            sampler: decides which spans are recorded; None = as in the OTEL_* environment.
        """
        from opentelemetry.sdk.trace import TracerProvider

        provider = TracerProvider(resource=self._resource, sampler=sampler, shutdown_on_exit=False)
        provider.add_span_processor(self._processor)
        return provider.get_tracer("penstock")

    def arrive(self, request: Request) -> Span | None:
        """Start the span (SERVER) of a request, the child of the span in its `traceparent`.

        Args:
            request: a request that has just come.

        Returns:
            The span, or None if it is not sampled.
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
        """Send the last spans; blocks at most `FLUSH_SECONDS`, however long the exporter tries."""
        # NB: a daemon thread, so that it can be given up: without a collector the exporter keeps on trying.
        last = threading.Thread(target=self._processor.shutdown, daemon=True)
        last.start()
        last.join(FLUSH_SECONDS)


def note_status(span: Span, status: int, *, failed: int) -> None:
    """Note a status; 4xx is a failure for a client, but not for a server (OpenTelemetry's conventions).

    Args:
        span: span of the request.
        status: status of its answer.
        failed: the lowest status that is a failure.
    """
    span.set_attribute("http.response.status_code", status)
    if status >= failed:
        from opentelemetry.trace import StatusCode

        span.set_attribute("error.type", str(status))
        span.set_status(StatusCode.ERROR)


def named(headers: Headers, context: SpanContext) -> Headers:
    """Return the fields with a new `traceparent`, and the context's `tracestate`, if any.

    Args:
        headers: the request's fields.
        context: the span context for the new fields.
    """
    # NB: level 1 defines one flag; further flags of level 2 are not passed on.
    value = b"00-%032x-%016x-%02x" % (context.trace_id, context.span_id, context.trace_flags & 1)
    kept = [field for field in headers if field[0] != TRACEPARENT and field[0] != TRACESTATE]
    state = context.trace_state.to_header().encode()
    return (*kept, (TRACEPARENT, value), *(((TRACESTATE, state),) if state else ()))


def _state(headers: Headers) -> Any:
    from opentelemetry.trace import TraceState

    states = [value.decode("latin-1") for name, value in headers if name == TRACESTATE]
    return TraceState.from_header(states)
