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
from bench.autoscaling.policies import Oracle, Penstock
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
    setting: Setting,
    trace: Trace,
    *,
    replica_seconds: float,
    seed: int = 1,
    known: Sequence[Run] = (),
    near: Sequence[Run] = (),
) -> Compared:
    """A peer, as it is set and at equal replica-seconds.

    Args:
        setting: of the peer.
        trace: what arrives.
        replica_seconds: what ours costs.
        seed: of chance.
        known: its runs of before, on the same trace with the same seed, which are not repeated.
        near: runs of a similar simulation, of which the target is guessed.
    """
    attempt = attempt_of(setting, trace, seed)
    runs = [*known] or [attempt(setting.target)]
    guess = next_target(near, replica_seconds) if near and not known else None
    if guess is not None and abs(runs[0].replica_seconds / replica_seconds - 1) > EQUAL:
        runs.append(attempt(guess))
    runs = approach(attempt, replica_seconds, runs)
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


def again(
    setting: Setting, trace: Trace, *, replica_seconds: float, seed: int, near: Sequence[Run]
) -> float | None:
    """Percent of misses of a peer at equal replica-seconds, with another chance; None as in `Compared`.

    Args:
        setting: of the peer.
        trace: what arrives.
        replica_seconds: what ours costs with this seed.
        seed: of chance.
        near: its runs with another seed.
    """
    attempt = attempt_of(setting, trace, seed)
    nearest = min(near, key=lambda run: abs(run.replica_seconds / replica_seconds - 1))
    runs = approach(attempt, replica_seconds, [attempt(_target(nearest))])
    return misses_at(runs, replica_seconds)


def attempt_of(setting: Setting, trace: Trace, seed: int = 1) -> Callable[[float], Run]:
    """Runs of a peer on one trace, by their target.

    Args:
        setting: of the peer.
        trace: what arrives.
        seed: of chance.
    """

    def attempt(target: float) -> Run:
        with setting.running(target) as peer:
            return _run(trace, Model(), peer, seed, target)

    return attempt


def with_one_target(
    attempts: Callable[[float], Sequence[Run]], *, replica_seconds: float, first: float
) -> tuple[float, list[Run]]:
    """A peer with one target for all traces, at which they cost together what ours cost.

    Args:
        attempts: a run of each trace with a target.
        replica_seconds: what ours cost together.
        first: the target that is tried first.

    Returns:
        The target whose cost comes nearest, and its run of each trace.
    """
    tried: dict[float, list[Run]] = {}

    def all_of(target: float) -> Run:
        runs = tried[target] = list(attempts(target))
        cost = sum([run.replica_seconds for run in runs])
        return Run(misses=0.0, replica_seconds=cost, peak=0, changes=0, replicas=[], target=target)

    runs = approach(all_of, replica_seconds, [all_of(first)])
    nearest = _target(min(runs, key=lambda run: abs(run.replica_seconds / replica_seconds - 1)))
    return nearest, tried[nearest]


def oracle(
    trace: Trace, *, foresees: bool, delay: float, replica_seconds: float, seed: int = 1
) -> float | None:
    """Percent of misses of an `Oracle` at equal replica-seconds; None where its cost does not reach ours.

    Args:
        trace: what arrives.
        foresees: as in `Oracle`.
        delay: as in `Oracle`.
        replica_seconds: what ours costs.
        seed: of chance.
    """
    model = Model()

    def attempt(target: float) -> Run:
        share = target / model.most
        policy = Oracle(trace, share=share, foresees=foresees, delay=delay)
        return _run(trace, model, policy, seed, target)

    load = sum(trace.pods(float(at)) for at in range(int(trace.seconds)))
    # A tenth more than what arrives asks for: pods are whole, and start.
    runs = approach(attempt, replica_seconds, [attempt(1.1 * model.most * load / replica_seconds)])
    return misses_at(runs, replica_seconds)


def approach(attempt: Callable[[float], Run], wanted: float, known: Sequence[Run]) -> list[Run]:
    """Runs with targets that come nearer and nearer to what is to be spent.

    Args:
        attempt: a run with a target: a higher one costs less.
        wanted: replica-seconds.
        known: the first of these runs, one at least.
    """
    runs = [*known]
    for _ in range(_TRIES - 1):
        if any(abs(run.replica_seconds / wanted - 1) <= EQUAL for run in runs):
            break
        target = next_target(runs, wanted)
        if target is None or any(abs(run.target / target - 1) < 1e-3 for run in runs if run.target):
            break
        runs.append(attempt(target))
    return runs


def next_target(runs: Sequence[Run], wanted: float) -> float | None:
    """The target that should cost what is to be spent; None where two runs with the same one lie around it.

    Args:
        runs: with several targets, one at least.
        wanted: replica-seconds.
    """
    over = max((run for run in runs if run.replica_seconds > wanted), key=_target, default=None)
    under = min((run for run in runs if run.replica_seconds <= wanted), key=_target, default=None)
    if over and under:
        above, below = _target(over), _target(under)
        if below / above < 1.005:
            return None
        # Between the two, where a line through both (of logarithms) meets what is wanted.
        share = math.log(over.replica_seconds / wanted) / math.log(
            over.replica_seconds / under.replica_seconds
        )
        return above * math.pow(below / above, min(max(share, 0.1), 0.9))
    nearest = over or under or runs[0]
    return min(max(_target(nearest) * nearest.replica_seconds / wanted, _LEAST), _MOST)


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
    assert run.target is not None
    return run.target


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
