"""A sidecar before a real uvicorn, which closes connections behind an answer or ends within a batch."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.clocks.waiting import SECONDS
from tests.support.processes.ports import free_port
from tests.support.processes.sidecar_process import Pair, Reply, got

APP = """
import json, os, pathlib

RUNS = pathlib.Path(__file__).with_name("runs")


async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    items = json.loads(body)["instances"] if body else []
    if items:
        with RUNS.open("a") as runs:
            runs.write(json.dumps(items) + "\\n")
    if "kill" in items:
        os._exit(1)
    answer = json.dumps({"predictions": [{"got": item} for item in items]}).encode()
    fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
    await send({"type": "http.response.start", "status": 200, "headers": fields})
    await send({"type": "http.response.body", "body": answer})
    if "raise" in items:
        raise RuntimeError("what comes behind an answer fails")
"""


class Uvicorn(Pair):
    """A sidecar before uvicorn; the model's port stays, so that it can be started again."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder
        self.port = free_port()

    async def start_model(self) -> None:
        (self.folder / "served.py").write_text(APP)
        self.model_url = f"http://127.0.0.1:{self.port}"
        self.uvicorn = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "uvicorn", "served:app", f"--port={self.port}", "--log-level=critical"),
            cwd=self.folder,
        )

    async def stop(self) -> None:
        await self.session.close()
        await self.sidecar.stop()
        if self.uvicorn.returncode is None:
            self.uvicorn.kill()
        await self.uvicorn.wait()

    def ran(self) -> list[list[object]]:
        """The items of each run."""
        return [json.loads(line) for line in (self.folder / "runs").read_text().splitlines()]


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Uvicorn]:
    pair = Uvicorn(tmp_path)
    yield pair
    await pair.stop()


async def test_an_exception_behind_an_answer_costs_no_later_request(pair: Uvicorn) -> None:
    """Uvicorn closes the connection without a word, as the next request is about to use it."""
    await pair.start(maxBatchSize=8)
    for number in range(50):
        assert got(await pair.predict("raise")) == ["raise"]
        assert got(await pair.predict(number)) == [number]
    assert pair.ran() == [item for number in range(50) for item in (["raise"], [number])]


async def test_a_request_that_ends_the_model_fails_its_batch_alone_and_is_run_once(pair: Uvicorn) -> None:
    """Each of the batch gets an error that it may have run; the queue is served later."""
    await pair.start(maxBatchSize=8, batchWaitTimeoutMs=1000)  # all come within it, on a busy machine as well
    replies: list[Reply] = await asyncio.gather(
        *[pair.predict("kill" if number == 3 else f"secret-{number}") for number in range(8)]
    )
    for reply in replies:
        assert (reply.status, reply.reason) == (502, "model_unreachable")
        assert reply.document["request_id"] == reply.headers["x-request-id"]
        assert "x-penstock-not-admitted" not in reply.headers
        assert b"secret" not in reply.body
    assert await asyncio.wait_for(pair.uvicorn.wait(), SECONDS) == 1
    ran = pair.ran()
    assert sum("kill" in run for run in ran) == 1
    assert sum(map(len, ran)) == 8
    await pair.until_ready(ready=False)
    await pair.start_model()
    await pair.until_ready()
    assert got(await pair.predict(1)) == [1]
    assert pair.ran() == [*ran, [1]]
