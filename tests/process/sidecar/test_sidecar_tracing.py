"""Spans of requests and batches, through the front, the handler and the dispatcher, into memory."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from penstock_sidecar.admission.error_responses import AT_ONCE
from penstock_sidecar.batching.dispatcher import Dispatcher
from penstock_sidecar.batching.streaming import StreamedSends
from penstock_sidecar.handler import SidecarHandler
from penstock_sidecar.metrics import Metrics
from penstock_sidecar.passthrough.passthrough import Passthrough
from penstock_sidecar.protocols import PROTOCOLS
from penstock_sidecar.tracing import Tracing
from penstock_wire.control.settings import Batching, Settings
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import Headers, get
from penstock_wire.http import ConnectFailed, Request, Response, Tunnel
from penstock_wire.http.server.server import H1Front
from penstock_wire.tracing import asked_by, parse
from tests.support.models.model_stream import ModelStream
from tests.support.processes.sidecar_process import until

TRACE, PARENT = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7
SAMPLED = f"00-{TRACE:032x}-{PARENT:016x}-01"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (SAMPLED, (TRACE, PARENT, True)),
        (SAMPLED[:-2] + "00", (TRACE, PARENT, False)),
        (SAMPLED[:-2] + "ff", (TRACE, PARENT, True)),
        ("01" + SAMPLED[2:], (TRACE, PARENT, True)),
        ("cc" + SAMPLED[2:] + "-what-comes-later", (TRACE, PARENT, True)),
        ("00" + SAMPLED[2:] + "-what-comes-later", None),
        ("cc" + SAMPLED[2:] + ".what-comes-later", None),
        ("ff" + SAMPLED[2:], None),
        (SAMPLED.upper(), None),
        (SAMPLED[:-1], None),
        (SAMPLED + " ", None),
        ("", None),
        ("00-" + "0" * 32 + SAMPLED[35:], None),
        (SAMPLED[:36] + "0" * 16 + "-01", None),
        (SAMPLED.replace("-", "_"), None),
    ],
)
def test_a_traceparent_is_read_as_w3c_says(value: str, expected: Any):
    assert parse(value.encode()) == expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4318"}, False),
    ],
)
def test_opentelemetrys_own_variables_turn_it_on(environment: dict[str, str], expected: bool):
    assert asked_by(environment) == expected


class World:
    """A traced sidecar before a model made of a function."""

    def __init__(self, protocol: str) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracing = Tracing(SimpleSpanProcessor(self.exporter), {"penstock.backend": "digits"})
        self.sent: list[Request] = []
        self.go = asyncio.Event()
        self.go.set()
        self.fails: Exception | None = None
        metrics = Metrics()
        settings = Settings(batching=Batching(max_batch_size=8))

        async def never(*_: Any, **__: Any) -> Any:
            raise AssertionError

        passthrough = Passthrough(open=never, settings=settings, observer=metrics, clock=time.monotonic)
        self.dispatcher = Dispatcher(
            send=self.send,
            protocol=PROTOCOLS[protocol],
            batching=settings.batching,
            observer=metrics,
            clock=time.monotonic,
            unbatched=passthrough,
            trace=self.tracing.send,
            streamed=self.streamed_sends(),
        )
        handler = SidecarHandler(
            dispatcher=self.dispatcher,
            protocol=PROTOCOLS[protocol],
            passthrough=passthrough,
            observer=metrics,
            clock=time.monotonic,
        )
        self.service = self.tracing.service(handler.begin)
        self.front = H1Front()

    def streamed_sends(self) -> StreamedSends:
        """Sends whose every answer is `stream`, for clients that accept one."""
        self.stream = ModelStream((b"content-type", b"application/x-ndjson"))

        async def begin(request: Request, timeout: float, idle: float) -> ModelStream:
            self.sent.append(request)
            await self.go.wait()
            return self.stream

        return StreamedSends(open=begin, cut=lambda reason: None, clock=time.monotonic)

    async def start(self) -> World:
        self.task = asyncio.create_task(self.dispatcher.run())
        listener = await self.front.serve("127.0.0.1", 0, self.service)
        self.url = f"http://127.0.0.1:{listener.address[1]}/secret-path?secret-query"
        self.session = aiohttp.ClientSession()
        return self

    async def send(self, request: Request, timeout: float) -> Response:
        self.sent.append(request)
        await self.go.wait()
        if self.fails is not None:
            raise self.fails
        items = json.loads(request.body)["instances"]
        status = 500 if "fail" in items else 200
        return Response(status=status, body=json.dumps({"predictions": items}).encode())

    async def ask(self, *items: Any, **headers: str) -> int:
        body = {"instances": items}
        async with self.session.post(self.url, json=body, headers=headers) as answer:
            await answer.read()
            return answer.status

    async def spans(self, count: int) -> list[ReadableSpan]:
        """That many ended spans."""

        async def look() -> bool:
            return len(self.exporter.get_finished_spans()) >= count

        await until(look)
        spans = list(self.exporter.get_finished_spans())
        assert len(spans) == count
        for span in spans:
            assert span.resource.attributes["penstock.backend"] == "digits"
            assert "secret" not in span.to_json()
        return spans

    async def stop(self) -> None:
        self.go.set()
        await self.session.close()
        await self.front.close(1)
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.tracing.close()


@pytest.fixture
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """With `instances`, or what it is parametrised with."""
    made = await World(getattr(request, "param", "instances")).start()
    yield made
    await made.stop()


def only(spans: list[ReadableSpan], which: Callable[[ReadableSpan], bool]) -> ReadableSpan:
    (match,) = [span for span in spans if which(span)]
    return match


def context(request: Request) -> tuple[int, int, bool]:
    parsed = parse(get(request.headers, b"traceparent") or b"")
    assert parsed is not None
    return parsed


async def test_a_lone_request_is_one_trace_from_its_caller_to_the_model(world: World):
    assert await world.ask(1, traceparent=SAMPLED, tracestate="vendor=v") == 200
    spans = await world.spans(2)
    server = only(spans, lambda span: span.kind is SpanKind.SERVER)
    batch = only(spans, lambda span: span.kind is SpanKind.CLIENT)
    assert server.parent is not None
    assert batch.parent is not None
    assert (server.parent.trace_id, server.parent.span_id) == (TRACE, PARENT)
    assert batch.parent.span_id == server.context.span_id
    assert context(world.sent[0]) == (TRACE, batch.context.span_id, True)
    assert get(world.sent[0].headers, b"tracestate") == b"vendor=v"
    assert dict(server.attributes or {}) == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "penstock.items": 1,
        "penstock.queue_seconds": (server.attributes or {})["penstock.queue_seconds"],
    }


async def test_requests_of_one_batch_are_linked_with_it_both_ways(world: World):
    world.go.clear()
    first = asyncio.create_task(world.ask(0))
    await until(lambda: asyncio.sleep(0, world.sent))
    headers = [{"traceparent": SAMPLED}, {}, {"traceparent": SAMPLED[:-2] + "00"}]
    rest = [asyncio.create_task(world.ask(n, n, **fields)) for n, fields in enumerate(headers)]
    await until(lambda: asyncio.sleep(0, world.dispatcher.queued == 6))
    world.go.set()
    assert await asyncio.gather(first, *rest) == [200] * 4
    spans = await world.spans(5)
    batch = only(spans, lambda span: (span.attributes or {}).get("penstock.batch.requests") == 3)
    attributes = batch.attributes or {}
    assert (attributes["penstock.batch.items"], attributes["penstock.batch.fill"]) == (6, 0.75)
    assert batch.parent is None
    requests = [span for span in spans if (span.attributes or {}).get("penstock.items") == 2]
    # The caller of the third does not sample, so it does not get a span.
    assert {link.context.span_id for link in batch.links} == {span.context.span_id for span in requests}
    assert len(requests) == 2
    for span in requests:
        assert [link.context.span_id for link in span.links] == [batch.context.span_id]
    assert {span.context.trace_id == TRACE for span in requests} == {True, False}
    assert context(world.sent[1]) == (batch.context.trace_id, batch.context.span_id, True)


async def test_what_nobody_samples_makes_no_span_and_passes_as_it_came(world: World):
    unsampled = SAMPLED[:-2] + "00"
    assert await world.ask(1, traceparent=unsampled) == 200
    assert get(world.sent[0].headers, b"traceparent") == unsampled.encode()
    assert world.exporter.get_finished_spans() == ()


async def test_a_traceparent_that_cannot_be_read_begins_a_new_trace(world: World):
    assert await world.ask(1, traceparent="00-zz", tracestate="a=b") == 200
    spans = await world.spans(2)
    server = only(spans, lambda span: span.kind is SpanKind.SERVER)
    assert server.parent is None
    assert context(world.sent[0])[0] == server.context.trace_id
    assert get(world.sent[0].headers, b"tracestate") is None


async def test_errors_are_told_by_status_and_reason_alone(world: World):
    json_type = {"content-type": "application/json"}
    async with world.session.post(world.url, data=b'{"instances": [secret', headers=json_type) as answer:
        assert answer.status == 400
    world.fails = ConnectFailed("cannot connect to h:1")
    assert await world.ask("secret") == 502
    world.fails = None
    assert await world.ask("fail") == 500
    spans = await world.spans(5)
    servers = [span for span in spans if span.kind is SpanKind.SERVER]
    attributes = [
        (
            (span.attributes or {})["http.response.status_code"],
            (span.attributes or {}).get("penstock.reason"),
            span.status.status_code,
        )
        for span in servers
    ]
    assert attributes == [
        (400, "bad_json", StatusCode.UNSET),
        (502, "model_unreachable", StatusCode.ERROR),
        (500, None, StatusCode.ERROR),
    ]
    lost, failed = [span for span in spans if span.kind is SpanKind.CLIENT]
    assert (lost.attributes or {})["error.type"] == "ConnectFailed"
    assert (failed.attributes or {})["error.type"] == "500"


async def test_each_run_of_an_isolated_batch_has_a_span_linked_with_its_requests(world: World):
    world.go.clear()
    first = asyncio.create_task(world.ask(0))
    await until(lambda: asyncio.sleep(0, world.sent))
    rest = []
    for item in ("fail", "fine"):
        rest.append(asyncio.create_task(world.ask(item, traceparent=SAMPLED)))
        await until(lambda: asyncio.sleep(0, world.dispatcher.queued == len(rest)))
    world.go.set()
    assert await asyncio.gather(first, *rest) == [200, 500, 200]
    spans = [span for span in await world.spans(7) if span.links]
    runs = [span for span in spans if span.kind is SpanKind.CLIENT][1:]
    told_of = [
        ((span.attributes or {})["penstock.batch.requests"], (span.attributes or {}).get("error.type"))
        for span in runs
    ]
    assert told_of == [(2, "500"), (1, "500"), (1, None)]
    assert [context(request) for request in world.sent[1:]] == [
        (span.context.trace_id, span.context.span_id, True) for span in runs
    ]
    batch, *again = runs
    assert batch.parent is None
    servers = [span for span in spans if span.kind is SpanKind.SERVER and span.context.trace_id == TRACE]
    assert {link.context.span_id for link in batch.links} == {span.context.span_id for span in servers}
    for server in servers:
        # Its own run is a part of its caller's trace, and linked as the batch is that it was in before.
        own = only(again, lambda span, server=server: span.links[0].context.span_id == server.context.span_id)
        assert own.parent is not None
        assert own.parent.span_id == server.context.span_id
        assert own.context.trace_id == TRACE
        assert [link.context.span_id for link in server.links] == [
            batch.context.span_id,
            own.context.span_id,
        ]
        assert (server.attributes or {})["http.response.status_code"] == (
            500 if (own.attributes or {}).get("error.type") else 200
        )


async def test_the_span_of_a_streamed_batch_ends_with_its_stream(world: World):
    """Those of its requests end with the heads of their answers."""
    asked = asyncio.create_task(world.ask(1, traceparent=SAMPLED, accept="application/x-ndjson"))
    await until(lambda: asyncio.sleep(0, world.sent))
    world.stream.say({"data": 1})
    (server,) = await world.spans(1)
    assert server.kind is SpanKind.SERVER
    assert (server.attributes or {})["http.response.status_code"] == 200
    world.stream.end()
    assert await asked == 200
    _, batch = await world.spans(2)
    assert batch.kind is SpanKind.CLIENT
    assert (batch.attributes or {})["http.response.status_code"] == 200
    assert batch.parent is not None
    assert batch.parent.span_id == server.context.span_id
    assert [link.context.span_id for link in server.links] == [batch.context.span_id]
    assert context(world.sent[0]) == (TRACE, batch.context.span_id, True)


async def test_a_client_that_left_ends_its_span(world: World):
    world.go.clear()
    gone = asyncio.create_task(world.ask(1))
    await until(lambda: asyncio.sleep(0, world.sent))
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    (server,) = await world.spans(1)
    assert (server.attributes or {})["penstock.reason"] == "client_gone"


class Caller:
    """An exchange without a client."""

    def __init__(self) -> None:
        self.request = Request("POST", "/", ((b"traceparent", SAMPLED.encode()),), b"{}")
        self.gone: Callable[[], object] | None = None
        self.answers = 0

    def answer(self, _response: Response) -> None:
        self.answers += 1

    def switch(self, _headers: Headers) -> Tunnel:
        raise AssertionError


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_traced_request_that_is_over_is_not_kept(world: World, leaves: bool):
    """What hands it back leads to it, and so would keep it until the garbage collector comes."""
    caller = Caller()
    caller.request.body = b'{"instances": [1]}'
    world.service(caller)
    recall, gone = caller.request.recall, caller.gone
    assert recall is not None
    assert gone is not None
    if leaves:
        gone()
    else:
        assert recall() == 1
    assert (caller.request.recall, caller.answers) == (None, int(not leaves))
    await world.spans(1)


async def test_who_leaves_while_others_are_told_their_refusal_ends_a_span_once(
    world: World, caplog: pytest.LogCaptureFixture
):
    """It still gets its outcome in its turn, which goes nowhere; an ended span does not change."""
    world.dispatcher.refuse(PenstockError(Reason.DRAINING, "x"))
    callers = [Caller() for _ in range(AT_ONCE + 1)]
    for caller in callers:
        world.service(caller)
    last = callers[-1]
    assert (last.answers, callers[0].answers) == (0, 1)
    assert last.gone is not None
    last.gone()
    await until(lambda: asyncio.sleep(0, last.answers))
    spans = await world.spans(len(callers))
    assert [(span.attributes or {})["penstock.reason"] for span in spans][-1] == "client_gone"
    assert not caplog.records
