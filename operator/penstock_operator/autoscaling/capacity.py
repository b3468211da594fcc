"""What one pod can do, by the service curves and slots that the sidecars report: where `targetLoad` is unset.

    L(W) = 1.05 · (a + b·W)                                  seconds of a batch of W items
    W*   = the largest W with L(W) + L(W)/2 <= latencyObjective   one that arrives waits half of it
    μ*   = C · W* / L(W*)                                    items a second that a pod with C slots answers
    T*   = 1.5 · C · W*                                      items that wait and are with its model then

Without an objective, without a curve, and where not even one item keeps the objective, W* is `maxBatchSize`.

The curve is remembered: sidecars report none of a model that had nothing to do for ten seconds. It follows
the reports slowly, since a line through some batches of one pod is off by some percent, and the replicas that
follow from it should not be. A flat line is mostly one through batches of one size: it replaces no other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from penstock_operator.autoscaling.window import MISSING, SILENT_S, PodLoad, RouterHolds, Sample, is_silent

MARGIN = 1.05
"""As the sidecar's own forecast has it, which chooses its batches (`estimators/latency_model.py`)."""
WAIT = 1.5
"""Batch times from arrival to answer."""
FOLLOWS_S = 60.0
"""The curve has gone 63 % of the way to what is reported after so many seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What a backend's batch policy asks for.

    Args:
        max_batch_size: items of a batch at most; 1 where nothing is batched.
        slots: batches that may be in one model at once, where no sidecar has said it.
        latency: `latencyObjective` in seconds; None for none.
    """

    max_batch_size: int
    slots: int = 1
    latency: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A service curve a + b·W of a backend's pods together.

    Args:
        at: when it was brought up to date, in seconds.
        a: seconds a batch of any size takes.
        b: seconds that each item adds.
        since: when the first line was taken, in seconds.
    """

    at: float
    a: float
    b: float
    since: float = -math.inf

    def seconds(self, items: int) -> float:
        """L(items)."""
        return MARGIN * (self.a + self.b * items)

    def largest(self, seconds: float) -> float:
        """Items of the largest batch that takes at most so long; below 1 where none does."""
        left = seconds / MARGIN - self.a
        if self.b <= 0.0:
            return math.inf if left >= 0.0 else 0.0
        return left / self.b + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What one pod can do.

    Args:
        batch_size: W*.
        slots: C, the mean of the pods that report.
        seconds: L(W*); None without a curve.
        item_seconds: L(1); None without a curve.
        keeps_objective: False where one item alone takes longer than the objective.
    """

    batch_size: int
    slots: float
    seconds: float | None = None
    item_seconds: float | None = None
    keeps_objective: bool = True

    @property
    def load(self) -> float:
        """T*."""
        return WAIT * self.slots * self.batch_size

    @property
    def rate(self) -> float | None:
        """μ*, items a second; None without a curve."""
        return None if self.seconds is None else self.slots * self.batch_size / self.seconds


def capacity(objective: Objective, curve: Curve | None, pods: Sequence[PodLoad], now: float) -> Capacity:
    """What one pod can do.

    Args:
        objective: what the policy asks for.
        curve: the service curve, None while none is known.
        pods: the backend's; those count that serve and report.
        now: the time in seconds.
    """
    reported = [sample.slots for sample in _latest(pods, now) if sample.slots is not None]
    slots = max(sum(reported) / len(reported), 1.0) if reported else float(objective.slots)
    size = objective.max_batch_size
    if curve is None:
        return Capacity(batch_size=size, slots=slots)
    item_seconds, keeps = curve.seconds(1), True
    if objective.latency is not None:
        fits = next(
            (most for share in (WAIT, 1.0) if (most := curve.largest(objective.latency / share)) >= 1.0), None
        )
        keeps = fits is not None
        size = min(size, math.floor(min(fits, size))) if fits is not None else size
    return Capacity(
        batch_size=size,
        slots=slots,
        seconds=max(curve.seconds(size), 1e-6),
        item_seconds=item_seconds,
        keeps_objective=keeps,
    )


