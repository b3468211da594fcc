"""Recommends how many replicas a backend should have.

N = ceil(load / targetLoad). The load is the items queued and ongoing in all pods and the requests that
routers hold for the backend, averaged over the stable window (as Knative's pod autoscaler averages
concurrency). A tenth of that window decides alone while it asks for at least twice the ready pods (Knative's
panic mode). If no pod is ready, the requests held now decide: nothing else can answer them.

Without `targetLoad` the target follows from what a pod can do (`capacity`), and the rate at which items
arrive is a second term:

    by rate    arrivals / (0.76 · μ*)    as soon as a curve is known
    by load    load / T*                 at most what clears it in a stable window, or one more than are ready

A load above what the ready pods should have is a queue. If it comes from too few pods, the rate says how many
are needed, and the queue goes once they are ready; the load would ask for more and more pods while they
start. N rises by the last third of the window alone, extrapolated by its trend to the time when pods that
start now are ready (`forecast`), and only if chance does not explain the rise, so that chance does not make N
rise and fall. The first seconds of a new load count as they are.

N falls to the most that was wanted within the last half of a stable window, but keeps room for the greatest
rise within `downscaleDelay`; while that rise is unknown, N falls to the most that was wanted within
`downscaleDelay`. Here, what one standard deviation more would ask for counts as wanted, so that chance does
not ask again for pods that were just removed.

The load does not show refusals: however many items a full queue refuses, the load stays what queue and slots
hold. So if anything was refused within that tenth of the window, one more pod is wanted than are ready; the
next one is asked for when that pod is ready and items are still refused.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from penstock_operator.api import BatchPolicySpec, ModelBackend
from penstock_operator.api.backendstatus import ScalingInputs
from penstock_operator.api.defaults import max_ongoing_requests
from penstock_operator.autoscaling import schedule, slow_start
from penstock_operator.autoscaling.capacity import Curve, Objective, capacity, follow
from penstock_operator.autoscaling.demand import Asking, demand
from penstock_operator.autoscaling.forecast import Rates
from penstock_operator.autoscaling.scale_to_zero import Holders, active_at, patience
from penstock_operator.autoscaling.window import PodLoad, RouterHolds, is_silent
from penstock_wire import durations

Verdict = Literal[
    "Scale",
    "Steady",
    "Limited",
    "Delayed",
    "FirstLook",
    "Panic",
    "ShortOfProcessors",
    "NoHolder",
    "NoReports",
    "Release",
    "Schedule",
    "TooManyUnknown",
]

SOON = 0.5
"""Share of the stable window: replicas do not fall below the most that was wanted within it."""
NOBODY = Holders()
NO_HOLDER = "no endpoint sends it requests, so no router would hold one to wake it from 0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """`spec.autoscaling` in numbers: replicas, items per pod, seconds.

    `least_by` and `most_by` name the schedule that sets `min_replicas` and `max_replicas`, if one does; it
    may set one of them alone. `release` names the TrafficSplit that has raised `min_replicas` for a release,
    if any. `zero_after` is None if there must always be a pod; `target_load` is None if it follows from the
    objective.
    """

    min_replicas: int
    max_replicas: int
    target_load: int | None
    stable_window: float
    downscale_delay: float
    zero_after: float | None = None
    least_by: str = ""
    most_by: str = ""
    release: str = ""
    objective: Objective = field(default_factory=lambda: Objective(max_batch_size=1))

    def clamp(self, replicas: int) -> int:
        """Return the nearest number within the limits."""
        return min(max(replicas, self.min_replicas), self.max_replicas)


@dataclass(frozen=True, slots=True)
class Floor:
    """The replicas that a release needs of a backend: it raises `minReplicas`, within `maxReplicas`.

    Args:
        replicas: the least number.
        split: name of the TrafficSplit that makes the release.
    """

    replicas: int
    split: str


def target_of(
    backend: ModelBackend, batching: BatchPolicySpec, now: datetime.datetime, floor: Floor | None = None
) -> Target | None:
    """Return the target of a backend; None if it has no autoscaling or is suspended.

    Args:
        backend: the backend.
        batching: the batch policy that applies to it.
        now: wall time, for its schedules.
        floor: the replicas that a release needs of it, if any.
    """
    spec = backend.spec.autoscaling
    if spec is None or backend.spec.suspend:
        return None
    scheduled = schedule.in_force(spec.schedules, now)
    least, most, least_by, most_by = spec.min_replicas, spec.max_replicas, "", ""
    if scheduled is not None and scheduled.min_replicas is not None:
        least, least_by = scheduled.min_replicas, scheduled.name
    if scheduled is not None and scheduled.max_replicas is not None:
        most, most_by = scheduled.max_replicas, scheduled.name
    raised = floor is not None and floor.replicas > least
    least = min(floor.replicas, most) if floor is not None and raised else least
    return Target(
        min_replicas=least,
        max_replicas=most,
        least_by=least_by,
        most_by=most_by,
        release=floor.split if floor is not None and raised else "",
        target_load=spec.target_load,
        stable_window=durations.parse_ms(spec.stable_window) / 1000,
        downscale_delay=durations.parse_ms(spec.downscale_delay) / 1000,
        zero_after=durations.parse_ms(spec.scale_to_zero.after) / 1000
        if least == 0 and spec.scale_to_zero is not None
        else None,
        objective=objective_of(backend, batching),
    )


def objective_of(backend: ModelBackend, batching: BatchPolicySpec) -> Objective:
    """Return what a backend's pods are to keep.

    Args:
        backend: the backend.
        batching: the batch policy that applies to it.
    """
    latency = batching.latency_objective
    if backend.spec.model.protocol == "none":
        return Objective(max_batch_size=1, slots=max_ongoing_requests(backend))
    return Objective(
        max_batch_size=batching.max_batch_size,
        slots=batching.max_concurrent_batches,
        latency=None if latency is None else durations.parse_ms(latency) / 1000,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerState:
    """The memory of one backend's autoscaler. A new leader begins with `ScalerState()`.

    Args:
        first_look: time of the first look, in seconds.
        wanted: (time, replicas) wanted lately, oldest first, each less than the one before it: an earlier
            want that a later one reached has no effect.
        panic_until: no decrease before this time, in seconds.
        active_at: time of the last request (`scale_to_zero.active_at`), in seconds.
        curve: the service curve of its pods.
        rates: the remembered rates of arrivals.
    """

    first_look: float | None = None
    wanted: tuple[tuple[float, int], ...] = ()
    panic_until: float = -math.inf
    active_at: float | None = None
    curve: Curve | None = None
    rates: Rates = field(default_factory=Rates)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The recommended number of replicas, with its reason.

    Args:
        replicas: the recommendation, within the limits.
        current: `spec.replicas` at the time.
        verdict: one word for the cause.
        message: the cause in words, with the numbers.
        inputs: for `status.scaling`.
        metrics_available: whether enough pods report for the number to be meaningful.
        limit: in words, what keeps the number from what the load asks for.
        item_seconds: seconds that a batch of one item takes; None if unknown, or without an objective.
        unreachable: whether the objective allows less than that.
    """

    replicas: int
    current: int
    verdict: Verdict
    message: str
    inputs: ScalingInputs
    metrics_available: bool
    item_seconds: float | None = None
    unreachable: bool = False
    limit: str = ""


