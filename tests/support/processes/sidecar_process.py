"""A real sidecar process before a real model process, on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from yarl import URL

from tests.support.clocks.waiting import SECONDS
from tests.support.processes.ports import free_port


async def until(
    look: Callable[[], Awaitable[Any]],
    *,
    seconds: float = SECONDS,
    details: Callable[[], object] = lambda: "",
) -> Any:
    """Wait until `look` returns something true, and return it; `details` is said where it never does."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not (result := await look()):
        assert asyncio.get_running_loop().time() < deadline, f"did not come within {seconds} s {details()}"
        await asyncio.sleep(0.02)
    return result


def rss(pid: int) -> int:
    """Resident bytes of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


async def close_pipes(process: asyncio.subprocess.Process) -> None:
    """Close the pipes of a child that has ended: asyncio does that only in the next turns, if at all."""
    process._transport.close()  # type: ignore[attr-defined]
    await asyncio.sleep(0)


class Program:
    """A child process whose first line of output says that it is ready."""

    def __init__(self, *arguments: str, env: dict[str, str] | None = None) -> None:
        self._arguments = arguments
        self._env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")},
            **(env or {}),
        }
        self.process: asyncio.subprocess.Process
        self.log: list[str] = []

    async def start(self) -> str:
        """Start it; returns its first line."""
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            *self._arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._env,
        )
        self._reader = asyncio.create_task(self._read())
        assert self.process.stdout is not None
        line = (await asyncio.wait_for(self.process.stdout.readline(), SECONDS)).decode()
        assert line.startswith("ready "), (line, self.log)
        return line.removeprefix("ready ").strip()

    def rss(self) -> int:
        """Resident bytes of the process."""
        return rss(self.process.pid)

    async def ended(self) -> int:
        """Wait for its end; returns the exit code."""
        return await asyncio.wait_for(self.process.wait(), SECONDS)

    async def stop(self) -> None:
        """End it, however it is."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self._reader
        await close_pipes(self.process)

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.log.append(line.decode().rstrip())


class Ended(NamedTuple):
    """The traces of a process that has ended."""

    code: int
    out: str
    err: str


async def run(*arguments: str, env: dict[str, str] | None = None) -> Ended:
    """Run `python -m` with these arguments to its end, which is to come by itself."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(env or {})},
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await close_pipes(process)
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), err.decode())


class Reply:
    """An answer."""

    def __init__(self, status: int, headers: Any, body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        """The reason word of a problem document, checked against the rest of the answer."""
        assert self.headers["content-type"] == "application/problem+json"
        document = self.document
        assert document["status"] == self.status
        assert document["request_id"] == self.headers["x-request-id"]
        assert document["error"] == document["detail"]  # where clients of Triton and KServe look
        assert self.headers["x-penstock-reason"] == document["reason"]
        if self.status in (429, 503):
            assert int(self.headers["retry-after"]) >= 1
        return str(document["reason"])


HELD = "/p?hold=gate"
"""The model's answer after `Pair.release`."""


