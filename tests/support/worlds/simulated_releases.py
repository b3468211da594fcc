"""Releases of healthy and bad candidates by the operator's machine and evidence, in simulated time.

`python -m tests.support.worlds.simulated_releases --releases 10000` prints what becomes of so many of each
kind, and how many intervals of 30 s a verdict takes, as JSON. The same seeds give the same figures.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from multiprocessing import Pool
from typing import Any

from penstock_operator.api.strategy import ReleaseMetric, Strategy
from penstock_operator.releases.evidence import judge, judge_all
from penstock_operator.releases.machine import advance
from penstock_operator.releases.state import BackendSeen, Counts, Interval, Release, Seen
from penstock_wire import durations
from penstock_wire.control.report import FIRST_BYTE_SECONDS
from tests.support.worlds.release_traffic import STABLE, TICK, Version, World, add

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
TAKEN_UP = 1
"""Seconds until the routers have taken up weights."""
WEIGHTS: list[dict[str, Any]] = [
    {"setWeight": 10},
    {"pause": "2m"},
    {"setWeight": 25},
    {"pause": "2m"},
    {"setWeight": 50},
    {"pause": "2m"},
]


def strategy(*, mirrored: bool) -> Strategy:
    """Steps as users have them; with copies and their comparison before, or without."""
    metrics: list[dict[str, Any]] = [{"name": "errorRatio"}, {"name": "latency"}]
    steps = list(WEIGHTS)
    if mirrored:
        metrics.append({"name": "mismatch"})
        steps = [{"mirror": 10}, {"pause": "1m"}, *steps]
    return Strategy.model_validate(
        {"stable": "a", "candidate": "b", "steps": steps, "analysis": {"metrics": metrics}}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a release ended.

    Args:
        phase: Promoted, RolledBack, or Progressing at the end of the time.
        intervals: whole intervals that were judged while the candidate had requests or copies.
        harmed: requests that the candidate failed, or made slower, in all the time.
    """

    phase: str
    seconds: int
    intervals: int
    harmed: int


def run(world: World, version: Version, asked: Strategy, seconds: int) -> Outcome:
    """Run one release, until its end or so many seconds."""
    interval = durations.parse_ms(asked.analysis.interval) // 1000
    release: Release | None = None
    ready = BackendSeen(exists=True, uid="1", ready=10, replicas=10, answered=1)
    counted = Interval(stable=Counts(), candidate=Counts())
    now, applied, harmed, judged = 0, 0, 0, 0
    taken_up: list[tuple[int, int, int]] = []  # when, weight, mirror
    mirror = 0
    while now < seconds:
        moment = BEGIN + timedelta(seconds=now)
        while taken_up and taken_up[0][0] <= now:
            _, applied, mirror = taken_up.pop(0)
        verdicts = None
        began = release.state.judged if release is not None else None
        if (
            release is not None
            and began
            and moment - datetime.fromisoformat(began) >= timedelta(seconds=interval)
        ):
            verdicts = judge_all(asked.analysis.metrics, release.verdicts, counted, FIRST_BYTE_SECONDS, {})
            judged += bool(applied or mirror)
        result = advance(
            asked,
            release,
            Seen(now=moment, stable=ready, candidate=ready, applied=applied, verdicts=verdicts),
        )
        before, release = release, result.release
        state = release.state
        old = (0, 0) if before is None else (before.state.weight, before.state.mirror)
        if (state.weight, state.mirror) != old:
            taken_up.append((now + TAKEN_UP, state.weight, state.mirror))
        if state.judged and datetime.fromisoformat(state.judged) == moment:
            counted = Interval(stable=Counts(), candidate=Counts())
        if state.phase in ("Promoted", "RolledBack") and not taken_up:
            break
        again = math.ceil(result.again)
        if result.again >= 10 and state.judged:
            ends = datetime.fromisoformat(state.judged) + timedelta(seconds=interval)
            again = max(int((ends - moment).total_seconds()), 1)
        until = min([now + again, seconds, *(when for when, _, _ in taken_up)])
        while now < until:
            part = min((now // TICK + 1) * TICK, until) - now
            arrived = world.arrivals(now, part)
            own = int(world.chance.binomial(arrived, applied / 100))
            like = replace(STABLE, batch=version.batch)
            stable = world.answers(like, arrived - own, now, candidate=False)
            candidate = world.answers(version, own, now, candidate=True)
            copied = int(world.chance.binomial(arrived, mirror / 100))
            counts = add(candidate.counts, world.copies(version, copied))
            counted = world.goes_on(counted, stable.counts, counts, part, version.batch)
            harmed += candidate.harmed
            now += part
    assert release is not None
    left = max(seconds - now, 0)
    if release.state.phase == "Promoted":
        harmed += later(world, version, seconds - left, seconds)
    return Outcome(phase=release.state.phase, seconds=now, intervals=judged, harmed=harmed)


def later(world: World, version: Version, begin: int, end: int) -> int:
    """Requests that a version harms which has all of them."""
    harmed, now = 0, begin if version.errors or version.slower else end
    while now < end:
        part = min((now // TICK + 1) * TICK, end) - now
        harmed += world.answers(version, world.arrivals(now, part), now, candidate=True).harmed
        now += part
    return harmed


SECONDS = 1800
"""Of each release at most."""
RATE = 500.0
"""Requests a second of the endpoint on average: 50 of a candidate with a weight of 10, or copied to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A candidate, and the steps by which it is released.

    Args:
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


def release(name: str, seed: int) -> Outcome:
    """One release of a kind, by its name in `KINDS`."""
    kind = KINDS[name]
    world = World(seed, rate=RATE, seconds=SECONDS)
    return run(world, kind.version(seed), strategy(mirrored=kind.mirrored), SECONDS)


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


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.worlds.simulated_releases", description=__doc__
    )
    parser.add_argument("--releases", type=int, default=10_000, help="of each kind")
    parser.add_argument("--processes", type=int, default=2, help="at the same time")
    chosen = parser.parse_args()
    with Pool(chosen.processes) as pool:
        kinds = {
            name: _summary(pool.map(partial(release, name), range(chosen.releases), chunksize=50))
            for name in KINDS
        }
    print(json.dumps({"kinds": kinds, "by_rate": by_rate(max(min(chosen.releases, 1000) // 5, 1))}, indent=1))


if __name__ == "__main__":
    main()
