"""Small model servers for the protocols, as programs: each records how many items it ran at once.

`python -m tests.support.models.protocol_models KIND [--port N]` prints `ready HOST:PORT`. KIND is `instances`
(the sum of each item; where item streams are asked for, `/stream` counts up to an item's `x`, and `/parked`
says its second lines when `POST /-/resume` has come, and with `?break` breaks off instead), `v2` (`y` is
twice `x`) or `openai` (an embedding is the text's length and number of words). `GET /-/runs` lists the runs,
and of the streams whose connection was closed what was left to count; `POST /-/gate?open=0` keeps predictions
waiting. `--grpc-port` is for calls of v2 (`v2_grpc`). `POST /-/script` with `{type, body, status}` makes that
the answer to the next batch of several (`instances`). `model_faults` has what a query spoils; `fault=short`
is an answer with one item too few.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import struct
from typing import Any

from aiohttp import web

from tests.support.models.model_faults import spoil

WIDE = "x" * 100_000
STREAMS = {"Content-Type": "application/vnd.penstock.item-streams+json"}
runs: list[int] = []
held: list[str] = []
gate = asyncio.Event()
broken: list[list[int]] = []
resumed = asyncio.Event()
sent: list[Any] = []
"""The batches of `instances` whose answer was a script."""
script: dict[str, str] = {}


@web.middleware
async def hold(request: web.Request, handler: Any) -> web.StreamResponse:
    """Keep predictions waiting behind the gate; the first of them is reported as held."""
    if request.method == "POST" and not request.path.startswith("/-/"):
        held.append(request.path)
        await gate.wait()
    answer: web.StreamResponse = await handler(request)
    return answer


def recorded(request: web.Request, answers: list[Any]) -> list[Any]:
    """The answers to record: all, or one too few."""
    return answers[:-1] if request.query.get("fault") == "short" else answers


async def instances(request: web.Request) -> web.StreamResponse:
    document = await request.json()
    items = document["instances"]
    runs.append(len(items))
    if script and len(items) > 1:
        assert request.headers["x-penstock-item-answers"] == "1"
        sent.append(document)
        return scripted()
    if "x-penstock-item-streams" in request.headers and request.path in ("/stream", "/parked"):
        return await (stream if request.path == "/stream" else park)(request, items)
    predictions = recorded(request, [sum(item) for item in items])
    return web.json_response({"predictions": predictions, "model_version": "3"})


async def v2(request: web.Request) -> web.StreamResponse:
    body = await request.read()
    length = request.headers.get("inference-header-content-length")
    text = body if length is None else body[: int(length)]
    document = json.loads(text)
    (x,) = document["inputs"]
    runs.append(x["shape"][0])
    total = math.prod(x["shape"])
    y = {"name": "y", "datatype": "FP32", "shape": x["shape"]}
    answer: dict[str, Any] = {"model_name": "double", "model_version": "1"}
    if "id" in document:
        answer["id"] = document["id"]
    if length is None:
        shape = [len(recorded(request, [0] * x["shape"][0])), *x["shape"][1:]]
        data = [2 * value for value in x["data"]][: math.prod(shape)]
        return web.json_response({**answer, "outputs": [{**y, "shape": shape, "data": data}]})
    values = struct.unpack(f"<{total}f", body[int(length) :])
    blob = struct.pack(f"<{total}f", *(2 * value for value in values))
    head = json.dumps({**answer, "outputs": [{**y, "parameters": {"binary_data_size": len(blob)}}]}).encode()
    return web.Response(
        body=head + blob,
        headers={
            "Inference-Header-Content-Length": str(len(head)),
            "Content-Type": "application/octet-stream",
        },
    )


async def openai(request: web.Request) -> web.StreamResponse:
    document = await request.json()
    if not request.path.endswith("/embeddings"):
        return await chat(request)
    texts = document["input"] if isinstance(document["input"], list) else [document["input"]]
    runs.append(len(texts))
    data = [
        {"object": "embedding", "index": index, "embedding": [len(text), len(text.split())]}
        for index, text in enumerate(texts)
    ]
    tokens = sum(len(text.split()) for text in texts)
    answer = {"object": "list", "data": recorded(request, data), "model": document["model"]}
    return web.json_response({**answer, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}})


async def chat(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    for word in ("a", "b"):
        await answer.write(b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % word.encode())
    await answer.write(b"data: [DONE]\n\n")
    return answer


def scripted() -> web.StreamResponse:
    """The answer that the test has given."""
    said = dict(script)
    script.clear()
    return web.Response(status=int(said.get("status", "200")), text=said["body"], content_type=said["type"])


async def stream(request: web.Request, items: list[dict[str, Any]]) -> web.StreamResponse:
    answer = web.StreamResponse(headers=STREAMS)
    await answer.prepare(request)

    async def say(**line: Any) -> None:
        await answer.write(json.dumps(line).encode() + b"\n")

    try:
        counts = {}
        for index, item in enumerate(items):
            if item["x"] < 0:
                await say(i=index, error={"status": 404, "detail": "below zero"})
            else:
                counts[index] = item["x"]
        step = 0
        while counts:
            step += 1
            for index in list(counts):
                if step > counts[index]:
                    del counts[index]
                    await say(i=index, end=True)
                elif "mute" not in items[index]:
                    pad = {"pad": WIDE} if "wide" in items[index] else {}
                    await say(i=index, data={"step": step, **pad})
            if request.transport is None:
                raise ConnectionResetError
            await asyncio.sleep(0.001)
    except ConnectionResetError:
        broken.append(sorted(items[index]["x"] for index in counts))
    return answer


SAID: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "values": ({"data": {"step": 1}}, {"data": {"step": 2}}),
    "text": ({"data": "one "}, {"data": "two"}),
    "events": (
        {"headers": {"content-type": "text/event-stream"}, "data": "data: 1\n\n"},
        {"data": "data: 2\n\n"},
    ),
    "late": ({}, {"data": {"step": 2}}),
}
"""The lines of `/parked` before it is resumed and afterwards; an item `{"say": ...}` chooses one."""


async def park(request: web.Request, items: list[dict[str, Any]]) -> web.StreamResponse:
    answer = web.StreamResponse(headers=STREAMS)
    await answer.prepare(request)
    both = [SAID[item["say"]] for item in items]
    for index, (before, _) in enumerate(both):
        if before:
            await answer.write(json.dumps({"i": index, **before}).encode() + b"\n")
    await resumed.wait()
    if request.query_string == "break":
        assert request.transport is not None
        request.transport.close()
        return answer
    for index, (_, after) in enumerate(both):
        await answer.write(json.dumps({"i": index, **after, "end": True}).encode() + b"\n")
    return answer


async def resume(request: web.Request) -> web.StreamResponse:
    resumed.set()
    return web.json_response({})


async def look(request: web.Request) -> web.StreamResponse:
    return web.json_response({"runs": runs, "broken": broken, "held": held, "sent": sent})


async def turn(request: web.Request) -> web.StreamResponse:
    if request.query["open"] == "1":
        gate.set()
    else:
        gate.clear()
        held.clear()
    return web.json_response({})


async def prepare(request: web.Request) -> web.StreamResponse:
    script.update(await request.json())
    return web.json_response({})


async def ready(request: web.Request) -> web.StreamResponse:
    return web.json_response({})


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--grpc-port", type=int, default=0)
    arguments = parser.parse_args()
    kinds = {"instances": instances, "v2": v2, "openai": openai}
    app = web.Application(middlewares=[hold, spoil])
    gate.set()
    app.router.add_get("/", ready)
    app.router.add_get("/-/runs", look)
    app.router.add_post("/-/gate", turn)
    app.router.add_post("/-/resume", resume)
    app.router.add_post("/-/script", prepare)
    app.router.add_post("/{path:.*}", kinds[arguments.kind])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", arguments.port)
    await site.start()
    if arguments.grpc_port:
        from tests.support.models import v2_grpc  # grpcio takes its time

        calls = v2_grpc.serve(arguments.grpc_port, runs, held, gate)
        await calls.start()
    host, port = runner.addresses[0][:2]
    print(f"ready {host}:{port}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