def recommend(
    target: Target,
    *,
    current: int,
    pods: Sequence[PodLoad],
    state: ScalerState,
    now: float,
    holds: Sequence[RouterHolds] = (),
    holders: Holders = NOBODY,
    startup: float = 0.0,
) -> tuple[Recommendation, ScalerState]:
    """Recommend replicas.

    The number rises at once, but step by step while processors are short (`slow_start`). It falls only to the
    most that was wanted within `downscale_delay`, or to what can take the greatest rise again (`forecast`),
    and from one to none by `scale_to_zero` alone. A silent pod counts with its last load, and after a stable
    window with targetLoad; while half of the pods are silent the number does not fall, and while more are it
    stays. A new leader lowers nothing before it has watched for one stable window. The limits hold at once.

    Args:
        target: the limits.
        current: `spec.replicas` now.
        pods: the known state of the pods (`LoadWindow.view`).
        state: the state that the last call returned.
        now: the time in seconds.
        holds: routers that held its requests lately (`LoadWindow.holds`).
        holders: the routers' readiness to hold them while there is no pod; for backends that can have none.
        startup: seconds that its pods took to start lately (`LoadWindow.startup`); 0 if unknown.

    Returns:
        The recommendation, and the state for the next call. If `replicas` differs from `current`, write it
        through `/scale`.
    """
    active = active_at(state.active_at, current=current, pods=pods, holds=holds, now=now)
    state = replace(state, active_at=active)
    if target.zero_after is None:
        return _follow(target, current=current, pods=pods, state=state, now=now, holds=holds, startup=startup)
    held = sum(router.held(now) for router in holds)
    if current == 0 and not held and not holders.awaited:
        first = now if state.first_look is None else state.first_look
        return _asleep(target, holders), replace(state, first_look=first)
    least = replace(target, min_replicas=max(1, target.min_replicas))
    recommendation, state = _follow(
        least, current=current, pods=pods, state=state, now=now, holds=holds, startup=startup
    )
    if current == 0 and not held:
        return replace(
            recommendation, message="an endpoint sends it no request before it has a ready pod"
        ), state
    settled = recommendation.verdict in ("Steady", "NoReports") and recommendation.replicas == current == 1
    if not settled or held or holders.awaited or recommendation.inputs.silent_pods:
        return recommendation, state
    if not holders.named:
        return replace(
            recommendation, verdict="NoHolder", message=f"{recommendation.message}; {NO_HOLDER}"
        ), state
    if now - active < (idle := patience(target.zero_after, pods)):
        if recommendation.inputs.wanted == 0:
            waits = f"{recommendation.message}; the last pod goes after {idle:g}s without a request"
            recommendation = replace(recommendation, message=waits)
        return recommendation, state
    if holders.missing:
        why = f"{recommendation.message}; not lowered to 0, where routers hold what comes: {holders.missing}"
        return replace(recommendation, verdict="Delayed", message=why), state
    because = f"no request for {target.zero_after:g}s"
    return replace(
        recommendation, replicas=0, verdict="Scale", message=because, metrics_available=True
    ), state


