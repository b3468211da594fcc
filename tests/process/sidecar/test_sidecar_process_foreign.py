"""Requests that are none of the protocol's, and JSON under other content types, through real processes."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.protocol_pair import pairs
from tests.support.processes.sidecar_process import HELD, Pair, Reply, got, until

JSON = {"content-type": "application/json"}
PREDICTION = b'{"instances": [1]}'
EVENT = {"specversion": "1.0", "id": "1", "source": "s", "type": "t", "data": {"instances": [1]}}
TENSOR = b'{"inputs": [{"name": "x", "shape": [1], "datatype": "INT8", "data": [1]}]}'


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    pair = Pair(tmp_path)
    await pair.start()
    yield pair
    await pair.stop()


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    async with pairs(tmp_path) as pair:
        yield pair


FOREIGN = [
    ("/v2/models/m/infer", JSON, TENSOR),
    ("/v2/repository/models/m/load", {}, b""),
    ("/v2/repository/models/m/load", JSON, b'{"parameters": {"config": "{}"}}'),
    ("/v1/models/m:predict", JSON, b'{"inputs": [[1, 2]], "signature_name": "s"}'),
    ("/v1/models/m:predict", {"content-type": "application/cloudevents+json"}, json.dumps(EVENT).encode()),
    ("/v1/models/m:predict", {**JSON, "ce-specversion": "1.0", "ce-id": "1"}, b'{"a": [1]}'),
    ("/v1/models/m:predict", JSON, b"[1, 2]"),
    ("/v1/models/m:predict", JSON, b"not json"),
    ("/v1/models/m:predict", {"content-type": "image/png"}, b"\x89PNG"),
    ("/v1/models/m:predict", {**JSON, "content-encoding": "gzip"}, gzip.compress(PREDICTION)),
    ("/upload", {"content-type": "application/x-ndjson"}, b'{"a": 1}\n' * 20_000),
    ("/upload", JSON, b'{"a": "' + b"x" * 200_000 + b'"}'),
]


@pytest.mark.parametrize(
    ("path", "fields", "body"), FOREIGN, ids=[f"{index} {path}" for index, (path, *_) in enumerate(FOREIGN)]
)
async def test_what_the_protocol_does_not_know_passes_as_it_came(
    pair: Pair, path: str, fields: dict[str, str], body: bytes
):
    """With its body and its fields, in no batch; also while batches wait."""
    held = asyncio.create_task(pair.predict("held", path=HELD))
    await pair.until_state(ongoing=1)
    reply = await pair.ask(path, headers={**fields, "x-own": "1"}, data=body)
    assert (reply.status, reply.document) == (200, {"path": path, "method": "POST"})
    await pair.release()
    assert got(await held) == ["held"]
    run = next(run for run in await pair.runs() if run["target"] == path)
    assert run["hex"] == body.hex()
    assert {**fields, "x-own": "1"}.items() <= dict(run["fields"]).items()
    assert reply.headers["x-request-id"] == dict(run["fields"])["x-request-id"]


@pytest.mark.parametrize(
    "said",
    [
        "application/x-www-form-urlencoded",
        "text/plain;charset=UTF-8",
        "application/octet-stream",
        "application/json",
    ],
)
async def test_a_body_that_is_json_reaches_the_model_as_json(pair: Pair, said: str):
    """Alone as it came but for its content type; FastAPI reads no other JSON."""
    reply = await pair.ask(data=PREDICTION, headers={"content-type": said, "x-own": "1"})
    assert got(reply) == [1]
    (run,) = await pair.runs()
    assert run["body"] == PREDICTION.decode()
    fields = dict(run["fields"])
    assert (fields["content-type"], fields["x-own"]) == ("application/json", "1")
    assert len([name for name, _ in run["fields"] if name == "content-type"]) == 1


async def test_json_of_all_content_types_shares_a_batch(pair: Pair):
    held = asyncio.create_task(pair.predict("held", path=HELD))
    await pair.until_state(ongoing=1)
    kinds = ["application/x-www-form-urlencoded", "text/plain", "application/octet-stream", *JSON.values()]
    tasks = []
    for number, kind in enumerate(kinds):
        body = json.dumps({"instances": [number]}).encode()
        tasks.append(asyncio.create_task(pair.ask(data=body, headers={"content-type": kind})))
        await pair.until_state(queued=number + 1)
    await pair.release()
    assert [got(await task) for task in tasks] == [[number] for number in range(4)]
    await held
    _, run = await pair.runs()
    assert run["items"] == [0, 1, 2, 3]
    assert [value for name, value in run["fields"] if name == "content-type"] == ["application/json"]


async def test_a_policy_that_changes_leaves_them_in_one_batch(pair: Pair):
    """What is queued gets its key anew; with the content type that is true of its body."""
    held = asyncio.create_task(pair.predict("held", path=HELD))
    await pair.until_state(ongoing=1)
    kinds = ["text/plain", "application/json"]
    tasks = []
    for number, kind in enumerate(kinds):
        body = json.dumps({"instances": [number]}).encode()
        tasks.append(asyncio.create_task(pair.ask(data=body, headers={"content-type": kind})))
        await pair.until_state(queued=number + 1)
    pair.settle(batchKeyHeaders=["x-tenant"])

    async def applied() -> bool:
        document = (await pair.admin_get("/settings")).document
        return bool(document["batching"]["batchKeyHeaders"])

    await until(applied)
    await pair.release()
    assert [got(await task) for task in tasks] == [[0], [1]]
    await held
    assert [run["items"] for run in await pair.runs()] == [["held"], [0, 1]]


def tensor(value: float, **more: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [value] * 2}], **more}


def answer_of(reply: Reply) -> tuple[Any, Any]:
    document = reply.document
    return document.get("id", "none"), document["outputs"][0]["data"]


async def test_a_model_that_answers_with_the_batchs_id_gives_each_its_own(start: Callable[..., Any]):
    """And none to whom sent none; null is absent, octets are JSON."""
    pair = await start("v2")
    path = "/v2/models/double/infer"
    octets = {"content-type": "application/octet-stream"}
    nulls = {"id": None, "parameters": None, "outputs": None}
    replies = await pair.batched(
        4,
        pair.ask(path, json=tensor(0)),
        pair.ask(path, json=tensor(1, id="a")),
        pair.ask(path, json=tensor(2)),
        pair.ask(path, json=tensor(3, **nulls)),
        pair.ask(path, headers=octets, data=json.dumps(tensor(4, id="a")).encode()),
    )
    assert [answer_of(reply) for reply in replies] == [
        ("a", [2, 2]),
        ("none", [4, 4]),
        ("none", [6, 6]),
        ("a", [8, 8]),
    ]


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("binary", [False, True])
async def test_a_compressed_tensor_passes_unbatched(start: Callable[..., Any], coding: str, binary: bool):
    """The length of its JSON is that of what was compressed; the model (aiohttp) inflates it."""
    pair = await start("v2")
    body = json.dumps(tensor(1, id="a")).encode()
    fields = {"content-type": "application/json", "content-encoding": coding}
    if binary:
        head = {"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}
        text = json.dumps({"id": "a", "inputs": [head]}).encode()
        body = text + bytes(8)
        fields |= {"inference-header-content-length": str(len(text))}
    sent = (gzip if coding == "gzip" else zlib).compress(body)
    reply = await pair.ask("/v2/models/double/infer", headers=fields, data=sent)
    assert reply.status == 200, reply.body
    assert reply.body.startswith(b'{"model_name": "double", "model_version": "1", "id": "a"')
