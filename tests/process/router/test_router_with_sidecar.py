"""The router in front of real sidecars: what the two tell each other in header fields."""

from __future__ import annotations

import asyncio
import io
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock_router.choice.affinity import Hashed, score
from penstock_wire.hop.upstream import HopUpstream
from penstock_wire.http.client.pool import H1Upstream
from tests.support.clocks.waiting import SECONDS
from tests.support.http import client_heads
from tests.support.http.raw_client import until_closed
from tests.support.http.router_upstream import Answer, Seen, UpstreamServer
from tests.support.processes.collector import Collector
from tests.support.processes.router_process import backend, endpoint, until
from tests.support.processes.router_sidecar import arrived_items, end_sidecar, start_sidecar, until_queued

Sidecar = tuple[asyncio.subprocess.Process, str]
HELD = 'penstock_router_held_requests{backend="b"}'
LONG_MS = 600_000
"""More than a test takes on a busy machine: what is stuck in it must not be answered for its time."""


async def predict(seen: Seen) -> Answer:
    """Answer each instance with itself."""
    if seen.method == "GET":
        return Answer(executed=False)
    instances = json.loads(seen.body)["instances"]
    return Answer(
        body=json.dumps({"predictions": instances}).encode(),
        headers=b"content-type: application/json\r\nx-penstock-not-admitted: forged\r\n",
    )


@pytest.fixture
async def sidecar(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Sidecar]]]:
    """Start sidecars in front of models."""
    started: list[asyncio.subprocess.Process] = []

    async def make(
        model: UpstreamServer,
        *flags: str,
        program: str = "penstock_sidecar",
        ongoing: int = 100,
        **batching: int,
    ) -> Sidecar:
        settings = tmp_path / f"sidecar-{len(started)}.json"
        document = {"v": 1, "backend": "b", "batching": batching, "maxOngoingRequests": ongoing}
        settings.write_text(json.dumps(document))
        process, address = await start_sidecar(model.target, settings, *flags, program=program)
        started.append(process)
        return process, address

    yield make
    for process in started:
        await end_sidecar(process)


def body(*items: int) -> dict[str, Any]:
    return {"data": json.dumps({"instances": items}), "headers": {"content-type": "application/json"}}


async def test_every_request_gets_its_own_answer(upstream: Any, router: Any, sidecar: Any) -> None:
    models = [await upstream(predict) for _ in range(2)]
    targets = [(await sidecar(model))[1] for model in models]
    process = await router().start(endpoint("e", backend("b", *targets)))
    replies = await asyncio.gather(*(process.ask(**body(index)) for index in range(300)))
    assert [reply.document["predictions"] for reply in replies] == [[index] for index in range(300)]
    assert {reply.headers["x-penstock-backend"] for reply in replies} == {"b"}
    assert all(model.seen for model in models)
    # A model cannot make the router send again what it executed.
    executed = [
        item
        for model in models
        for seen in model.seen
        if seen.body
        for item in json.loads(seen.body)["instances"]
    ]
    assert sorted(executed) == list(range(300))


async def relayed(target: str, lines: list[bytes]) -> tuple[asyncio.Server, str]:
    """A relay before a sidecar, which notes the request lines and the expectations of HTTP/1.1."""
    host, _, port = target.rpartition(":")

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(host, int(port))

        async def back() -> None:
            while data := await far_reader.read(65536):
                writer.write(data)
            writer.close()

        task = asyncio.create_task(back())
        while data := await reader.read(65536):
            lines.extend(
                line for line in data.split(b"\r\n") if line.endswith(b" HTTP/1.1") or b"expect: " in line
            )
            far_writer.write(data)
        far_writer.close()
        await task

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    return server, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_requests_to_a_sidecar_share_a_connection(upstream: Any, router: Any, sidecar: Any) -> None:
    """After the first answers: what goes between the two is frames, and HTTP/1.1 where that was asked for."""
    model = await upstream(predict)
    heads: list[bytes] = []
    server, through = await relayed((await sidecar(model))[1], heads)
    process = await router().start(endpoint("e", backend("b", through)))
    await process.ask(**body(0))
    await until(lambda: b"OPTIONS * HTTP/1.1" in heads)
    while (before := len(heads)) and (await process.ask(**body(1))).status == 200 and len(heads) > before:
        pass
    replies = await asyncio.gather(*(process.ask(**body(index)) for index in range(100)))
    assert [reply.document["predictions"] for reply in replies] == [[index] for index in range(100)]
    assert len(heads) == before
    await process.stop()
    server.close()


