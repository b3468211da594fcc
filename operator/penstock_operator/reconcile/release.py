"""Takes a split's release further: asks the state machine for the next step, and stores it in the status.

The status is written first; the router's settings are rendered from the status that the apiserver has stored
(`desired.shares`). So an operator that ends at any moment leaves a release as it was before a look or as it
is after one, and its successor goes on from there.

The intervals by which the candidate is judged are counted in memory: an operator that has just started counts
a whole interval before it judges.
"""

from __future__ import annotations

import asyncio
import datetime
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from penstock_operator.api import ModelBackend, TrafficSplit
from penstock_operator.api.strategy import ReleaseMetric, Strategy, Verdict
from penstock_operator.autoscaling import Floor, target_of
from penstock_operator.desired import labels
from penstock_operator.desired.traffic import SplitPlan
from penstock_operator.kinds import BACKEND, SPLIT
from penstock_operator.kube.cluster import Obj
from penstock_operator.prometheus import NoValue
from penstock_operator.reconcile.context import ReconcileContext, Trial
from penstock_operator.reconcile.scale_owners import kept_at_zero
from penstock_operator.reconcile.status_writer import send_event
from penstock_operator.reconcile.view import View
from penstock_operator.releases import capacity, evidence, machine, standing, steps
from penstock_operator.releases.evidence import MOST_MESSAGE
from penstock_operator.releases.look import OVER, Look
from penstock_operator.releases.state import BackendSeen, Interval, Release, ReleaseEvent, Seen
from penstock_operator.releases.stored import stored as stored_release
from penstock_operator.status import RouterObserved, mirrors, router_ready
from penstock_operator.status import pods as pods_status
from penstock_operator.store import ObjectKey
from penstock_wire import durations
from penstock_wire.control.report import FIRST_BYTE_SECONDS
from penstock_wire.words import cut

MOST_ASKED = 4
"""Queries of a namespace that run at once; the others wait for their turn."""

LONGEST_ACTION = 128
"""Characters of the annotation's value that count: a status holds no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """The result of a look at a split's release.

    Args:
        release: what the split's status is to hold; None for nothing.
        events: what will have happened once the status holds the release.
        again: seconds after which to look again; None if nothing is awaited.
    """

    release: Release | None = None
    faults: tuple[str, ...] = ()
    events: tuple[ReleaseEvent, ...] = ()
    again: float | None = None


def look(ctx: ReconcileContext, split: TrafficSplit, plan: SplitPlan, routers: RouterObserved) -> Looked:
    """Compute the next step of a split's release."""
    strategy, before = split.spec.strategy, stored_release(split)
    if strategy is None or not plan.accepted:
        forget(ctx, _key(split))
        if strategy is None or before is None:
            return Looked()
        both = _seen(ctx, split, strategy.stable), _seen(ctx, split, strategy.candidate)
        seen = Seen(now=ctx.clock.now(), stable=both[0], candidate=both[1])
        return Looked(release=standing.rest(Look(strategy=strategy, release=before, seen=seen)).release)
    _follow(ctx, split, strategy)
    applied = None
    if before is not None and router_ready(None, routers).status == "True":
        applied = before.state.weight
    trial, verdicts = _trial(ctx, split, before), None
    # NB: also while a router is silent or behind: the counts of the others are evidence.
    if trial is not None and before is not None and _is_due(ctx, strategy, trial):
        verdicts = _verdicts(ctx, split, strategy, before, trial, routers)
    seen = Seen(
        now=ctx.clock.now(),
        stable=_seen(ctx, split, strategy.stable),
        candidate=_seen(ctx, split, strategy.candidate),
        applied=applied,
        verdicts=verdicts,
        action=split.metadata.annotations.get(labels.RELEASE, "")[:LONGEST_ACTION] or None,
    )
    advance = machine.advance(strategy, before, seen)
    if trial is not None and before is not None and verdicts is None and _cut(before, advance.release):
        # An interval counts requests of one weight: it ends early here, since pods came or went.
        seen = replace(seen, verdicts=_verdicts(ctx, split, strategy, before, trial, routers, ask=False))
        advance = machine.advance(strategy, before, seen)
    again = advance.again
    if trial is not None:
        again = min(again, max(trial.began + _interval(strategy) - ctx.clock.time(), 0.0) or again)
    return Looked(release=advance.release, faults=steps.faults(strategy), events=advance.events, again=again)


def forget(ctx: ReconcileContext, key: ObjectKey) -> None:
    """Stop counting for a split that is gone, or that has no release any more."""
    _end(ctx, key)
    endpoint = ctx.memory.followed.pop(key, None)
    if endpoint is None:
        return  # NB: so for each look at a split without a strategy; what follows goes through all splits
    others = {each for at, each in ctx.memory.followed.items() if at.namespace == key.namespace}
    if endpoint not in others:
        ctx.reports.releases.unfollow(key.namespace, endpoint)


