"""Loads that do not change: what pods miss by their use, and how often ours changes their number."""

from __future__ import annotations

from collections.abc import Iterator

from bench.autoscaling.policies import Penstock
from bench.autoscaling.simulator import Model, Seen, Simulation
from bench.autoscaling.traces import Trace
from penstock_operator.autoscaling.capacity import Curve, Objective, capacity
from penstock_operator.autoscaling.demand import BUSY

PODS = (1, 2, 4, 8)
USES = (60, 65, 70, 75, 80, 90)
"""Percent of what the pods can do."""
EDGES = (2, 4, 9)
BESIDE = (-4, -2, 0, 2, 4)
"""Percent by which a load lies beside the edge up to which so many pods are asked for."""
SECONDS = 1800.0


class Fixed:
    """As many pods as there are."""

    interval = 10.0

    def look(self, seen: Seen) -> int:
        """See `Policy`."""
        return seen.current


def missed(pods: int, use: int, seed: int) -> float:
    """Percent of the items that miss the objective.

    Args:
        pods: how many there are.
        use: percent of what they can do.
        seed: of chance.
    """
    trace = Trace(name="steady", seconds=SECONDS, pods=lambda _: pods * use / 100, replicas=pods)
    return Simulation(trace, Model(), Fixed(), seed=seed).run().miss_percent


def edge(model: Model) -> float:
    """Up to which load one pod is asked for, in pods' worth.

    Args:
        model: what is scaled.
    """
    objective = Objective(max_batch_size=model.batching.max_batch_size, latency=model.objective)
    able = capacity(objective, Curve(at=0.0, items=1.0, level=model.a + model.b, slope=model.b), [], 0.0)
    assert able.rate is not None
    return BUSY * able.rate / model.most


def changes(pods: int, beside: int, seed: int) -> list[tuple[float, int]]:
    """The changes of the number within half an hour, as (seconds, replicas).

    Args:
        pods: how many there are at first.
        beside: percent by which the load lies beside what so many are asked for.
        seed: of chance.
    """
    model = Model()
    load = pods * edge(model) * (1 + beside / 100)
    trace = Trace(name="steady", seconds=SECONDS, pods=lambda _: load, replicas=pods)
    replicas = Simulation(trace, model, Penstock(model), seed=seed).run().replicas
    before = [pods, *(count for _, count in replicas)]
    return [(at, count) for (at, count), last in zip(replicas, before, strict=False) if count != last]


def tables(seeds: int) -> Iterator[str]:
    """Both tables in Markdown, a line at a time.

    Args:
        seeds: as many runs of each.
    """
    yield "| use | " + " | ".join(f"{pods} pods" for pods in PODS) + " |"
    yield "| -- " * (len(PODS) + 1) + "|"
    for use in USES:
        means = [sum(missed(pods, use, seed) for seed in range(1, seeds + 1)) / seeds for pods in PODS]
        yield f"| {use} % | " + " | ".join(f"{mean:.2f} %" for mean in means) + " |"
    yield ""
    yield "| pods | beside the edge | changes in 30 minutes, by the seed |"
    yield "| -- | -- | -- |"
    for pods in EDGES:
        for beside in BESIDE:
            counts = [len(changes(pods, beside, seed)) for seed in range(1, seeds + 1)]
            yield f"| {pods} | {beside:+} % | {', '.join(str(count) for count in counts)} |"
