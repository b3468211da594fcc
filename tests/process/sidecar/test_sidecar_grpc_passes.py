"""Calls of other services than the Open Inference Protocol, with grpcio at both ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from tests.support.clocks.waiting import SECONDS
from tests.support.processes.ports import free_port
from tests.support.processes.router_process import RouterProcess, backend, endpoint
from tests.support.processes.router_sidecar import end_sidecar, start_sidecar
from tests.support.processes.sidecar_process import Program, until

LARGE = bytes(range(256)) * 12_000  # 3 MB: more than each window


@pytest.fixture(params=["through the router", "to the sidecar"])
async def channel(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[grpc.aio.Channel]:
    async with contextlib.AsyncExitStack() as stack:
        model = Program("tests.support.models.grpc_echo")
        stack.push_async_callback(model.stop)
        address = await model.start()
        settings = tmp_path / "sidecar.json"
        settings.write_text(json.dumps({"v": 1, "maxOngoingRequests": 8}))
        flags = ("--protocol=none", f"--model-grpc-port={address.rpartition(':')[2]}")
        process, target = await start_sidecar(address, settings, *flags)
        stack.push_async_callback(end_sidecar, process)
        if request.param == "through the router":
            port = free_port()
            router = RouterProcess(tmp_path)
            stack.push_async_callback(router.stop)
            await router.start(endpoint("e", backend("b", target), port=port))
            target = f"127.0.0.1:{port}"
        options = (("grpc.enable_retries", 0), ("grpc.max_receive_message_length", -1))
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(target, options=options))
        await until(lambda: answers(channel))
        yield channel


async def answers(channel: grpc.aio.Channel) -> bool:
    try:
        return bool(await channel.unary_unary("/echo.Echo/Unary")(b"x", timeout=SECONDS))
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return False


async def test_calls_of_each_kind_pass_both_ways_with_metadata_and_status(channel: grpc.aio.Channel) -> None:
    """Many at once, of every size, and whoever streams does so while the other side still does."""
    async with asyncio.timeout(SECONDS):
        call = channel.unary_unary("/echo.Echo/Unary")(b"hi", metadata=(("x-said", "it"),), timeout=30)
        assert await call == b"hi"
        assert dict(await call.initial_metadata())["x-first"] == "it"
        assert dict(await call.trailing_metadata()) == {"x-last": "done", "x-left": "30"}
        unary = channel.unary_unary("/echo.Echo/Unary")
        messages = [b"", b"1" * 70_000, LARGE] * 4
        assert await asyncio.gather(*(unary(each) for each in messages)) == messages

        stream = channel.unary_stream("/echo.Echo/Server")(b"abc")
        assert [each async for each in stream] == [b"a", b"b", b"c"]
        assert dict(await stream.trailing_metadata()) == {"x-last": "done"}
        sent = [b"1", LARGE, b"", b"2"]
        assert await channel.stream_unary("/echo.Echo/Client")(iter(sent)) == b"".join(sent)
        both = channel.stream_stream("/echo.Echo/Both")()
        for message in (b"one", LARGE, b"three"):
            await both.write(message)
            assert await both.read() == message
        await both.done_writing()
        assert await both.read() is grpc.aio.EOF
        assert await both.code() is grpc.StatusCode.OK

        for message in (b"", b"before"):
            failing = channel.unary_stream("/echo.Echo/Fail")(message)
            if message:
                assert await failing.read() == message
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await failing.read()
            assert caught.value.code() is grpc.StatusCode.DATA_LOSS
            assert caught.value.details() == "lost: 50 %"
            assert dict(await failing.trailing_metadata())["x-why"] == "test"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/echo.Echo/Nothing")(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_client_that_leaves_ends_the_call_at_the_model(channel: grpc.aio.Channel) -> None:
    """By its deadline, or because it cancels; the places of both are free again."""
    left = channel.unary_unary("/echo.Echo/Left")

    async def both_left() -> bool:
        return await left(b"") == b"2"

    async with asyncio.timeout(SECONDS):
        waits = channel.unary_stream("/echo.Echo/Wait")(b"")
        assert await waits.read() == b"begun"
        waits.cancel()
        late = channel.unary_stream("/echo.Echo/Wait")(b"", timeout=1)
        assert await late.read() == b"begun"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await late.read()
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(both_left)
        unary = channel.unary_unary("/echo.Echo/Unary")
        assert await asyncio.gather(*(unary(b"x") for _ in range(8))) == [b"x"] * 8


async def test_calls_are_held_finished_by_a_pod_that_drains_and_tried_on_another(tmp_path: Path) -> None:
    """A call waits for the first pod; one that ends answers what it has, and takes nothing more."""
    port = free_port()
    settings = tmp_path / "sidecar.json"
    settings.write_text(json.dumps({"v": 1, "maxOngoingRequests": 8}))
    async with contextlib.AsyncExitStack() as stack:
        model = Program("tests.support.models.grpc_echo")
        stack.push_async_callback(model.stop)
        address = await model.start()
        flags = (
            "--protocol=none",
            f"--model-grpc-port={address.rpartition(':')[2]}",
            "--propagation-delay=0s",
        )
        router = RouterProcess(tmp_path)
        stack.push_async_callback(router.stop)
        await router.start(endpoint("e", backend("b"), port=port))
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{port}"))
        unary = channel.unary_unary("/echo.Echo/Unary")
        waits = asyncio.ensure_future(unary(b"first"))
        await until(lambda: is_held(router))
        first, one = await start_sidecar(address, settings, *flags)
        stack.push_async_callback(end_sidecar, first)
        router.settle(endpoint("e", backend("b", one), port=port))
        async with asyncio.timeout(SECONDS):
            assert await waits == b"first"
            both = channel.stream_stream("/echo.Echo/Both")()
            await both.write(b"before")
            assert await both.read() == b"before"
            second, two = await start_sidecar(address, settings, *flags)
            stack.push_async_callback(end_sidecar, second)
            router.settle(endpoint("e", backend("b", one, two), port=port))
            await router.until_routes(lambda routes: routes[0]["backends"][0]["readyPods"] == 2)
            first.terminate()
            for number in range(40):
                assert await unary(b"%d" % number) == b"%d" % number
            assert first.returncode is None
            await both.write(b"after")
            assert await both.read() == b"after"
            await both.done_writing()
            assert await both.read() is grpc.aio.EOF
            assert await both.code() is grpc.StatusCode.OK
            assert await first.wait() == 0


async def is_held(router: RouterProcess) -> bool:
    return 'penstock_router_held_requests{backend=""} 1.0' in await router.metrics()
