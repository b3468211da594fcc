"""Each time that an endpoint gives a request, on real sockets; how long anything took is not asserted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from penstock_router.messages.response_body import EndingStream
from penstock_wire.http.answer_stream import AnswerStream
from tests.support.clocks.waiting import SECONDS
from tests.support.http.stream_peer import Scripted, Wire, scripted
from tests.support.processes.router_process import RouterProcess, backend, endpoint
from tests.support.processes.sidecar_process import until
from tests.support.worlds.fake_network import WholeAnswer

STREAM = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n"
SWITCH = b"HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"
ASK = b"GET /e/%b HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"


class Pod:
    """Answers by path, and notes what its router ends."""

    def __init__(self, server: Scripted) -> None:
        self.target = f"127.0.0.1:{server.port}"
        self.go = asyncio.Event()
        self.left: asyncio.Queue[str] = asyncio.Queue()
        self.heads: list[bytes] = []
        server.scripts = [self.play]

    async def play(self, wire: Wire) -> None:
        """A connection."""
        while True:
            self.heads.append(await wire.head())
            path = self.heads[-1].split()[1].decode().removeprefix("/")
            try:
                await getattr(self, path)(wire)
            except ConnectionError:
                self.left.put_nowait(path)
                raise

    async def short(self, wire: Wire) -> None:
        await wire.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    async def silent(self, wire: Wire) -> None:
        await wire.gone()
        raise ConnectionError

    async def stalls(self, wire: Wire) -> None:
        await wire.send(STREAM)
        await self.silent(wire)

    async def breaks(self, wire: Wire) -> None:
        await wire.send(STREAM)
        raise ConnectionResetError

    async def released(self, wire: Wire) -> None:
        await wire.send(STREAM)
        await self.go.wait()
        await wire.send(b"3\r\ntwo\r\n0\r\n\r\n")

    async def flood(self, wire: Wire) -> None:
        await wire.send(STREAM)
        while True:
            await wire.send(b"10000\r\n" + bytes(65536) + b"\r\n")

    async def drip(self, wire: Wire) -> None:
        await wire.send(STREAM)
        ended = asyncio.create_task(wire.gone())
        while not (await asyncio.wait({ended}, timeout=0.01))[0]:
            await wire.send(b"1\r\nx\r\n")
        raise ConnectionError

    async def switch(self, wire: Wire) -> None:
        await wire.send(SWITCH)
        await self.silent(wire)

    async def body(self, wire: Wire) -> None:
        await wire.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        await self.silent(wire)


Start = Callable[..., Awaitable[RouterProcess]]


@pytest_asyncio.fixture
async def pod() -> AsyncIterator[Pod]:
    async with scripted(Scripted()) as server:
        yield Pod(server)


@pytest_asyncio.fixture
async def start(pod: Pod, router: Any) -> AsyncIterator[Start]:
    """Start a router with these times."""
    started: list[RouterProcess] = []

    async def begin(timeout: str = "30s", **timeouts: str) -> RouterProcess:
        route = endpoint("e", backend("b", pod.target), timeout=timeout, timeouts=timeouts, retries=0)
        started.append(await router().start(route))
        return started[-1]

    yield begin
    for process in started:
        await process.stop()


async def ask(process: RouterProcess, path: str, *, at_once: bool) -> aiohttp.ClientResponse:
    """A request, which goes on `at_once` where a connection to the pod is ready, in a task where none is."""
    if at_once:
        assert (await process.ask("/e/short", method="GET")).body == b"ok"
    forged = {"x-penstock-idle-ms": "86400000"}
    return await process.session.get(f"{process.data}/e/{path}", headers=forged)


async def until_cut(process: RouterProcess, reason: str) -> None:
    """Wait until the router has counted one stream that was cut, for this reason."""
    prefix, seen = "penstock_router_streams_cut_total{", [""]

    async def look() -> bool:
        lines = (await process.metrics()).splitlines()
        seen[:] = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
        return seen == [f'backend="b",endpoint="e",reason="{reason}"}} 1.0']

    await until(look, details=lambda: seen)


@pytest.mark.parametrize("at_once", [False, True])
class TestAnswers:
    @pytest.mark.parametrize("name", ["firstByte", "total"])
    async def test_no_first_byte(self, pod: Pod, start: Start, name: str, at_once: bool) -> None:
        """504, and the pod is given up, long before `timeout`."""
        process = await start(**{name: "300ms"})
        async with await ask(process, "silent", at_once=at_once) as answer:
            problem = await answer.json()
        assert (answer.status, problem["reason"]) == (504, "deadline")
        assert problem["detail"].endswith(f" s (the endpoint's timeouts.{name})")
        assert await asyncio.wait_for(pod.left.get(), SECONDS) == "silent"

    async def test_the_time_of_all_requests_and_that_of_one(
        self, pod: Pod, start: Start, at_once: bool
    ) -> None:
        """504 says whose time was over: the endpoint's, or the shorter one that a client asked for."""
        process = await start(timeout="300ms")
        async with await ask(process, "silent", at_once=at_once) as answer:
            assert (await answer.json())["detail"].endswith(" s (the endpoint's timeout)")
        asked = {"x-penstock-timeout-ms": "100"}
        async with process.session.get(f"{process.data}/e/silent", headers=asked) as answer:
            assert (await answer.json())["detail"].endswith(" s (the request's x-penstock-timeout-ms)")

    async def test_silence_between_two_pieces(self, pod: Pod, start: Start, at_once: bool) -> None:
        """The answer is cut, and no client takes it for whole."""
        process = await start(idle="300ms")
        async with await ask(process, "stalls", at_once=at_once) as answer:
            assert await answer.content.readexactly(3) == b"one"
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.content.read()
        assert await asyncio.wait_for(pod.left.get(), SECONDS) == "stalls"
        await until_cut(process, "deadline")
        assert b"86400000" not in b"".join(pod.heads)

    async def test_a_stream_may_pause_for_longer_than_its_head_may_take(
        self, pod: Pod, start: Start, at_once: bool
    ) -> None:
        """While it pauses, a request that comes later has waited for its head in vain. Its sidecar knows."""
        process = await start(firstByte="300ms", idle="60s")
        async with await ask(process, "released", at_once=at_once) as answer:
            assert await answer.content.readexactly(3) == b"one"
            assert pod.heads[-1].count(b"\r\nx-penstock-idle-ms: 60000\r\n") == 1
            assert (await process.ask("/e/silent", method="GET")).status == 504
            pod.go.set()
            assert await answer.content.read() == b"two"

    @pytest.mark.parametrize("path", ["drip", "flood"])
    async def test_a_stream_that_never_ends(self, pod: Pod, start: Start, path: str, at_once: bool) -> None:
        """It is cut at the total, whether its client takes what comes or nothing."""
        process = await start(total="1s")
        async with await ask(process, path, at_once=at_once) as answer:
            if path == "drip":
                with pytest.raises(aiohttp.ClientPayloadError):
                    await answer.content.read()
            assert await asyncio.wait_for(pod.left.get(), SECONDS) == path
        await until_cut(process, "deadline")

    async def test_a_stream_whose_client_leaves(self, pod: Pod, start: Start, at_once: bool) -> None:
        """It is counted apart from those that were cut, also where a total was not over."""
        process = await start(total="1h")
        answer = await ask(process, "drip", at_once=at_once)
        answer.close()
        assert await asyncio.wait_for(pod.left.get(), SECONDS) == "drip"
        await until_cut(process, "client_gone")

    async def test_a_stream_whose_pod_leaves(self, pod: Pod, start: Start, at_once: bool) -> None:
        """Its client sees that it is cut, and the metrics say that its model was lost."""
        process = await start()
        async with await ask(process, "breaks", at_once=at_once) as answer:
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.content.read()
        await until_cut(process, "model_unreachable")


