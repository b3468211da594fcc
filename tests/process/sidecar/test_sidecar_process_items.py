"""A model of the SDK behind a real sidecar: one bad request of 32, one call of the model."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.sidecar_process import Pair, Program, Reply, until

MODULE = """
import asyncio
import json
import pathlib

import penstock

HERE = pathlib.Path(__file__).parent


class Halves:
    def __init__(self):
        self.calls = []

    @penstock.batched(columns=True)
    async def predict(self, x, kind=""):
        self.calls.append(len(x))
        (HERE / "calls").write_text(json.dumps(self.calls))
        while not (HERE / "gate").exists():
            await asyncio.sleep(0.01)
        return [half(*each) for each in zip(x, kind)]


def half(x, kind):
    if kind == "returned":
        return ValueError(f"{x} is odd")
    if kind == "response":
        return penstock.Response(409, {"X-Why": "odd"}, {"odd": x})
    return x / 2
"""


class Halves(Pair):
    """A sidecar before the SDK's server of `MODULE`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder

    async def start_model(self) -> None:
        (self.folder / "halves.py").write_text(MODULE)
        env = {"PYTHONPATH": str(self.folder)}
        self.model = Program("penstock.serve", "halves:Halves", "--port=0", env=env)
        self.model_url = "http://" + (await self.model.start()).removeprefix("data=")

    async def calls(self) -> Any:
        """The items of each call of the model, empty before the first."""
        file = self.folder / "calls"
        return json.loads(file.read_text() or "[]") if file.exists() else []


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Halves]:
    pair = Halves(tmp_path)
    await pair.start(maxBatchSize=32)
    yield pair
    await pair.stop()


BAD: dict[str, tuple[dict[str, Any], int, dict[str, Any]]] = {
    "signature": ({"y": 1}, 422, {"detail": "missing x; unknown y", "reason": "missing_arguments"}),
    "exception": (
        {"x": 7, "kind": "returned"},
        500,
        {"detail": "the model failed with ValueError: 7 is odd", "reason": "model_failed"},
    ),
    "response": ({"x": 7, "kind": "response"}, 409, {"odd": 7}),
}


async def test_thirty_one_answers_200_and_one_of_its_own_from_one_call(pair: Halves):
    """Each way in which an item fails, one after another; then the same requests alone."""
    for name, (item, status, expected) in BAD.items():
        before = len(await pair.calls())
        (pair.folder / "gate").unlink(missing_ok=True)
        plug = asyncio.create_task(pair.predict({"x": 0}))
        await until(lambda before=before: _more(pair, before))
        tasks = [asyncio.create_task(pair.predict({"x": x})) for x in range(31)]
        bad = asyncio.create_task(pair.predict(item))
        await pair.until_state(queued=32)
        (pair.folder / "gate").touch()
        replies: list[Reply] = await asyncio.gather(plug, *tasks)
        assert [reply.document for reply in replies[1:]] == [{"predictions": [x / 2]} for x in range(31)]
        failed = await bad
        assert failed.status == status, name
        assert failed.document.items() >= expected.items()
        assert (await pair.calls())[before:] == [1, 31 if name == "signature" else 32]

        alone = await pair.predict(item)
        assert alone.status == status
        for reply in (failed, alone):
            mine = {} if name == "response" else {"request_id": reply.headers["x-request-id"]}
            assert reply.document == {**failed.document, **mine}
        for field in ("content-type", "x-why", "x-penstock-reason"):
            assert alone.headers.get(field) == failed.headers.get(field)

    metrics = (await pair.admin_get("/metrics")).body.decode()
    assert "penstock_sidecar_isolation_runs_total 0.0" in metrics
    for status in (422, 500, 409):
        assert re.search(rf'requests_total{{code="{status}",reason="\w*"}} 2\.0', metrics)
    assert not [line for line in pair.sidecar.log if json.loads(line)["level"] == "error"]


async def _more(pair: Halves, before: int) -> bool:
    return len(await pair.calls()) > before
