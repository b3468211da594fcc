"""`python -m bench.autoscaling`: every trace with every autoscaler, as a table in Markdown."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from bench.autoscaling.policies import Penstock
from bench.autoscaling.simulator import Model, Policy, Simulation
from bench.autoscaling.traces import TRACES

POLICIES: dict[str, Callable[[Model], Policy]] = {
    "objective": Penstock,
    "targetLoad 32": lambda model: Penstock(model, target_load=32),
    "targetLoad 16": lambda model: Penstock(model, target_load=16),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.autoscaling", description=__doc__)
    parser.add_argument("--trace", help="of the traces, those whose name contains this")
    parser.add_argument("--seed", type=int, default=1, help="of chance (default: 1)")
    chosen = parser.parse_args()
    print("| trace | autoscaler | misses, % | replica-seconds | peak | changes |")
    print("| -- | -- | -- | -- | -- | -- |")
    for trace in TRACES:
        if chosen.trace and chosen.trace not in trace.name:
            continue
        for name, policy in POLICIES.items():
            model = Model()
            done = Simulation(trace, model, policy(model), seed=chosen.seed).run()
            print(
                f"| {trace.name} | {name} | {done.miss_percent:.2f} | {done.replica_seconds:.0f} "
                f"| {done.peak()} | {done.changes} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
