"""Calls over one channel of grpcio's through a real router: each is a request of its own, as over HTTP."""

from __future__ import annotations

import asyncio
import collections
import itertools
import json
import re
import struct
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2

from tests.support.clocks.waiting import SECONDS
from tests.support.http.grpc_messages import call, doubles, infer, numbers
from tests.support.http.router_upstream import Answer, Seen, UpstreamServer, refuse
from tests.support.processes.ports import free_port
from tests.support.processes.router_process import backend, endpoint, until

Channel = grpc.aio.Channel


async def double(seen: Seen) -> Answer:
    """Answer a tensor `x` of floats with twice its numbers."""
    size = int(seen.header("inference-header-content-length") or 0)
    (tensor,) = json.loads(seen.body[:size])["inputs"]
    raw = seen.body[size:]
    values = [2 * value for value in struct.unpack(f"<{len(raw) // 4}f", raw)]
    output = tensor | {"name": "y", "parameters": {"binary_data_size": len(raw)}}
    text = json.dumps({"model_name": "double", "outputs": [output]}).encode()
    headers = b"inference-header-content-length: %d\r\n" % len(text)
    return Answer(body=text + struct.pack(f"<{len(values)}f", *values), headers=headers)


@pytest.fixture
async def channel() -> AsyncIterator[Any]:
    """Open a channel to ports: to the first that takes it, until that goes."""
    channels: list[Channel] = []

    async def connect(*ports: int) -> Channel:
        where = "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in ports)
        channels.append(grpc.aio.insecure_channel(where))
        return channels[-1]

    yield connect
    for each in channels:
        await each.close()


def counts(servers: list[UpstreamServer]) -> list[int]:
    return [len(server.seen) for server in servers]


async def in_turn(channel: Channel, count: int, *, at_once: int = 32, **options: Any) -> None:
    """Make so many calls, some at once; each gets its own answer."""
    numbered = iter(range(count))

    async def work() -> None:
        for number in numbered:
            answer = await call(channel, "ModelInfer", doubles(float(number)), **options)
            assert numbers(answer) == [2.0 * number]

    await asyncio.gather(*(work() for _ in range(at_once)))


async def test_one_channel_is_spread_evenly_and_by_weight(upstream: Any, router: Any, channel: Any) -> None:
    """Over four pods a quarter each, within 2 %; over backends by their weights."""
    pods = [await upstream(double) for _ in range(4)]
    new = await upstream(double)
    port = free_port()
    process = await router().start(endpoint("e", backend("b", *[pod.target for pod in pods]), port=port))
    calling = await channel(port)
    await in_turn(calling, 1000)
    assert [abs(count / 10 - 25) <= 2 for count in counts(pods)] == [True] * 4, counts(pods)
    stable = backend("b", *[pod.target for pod in pods], weight=90)
    process.settle(endpoint("e", stable, backend("n", new.target, weight=10), port=port))
    await process.until_routes(lambda routes: len(routes[0]["backends"]) == 2)
    await in_turn(calling, 300)
    assert abs(len(new.seen) - 30) <= 2


async def test_metadata_choose_a_backend_a_pod_and_a_mirror(upstream: Any, router: Any, channel: Any) -> None:
    """As header fields do: rules, keys, copies; what a call's failure counts for is its status."""
    pods = [await upstream(double) for _ in range(3)]
    beta, copy = await upstream(double), await upstream(double)
    port = free_port()
    process = await router().start(
        endpoint(
            "e",
            backend("b", *[pod.target for pod in pods]),
            backend("beta", beta.target, weight=0) | {"match": [{"header": "x-group", "value": "beta"}]},
            port=port,
            mirrors=[
                {"name": "m", "targets": [copy.target], "match": [{"header": "x-copied", "prefix": "y"}]}
            ],
        )
    )
    calling = await channel(port)
    await in_turn(calling, 20, metadata=(("x-group", "beta"),))
    assert (len(beta.seen), counts(pods)) == (20, [0, 0, 0])
    for key in "abcdef":
        before = counts(pods)
        await in_turn(calling, 10, metadata=(("x-penstock-shard-key", key),))
        assert sorted(map(int.__sub__, counts(pods), before)) == [0, 0, 10]
    ours = (("x-copied", "yes"), ("authorization", "Bearer a"))
    async with asyncio.timeout(SECONDS):
        while not copy.seen:  # a busy machine has no room for some copies
            await in_turn(calling, 1, at_once=1, metadata=ours)
    copied = copy.seen[0]
    (first,) = [seen for pod in pods for seen in pod.seen if seen.identity == copied.identity]
    assert (copied.body, copied.header("x-penstock-mirror")) == (first.body, "true")
    assert (first.target, first.header("authorization")) == ("/v2/models/double/infer", "Bearer a")

    async def fails(seen: Seen) -> Answer:
        return Answer(status=500, body=b'{"error": "of the model"}')

    pods[0].behave = pods[1].behave = pods[2].behave = fails
    with pytest.raises(grpc.aio.AioRpcError, match="of the model") as caught:
        await infer(calling, 1.0)
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    text = await process.metrics()
    assert 'penstock_router_requests_total{backend="beta",code="200",endpoint="e",reason=""} 20.0' in text
    assert re.search(r'router_requests_total{backend="b",code="500",endpoint="e",reason="\w+"} 1\.0', text)


