"""gRPC clients before a real sidecar, and before a router before it: grpcio's channel, calls and errors."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2

from tests.support.clocks.waiting import SECONDS
from tests.support.http.grpc_messages import call, doubles, infer, message, numbers
from tests.support.processes.ports import free_port
from tests.support.processes.protocol_pair import ProtocolPair, pairs
from tests.support.processes.router_process import RouterProcess, backend, endpoint
from tests.support.processes.sidecar_process import Reply

StatusCode = grpc.StatusCode


@contextlib.asynccontextmanager
async def connected(address: str) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(
        address.removeprefix("http://"), options=(("grpc.enable_retries", 0),)
    ) as channel:
        yield channel


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    async with pairs(tmp_path) as pair:
        yield pair


async def opened(start: Callable[..., Any], **batching: Any) -> ProtocolPair:
    pair: ProtocolPair = await start("v2", "--ready-path=/-/runs", maxConcurrentBatches=1, **batching)
    await pair.ask("/-/gate?open=1", base=pair.model_url)
    return pair


async def over_rest(pair: ProtocolPair, value: float) -> Reply:
    """The same request in JSON and binary, from a client that says nothing else."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1], "parameters": {"binary_data_size": 4}}
    text = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return await pair.ask(
        "/v2/models/double/infer",
        data=text + struct.pack("<f", value),
        headers={
            "inference-header-content-length": str(len(text)),
            "content-type": "application/octet-stream",
        },
        skip_auto_headers=("accept",),
    )


