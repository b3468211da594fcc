"""`python -m penstock.serve` as a process: what it prints, when it is ready, how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.serve import MAX_BODY_BYTES, bounded_front
from penstock_wire.http import Request, Response, UpstreamError, sending
from penstock_wire.http.client.pool import H1Upstream
from penstock_wire.memory_limit import most_kept
from tests.support.clocks.waiting import SECONDS
from tests.support.processes.ports import free_port
from tests.support.processes.sidecar_process import close_pipes

MODULE = """
import multiprocessing, pathlib, threading, time
import penstock


class Double:
    def __init__(self, factor=2, gate=None, error=None):
        if gate:
            print("loading", flush=True)
            while not pathlib.Path(gate).exists():
                time.sleep(0.01)
        if error == "exit":
            raise SystemExit("no license")
        if error:
            raise RuntimeError(error)
        self.factor = factor

    @penstock.batched
    def predict(self, items):
        return [self.factor * item for item in items]


class Slow:
    def __init__(self, gate):
        self.gate = pathlib.Path(gate)

    @penstock.batched
    def predict(self, items):
        print("begun", flush=True)
        while not self.gate.exists():
            time.sleep(0.01)
        return items


class Pooled:
    @penstock.batched
    def predict(self, items):
        with multiprocessing.get_context("fork").Pool(2) as pool:  # its end sends them SIGTERM
            return pool.map(abs, items)


class Hooked:
    def __init__(self, fails=""):
        self.fails = fails

    async def load(self):
        self.called("load")

    def warmup(self):
        self.called("warmup")

    def close(self):
        self.called("close")

    def called(self, hook):
        print(hook, flush=True)
        if hook == self.fails:
            raise RuntimeError(f"no {hook}")
        if self.fails == f"exit {hook}":
            raise SystemExit(f"no {hook}")

    @penstock.batched
    def predict(self, items):
        return items


class Wrong:
    @penstock.batched
    def predict(self, a, b): ...


def increment(item):
    return item + 1
"""

TERMINATED = """
import os, signal

os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))

def terminated(item):
    child = os.fork()
    if not child:
        os._exit(3)  # it was not terminated
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""

Start = Callable[..., Awaitable["Served"]]


