"""`python -m bench.autoscaling`: every trace with every autoscaler, as tables in Markdown.

Without `--peers` the operator's own recommender, with and without `targetLoad`. With it the recommender
beside the peers (`peers`, `compare`) and two oracles; `--results` writes the figures, and draws
the pictures where all traces were run. `--one-target` adds each peer with one target for all traces to the
figures of such a file. `--steady` is of loads that do not change.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from statistics import fmean, mean
from typing import Any

import msgspec

from bench import venvs
from bench.autoscaling import peers, steady, table
from bench.autoscaling.compare import Run, again, attempt_of, compare, oracle, ours, with_one_target
from bench.autoscaling.policies import Penstock
from bench.autoscaling.simulator import Model, Policy, Simulation
from bench.autoscaling.traces import STEADY, TRACES, Trace

POLICIES: dict[str, Callable[[Model], Policy]] = {
    "objective": Penstock,
    "targetLoad 32": lambda model: Penstock(model, target_load=32),
    "targetLoad 16": lambda model: Penstock(model, target_load=16),
}

ORACLES: dict[str, tuple[bool, tuple[float, ...]]] = {
    "knows the rate": (False, (0.0, 300.0)),
    "knows what comes": (True, (0.0,)),
}
"""Of each oracle whether it foresees, and the delays of which the best counts."""

LOAD_EVERY_S = 5
"""Seconds between two figures of what arrives, for pictures."""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.autoscaling", description=__doc__)
    parser.add_argument("--trace", default="", help="those whose names contain one of these, with commas")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each, with another chance (default: 1)")
    parser.add_argument("--steady", action="store_true", help="misses by use, and changes next to an edge")
    parser.add_argument("--peers", action="store_true", help="beside Knative's, Kubernetes' and Ray Serve's")
    parser.add_argument("--one-target", type=Path, help="a JSON file of --results to add them to")
    parser.add_argument("--results", type=Path, help="a JSON file for the figures of --peers")
    parser.add_argument("--known", type=Path, help="such a file, whose runs of peers are not repeated")
    parser.add_argument("--near", type=Path, help="such a file, in which the search for targets begins")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="processes (default: one a processor)"
    )
    chosen = parser.parse_args()
    parts = chosen.trace.split(",")
    traces = [trace for trace in TRACES if any(part in trace.name for part in parts)]
    if chosen.peers:
        document = _document(chosen.seeds)
        known = _known(chosen.known, document) if chosen.known else {}
        near = _peers_of(msgspec.json.decode(chosen.near.read_bytes())) if chosen.near else {}
        for name, figures in _beside_peers(traces, chosen.seeds, chosen.jobs, known, near):
            document["traces"][name] = figures
            if chosen.results:
                chosen.results.write_bytes(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
        print(table.render(document))
        if chosen.results and not chosen.trace:
            chosen.results.with_suffix(".md").write_text(table.page(document))
            draw(chosen.results)
        return
    if chosen.one_target:
        document = msgspec.json.decode(chosen.one_target.read_bytes())
        document["one target"] = dict(_with_one_target(document, chosen.jobs))
        chosen.one_target.write_bytes(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
        chosen.one_target.with_suffix(".md").write_text(table.page(document))
        print(table.render(document))
        return
    if chosen.steady:
        for line in steady.tables(chosen.seeds):
            print(line, flush=True)
        return
    print("| trace | autoscaler | misses, % | replica-seconds | peak | changes |")
    print("| -- | -- | -- | -- | -- | -- |")
    for trace in traces:
        for name, policy in POLICIES.items():
            runs = []
            for seed in range(1, chosen.seeds + 1):
                model = Model()
                runs.append(Simulation(trace, model, policy(model), seed=seed).run())
            print(
                f"| {trace.name} | {name} | {mean(run.miss_percent for run in runs):.2f} "
                f"| {mean(run.replica_seconds for run in runs):.0f} | {max(run.peak() for run in runs)} "
                f"| {max(run.changes for run in runs)} |",
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


def _document(seeds: int) -> dict[str, Any]:
    model = Model()
    return {
        "seeds": seeds,
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
    """The figures of peers by the trace, of a file made with the same pods and versions."""
    before = msgspec.json.decode(path.read_bytes())
    for what in ("model", "versions", "settings"):
        if before[what] != document[what]:
            raise SystemExit(f"{path}: expected {what} {document[what]}, found {before[what]}")
    return _peers_of(before)


def _peers_of(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: figures["peers"] for name, figures in document["traces"].items()}


def _beside_peers(
    traces: Sequence[Trace],
    seeds: int,
    jobs: int,
    known: Mapping[str, Mapping[str, Any]],
    near: Mapping[str, Mapping[str, Any]],
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The figures of one trace after the other, and then again with the best peer's other seeds."""
    peers.ensure()
    places = [TRACES.index(trace) for trace in traces]
    with ProcessPoolExecutor(jobs) as pool:
        firsts = [pool.submit(_ours, place, 1) for place in places]
        asked = [
            _ask(pool, place, first.result().replica_seconds, seeds, known, near)
            for place, first in zip(places, firsts, strict=True)
        ]
        done: dict[int, dict[str, Any]] = {}
        repeated: dict[int, tuple[str, list[Future[float | None]]]] = {}
        for place, first, (compared, oracles, others) in zip(places, firsts, asked, strict=True):
            trace, other_runs = TRACES[place], [run.result() for run in others]
            figures = done[place] = {
                "load": [
                    round(trace.pods(float(at)), 3) for at in range(0, int(trace.seconds), LOAD_EVERY_S)
                ],
                "every": LOAD_EVERY_S,
                "ours": dataclasses.asdict(first.result()),
                "peers": {key: run.result() for key, run in compared.items()},
                "oracles": {what: run.result() for what, run in oracles.items()},
                "again": {
                    "ours": [
                        {"misses": run.misses, "replica_seconds": run.replica_seconds} for run in other_runs
                    ]
                },
            }
            yield trace.name, figures
            best = table.best_of_all(figures)
            if best is not None:
                index = [setting.key for setting in peers.SETTINGS].index(best)
                runs = _runs(figures["peers"][best])
                repeated[place] = (
                    peers.SETTINGS[index].peer,
                    [
                        pool.submit(_again, place, index, run.replica_seconds, seed, runs)
                        for seed, run in enumerate(other_runs, start=2)
                    ],
                )
        for place, (peer, misses) in repeated.items():
            done[place]["again"][peer] = [run.result() for run in misses]
            yield TRACES[place].name, done[place]


