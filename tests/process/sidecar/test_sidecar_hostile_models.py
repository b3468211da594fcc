"""A real model that resets, breaks off, lies, drips or stalls: its requests fail, others are served."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.protocol_pair import ProtocolPair, pairs
from tests.support.processes.sidecar_process import Reply, until

PATHS = {
    "instances": "/v1/models/m:predict",
    "v2": "/v2/models/double/infer",
    "openai": "/v1/embeddings",
}
KINDS = list(PATHS)
Start = Callable[..., Awaitable[ProtocolPair]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    async with pairs(tmp_path) as pair:
        yield pair


def body(kind: str, value: int) -> dict[str, Any]:
    """A request of one item, identified by its value."""
    if kind == "instances":
        return {"instances": [[value]]}
    if kind == "v2":
        return {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [value]}]}
    return {"model": "mini", "input": "x" * value}


def value_of(kind: str, reply: Reply) -> int:
    """Whose answer it is."""
    assert reply.status == 200, (reply.status, reply.body)
    document = reply.document
    values = {
        "instances": lambda: document["predictions"][0],
        "v2": lambda: document["outputs"][0]["data"][0] / 2,
        "openai": lambda: document["data"][0]["embedding"][0],
    }[kind]()
    return int(values)


async def check_well(pair: ProtocolPair, kind: str) -> None:
    """Nothing is left behind, and what comes next is answered, each its own."""
    await pair.until_load(0)
    replies = await asyncio.gather(*[pair.ask(PATHS[kind], json=body(kind, value)) for value in range(1, 9)])
    assert [value_of(kind, reply) for reply in replies] == list(range(1, 9))


UNREACHABLE, BAD_ANSWER = (502, "model_unreachable"), (502, "bad_answer")


async def check_told(pair: ProtocolPair, kind: str, fault: str, expected: tuple[int, str]) -> None:
    """Three of a batch get the error, each its own; the batch ran once; the queue behind it is served."""
    path = PATHS[kind]
    before = len((await pair.look())["runs"])
    await pair.ask("/-/gate?open=0", base=pair.model_url)
    plug = asyncio.create_task(pair.ask(path, json=body(kind, 1)))
    await until(pair.held)
    spoiled = [
        asyncio.create_task(pair.ask(f"{path}?fault={fault}", json=body(kind, value))) for value in (2, 3, 4)
    ]
    neighbour = asyncio.create_task(pair.ask(path, json=body(kind, 5)))
    await pair.until_state(queued=4)
    await pair.ask("/-/gate?open=1", base=pair.model_url)
    assert value_of(kind, await plug) == 1
    replies = await asyncio.gather(*spoiled)
    assert [(reply.status, reply.reason) for reply in replies] == [expected] * 3, fault
    assert all("x-penstock-not-admitted" not in reply.headers for reply in replies)
    assert value_of(kind, await neighbour) == 5
    assert sorted((await pair.look())["runs"][before:]) == [1, 1, 3], fault


@pytest.mark.parametrize("kind", KINDS)
async def test_a_batch_whose_answer_is_lost_is_told_so_and_not_run_again(start: Start, kind: str) -> None:
    """It may have run; the connection is not used again, and what comes next is right."""
    pair = await start(kind)
    for fault in ("reset", "cut"):
        await check_told(pair, kind, fault, UNREACHABLE)
    await check_well(pair, kind)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_that_lies_is_nobodys(start: Start, kind: str) -> None:
    """Not HTTP, not JSON, or one answer too few, with `onBatchError: Fail`: no client gets another's part."""
    pair = await start(kind, onBatchError="Fail")
    for fault in ("nohttp", "garbage", "short"):
        await check_told(pair, kind, fault, BAD_ANSWER)
    await check_well(pair, kind)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_that_comes_byte_by_byte_is_whole(start: Start, kind: str) -> None:
    """Head, body and all; each request of the batch gets its own part."""
    pair = await start(kind)
    path = PATHS[kind]
    replies = await pair.batched(
        3,
        pair.ask(path, json=body(kind, 1)),
        *[pair.ask(f"{path}?fault=drip", json=body(kind, value)) for value in (2, 3, 4)],
    )
    assert [value_of(kind, reply) for reply in replies] == [2, 3, 4]
    await check_well(pair, kind)


