"""The operator as a real process on an apiserver on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.clocks.waiting import SECONDS
from tests.support.processes.sidecar_process import close_pipes
from tests.support.processes.tiny_apiserver import TinyApiserver


async def until(check: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
    """Wait for a condition, with a deadline."""
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, f"never came true: {what}"
        await asyncio.sleep(0.02)


class Process:
    """A running `penstock-operator`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.address = ""
        self.lines: list[dict[str, Any]] = []
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, server: TinyApiserver, folder: Path, pod: str = "op-1", *flags: str) -> Process:
        """Start one and wait until it listens; without flags it takes reports in plain text."""
        config = folder / f"kubeconfig-{pod}"
        config.write_text(server.kubeconfig())
        started = cls(
            await asyncio.create_subprocess_exec(
                sys.executable, "-m", "penstock_operator", "--kubeconfig", str(config),
                "--listen", "127.0.0.1:0", "--pod", pod, "--pod-ip", "10.9.9.9",
                *(flags or ("--report-to", "http://127.0.0.1:8015")),
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={**os.environ},
            )
        )  # fmt: skip
        assert started.process.stdout is not None
        first = (await asyncio.wait_for(started.process.stdout.readline(), SECONDS)).decode()
        match = re.match(r"ready data=(\S+) admin=(\S+)", first)
        assert match is not None, first
        started.address = f"http://{match[1]}"
        return started

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            try:
                self.lines.append(json.loads(line))
            except ValueError:
                self.lines.append({"message": "not JSON", "text": line.decode()})

    def said(self, message: str) -> int:
        return sum(line["message"] == message for line in self.lines)

    async def get(self, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(self.address + path) as answer:
            return answer.status, await answer.text()

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.process.returncode is None:
            self.process.send_signal(number)
        code = await asyncio.wait_for(self.process.wait(), SECONDS)
        await self._reader
        await close_pipes(self.process)
        return code
