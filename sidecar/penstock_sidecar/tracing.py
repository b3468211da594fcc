"""W3C trace context and OpenTelemetry: a span for each sampled request, linked to the span of its batch.

Off, which is the default, nothing of this is in the path of a request and OpenTelemetry is not imported.
Spans hold no request data: no path, no header, no body.

A request's span (SERVER) is the child of what its `traceparent` names. A batch's span (CLIENT) is the child
of its request's, where it holds one; with several it begins a trace of its own, since a span has one parent,
and is linked with each request's span, both ways. The model gets the batch's context as `traceparent`.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock_sidecar.interfaces import Send
from penstock_sidecar.queue.request import Slice
from penstock_wire.headers import REASON, TRACEPARENT, Headers, get
from penstock_wire.http import Exchange, Request, Response, Service, Tunnel, UpstreamError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span, SpanContext, Tracer

TRACESTATE = b"tracestate"
SERVICE_NAME = "penstock-sidecar"
FLUSH_SECONDS = 2.0
"""How long the last spans may take to leave when the process ends."""

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_ENABLING = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


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


class TracedRequest(Request):
    """A request with its span, which is set behind its making."""

    span: Any = None


class Tracing:
    """Makes the spans of one process.

    Args:
        processor: takes ended spans.
        attributes: of the process, beside what OTEL_RESOURCE_ATTRIBUTES says.
    """

    def __init__(self, processor: SpanProcessor, attributes: Mapping[str, str]) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        named = {"service.name": os.environ.get("OTEL_SERVICE_NAME") or SERVICE_NAME}
        resource = Resource.create({**named, **{name: text for name, text in attributes.items() if text}})
        requests = TracerProvider(resource=resource, shutdown_on_exit=False)
        # A batch that holds a sampled request is sampled; no ratio is drawn a second time.
        batches = TracerProvider(resource=resource, sampler=ALWAYS_ON, shutdown_on_exit=False)
        for provider in (requests, batches):
            provider.add_span_processor(processor)
        self._processor = processor
        self._requests: Tracer = requests.get_tracer("penstock")
        self._batches: Tracer = batches.get_tracer("penstock")

    def service(self, service: Service) -> Service:
        """A service whose requests are traced."""

        def begin(exchange: Exchange) -> None:
            span = self._arrive(exchange.request)
            service(exchange if span is None else _Traced(exchange, span))

        return begin

    async def send(
        self, send: Send, request: Request, timeout: float, parts: Sequence[Slice], limit: int
    ) -> Response:
        """Send a run of a batch, in a span of its own where one of its requests is sampled.

        Args:
            send: sends.
            request: what is sent.
            timeout: seconds, for `send`.
            parts: what the batch holds.
            limit: items it could have held.
        """
        spans = [part.work.request.span for part in parts if isinstance(part.work.request, TracedRequest)]
        if not spans:
            return await send(request, timeout)
        for part in parts:
            work = part.work
            if isinstance(work.request, TracedRequest) and not part.start:
                work.request.span.set_attribute("penstock.items", work.size)
                work.request.span.set_attribute("penstock.queue_seconds", work.cut_at - work.arrived)
        items = sum([part.size for part in parts])
        with self._batch(spans, alone=len(parts) == 1) as span:
            span.set_attribute("http.request.method", request.method)
            span.set_attribute("penstock.batch.requests", len(parts))
            span.set_attribute("penstock.batch.items", items)
            span.set_attribute("penstock.batch.fill", items / limit)
            request.headers = _named(request.headers, span.get_span_context())
            answer = await send(request, timeout)
            _status(span, answer.status, failed=400)
            return answer

    def close(self) -> None:
        """Send the last spans; blocks up to `FLUSH_SECONDS`, however long the exporter tries."""
        # NB: a daemon, and so given up: the exporter goes on trying while its collector is gone.
        last = threading.Thread(target=self._processor.shutdown, daemon=True)
        last.start()
        last.join(FLUSH_SECONDS)

    def _arrive(self, request: Request) -> Span | None:
        from opentelemetry import trace

        found = [value for name, value in request.headers if name == TRACEPARENT]
        parent = parse(found[0]) if len(found) == 1 else None
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

    @contextlib.contextmanager
    def _batch(self, spans: list[Span], *, alone: bool) -> Iterator[Span]:
        from opentelemetry import trace

        links = [trace.Link(span.get_span_context()) for span in spans]
        span = self._batches.start_span(
            "batch",
            trace.set_span_in_context(spans[0]) if alone else trace.set_span_in_context(trace.INVALID_SPAN),
            kind=trace.SpanKind.CLIENT,
            links=links,
        )
        for each in spans:
            each.add_link(span.get_span_context())
        try:
            yield span
        except UpstreamError as error:
            # NB: its message has the model's address, no request data.
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(trace.StatusCode.ERROR, str(error))
            raise
        finally:
            span.end()


class _Traced:
    """An exchange whose end ends its span."""

    __slots__ = ("_exchange", "_gone", "_span", "request")

    def __init__(self, exchange: Exchange, span: Span) -> None:
        request = exchange.request
        exchange.gone = self._left
        self._exchange = exchange
        self._span = span
        self._gone: Callable[[], object] | None = None
        traced = TracedRequest(
            request.method,
            request.target,
            _named(request.headers, span.get_span_context()),
            request.body,
            request.peer,
            request.stream,
            request.length,
            request.upgrade,
        )
        traced.span = span
        self.request: Request = traced

    @property
    def gone(self) -> Callable[[], object] | None:
        return self._gone

    @gone.setter
    def gone(self, act: Callable[[], object] | None) -> None:
        self._gone = act

    def answer(self, response: Response) -> None:
        if self._span.is_recording():  # it has ended where the client left before
            if (reason := get(response.headers, REASON)) is not None:
                self._span.set_attribute("penstock.reason", reason.decode())
            _status(self._span, response.status, failed=500)
            self._span.end()
        self._exchange.answer(response)

    def interim(self, status: int, headers: Headers) -> None:
        self._exchange.interim(status, headers)

    def switch(self, headers: Headers) -> Tunnel:
        _status(self._span, 101, failed=500)
        self._span.end()
        return self._exchange.switch(headers)

    def _left(self) -> None:
        self._span.set_attribute("penstock.reason", "client_gone")
        self._span.end()
        if self._gone is not None:
            self._gone()


def _status(span: Span, status: int, *, failed: int) -> None:
    """Note a status; for a server 4xx is no failure, for a client it is (OpenTelemetry's conventions)."""
    span.set_attribute("http.response.status_code", status)
    if status >= failed:
        from opentelemetry.trace import StatusCode

        span.set_attribute("error.type", str(status))
        span.set_status(StatusCode.ERROR)


def _named(headers: Headers, context: SpanContext) -> Headers:
    """The fields with another `traceparent`; the `tracestate` stays only where there was a `traceparent`."""
    # NB: level 1 knows one flag; level 2's others are not passed on.
    value = b"00-%032x-%016x-%02x" % (context.trace_id, context.span_id, context.trace_flags & 1)
    kept = [field for field in headers if field[0] != TRACEPARENT and field[0] != TRACESTATE]
    state = context.trace_state.to_header().encode()
    return (*kept, (TRACEPARENT, value), *(((TRACESTATE, state),) if state else ()))


def _state(headers: Headers) -> Any:
    from opentelemetry.trace import TraceState

    found = [value.decode("latin-1") for name, value in headers if name == TRACESTATE]
    return TraceState.from_header(found)


class Unavailable(Exception):
    """OpenTelemetry is not installed."""


def start(attributes: Mapping[str, str]) -> Tracing:
    """Trace, and export as the OTEL_* environment says (OTLP over HTTP).

    Args:
        attributes: of the process.

    Raises:
        Unavailable: the packages are not there.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise Unavailable(f"expected the packages of penstock[tracing], found {error}") from error
    return Tracing(BatchSpanProcessor(OTLPSpanExporter()), attributes)
