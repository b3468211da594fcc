"""A model that speaks gRPC alone, before a sidecar of `v2`: its batches go as calls, whoever sent them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.support.clocks.waiting import SECONDS
from tests.support.http.grpc_messages import call, infer, message, numbers
from tests.support.processes.ports import free_port
from tests.support.processes.protocol_pair import ProtocolPair, pairs

INFER = "/v2/models/double/infer"


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[ProtocolPair]:
    port = free_port()
    program = ("tests.support.models.protocol_models", "v2", f"--grpc-port={port}")
    async with pairs(tmp_path) as start:
        yield await start(
            "v2",
            f"--model=http://127.0.0.1:{port}",
            f"--model-grpc-port={port}",
            program=program,
            maxConcurrentBatches=1,
        )


@pytest.fixture
async def channel(pair: ProtocolPair) -> AsyncIterator[grpc.aio.Channel]:
    target = pair.data.removeprefix("http://")
    async with grpc.aio.insecure_channel(target, options=(("grpc.enable_retries", 0),)) as channel:
        yield channel


def rows(*values: Any, **members: Any) -> dict[str, Any]:
    x = {"name": "x", "datatype": "FP32", "shape": [len(values), 1], "data": list(values)}
    return {"inputs": [x], **members}


async def binary(pair: ProtocolPair, value: float) -> Any:
    """Ask with the tensor behind the JSON, as calls become requests."""
    x = {"name": "x", "datatype": "FP32", "shape": [1, 1], "parameters": {"binary_data_size": 4}}
    text = json.dumps({"inputs": [x], "parameters": {"binary_data_output": True}}).encode()
    fields = {"inference-header-content-length": str(len(text)), "content-type": "application/octet-stream"}
    return await pair.ask(
        INFER, data=text + struct.pack("<f", value), headers=fields, skip_auto_headers=("accept",)
    )


async def test_batches_of_calls_and_requests_go_as_one_call(
    pair: ProtocolPair, channel: grpc.aio.Channel
) -> None:
    """Each client gets its own rows, in the form that it asked for; JSON, other types and metadata, too."""
    rest, two, one = await pair.batched(
        4, binary(pair, 0.0), binary(pair, 1.0), infer(channel, 2.0, 3.0, id="two"), infer(channel, 4.0)
    )
    assert rest.body[int(rest.headers["inference-header-content-length"]) :] == struct.pack("<f", 2.0)
    assert (numbers(two), two.id, list(two.outputs[0].shape)) == ([4.0, 6.0], "two", [2, 1])
    assert (numbers(one), one.id, one.model_version) == ([8.0], "", "1")
    for typed in (False, True):
        body = rows(1.5, float("nan"), id="mine", parameters={"typed": typed})
        reply = await pair.ask(INFER, data=json.dumps(body), headers={"x-say": "hello"})
        (output,) = reply.document["outputs"]
        assert (reply.status, reply.document["id"], output["shape"]) == (200, "mine", [2, 1])
        assert output["data"][0] == 3.0
        assert output["data"][1] != output["data"][1]
        assert reply.headers["x-said"] == "hello"
    texts = {"name": "x", "datatype": "BYTES", "shape": [2], "data": ["ä", ""]}
    reply = await pair.ask(INFER, json={"inputs": [texts]})
    assert reply.document["outputs"][0]["data"] == ["ä", ""]
    metadata = await call(channel, "ModelMetadata", message("ModelMetadataRequest")(name="m"))
    assert (metadata.name, list(metadata.inputs[0].shape)) == ("m", [-1, 1])
    asked = await pair.ask("/v2/models/m", method="GET")
    assert asked.document["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 1]}]


async def test_an_error_of_the_model_is_for_its_own_client(
    pair: ProtocolPair, channel: grpc.aio.Channel
) -> None:
    """As a status and words over HTTP, as the very same status over gRPC."""
    good, bad, raised = await asyncio.gather(
        *await pair.together(
            3,
            binary(pair, 0.0),
            infer(channel, 1.0),
            _caught(infer(channel, 13.0)),
            _caught(infer(channel, 14.0)),
        )
    )
    assert numbers(good) == [2.0]
    assert (bad.code(), bad.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "13: 50 % ü")
    assert raised.code() is grpc.StatusCode.UNKNOWN
    reply = await pair.ask(INFER, json=rows(13.0))
    assert (reply.status, reply.document) == (400, {"error": "13: 50 % ü"})
    assert (reply.headers["grpc-status"], reply.headers["retry-after"]) == ("9", "2")
    assert (await pair.ask(INFER, json=rows(14.0))).status == 500
    reply = await pair.ask(INFER, json=rows("many"))
    assert (reply.status, reply.reason) == (422, "bad_shape")
    event = {"content-type": "application/json", "ce-specversion": "1.0"}
    large = json.dumps(rows(*[1.0] * 20_000)).encode()
    reply = await pair.ask(INFER, data=large, headers=event)
    assert (reply.status, reply.document["outputs"][0]["shape"]) == (200, [20_000, 1])
    reply = await pair.ask(INFER, data=b"packed", headers={**event, "content-encoding": "gzip"})
    assert (reply.status, reply.reason) == (415, "bad_media_type")
    reply = await pair.ask("/v2/repository/index", json={})
    assert reply.status == 404
    assert "speaks gRPC alone, found POST /v2/repository/index" in reply.document["detail"]


async def _caught(calling: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await calling
    return caught.value


async def test_batches_above_the_models_limit_run_in_parts_and_a_model_may_come_back(
    pair: ProtocolPair, channel: grpc.aio.Channel
) -> None:
    """Each request of the batch is below that limit; without a model, clients are refused at once."""
    wide = [infer(channel, float(index), width=300_000) for index in range(6)]
    async with asyncio.timeout(SECONDS):
        tasks = await pair.together(6, binary(pair, 0.0), *wide)
        answers = await asyncio.gather(*tasks)
    assert [numbers(answer)[:2] for answer in answers] == [[2.0 * index] * 2 for index in range(6)]
    assert (await pair.look())["runs"][1:] != [6]
    with contextlib.suppress(ProcessLookupError):
        pair.model.process.kill()
    await pair.until_ready(ready=False)
    reply = await pair.ask(INFER, json=rows(1.0))
    assert (reply.status, reply.headers["x-penstock-not-admitted"]) == (502, "1")
    await pair.model.stop()
    await pair.start_model()
    await pair.until_ready()
    assert numbers(await infer(channel, 5.0)) == [10.0]