def follow(before: Curve | None, pods: Sequence[PodLoad], now: float) -> Curve | None:
    """The curve by the latest reports.

    Args:
        before: what this returned last.
        pods: the backend's; those count that serve and report.
        now: the time in seconds.
    """
    lines = [line for sample in _latest(pods, now) for line in sample.curves]
    lines = [line for line in lines if line[1] > 0.0] or (
        [] if before is not None and before.b > 0.0 else lines
    )
    weight = sum(n for _, _, n in lines)
    if not weight:
        return before
    a = sum(a * n for a, _, n in lines) / weight
    b = sum(b * n for _, b, n in lines) / weight
    if before is None or before.b <= 0.0:
        return Curve(at=now, a=a, b=b, since=now)
    gap = max(now - before.at, 0.0)
    # At first the mean of all that was reported: one line through some batches is off by some percent.
    share = max(1.0 - math.exp(-gap / FOLLOWS_S), gap / max(now - before.since, 1.0))
    return Curve(
        at=now, a=before.a + share * (a - before.a), b=before.b + share * (b - before.b), since=before.since
    )


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How many items arrive.

    Args:
        rate: items a second.
        seconds: that it was counted over.
    """

    rate: float
    seconds: float

    def chance(self, sigmas: float) -> float:
        """So many standard deviations of what chance makes of the rate: a count n varies by its root.

        Args:
            sigmas: how many.
        """
        return sigmas * math.sqrt(self.rate / self.seconds)


def arrivals(
    pods: Sequence[PodLoad], holds: Sequence[RouterHolds], *, window: float, now: float, unknown: float
) -> Arrivals | None:
    """How many items arrive; None before there is a second of reports.

    What was refused has arrived, too; and what routers hold more than at the beginning of the window, as that
    has reached no pod yet.

    Args:
        pods: the backend's.
        holds: routers that held its requests lately.
        window: seconds to look back.
        now: the time in seconds.
        unknown: the rate of a pod that has said nothing for all of that time.
    """
    senders: list[PodLoad | RouterHolds] = [*pods, *holds]
    firsts = [sender.samples[0].at for sender in senders if sender.samples]
    seconds = min(window, now - min(firsts, default=now))
    if seconds < 1.0:
        return None
    start = now - seconds
    total = sum(_arrived(pod, start=start, now=now, unknown=unknown) for pod in pods)
    for router in holds:
        before = next((sample.load for sample in reversed(router.samples) if sample.at <= start), 0)
        total += router.held(now) - before
    return Arrivals(max(total, 0.0) / seconds, seconds)


def _arrived(pod: PodLoad, *, start: float, now: float, unknown: float) -> float:
    """Items that arrived at a pod from `start` on: while reports are missing, at the rate before.

    Before it was first heard, at the rate after.
    """
    samples = pod.samples
    arrived, since = _counted(samples, start)
    earlier = 0.0
    if samples and pod.since > start and (heard := samples[-1].at - pod.since) >= 1.0:
        earlier = arrived / heard * (pod.since - start)
    missing = not samples or now - samples[-1].at > MISSING * samples[-1].every
    if pod.left or not pod.was_ready or not missing:
        return arrived + earlier
    if not samples:
        # NB: one that has just become ready has not had the time to report.
        return unknown * (now - start) if pod.ready_for > SILENT_S else 0.0
    last = samples[-1].at
    spoke = last - since
    return earlier + arrived + (arrived / spoke if spoke >= 1.0 else unknown) * (now - max(last, start))


def _counted(samples: Sequence[Sample], start: float) -> tuple[float, float]:
    """The items that the reports after `start` count, and from when on.

    A report counts all that came since the one before it. Of one that was missed for a while, only the part
    from `start` on is taken: a minute's arrivals within a window of seconds were a burst that never was.
    """
    arrived = float(sum(sample.arrived for sample in samples if sample.at > start))
    for before, sample in pairwise(samples):
        if before.at <= start < sample.at:
            gap = sample.at - before.at
            if gap <= MISSING * sample.every:
                return arrived, before.at
            return arrived - sample.arrived * (start - before.at) / gap, start
    return arrived, max(samples[0].at, start) if samples else start


def _latest(pods: Sequence[PodLoad], now: float) -> list[Sample]:
    return [
        pod.samples[-1]
        for pod in pods
        if pod.was_ready and not pod.left and pod.samples and not is_silent(pod.samples, now)
    ]
