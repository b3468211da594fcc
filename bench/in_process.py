"""`@penstock.batch` beside a bare future, its model alone and Ray: `python -m bench.in_process`.

Callers in a closed loop (`in_process_load.py`), batches of up to 32. What a call costs: 64 callers of a model
that returns at once, CPU time over that of callers who await a bare future. What is left of the model's
limit: 64 and 256 callers of one that sleeps 1 ms + 0.01 ms an item in a thread. Each measurement is a process
of its own, at real-time priority where that is allowed, ours as Python, in interleaved rounds; a ratio is
taken within its round. Ray Serve's `@serve.batch` runs in a replica (`--peers ''` leaves it out). Writes
`bench/results/in_process.json`. Exit code 1: a wrong answer, or a bound was missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench import venvs
from bench.figures import Figures
from bench.frame import MAX_BATCH
from bench.run import RESULTS, machine
from bench.timer import precise, urgent

HERE = Path(__file__).parent
CALLERS = (64, 256)
A_MS, B_MS = 1.0, 0.01
MOST_US = 10.0
"""CPU of a call over that of a bare future, in microseconds."""
LEAST = 0.9
"""Answers a second, of those of the model alone."""


def measured(library: str, python: Path, *, callers: int, seconds: float, free: bool) -> dict[str, Any]:
    """One measurement, in a process of its own.

    Args:
        library: as in `in_process_load.py`, or `ray`.
        python: runs it.
        callers: how many call at once.
        seconds: how long.
        free: the model returns at once.

    Raises:
        RuntimeError: it printed no figures.
    """
    a, b = (0.0, 0.0) if free else (A_MS, B_MS)
    options = json.dumps({"callers": callers, "seconds": seconds, "batch": MAX_BATCH, "a_ms": a, "b_ms": b})
    command = [str(python), str(HERE / "in_process_load.py"), library, options]
    if library == "ray":
        command[1:3] = [str(HERE / "peers" / "serve_ray_batch.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + 120)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            result: dict[str, Any] = json.loads(line)
            return result
    raise RuntimeError(
        f"{library}: expected figures, found exit code {done.returncode}: {done.stderr[-400:]}"
    )


def measure(figures: Figures, pythons: dict[str, Path], *, rounds: int, seconds: float) -> list[str]:
    """All rounds; returns what was wrong."""
    faults: list[str] = []

    def rate(library: str, quantity: str, *, callers: int, free: bool) -> float:
        case = "free" if free else str(callers)
        python = pythons.get(library, pythons["penstock"])
        result = measured(library, python, callers=callers, seconds=seconds, free=free)
        figures.add(f"in_process/{library}/{case}/rate", result["rate"], "answers/s")
        figures.add(f"in_process/{library}/{case}/cpu", result["cpu_us"], "us a call")
        if result["wrong"]:
            faults.append(f"{library}: {result['wrong']} wrong answers")
        return float(result[quantity])

    peers = [name for name in pythons if name != "penstock"]
    for number in range(rounds):
        bare = rate("future", "cpu_us", callers=CALLERS[0], free=True)
        for name in ("penstock", *peers):
            over = rate(name, "cpu_us", callers=CALLERS[0], free=True) - bare
            figures.add(f"in_process/{name}/free/over_a_future", over, "us a call")
        said = []
        alone = rate("model", "rate", callers=1, free=False)
        for callers in CALLERS:
            for name in ("penstock", *peers):
                ratio = rate(name, "rate", callers=callers, free=False) / alone
                figures.add(f"in_process/{name}/{callers}/of_the_model", ratio, "times")
                said.append(f"{name} {callers}: {ratio:.3f}")
        print(f"[bench] round {number + 1}, of the model: {', '.join(said)}", flush=True)
    return faults


def main() -> int:
    """Measure, write, print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.in_process", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one measurement")
    parser.add_argument("--peers", default="ray", help="'' for none")
    parser.add_argument("--out", type=Path, default=RESULTS / "in_process.json", help="where the JSON goes")
    options = parser.parse_args()
    pythons = interpreters(options.peers)
    # NB: on all cores: of one process in this class, a thread does not give way to another on its core.
    described = {**machine(), "real_time": urgent()}
    precise()
    figures = Figures()
    faults = measure(figures, pythons, rounds=options.rounds, seconds=options.seconds)
    document = figures.document()
    options.out.write_text(json.dumps({"machine": described, "figures": document}, indent=1) + "\n")
    return judge(document, faults)


def interpreters(peers: str) -> dict[str, Path]:
    """The Python of each library: ours, and those of peers that can be installed.

    Args:
        peers: their names, separated by commas.
    """
    pythons = {"penstock": Path(sys.executable)}
    for name in filter(None, peers.split(",")):
        try:
            pythons[name] = venvs.ensure(name)
        except venvs.NotInstalledError as error:
            print(f"[bench] without {name}: {error}", file=sys.stderr)
    return pythons


def judge(document: dict[str, Any], wrong: list[str]) -> int:
    """Print the figures that have bounds; returns the exit code."""
    faults = list(wrong)
    over = document["in_process/penstock/free/over_a_future"]["median"]
    print(f"[bench] a call costs {over:.1f} us more than a bare future (at most {MOST_US:g} wanted)")
    if over > MOST_US:
        faults.append(f"a call costs {over:.1f} us more than a bare future, at most {MOST_US:g} wanted")
    for callers in CALLERS:
        ratio = document[f"in_process/penstock/{callers}/of_the_model"]["median"]
        print(f"[bench] {callers} callers: {ratio:.3f} of the model alone (at least {LEAST} wanted)")
        if ratio < LEAST:
            faults.append(f"{callers} callers: {ratio:.3f} of the model alone, at least {LEAST} wanted")
    for fault in faults:
        print(f"[bench] {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
