"""`protocol: none` as processes: a real model that streams behind a real sidecar."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.support.processes.sidecar_process import Pair, until

MB = 1 << 20


@pytest_asyncio.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    pair = Pair(tmp_path, "--protocol=none", "--drain-timeout=1s")
    pair.model_program = "tests.support.models.stream_model"
    yield pair
    await pair.stop()


async def seen(pair: Pair) -> dict[str, Any]:
    document: dict[str, Any] = (await pair.ask("/-/seen", method="GET", base=pair.model_url)).document
    return document


async def until_seen(pair: Pair, **expected: int) -> None:
    document: dict[str, Any] = {}

    async def look() -> bool:
        nonlocal document
        document = await seen(pair)
        return all(document[name] == value for name, value in expected.items())

    await until(look, details=lambda: document)


async def go(pair: Pair) -> None:
    await pair.ask("/-/go", base=pair.model_url)


def rss(pair: Pair) -> int:
    """Resident bytes of the sidecar."""
    return int(Path(f"/proc/{pair.sidecar.process.pid}/statm").read_text().split()[1]) * 4096


async def logged(pair: Pair, message: str) -> Any:
    """The first line of the sidecar's log with this message, if there is one."""
    lines = map(json.loads, pair.sidecar.log)
    return next((line for line in lines if line["message"] == message), None)


async def check_pool(pair: Pair) -> None:
    """Nothing is left behind, and what comes is answered."""
    await pair.until_state(queued=0, ongoing=0)
    for _ in range(5):
        assert (await pair.ask("/show", data=b"x")).document["body"] == "x"


async def test_a_request_and_its_answer_pass_as_they_are(pair: Pair) -> None:
    """Method, target, fields and body; hop-by-hop fields and Penstock's own do not; what we add is there."""
    await pair.start()
    sent = {"x-a": "1", "x-request-id": "my-id", "x-penstock-mirror": "1", "te": "trailers", "accept": "x/y"}
    reply = await pair.ask("/show?a=%2F&status=418", method="PATCH", data=b'{"nan": NaN}', headers=sent)
    assert reply.status == 418
    document = reply.document
    assert (document["method"], document["target"]) == ("PATCH", "/show?a=%2F&status=418")
    assert document["body"] == '{"nan": NaN}'
    fields = {name.lower(): value for name, value in document["headers"]}
    assert fields["x-a"] == "1"
    assert fields["x-request-id"] == "my-id"
    assert int(fields["x-penstock-timeout-ms"]) <= 30_000
    assert not {"te", "x-penstock-mirror", "connection"} & set(fields)
    assert reply.headers["x-request-id"] == "my-id"
    assert reply.headers["x-model"] == "m7"
    assert reply.headers.getall("x-penstock-queue") == ["0"]
    timings = reply.headers.getall("server-timing")
    assert timings[0] == "gpu;dur=1"
    assert re.fullmatch(r"queue;dur=[0-9.]+, model;dur=[0-9.]+", timings[1]), timings
    assert len((await pair.ask("/show", method="GET")).headers["x-request-id"]) == 32
    head = await pair.ask("/big?mb=3", method="HEAD")
    assert (head.headers["content-length"], head.body) == (str(3 * MB), b"")
    await check_pool(pair)


async def test_events_arrive_as_they_are_sent(pair: Pair) -> None:
    """Each before the next is made."""
    await pair.start()
    async with pair.session.get(pair.data + "/sse?n=3") as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        for number in range(3):
            await pair.until_state(ongoing=1)
            await go(pair)
            assert await answer.content.readuntil(b"\n\n") == b"data: %d\n\n" % number
        assert await answer.content.read() == b""
    await check_pool(pair)
    metrics = (await pair.admin_get("/metrics")).body.decode()
    assert "penstock_sidecar_open_streams 0.0" in metrics
    assert 'penstock_sidecar_requests_total{code="200",reason=""}' in metrics


@pytest.mark.parametrize("known", [True, False])
async def test_a_large_upload_takes_no_memory(pair: Pair, known: bool) -> None:
    """100 MB through, with a length and without."""
    await pair.start()
    before = rss(pair)
    peak = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal peak
        for _ in range(100):
            yield bytes(MB)
            peak = max(peak, rss(pair))

    headers = {"content-length": str(100 * MB)} if known else {}
    reply = await pair.ask("/sink", data=body(), headers=headers)
    assert reply.document == {"bytes": 100 * MB, "length": str(100 * MB) if known else None}
    assert peak - before < 12 * MB
    await check_pool(pair)


