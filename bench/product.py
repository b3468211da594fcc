"""Chooses the build of our packages to measure: compiled, as in the images, if a compiler is there."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "compile_modules.py"
PLAIN = "PENSTOCK_BENCH_PLAIN"
"""Set in the environment, the Python files are measured as they are."""


def choose() -> str:
    """Put the compiled packages first for all that is started from now on; returns what will run."""
    if os.environ.get(PLAIN):
        return "as Python"
    print("[bench] compiling the modules that a request passes through, where they have changed", flush=True)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--cached"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        why = " ".join(done.stderr.split())[-200:]
        print(f"[bench] measuring Python: {why}", file=sys.stderr)
        return f"as Python ({why})"
    folders = [done.stdout.strip(), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    return f"compiled by mypyc {importlib.metadata.version('mypy')}"
