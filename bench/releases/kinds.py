"""The candidates that are released, and what their releases come to."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import Pool
from typing import Any

from bench.releases import canary, rival
from bench.releases.canary import Outcome
from bench.releases.worlds import STABLE, TICK, Version, World, add
from penstock_operator.api.strategy import ReleaseMetric
from penstock_operator.releases.evidence import judge
from penstock_operator.releases.state import Counts, Interval
from penstock_wire.control.report import FIRST_BYTE_SECONDS

SECONDS = 1800
"""Of each release at most."""
RATE = 500.0
"""Requests a second of the endpoint on average: 50 of a candidate with a weight of 10, or copied to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A candidate, and the steps by which it is released.

    Args:
        versions: the candidates, one after the other.
        bad: whether it is to be taken back.
        mirrored: whether copies come before requests.
    """

    versions: tuple[Version, ...]
    bad: bool
    mirrored: bool

    def version(self, seed: int) -> Version:
        """The candidate of a release."""
        return self.versions[seed % len(self.versions)]


HEALTHY = Version(name="healthy")
KINDS = {
    "healthy, every other one 10 % slower": Kind(
        versions=(HEALTHY, Version(name="slower", times=1.1)), bad=False, mirrored=True
    ),
    "healthy, whole batches of 32 fail or are late": Kind(
        versions=(Version(name="batches", batch=32), Version(name="slower batches", batch=32, times=1.1)),
        bad=False,
        mirrored=False,
    ),
    "5 % of errors": Kind(versions=(Version(name="errors", errors=0.05),), bad=True, mirrored=False),
    "+200 ms": Kind(versions=(Version(name="late", slower=0.2),), bad=True, mirrored=False),
    "2 % of mismatches": Kind(versions=(Version(name="differs", differs=0.02),), bad=True, mirrored=True),
}


@dataclass(frozen=True, slots=True)
class _Penstock:
    kind: Kind

    def __call__(self, seed: int) -> Outcome:
        asked = canary.strategy(mirrored=self.kind.mirrored)
        return canary.run(_world(seed), self.kind.version(seed), asked, SECONDS)


@dataclass(frozen=True, slots=True)
class _Rival:
    kind: Kind
    analysis: rival.Analysis

    def __call__(self, seed: int) -> Outcome:
        return rival.run(_world(seed), self.kind.version(seed), self.analysis, SECONDS)


def _world(seed: int) -> World:
    return World(seed, rate=RATE, seconds=SECONDS)


def measured(releases: int, processes: int) -> dict[str, Any]:
    """All kinds by Penstock and by Argo's arithmetic, by name.

    Args:
        releases: how many of each by Penstock; a fifth as many by Argo's.
        processes: that simulate at the same time.
    """
    results: dict[str, Any] = {}
    with Pool(processes) as pool:

        def outcomes(run: Callable[[int], Outcome], count: int) -> list[Outcome]:
            return pool.map(run, range(count), chunksize=50)

        for name, kind in KINDS.items():
            rows = {"Penstock": _summary(outcomes(_Penstock(kind), releases))}
            if kind.versions[0].differs < 0.01:  # Argo Rollouts compares no copies
                for analysis in rival.ANALYSES:
                    rows[analysis.name] = _summary(outcomes(_Rival(kind, analysis), max(releases // 5, 1)))
            results[name] = rows
    return results


def _summary(outcomes: list[Outcome]) -> dict[str, float]:
    back = [each for each in outcomes if each.phase == "RolledBack"]
    return {
        "releases": len(outcomes),
        "rolled_back": len(back),
        "within_two_intervals": sum(each.intervals <= 2 for each in back),
        "promoted": sum(each.phase == "Promoted" for each in outcomes),
        "seconds_median": statistics.median(each.seconds for each in outcomes),
        "harmed_mean": round(statistics.fmean(each.harmed for each in outcomes), 1),
    }


def by_rate(releases: int, rates: tuple[float, ...] = (1.0, 5.0, 20.0, 50.0, 200.0)) -> dict[str, Any]:
    """Intervals of 30 s until a verdict, by requests a second of the candidate, or copies: 99 of 100 have it.

    Args:
        releases: how many of each.
        rates: requests a second of the candidate.
    """
    judges = (
        ("healthy", "errorRatio", "Pass"),
        ("healthy", "latency", "Pass"),
        ("healthy", "mismatch", "Pass"),
        ("5 % of errors", "errorRatio", "Fail"),
        ("+200 ms", "latency", "Fail"),
        ("2 % of mismatches", "mismatch", "Fail"),
    )
    versions = {name: kind.versions[0] for name, kind in KINDS.items()} | {"healthy": HEALTHY}
    results: dict[str, Any] = {}
    for name, metric, verdict in judges:
        for rate in rates:
            needed = sorted(
                _until(World(seed, rate=10 * rate, seconds=7200), versions[name], metric, verdict)
                for seed in range(releases)
            )
            results.setdefault(f"{name}: {verdict} by {metric}", {})[f"{rate:g}"] = {
                "median": needed[releases // 2],
                "of_100_99": needed[min(99 * releases // 100, releases - 1)],
            }
    return results


def _until(world: World, version: Version, name: Any, verdict: str) -> int:
    metric, state = ReleaseMetric(name=name), ""
    for number in range(240):
        interval = Interval(stable=Counts(), candidate=Counts())
        for now in (30 * number, 30 * number + TICK):
            arrived = world.arrivals(now, TICK)
            own = int(world.chance.binomial(arrived, 0.1))
            stable = world.answers(STABLE, arrived - own, now, candidate=False).counts
            candidate = world.answers(version, own, now, candidate=True).counts
            copies = world.copies(version, own)
            interval = world.goes_on(interval, stable, add(candidate, copies), TICK, 1)
        judged = judge(metric, state, interval, FIRST_BYTE_SECONDS)
        if judged.verdict == verdict:
            return number + 1
        state = judged.state
    return 999


def cost(rounds: int = 300) -> dict[str, float]:
    """Median microseconds of a verdict, by metric."""
    world = _world(1)
    times_us: dict[str, float] = {}
    interval = Interval(
        stable=world.answers(STABLE, 13500, 0, candidate=False).counts,
        candidate=add(world.answers(STABLE, 1500, 0, candidate=True).counts, world.copies(STABLE, 1500)),
    )
    names: tuple[Any, ...] = ("errorRatio", "latency", "mismatch")
    for name in names:
        metric, state, times = ReleaseMetric(name=name), "", []
        for _ in range(rounds):
            begin = time.perf_counter()
            state = judge(metric, state, interval, FIRST_BYTE_SECONDS).state
            times.append(time.perf_counter() - begin)
        times_us[name] = round(1e6 * statistics.median(times))
    return times_us