def _asleep(target: Target, holders: Holders) -> Recommendation:
    """Return the recommendation for a backend at 0 for which no request is held."""
    return Recommendation(
        replicas=0,
        current=0,
        verdict="Steady" if holders.named else "NoHolder",
        message="0 until a request is held for it" if holders.named else NO_HOLDER,
        inputs=ScalingInputs(target_load=target.target_load or 0),
        metrics_available=True,
    )


def _follow(
    target: Target,
    *,
    current: int,
    pods: Sequence[PodLoad],
    state: ScalerState,
    now: float,
    holds: Sequence[RouterHolds],
    startup: float,
) -> tuple[Recommendation, ScalerState]:
    """Recommend replicas, without the step from one to none and back."""
    first, recent = state.first_look, state.wanted
    if first is None:
        first, recent = now, ((now, target.clamp(current)),)
    held = sum(router.held(now) for router in holds)
    serving = [pod for pod in pods if not pod.left and pod.was_ready]
    silent = [pod for pod in serving if is_silent(pod.samples, now)]
    known: dict[str, int] = {
        "silent_pods": len(silent),
        "held": held,
        "ready_pods": len(serving) - len(silent),
    }
    objective = target.objective
    if target.target_load is None or objective.latency is not None:
        state = replace(state, curve=follow(state.curve, pods, now, most=objective.max_batch_size))
    able = capacity(objective, state.curve, pods, now)
    item_seconds = None if objective.latency is None else able.item_seconds
    known["target_load"] = target.target_load or math.ceil(able.load)

    kept = target.clamp(current)
    verb = "kept at" if kept == current else "set to"
    stays = Recommendation(
        replicas=kept,
        current=current,
        verdict="TooManyUnknown" if serving else "NoReports",
        message=f"{verb} {kept}: {_unknown(len(silent), len(serving))}{_limited(target, current)}",
        inputs=ScalingInputs(wanted=kept, **known),
        metrics_available=False,
        item_seconds=item_seconds,
        unreachable=not able.keeps_objective,
    )
    after = replace(state, first_look=first, wanted=_remember(recent, now, kept, target.downscale_delay))
    if not (serving or held) or len(silent) * 2 > len(serving):
        return stays, after

    asked = demand(
        Asking(
            pods=pods, holds=holds, serving=serving, ready=known["ready_pods"], held=held, current=current,
            target_load=target.target_load, able=able, stable_window=target.stable_window,
            memory=target.downscale_delay, startup=startup,
        ),
        panic_until=state.panic_until, rates=state.rates, now=now,
    )  # fmt: skip
    wanted = asked.wanted
    history = _remember(recent, now, target.clamp(asked.likely), target.downscale_delay)

    replicas, verdict, limit = _decide(
        target,
        current=current,
        wanted=wanted if serving else max(wanted, current),
        recent=_recent(target, history, asked.keep, now),
        lowering=now - first >= target.stable_window,
        panic=now < asked.panic_until,
    )
    if not serving and target.clamp(wanted) < replicas == current:
        verdict, limit = "Delayed", f"{limit}; not lowered while no pod is ready"
    wait = slow_start.processor_wait(pods, holds, now)
    if wait is not None:
        known["processor_wait_percent"] = round(100 * wait)
    ready = sum(pod.ready and not pod.left for pod in pods)
    for_now = slow_start.step_up(replicas, current=current, ready=ready, least=target.min_replicas, wait=wait)
    if for_now < replicas:
        who = f"at most twice the {ready} that are ready: they"
        if for_now > 2 * ready:  # these were asked for earlier, or by minReplicas
            who = f"and more when these are ready (so far {ready}): pods"
        limit += (
            f"; {for_now} for now, {who} wait for processors {known['processor_wait_percent']}% of the time"
        )
        replicas, verdict = for_now, "ShortOfProcessors"
    state = replace(state, first_look=first, panic_until=asked.panic_until, rates=asked.rates)
    if silent and len(silent) * 2 == len(serving) and replicas <= kept:
        return stays, replace(state, wanted=after.wanted)
    return (
        Recommendation(
            replicas=replicas,
            current=current,
            verdict=verdict,
            message=asked.words + limit,
            inputs=ScalingInputs(wanted=wanted, **asked.terms, **known),
            metrics_available=True,
            item_seconds=item_seconds,
            unreachable=not able.keeps_objective,
            limit=limit.lstrip(",; "),
        ),
        replace(state, wanted=history),
    )


