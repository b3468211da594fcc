"""`make bench`: the sidecar, its model alone and its peers on the same cores, in interleaved rounds.

Writes `bench/results/sidecar.json` (every figure: unit, n, median, spread, samples),
`bench/results/README.md` and the pictures of `docs/pictures/`. A run with an error or a wrong answer is
void and reported as such. `--quick` is one round without the longest parts, with results in files of its own.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench import foreign, instructions, product, report, table, venvs
from bench.figures import Figures
from bench.frame import (
    LONG,
    MAX_BATCH,
    MIDDLE_A,
    MIDDLE_B,
    QUICK_A,
    QUICK_B,
    SLOW,
    Bench,
)
from bench.parts import PARTS
from bench.peers.catalogue import PEERS
from bench.processes import DidNotStartError

RESULTS = Path(__file__).parent / "results"
QUICK_PARTS = [name for name in PARTS if name not in ("peer_goodput", "long_goodput", "size")]


def machine() -> dict[str, Any]:
    """The machine of the run, without names of hosts."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory / 1e9),
        "system": f"Linux {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "load_average_before": os.getloadavg()[0],
    }


def ensure_wrk() -> None:
    """Install wrk when it is missing, as the tests' cluster installs what it needs."""
    from devcluster.machine import ensure_packages

    ensure_packages({"wrk": "wrk", "taskset": "util-linux"})


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one measurement")
    parser.add_argument(
        "--quick", action="store_true", help="one round; results go to bench/results/quick.json"
    )
    parser.add_argument("--only", action="append", choices=sorted(PARTS), help="this part; may be repeated")
    parser.add_argument("--peers", default=",".join(PEERS), help="which, by comma; empty = none")
    parser.add_argument(
        "--sidecar",
        default="",
        help="another sidecar to measure beside ours: its command line, with {listen_port}, {model_port}, "
        "{admin_port} and {max_batch} in it; with --profile, the program alone",
    )
    parser.add_argument(
        "--profile",
        default="",
        help="how that sidecar is started: a name in bench/sidecars/ (kserve-agent, queue-proxy: built when "
        "missing, without --sidecar) or a .toml file",
    )
    parser.add_argument("--sidecar-path", default="/v1/models/bench:predict", help="what is posted to there")
    parser.add_argument(
        "--instructions",
        action="store_true",
        help="count the sidecar's instructions a request with holding a slot and without, instead",
    )
    parser.add_argument("--out", type=Path, help="where the JSON goes; default: bench/results/sidecar.json")
    return parser.parse_args()


def _other(arguments: argparse.Namespace) -> foreign.Profile | None:
    """The other sidecar that was asked for."""
    if arguments.profile:
        profile = foreign.read(arguments.profile)
        return profile.at(Path(arguments.sidecar)) if arguments.sidecar else profile
    return foreign.of_command(arguments.sidecar, path=arguments.sidecar_path) if arguments.sidecar else None


def main() -> int:
    """Measure, write, print; returns the exit code: 1 where something was void."""
    arguments = parse()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print("bench: expected two cores (one for the load), found one", file=sys.stderr)
        return 2
    try:
        other = _other(arguments)
    except foreign.ProfileError as why:
        print(f"bench: {why}", file=sys.stderr)
        return 2
    described = machine()
    described["build"] = product.choose()
    figures = Figures()
    bench = Bench(
        figures=figures,
        server_core=cores[0],
        load_core=cores[-1],
        seconds=1.0 if arguments.quick else arguments.seconds,
        peers=[name for name in arguments.peers.split(",") if name],
        other=other,
    )
    if arguments.instructions:
        return instructions.main_of_sidecar(bench)
    ensure_wrk()
    for name in bench.peers:
        try:
            PEERS[name].ensure()
        except venvs.NotInstalledError as why:
            figures.failures[name] = f"not installed: {why}"
            bench.say(f"without {PEERS[name].label}: {why}")
    whole = not (arguments.quick or arguments.only)
    out = arguments.out or RESULTS / ("sidecar.json" if whole else "quick.json")
    text = ""
    for number in range(1 if arguments.quick else arguments.rounds):
        for name in arguments.only or (QUICK_PARTS if arguments.quick else list(PARTS)):
            bench.say(f"round {number + 1}: {name}")
            try:
                PARTS[name](bench, number)
            except DidNotStartError as why:
                figures.void(name, f"one of our servers did not start: {why}")
                bench.say(f"VOID {name}: {why}")
        # NB: after each round, so that a run that is ended early leaves what it found.
        text = publish(results(bench, described, rounds=number + 1), out)
    print("\n" + text)
    return 1 if figures.voids else 0


def results(bench: Bench, described: dict[str, Any], *, rounds: int) -> dict[str, Any]:
    """The results document.

    Args:
        bench: with the figures.
        described: the machine.
        rounds: how many are in the figures.
    """
    return {
        "what": __doc__.splitlines()[0] if __doc__ else "",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit(),
        "machine": described,
        "settings": {
            "rounds": rounds,
            "seconds": bench.seconds,
            "max_batch": MAX_BATCH,
            "quick_model_ms": [QUICK_A, QUICK_B],
            "middle_model_ms": [MIDDLE_A, MIDDLE_B],
            "slow_model_ms": [SLOW.a, SLOW.b],
            "capacity_per_s": SLOW.capacity,
            "objective_ms": SLOW.objective_ms,
            "long_model_ms": [LONG.a, LONG.b],
            "cores": "servers and model on one, load on the other; part free: its model on the load's",
        },
        "versions": {peer.name: peer.version for peer in PEERS.values()}
        | ({"other": f"{bench.other.label} {bench.other.version}".rstrip()} if bench.other else {}),
        "figures": bench.figures.document(),
        "voids": [
            {word: _without_paths(text) for word, text in void.items()} for void in bench.figures.voids
        ],
        "failures": {name: _without_paths(why) for name, why in bench.figures.failures.items()},
    }


def publish(document: dict[str, Any], out: Path) -> str:
    """Write the JSON and, if it is the repository's own, the page, the pictures and docs/bench.md."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    text = report.page(document)
    if out == RESULTS / "sidecar.json":
        (RESULTS / "README.md").write_text(text)
        plots(out)
        table.write(document)
    return text


def plots(results: Path) -> None:
    """Draw the pictures in the plots' own environment."""
    try:
        python = venvs.ensure("plots")
    except venvs.NotInstalledError as why:
        print(f"[bench] no pictures: {why}", file=sys.stderr)
        return
    subprocess.run(
        [str(python), "-m", "bench.plots", str(results)], check=True, cwd=Path(__file__).parent.parent
    )


def _without_paths(text: str) -> str:
    """A message without this machine's absolute paths: of each, its last part."""
    return re.sub(r"(?<![\w.])/(?:[\w.+-]+/)+", "", text)


def commit() -> str:
    """The checkout's commit, short; "unknown" without git."""
    git = shutil.which("git")
    if not git:
        return "unknown"
    done = subprocess.run(
        [git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=RESULTS.parent
    )
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