@pytest.mark.parametrize(
    ("flags", "batching", "capacity"),
    [((), {"maxBatchSize": 4, "maxConcurrentBatches": 2}, 8), (("--protocol=none",), {}, 7)],
)
async def test_a_sidecar_says_how_many_items_begin_at_once(
    upstream: Any, sidecar: Any, flags: tuple[str, ...], batching: dict[str, int], capacity: int
) -> None:
    """Those of all its slots, as it has room for now, and as it takes at once when nothing is there."""
    _, target = await sidecar(await upstream(predict), *flags, ongoing=7, **batching)
    host, _, port = target.rpartition(":")
    router = HopUpstream(H1Upstream())
    rooms: list[tuple[int, ...]] = []
    router.on_room = lambda key, *room: rooms.append(room)
    router.keep([(host, int(port))])
    await until(lambda: rooms[-1:] == [(capacity, 0, capacity)])
    await router.close()


async def test_long_bodies_of_requests_go_beside_the_hop_and_those_of_answers_on_it(
    upstream: Any, router: Any, sidecar: Any
) -> None:
    """A router asks first whether a long body may come: HTTP/1.1 has an answer to that, a hop has none."""

    async def long(seen: Seen) -> Answer:
        return Answer(body=seen.body or bytes(1_000_000))

    model = await upstream(long)
    lines: list[bytes] = []
    server, through = await relayed((await sidecar(model, "--protocol=none"))[1], lines)
    process = await router().start(endpoint("e", backend("b", through)))
    async with asyncio.timeout(SECONDS):
        while 'penstock_router_pods_with_room{backend="b"} 1.0' not in await process.metrics():
            assert (await process.ask(data=b"x")).body == b"x"
    lines.clear()
    assert (await process.ask(method="GET")).body == bytes(1_000_000)
    assert lines == []
    sent = bytes(2_000_000)
    assert (await process.ask("/e/long", data=io.BytesIO(sent))).body == sent
    assert lines == [b"POST /long HTTP/1.1", b"expect: 100-continue"]
    assert (await process.ask(data=b"x")).body == b"x"
    assert len(lines) == 2
    await process.stop()
    server.close()


@pytest.mark.parametrize(
    "asked", ["penstock-hop/1", "Penstock-Hop/1", "websocket\r\nupgrade: penstock-hop/1"]
)
async def test_a_client_gets_no_hop_to_a_sidecar_through_a_router(
    upstream: Any, router: Any, sidecar: Any, asked: str
) -> None:
    """It would be past all that the router checks: it is answered as if it had not asked."""
    model = await upstream(predict)
    _, target = await sidecar(model)
    process = await router().start(endpoint("e", backend("b", target)))
    host, _, port = process.data.removeprefix("http://").partition(":")
    for method, path in (("POST", "/e/predict"), ("OPTIONS", "/e")):
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: {asked}\r\n\r\n"
        writer.write(head.encode())
        line = await asyncio.wait_for(reader.readline(), SECONDS)
        assert line.split()[1] not in (b"101", b"500")
        writer.close()


async def test_a_full_queue_is_told_with_its_status(upstream: Any, router: Any, sidecar: Any) -> None:
    never = asyncio.Event()

    async def stuck(seen: Seen) -> Answer:
        if seen.method != "GET":
            await never.wait()
        return Answer()

    model = await upstream(stuck)
    _, target = await sidecar(model, maxBatchSize=1, maxQueuedItems=1)
    process = await router().start(endpoint("e", backend("b", target), coldStart={"maxPending": 0}))
    running = [asyncio.create_task(process.ask(**body(index))) for index in range(2)]
    await until(lambda: any(seen.method == "POST" for seen in model.seen))
    while (reply := await process.ask(**body(9), timeout=None)).status != 503:
        pass
    assert reply.document["reason"] == reply.headers["x-penstock-reason"] == "queue_full"
    assert int(reply.headers["retry-after"]) >= 1
    for task in running:
        task.cancel()


