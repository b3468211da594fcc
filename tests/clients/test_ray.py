"""A program of Ray Serve runs there, and here with few edits, and both answer the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.venvs import ensure

PROGRAM = Path(__file__).parent / "ray" / "program.py"
EDITS = {
    "import ray\n": "import penstock\n",
    "from ray import serve\n": "",
    "from ray.serve.handle import DeploymentHandle\n": "",
    '@serve.deployment(ray_actor_options={"num_cpus": 0}, max_ongoing_requests=64)': "@penstock.backend",
    '@serve.deployment(ray_actor_options={"num_cpus": 0})': "@penstock.backend",
    "@serve.batch": "@penstock.batch",
    "batch_wait_timeout_s": "batch_wait_timeout",
    "DeploymentHandle": "penstock.Handle",
    ".remote(": "(",
    '.options(name="ten").bind(10)': ".bind(10)",
    "ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100_000_000)\n": "",
    "serve.run(": "penstock.run(",
}
"""What has to change, by docs/migrating.md; nothing else does."""


def test_a_program_of_ray_serve_answers_the_same_here(tmp_path: Path) -> None:
    """But for a batch with a bad item, and the words of an error, which both name the two numbers."""
    text = PROGRAM.read_text()
    for there, here in EDITS.items():
        assert there in text
        text = text.replace(there, here)
    ported = tmp_path / "program.py"
    ported.write_text(text)
    theirs, ours = answers(ensure("ray"), PROGRAM), answers(Path(sys.executable), ported)
    assert theirs.pop("one is bad") == [["bad"] * 4]
    assert ours.pop("one is bad") == [[2, "bad", 6, 8]]
    (there,), (here,) = theirs.pop("wrong number"), ours.pop("wrong number")
    assert "input list has length 1 but the returned list has length 2" in there
    assert "expected 1 answers, found 2" in here
    assert ours == theirs
    assert len(ours) == 7


def answers(python: Path, program: Path) -> dict[str, list[Any]]:
    """What a program shows, by name."""
    done = subprocess.run(
        [python, program],
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
        stdout=subprocess.PIPE,
        timeout=300,
        check=True,
        text=True,
    )
    shown = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["')]
    return {name: values for name, *values in shown}
