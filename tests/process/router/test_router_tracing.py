"""A span for each sampled request of the router: what it holds, and who its parent and children are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from penstock_router.tracing import Tracing
from penstock_wire.control.router_settings import ColdStart, Endpoint, WeightedBackend
from penstock_wire.headers import TRACEPARENT, Headers, get
from tests.support.clocks import fake_loop
from tests.support.worlds.router_world import World

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED: Headers = ((b"traceparent", f"00-{TRACE}-{CALLER}-01".encode()), (b"tracestate", b"a=1"))
UNSAMPLED: Headers = ((b"traceparent", f"00-{TRACE}-{CALLER}-00".encode()), (b"tracestate", b"a=1"))

Play = Callable[[World], Coroutine[Any, Any, None]]


def traced(play: Play, *hosts: str, **world: Any) -> tuple[list[ReadableSpan], World]:
    """The ended spans of what is played, and where that was."""
    exporter = InMemorySpanExporter()
    tracing = Tracing(SimpleSpanProcessor(exporter), {"service.instance.id": "r-1"})
    worlds = []

    async def main() -> None:
        worlds.append(World(*hosts, tracing=tracing, **world))
        await play(worlds[0])

    fake_loop.run(main())
    spans = list(exporter.get_finished_spans())
    tracing.close()
    for span in spans:
        assert span.resource.attributes["service.name"] == "penstock-router"
        assert span.resource.attributes["service.instance.id"] == "r-1"
        assert "secret" not in span.to_json()
    return spans, worlds[0]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """Of one span, by the last part of the name."""
    assert span.attributes is not None
    return {name.rpartition(".")[2]: value for name, value in span.attributes.items()}


def context(span: ReadableSpan) -> tuple[str, str]:
    """Ids of its trace and of itself."""
    assert span.context is not None
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"


def test_a_request_has_a_span_between_its_callers_and_the_sidecars() -> None:
    """The child of the one, and what the pod is told as its own parent."""

    async def play(world: World) -> None:
        assert (await world.ask(fields=(*SAMPLED, (b"x-secret", b"secret")))).status == 200

    (span,), world = traced(play, "a", seconds=0.5)
    assert span.parent is not None
    assert (context(span)[0], f"{span.parent.span_id:016x}") == (TRACE, CALLER)
    (sent,) = world.network.tried
    assert get(sent, TRACEPARENT) == f"00-{TRACE}-{context(span)[1]}-01".encode()
    assert get(sent, b"tracestate") == b"a=1"
    assert attributes(span) == {
        "endpoint": "e",
        "namespace": "n",
        "backend": "b",
        "pod": "a:1",
        "tries": 1,
        "hold_seconds": 0.0,
        "method": "POST",
        "status_code": 200,
    }


def test_that_a_pod_handed_a_request_back_is_noted() -> None:
    async def play(world: World) -> None:
        world.network.handed_back.add("x")
        assert (await world.ask(fields=SAMPLED)).status == 200

    (span,), _ = traced(play, "a")
    (event,) = span.events
    assert event.attributes == {"penstock.reason": "moved", "penstock.pod": "a:1"}
    assert attributes(span)["tries"] == 2


def test_what_is_not_sampled_goes_on_as_it_came() -> None:
    async def play(world: World) -> None:
        assert (await world.ask(fields=UNSAMPLED)).status == 200

    spans, world = traced(play, "a")
    assert spans == []
    (sent,) = world.network.tried
    assert [field for field in sent if field[0].startswith(b"trace")] == list(UNSAMPLED)


def test_a_further_try_is_an_event_and_the_pod_is_the_last_one() -> None:
    async def play(world: World) -> None:
        world.all_are("refuses", "a")
        for index in range(20):
            await world.ask(str(index), fields=SAMPLED)

    spans, _ = traced(play, "a", "c")
    tried = [(attributes(span)["tries"], attributes(span)["pod"], span.events) for span in spans]
    assert {(tries, pod) for tries, pod, _ in tried} == {(1, "c:1"), (2, "c:1")}
    for tries, _, events in tried:
        assert [dict(event.attributes or {}) for event in events] == [
            {"penstock.reason": "connect_failed", "penstock.pod": "a:1"}
        ] * (tries - 1)


def test_the_time_in_the_hold_is_in_it() -> None:
    """Also of a request that never left it: whose time ended, or whose client left."""

    async def play(world: World) -> None:
        held = world.ask("held", fields=SAMPLED)
        late = world.ask("late", timeout_ms=2000, fields=SAMPLED)
        left = world.ask("left", fields=SAMPLED)
        await asyncio.sleep(1)
        left.cancel()
        await asyncio.sleep(2)
        world.have("a")
        assert [(await held).status, (await late).status] == [200, 504]

    spans, _ = traced(play, cold=ColdStart(timeout_ms=60_000))
    outcomes = [
        (round(fields["hold_seconds"], 3), fields["status_code"], fields.get("reason"), fields.get("pod"))
        for fields in map(attributes, spans)
    ]
    assert outcomes == [
        (1.0, 499, "client_gone", None),
        (2.0, 504, "deadline", None),
        (3.0, 200, None, "a:1"),
    ]
    assert [span.status.is_ok for span in spans] == [True, False, True]


def test_a_refusal_of_the_routers_own_has_its_span() -> None:
    async def play(world: World) -> None:
        settings = Endpoint(name="e", backends=(WeightedBackend(name="b"),), closed=("/",))
        world.state.update(settings)
        assert (await world.ask(fields=SAMPLED)).status == 403

    (span,), _ = traced(play, "a")
    fields = attributes(span)
    assert (fields["status_code"], fields["reason"], "pod" in fields) == (403, "forbidden", False)


def test_without_a_tracer_nothing_of_opentelemetry_is_needed() -> None:
    """A router that does not trace imports none of it."""
    import subprocess
    import sys

    code = "import sys, json, penstock_router.__main__; print(json.dumps([m for m in sys.modules]))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert "penstock_router.tracing" in loaded
    assert [name for name in loaded if name.startswith("opentelemetry")] == []
