"""A model of the SDK behind a real sidecar: what one client's item is costs no other its answer."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from penstock_wire.json_slices import elements
from tests.support.http.grpc_messages import call, doubles, numbers
from tests.support.processes.sidecar_process import Pair, Program, Reply

MODULE = """
import pathlib, time
from typing import Literal
import numpy as np
import penstock

Kind = Literal["status", "error", "object", "raise", "panic", "less", "none"]


class Panic(BaseException): pass


class Echo:
    def __init__(self, gate):
        self.gate = pathlib.Path(gate)

    @penstock.batched
    def predict(self, items):
        while "plug" in items and not self.gate.exists():
            time.sleep(0.01)
        return items

    @penstock.batched
    def sized(self, rows: list[np.ndarray]):
        if any(row[0] < 0 for row in rows):
            raise ValueError("below zero")
        return [row * np.float32(len(rows)) for row in rows]

    @penstock.batched
    def kinds(self, items: list[int | Kind]):
        if "raise" in items:
            raise KeyError("of one of them")
        if "panic" in items:
            raise Panic("of one of them")
        special = {
            "status": penstock.Response(418, {"x-kind": "teapot"}, b"short"),
            "error": ValueError("mine"),
            "object": object(),
            "none": None,
        }
        return [
            special.get(item, penstock.Response(404, body={"no": item}) if item in (-1, -2) else item)
            for item in items
            if item != "less"
        ]
"""
REQUESTS = [
    *[[5], [-1], ["status"], ["error"], ["object"], ["raise"], ["panic"], ["less"], ["x"], ["none"]],
    *[
        [5, 6],
        [-1, 5],
        [-1, -2],
        ["x", 5],
        ["x", -1],
        ["x", None],
        ["status", -1],
        ["error", 5],
        ["error", "error"],
    ],
    *[["object", 5], ["object", "x"], ["raise", 5], ["less", 5], ["error", -1, "x"], [7, "panic"]],
]
"""Requests of all outcomes, alone and among other items."""
LONG = b"1" * 10_000


class EchoPair(Pair):
    """A sidecar before a model that echoes."""

    async def start_model(self) -> None:
        """Start it; a call that holds "plug" ends when the gate is open."""
        folder = self.settings_path.parent
        (folder / "echo.py").write_text(MODULE)
        self.gate = folder / "gate"
        arguments = json.dumps({"gate": str(self.gate)})
        self.model = Program(
            "penstock.serve",
            "echo:Echo",
            "--port=0",
            f"--init-kwargs={arguments}",
            env={"PYTHONPATH": str(folder)},
        )
        self.model_url = "http://" + (await self.model.start()).removeprefix("data=")

    async def batched(self, *bodies: bytes, path: str = "/predict") -> list[Reply]:
        """The replies to requests that share a batch."""
        self.gate.unlink(missing_ok=True)
        first = asyncio.create_task(self.predict("plug"))
        await self.until_state(ongoing=1, queued=0)
        tasks, queued = [], 0
        for body in bodies:
            headers = {"content-type": "application/json"}
            asked = self.ask(data=b'{"instances": [' + body + b"]}", headers=headers, path=path)
            tasks.append(asyncio.create_task(asked))
            queued += len(elements(b"[" + body + b"]"))
            await self.until_state(queued=queued)
        self.gate.touch()
        assert (await first).status == 200
        return [await task for task in tasks]


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[EchoPair]:
    pair = EchoPair(tmp_path)
    await pair.start()
    yield pair
    await pair.stop()


@pytest.mark.parametrize("neighbour", [b"7", b"NaN", b'"\\ud800"'])
async def test_an_integer_of_very_many_digits_fails_its_own_request_alone(
    pair: EchoPair, neighbour: bytes
) -> None:
    """Python reads no such integer: 422 says so. Beside what makes the reading tolerant, too."""
    mate, long, other = await pair.batched(neighbour, LONG, b"8")
    assert (long.status, long.document["reason"]) == (422, "missing_arguments")
    assert "digits" in long.document["detail"]
    assert (mate.status, other.status) == (200, 200)
    assert other.document == {"predictions": [8]}


async def test_half_of_a_surrogate_pair_comes_back_to_its_own_request(pair: EchoPair) -> None:
    mate, half, other = await pair.batched(b"1e22", b'{"a\\udfff": "\\ud800"}', b"[0.1]")
    assert [reply.status for reply in (mate, half, other)] == [200, 200, 200]
    assert half.document == {"predictions": [{"a\udfff": "\ud800"}]}
    assert (mate.body, other.document) == (b'{"predictions":[1e22]}', {"predictions": [[0.1]]})


def outcome(reply: Reply) -> tuple[int, str | None, Any]:
    """An answer without what names its request.

    A count of answers is that of the run, whose part of a large request depends on the batches' size.
    """
    fields = reply.headers
    body: Any = reply.body
    if "json" in fields.get("content-type", ""):
        body = {name: value for name, value in json.loads(reply.body).items() if name != "request_id"}
        if fields.get("x-penstock-reason") == "bad_answer":
            body["detail"] = body["error"] = re.sub(r"expected \d answers, found \d", "", body["detail"])
    return reply.status, fields.get("x-penstock-reason"), body


async def test_the_answer_to_a_request_is_the_same_whoever_shares_its_batch(pair: EchoPair) -> None:
    """Predictions, items' own answers, exceptions, panics, arguments that do not fit, too few answers."""
    alone = {}
    for items in REQUESTS:
        reply = await pair.ask(json={"instances": items}, path="/kinds")
        alone[json.dumps(items)] = outcome(reply)
    assert [alone[json.dumps(items)][:2] for items in ([-1, 5], ["x", 5], ["error", 5])] == [
        (404, "model_answer"),
        (422, "missing_arguments"),
        (500, "model_failed"),
    ]
    draw = random.Random(32)
    for _ in range(12):
        company = [json.dumps(items) for items in draw.sample(REQUESTS, 6)]
        replies = await pair.batched(*[text[1:-1].encode() for text in company], path="/kinds")
        assert dict(zip(company, map(outcome, replies), strict=True)) == {
            text: alone[text] for text in company
        }


async def test_calls_over_grpc_share_a_batch_of_arrays(pair: EchoPair) -> None:
    """With each other, not with JSON; a bad one fails by itself, and each answer is its caller's."""
    async with grpc.aio.insecure_channel(pair.data.removeprefix("http://")) as channel:

        async def batched(*values: float) -> list[Any]:
            pair.gate.unlink(missing_ok=True)
            first = asyncio.create_task(pair.predict("plug"))
            await pair.until_state(ongoing=1, queued=0)
            tasks = []
            for value in values:
                request = doubles(value, id=str(value), width=2)
                request.model_name = "sized"
                tasks.append(asyncio.ensure_future(call(channel, "ModelInfer", request)))
            await pair.until_state(queued=len(values))
            pair.gate.touch()
            await first
            return await asyncio.gather(*tasks, return_exceptions=True)

        answers = await batched(1.0, 2.0, 3.0)
        assert [(each.id, numbers(each)) for each in answers] == [
            *[("1.0", [3.0, 3.0]), ("2.0", [6.0, 6.0]), ("3.0", [9.0, 9.0])]
        ]
        good, bad, other = await batched(1.0, -2.0, 3.0)
        assert (numbers(good)[0] % 1, numbers(other)[0] % 3) == (0, 0)
        assert (bad.code(), "below zero" in bad.details()) == (grpc.StatusCode.INTERNAL, True)