async def test_a_stream_that_nobody_begins_to_read_ends_before_its_time() -> None:
    """Its client left between the head and the first piece: its pod is given back at once."""
    ended: list[Exception | None] = []
    answer = WholeAnswer()
    stream = EndingStream(AnswerStream(answer, ended.append), asyncio.get_running_loop().time() + 3600)
    assert not ended
    del stream
    assert len(ended) == 1


@pytest.mark.parametrize("name", ["idle", "total"])
async def test_a_tunnel(pod: Pod, start: Start, name: str) -> None:
    """Without a byte, or however many pass."""
    process = await start(**{name: "400ms"})
    reader, writer = await asyncio.open_connection("127.0.0.1", int(process.data.rpartition(":")[2]))
    writer.write(ASK % b"switch")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    ended = asyncio.ensure_future(asyncio.wait_for(reader.read(), SECONDS))
    if name == "total":
        while not (await asyncio.wait({ended}, timeout=0.01))[0]:
            writer.write(b"x")
    assert (await asyncio.gather(ended, return_exceptions=True))[0] == b"" or ended.exception()
    assert await asyncio.wait_for(pod.left.get(), SECONDS) == "switch"
    await until_cut(process, "deadline")
    writer.close()


async def test_a_client_that_sends_its_body_byte_by_byte(pod: Pod, start: Start) -> None:
    """The time between two pieces of it is the client's; the total is not."""
    process = await start(firstByte="200ms", total="1s")
    reader, writer = await asyncio.open_connection("127.0.0.1", int(process.data.rpartition(":")[2]))
    writer.write(b"POST /e/body HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
    answer = asyncio.create_task(asyncio.wait_for(reader.readuntil(b"}"), SECONDS))
    while not (await asyncio.wait({answer}, timeout=0.02))[0]:
        writer.write(b"1\r\nx\r\n")
    assert answer.result().startswith(b"HTTP/1.1 504 ")
    assert b"timeouts.total" in answer.result()
    assert await asyncio.wait_for(pod.left.get(), SECONDS) == "body"
    writer.close()


async def test_a_short_body_has_come_before_any_time_begins(pod: Pod, start: Start) -> None:
    """Its upload takes longer than all that the endpoint and the client allow, and it is answered."""
    process = await start(total="1s")
    reader, writer = await asyncio.open_connection("127.0.0.1", int(process.data.rpartition(":")[2]))
    clock, length = asyncio.get_running_loop().time, 1000
    head = b"POST /e/short HTTP/1.1\r\nhost: a\r\nx-penstock-timeout-ms: 1000\r\ncontent-length: %d\r\n\r\n"
    writer.write(head % length)
    answer = asyncio.create_task(asyncio.wait_for(reader.readuntil(b"ok"), SECONDS))
    ends, sent = clock() + 1.1, 0
    while clock() < ends and not (await asyncio.wait({answer}, timeout=0.02))[0]:
        writer.write(b"x")
        sent += 1
    assert not answer.done()
    assert not pod.heads
    writer.write(b"x" * (length - sent))
    assert (await answer).startswith(b"HTTP/1.1 200 ")
    writer.close()


async def test_a_held_request(start: Start, pod: Pod) -> None:
    """The hold is a part of the whole."""
    process = await start(total="300ms")
    process.settle(endpoint("e", timeouts={"total": "300ms"}))
    await process.until_routes(lambda routes: routes[0]["backends"][0]["name"] == "none")
    reply = await process.ask()
    assert (reply.status, reply.document["reason"]) == (504, "deadline")
    assert "timeouts.total" in reply.document["detail"]


async def test_a_first_byte_that_may_take_longer_than_all_is_refused(router: Any) -> None:
    process = router()
    await process.launch(endpoint("e", timeout="10s", timeouts={"firstByte": "20s"}))
    assert await process.ended() == 2
    expected = "timeouts.firstByte: expected at most the 10000 ms of timeout, found 20000 ms"
    assert any(expected in line for line in process.log)


@pytest.mark.parametrize("path", ["silent", "stalls"])
async def test_a_client_that_ends_its_half_has_left(pod: Pod, start: Start, path: str) -> None:
    """Before its answer, and in it (ADR 15): its pod is given back at once, long before any time is over."""
    process = await start()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(process.data.rpartition(":")[2]))
    writer.write(b"GET /e/%b HTTP/1.1\r\nhost: a\r\n\r\n" % path.encode())
    if path == "stalls":
        assert b"one" in await asyncio.wait_for(reader.readuntil(b"one\r\n"), SECONDS)
    else:
        async with asyncio.timeout(SECONDS):
            while not pod.heads:
                await process.metrics()
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), SECONDS) == b""
    assert await asyncio.wait_for(pod.left.get(), SECONDS) == path
    writer.close()
