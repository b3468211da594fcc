"""Sidecar processes for tests of the router."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import aiohttp

from tests.support.clocks.waiting import SECONDS
from tests.support.processes.sidecar_process import close_pipes

_admins: dict[str, str] = {}
"""The admin port of each sidecar that was started, by its data port."""


async def start_sidecar(
    model: str, settings: Path, *flags: str, program: str = "penstock_sidecar"
) -> tuple[asyncio.subprocess.Process, str]:
    """Start a sidecar, and wait until it listens.

    Returns:
        The process, and host and port of its data port.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        program,
        "--listen=127.0.0.1:0",
        "--admin=127.0.0.1:0",
        f"--model=http://{model}",
        f"--settings={settings}",
        "--log-level=error",
        *flags,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    line = (await asyncio.wait_for(process.stdout.readline(), SECONDS)).decode()
    fields = dict(part.split("=", 1) for part in line.split()[1:])
    _admins[fields["data"]] = fields["admin"]
    return process, fields["data"]


async def until_queued(address: str, count: int) -> None:
    """Wait until so many requests wait in a sidecar, by what it says of itself."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(SECONDS):
        while True:
            async with session.get(f"http://{_admins[address]}/metrics") as answer:
                if f"penstock_sidecar_queued_items {count}.0\n" in await answer.text():
                    return
            await asyncio.sleep(0.01)


async def arrived_items(address: str) -> int:
    """How many items have arrived at a sidecar, by its metrics."""
    metrics = f"http://{_admins[address]}/metrics"
    async with aiohttp.ClientSession() as session, session.get(metrics) as answer:
        lines = (await answer.text()).splitlines()
    prefix = "penstock_sidecar_arrived_items_total "
    return int(float(next(line for line in lines if line.startswith(prefix)).removeprefix(prefix)))


async def end_sidecar(process: asyncio.subprocess.Process) -> None:
    """End it, however it is."""
    if process.returncode is None:
        process.kill()
    await process.wait()
    await close_pipes(process)
