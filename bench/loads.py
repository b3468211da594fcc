"""Runs the load generators on their own core and reads what they print."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from typing import Any

from bench.processes import ROOT, Server


class VoidError(Exception):
    """A run that says nothing, or a server that answered wrong; says why."""


def wrk(
    server: Server,
    connections: int,
    seconds: float,
    *,
    core: int,
    items: int = 1,
    lenient: bool = False,
    apart: bool = False,
    think_ms: float = 0,
) -> dict[str, float]:
    """Closed loop: each connection sends its next request when the last was answered, or a while after.

    Args:
        server: what to load.
        connections: how many.
        seconds: how long.
        core: the load's.
        items: in each request.
        lenient: errors are results (a peer under more load than it bears), wrong answers never.
        apart: each request has a head of its own, by its `x-request-id`.
        think_ms: how long a connection waits before each request, in the mean; uniform from 0 to twice that.

    Raises:
        VoidError: An error, or an answer that holds no item that waits for one.
    """
    seconds = max(1, round(seconds))  # wrk's are whole
    done = subprocess.run(
        [
            *(
                "taskset",
                "-c",
                str(core),
                "wrk",
                "-t1",
                f"-c{connections}",
                f"-d{seconds}s",
                "--timeout",
                "10s",
            ),
            *("-s", str(ROOT / "bench" / "wrk.lua"), f"http://127.0.0.1:{server.port}/"),
            *("--", server.path, server.form, str(items), "apart" if apart else "alike", str(think_ms)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds + 60,
        cwd=ROOT,
    )
    line = next((line for line in done.stdout.splitlines() if line.startswith("BENCH ")), None)
    if line is None:
        raise VoidError(f"wrk ended with {done.returncode}: {(done.stdout + done.stderr)[-300:]}")
    figures: dict[str, float] = json.loads(line.removeprefix("BENCH "))
    errors = {
        name: figures[name]
        for name in ("not_200", "last_status", "connect", "read", "write", "timeout")
        if figures[name]
    }
    if figures["mismatched"]:
        raise VoidError(f"{figures['mismatched']:.0f} answers held an item that was not waiting for one")
    if not figures["good"] or (errors and not lenient):
        raise VoidError(f"errors in a closed loop: {errors or 'no answer at all'}")
    figures["per_s"] = figures["good"] * items / figures["seconds"]
    return figures


def warm(server: Server, connections: int, *, core: int, items: int) -> None:
    """A second of the same load, without figures: a slow server may not answer any request in it."""
    with contextlib.suppress(VoidError):
        wrk(server, connections, 1, core=core, items=items, lenient=True)


def open_loop(
    server: Server,
    rate: float,
    seconds: float,
    *,
    core: int,
    objective_ms: float,
    seed: int,
    latencies: bool = False,
    connections: int = 256,
) -> dict[str, Any]:
    """Open loop (see `bench.open_loop`), Poisson.

    Raises:
        VoidError: The run voided itself, or answers were another's or came twice.
    """
    done = subprocess.run(
        [
            *("taskset", "-c", str(core), sys.executable, "-m", "bench.open_loop", server.url),
            *("--rate", str(rate), "--seconds", str(seconds), "--objective-ms", str(objective_ms)),
            *("--seed", str(seed), "--form", server.form, "--connections", str(connections)),
            *(("--latencies",) if latencies else ()),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds + 60,
        cwd=ROOT,
        env=dict(os.environ),
    )
    try:
        result: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    except ValueError:
        printed = (done.stderr + done.stdout)[-300:]
        raise VoidError(f"the generator ended with {done.returncode}: {printed}") from None
    if done.returncode:
        raise VoidError("; ".join(result["faults"] + result["void"]))
    return result