def _with_one_target(document: Mapping[str, Any], jobs: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each setting with the target at which all traces that change cost together what ours cost."""
    peers.ensure()
    names = [name for name in document["traces"] if name != STEADY]
    places = {trace.name: place for place, trace in enumerate(TRACES)}
    cost = sum(document["traces"][name]["ours"]["replica_seconds"] for name in names)
    with ProcessPoolExecutor(jobs) as pool:
        for index, setting in enumerate(peers.SETTINGS):

            def each(target: float, index: int = index) -> list[Run]:
                asked = [pool.submit(_attempt, places[name], index, target) for name in names]
                return [run.result() for run in asked]

            equal = [document["traces"][name]["peers"][setting.key]["equal"] for name in names]
            first = fmean([run["target"] for run in equal], [run["replica_seconds"] for run in equal])
            target, runs = with_one_target(each, replica_seconds=cost, first=first)
            print(f"[bench] one target for all traces: {setting.key}", flush=True)
            yield (
                setting.key,
                {
                    "target": round(target, 3),
                    "traces": {
                        name: {"misses": run.misses, "replica_seconds": run.replica_seconds}
                        for name, run in zip(names, runs, strict=True)
                    },
                },
            )


def _ask(
    pool: ProcessPoolExecutor,
    place: int,
    replica_seconds: float,
    seeds: int,
    known: Mapping[str, Mapping[str, Any]],
    near: Mapping[str, Mapping[str, Any]],
) -> tuple[dict[str, Future[dict[str, Any]]], dict[str, Future[float | None]], list[Future[Run]]]:
    """All that is run of one trace at the cost of ours: the peers, the oracles, and ours with other seeds."""
    name = TRACES[place].name
    compared = {
        setting.key: pool.submit(
            _compare,
            place,
            index,
            replica_seconds,
            _runs(known.get(name, {}).get(setting.key)),
            _runs(near.get(name, {}).get(setting.key)),
        )
        for index, setting in enumerate(peers.SETTINGS)
    }
    oracles = {what: pool.submit(_oracle, place, what, replica_seconds) for what in ORACLES}
    return compared, oracles, [pool.submit(_ours, place, seed) for seed in range(2, seeds + 1)]


def _runs(figures: Mapping[str, Any] | None) -> list[Run]:
    """The runs of one peer on one trace that were made before."""
    if figures is None:
        return []
    # The one that was nearest has its replicas over time beside it.
    runs = {run["target"]: run for run in [*figures["runs"], figures["equal"]]}
    return msgspec.convert(list(runs.values()), list[Run])


# By their places: traces and settings hold functions, which do not pickle.


def _ours(trace: int, seed: int) -> Run:
    return ours(TRACES[trace], seed=seed)


def _compare(
    trace: int, setting: int, replica_seconds: float, known: list[Run], near: list[Run]
) -> dict[str, Any]:
    chosen = peers.SETTINGS[setting]
    result = compare(chosen, TRACES[trace], replica_seconds=replica_seconds, known=known, near=near)
    print(f"[bench] {TRACES[trace].name}: {chosen.key}", flush=True)
    return dataclasses.asdict(result)


def _attempt(trace: int, setting: int, target: float) -> Run:
    return dataclasses.replace(attempt_of(peers.SETTINGS[setting], TRACES[trace])(target), replicas=[])


def _again(trace: int, setting: int, replica_seconds: float, seed: int, near: list[Run]) -> float | None:
    chosen = peers.SETTINGS[setting]
    return again(chosen, TRACES[trace], replica_seconds=replica_seconds, seed=seed, near=near)


def _oracle(trace: int, what: str, replica_seconds: float) -> float | None:
    foresees, delays = ORACLES[what]
    falls = any(
        TRACES[trace].pods(at) > TRACES[trace].pods(at + 1) for at in range(int(TRACES[trace].seconds))
    )
    misses = [
        oracle(TRACES[trace], foresees=foresees, delay=delay, replica_seconds=replica_seconds)
        for delay in (delays if falls else delays[:1])
    ]
    return min((each for each in misses if each is not None), default=None)


if __name__ == "__main__":
    main()
