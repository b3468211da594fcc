"""What a sidecar hands back to its router, since another pod would begin it at once."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from penstock_sidecar.access_log import logged
from penstock_sidecar.batching.dispatcher import Dispatcher
from penstock_sidecar.handler import SidecarHandler
from penstock_sidecar.known_routers import KnownRouters
from penstock_sidecar.metrics import Metrics
from penstock_sidecar.passthrough.passthrough import Passthrough
from penstock_sidecar.protocols import PROTOCOLS
from penstock_sidecar.tracing import Tracing
from penstock_wire.access_log import AccessLog
from penstock_wire.control.settings import Batching, Settings
from penstock_wire.headers import NOT_ADMITTED, RETRY, STICKY, get
from penstock_wire.http import Request, Service
from tests.support.clocks import fake_loop
from tests.support.clocks.fake_loop import settle
from tests.support.worlds.passing_bench import Asked, Bench
from tests.support.worlds.router_world import HeldExchange

KEPT = "it would keep its request, and that the call, until the garbage collector comes"


async def test_who_waits_until_nothing_is_queued_learns_of_what_was_handed_back() -> None:
    """As a drain does. It counts by its items, is not executed, and is handed back once."""

    async def never(*_: Any, **__: Any) -> Any:
        raise AssertionError

    settings, metrics = Settings(batching=Batching(max_batch_size=8)), Metrics()
    passthrough = Passthrough(open=never, settings=settings, observer=metrics, clock=time.monotonic)
    dispatcher = Dispatcher(
        send=never,
        protocol=PROTOCOLS["instances"],
        batching=settings.batching,
        observer=metrics,
        clock=time.monotonic,
        unbatched=passthrough,
    )
    handler = SidecarHandler(
        dispatcher=dispatcher,
        protocol=PROTOCOLS["instances"],
        passthrough=passthrough,
        observer=metrics,
        clock=time.monotonic,
        trusts=lambda peer: routers.trusts(peer),
    )
    fields = ((b"host", b"a"), (b"content-type", b"application/json"))
    routers = KnownRouters()
    sticky = Request("POST", "/predict", (*fields, (STICKY, b"1")), b'{"instances": [1]}')
    sticking = HeldExchange(sticky, [])
    handler.begin(sticking)
    assert sticky.recall is None, "it has come here by its key"
    assert sticking.gone is not None
    sticking.gone()
    assert metrics.totals(batches=0, batch_items=0).arrived == 1
    # Once a request has come from a router that the operator names, such fields of others count for nothing.
    routers.are(["10.0.0.1", "fd00::1"])
    for peer, counts in (
        ("10.0.0.9", True),
        ("::ffff:10.0.0.1", True),
        ("10.0.0.9", False),
        ("fd00::1", True),
    ):
        claims = (*fields, (STICKY, b"1"), (RETRY, b"1"))
        claiming = HeldExchange(Request("POST", "/p", claims, b'{"instances": [1]}', peer), [])
        before = metrics.totals(batches=0, batch_items=0).arrived
        handler.begin(claiming)
        arrived = metrics.totals(batches=0, batch_items=0).arrived - before
        assert (claiming.request.recall is None, arrived == 0) == (counts, counts), peer
        assert claiming.gone is not None
        claiming.gone()
    left = Request("POST", "/predict", fields, b'{"instances": [1]}')
    leaving = HeldExchange(left, [])
    handler.begin(leaving)
    assert left.recall is not None
    assert leaving.gone is not None
    leaving.gone()
    assert left.recall is None, KEPT
    request = Request("POST", "/predict", fields, b'{"instances": [1, 2, 3]}')
    exchange = HeldExchange(request, [])
    handler.begin(exchange)
    recall = request.recall
    assert recall is not None
    idle = asyncio.create_task(dispatcher.idle())
    await asyncio.sleep(0)
    assert (recall(), recall()) == (3, 0)
    answer = await exchange.answered
    assert (answer.status, get(answer.fields, NOT_ADMITTED) is not None) == (503, True)
    await asyncio.wait_for(idle, 30)


async def test_of_what_passes_through_only_what_waits_is_handed_back() -> None:
    """Once, and surely not executed; neither what has begun, nor a stream, nor what has come by its key."""
    bench = Bench(slots=2)
    begun = [bench.ask(f"/{number}") for number in range(2)]
    await settle()
    assert [flow.request.recall for flow in begun] == [None, None]
    sticking = bench.ask("/sticky", x_penstock_sticky="1")
    waiting = bench.ask("/waits")
    assert sticking.request.recall is None
    recall = waiting.request.recall
    assert recall is not None
    assert (recall(), recall()) == (1, 0)
    assert waiting.request.recall is None, KEPT
    assert (waiting.status, waiting.reason) == (503, "moved")
    assert waiting.field(NOT_ADMITTED) is not None
    leaving = bench.ask("/leaves")
    assert leaving.request.recall is not None
    leaving.leave()
    assert leaving.request.recall is None, KEPT
    late = bench.ask("/late")
    recall = late.request.recall
    assert recall is not None
    for number in range(3):
        bench.model.answer(number)
        await settle()
    assert (recall(), late.request.recall) == (0, None), "it is with the model"
    bench.model.answer(3)
    await settle()
    assert [flow.status for flow in (*begun, sticking, late)] == [200] * 4
    assert (bench.rooms[-1], bench.load) == ((2, 0), (0, 0))
    assert list(dict.fromkeys(bench.rooms)) == [(1, 0), (0, 0), (0, 1), (0, 2), (2, 0)]


@pytest.mark.parametrize("end", ["is answered", "is handed back", "leaves"])
@pytest.mark.parametrize("seen", ["plain", "traced", "logged"])
def test_what_has_passed_through_is_freed_at_once(seen: str, end: str) -> None:
    """The garbage collector comes seldom, and bodies are large."""
    tracing = Tracing(SimpleSpanProcessor(InMemorySpanExporter()), {})
    wrap: dict[str, Callable[[Service], Service]] = {
        "plain": lambda service: service,
        "traced": tracing.service,
        "logged": lambda service: logged(service, AccessLog(1.0), time.monotonic),
    }

    async def main() -> None:
        bench = Bench()
        service = wrap[seen](bench.passthrough.begin)

        async def ask() -> weakref.ref[Asked]:
            begun = bench.ask()
            waiting = Asked(traceparent=f"00-{1:032x}-{1:016x}-01")
            service(waiting)
            recall = waiting.request.recall
            assert recall is not None
            if end == "is handed back":
                assert recall() == 1
            elif end == "leaves":
                waiting.leave()
            await settle()
            bench.model.answer(0)
            await settle()
            if end == "is answered":
                bench.model.answer(1)
                await settle()
            assert (begun.status, len(waiting.answers)) == (200, int(end != "leaves"))
            bench.model.calls.clear()
            return weakref.ref(waiting)

        assert (await ask())() is None

    gc.disable()
    try:
        fake_loop.run(main())
    finally:
        gc.enable()
        tracing.close()