async def stall(start: Start, kind: str) -> None:
    pair = await start(kind, maxConcurrentBatches=2)
    path = PATHS[kind]
    short = {"x-penstock-timeout-ms": "4000"}
    await pair.ask("/-/gate?open=0", base=pair.model_url)
    stalled = asyncio.create_task(pair.ask(f"{path}?fault=stall", json=body(kind, 1), headers=short))
    await until(pair.held)
    await pair.ask("/-/gate?open=1", base=pair.model_url)
    for value in (2, 3):
        assert value_of(kind, await pair.ask(path, json=body(kind, value))) == value
    reply = await stalled
    assert (reply.status, reply.reason) == (504, "deadline")
    await check_well(pair, kind)


async def test_one_that_drips_for_ever_ends_at_its_deadline_and_holds_nobody_up(start: Start) -> None:
    """Bytes now and then renew no time; the other slot goes on meanwhile. All protocols at once."""
    await asyncio.gather(*[stall(start, kind) for kind in KINDS])


LINES = """\
{"i": 0, "data": 1}
{"i": 1, "data": 1}
{"i": 0, "end": true}
{"i": 1, "data": "%s"}
{"i": 1, "end": true}
"""


class TestStreams:
    """Item streams: what a hostile stream does to one client, it does not do to the other."""

    async def streamed(self, pair: ProtocolPair, lines: str, query: str) -> list[Reply]:
        script = {"type": "application/vnd.penstock.item-streams+json", "body": lines}
        await pair.ask("/-/script", base=pair.model_url, json=script)
        return await pair.batched(
            2,
            pair.predict([1]),
            *[
                pair.predict([value], path=f"/score?{query}", headers={"accept": "application/x-ndjson"})
                for value in (2, 3)
            ],
        )

    async def test_one_that_breaks_off_is_told_to_those_who_lack_their_end(self, start: Start) -> None:
        pair = await start("instances")
        whole, cut = await self.streamed(pair, LINES % ("x" * 500), "fault=cut")
        assert (whole.status, whole.body) == (200, b"1\n")
        assert cut.status == 200
        first, last = cut.body.splitlines()
        assert first == b"1"
        assert b'"error"' in last
        assert b"bad_answer" in last
        await check_well(pair, "instances")

    async def test_one_that_drips_is_whole(self, start: Start) -> None:
        pair = await start("instances")
        replies = await self.streamed(pair, LINES % "y", "fault=drip")
        assert [reply.body for reply in replies] == [b"1\n", b"1\ny"]
        await check_well(pair, "instances")

    async def test_a_line_that_cannot_be_read_ends_those_who_lack_their_end(self, start: Start) -> None:
        pair = await start("instances")
        lines = LINES.replace('{"i": 1, "data": "%s"}', "this is { no JSON")
        whole, cut = await self.streamed(pair, lines, "")
        assert whole.body == b"1\n"
        assert b"bad_answer" in cut.body.splitlines()[1]
        await check_well(pair, "instances")

    async def test_one_that_is_lost_before_it_began_is_502(self, start: Start) -> None:
        pair = await start("instances")
        replies = await self.streamed(pair, LINES % "y", "fault=reset")
        assert [(reply.status, reply.reason) for reply in replies] == [(502, "model_unreachable")] * 2
        await check_well(pair, "instances")


async def test_an_item_that_cannot_be_an_answer_is_its_own_clients_alone(start: Start) -> None:
    """A status that is none, a field that would be two."""
    pair = await start("instances")
    answers = [{"index": 0, "status": 9999}, {"index": 1, "status": 200, "headers": {"a": "b\nc: d"}}]
    items = json.dumps({"predictions": [None, None, 3], "answers": answers})
    script = {"type": "application/vnd.penstock.items+json", "body": items}
    await pair.ask("/-/script", base=pair.model_url, json=script)
    bad, worse, good = await pair.batched(3, *[pair.predict([value]) for value in (9, 1, 2, 3)])
    assert [bad.reason, worse.reason] == ["bad_answer"] * 2
    assert value_of("instances", good) == 3
    await check_well(pair, "instances")
