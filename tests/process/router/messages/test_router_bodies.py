"""A request's body between its client and the pods: what is tried again, what is refused, who asks for it."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from tests.support.clocks.waiting import SECONDS
from tests.support.http.stream_peer import Scripted, Wire, scripted
from tests.support.processes.router_process import RouterProcess, backend, endpoint, until

KIB = 1024
REFUSED = (
    b"HTTP/1.1 503 X\r\nx-penstock-not-admitted: 1\r\nx-penstock-reason: %b\r\ncontent-length: 2\r\n\r\n{}"
)
GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b"


async def answer(wire: Wire, body: bytes) -> None:
    await wire.send(OK % (len(body), body))


class Pods:
    """Two pods whose first connection is played by `first`; on all others bodies are read, and answered."""

    def __init__(self, *servers: Scripted) -> None:
        self.targets = [f"127.0.0.1:{server.port}" for server in servers]
        self.first: Callable[[Wire], Awaitable[None]] = self.take
        self.connections = 0
        self.bodies: list[bytes] = []
        """What `take` has read."""
        for server in servers:
            server.scripts = [self._play]

    async def _play(self, wire: Wire) -> None:
        self.connections += 1
        await (self.first if self.connections == 1 else self.take)(wire)

    async def take(self, wire: Wire) -> None:
        """Ask for the body, read it, answer with its length."""
        while True:
            head = await wire.head()
            if b"\r\nexpect: 100-continue\r\n" in head:
                await wire.send(GO_ON)
            if b"\r\ntransfer-encoding: chunked\r\n" in head:
                self.bodies.append(await wire.chunked())
            else:
                self.bodies.append(await wire.reader.readexactly(length_of(head)))
            await answer(wire, b"%d" % len(self.bodies[-1]))


def length_of(head: bytes) -> int:
    """The `content-length` of a head."""
    line = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length: "))
    return int(line.removeprefix(b"content-length: "))


@pytest_asyncio.fixture
async def pods() -> AsyncIterator[Pods]:
    async with scripted(Scripted()) as first, scripted(Scripted()) as second:
        yield Pods(first, second)


Start = Callable[..., Awaitable[RouterProcess]]


@pytest_asyncio.fixture
async def start(pods: Pods, router: Any) -> AsyncIterator[Start]:
    """Start a router before both."""
    started: list[RouterProcess] = []

    async def begin(**fields: Any) -> RouterProcess:
        started.append(router("--log-level=debug", "--access-log=1"))
        await started[-1].start(endpoint("e", backend("b", *pods.targets), **fields))
        return started[-1]

    yield begin
    for process in started:
        await process.stop()


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def refusing(after: int, reason: bytes, *, asks: bool = True) -> Callable[[Wire], Awaitable[None]]:
    """A pod that refuses when it has read so much of a body.

    Args:
        after: bytes that it reads first.
        asks: whether it sends 100 first.
    """

    async def script(wire: Wire) -> None:
        await wire.head()
        if asks:
            await wire.send(GO_ON)
        await wire.reader.readexactly(after)
        await wire.send(REFUSED % reason)
        await wire.gone()

    return script


@pytest.mark.parametrize("reason", [b"draining", b"queue_full", b"model_unreachable"])
async def test_a_pod_that_refuses_by_the_head_leaves_the_whole_body_to_another(
    pods: Pods, start: Start, reason: bytes
) -> None:
    """Nothing of it was taken, however long it is: the router asks each pod before it sends."""
    pods.first = refusing(0, reason, asks=False)
    process = await start()
    body = bytes(range(256)) * 5 * KIB
    reply = await process.ask(data=pieces(body), headers={"content-length": str(len(body))})
    assert (reply.status, reply.body) == (200, b"%d" % len(body))
    assert pods.bodies == [body]


@pytest.mark.parametrize("known", [True, False])
async def test_what_was_kept_is_sent_to_another_pod(pods: Pods, start: Start, known: bool) -> None:
    """As long as no more than 64 KiB were taken, and a pod surely did not execute it."""
    pods.first = refusing(20 * KIB, b"draining")
    process = await start()
    sent = bytes(range(256)) * 80 + b"end"
    more = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield sent
        await more.wait()
        yield bytes(1100 * KIB)

    headers = {"content-length": str(len(sent) + 1100 * KIB)} if known else {}
    asking = asyncio.create_task(process.ask(data=body(), headers=headers))
    await until(lambda: pods.connections == 2)
    more.set()
    reply = await asking
    assert (reply.status, reply.body) == (200, b"%d" % (len(sent) + 1100 * KIB))
    assert pods.bodies == [sent + bytes(1100 * KIB)]
    assert 'penstock_router_retries_total{reason="draining"} 1.0' in await process.metrics()


async def test_what_was_not_kept_is_sent_to_no_other(pods: Pods, start: Start) -> None:
    """The client gets the refusal of the pod that has had it."""
    pods.first = refusing(65 * KIB, b"draining")
    process = await start()
    reply = await process.ask(data=io.BytesIO(bytes(1300 * KIB)))
    assert (reply.status, reply.document, pods.bodies) == (503, {}, [])
    assert "retries_total{" not in await process.metrics()


async def test_a_pod_that_says_nothing_gets_the_body_after_a_while(pods: Pods, start: Start) -> None:
    """RFC 9110 section 10.1.1: it may not know what `Expect` means."""

    async def script(wire: Wire) -> None:
        await answer(wire, b"%d" % len(await wire.reader.readexactly(length_of(await wire.head()))))
        await wire.gone()

    pods.first = script
    process = await start()
    assert (await process.ask(data=io.BytesIO(bytes(1080 * KIB)))).body == b"%d" % (1080 * KIB)


async def test_a_pod_that_takes_nothing_slows_the_client_down_and_takes_no_memory(
    pods: Pods, start: Start
) -> None:
    """What is taken later is whole."""
    go = asyncio.Event()
    sent = 0

    async def script(wire: Wire) -> None:
        size = length_of(await wire.head())
        await wire.send(GO_ON)
        await go.wait()
        while size:
            size -= len(await wire.reader.read(1 << 20))
        await answer(wire, b"all")
        await wire.gone()

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(100):
            yield bytes(1 << 20)
            sent += 1 << 20

    pods.first = script
    process = await start()
    before = process.rss()
    asking = asyncio.create_task(process.ask(data=body(), headers={"content-length": str(100 << 20)}))
    last, looks = -1, 0
    while looks < 50:
        await asyncio.sleep(0.01)
        looks, last = (looks + 1 if sent == last else 0), sent
    assert sent < 40 << 20
    assert process.rss() - before < 16 << 20
    go.set()
    assert (await asking).body == b"all"
    assert sent == 100 << 20
    assert process.rss() - before < 16 << 20


async def test_a_pod_may_answer_before_the_end_of_the_body(pods: Pods, start: Start) -> None:
    """Its answer is the client's, who need not send the rest; the log says how much came."""

    async def script(wire: Wire) -> None:
        await wire.head()
        await wire.send(GO_ON)
        await wire.reader.readexactly(1000)
        await wire.send(b"HTTP/1.1 422 X\r\ncontent-length: 4\r\n\r\nnope")
        await wire.gone()

    pods.first = script
    process = await start()
    reader, writer = await asyncio.open_connection(*address(process))
    writer.write(b"POST /e/x HTTP/1.1\r\nhost: a\r\ncontent-length: 9000000\r\n\r\n" + bytes(1000))
    answer = await asyncio.wait_for(reader.read(), SECONDS)
    assert answer.startswith(b"HTTP/1.1 422 ")
    assert answer.endswith(b"\r\n\r\nnope")
    writer.close()
    lines = [json.loads(line) for line in process.log if '"request"' in line]
    assert [(line["status"], line["received"]) for line in lines] == [(422, 1000)]


