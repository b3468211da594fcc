"""docs/protocols.md, run: each example in one batch with other requests, through real processes."""

from __future__ import annotations

import asyncio
import json
import re
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.protocol_pair import ProtocolPair, pairs
from tests.support.processes.sidecar_process import Pair, Reply, until

PAGE = (Path(__file__).parents[3] / "docs" / "protocols.md").read_text()
EXAMPLES = {
    kind + " " + name: text
    for kind, name, text in re.findall(r"^```(\w+) (.+?)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
}


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    async with pairs(tmp_path) as pair:
        yield pair


def body_of(text: str) -> bytes:
    """A body: JSON, and behind it what is shown in hexadecimal."""
    document, _, blob = text.strip("\n").partition("\nhex: ")
    return document.encode() + bytes.fromhex(blob)


def parse_request(name: str) -> tuple[str, dict[str, str], bytes]:
    head, _, body = EXAMPLES["request " + name].partition("\n\n")
    first, *fields = head.split("\n")
    method, path = first.split(" ")
    assert method == "POST"
    return path, dict(field.split(": ", 1) for field in fields), body_of(body)


def binary_parts(body: bytes, length: str | None) -> tuple[Any, bytes]:
    size = len(body) if length is None else int(length)
    return json.loads(body[:size]), body[size:]


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def v2_mate(start: float, **more: Any) -> dict[str, Any]:
    data = [start, start + 1]
    return {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": data}], **more}


MATES: dict[str, list[tuple[bytes, Any]]] = {
    "instances": [
        (b'{"signature":"small","instances":[[100]]}', {"predictions": [100], "model_version": "3"}),
        (b'{"instances":[[7,1]],"signature":"small"}', {"predictions": [8], "model_version": "3"}),
    ],
    "v2": [
        (json.dumps(v2_mate(start)).encode(), [start * 2, start * 2 + 2]) for start in (100, 200)
    ],
    "openai": [
        (b'{"input":"one","model":"mini"}', [[3, 1]]),
        (b'{"input":["two words"],"model":"mini"}', [[9, 2]]),
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", list(MATES))
async def test_an_example_of_the_page_in_a_batch(start: Callable[..., Any], kind: str):
    pair = await start(kind)
    path, headers, body = parse_request(kind)
    mates = MATES[kind]
    reply, *others = await pair.batched(
        4,
        pair.ask(path + "?plug", headers=headers, data=body),
        pair.ask(path, headers=headers, data=body),
        *[pair.ask(path, headers=headers, data=sent) for sent, _ in mates],
    )
    status, _, expected = EXAMPLES["answer " + kind].partition("\n")
    assert reply.status == int(status)
    given, documented = reply.document, json.loads(expected)
    if kind == "openai":
        replies = [reply, *others]
        # 2 + 3 + 1 + 2 words in all; whose they are is an estimate.
        assert sum(each.document["usage"]["total_tokens"] for each in replies) == 8
        given.pop("usage")
        documented.pop("usage")
    assert given == documented
    for (_, answer), other in zip(mates, others, strict=True):
        assert own(kind, other) == answer


def own(kind: str, reply: Reply) -> Any:
    """What is a mate's own in its answer."""
    document = reply.document
    if kind == "v2":
        return document["outputs"][0]["data"]
    if kind == "openai":
        return [each["embedding"] for each in document["data"]]
    return document


async def test_the_openai_example_alone_has_its_servers_usage(start: Callable[..., Any]):
    pair = await start("openai")
    path, headers, body = parse_request("openai")
    reply = await pair.ask(path, headers=headers, data=body)
    assert reply.document == json.loads(EXAMPLES["answer openai"].partition("\n")[2])


async def test_other_paths_of_openai_pass(start: Callable[..., Any]):
    pair = await start("openai")
    reply = await pair.ask("/v1/chat/completions", json={"model": "m", "stream": True})
    assert reply.headers["content-type"] == "text/event-stream"
    assert reply.body.endswith(b"data: [DONE]\n\n")
    assert (await pair.look())["runs"] == []


async def test_what_passes_beside_the_batches_is_shown_in_the_queue(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    """In the sums, and by itself: its line is none of the batches'."""
    monkeypatch.setattr(Pair, "max_ongoing_requests", 1)
    pair = await start("openai", maxBatchSize=1)
    await pair.ask("/-/gate?open=0", base=pair.model_url)
    asks = [("/v1/embeddings", {"model": "m", "input": str(number)}) for number in range(2)]
    asks += [("/v1/chat/completions", {"model": "m"}) for _ in range(4)]
    asked = [asyncio.create_task(pair.ask(path, json=body)) for path, body in asks]
    await pair.until_state(queued=4, ongoing=2, passing={"queued": 3, "ongoing": 1})
    (line,) = (await pair.admin_get("/queue")).document["lines"]
    assert line["requests"] == 1
    await pair.ask("/-/gate?open=1", base=pair.model_url)
    assert [(await task).status for task in asked] == [200] * 6
    await pair.until_state(queued=0, ongoing=0, passing={"queued": 0, "ongoing": 0})


async def test_the_binary_example_in_a_batch(start: Callable[..., Any]):
    pair = await start("v2")
    path, headers, body = parse_request("v2-binary")
    text, data = binary_parts(body, headers["inference-header-content-length"])
    assert data == floats(1, 2)
    text["id"] = "mate"
    mate = json.dumps(text).encode()
    reply, other = await pair.batched(
        2,
        pair.ask(path + "?plug", headers=headers, data=body),
        pair.ask(path, headers=headers, data=body),
        pair.ask(
            path,
            headers={**headers, "inference-header-content-length": str(len(mate))},
            data=mate + floats(10, 20),
        ),
    )
    expected = body_of(EXAMPLES["answer v2-binary"].partition("\n")[2])
    wanted, blob = expected[:-8], expected[-8:]
    parts, got = binary_parts(reply.body, reply.headers["inference-header-content-length"])
    assert (parts, got) == (json.loads(wanted), blob)
    parts, got = binary_parts(other.body, other.headers["inference-header-content-length"])
    assert (parts["id"], got) == ("mate", floats(20, 40))


async def test_a_request_that_lies_leaves_its_mates_alone(start: Callable[..., Any]):
    pair = await start("v2")
    path, headers, _ = parse_request("v2")
    bad = v2_mate(1)
    bad["inputs"][0]["shape"] = [3, 2]
    first, two, refused = await pair.batched(
        2,
        pair.ask(path, headers=headers, json=v2_mate(1)),
        pair.ask(path, headers=headers, json=v2_mate(1, id="a")),
        pair.ask(path, headers=headers, json=v2_mate(5, id="b")),
        pair.ask(path, headers=headers, json=bad),
    )
    assert refused.status == 422
    assert refused.document["path"] == "$.inputs[0].data"
    assert [(each.document["id"], own("v2", each)) for each in (first, two)] == [
        ("a", [2, 4]),
        ("b", [10, 12]),
    ]


async def test_a_request_larger_than_a_batch_has_one_answer(start: Callable[..., Any]):
    pair = await start("openai", maxBatchSize=2)
    texts = ["a" * size for size in range(1, 6)]
    reply = await pair.ask("/v1/embeddings", json={"model": "mini", "input": texts})
    assert [each["embedding"][0] for each in reply.document["data"]] == [1, 2, 3, 4, 5]
    assert reply.document["usage"]["total_tokens"] == 5
    assert sorted((await pair.look())["runs"]) == [1, 2, 2]


@pytest.mark.parametrize("name", ["v2-binary"])
def test_the_lengths_on_the_page_are_true(name: str):
    _, headers, body = parse_request(name)
    json.loads(body[: int(headers["inference-header-content-length"])])


async def test_the_example_of_none_passes_as_it_is(start: Callable[..., Any]):
    pair = await start("none")
    path, headers, body = parse_request("none")
    reply = await pair.ask(path, headers=headers, data=body)
    status, _, expected = EXAMPLES["answer none"].partition("\n")
    assert (reply.status, reply.body) == (int(status), expected.encode())
    assert reply.headers["content-type"] == "text/event-stream"
    assert (await pair.look())["runs"] == []


def check_client(name: str, reply: Reply) -> None:
    """A reply is what the page shows, but for the id of its request."""
    head, _, body = EXAMPLES[name].partition("\n\n")
    status, *fields = head.strip().split("\n")
    assert reply.status == int(status)
    for field in fields:
        key, _, value = field.partition(": ")
        assert reply.headers[key] == value
    if reply.headers["content-type"].endswith("json"):
        document = reply.document
        document.pop("request_id", None)
        assert not body or document == json.loads(body)
    else:
        assert reply.body.decode().rstrip("\n") == body.rstrip("\n")


ITEM_ANSWERS = "told instances-items application/vnd.penstock.items+json"


async def test_clients_see_what_the_page_says_of_item_answers(start: Callable[..., Any]):
    """The model gets the page's batch, with the header, and answers with the page's bytes."""
    pair = await start("instances")
    script = {"type": ITEM_ANSWERS.rpartition(" ")[2], "body": EXAMPLES[ITEM_ANSWERS]}
    assert (await pair.ask("/-/script", base=pair.model_url, json=script)).status == 200

    async def ask(queued: int, *items: Any) -> Reply:
        """Send a request once those before it are queued."""
        await pair.until_state(queued=queued)
        return await pair.predict(*items)

    replies = await pair.batched(
        4, pair.predict([1]), ask(0, [0, 3, 15]), ask(1, ["x"]), ask(2, [1, 0, 2], ["y", 1])
    )
    for index, reply in enumerate(replies):
        check_client(f"client instances-items {index}", reply)
    assert (await pair.look())["sent"] == [json.loads(EXAMPLES["sent instances-items"])]


async def test_the_example_with_fastapi_answers_by_item(start: Callable[..., Any], tmp_path: Path):
    """The page's code under uvicorn: two fine requests and a bad one in one run; alone, plain HTTP."""
    code = tmp_path / "example.py"
    code.write_text(EXAMPLES["python instances-items"])
    pair = await start("instances", program=("tests.support.models.asgi_model", str(code)))
    path = "/v1/models/sum:predict"
    first, bad, two = await pair.batched(
        4,
        pair.predict([1], path=path),
        pair.predict([1, 2], path=path),
        pair.predict(["x"], path=path),
        pair.predict([3], [4, 5], path=path),
    )
    assert (first.status, first.document) == (200, {"predictions": [3]})
    assert (two.status, two.document) == (200, {"predictions": [3, 9]})
    assert (bad.status, list(bad.document)) == (422, ["detail"])
    assert "unsupported operand" in bad.document["detail"]
    alone = await pair.predict(["x"], path=path)
    assert (alone.status, alone.headers["content-type"]) == (422, "application/json")
    assert [entry["index"] for entry in alone.document["detail"]] == [0]


STREAMS = [name for name in EXAMPLES if name.endswith("vnd.penstock.item-streams+json")]
EVENTS = {"accept": "text/event-stream"}
LINES = {"accept": "application/x-ndjson"}


@pytest.mark.parametrize("name", STREAMS)
async def test_clients_that_accept_streams_read_their_own_of_a_batch(start: Callable[..., Any], name: str):
    """The page's lines; a client that accepts none is in a batch of its own."""
    pair = await start("instances")
    _, example, media = name.split(" ")
    script = {"type": media, "body": EXAMPLES[name]}
    assert (await pair.ask("/-/script", base=pair.model_url, json=script)).status == 200
    replies = await pair.batched(
        3,
        pair.predict([1]),
        pair.predict([7], headers=EVENTS),
        pair.predict([8], headers=EVENTS),
        pair.predict([9]),
        runs=[2, 1],
    )
    for index, reply in enumerate(replies[:2]):
        check_client(f"client {example} {index}", reply)
    assert replies[2].document == {"predictions": [9], "model_version": "3"}


def test_each_protocol_has_an_example_and_each_block_of_the_page_is_run():
    ran = {f"{side} {kind}" for side in ("request", "answer") for kind in (*MATES, "v2-binary", "none")}
    clients = {f"client {name.split(' ')[1]} {index}" for name in STREAMS for index in (0, 1)}
    items = {f"client instances-items {index}" for index in range(3)} | {ITEM_ANSWERS}
    items |= {"sent instances-items", "python instances-items"}
    assert set(EXAMPLES) == ran | set(STREAMS) | clients | items
    assert len(STREAMS) == 2
    assert PAGE.count("\n```") == 2 * len(EXAMPLES)


def counting(pair: ProtocolPair, x: int, **more: int) -> Coroutine[Any, Any, Reply]:
    """A request for a stream that counts up to `x`."""
    return pair.predict({"x": x, **more}, path="/stream", headers=LINES)


async def test_a_batch_is_streamed_to_each_of_its_clients(start: Callable[..., Any]):
    pair = await start("instances")
    replies = await pair.batched(3, pair.predict([1]), *[counting(pair, x) for x in (3, 0, -1)])
    assert [reply.status for reply in replies] == [200, 200, 404]
    assert replies[0].headers["content-type"] == "application/x-ndjson"
    assert replies[0].body == b'{"step": 1}\n{"step": 2}\n{"step": 3}\n'
    assert replies[1].body == b""
    for reply in replies[:2]:  # waiting, its batch, and the model until this client's first line
        assert re.fullmatch(
            r'queue;dur=[0-9.]+, batch;desc="3", model;dur=[0-9.]+', reply.headers["server-timing"]
        )
    assert replies[2].reason == "model_failed"
    assert replies[2].document["detail"] == "below zero"
    await pair.until_load(0)


ONE_FAILS = """{"i": 0, "error": {"status": 500}}
{"i": 1, "data": {"step": 1}}
{"i": 1, "error": {"status": 500}}
"""


async def test_a_stream_that_has_begun_is_never_run_again_where_batches_are(start: Callable[..., Any]):
    """Not where it breaks off, and not where it says errors of what isolation would run again."""
    pair = await start("instances")
    await pair.resume()
    parked = [pair.predict({"say": "values"}, path="/parked?break", headers=LINES) for _ in range(2)]
    for reply in await pair.batched(2, pair.predict([1]), *parked):
        beginning, error = reply.body.splitlines()
        assert (reply.status, json.loads(beginning)) == (200, {"step": 1})
        assert json.loads(error)["error"]["reason"] == "bad_answer"

    plug, first, two = (pair.predict([x], headers=LINES) for x in (1, 2, 3))
    script = {"type": "application/vnd.penstock.item-streams+json", "body": ONE_FAILS}
    await pair.ask("/-/script", base=pair.model_url, json=script)
    failed, begun = await pair.batched(2, plug, first, two)
    assert (failed.status, failed.reason) == (500, "model_failed")
    assert (begun.status, begun.body) == (200, b'{"step": 1}\n{"error":{"status": 500}}\n')

    # It is on, and its budget was not used up.
    plug, first, two = (pair.predict([x], headers=LINES) for x in (1, 2, 3))
    script = {"type": "text/plain", "status": "500", "body": "no"}
    await pair.ask("/-/script", base=pair.model_url, json=script)
    isolated = await pair.batched(2, plug, first, two, runs=[2, 1, 1])
    assert [reply.document["predictions"] for reply in isolated] == [[2], [3]]


ENDLESS = 10**9


async def until_broken(pair: ProtocolPair, *left: int) -> None:
    """Wait until the model finds its stream's connection closed, with these still to be counted up to."""

    async def broken() -> Any:
        return (await pair.look())["broken"]

    assert await until(broken) == [list(left)]
    await pair.until_load(0)


async def test_one_that_leaves_a_streamed_batch_is_dropped_and_its_mate_goes_on(start: Callable[..., Any]):
    """The model's connection is closed when nobody is left who wants more of it."""
    pair = await start("instances")
    body = {"instances": [{"x": ENDLESS}]}

    async def leave() -> Reply:
        async with pair.session.post(pair.data + "/stream", json=body, headers=LINES) as answer:
            first = await answer.content.readline()
            answer.close()
            return Reply(answer.status, answer.headers, first)

    left, stayed = await pair.batched(2, pair.predict([1]), leave(), counting(pair, 300))
    assert left.body == b'{"step": 1}\n'
    assert stayed.body.count(b"\n") == 300
    await until_broken(pair, ENDLESS)


async def test_one_that_leaves_before_its_answer_has_begun_is_dropped_too(start: Callable[..., Any]):
    pair = await start("instances")
    leaves, stays = await pair.together(
        2, pair.predict([1]), counting(pair, ENDLESS, mute=1), counting(pair, ENDLESS + 1)
    )
    await pair.until_state(ongoing=2)
    leaves.cancel()
    stays.cancel()
    await until_broken(pair, ENDLESS, ENDLESS + 1)


async def test_one_that_does_not_read_is_cut_and_its_mate_goes_on(start: Callable[..., Any]):
    pair = await start("instances")
    host, port = pair.data.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port), limit=1)
    body = b'{"instances": [{"x": 1000000000, "wide": 1}]}'
    head = b"POST /stream HTTP/1.1\r\nhost: a\r\nx-request-id: deaf-1\r\naccept: application/x-ndjson\r\n"
    head += b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"

    async def deaf() -> Reply:
        writer.write(head % len(body) + body)
        return Reply(0, {}, b"")

    _, stayed = await pair.batched(2, pair.predict([1]), deaf(), counting(pair, 400))
    assert stayed.body.count(b"\n") == 400
    await until_broken(pair, ENDLESS)  # the slot is free again

    async def cut_off() -> bool:
        return any("slow_reader" in line and "deaf-1" in line for line in pair.sidecar.log)

    await until(cut_off)
    metrics = (await pair.admin_get("/metrics")).body.decode()
    assert 'penstock_sidecar_streams_cut_total{reason="slow_reader"} 1.0' in metrics
    assert 'penstock_sidecar_requests_total{code="200",reason=""} 3.0' in metrics
    writer.close()
    await writer.wait_closed()
