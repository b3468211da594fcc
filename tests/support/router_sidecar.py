"""Sidecar processes for tests of the router."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.support.waiting import SECONDS


async def start_sidecar(
    model: str, settings: Path, *flags: str, program: str = "penstock_sidecar"
) -> tuple[asyncio.subprocess.Process, str]:
    """Start a sidecar, and wait until it listens.

    Args:
        model: host and port of the model.
        settings: its settings file.
        flags: more flags.
        program: the module that runs.

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
    return process, dict(part.split("=", 1) for part in line.split()[1:])["data"]


async def end_sidecar(process: asyncio.subprocess.Process) -> None:
    """End it, however it is."""
    if process.returncode is None:
        process.kill()
    await process.wait()
    process._transport.close()  # type: ignore[attr-defined]
    await asyncio.sleep(0)