async def test_a_client_that_asks_first_is_answered_by_the_pod(pods: Pods, start: Start) -> None:
    """RFC 9110 section 10.1.1: 100 comes when a pod reads the body, not while the request waits for one."""
    ended: list[bool] = []

    async def script(wire: Wire) -> None:
        await wire.head()
        ended.append(waiting.done())
        await wire.send(GO_ON)
        await wire.reader.readexactly(1100 * KIB)
        await answer(wire, b"")
        await wire.gone()

    targets, pods.targets = pods.targets, []
    pods.first = script
    process = await start()
    reader, writer = await asyncio.open_connection(*address(process))
    writer.write(b"POST /e/x HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 1126400\r\n\r\n")
    waiting = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
    await until_held(process)
    process.settle(endpoint("e", backend("b", *targets)))
    assert await asyncio.wait_for(waiting, SECONDS) == GO_ON
    assert ended == [False]
    writer.write(bytes(1100 * KIB))
    assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SECONDS)).startswith(b"HTTP/1.1 200 ")
    writer.close()


async def test_a_held_request_counts_with_what_is_kept_of_it(pods: Pods, start: Start) -> None:
    """A body longer than all that an endpoint may hold waits like any other."""
    pods.targets = []
    process = await start()
    reader, writer = await asyncio.open_connection(*address(process))
    writer.write(b"POST /e/x HTTP/1.1\r\nhost: a\r\ncontent-length: 300000000\r\n\r\n")
    await until_held(process)
    writer.close()
    assert await reader.read() == b""


