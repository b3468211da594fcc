"""A real router process on loopback, and what tests ask of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from tests.support.clocks.waiting import SECONDS
from tests.support.processes.sidecar_process import close_pipes

T = TypeVar("T")


async def until(look: Callable[[], T], *, what: str = "the condition", seconds: float = SECONDS) -> T:
    """Wait until `look` returns something true, and return it."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not (result := look()):
        assert asyncio.get_running_loop().time() < deadline, f"{what} did not come within {seconds} s"
        await asyncio.sleep(0.01)
    return result


def backend(name: str, *targets: str, weight: int = 1) -> dict[str, Any]:
    """One backend of an endpoint."""
    return {"name": name, "weight": weight, "targets": list(targets)}


def endpoint(name: str, *backends: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """One endpoint of router settings; of a backend without pods where none is named."""
    return {"name": name, "backends": list(backends) or [backend("none")], **fields}


class RouterProcess:
    """A router started from its command line."""

    program = "penstock_router"
    """The module that runs; set before `launch`."""

    def __init__(self, folder: Path, *flags: str, env: dict[str, str] | None = None) -> None:
        self.path = folder / "router.json"
        self.data = ""
        self.admin = ""
        self.log: list[str] = []
        self._flags = flags
        self._env = {
            **{key: value for key, value in os.environ.items() if not key.startswith("KUBERNETES_")},
            **(env or {}),
        }
        self._process: asyncio.subprocess.Process | None = None
        self._logs: asyncio.Task[None] | None = None
        self._session: aiohttp.ClientSession | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        """A client without a limit of connections."""
        assert self._session is not None
        return self._session

    def rss(self) -> int:
        """Resident bytes of the process."""
        assert self._process is not None
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * 4096

    def settle(self, *endpoints: dict[str, Any], version: int | None = None) -> None:
        """Write the settings file as an editor does: whole, by rename."""
        document: dict[str, Any] = {"v": 1, "endpoints": list(endpoints)}
        if version is not None:
            document["version"] = version
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps(document))
        fresh.replace(self.path)

    async def launch(self, *endpoints: dict[str, Any], version: int | None = None) -> None:
        """Start the process, but do not wait for it to be ready."""
        if endpoints:
            self.settle(*endpoints, version=version)
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            self.program,
            "--listen=127.0.0.1:0",
            "--admin=127.0.0.1:0",
            f"--settings={self.path}",
            "--propagation-delay=0s",
            *self._flags,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._env,
        )
        self._logs = asyncio.create_task(self._read_log())
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def start(self, *endpoints: dict[str, Any], version: int | None = None) -> RouterProcess:
        """Start the process and wait until it says that it is ready."""
        await self.launch(*endpoints, version=version)
        await self.ready()
        return self

    async def ready(self) -> None:
        """Wait for the ready line."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = (await asyncio.wait_for(self._process.stdout.readline(), SECONDS)).decode()
        assert line.startswith("ready "), (line, self.log)
        fields = dict(part.split("=", 1) for part in line.split()[1:])
        self.data, self.admin = f"http://{fields['data']}", f"http://{fields['admin']}"

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    async def ended(self) -> int:
        """Wait for its end; returns the exit code."""
        assert self._process is not None
        return await asyncio.wait_for(self._process.wait(), SECONDS)

    async def stop(self) -> None:
        """End it, however it is."""
        if self._session is not None:
            await self._session.close()
        if self._process is None:
            return
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        if self._logs is not None:
            await self._logs
        await close_pipes(self._process)

    async def ask(self, path: str = "/e/x", *, method: str = "POST", base: str = "", **more: Any) -> Reply:
        """Send one request and read its answer."""
        async with self.session.request(method, (base or self.data) + path, **more) as answer:
            return Reply(answer.status, answer.headers, await answer.read())

    async def routes(self) -> list[dict[str, Any]]:
        """The list of `/-/routes`."""
        listed: list[dict[str, Any]] = json.loads((await self.ask("/-/routes", method="GET")).body)
        return listed

    async def until_routes(self, look: Callable[[list[dict[str, Any]]], bool]) -> None:
        """Wait until the list of routes is as wanted."""
        deadline = asyncio.get_running_loop().time() + SECONDS
        while not look(routes := await self.routes()):
            assert asyncio.get_running_loop().time() < deadline, (routes, self.log[-5:])
            await asyncio.sleep(0.02)

    async def metrics(self) -> str:
        """The exposition."""
        return (await self.ask("/metrics", method="GET", base=self.admin)).body.decode()

    async def _read_log(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self.log.append(line.decode().rstrip())


class Reply:
    """An answer of the router."""

    def __init__(self, status: int, headers: Any, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def document(self) -> dict[str, Any]:
        """The body as JSON."""
        document: dict[str, Any] = json.loads(self.body)
        return document