def _unknown(silent: int, serving: int) -> str:
    """Return the reason why the number stays, in words."""
    return f"{silent} of {serving} pods are silent" if serving else "it has no ready pod"


def _limited(target: Target, current: int) -> str:
    """Return, in words, the limit or release that changes the number although no load is known."""
    if target.release or target.clamp(current) == current:
        return _released(target)
    if current < target.min_replicas:
        return f"; minReplicas{_of(target.least_by)} is {target.min_replicas}"
    return f"; maxReplicas{_of(target.most_by)} is {target.max_replicas}"


def _of(schedule: str) -> str:
    return f" of schedule {schedule}" if schedule else ""


def _decide(
    target: Target, *, current: int, wanted: int, recent: _Recent, lowering: bool, panic: bool
) -> tuple[int, Verdict, str]:
    """Return the replicas, the verdict, and in words what keeps them from what the load asks for."""
    within = target.clamp(wanted)
    released = target.release != "" and wanted < target.min_replicas
    by = ""
    if wanted > target.max_replicas:
        by = target.most_by
        edge = f", limited to maxReplicas {target.max_replicas}{_of(by)}"
    elif released:
        edge = _released(target)
    elif wanted < target.min_replicas and target.zero_after is None:
        by = target.least_by
        edge = f", limited to minReplicas {target.min_replicas}{_of(by)}"
    else:
        edge = ""
    held = target.clamp(current)
    if within < held:
        if held < current:
            edge += f"; maxReplicas{_of(target.most_by)} is {target.max_replicas}"
        if not lowering:
            return held, "FirstLook", f"{edge}; not lowered before one stable window has been watched"
        if panic:
            return held, "Panic", f"{edge}; not lowered within {target.stable_window:g}s of a burst"
        asked, within = within, min(held, max(within, recent.replicas))
        if within > asked:
            edge += f"; {recent.why}"
        if within == held:
            return held, "Delayed", edge
    if within != current:
        return within, "Scale", edge
    if released:
        return within, "Release", edge
    if by:
        return within, "Schedule", edge
    return within, "Limited" if wanted > target.max_replicas else "Steady", edge


@dataclass(frozen=True, slots=True)
class _Recent:
    """The number of replicas that a decrease must leave, and the reason in words."""

    replicas: int
    why: str


def _recent(target: Target, history: tuple[tuple[float, int], ...], keep: int | None, now: float) -> _Recent:
    """Return what a decrease must leave: the most wanted within `downscaleDelay`, or less if enough."""
    most = history[0][1]
    why = f"{most} were wanted within the last {target.downscale_delay:g}s"
    if keep is None:
        return _Recent(most, why)
    soon = target.stable_window * SOON
    near = next(count for at, count in history if now - at < soon)
    if max(near, keep) >= most:
        return _Recent(most, why)
    if near >= keep:
        return _Recent(near, f"{near} were wanted within the last {soon:g}s")
    return _Recent(keep, f"{keep} leave room for the greatest rise of the last {target.downscale_delay:g}s")


def _released(target: Target) -> str:
    """Return, in words, which release has raised the least number; empty if none has."""
    if not target.release:
        return ""
    return f"; the release of TrafficSplit {target.release} needs {target.min_replicas}"


def _remember(
    wanted: tuple[tuple[float, int], ...], now: float, replicas: int, delay: float
) -> tuple[tuple[float, int], ...]:
    """Return the wants of the last `delay` seconds that still matter, the greatest and oldest first."""
    kept = [(at, count) for at, count in wanted if now - at < delay and count > replicas]
    return (*kept, (now, replicas))