async def until_held(process: RouterProcess) -> None:
    """Wait until the router holds a request."""
    async with asyncio.timeout(SECONDS):
        while 'penstock_router_held_requests{backend=""} 1.0' not in await process.metrics():
            pass


def address(process: RouterProcess) -> tuple[str, int]:
    return "127.0.0.1", int(process.data.rpartition(":")[2])


class TestMaxBodyBytes:
    @pytest.mark.parametrize("size", [1001, 70_000])
    async def test_a_body_that_says_its_length_is_refused_by_its_head(
        self, pods: Pods, start: Start, size: int
    ) -> None:
        """No pod is asked, nor a client that asks first for more than is taken whole; the longest passes."""
        process = await start(maxBodyBytes=1000)
        refused = await process.ask(data=bytes(size))
        assert (refused.status, refused.document["reason"]) == (413, "too_large")
        expected = f"expected a body of at most 1000 bytes (maxBodyBytes of endpoint e), found one of {size}"
        assert refused.document["detail"] == f"{expected} bytes"
        head = b"POST /e/x HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2000000\r\n\r\n"
        reader, writer = await asyncio.open_connection(*address(process))
        writer.write(head)
        assert (await asyncio.wait_for(reader.read(), SECONDS)).startswith(b"HTTP/1.1 413 ")
        writer.close()
        assert not pods.connections
        assert (await process.ask(data=bytes(1000))).body == b"1000"

    async def test_a_body_of_unknown_length_is_refused_when_it_is_too_long(
        self, pods: Pods, start: Start
    ) -> None:
        """The pod that had its beginning never takes it for whole."""
        broken = asyncio.Event()

        async def script(wire: Wire) -> None:
            await wire.head()
            await wire.send(GO_ON)
            try:
                await wire.chunked()
            except (asyncio.IncompleteReadError, ValueError, ConnectionError):
                broken.set()

        pods.first = script
        process = await start(maxBodyBytes=100_000)
        refused = await process.ask(data=pieces(bytes(60_000), bytes(60_000)))
        assert (refused.status, refused.document["reason"]) == (413, "too_large")
        expected = "expected a body of at most 100000 bytes (maxBodyBytes of endpoint e), found a longer one"
        assert refused.document["detail"] == expected
        await asyncio.wait_for(broken.wait(), SECONDS)
        assert pods.connections == 1
        assert (await process.ask(data=pieces(bytes(60_000), bytes(40_000)))).body == b"100000"