async def test_large_bodies_are_batched_like_others_up_to_what_a_sidecar_takes(
    upstream: Any, router: Any, sidecar: Any
) -> None:
    """Of a pod that is full a request waits with its whole body, since the sidecar says so by its head."""
    go = asyncio.Event()

    async def gated(seen: Seen) -> Answer:
        await go.wait()
        return await predict(seen)

    model = await upstream(gated)
    _, target = await sidecar(model, maxBatchSize=1, maxQueuedItems=0)
    process = await router().start(endpoint("e", backend("b", target)))

    async def ask(size: int, *, known: bool = True) -> Any:
        text = b'{"instances": ["' + b"x" * size + b'"]}'

        async def pieces() -> AsyncIterator[bytes]:
            yield text

        length = {"content-length": str(len(text))} if known else {}
        return await process.ask(data=pieces(), headers={"content-type": "application/json", **length})

    first = asyncio.create_task(ask(1))
    await until(lambda: any(seen.method == "POST" for seen in model.seen))
    second = asyncio.create_task(ask(3_000_000))
    while 'penstock_router_held_requests{backend="b"} 1.0' not in await process.metrics():
        pass
    go.set()
    for reply in (await first, await second, await ask(3_000_000, known=False)):
        assert (reply.status, set(reply.document["predictions"][0])) == (200, {"x"})
    refused = await ask(65 << 20)
    assert (refused.status, refused.document["reason"]) == (413, "too_large")
    assert refused.headers["x-request-id"]


async def test_real_sidecars_of_one_slot_and_no_queue_refuse_nobody(
    upstream: Any, router: Any, sidecar: Any
) -> None:
    """Callers at two pods that take one request each: who finds no room waits for some, as any client.

    Also requests of several items, of which a full pod reads nothing.
    """
    models = [await upstream(predict) for _ in range(2)]
    targets = [(await sidecar(model, maxBatchSize=1, maxQueuedItems=0))[1] for model in models]
    process = await router().start(endpoint("e", backend("b", *targets)))
    host, _, port = process.data.removeprefix("http://").partition(":")

    async def caller(number: int, client: str) -> list[Any]:
        bodies = [json.dumps({"instances": items(number, index)}).encode() for index in range(10)]
        replies = await client_heads.ask((host, int(port)), client, *bodies, path="/e/predict")
        return [(status, json.loads(got).get("predictions")) for status, _, got in replies]

    def items(number: int, index: int) -> list[Any]:
        return [[number, index, "x" * 100_000]] * (index % 3 + 1)

    answers = await asyncio.gather(*(caller(*each) for each in enumerate(client_heads.HEADS)))
    count = len(client_heads.HEADS)
    assert answers == [[(200, items(number, index)) for index in range(10)] for number in range(count)]
    assert 'penstock_router_retries_total{reason="queue_full"}' in await process.metrics()
    arrived = [await arrived_items(target) for target in targets]
    asked = sum(len(predictions) for caller in answers for _, predictions in caller)
    assert sum(arrived) == asked, "each item counts once, however often it is refused"


async def test_what_the_only_model_had_not_begun_when_it_crashed_waits_for_the_next_one(
    upstream: Any, router: Any, sidecar: Any
) -> None:
    """502 is for the batch that it had; what waited in the sidecar, and what comes since, is held."""
    never = asyncio.Event()

    async def stuck(seen: Seen) -> Answer:
        if seen.method != "GET":
            await never.wait()
        return Answer(executed=False)

    model = await upstream(predict)
    _, target = await sidecar(model, maxBatchSize=4, defaultTimeoutMs=LONG_MS)
    route = endpoint("e", backend("b", target), retries=0, timeoutMs=LONG_MS)
    process = await router().start(route)
    assert (await process.ask(**body(0))).status == 200
    model.behave = stuck
    running = [asyncio.create_task(process.ask(**body(1)))]
    await until(lambda: model.running == 1)
    waiting = [asyncio.create_task(process.ask(**body(index))) for index in range(2, 10)]
    await until_queued(target, 8)
    await model.stop()
    assert [(await task).status for task in running] == [502]
    waiting += [asyncio.create_task(process.ask(**body(index))) for index in range(10, 20)]

    def held(text: str) -> bool:
        line = next((line for line in text.splitlines() if line.startswith(HELD)), f"{HELD} 0")
        return float(line.split()[-1]) >= 17  # of 18, one may be the probe

    async with asyncio.timeout(SECONDS):
        while not held(await process.metrics()):
            assert not any(task.done() for task in waiting)
    model.behave, model.seen = predict, []
    await model.start(model.port)
    assert [(await task).document["predictions"] for task in waiting] == [[index] for index in range(2, 20)]
    ran = [
        item for seen in model.seen if seen.method == "POST" for item in json.loads(seen.body)["instances"]
    ]
    assert sorted(ran) == list(range(2, 20))


