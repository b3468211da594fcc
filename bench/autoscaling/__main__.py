"""`python -m bench.autoscaling`: every trace with every autoscaler, as tables in Markdown.

Without `--peers` the operator's own recommender, with and without `targetLoad`. With it the recommender
beside the peers (`peers`, `compare`); `--results` writes the figures, and draws
the pictures where all traces were run.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from bench import venvs
from bench.autoscaling import peers, table
from bench.autoscaling.compare import Run, compare, ours
from bench.autoscaling.policies import Penstock
from bench.autoscaling.simulator import Model, Policy, Simulation
from bench.autoscaling.traces import TRACES, Trace

POLICIES: dict[str, Callable[[Model], Policy]] = {
    "objective": Penstock,
    "targetLoad 32": lambda model: Penstock(model, target_load=32),
    "targetLoad 16": lambda model: Penstock(model, target_load=16),
}

LOAD_EVERY_S = 5
"""Seconds between two figures of what arrives, for pictures."""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.autoscaling", description=__doc__)
    parser.add_argument("--trace", default="", help="of the traces, those whose name contains this")
    parser.add_argument("--seed", type=int, default=1, help="of chance (default: 1)")
    parser.add_argument("--peers", action="store_true", help="beside Knative's, Kubernetes' and Ray Serve's")
    parser.add_argument("--results", type=Path, help="a JSON file for the figures of --peers")
    parser.add_argument("--known", type=Path, help="such a file, whose runs of peers are not repeated")
    chosen = parser.parse_args()
    traces = [trace for trace in TRACES if chosen.trace in trace.name]
    if chosen.peers:
        document = _document(chosen.seed)
        known = _known(chosen.known, document) if chosen.known else {}
        for name, figures in _beside_peers(traces, chosen.seed, known):
            document["traces"][name] = figures
            if chosen.results:
                chosen.results.write_bytes(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
        print(table.render(document))
        if chosen.results and not chosen.trace:
            draw(chosen.results)
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


def draw(results: Path) -> None:
    """Draw the pictures of docs/autoscaling.md, in the plots' own environment.

    Args:
        results: of all traces.
    """
    python = venvs.ensure("plots")
    root = Path(__file__).parents[2]
    subprocess.run(
        [str(python), "-m", "bench.autoscaling.plots", str(results.resolve())], check=True, cwd=root
    )


def _document(seed: int) -> dict[str, Any]:
    model = Model()
    return {
        "seed": seed,
        "model": {
            "a": model.a,
            "b": model.b,
            "objective": model.objective,
            "max_batch_size": model.batching.max_batch_size,
        },
        "versions": peers.versions(),
        "settings": {setting.key: {"target": setting.target} for setting in peers.SETTINGS},
        "traces": {},
    }


def _known(path: Path, document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The figures of peers by the trace, of a file made with the same seed, pods and versions."""
    before = msgspec.json.decode(path.read_bytes())
    for what in ("seed", "model", "versions", "settings"):
        if before[what] != document[what]:
            raise SystemExit(f"{path}: expected {what} {document[what]}, found {before[what]}")
    return {name: figures["peers"] for name, figures in before["traces"].items()}


def _beside_peers(
    traces: Sequence[Trace], seed: int, known: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The figures of one trace after the other."""
    peers.ensure()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for trace in traces:
            mine = ours(trace, seed=seed)
            count, place = len(peers.SETTINGS), TRACES.index(trace)
            keys = [setting.key for setting in peers.SETTINGS]
            compared = pool.map(
                _compare,
                [place] * count,
                range(count),
                [mine.replica_seconds] * count,
                [seed] * count,
                [_runs(known.get(trace.name, {}).get(key)) for key in keys],
            )
            yield (
                trace.name,
                {
                    "load": [
                        round(trace.pods(float(at)), 3) for at in range(0, int(trace.seconds), LOAD_EVERY_S)
                    ],
                    "every": LOAD_EVERY_S,
                    "ours": dataclasses.asdict(mine),
                    "peers": dict(zip(keys, compared, strict=True)),
                },
            )


def _runs(figures: Mapping[str, Any] | None) -> list[Run]:
    """The runs of one peer on one trace that were made before."""
    if figures is None:
        return []
    # The one that was nearest has its replicas over time beside it.
    runs = {run["target"]: run for run in [*figures["runs"], figures["equal"]]}
    return msgspec.convert(list(runs.values()), list[Run])


def _compare(trace: int, setting: int, replica_seconds: float, seed: int, known: list[Run]) -> dict[str, Any]:
    # By their places: traces and settings hold functions, which do not pickle.
    chosen = peers.SETTINGS[setting]
    result = compare(chosen, TRACES[trace], replica_seconds=replica_seconds, seed=seed, known=known)
    print(f"[bench] {TRACES[trace].name}: {chosen.key}", flush=True)
    return dataclasses.asdict(result)


if __name__ == "__main__":
    main()