async def test_a_call_waits_for_a_pod_and_is_tried_again_where_nothing_ran(
    upstream: Any, router: Any, channel: Any
) -> None:
    well = await upstream(double)
    refusing = await upstream(refuse("queue_full"))
    port = free_port()
    process = await router().start(endpoint("e", backend("b"), port=port))
    calling = await channel(port)
    waiting = [asyncio.ensure_future(infer(calling, float(number))) for number in range(8)]

    async with asyncio.timeout(SECONDS):
        while 'penstock_router_held_requests{backend=""} 8.0' not in await process.metrics():
            assert not any(each.done() for each in waiting)
    process.settle(endpoint("e", backend("b", refusing.target, well.target), port=port))
    assert [numbers(answer) for answer in await asyncio.gather(*waiting)] == [
        [2.0 * number] for number in range(8)
    ]
    await in_turn(calling, 40, at_once=8)
    assert len(refusing.seen) > 0
    assert len(well.seen) == 48
    process.settle(endpoint("e", backend("b", refusing.target), port=port, timeoutMs=300))
    await process.until_routes(lambda routes: routes[0]["backends"][0]["readyPods"] == 1)
    for _ in range(20):  # a last try may have some milliseconds, and end with them on a busy machine
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await infer(calling, 1.0)
        if caught.value.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
            break
    trailing = dict(caught.value.trailing_metadata() or ())
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert trailing["grpc-retry-pushback-ms"] == "7000"
    info, retry = status_pb2.Status.FromString(trailing["grpc-status-details-bin"]).details  # type: ignore[arg-type]
    said, wait = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert info.Unpack(said)
    assert retry.Unpack(wait)
    assert (said.reason, said.domain, wait.retry_delay.seconds) == ("queue_full", "penstock.dev", 7)


async def test_a_router_that_ends_loses_no_call(upstream: Any, router: Any, channel: Any) -> None:
    """Twice: its clients are told, go to the next one, and every call ran once, with its own answer."""
    slots = asyncio.Semaphore(4)
    ran: collections.Counter[bytes] = collections.Counter()

    async def slowly(seen: Seen) -> Answer:
        ran[seen.body[-4:]] += 1
        async with slots:  # so that calls are always under way
            await asyncio.sleep(0.005)
        return await double(seen)

    pods = [await upstream(slowly) for _ in range(2)]
    ports = [free_port() for _ in range(3)]
    served = backend("b", *[pod.target for pod in pods])
    routers = [await router().start(endpoint("e", served, port=port)) for port in ports]
    calling = await channel(*ports)
    numbered, stop = itertools.count(), asyncio.Event()

    async def work() -> int:
        for number in numbered:
            if stop.is_set():
                return number
            assert numbers(await infer(calling, float(number))) == [2.0 * number]
        raise AssertionError

    workers = [asyncio.create_task(work()) for _ in range(16)]
    for ending in routers[:2]:
        before = sum(counts(pods))
        await until(lambda before=before: sum(counts(pods)) > before + 200)  # type: ignore[misc]
        ending.signal()
        assert await ending.ended() == 0
    before = sum(counts(pods))
    await until(lambda: sum(counts(pods)) > before + 200)
    stop.set()
    last = min(await asyncio.gather(*workers))
    assert set(ran.values()) == {1}
    assert len(ran) >= last