async def test_a_body_is_answered_while_it_is_sent(pair: Pair) -> None:
    """Each piece comes back before the next is sent; a broken-off body is not whole for either side."""
    await pair.start()
    host, port = pair.data.removeprefix("http://").split(":")
    head = b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    reader, writer = await asyncio.open_connection(host, int(port))
    for _ in range(2):  # the second on connections that the first has left
        writer.write(head)
        assert b" 200 OK\r\n" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
        for piece in (b"3\r\none\r\n", b"3\r\ntwo\r\n", b"0\r\n\r\n"):
            writer.write(piece)
            assert await asyncio.wait_for(reader.readexactly(len(piece)), 30) == piece
    writer.write(head + b"3\r\none\r\n")
    await asyncio.wait_for(reader.readuntil(b"one\r\n"), 30)
    writer.transport.abort()
    await until_seen(pair, ongoing=0, left=1)
    await check_pool(pair)
    assert not await logged(pair, "request failed")


async def test_a_slow_reader_slows_the_model_and_takes_no_memory(pair: Pair) -> None:
    """What is not taken stays with the model; what is taken later is whole."""
    await pair.start()
    before = rss(pair)
    async with pair.session.get(pair.data + "/big?mb=60") as answer:
        last, looks = -1, 0

        async def stuck() -> bool:
            nonlocal last, looks
            sent = (await seen(pair))["sent"]
            looks, last = looks + 1 if sent == last else 0, sent
            return looks >= 20

        await until(stuck)
        assert last < 40 * MB
        assert rss(pair) - before < 12 * MB
        size = 0
        async for piece in answer.content.iter_any():
            size += len(piece)
    assert size == 60 * MB
    assert rss(pair) - before < 12 * MB
    await check_pool(pair)


@pytest.mark.parametrize("path", ["/hang", "/sse?n=9", "/big?mb=1000"])
async def test_the_model_sees_that_a_client_left(pair: Pair, path: str) -> None:
    """Before its answer and in the middle of it; the next ones are well."""
    await pair.start()
    task = asyncio.create_task(pair.session.get(pair.data + path))
    await until_seen(pair, ongoing=1)
    if path == "/hang":
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        (await task).close()
    await until_seen(pair, ongoing=0, left=1)
    await check_pool(pair)
    metrics = (await pair.admin_get("/metrics")).body.decode()
    assert 'penstock_sidecar_requests_total{code="499",reason="client_gone"} 1.0' in metrics


async def test_an_upload_that_breaks_off_is_no_request(pair: Pair) -> None:
    await pair.start()
    host, port = pair.data.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /sink HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n" + bytes(1000))
    await until_seen(pair, ongoing=1)
    writer.transport.abort()
    await until_seen(pair, ongoing=0, left=1)
    await check_pool(pair)


async def test_an_answer_that_breaks_off_is_never_taken_for_whole(pair: Pair) -> None:
    await pair.start()
    async with pair.session.get(pair.data + "/cut", headers={"x-request-id": "half-a-loaf"}) as answer:
        assert await answer.content.readexactly(4) == b"half"
        await go(pair)
        with pytest.raises(aiohttp.ClientError):
            await answer.content.read()
    await check_pool(pair)
    metrics = (await pair.admin_get("/metrics")).body.decode()
    assert 'penstock_sidecar_requests_total{code="200",reason="model_unreachable"} 1.0' in metrics
    line = await until(lambda: logged(pair, "answer broke off"))
    assert (line["level"], line["request_id"]) == ("warning", "half-a-loaf")