async def test_nothing_is_lost_while_a_sidecar_drains(upstream: Any, router: Any, sidecar: Any) -> None:
    models = [await upstream(predict) for _ in range(2)]
    patient = "tests.support.processes.patient_sidecar"
    first, target = await sidecar(models[0], "--propagation-delay=600s", program=patient)
    _, other = await sidecar(models[1])
    process = await router().start(endpoint("e", backend("b", target, other), retries=1))
    answers: list[str] = []
    stop = asyncio.Event()

    async def client() -> None:
        while not stop.is_set():
            reply = await process.ask(**body(1))
            answers.append("" if reply.status == 200 else f"{reply.status} {reply.headers} {reply.body!r}")

    clients = [asyncio.create_task(client()) for _ in range(8)]
    await until(lambda: len(answers) > 100)
    first.send_signal(signal.SIGTERM)
    # The slices of a cluster would say so now; here the settings do.
    process.settle(endpoint("e", backend("b", other), retries=1))
    await process.until_routes(lambda routes: routes[0]["backends"][0]["readyPods"] == 1)
    first.send_signal(signal.SIGUSR1)
    await asyncio.wait_for(first.wait(), SECONDS)
    count = len(answers)
    await until(lambda: len(answers) > count + 100)
    stop.set()
    await asyncio.gather(*clients)
    assert set(answers) == {""}


async def test_the_heads_of_answers_pass_through_both(upstream: Any, router: Any, sidecar: Any) -> None:
    """Early hints come before their answer, and HEAD has the length of what it leaves out."""
    hints = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"

    async def behave(seen: Seen) -> Answer:
        return Answer(body=b"x" * 12_345, interim=hints)

    model = await upstream(behave)
    _, target = await sidecar(model, "--protocol=none")
    process = await router().start(endpoint("e", backend("b", target)))
    address = ("127.0.0.1", int(process.data.rpartition(":")[2]))
    answer = await until_closed(address, b"HEAD /e/ HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    assert answer.startswith(hints + b"HTTP/1.1 200 OK\r\n")
    assert answer.count(b"\r\ncontent-length: 12345\r\n") == 1
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("flags", "leaves", "traced"),
    [
        ((), True, False),
        ((), False, True),
        (("--protocol=none",), False, False),
        (("--protocol=none",), True, True),
    ],
)
async def test_what_waits_at_a_pod_goes_to_one_that_has_room_and_runs_once(
    upstream: Any,
    router: Any,
    sidecar: Any,
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...],
    leaves: bool,
    traced: bool,
) -> None:
    """One pod is stuck with one request of many; when another is added, all the others are answered there.

    That the first is about to leave changes nothing, nor that requests pass through it or are traced.
    """
    if traced:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    free = asyncio.Event()

    async def stuck(seen: Seen) -> Answer:
        if seen.method != "GET" and b"[0]" in seen.body:
            await free.wait()
        return await predict(seen)

    busy, idle = await upstream(stuck), await upstream(predict)
    _, crowded = await sidecar(busy, *flags, ongoing=1, maxBatchSize=1, defaultTimeoutMs=LONG_MS)
    _, fresh = await sidecar(idle, *flags, ongoing=1, maxBatchSize=1, defaultTimeoutMs=LONG_MS)
    process = await router().start(endpoint("e", backend("b", crowded), timeoutMs=LONG_MS))
    assert (await process.ask(**body(100))).status == 200
    async with asyncio.timeout(SECONDS):
        while 'penstock_router_pods_with_room{backend="b"} 1.0' not in await process.metrics():
            assert (await process.ask(**body(101))).status == 200
    first = asyncio.create_task(process.ask(**body(0)))
    await until(lambda: any(b"[0]" in seen.body for seen in busy.seen))
    waiting = [asyncio.create_task(process.ask(**body(index))) for index in range(1, 9)]
    await until_queued(crowded, 8)
    process.settle(endpoint("e", backend("b", crowded, fresh), timeoutMs=LONG_MS))
    if leaves:
        process.settle(endpoint("e", backend("b", fresh), timeoutMs=LONG_MS))
    await process.until_routes(lambda routes: routes[0]["backends"][0]["readyPods"] == 2 - leaves)
    while not all(task.done() for task in waiting):  # whoever comes lets the router meet the new pod
        await asyncio.wait_for(process.ask(**body(200)), SECONDS)
    assert [task.result().document["predictions"] for task in waiting] == [[index] for index in range(1, 9)]
    assert not first.done(), first.result()
    free.set()
    assert (await first).status == 200
    ran = [seen.body for model in (busy, idle) for seen in model.seen if seen.method == "POST"]
    assert sorted(text for text in ran if b"[200]" not in text and b"[10" not in text) == sorted(
        json.dumps({"instances": [index]}).encode() for index in range(9)
    )
    assert 'penstock_router_retries_total{reason="moved"}' in await process.metrics()
    arrived = await arrived_items(crowded) + await arrived_items(fresh)
    assert arrived == len(ran), "what is handed back has arrived once"


