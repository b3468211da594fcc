"""A `penstock run` as its user starts it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.clocks.waiting import SECONDS, until
from tests.support.processes.sidecar_process import close_pipes


class Run:
    """A `penstock run` under test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.own = tempfile.TemporaryDirectory()
        """Where it makes its own folder, which it cannot remove where a test kills it."""
        self.said = ""
        self.url = ""
        self.process: asyncio.subprocess.Process
        self.session: aiohttp.ClientSession
        self._readers: list[asyncio.Task[None]] = []

    async def start(
        self, *arguments: str, port: int = 0, terminal: int | None = None, **variables: str
    ) -> Run:
        """Start it; `terminal` is the other end of its standard error, `variables` are of its environment."""
        self.session = aiohttp.ClientSession()
        own = {"PENSTOCK_LISTEN": "192.0.2.1:1", "TERM": "xterm", "TMPDIR": self.own.name}
        self.process = await asyncio.create_subprocess_exec(
            # With -P as the command `penstock`: no module of the folder is imported.
            sys.executable, "-P", "-m", "penstock", "run", *arguments, "--port", str(port),
            cwd=self.folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE if terminal is None else terminal,
            env=os.environ | own | variables,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # as if not under `nohup`
        )  # fmt: skip
        if self.process.stderr is not None:
            self._readers.append(asyncio.create_task(self._read(self.process.stderr)))
        return self

    async def ready(self) -> Run:
        """Wait until it serves."""
        assert self.process.stdout is not None
        async with asyncio.timeout(SECONDS):
            line = (await self.process.stdout.readline()).decode()
        match = re.match(r"ready (http://127\.0\.0\.1:\d+)  \(to try it: \1/docs\)\n", line)
        assert match, (line, self.said)
        self.url = match[1]
        return self

    async def ask(self, item: Any) -> Any:
        """The prediction for an item."""
        async with self.session.post(f"{self.url}/predict", json={"instances": [item]}) as answer:
            assert answer.status == 200, await answer.text()
            return (await answer.json())["predictions"][0]

    async def tells(self, text: str) -> None:
        """Wait until it has said something."""
        await until(lambda: text in self.said)

    async def ended(self) -> int:
        """Wait for its end; returns the exit code."""
        async with asyncio.timeout(SECONDS):
            code = await self.process.wait()
            await asyncio.gather(*self._readers)
        return code

    def children(self) -> set[int]:
        """Processes that it has started and that run."""
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return set(map(int, listed.split()))

    def ports(self) -> list[int]:
        """Ports of IPv4 on which its programs listen."""
        sockets: set[str] = set()
        for file in (file for child in self.children() for file in Path(f"/proc/{child}/fd").iterdir()):
            with suppress(FileNotFoundError):  # it was closed since the list was made
                sockets.add(str(file.readlink()))
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        listening = [line for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets]
        return [int(line[1].partition(":")[2], 16) for line in listening]

    async def stop(self) -> None:
        """End it, however it is."""
        await self.session.close()
        if self.process.returncode is None:
            self.process.kill()
        await self.ended()
        self.own.cleanup()
        await close_pipes(self.process)

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while part := await stream.read(4096):
            self.said += part.decode()
