"""KServe's and Triton's own clients through a sidecar, before KServe's own server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bench import venvs
from tests.support.clocks.waiting import SECONDS
from tests.support.processes.penstock_run import Run
from tests.support.processes.ports import free_port
from tests.support.processes.protocol_pair import pairs
from tests.support.processes.sidecar_process import Pair, until

HERE = Path(__file__).parent
COUNT = 4
START_SECONDS = 120
"""That KServe's imports may take on a busy machine."""
V1, V2 = "/v1/models/double:predict", "/v2/models/double/infer"
V1_PLUG = {"instances": [-1]}
V2_PLUG = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [-1, -1]}], "id": "plug"}
DOUBLED = [[f"own-{number}", [2.0 * number, 2 * number + 1.0]] for number in range(COUNT)]


@pytest.fixture(scope="module")
def python() -> Path:
    """The Python that has KServe."""
    return venvs.ensure("kserve", lock=HERE / "requirements-kserve.txt")


async def ask(python: Path, kind: str, url: str, count: int = COUNT) -> Any:
    """The results of the clients of `ask.py`."""
    process = await asyncio.create_subprocess_exec(
        str(python),
        str(HERE / "kserve" / "ask.py"),
        kind,
        url,
        str(count),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), START_SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, err.decode()[-2000:]
    return json.loads(out.splitlines()[-1])


class KServe:
    """KServe's server as a process."""

    def __init__(self, python: Path, folder: Path) -> None:
        self._python = python
        self._folder = folder
        self._process: asyncio.subprocess.Process

    async def start(self) -> str:
        """Start it; returns its address. It is ready some seconds later."""
        port = free_port()
        log = (self._folder / "kserve.log").open("wb")
        with log:
            self._process = await asyncio.create_subprocess_exec(
                str(self._python),
                str(HERE / "kserve" / "serve.py"),
                str(port),
                str(self._folder),
                stdout=log,
                stderr=log,
            )
        return f"127.0.0.1:{port}"

    async def stop(self) -> None:
        """End it."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


class KServePair(Pair):
    """KServe's server and a sidecar before it."""

    python: Path

    async def start_model(self) -> None:
        """Start the server."""
        self.folder = self.settings_path.parent
        model = KServe(self.python, self.folder)
        self.model = model  # type: ignore[assignment]
        self.model_url = f"http://{await model.start()}"

    async def until_ready(self, *, ready: bool = True) -> None:
        """Wait for the sidecar's readiness, which is the server's."""

        async def look() -> bool:
            return (await self.admin_get("/readyz")).status == 200

        log = self.folder / "kserve.log"
        await until(look, seconds=START_SECONDS, details=lambda: log.read_text()[-2000:])

    def calls(self) -> list[Any]:
        """Rows and id of each call of the model."""
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]


Start = Callable[[str], Awaitable[KServePair]]


@pytest.fixture
async def start(python: Path, tmp_path: Path) -> AsyncIterator[Start]:
    begun: list[KServePair] = []

    async def begin(protocol: str) -> KServePair:
        pair = KServePair(tmp_path, f"--protocol={protocol}", "--ready-path=/v2/health/ready")
        pair.python = python
        begun.append(pair)
        await pair.start()
        return pair

    yield begin
    for pair in begun:
        if hasattr(pair, "session"):
            await pair.stop()


async def in_one_batch(pair: KServePair, kind: str, plug: Any, path: str) -> Any:
    """The results of a client whose requests waited together until the model was free."""
    first = asyncio.create_task(pair.ask(path, json=plug))
    await pair.until_state(ongoing=1, queued=0)
    asked = asyncio.create_task(ask(pair.python, kind, pair.data))

    async def all_wait() -> bool:
        if asked.done():
            await asked
        return bool((await pair.admin_get("/queue")).document["queued"] == COUNT)

    await until(all_wait, seconds=START_SECONDS)
    (pair.folder / "open").touch()
    assert (await first).status == 200
    return await asked


