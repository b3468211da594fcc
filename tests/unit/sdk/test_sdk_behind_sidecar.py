"""A model of the SDK behind a real sidecar: what one client's item is costs no other its answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.sidecar_process import Pair, Program, Reply

MODULE = """
import pathlib, time
import penstock


class Echo:
    def __init__(self, gate):
        self.gate = pathlib.Path(gate)

    @penstock.batched
    def predict(self, items):
        while "plug" in items and not self.gate.exists():
            time.sleep(0.01)
        return items
"""
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

    async def batched(self, *bodies: bytes) -> list[Reply]:
        """The replies to requests that share a batch, one item each."""
        first = asyncio.create_task(self.predict("plug"))
        await self.until_state(ongoing=1, queued=0)
        tasks = []
        for body in bodies:
            headers = {"content-type": "application/json"}
            asked = self.ask(data=b'{"instances": [' + body + b"]}", headers=headers)
            tasks.append(asyncio.create_task(asked))
            await self.until_state(queued=len(tasks))
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