async def taken(ctx: ReconcileContext, stored: Obj, split: TrafficSplit, looked: Looked) -> None:
    """Send a look's Events and begin the next interval, now that the split's status holds the result."""
    _trial(ctx, split, looked.release)
    for event in looked.events:
        ctx.log("release", key=str(_key(split)), reason=event.reason, text=event.message)
        await send_event(
            ctx, stored, action="Release", reason=event.reason, note=event.message, warning=event.warning
        )


def floor(view: View, backend: ModelBackend, now: datetime.datetime) -> Floor | None:
    """Return the replicas that releases need of a backend; None if none needs any.

    This follows from the statuses of splits alone: the next operator finds the same.
    """
    floors = [
        Floor(pods, split.name)
        for split in view.releases(backend.namespace, backend.name)
        if (pods := capacity.floors(split.spec.strategy, stored_release(split), now).get(backend.name, 0))
    ]
    return max(floors, key=lambda each: each.replicas, default=None)


def _key(split: TrafficSplit) -> ObjectKey:
    return ObjectKey(SPLIT.kind, split.namespace, split.name)


def _follow(ctx: ReconcileContext, split: TrafficSplit, strategy: Strategy) -> None:
    key, endpoint = _key(split), split.spec.endpoint
    if ctx.memory.followed.get(key, endpoint) != endpoint:
        forget(ctx, key)
    ctx.memory.followed[key] = endpoint
    ctx.reports.releases.follow(split.namespace, endpoint, strategy.stable, strategy.candidate)


def _seen(ctx: ReconcileContext, split: TrafficSplit, name: str) -> BackendSeen:
    namespace, seen = split.namespace, ctx.view.backends_seen(split.namespace)
    stored_backend = ctx.store.get(BACKEND, namespace, name)
    if stored_backend is None or name not in seen.ready:
        return BackendSeen(exists=False)
    ready = len(pods_status.ready(ctx.view.backend_pods(namespace, name)))
    backend = ctx.view.backend(namespace, name)
    target = None
    if backend is not None:
        target = target_of(backend, ctx.view.batching(backend), ctx.clock.now())
    return BackendSeen(
        exists=True,
        uid=stored_backend["metadata"]["uid"],
        # NB: without a Service of the backend's own, no router finds its pods.
        ready=0 if name in seen.without_service else ready,
        replicas=ready if backend is None else backend.spec.replicas,
        # NB: a 0 that another client has set stays, whatever a release needs.
        most=None if target is None or kept_at_zero(stored_backend) else target.max_replicas,
        answered=ctx.reports.answered_lately(namespace, split.spec.endpoint, name),
    )


def _interval(strategy: Strategy) -> float:
    """Return the seconds of an interval, rounded up: the times in a status are whole seconds."""
    return math.ceil(durations.parse_ms(strategy.analysis.interval) / 1000)


def _is_due(ctx: ReconcileContext, strategy: Strategy, trial: Trial) -> bool:
    return ctx.clock.time() - trial.began >= _interval(strategy)


def _cut(before: Release, after: Release) -> bool:
    """Whether the same step goes on with another weight."""
    weights = [(release.state.weight, release.state.mirror) for release in (before, after)]
    return before.step == after.step and after.state.phase not in OVER and weights[0] != weights[1]


def _trial(ctx: ReconcileContext, split: TrafficSplit, before: Release | None) -> Trial | None:
    """Return the interval that is under way; begin one if routers have taken up the weight, else None."""
    key, strategy = _key(split), split.spec.strategy
    state = None if before is None else before.state
    judged = strategy is not None and strategy.analysis.metrics
    if not judged or state is None or state.settled is None or state.phase in OVER:
        _end(ctx, key)
        return None
    of = (state.stable, state.candidate, state.settled, state.judged)
    trial = ctx.memory.trials.get(key)
    if trial is None or trial.of != of:
        _end(ctx, key)
        ctx.reports.releases.take(split.namespace, split.spec.endpoint)  # drop what was counted before
        trial = ctx.memory.trials[key] = Trial(of=of, began=ctx.clock.time())
    return trial


def _end(ctx: ReconcileContext, key: ObjectKey) -> None:
    """Drop the present interval, if any, with its queries."""
    trial = ctx.memory.trials.pop(key, None)
    if trial is not None and trial.asking is not None:
        trial.asking.cancel()


