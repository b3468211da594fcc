"""The simulator of the autoscaler: its counts add up, and what the recommender promises holds in it."""

from __future__ import annotations

import pytest

from bench.autoscaling.policies import Penstock
from bench.autoscaling.simulator import Model, Simulation
from bench.autoscaling.traces import TRACES, Trace
from penstock_wire.control.settings import Batching


def test_enough_pods_answer_all_in_time() -> None:
    """Nothing is refused or late at half of what the pods can do, and nothing changes."""
    trace = Trace(name="half", seconds=60, pods=lambda _: 1.0, replicas=2)
    done = Simulation(trace, Model(noise=0.0), Penstock(Model())).run()
    assert done.arrived == pytest.approx(60 * Model().most, rel=0.1)
    assert (done.missed, done.changes, done.peak(), round(done.replica_seconds)) == (0, 0, 2, 120)


def test_the_same_seed_is_the_same_run() -> None:
    """Figures can be made again."""
    trace = next(trace for trace in TRACES if trace.name == "cold start of 120 s")
    runs = [Simulation(trace, Model(), Penstock(Model()), seed=7).run().replicas[:60] for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("startup", [10.0, 120.0])
@pytest.mark.parametrize("objective", [1000, None])
def test_a_step_is_met_once(startup: float, objective: int | None) -> None:
    """1 → 8 pods' worth: within two windows 10 % around what 80 % of use takes, and never far beyond it."""
    model = Model(batching=Batching(max_batch_size=32, latency_objective_ms=objective))
    trace = Trace(name="step", seconds=240, pods=lambda at: 0.5 if at < 30 else 6.0, startup=startup)
    done = Simulation(trace, model, Penstock(model)).run()
    ideal = 6.0 / 0.8
    # Without an objective a queue of half a minute has gathered, which takes pods, too.
    assert done.peak() <= 1.1 * ideal + (1 if objective else 2)
    assert objective is None or all(
        abs(count - ideal) <= 0.1 * ideal + 1 for at, count in done.replicas if at >= 150
    )
