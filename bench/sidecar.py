"""`make bench`: what the sidecar makes of a model that takes 1 ms + 0.01 ms an item, one batch at a time.

Side by side on the same core and the same kind of model, interleaved, medians of the rounds: the model alone
(its clients send single items), the sidecar without batching (maxBatchSize 1), the sidecar with batches of
32.
Figures go to `bench/results/sidecar.json`; read the ratios, the machine is shared. A round with an error or
an answer that belongs to another request ends the run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CONNECTIONS = (1, 16, 64, 256)
A_MS, B_MS = 1.0, 0.01
RESULTS = Path(__file__).parent / "results" / "sidecar.json"
BASE_PORT = 18_100


@contextlib.contextmanager
def process(*command: str, core: int) -> Iterator[subprocess.Popen[str]]:
    """A process of ours on one core, ready (it has printed its first line); ended at the end."""
    found = subprocess.Popen(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    try:
        assert found.stdout is not None
        assert "ready" in found.stdout.readline(), f"{command[0]} did not start"
        yield found
    finally:
        found.terminate()
        found.wait(timeout=20)


@contextlib.contextmanager
def served(batch: int | None, port: int, core: int) -> Iterator[tuple[int, int]]:
    """A model, with a sidecar before it unless `batch` is None; yields the port and the sidecar's pid."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(process("bench.model", str(port), str(A_MS), str(B_MS), core=core))
        if batch is None:
            yield port, 0
            return
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        settings = Path(folder) / "settings.json"
        settings.write_text(json.dumps({"batching": {"maxBatchSize": batch, "maxQueuedItems": 4096}}))
        sidecar = stack.enter_context(
            process(
                *(
                    "penstock_sidecar",
                    "--listen",
                    f"127.0.0.1:{port + 1}",
                    "--admin",
                    f"127.0.0.1:{port + 2}",
                ),
                *("--model", f"http://127.0.0.1:{port}", "--settings", str(settings)),
                core=core,
            )
        )
        yield port + 1, sidecar.pid


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(port: int, pid: int, connections: int, seconds: float, core: int) -> dict[str, float]:
    """One run of the load."""
    before = cpu_seconds(pid) if pid else 0.0
    done = subprocess.run(
        [sys.executable, "-m", "bench.closed_loop", str(port), str(connections), str(seconds)],
        capture_output=True,
        text=True,
        check=True,
        timeout=seconds * 3 + 30,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    figures: dict[str, float] = json.loads(done.stdout)
    if figures["errors"] or figures["mismatched"] or not figures["requests"]:
        raise SystemExit(f"bench: the run is void: {figures}")
    figures["cpu_us"] = (cpu_seconds(pid) - before) / (figures["requests"] * 1.1) * 1e6 if pid else 0.0
    return figures


def main() -> None:
    """Measure, print the table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    server_core, load_core = cores[0], cores[-1]
    cases: dict[str, int | None] = {"model alone": None, "batches of 1": 1, "batches of 32": 32}
    figures: dict[str, dict[int, list[dict[str, float]]]] = {
        case: {count: [] for count in CONNECTIONS} for case in cases
    }
    for round_number in range(arguments.rounds):
        for index, (case, batch) in enumerate(cases.items()):
            with served(batch, BASE_PORT + 10 * index, server_core) as (port, pid):
                for connections in CONNECTIONS:
                    one = measure(port, pid, connections, arguments.seconds, load_core)
                    figures[case][connections].append(one)
                    print(
                        f"round {round_number + 1}  {case:<14} {connections:>4} connections"
                        f" {one['rate']:>9.0f} req/s",
                        flush=True,
                    )
    table: dict[str, Any] = {}
    print(
        f"\nmodel: {A_MS} ms + {B_MS} ms an item; "
        f"medians of {arguments.rounds} rounds of {arguments.seconds} s"
    )
    print(
        f"{'':<15}{'connections':>12}{'req/s':>9}{'p50 ms':>9}{'p99 ms':>9}"
        f"{'CPU µs/req':>12}{'x model alone':>15}"
    )
    for case, by_count in figures.items():
        for connections, runs in by_count.items():
            medians = {
                key: statistics.median(run[key] for run in runs)
                for key in ("rate", "p50_ms", "p99_ms", "cpu_us")
            }
            alone = statistics.median(run["rate"] for run in figures["model alone"][connections])
            medians["ratio"] = medians["rate"] / alone
            medians["spread"] = (
                max(run["rate"] for run in runs) - min(run["rate"] for run in runs)
            ) / medians["rate"]
            table.setdefault(case, {})[str(connections)] = {
                key: round(value, 3) for key, value in medians.items()
            }
            print(
                f"{case:<15}{connections:>12}{medians['rate']:>9.0f}{medians['p50_ms']:>9.2f}{medians['p99_ms']:>9.2f}"
                f"{medians['cpu_us']:>12.0f}{medians['ratio']:>15.2f}"
            )
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(
        json.dumps({"a_ms": A_MS, "b_ms": B_MS, "rounds": arguments.rounds, "figures": table}, indent=1)
        + "\n"
    )


if __name__ == "__main__":
    main()
