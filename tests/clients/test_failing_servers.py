"""Servers that end connections behind an unhandled exception, each in its own way, before a real sidecar."""

from __future__ import annotations

import asyncio
import collections
import io
import json
from pathlib import Path

import pytest

from tests.support.processes.foreign_servers import SERVERS, ForeignPair, ForeignServer, versions
from tests.support.processes.sidecar_process import Reply

REQUESTS = 200
AT_ONCE = 20
ROUNDS = 3
PNG = {"content-type": "image/png"}  # which no protocol reads: it is sent on as it comes


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.name)
async def test_an_exception_fails_no_request_but_the_one_that_meets_it(
    server: ForeignServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """One bad request in 200, 20 at once: the 199 others are answered by the model."""
    failed: list[int] = []
    bad: list[int] = []
    for turn in range(ROUNDS):
        folder = tmp_path / str(turn)
        folder.mkdir()
        pair = ForeignPair(folder, server)
        try:
            await pair.start(maxBatchSize=32, onBatchError="Isolate")
            replies = await _load(pair, bad_at=REQUESTS // 2 + turn)
        finally:
            await pair.stop()
        bad.append(replies.pop(REQUESTS // 2 + turn).status)
        failed.append(sum(not _good(number, reply) for number, reply in replies.items()))
    _note(request.config, server.name, failed)
    assert (failed, bad) == ([0] * ROUNDS, [server.status] * ROUNDS)


@pytest.mark.parametrize(
    ("name", "path", "status"),
    [
        ("granian", "/refuse", 413),
        ("uvicorn, httptools", "/refuse", 413),
        ("axum", "/refuse", 413),
        ("axum", "/ignore", 200),
    ],
)
async def test_an_answer_without_a_look_at_the_body_reaches_the_client(
    name: str, path: str, status: int, tmp_path: Path
) -> None:
    """Some servers then reset the connection, while the sidecar is still sending."""
    pair = ForeignPair(tmp_path, next(server for server in SERVERS if server.name == name))
    statuses: collections.Counter[int] = collections.Counter()
    try:
        await pair.start()
        for size in (300_000, 3_000_000, 20_000_000):
            for _ in range(5):
                asked = [pair.ask(path, headers=PNG, data=io.BytesIO(b"a" * size)) for _ in range(4)]
                replies = await asyncio.gather(*asked)
                statuses.update(reply.status for reply in replies)
    finally:
        await pair.stop()
    assert statuses == {status: 60}


async def _load(pair: ForeignPair, bad_at: int) -> dict[int, Reply]:
    numbers = iter(range(REQUESTS))
    replies: dict[int, Reply] = {}

    async def client() -> None:
        for number in numbers:
            replies[number] = await pair.predict("bad" if number == bad_at else number, path="/predict")

    await asyncio.gather(*[client() for _ in range(AT_ONCE)])
    return replies


def _good(number: int, reply: Reply) -> bool:
    return reply.status == 200 and reply.document == {"predictions": [{"got": number}]}


def _note(config: pytest.Config, server: str, failed: list[int]) -> None:
    """Write a server's figures beside the others'."""
    if (path := config.getoption("--clients-results")) is None:
        return
    file = Path(path)
    figures = json.loads(file.read_text()) if file.exists() else {}
    figures["versions"] = versions()
    figures.setdefault("innocents failed", {})[server] = {
        "requests": ROUNDS * (REQUESTS - 1),
        "failed": sum(failed),
        "at once": AT_ONCE,
    }
    file.write_text(json.dumps(figures, indent=2, sort_keys=True) + "\n")
