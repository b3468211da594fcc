"""A release by Penstock: the operator's machine and its evidence, in simulated time."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from bench.releases.worlds import STABLE, TICK, Version, World, add
from penstock_operator.api.strategy import Strategy
from penstock_operator.releases.evidence import judge_all
from penstock_operator.releases.machine import advance
from penstock_operator.releases.state import BackendSeen, Counts, Interval, Release, Seen
from penstock_wire import durations
from penstock_wire.control.report import FIRST_BYTE_SECONDS

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
        seconds: when.
        intervals: whole intervals that were judged while the candidate had requests or copies.
        harmed: requests that the candidate failed, or made slower, in all the time.
    """

    phase: str
    seconds: int
    intervals: int
    harmed: int


def run(world: World, version: Version, asked: Strategy, seconds: int) -> Outcome:
    """Run one release, until its end or so many seconds.

    Args:
        world: the endpoint.
        version: the candidate.
        asked: the split's strategy.
        seconds: how long.
    """
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