@pytest.mark.parametrize(
    "kind",
    [
        "kserve v2",
        "kserve v2, binary",
        "tritonclient",
        "tritonclient, binary",
        "tritonclient.aio",
        "tritonclient.aio, binary",
        "tritonclient.grpc.aio",
        "kserve, gRPC",
    ],
)
async def test_requests_of_v2_share_a_batch_and_each_gets_its_own_id(start: Start, kind: str) -> None:
    """KServe's answers have null members and the id that its request had; a batch has an id as well."""
    pair = await start("v2")
    answers = await in_one_batch(pair, kind, V2_PLUG, V2)
    assert sorted(answers) == DOUBLED
    plug, batch = pair.calls()
    assert (plug[0], batch[0]) == (1, COUNT)
    assert batch[1]
    assert not batch[1].startswith("own-")


CLASS = """
import numpy as np
import penstock
from numpy.typing import NDArray


class Double:
    @penstock.batched
    def double(self, rows: list[NDArray[np.float32]]):
        return [{"y": each} for each in np.stack(rows) * 2]
"""


@pytest.mark.parametrize("kind", ["tritonclient.grpc.aio", "kserve, gRPC", "tritonclient, binary"])
async def test_a_class_of_arrays_answers_triton_s_clients(python: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "double.py").write_text(CLASS)
    run = await Run(tmp_path).start("double:Double")
    try:
        await run.ready()
        assert sorted(await ask(python, kind, run.url)) == DOUBLED
    finally:
        await run.stop()


async def test_requests_of_v1_share_a_batch(start: Start) -> None:
    pair = await start("instances")
    assert await in_one_batch(pair, "kserve v1", V1_PLUG, V1) == [[2 * n] for n in range(COUNT)]
    assert [rows for rows, _ in pair.calls()] == [1, COUNT]


async def test_with_instances_all_else_of_kserve_passes(start: Start) -> None:
    """Its v2, with each client; a load with an empty body; CloudEvents, structured and binary."""
    pair = await start("instances")
    # tritonclient sends JSON without a content type that KServe accepts; with v2 it gets one.
    for kind in ("kserve v2", "kserve v2, binary", "tritonclient, binary"):
        assert sorted(await ask(pair.python, kind, pair.data)) == DOUBLED, kind
    assert await ask(pair.python, "repository", pair.data) == [200, True]
    events = await ask(pair.python, "events", pair.data)
    assert events == [{"predictions": [2 * number]} for number in range(COUNT)]
    assert {rows for rows, _ in pair.calls()} == {1}


async def test_triton_clients_say_what_a_problem_says(start: Start) -> None:
    pair = await start("v2")
    said, detail = await ask(pair.python, "error", pair.data)
    assert said
    assert said == detail


@pytest.mark.parametrize(
    "kind",
    [
        "tritonclient, gzip",
        "tritonclient, binary, deflate",
        "tritonclient.aio, binary, gzip",
        "tritonclient.aio, deflate",
    ],
)
async def test_compressed_requests_pass_unbatched(python: Path, tmp_path: Path, kind: str) -> None:
    """Before a server that inflates them, which KServe's does not."""
    async with pairs(tmp_path) as begin:
        pair = await begin("v2")
        assert sorted(await ask(python, kind, pair.data)) == DOUBLED
        assert (await pair.look())["runs"] == [1] * COUNT
        await asyncio.wait_for(pair.until_load(0), SECONDS)


@pytest.mark.parametrize(("protocol", "path"), [("instances", V1), ("v2", V2)])
async def test_what_curl_sends_without_a_content_type_is_read(start: Start, protocol: str, path: str) -> None:
    """KServe (FastAPI) does not read JSON from a form's content type; the model gets the right one."""
    pair = await start(protocol)
    body = {"instances": [3]} if protocol == "instances" else {**V2_PLUG, "id": "own"}
    if protocol == "v2":
        body["inputs"] = [{**V2_PLUG["inputs"][0], "data": [3, 4]}]
    curl = await asyncio.create_subprocess_exec(
        "curl", "-sS", "-d", json.dumps(body), pair.data + path, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(curl.communicate(), SECONDS)
    document = json.loads(out)
    predictions = document["predictions"] if protocol == "instances" else document["outputs"][0]["data"]
    assert predictions == ([6] if protocol == "instances" else [6.0, 8.0])