async def test_the_limit_the_queue_and_the_refusals(pair: Pair) -> None:
    """Two at once, one waits, one is refused; the settings change at run time."""
    pair.max_ongoing_requests = 2
    await pair.start(maxQueuedItems=1)
    assert (await pair.admin_get("/settings")).document["maxOngoingRequests"] == 2
    waiting = [asyncio.create_task(pair.ask("/sse?n=1", method="GET")) for _ in range(3)]
    await pair.until_state(ongoing=2, queued=1)
    refused = await pair.ask("/show")
    assert (refused.status, refused.reason) == (503, "queue_full")
    assert refused.headers["x-penstock-not-admitted"] == "1"
    assert refused.headers["x-penstock-queue"] == "1"
    late = await pair.ask("/show", headers={"x-penstock-timeout-ms": "0"})
    assert (late.status, late.reason) == (503, "deadline")
    pair.max_ongoing_requests = 3
    pair.settle()
    pair.signal(signal.SIGHUP)
    await pair.until_state(ongoing=3, queued=0)
    await until_seen(pair, ongoing=3)  # the sidecar counts a request before the model has read it
    assert (await pair.admin_get("/settings")).document["batching"]["maxQueuedItems"] == 24
    for _ in range(3):
        await go(pair)
    assert [reply.status for reply in await asyncio.gather(*waiting)] == [200] * 3
    assert (await seen(pair))["most"] == 3
    await check_pool(pair)


async def test_a_deadline_counts_until_the_head_of_the_answer(pair: Pair) -> None:
    """A stream goes on beyond it; silence at the model and in the queue do not."""
    pair.max_ongoing_requests = 1
    await pair.start()

    def within(milliseconds: int) -> dict[str, str]:
        return {"x-penstock-timeout-ms": str(milliseconds)}

    late = await pair.ask("/hang", method="GET", headers=within(300))
    assert (late.status, late.reason) == (504, "deadline")
    async with pair.session.get(pair.data + "/sse?n=1", headers=within(5000)) as answer:
        queued = await pair.ask("/show", headers=within(5100))  # beyond the stream's own
        assert (queued.status, queued.reason) == (504, "deadline")
        await go(pair)
        assert await answer.content.read() == b"data: 0\n\n"
    await check_pool(pair)


class TestWebSockets:
    async def test_messages_and_close_codes_pass_both_ways(self, pair: Pair) -> None:
        """A tunnel is ongoing until both sides have ended."""
        await pair.start()
        async with pair.session.ws_connect(pair.data + "/ws", protocols=("chat",)) as socket:
            assert socket.protocol == "chat"
            await pair.until_state(ongoing=1)
            await socket.send_str("hello")
            assert await socket.receive_str() == "hello"
            await socket.send_bytes(bytes(3 * MB))
            assert len(await socket.receive_bytes()) == 3 * MB
            await socket.ping(b"are you there")
            await socket.send_str("close:4001")
            message = await socket.receive()
            assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 4001)
        async with pair.session.ws_connect(pair.data + "/ws") as socket:
            await socket.close(code=4002)
        await until_seen(pair, ongoing=0, left=0)
        await check_pool(pair)

    async def test_a_client_that_is_gone_is_gone_for_the_model(self, pair: Pair) -> None:
        await pair.start()
        socket = await pair.session.ws_connect(pair.data + "/ws")
        await until_seen(pair, ongoing=1)
        assert socket._response.connection is not None
        transport = socket._response.connection.transport
        assert transport is not None
        transport.abort()
        await until_seen(pair, ongoing=0, left=1)
        await check_pool(pair)
        await socket.close()

    async def test_a_refusal_to_switch_is_an_answer(self, pair: Pair) -> None:
        await pair.start()
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await pair.session.ws_connect(pair.data + "/show?status=403")
        assert caught.value.status == 403
        await check_pool(pair)


class TestDrains:
    async def test_a_stream_runs_on_and_a_tunnel_is_closed_at_the_timeout(self, pair: Pair) -> None:
        """Then the process ends, and has lost nothing."""
        await pair.start()
        socket = await pair.session.ws_connect(pair.data + "/ws")
        async with pair.session.get(pair.data + "/sse?n=1") as answer:
            await pair.until_state(ongoing=2)
            pair.signal()
            message = await socket.receive()  # at the drain timeout, not before
            assert message.type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
            await pair.until_state(ongoing=1)
            await go(pair)
            assert await answer.content.read() == b"data: 0\n\n"
        assert await pair.sidecar.ended() == 0
        await socket.close()

    async def test_a_second_signal_ends_all_at_once(self, pair: Pair) -> None:
        await pair.start()
        hanging = asyncio.create_task(pair.ask("/hang", method="GET"))
        async with pair.session.get(pair.data + "/sse?n=1") as answer:
            await pair.until_state(ongoing=2)
            pair.signal()
            await pair.until_ready(ready=False)
            pair.signal()
            assert (await hanging).status == 502
            with pytest.raises(aiohttp.ClientError):
                await answer.content.read()
        assert await pair.sidecar.ended() == 1
