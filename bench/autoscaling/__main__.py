"""`python -m bench.autoscaling`: every trace with every autoscaler, as tables in Markdown.

Without `--peers` the operator's own recommender, with and without `targetLoad`. With it the recommender
beside the peers (`peers`, `compare`); `--results` writes the figures.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from bench.autoscaling import peers, table
from bench.autoscaling.compare import compare, ours
from bench.autoscaling.policies import Penstock
from bench.autoscaling.simulator import Model, Policy, Simulation
from bench.autoscaling.traces import TRACES, Trace

POLICIES: dict[str, Callable[[Model], Policy]] = {
    "objective": Penstock,
    "targetLoad 32": lambda model: Penstock(model, target_load=32),
    "targetLoad 16": lambda model: Penstock(model, target_load=16),
}

_LOAD_EVERY_S = 5


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.autoscaling", description=__doc__)
    parser.add_argument("--trace", default="", help="of the traces, those whose name contains this")
    parser.add_argument("--seed", type=int, default=1, help="of chance (default: 1)")
    parser.add_argument("--peers", action="store_true", help="beside Knative's, Kubernetes' and Ray Serve's")
    parser.add_argument("--results", type=Path, help="a JSON file for the figures of --peers")
    chosen = parser.parse_args()
    traces = [trace for trace in TRACES if chosen.trace in trace.name]
    if chosen.peers:
        document = _beside_peers(traces, chosen.seed)
        print(table.render(document))
        if chosen.results:
            chosen.results.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
        return
    print("| trace | autoscaler | misses, % | replica-seconds | peak | changes |")
    print("| -- | -- | -- | -- | -- | -- |")
    for trace in traces:
        for name, policy in POLICIES.items():
            model = Model()
            done = Simulation(trace, model, policy(model), seed=chosen.seed).run()
            print(
                f"| {trace.name} | {name} | {done.miss_percent:.2f} | {done.replica_seconds:.0f} "
                f"| {done.peak()} | {done.changes} |",
                flush=True,
            )


def _beside_peers(traces: Sequence[Trace], seed: int) -> dict[str, Any]:
    peers.ensure()
    jobs = [(TRACES.index(trace), place) for trace in traces for place in range(len(peers.SETTINGS))]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        mine = list(pool.map(_ours, [TRACES.index(trace) for trace in traces], [seed] * len(traces)))
        costs = {trace.name: run["replica_seconds"] for trace, run in zip(traces, mine, strict=True)}
        compared = list(
            pool.map(_compare, jobs, [costs[TRACES[trace].name] for trace, _ in jobs], [seed] * len(jobs))
        )
    model = Model()
    document: dict[str, Any] = {
        "seed": seed,
        "model": {
            "a": model.a,
            "b": model.b,
            "objective": model.objective,
            "max_batch_size": model.batching.max_batch_size,
        },
        "versions": peers.versions(),
        "settings": {setting.key: {"target": setting.target} for setting in peers.SETTINGS},
        "traces": {
            trace.name: {
                "load": [
                    round(trace.pods(float(at)), 3) for at in range(0, int(trace.seconds), _LOAD_EVERY_S)
                ],
                "every": _LOAD_EVERY_S,
                "ours": run,
                "peers": {},
            }
            for trace, run in zip(traces, mine, strict=True)
        },
    }
    for (trace, place), result in zip(jobs, compared, strict=True):
        document["traces"][TRACES[trace].name]["peers"][peers.SETTINGS[place].key] = result
    return document


def _ours(trace: int, seed: int) -> dict[str, Any]:
    return dataclasses.asdict(ours(TRACES[trace], seed=seed))


def _compare(job: tuple[int, int], replica_seconds: float, seed: int) -> dict[str, Any]:
    # By their places: traces and settings hold functions, which do not pickle.
    trace, place = job
    result = compare(peers.SETTINGS[place], TRACES[trace], replica_seconds=replica_seconds, seed=seed)
    print(f"[bench] {TRACES[trace].name}: {peers.SETTINGS[place].key}", flush=True)
    return dataclasses.asdict(result)


if __name__ == "__main__":
    main()
