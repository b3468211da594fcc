"""Profiles the sidecar: `python -m bench.profile [--connections 64] [--seconds 5] [--free]`.

Runs the sidecar under cProfile on one core, the load on the other, and prints the 30 functions with the
most time of their own. cProfile slows Python down and leaves C alone: read the order, not the microseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import pstats
import signal
import sys
import tempfile
from pathlib import Path

from bench import loads, processes
from bench.frame import MAX_BATCH, QUICK_A, QUICK_B, WIDE


def main() -> None:
    """Run, load, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.profile", description=__doc__)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--free", action="store_true", help="a model that costs nothing, on the load's core")
    parser.add_argument("--top", type=int, default=30)
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    times = (0.0, 0.0) if arguments.free else (QUICK_A, QUICK_B)
    with (
        tempfile.TemporaryDirectory(prefix="penstock-profile-") as folder,
        processes.model(*times, core=cores[-1] if arguments.free else cores[0]) as model,
    ):
        settings, out = Path(folder) / "settings.json", Path(folder) / "profile"
        settings.write_text(json.dumps({"v": 1, "batching": {"maxBatchSize": MAX_BATCH, **WIDE}}))
        port = processes.free_port()
        command = [
            *(sys.executable, "-m", "cProfile", "-o", str(out), "-m", "penstock_sidecar"),
            *(f"--listen=127.0.0.1:{port}", f"--admin=127.0.0.1:{processes.free_port()}"),
            *(f"--model=http://127.0.0.1:{model.port}", f"--settings={settings}", "--propagation-delay=0s"),
        ]
        with processes.running(command, core=cores[0]) as (process, log):
            server = processes.Server(port=port, pid=process.pid)
            processes.await_answer(server, process, log, seconds=30)
            result = loads.wrk(server, arguments.connections, arguments.seconds, core=cores[-1])
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=30)
        print(f"{result['per_s']:.0f} requests/s under the profiler, {result['good']:.0f} requests")
        pstats.Stats(str(out)).sort_stats("tottime").print_stats(arguments.top)


if __name__ == "__main__":
    main()
