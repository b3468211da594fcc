"""The arithmetic of Argo Rollouts: Prometheus queries against thresholds, with a limit of failures.

As its documentation has it (docs/features/analysis.md and docs/analysis/prometheus.md at v1.9): a background
analysis measures at its start and then every `interval`; the value is the share of `irate(...[5m])`, which is
that between the two latest scrapes; a measurement whose successCondition does not hold has failed, and the
analysis fails, and so the rollout aborts, once more than `failureLimit` have (analysis.go,
`assessMetricFailureInconclusiveOrError`). The query at the start has no result yet; that is taken as no
failure. The steps are those of the release by Penstock; the next begins at the end of a pause.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.releases.canary import TAKEN_UP, WEIGHTS, Outcome, later
from bench.releases.worlds import TICK, Version, World
from penstock_wire import durations
from penstock_wire.control.report import FIRST_BYTE_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """An AnalysisTemplate with two metrics.

    Args:
        name: what it is called.
        interval: seconds between two measurements.
        success: least share of requests that succeed.
        slower: the most that p99 may be, by the stable's before the release.
        limit: failureLimit.
    """

    name: str
    interval: int
    success: float
    limit: int
    slower: float = 1.5


ANALYSES = (
    Analysis(
        name="as its docs have it: 95 %, every 5 min, failureLimit 3", interval=300, success=0.95, limit=3
    ),
    Analysis(name="95 %, every 30 s, failureLimit 3", interval=30, success=0.95, limit=3),
    Analysis(name="99 %, every 30 s, failureLimit 3", interval=30, success=0.99, limit=3),
    Analysis(name="99 %, every 30 s, failureLimit 0", interval=30, success=0.99, limit=0),
)


def run(world: World, version: Version, analysis: Analysis, seconds: int) -> Outcome:
    """Run one release, until its end or so many seconds.

    Args:
        world: the endpoint.
        version: the candidate.
        analysis: the analysis beside the steps.
        seconds: how long.
    """
    failures, slow, harmed, now = 0, 0, 0, 0
    most = analysis.slower * world.median * 3.2
    weight, steps, until = 0, list(WEIGHTS), 0
    while now < seconds:
        while steps and now >= until:
            step = steps.pop(0)
            if "setWeight" in step:
                weight = int(step["setWeight"])
            else:
                until = now + durations.parse_ms(str(step["pause"])) // 1000
        if not steps and now >= until:
            return Outcome(
                phase="Promoted",
                seconds=now,
                intervals=now // analysis.interval,
                harmed=harmed + later(world, version, now, seconds),
            )
        own = int(world.chance.binomial(world.arrivals(now, TICK), weight / 100))
        answers = world.answers(version, own, now, candidate=True)
        harmed += answers.harmed
        now += TICK
        if now % analysis.interval == 0 and own:
            failures += answers.counts.errors > (1 - analysis.success) * own
            slow += quantile(answers.counts.seconds, 0.99) > most
            if max(failures, slow) > analysis.limit:
                own = int(world.chance.binomial(world.arrivals(now, TAKEN_UP), weight / 100))
                harmed += world.answers(version, own, now, candidate=True).harmed
                return Outcome(
                    phase="RolledBack", seconds=now, intervals=now // analysis.interval, harmed=harmed
                )
    return Outcome(phase="Progressing", seconds=now, intervals=now // analysis.interval, harmed=harmed)


def quantile(counts: tuple[int, ...], share: float) -> float:
    """As Prometheus' `histogram_quantile`: by straight lines within a bucket."""
    rank, below = share * sum(counts), 0
    for place, count in enumerate(counts[:-1]):
        if below + count >= rank and count:
            lower = FIRST_BYTE_SECONDS[place - 1] if place else 0.0
            return lower + (FIRST_BYTE_SECONDS[place] - lower) * (rank - below) / count
        below += count
    return FIRST_BYTE_SECONDS[-1]