class Pair:
    """A model and its sidecar."""

    def __init__(
        self,
        folder: Path,
        *flags: str,
        model_flags: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
    ) -> None:
        self.settings_path = folder / "settings.json"
        self._flags = flags
        self.model_flags = model_flags
        self._env = env
        self.data = self.admin = self.model_url = ""
        self.user_config: Any = None
        self.session: aiohttp.ClientSession

    async def start(self, *, ready: bool = True, **batching: Any) -> Pair:
        """Start both and wait until the sidecar is ready."""
        await self.start_model()
        self.settle(**batching)
        self.sidecar = Program(
            self.sidecar_program,
            "--listen=127.0.0.1:0",
            "--admin=127.0.0.1:0",
            f"--model={self.model_url}",
            f"--settings={self.settings_path}",
            "--propagation-delay=0s",
            *self._flags,
            env=self._env,
        )
        line = await self.sidecar.start()
        fields = dict(part.split("=", 1) for part in line.split())
        self.data, self.admin = f"http://{fields['data']}", f"http://{fields['admin']}"
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        if ready:
            await self.until_ready()
        return self

    async def start_model(self) -> None:
        """Start the model, again at the same address if it ran before."""
        # NB: kept, or another process may take it between one model and the next.
        port = self.model_url.rpartition(":")[2] or free_port()
        self.model = Program(self.model_program, f"--port={port}", *self.model_flags)
        self.model_url = f"http://{await self.model.start()}"

    async def stop(self) -> None:
        """End both."""
        await self.session.close()
        await self.sidecar.stop()
        await self.model.stop()

    model_program = "tests.support.models.model_server"
    """The module that runs as the model; set before `start`."""
    sidecar_program = "penstock_sidecar"
    max_ongoing_requests: int | None = None

    def settle(self, *, version: int | None = None, **batching: Any) -> None:
        """Write the settings file as an editor does: whole, by rename."""
        fresh = self.settings_path.with_suffix(".new")
        document: dict[str, Any] = {"v": 1, "backend": "digits", "batching": batching}
        if version is not None:
            document["version"] = version
        if self.max_ongoing_requests is not None:
            document["maxOngoingRequests"] = self.max_ongoing_requests
        if self.user_config is not None:
            document["userConfig"] = self.user_config
        fresh.write_text(json.dumps(document))
        fresh.replace(self.settings_path)

    async def ask(
        self, path: str = "/v1/models/m:predict", *, method: str = "POST", base: str = "", **more: Any
    ) -> Reply:
        """Send one request and read its answer."""
        # NB: encoded, or the client would change what it is given to send.
        url = URL((base or self.data) + path, encoded=True)
        async with self.session.request(method, url, **more) as answer:
            return Reply(answer.status, answer.headers, await answer.read())

    async def predict(self, *items: Any, path: str = "/v1/models/m:predict", **more: Any) -> Reply:
        """Ask for predictions."""
        return await self.ask(path, json={"instances": items}, **more)

    async def admin_get(self, path: str, **more: Any) -> Reply:
        """Ask the admin port."""
        return await self.ask(path, method="GET", base=self.admin, **more)

    async def release(self, gate: str = "gate") -> None:
        """Let the model answer what `?hold=GATE` holds, and at once what comes to that gate later."""
        assert (await self.ask(f"/-/release?gate={gate}", base=self.model_url)).status == 200

    async def until_ready(self, *, ready: bool = True) -> None:
        """Wait for readiness, or for its loss."""
        said = b""

        async def look() -> bool:
            nonlocal said
            reply = await self.admin_get("/readyz")
            said = reply.body
            return (reply.status == 200) == ready

        await until(look, details=lambda: (said, self.sidecar.log[-5:]))

    async def until_state(self, **expected: Any) -> None:
        """Wait until `/queue` shows these values. NB: the model may not have what is ongoing yet."""
        await self._until_queue(lambda queue: all(queue[name] == expected[name] for name in expected))

    async def until_load(self, items: int) -> None:
        """Wait until so many items are queued or ongoing."""
        await self._until_queue(lambda queue: bool(queue["queued"] + queue["ongoing"] == items))

    async def _until_queue(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        shown: dict[str, Any] = {}

        async def look() -> bool:
            nonlocal shown
            shown = (await self.admin_get("/queue")).document
            return wanted(shown)

        await until(look, details=lambda: (shown, self.sidecar.log[-5:]))

    async def until_run(self, count: int) -> None:
        """Wait until the model has read so many batches."""
        ran = 0

        async def look() -> bool:
            nonlocal ran
            ran = len(await self.runs())
            return ran == count

        await until(look, details=lambda: f"the model has read {ran}")

    async def runs(self) -> list[dict[str, Any]]:
        """The runs of the model."""
        runs: list[dict[str, Any]] = (await self.ask("/-/runs", method="GET", base=self.model_url)).document[
            "runs"
        ]
        return runs

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Signal the sidecar."""
        self.sidecar.process.send_signal(number)


def got(reply: Reply) -> list[Any]:
    """The items that an answer is about."""
    assert reply.status == 200, (reply.status, reply.body)
    return [prediction["got"] for prediction in reply.document["predictions"]]