async def failed(calling: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(calling, SECONDS)
    return caught.value


def details(error: grpc.aio.AioRpcError) -> tuple[str, dict[str, str]]:
    """The reason and the facts of an error."""
    told = dict(error.trailing_metadata() or ())["grpc-status-details-bin"]
    info = error_details_pb2.ErrorInfo()
    assert status_pb2.Status.FromString(told).details[0].Unpack(info)
    return info.reason, dict(info.metadata)


async def test_calls_share_batches_with_requests_over_rest(start: Callable[..., Any]) -> None:
    """Each gets its own rows and id, in one call of the model."""
    pair = await opened(start)
    async with connected(pair.data) as channel:
        replies = await pair.batched(
            4,
            over_rest(pair, 0.0),
            over_rest(pair, 1.0),
            infer(channel, 2.0, 3.0, id="two"),
            infer(channel, 4.0),
        )
    rest, two, one = replies
    assert rest.body[int(rest.headers["inference-header-content-length"]) :] == struct.pack("<f", 2.0)
    assert (numbers(two), two.id, list(two.outputs[0].shape)) == ([4.0, 6.0], "two", [2, 1])
    assert (numbers(one), one.id, one.model_name) == ([8.0], "", "double")


async def test_an_error_says_what_one_over_http_says(start: Callable[..., Any]) -> None:
    """In the code, the words and the details; the others of its connection are answered."""
    pair = await opened(start)
    async with connected(pair.data) as channel:
        wrong = doubles(1.0)
        wrong.inputs[0].shape[0] = 3
        error = await failed(call(channel, "ModelInfer", wrong, metadata=(("x-request-id", "r-7"),)))
        assert error.code() is StatusCode.INVALID_ARGUMENT
        assert error.details() == "$.inputs[0]: expected 12 bytes (FP32 of shape [3,1]), found 4"
        reason, facts = details(error)
        assert reason == "bad_shape"
        assert facts.items() >= {"path": "$.inputs[0]", "found": "4", "request_id": "r-7"}.items()
        assert (
            dict(error.initial_metadata() or ()).get("x-request-id")
            or dict(error.trailing_metadata() or ())["x-request-id"] == "r-7"
        )
        error = await failed(call(channel, "ModelInfer", message("ModelInferRequest")()))
        assert (error.code(), details(error)[0]) == (StatusCode.INVALID_ARGUMENT, "bad_shape")
        assert error.details() == "model_name: expected the name of a model, found nothing"
        error = await failed(call(channel, "ModelInfer", doubles(1.0), compression=grpc.Compression.Gzip))
        assert error.code() is StatusCode.UNIMPLEMENTED
        assert error.details() == "expected messages that are not compressed, found b'gzip'"
        unknown = channel.unary_unary("/inference.GRPCInferenceService/RepositoryIndex")
        assert (await failed(unknown(b""))).code() is StatusCode.UNIMPLEMENTED
        asked = await failed(call(channel, "ModelMetadata", message("ModelMetadataRequest")(name="m")))
        assert asked.details() == "405: Method Not Allowed"  # the model's own words
        assert numbers(await call(channel, "ModelInfer", doubles(5.0))) == [10.0]


async def test_a_call_keeps_to_its_time_and_leaves_its_place(start: Callable[..., Any]) -> None:
    """`grpc-timeout` is the deadline; what is cancelled waits no longer, and a full queue says so."""
    pair = await opened(start, maxQueuedItems=2)
    async with connected(pair.data) as channel:
        await pair.ask("/-/gate?open=0", base=pair.model_url)
        first = asyncio.create_task(infer(channel, 1.0))
        await pair.until_state(ongoing=1)
        late = call(channel, "ModelInfer", doubles(2.0), timeout=0.2)
        assert (await failed(late)).code() is StatusCode.DEADLINE_EXCEEDED
        await pair.until_state(queued=0)
        cancelled = call(channel, "ModelInfer", doubles(3.0, 4.0))
        waiting = asyncio.ensure_future(cancelled.wait_for_connection())
        await pair.until_state(queued=2)
        error = await failed(call(channel, "ModelInfer", doubles(5.0)))
        assert (error.code(), details(error)[0]) == (StatusCode.RESOURCE_EXHAUSTED, "queue_full")
        assert int(dict(error.trailing_metadata() or ())["grpc-retry-pushback-ms"]) >= 1000
        cancelled.cancel()
        waiting.cancel()
        await pair.until_state(queued=0)
        await pair.ask("/-/gate?open=1", base=pair.model_url)
        assert numbers(await first) == [2.0]


async def test_one_channel_is_spread_over_pods(tmp_path: Path) -> None:
    """By the call, as HTTP is by the request; a message beyond the usual windows and frames is whole."""
    async with contextlib.AsyncExitStack() as stack:
        made = []
        for index in range(2):
            (tmp_path / str(index)).mkdir()
            start = await stack.enter_async_context(pairs(tmp_path / str(index)))
            made.append(await opened(start))
        port = free_port()
        router = RouterProcess(tmp_path)
        stack.push_async_callback(router.stop)
        targets = [pair.data.removeprefix("http://") for pair in made]
        await router.start(endpoint("e", backend("b", *targets), port=port))
        async with connected(f"127.0.0.1:{port}") as channel:
            for width, count in ((1, 40), (200_000, 4)):
                answers = await asyncio.gather(
                    *(infer(channel, float(index), width=width) for index in range(count))
                )
                assert [numbers(answer) for answer in answers] == [
                    [2.0 * index] * width for index in range(count)
                ]
            calling = call(channel, "ModelInfer", doubles(1.0))
            await calling
            assert dict(await calling.initial_metadata())["x-penstock-backend"] == "b"
        assert min([len((await pair.look())["runs"]) for pair in made]) > 0


async def test_a_router_without_pods_is_unavailable(tmp_path: Path) -> None:
    """With the reason and the time to wait, as over HTTP; health is the router's own and wakes nothing."""
    port = free_port()
    router = RouterProcess(tmp_path)
    try:
        await router.start(
            endpoint("e", backend("b", "127.0.0.1:1"), port=port, coldStart={"timeoutMs": 100})
        )
        async with connected(f"127.0.0.1:{port}") as channel:
            error = await failed(call(channel, "ModelInfer", doubles(1.0)))
            assert error.code() is StatusCode.UNAVAILABLE
            assert error.details()
            assert await channel.unary_unary("/grpc.health.v1.Health/Check")(b"") == b"\x08\x01"
    finally:
        await router.stop()


async def test_reflection_is_answered_while_its_stream_is_open(start: Callable[..., Any]) -> None:
    """Question by question, as grpcurl asks."""
    pair = await opened(start)
    async with connected(pair.data) as channel:
        for version in ("v1", "v1alpha"):
            asking = channel.stream_stream(
                f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
            )()
            for question, part in (
                (b"\x3a\0", b"GRPCInferenceService"),
                (b"\x22\x1cinference.ModelInferResponse", b"raw_output_contents"),
            ):
                await asking.write(question)
                assert part in await asyncio.wait_for(asking.read(), SECONDS)
            await asking.done_writing()
            assert await asyncio.wait_for(asking.read(), SECONDS) is grpc.aio.EOF
            assert await asking.code() is StatusCode.OK