def _verdicts(
    ctx: ReconcileContext,
    split: TrafficSplit,
    strategy: Strategy,
    before: Release,
    trial: Trial,
    routers: RouterObserved,
    *,
    ask: bool = True,
) -> tuple[Verdict, ...] | None:
    """Return the verdicts of an interval that ends now; they stay the same until the status holds them.

    Without `ask`, the verdicts of Prometheus queries stay as they were.

    Returns:
        None while queries are running; the split is queued again once they are done.
    """
    if trial.verdicts is None:
        metrics = strategy.analysis.metrics
        counted = trial.interval
        if counted is None:
            counted = trial.interval = ctx.reports.releases.take(split.namespace, split.spec.endpoint)
            # A failure by the routers' counts does not wait for queries.
            judged = evidence.judge_all(metrics, before.verdicts, counted, FIRST_BYTE_SECONDS, {})
            kept = _kept(metrics, before.verdicts, judged)
            located = tuple(_located(split, strategy, routers, kept, counted))
            if not ask or any(verdict.verdict == "Fail" for verdict in located):
                trial.verdicts = located
                return located
        results = _answers(ctx, split, metrics, trial) if ask else {}
        if results is None:
            return None
        values = {query: None if isinstance(result, NoValue) else result for query, result in results.items()}
        judged = evidence.judge_all(metrics, before.verdicts, counted, FIRST_BYTE_SECONDS, values)
        explained = _explained(metrics, judged, results) if ask else _kept(metrics, before.verdicts, judged)
        trial.verdicts = tuple(_located(split, strategy, routers, explained, counted))
    return trial.verdicts


def _located(
    split: TrafficSplit,
    strategy: Strategy,
    routers: RouterObserved,
    verdicts: Iterable[Verdict],
    counted: Interval,
) -> Iterator[Verdict]:
    """Yield the verdicts; add to that on copies what routers forget with the mirror.

    If it fails, this is the path at which most answers differ; without any to compare, the reason.
    """
    endpoint, reports = split.spec.endpoint, list(routers.reports.values())
    for verdict in verdicts:
        more = ""
        if verdict.metric == "mismatch" and verdict.verdict == "Fail":
            where = mirrors.most(endpoint, strategy.candidate, reports)
            more = f", most at {where}" if where is not None else ""
        elif verdict.metric == "mismatch" and verdict.verdict == "Waiting" and not counted.candidate.compared:
            why = mirrors.obstacles(endpoint, strategy.candidate, reports)
            more = f": {why}" if why else ""
        if more:
            yield verdict.model_copy(update={"message": cut(f"{verdict.message}{more}", MOST_MESSAGE)})
        else:
            yield verdict


def _answers(
    ctx: ReconcileContext, split: TrafficSplit, metrics: Sequence[ReleaseMetric], trial: Trial
) -> Mapping[str, float | NoValue] | None:
    """Return the results of the queries; None while they are running.

    NB: no worker waits for them: with slow queries, the splits of one tenant would occupy all workers.
    """
    queries = sorted({metric.query for metric in metrics if metric.query})
    if not queries:
        return {}
    if trial.asking is None:
        key = _key(split)
        trial.asking = asyncio.create_task(_ask(ctx, split.namespace, queries))
        trial.asking.add_done_callback(lambda task: None if task.cancelled() else ctx.enqueue(key, 0.0))
    if not trial.asking.done():
        return None
    asked, trial.asking = trial.asking, None
    return asked.result()


async def _ask(ctx: ReconcileContext, namespace: str, queries: Sequence[str]) -> dict[str, float | NoValue]:
    turns = ctx.memory.asking.setdefault(namespace, asyncio.Semaphore(MOST_ASKED))

    async def result(query: str) -> float | NoValue:
        async with turns:
            return await ctx.prometheus.query(query)

    results = await asyncio.gather(*map(result, queries))
    return dict(zip(queries, results, strict=True))


def _explained(
    metrics: Sequence[ReleaseMetric], verdicts: Sequence[Verdict], results: Mapping[str, float | NoValue]
) -> Iterator[Verdict]:
    """Yield the verdicts, with the reason if a query has no value."""
    for metric, verdict in zip(metrics, verdicts, strict=True):
        result = results.get(metric.query or "")
        if isinstance(result, NoValue):
            yield verdict.model_copy(update={"message": cut(result.reason, MOST_MESSAGE)})
        else:
            yield verdict


def _kept(
    metrics: Sequence[ReleaseMetric], old: Sequence[Verdict], new: Sequence[Verdict]
) -> Iterator[Verdict]:
    """Yield the new verdicts, but the old ones for queries."""
    for metric, before, judged in zip_longest(metrics, old[: len(metrics)], new):
        if metric.name != "prometheus":
            yield judged
        elif before is not None and before.metric == metric.label:
            yield before
        else:
            yield Verdict(metric=metric.label, verdict="Waiting", message="not asked yet")
