"""`python -m bench.zero`: 100 cycles from no pod to some and back, with bursts of 1, 50 and 500 requests.

It starts a cluster of its own, with this checkout's images, and removes it. Nothing may be lost up to
`maxPending`, which is the largest burst. It measures how long it takes from the first request that is held
until `/scale` is written, and from the first ready pod until it has a request. The figures go into
bench/results/zero.json. With `--keda`, KEDA writes `/scale`, by the operator's recommendation, and the
figures go into bench/results/zero-keda.json, with ours of zero.json held against a quarter of KEDA's. With
`--objective`, the backends have no `targetLoad`, and the figures go into bench/results/zero-objective.json.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.run import RESULTS, commit, machine
from bench.zero import resources
from bench.zero.cycles import Asked, say
from bench.zero.resources import SYSTEM
from bench.zero.table import beside_keda, figures, page, verdicts, wrong
from devcluster import addons, images
from devcluster.cluster import Cluster
from devcluster.network import API_PORT, FIRST
from devcluster.paths import REPOSITORY

FILE, KEDA_FILE = RESULTS / "zero.json", RESULTS / "zero-keda.json"
OBJECTIVE_FILE = RESULTS / "zero-objective.json"
BURSTS = (1, 50, 500)


@contextlib.contextmanager
def installed(name: str, *, keep: bool, with_keda: bool) -> Iterator[Cluster]:
    """A cluster with Penstock, and with an empty namespace for the bench.

    Args:
        name: of the cluster.
        keep: leave it up.
        with_keda: install KEDA, too.
    """
    names = images.build_targets()
    cluster = Cluster(name)
    cluster.up()
    try:
        cluster.load(*names)
        cluster.helm(
            *("upgrade", "--install", "penstock", str(REPOSITORY / "helm/penstock"), "-n", SYSTEM),
            *("--create-namespace", "-f", str(REPOSITORY / "devcluster/values.yaml")),
            *("--wait", "--timeout", "240s"),
        )
        if with_keda:
            addons.install(cluster, addons.KEDA)
        namespace = resources.NAMESPACE
        cluster.kubectl("delete", "namespace", namespace, "--ignore-not-found", timeout=300)
        cluster.kubectl("create", "namespace", namespace)
        yield cluster
    finally:
        if not keep:
            cluster.down()


def measure(cluster: Cluster, asked: Asked) -> list[dict[str, Any]]:
    """Make the cycles, inside the cluster's network.

    Args:
        cluster: with all that is needed.
        asked: what to do.

    Raises:
        subprocess.CalledProcessError: it failed and has said why.
    """
    done = subprocess.run(
        [*cluster.exec_prefix, sys.executable, "-m", "bench.zero.cycles"],
        input=json.dumps(asdict(asked)),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=REPOSITORY,
    )
    cycles: list[dict[str, Any]] = json.loads(done.stdout)
    return cycles


def _beside_ours(found: dict[str, Any]) -> list[dict[str, Any]]:
    """KEDA's figures beside the last of ours, where there are any."""
    return [beside_keda(found, json.loads(FILE.read_text())["figures"])] if FILE.exists() else []


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--side-by-side", type=int, default=2, help="backends whose cycles run at once")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cluster", default="penstock-zero", help="its name")
    parser.add_argument("--keep", action="store_true", help="leave the cluster up")
    parser.add_argument("--keda", action="store_true", help="KEDA writes the replicas")
    parser.add_argument("--polling", type=int, default=1, help="seconds between two of KEDA's looks")
    parser.add_argument("--objective", default="", help="the backends' latencyObjective, such as 100ms")
    parser.add_argument("--out", type=Path, help="where the figures go")
    arguments = parser.parse_args()
    if arguments.keda and arguments.objective:
        parser.error("--keda and --objective: KEDA's cycles are made with a targetLoad, choose one")
    host = machine()
    began = time.monotonic()
    with installed(arguments.cluster, keep=arguments.keep, with_keda=arguments.keda) as cluster:
        say(f"ready after {time.monotonic() - began:.0f} s")
        began = time.monotonic()
        asked = Asked(
            pki=str(cluster.state.pki),
            server=f"https://{cluster.node.address}:{API_PORT}",
            address=FIRST.address,
            names=tuple(f"model-{number}" for number in range(arguments.side_by_side)),
            cycles=arguments.cycles,
            bursts=BURSTS,
            seed=arguments.seed,
            polling=arguments.polling if arguments.keda else 0,
            objective=arguments.objective,
        )
        cycles = measure(cluster, asked)
    found = figures(cycles)
    document = {
        "what": "cycles 0 → N → 0 with a burst of requests in each",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit(),
        "machine": host,
        "seconds": round(time.monotonic() - began),
        "settings": {
            "bursts": BURSTS,
            "side_by_side": arguments.side_by_side,
            "max_pending": resources.MAX_PENDING,
            **(
                {"latency_objective": asked.objective}
                if asked.objective
                else {"target_load": resources.TARGET_LOAD}
            ),
            "scale_to_zero_after": resources.ZERO_AFTER,
            "keda_polling": asked.polling,
        },
        "figures": found,
        "verdicts": _beside_ours(found) if arguments.keda else verdicts(found),
        "cycles": cycles,
    }
    standard = OBJECTIVE_FILE if asked.objective else KEDA_FILE if arguments.keda else FILE
    out = arguments.out or standard
    out.write_text(json.dumps(document, indent=1) + "\n")
    print(page(document))
    problems = wrong(found)
    for problem in problems:
        print(f"WRONG: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