class Served:
    """A model server under test."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.upstream = H1Upstream()
        self.port = 0

    async def line(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(SECONDS):
            return (await self.process.stdout.readline()).decode().strip()

    async def ready(self) -> None:
        line = await self.line()
        assert line.startswith("ready data=127.0.0.1:"), line
        self.port = int(line.rpartition(":")[2])

    async def post(self, items: list[Any], **kwargs: Any) -> Response:
        body = json.dumps({"instances": items}).encode()
        request = Request(method="POST", target="/v1/models/m:predict", headers=(), body=body)
        return await sending.send(self.upstream, "127.0.0.1", self.port, request, timeout=60)

    async def get(self, target: str = "/") -> Response:
        request = Request(method="GET", target=target, headers=(), body=b"")
        return await sending.send(self.upstream, "127.0.0.1", self.port, request, timeout=60)

    async def end(self) -> tuple[int, str]:
        """The exit code and standard error, once it has ended."""
        async with asyncio.timeout(SECONDS):
            _, errors = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, errors.decode()


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts `python -m penstock.serve ARGUMENTS` in a folder with the module above."""
    (tmp_path / "models.py").write_text(MODULE)
    (tmp_path / "terminated.py").write_text(TERMINATED)
    (tmp_path / "broken.py").write_text("raise OSError('no weights here')\n")
    (tmp_path / "exits.py").write_text("raise SystemExit(0)\n")
    running: list[Served] = []

    async def run(*arguments: str, port: int = 0, program: str = "penstock.serve") -> Served:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            program,
            *arguments,
            "--port",
            str(port),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PENSTOCK_PORT": "tcp://10.96.0.1:80"},
        )
        running.append(Served(process))
        return running[-1]

    yield run
    for served in running:
        await served.upstream.close()
        if served.process.returncode is None:
            served.process.kill()
            await served.process.communicate()
        await close_pipes(served.process)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it holds, a minute at most."""
    deadline = time.monotonic() + 60
    while not await condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_a_class_is_served_and_sigterm_ends_it_with_zero(start: Start) -> None:
    """Also where Kubernetes has set PENSTOCK_PORT for a Service of that name."""
    served = await start("models:Double", "--init-kwargs", '{"factor": 3}')
    await served.ready()
    assert (await served.get()).status == 200
    answer = await served.post([1, 2])
    assert (answer.status, json.loads(answer.body)) == (200, {"predictions": [3, 6]})
    served.process.send_signal(signal.SIGTERM)
    assert await served.end() == (0, "")


async def test_the_end_of_a_models_forked_processes_is_theirs_alone(start: Start) -> None:
    served = await start("models:Pooled")
    await served.ready()
    for _ in range(2):
        assert (await served.post([-1, 2])).body == b'{"predictions":[1,2]}'
    served.process.send_signal(signal.SIGTERM)
    assert (await served.end())[0] == 0


async def test_a_forked_process_gets_what_is_sent_to_it_at_once(start: Start) -> None:
    """Such as the SIGTERM of a pool that ends: it would never end if its process dropped that."""
    served = await start("terminated:terminated")
    await served.ready()
    assert (await served.post([1])).body == b'{"predictions":[-15]}'


async def test_a_function_is_served(start: Start) -> None:
    served = await start("models:increment")
    await served.ready()
    assert json.loads((await served.post([1, 2])).body) == {"predictions": [2, 3]}


async def test_while_the_class_loads_the_server_answers_503_and_then_200(
    start: Start, tmp_path: Path
) -> None:
    """The port is open from the start, so a caller can tell loading from absent."""
    port = free_port()
    gate = tmp_path / "gate"
    served = await start("models:Double", "--init-kwargs", json.dumps({"gate": str(gate)}), port=port)
    assert await served.line() == "loading"
    served.port = port

    async def answered() -> bool:
        try:
            return (await served.get()).status == 503
        except UpstreamError:
            return False

    await until(answered)
    assert (await served.post([1])).status == 503
    gate.touch()
    await served.ready()
    assert (await served.get()).status == 200


async def test_sigterm_ends_a_server_that_still_loads(start: Start, tmp_path: Path) -> None:
    served = await start("models:Double", "--init-kwargs", json.dumps({"gate": str(tmp_path / "never")}))
    assert await served.line() == "loading"
    served.process.send_signal(signal.SIGTERM)
    code, errors = await served.end()
    assert (code, json.loads(errors)["message"]) == (0, "stopped while the model was loading")


async def test_ctrl_c_ends_a_server_whose_model_hangs(start: Start, tmp_path: Path) -> None:
    """Nobody was promised an answer; SIGTERM would wait for it, here for longer than the test."""
    (tmp_path / "patient.py").write_text(
        "import penstock.serve as serve\nserve.STOP_SECONDS = 600.0\nraise SystemExit(serve.main())\n"
    )
    kwargs = json.dumps({"gate": str(tmp_path / "never")})
    served = await start("models:Slow", "--init-kwargs", kwargs, program="patient")
    await served.ready()
    call = asyncio.ensure_future(served.post([7]))
    assert await served.line() == "begun"
    served.process.send_signal(signal.SIGINT)
    assert (await served.end())[0] == 0
    with pytest.raises(UpstreamError):
        await call


async def test_sigterm_lets_a_call_under_way_finish(start: Start, tmp_path: Path) -> None:
    """The answer of a request that was accepted is not lost."""
    gate = tmp_path / "gate"
    served = await start("models:Slow", "--init-kwargs", json.dumps({"gate": str(gate)}))
    await served.ready()
    call = asyncio.ensure_future(served.post([7]))
    assert await served.line() == "begun"
    served.process.send_signal(signal.SIGTERM)

    async def refused() -> bool:
        try:
            return (await served.get()).status == 0
        except UpstreamError:
            return True

    await until(refused)
    gate.touch()
    assert json.loads((await call).body) == {"predictions": [7]}
    assert (await served.end())[0] == 0


@pytest.mark.parametrize("fails", ["", "close"])
async def test_hooks_are_called_before_it_is_ready_and_at_the_end(start: Start, fails: str) -> None:
    """Blocking or not; one that fails at the end is logged."""
    served = await start("models:Hooked", "--init-kwargs", json.dumps({"fails": fails}))
    assert [await served.line(), await served.line()] == ["load", "warmup"]
    await served.ready()
    assert json.loads((await served.post([1])).body) == {"predictions": [1]}
    served.process.send_signal(signal.SIGTERM)
    assert await served.line() == "close"
    code, errors = await served.end()
    assert (code, "RuntimeError: no close" in errors) == (0, fails == "close")


@pytest.mark.parametrize(
    ("arguments", "last"),
    [
        (["models:Hooked", "--init-kwargs", '{"fails": "load"}'], ": RuntimeError: no load"),
        (["models:Hooked", "--init-kwargs", '{"fails": "warmup"}'], ": RuntimeError: no warmup"),
        (["models:Hooked", "--init-kwargs", '{"fails": "exit load"}'], ": SystemExit: no load"),
        (["models:Double", "--init-kwargs", '{"error": "exit"}'], ": SystemExit: no license"),
        (["exits:C"], ": SystemExit: 0"),
        (["models:Wrong"], ".predict: expected one parameter, the list of items, found (a, b);"),
        (["models:Missing"], ": expected Missing in module models, found no Missing"),
        (["nothing:C"], ": expected a module nothing on the Python path, found none"),
        (["broken:C"], ": OSError: no weights here"),
        (["models:Double", "--init-kwargs", '{"error": "bad weights"}'], ": RuntimeError: bad weights"),
        (["models:Double", "--init-kwargs", '{"size": 1}'], ": expected init kwargs for"),
        (["models:increment", "--host", "192.0.2.1"], ": cannot listen on 192.0.2.1:0"),
    ],
)
async def test_a_target_that_cannot_be_loaded_ends_with_one_and_says_why_last(
    start: Start, arguments: list[str], last: str
) -> None:
    """Once with the target's name: Kubernetes shows the last lines of standard error as the pod's message."""
    served = await start(*arguments)
    code, errors = await served.end()
    assert code == 1
    assert errors.strip().splitlines()[-1].startswith(f"penstock.serve: cannot load {arguments[0]}{last}")
    assert "importlib" not in errors


@pytest.mark.parametrize("value", ["[1]", "{", "1"])
async def test_init_kwargs_are_a_json_object(start: Start, value: str) -> None:
    code, errors = await (await start("models:Double", "--init-kwargs", value)).end()
    assert code == 2
    assert "argument --init-kwargs: expected a JSON object, found" in errors


@pytest.mark.parametrize("limit", [None, 1 << 40, 1 << 30, 128 << 20])
def test_two_of_the_longest_bodies_fit_into_what_a_server_keeps(limit: int | None) -> None:
    """A third of its container's limit; and no body is longer than a sidecar's largest batch."""
    front = bounded_front(limit)
    assert 2 * front.max_body_bytes <= front.memory.most
    assert front.memory.most == (2 * MAX_BODY_BYTES if limit is None else most_kept(limit))
    assert front.max_body_bytes <= MAX_BODY_BYTES