async def test_what_waits_at_the_pod_of_its_key_stays_there(upstream: Any, router: Any, sidecar: Any) -> None:
    """Another request that waits there goes to a pod with room; those with the key run where they wait."""
    free = asyncio.Event()

    async def stuck(seen: Seen) -> Answer:
        if seen.method != "GET" and b"[0]" in seen.body:
            await free.wait()
        return await predict(seen)

    busy, idle = await upstream(stuck), await upstream(predict)
    _, crowded = await sidecar(busy, maxBatchSize=1, defaultTimeoutMs=LONG_MS)
    _, fresh = await sidecar(idle, maxBatchSize=1, defaultTimeoutMs=LONG_MS)
    names = [Hashed(target.encode()) for target in (crowded, fresh)]
    keys = (str(number) for number in range(1000))
    key = next(key for key in keys if score(own := Hashed(key.encode()), names[0]) > score(own, names[1]))

    def keyed(index: int) -> dict[str, Any]:
        asked = body(index)
        asked["headers"]["x-penstock-shard-key"] = key
        return asked

    process = await router().start(endpoint("e", backend("b", crowded), timeoutMs=LONG_MS))
    async with asyncio.timeout(SECONDS):
        while 'penstock_router_pods_with_room{backend="b"} 1.0' not in await process.metrics():
            assert (await process.ask(**body(101))).status == 200
    first = asyncio.create_task(process.ask(**keyed(0)))
    await until(lambda: any(b"[0]" in seen.body for seen in busy.seen))
    sticking = [asyncio.create_task(process.ask(**keyed(index))) for index in range(1, 5)]
    moving = [asyncio.create_task(process.ask(**body(index))) for index in range(5, 9)]
    process.settle(endpoint("e", backend("b", crowded, fresh), timeoutMs=LONG_MS))
    await process.until_routes(lambda routes: routes[0]["backends"][0]["readyPods"] == 2)
    while not all(task.done() for task in moving):  # whoever comes lets the router meet the new pod
        await asyncio.wait_for(process.ask(**body(200)), SECONDS)
    assert not any(task.done() for task in (first, *sticking))
    free.set()
    replies = await asyncio.gather(first, *sticking)
    assert [reply.document["predictions"] for reply in replies] == [[index] for index in range(5)]
    stuck_here = {json.dumps({"instances": [index]}).encode() for index in range(5)}
    assert not [seen.body for seen in idle.seen if seen.body in stuck_here]
    assert "penstock_router_affinity_misses_total{" not in await process.metrics()


async def test_spans_of_router_and_sidecar_are_of_one_trace(
    upstream: Any, router: Any, sidecar: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller's span, the router's, the sidecar's and its batch's, each the child of the one before."""
    collector = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", await collector.start())
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    _, target = await sidecar(await upstream(predict))
    process = await router().start(endpoint("e", backend("b", target)))
    caller = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    asked = body(1)
    asked["headers"]["traceparent"] = caller
    assert (await process.ask(**asked)).status == 200
    process.signal()
    assert await process.ended() == 0
    await until(lambda: len(collector.spans) == 3)
    assert {span.trace_id.hex() for span in collector.spans} == {caller[3:35]}
    parent, path = caller[36:52], []
    children = {span.parent_span_id.hex(): span for span in collector.spans}
    while (span := children.get(parent)) is not None:
        path.append(span.name)
        parent = span.span_id.hex()
    assert path == ["POST", "POST", "batch"]
    assert {resource["service.name"] for resource in collector.resources} == {
        "penstock-router",
        "penstock-sidecar",
    }
    await collector.runner.cleanup()
