"""`kubectl penstock` as a test runs it: in this process, on a terminal that is a text."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

from penstock_cli.__main__ import run
from penstock_cli.text import Screen
from tests.support.processes.tiny_apiserver import TinyApiserver


async def printed(
    server: TinyApiserver, tmp_path: Path, *arguments: str, width: int = 10_000, live: bool = False
) -> tuple[int, list[str]]:
    """Exit code and lines of a command, in the namespace `n`.

    Args:
        live: whether it is one.
    """
    config = json.loads(server.kubeconfig())
    config["contexts"][0]["context"]["namespace"] = "n"
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    out = io.StringIO()
    screen = Screen(out=out, width=width, live=live)
    code = await asyncio.to_thread(run, [*arguments, "--kubeconfig", str(path)], screen)
    return code, out.getvalue().splitlines()
