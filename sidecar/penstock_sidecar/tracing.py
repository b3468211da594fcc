"""W3C trace context and OpenTelemetry: a span for each sampled request, linked to the span of its batch.

While tracing is off, which is the default, none of this runs for a request and OpenTelemetry is not imported.
Spans hold no request data: no path, no header, no body.

A request's span (SERVER) is the child of the span in its `traceparent`. A batch's span (CLIENT) is the child
of its request's span, if it holds one request. With several it begins a new trace, since a span has one
parent, and is linked with each request's span, both ways. The model gets the batch's context as
`traceparent`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock_sidecar.interfaces import Send
from penstock_sidecar.queue.request import Slice, TracedRequest
from penstock_wire.headers import REASON, Headers, get
from penstock_wire.http import Exchange, Request, Response, Service, Tunnel, UpstreamError
from penstock_wire.tracing import Spans, named, note_status

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span

SERVICE_NAME = "penstock-sidecar"


class Tracing:
    """Makes the spans of one process.

    Args:
        processor: takes ended spans.
        attributes: of the process, in addition to OTEL_RESOURCE_ATTRIBUTES.
    """

    def __init__(self, processor: SpanProcessor, attributes: Mapping[str, str]) -> None:
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        self._spans = Spans(processor, SERVICE_NAME, attributes)
        # A batch that holds a sampled request is sampled; it is not sampled by a ratio again.
        self._batches = self._spans.tracer(ALWAYS_ON)

    def service(self, service: Service) -> Service:
        """Wrap a service so that its requests are traced."""

        def begin(exchange: Exchange) -> None:
            span = self._spans.arrive(exchange.request)
            if span is None:
                service(exchange)
                return
            traced = _Traced(exchange, span)
            service(traced)
            # NB: a hop recalls the request that it has made, not the traced copy.
            exchange.request.recall = traced.request.recall

        return begin

    async def send(
        self, send: Send, request: Request, timeout: float, parts: Sequence[Slice], limit: int
    ) -> Response:
        """Send a run of a batch, in its own span if one of its requests is sampled.

        Args:
            send: sends to the model.
            request: the batch.
            timeout: seconds, for `send`.
            parts: the parts of requests in the batch.
            limit: items that the batch could have held.
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
            request.headers = named(request.headers, span.get_span_context())
            answer = await send(request, timeout)
            note_status(span, answer.status, failed=400)
            return answer

    def close(self) -> None:
        """Send the last spans (see `Spans.close`)."""
        self._spans.close()

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
            # NB: the message has the model's address but no request data.
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
            named(request.headers, span.get_span_context()),
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
        self._gone = self._exchange.request.recall = None  # NB: both refer back here: a reference cycle
        if self._span.is_recording():  # the span has ended already if the client left before
            if (reason := get(response.headers, REASON)) is not None:
                self._span.set_attribute("penstock.reason", reason.decode())
            note_status(self._span, response.status, failed=500)
            self._span.end()
        self._exchange.answer(response)

    def interim(self, status: int, headers: Headers) -> None:
        self._exchange.interim(status, headers)

    def switch(self, headers: Headers) -> Tunnel:
        self._gone = self._exchange.request.recall = None
        note_status(self._span, 101, failed=500)
        self._span.end()
        return self._exchange.switch(headers)

    def _left(self) -> None:
        gone, self._gone = self._gone, None
        self._exchange.request.recall = None
        self._span.set_attribute("penstock.reason", "client_gone")
        self._span.end()
        if gone is not None:
            gone()
