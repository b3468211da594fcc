"""The operator's recommender and its peers on one trace: as they are set, and at equal replica-seconds.

A peer has fewer misses with more pods. So each setting is tried with the target that the peer's documentation
leads to, and then with the target at which this trace costs as many replica-seconds as with ours: found by
trying, with hindsight that nobody has who must choose a target before the day.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bench.autoscaling.peers import Setting
from bench.autoscaling.policies import Penstock
from bench.autoscaling.simulator import Model, Policy, Result, Simulation
from bench.autoscaling.traces import Trace

EQUAL = 0.05
"""Replica-seconds are equal when they differ by this share at most."""
_TRIES = 5
_LEAST, _MOST = 0.5, 400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one run came to.

    Args:
        misses: percent of the items.
        replica_seconds: of pods that were there.
        peak: the most replicas.
        changes: of the replicas.
        replicas: (seconds, replicas) wherever they changed.
        target: that the peer had; None for ours.
    """

    misses: float
    replica_seconds: float
    peak: int
    changes: int
    replicas: list[tuple[float, int]]
    target: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A peer's setting on one trace.

    Args:
        recommended: with the target that it is documented to have; without its replicas over time.
        equal: with the target that makes it cost what ours costs, or comes nearest to that.
        misses_at_equal: percent of the items; between two targets where none comes near enough. None where
            its cost does not reach ours.
        runs: all that it was tried with, without their replicas: they do not depend on ours.
    """

    recommended: Run
    equal: Run
    misses_at_equal: float | None
    runs: list[Run]


def ours(trace: Trace, *, seed: int = 1) -> Run:
    """The operator's recommender.

    Args:
        trace: what arrives.
        seed: of chance.
    """
    model = Model()
    return _run(trace, model, Penstock(model), seed)


def compare(
    setting: Setting, trace: Trace, *, replica_seconds: float, seed: int = 1, known: Sequence[Run] = ()
) -> Compared:
    """A peer, as it is set and at equal replica-seconds.

    Args:
        setting: of the peer.
        trace: what arrives.
        replica_seconds: what ours costs.
        seed: of chance.
        known: its runs of before, on the same trace with the same seed, which are not repeated.
    """

    def attempt(target: float) -> Run:
        with setting.running(target) as peer:
            return _run(trace, Model(), peer, seed, target)

    runs = approach(attempt, setting.target, replica_seconds, known)
    nearest = min(runs, key=lambda run: abs(run.replica_seconds / replica_seconds - 1))
    if not nearest.replicas and nearest.target is not None:
        nearest = attempt(nearest.target)
    bare = [replace(run, replicas=[]) for run in runs]
    return Compared(
        recommended=next(run for run in bare if run.target == setting.target),
        equal=nearest,
        misses_at_equal=misses_at(runs, replica_seconds),
        runs=bare,
    )


def approach(
    attempt: Callable[[float], Run], start: float, wanted: float, known: Sequence[Run] = ()
) -> list[Run]:
    """Runs with targets that come nearer and nearer to what is to be spent, the first one with `start`.

    Args:
        attempt: a run with a target: a higher one costs less.
        start: the first target.
        wanted: replica-seconds.
        known: runs of before, the one with `start` among them.
    """
    runs = [*known] or [attempt(start)]
    for _ in range(_TRIES - 1):
        if any(abs(run.replica_seconds / wanted - 1) <= EQUAL for run in runs):
            break
        over = max((run for run in runs if run.replica_seconds > wanted), key=_target, default=None)
        under = min((run for run in runs if run.replica_seconds < wanted), key=_target, default=None)
        if over and under:
            above, below = over.target or start, under.target or start
            if below / above < 1.005:
                break
            # Between the two, where a line through both (of logarithms) meets what is wanted.
            share = math.log(over.replica_seconds / wanted) / math.log(
                over.replica_seconds / under.replica_seconds
            )
            target = above * (below / above) ** min(max(share, 0.1), 0.9)
        else:
            nearest = over or under or runs[0]
            target = (nearest.target or start) * nearest.replica_seconds / wanted
            target = min(max(target, _LEAST), _MOST)
        if any(abs(run.target / target - 1) < 1e-3 for run in runs if run.target):
            break
        runs.append(attempt(target))
    return runs


def misses_at(runs: list[Run], wanted: float) -> float | None:
    """Percent of misses at a cost: of the run that is near it, else between the two runs around it.

    Args:
        runs: with several targets.
        wanted: replica-seconds.
    """
    nearest = min(runs, key=lambda run: abs(run.replica_seconds / wanted - 1))
    if abs(nearest.replica_seconds / wanted - 1) <= EQUAL:
        return nearest.misses
    # Of those that cost the same, the best.
    by_misses = sorted(runs, key=lambda run: run.misses)
    over = min((run for run in by_misses if run.replica_seconds > wanted), key=_cost, default=None)
    under = max((run for run in by_misses if run.replica_seconds < wanted), key=_cost, default=None)
    if over is None or under is None:
        return None
    share = (wanted - under.replica_seconds) / (over.replica_seconds - under.replica_seconds)
    return under.misses + share * (over.misses - under.misses)


def _target(run: Run) -> float:
    return run.target or 0.0


def _cost(run: Run) -> float:
    return run.replica_seconds


def _run(trace: Trace, model: Model, policy: Policy, seed: int, target: float | None = None) -> Run:
    done = Simulation(trace, model, policy, seed=seed).run()
    return Run(
        misses=round(done.miss_percent, 3),
        replica_seconds=round(done.replica_seconds, 1),
        peak=done.peak(),
        changes=done.changes,
        replicas=_changes(done),
        target=None if target is None else round(target, 3),
    )


def _changes(done: Result) -> list[tuple[float, int]]:
    changes = done.replicas[:1]
    for at, count in done.replicas:
        if count != changes[-1][1]:
            changes.append((round(at, 1), count))
    return changes
