"""Keeps the latest reports of one backend's pods, and of the routers that hold its requests."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from statistics import median

from msgspec import UNSET

from penstock_operator.api.backendstatus import QueueLoad
from penstock_wire.control.report import Fit, RouterReport, SidecarReport, Totals
from penstock_wire.errors import Reason

SILENT_S = 10.0
"""Seconds without a report after which a pod that reports every second counts as silent."""

MISSING = 2.0
"""Number of report intervals after which the next report counts as missing."""


def silent_after(every: float) -> float:
    """Seconds without a report after which a pod counts as silent."""
    return max(SILENT_S, 2.5 * every)


MOST_SLOTS = 100_000
"""Slots of one pod at most: the largest `maxOngoingRequests`; a report of more counts as this."""
MOST_BATCHES = 200
"""Batches that a curve rests on at most: the sidecar looks back at this many."""

MOST_ITEMS = 10**9
"""Items that one report counts at most, so that sums and products of them fit into a status."""
MOST_SAMPLES = 320
"""Samples of one sender at most: some 100 KiB."""
_RECENT = 128
"""Number of latest samples that are kept as they came; older ones are merged into about as many."""

COSTS_S = 20.0
"""Seconds over which what an item costs is averaged."""
_STARTUPS = 9
"""Number of latest start-ups that the median is taken of."""
_RATES_S = 60.0
"""Seconds over which the status shows arrivals and batch fill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedLine:
    """A service curve a + b·W as one pod measured it; both numbers can be negative by chance.

    Args:
        a: seconds that a batch of any size takes.
        b: seconds that each item adds.
        n: batches that it rests on.
        spread: standard deviation of their sizes.
        sized: False if the sizes are unknown, and all may have been the same.
    """

    a: float
    b: float
    n: int
    items: float = 1.0
    spread: float = 1.0
    sized: bool = True

    @property
    def information(self) -> float:
        """What it says of b: the sum of squares of the sizes' distances from their mean.

        The variance of a slope is the variance of the seconds, divided by this.
        """
        return self.n * self.spread**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The part of one report that scaling and status need.

    Args:
        load: items queued and ongoing, by what they cost where that is known; in a router's report, requests
            that it holds.
        arrived: items that arrived since the previous report, likewise; not those that another pod has
            counted.
        items: the number of these.
        refused: items that were refused for a full queue since the previous report; 0 after a silence, since
            it is unknown when they were refused.
        every: seconds until the next report, as the operator asked.
        processor_wait: share of the time for which the sender waited for a processor; None if unknown.
        slots: batches that can be with the pod's model at once; None if unknown.
        lines: the pod's service curves; kept for the latest report alone.
    """

    at: float
    load: float
    every: float = 1.0
    arrived: float = 0
    items: int = 0
    refused: int = 0
    batches: int = 0
    batch_items: int = 0
    processor_wait: float | None = None
    slots: int | None = None
    lines: tuple[FittedLine, ...] = ()


AT = attrgetter("at")
"""The time of a sample, by which a sender's samples are in order."""


def is_silent(samples: Sequence[Sample], now: float) -> bool:
    """Whether the sender of these samples has not reported for too long, or never.

    Args:
        samples: those of one pod or router, oldest first.
    """
    return not samples or now - samples[-1].at > silent_after(samples[-1].every)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLoad:
    """The known state of one pod.

    Args:
        was_ready: whether it has ever been ready; if not, it is coming capacity without a load.
        left: whether it is gone; its load then counts in the past, up to its last sample.
        ready_for: seconds since it was first seen to be ready; 0 if it is not.
        since: time of its first report here, in seconds, if items had arrived at it before that, at an
            unknown time. Otherwise minus infinity.
    """

    name: str
    ready: bool
    was_ready: bool
    left: bool = False
    samples: tuple[Sample, ...] = ()
    ready_for: float = 0.0
    since: float = -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterHolds:
    """The number of requests of the backend that one router held lately."""

    name: str
    left: bool = False
    samples: tuple[Sample, ...] = ()

    def held(self, now: float) -> int:
        """Return the number of requests that it holds now; 0 if it is gone or silent."""
        return 0 if self.left or is_silent(self.samples, now) else int(self.samples[-1].load)


@dataclass(slots=True, kw_only=True)
class _Router:
    uid: str
    gone: bool = False
    samples: deque[Sample] = field(default_factory=deque)


@dataclass(slots=True, kw_only=True)
class _Pod:
    report: SidecarReport
    at: float
    since: float
    was_ready: bool = False
    gone: bool = False
    samples: deque[Sample] = field(default_factory=deque)
    came: float = 0.0
    work: float = 0.0

    def arrived(self, after: Totals, before: Totals, every: float) -> float:
        """What arrived between two reports, by what items have cost lately.

        Not by what just these cost: the sum of a few unequal costs varies more than their number, and chance
        would make replicas rise and fall.
        """
        count = _count(after.arrived, before.arrived)
        if after.arrived_work is UNSET or before.arrived_work is UNSET:
            return count
        kept = math.exp(-every / COSTS_S)
        self.came = kept * self.came + count
        self.work = kept * self.work + max(after.arrived_work - before.arrived_work, 0.0)
        return min(count * self.work / self.came, MOST_ITEMS) if self.came else 0.0

    @property
    def silent_after(self) -> float:
        return silent_after(self.samples[-1].every if self.samples else 0.0)


def _line(fit: Fit) -> FittedLine:
    """The line of a report. Older sidecars tell no sizes; a flat line of theirs is of batches of one size."""
    sized = fit.spread is not None or fit.b_ms > 0
    return FittedLine(
        a=fit.a_ms / 1000,
        b=fit.b_ms / 1000,
        n=min(fit.n, MOST_BATCHES),
        items=1.0 if fit.items is None else fit.items,
        spread=float(sized) if fit.spread is None else fit.spread,
        sized=sized,
    )


def _no_longer_latest(samples: deque[Sample]) -> None:
    """Drop the latest sample's lines: only the next one's count. They can be most of its bytes."""
    if samples and samples[-1].lines:
        samples[-1] = replace(samples[-1], lines=())


def _thin_out(samples: deque[Sample], keep: float) -> None:
    """Merge older samples that are close together if there are too many: minutes are enough for hours."""
    if len(samples) <= MOST_SAMPLES:
        return
    known, apart = list(samples), keep / _RECENT
    samples.clear()
    for sample in known[:-_RECENT]:
        # NB: on a grid of `apart`. By the distance to the one before, the oldest would absorb all others.
        same = samples and sample.at // apart == samples[-1].at // apart
        samples.append(_together(samples.pop(), sample) if same else sample)
    samples.extend(known[-_RECENT:])


def _together(first: Sample, second: Sample) -> Sample:
    """Return one sample in place of two that follow each other."""
    return replace(
        second,
        every=first.every + second.every,
        arrived=first.arrived + second.arrived,
        items=first.items + second.items,
        refused=first.refused + second.refused,
        batches=first.batches + second.batches,
        batch_items=first.batch_items + second.batch_items,
    )


def _count(after: int, before: int = 0) -> int:
    return min(after - before, MOST_ITEMS)


def _no_room(report: SidecarReport) -> int:
    """Return the number of items that a pod refused for a full queue since it started.

    Items refused for their deadline do not count: a client can make that as short as it likes.
    """
    return report.totals.refused.get(Reason.QUEUE_FULL, 0)


def _restarted(before: SidecarReport, report: SidecarReport) -> bool:
    """Whether the sidecar has restarted between two reports, so that its counts began at 0 again.

    The report number alone does not show it: if the new process's first reports were lost, its number can
    have passed that of the old one.
    """
    old, new = before.totals, report.totals
    fell = new.arrived < old.arrived or new.batches < old.batches or new.batch_items < old.batch_items
    return report.seq <= before.seq or fell or _no_room(report) < _no_room(before)


class LoadWindow:
    """The reports of one backend's pods over a stretch of time; the shell owns and feeds it.

    Args:
        keep: seconds of samples to keep: at least the stable window, and at least 60.
    """

    def __init__(self, keep: float = _RATES_S) -> None:
        self._keep = max(keep, _RATES_S)
        self._pods: dict[str, _Pod] = {}
        self._routers: dict[str, _Router] = {}
        self._ready_since: dict[str, float] = {}
        self._starting: dict[str, float] = {}
        self._startups: deque[float] = deque(maxlen=_STARTUPS)
        self._coming = 0.0
        self._busy = -math.inf
        """The time of the last report that had an item, now or since the one before, in seconds."""

    def record(self, report: SidecarReport, at: float, *, every: float = 1.0) -> None:
        """Record a pod's report.

        A pod of a known name with another uid starts with an empty history; if `seq` or a count fell, the
        sidecar has restarted.
        """
        pod = self._pods.get(report.pod)
        if pod is None or pod.report.uid != report.uid:
            # What a process counted before its first report here did not arrive now, unless that is number 1.
            before = None if report.seq <= 1 else report
            unknown = before is not None and report.totals.arrived > 0
            pod = self._pods[report.pod] = _Pod(report=report, at=at, since=at if unknown else -math.inf)
        elif report.seq == pod.report.seq:
            return
        else:
            before = None if _restarted(pod.report, report) else pod.report
        totals, past = report.totals, before.totals if before else Totals()
        came = totals.arrived != past.arrived or totals.batches != past.batches
        if came or report.items.queued or report.items.ongoing or report.oldest_age_ms:
            self._busy = at
        was_silent = at - pod.at > pod.silent_after
        _no_longer_latest(pod.samples)
        pod.samples.append(
            Sample(
                at=at,
                every=every,
                load=min(report.items.load, MOST_ITEMS),
                arrived=pod.arrived(totals, past, every),
                items=_count(totals.arrived, past.arrived),
                refused=0 if was_silent else _count(_no_room(report), _no_room(before) if before else 0),
                batches=_count(totals.batches, past.batches),
                batch_items=_count(totals.batch_items, past.batch_items),
                processor_wait=report.processor_wait,
                slots=min(report.slots, MOST_SLOTS),
                lines=tuple(_line(fit) for fit in report.fit.values()),
            )
        )
        self._trim(pod.samples, at, least=1)
        _thin_out(pod.samples, self._keep)
        pod.report, pod.at = report, at
        pod.was_ready = pod.was_ready or report.state == "ready"

    def record_held(self, report: RouterReport, held: int, at: float, *, every: float = 1.0) -> None:
        """Record how many requests of the backend a router holds."""
        router = self._routers.get(report.pod)
        if router is None or router.uid != report.uid:
            if not held:
                self._routers.pop(report.pod, None)
                return
            router = self._routers[report.pod] = _Router(uid=report.uid)
        router.samples.append(
            Sample(at=at, every=every, load=_count(held), processor_wait=report.processor_wait)
        )
        self._trim(router.samples, at, least=1)
        _thin_out(router.samples, self._keep)
        if len(router.samples) == 1 and not held:
            del self._routers[report.pod]

    def holds(self, now: float) -> tuple[RouterHolds, ...]:
        """Return what routers held for the backend lately; forget what is older than `keep`."""
        for name, router in list(self._routers.items()):
            self._trim(router.samples, now, least=0)
            if not router.samples:
                del self._routers[name]
        return tuple(
            RouterHolds(name=name, left=router.gone, samples=tuple(router.samples))
            for name, router in sorted(self._routers.items())
        )

    def leave(self, pod: str, uid: str, now: float) -> None:
        """Record that a pod or a router is gone; its load counts as long as its samples lie in the window.

        Args:
            uid: its uid; another pod of the same name stays.
        """
        known = self._pods.get(pod)
        if known is not None and known.report.uid == uid:
            known.gone = True
        router = self._routers.get(pod)
        if router is not None and router.uid == uid:
            router.gone = True
        self._drop_gone(now)

    def view(self, pods: Mapping[str, bool], now: float, *, keep: float | None = None) -> tuple[PodLoad, ...]:
        """Return what is known of the pods, for `recommend`; forget what is older than `keep`.

        Args:
            pods: the pods that exist (and are not being deleted) by name, and whether each is ready.
            keep: seconds of samples to keep from now on; None: as before.

        Returns:
            The pods that exist, and those that left, as long as their samples lie in the window.
        """
        if keep is not None:
            self._keep = max(keep, _RATES_S)
        self._prune(pods, now)
        since = self._ready_since
        self._ready_since = {name: since.get(name, now) for name, ready in pods.items() if ready}
        self._started(pods, now)
        loads = []
        for name in sorted(pods.keys() | self._pods.keys()):
            known = self._pods.get(name)
            ready = pods.get(name, False)
            if known is not None and ready:
                known.was_ready = True
            loads.append(
                PodLoad(
                    name=name,
                    ready=ready,
                    was_ready=ready or (known is not None and known.was_ready),
                    left=name not in pods,
                    samples=tuple(known.samples) if known else (),
                    ready_for=now - self._ready_since.get(name, now),
                    since=known.since if known else -math.inf,
                )
            )
        return tuple(loads)

    @property
    def startup(self) -> float:
        """Median seconds that pods took lately from first being seen to being ready; 0 if unknown.

        A pod that downloads its model's files tells more: no less than it takes until it has them.
        """
        return max(median(self._startups) if self._startups else 0.0, self._coming)

    def _started(self, pods: Mapping[str, bool], now: float) -> None:
        """Record which pods are starting, and how long the pods that have just become ready took."""
        starting = self._starting
        self._startups.extend(
            now - starting[name] for name, ready in pods.items() if ready and name in starting
        )
        # A pod that is not ready now but was before is not starting.
        self._starting = {
            name: starting.get(name, now)
            for name, ready in pods.items()
            if not ready and not (name in self._pods and self._pods[name].was_ready)
        }
        states = {
            name: self._pods[name].report.artifact for name in self._starting.keys() & self._pods.keys()
        }
        self._coming = max(
            (
                now - self._starting[name] + state.left
                for name, state in states.items()
                if state and state.left
            ),
            default=0.0,
        )

    def last(self, pod: str) -> tuple[float, SidecarReport] | None:
        """Return the time of a pod's last report, in seconds, and the report; None if there is none."""
        known = self._pods.get(pod)
        return None if known is None else (known.at, known.report)

    def latest(self) -> Mapping[str, tuple[float, SidecarReport]]:
        """Return the time of each pod's last report, in seconds, and the report."""
        return {name: (pod.at, pod.report) for name, pod in self._pods.items()}

    def oldest(self) -> float | None:
        """Return the time of the least recent of the pods' last reports, in seconds; None without pods."""
        return min((pod.at for pod in self._pods.values() if not pod.gone), default=None)

    def load(self, now: float, max_batch_size: int) -> QueueLoad:
        """Return the pods' part of `status.load`: queues now, arrivals and batch fill of the last minute."""
        self._drop_gone(now)
        if now - self._busy > _RATES_S:
            return QueueLoad()  # NB: most backends of a cluster sleep, and their samples are many
        talking = [pod.report for pod in self._pods.values() if now - pod.at <= pod.silent_after]
        lately = [
            sample for pod in self._pods.values() for sample in pod.samples if now - sample.at <= _RATES_S
        ]
        first = min((sample.at for sample in lately), default=now)
        span = max(now - first, 1.0)
        batches = sum(sample.batches for sample in lately)
        items = sum(sample.batch_items for sample in lately)
        return QueueLoad(
            queued=sum(report.items.queued for report in talking),
            ongoing=sum(report.items.ongoing for report in talking),
            oldest_age_ms=max((report.oldest_age_ms for report in talking), default=0),
            arrivals_per_minute=round(sum(sample.items for sample in lately) * 60 / span),
            # NB: batches of before maxBatchSize was lowered are larger than it.
            batch_fill_percent=min(round(100 * items / (batches * max_batch_size)), 100) if batches else 0,
        )

    def _prune(self, pods: Mapping[str, bool], now: float) -> None:
        """Forget old samples; an existing pod keeps its last one, as the load with which it fell silent."""
        for name, pod in list(self._pods.items()):
            self._trim(pod.samples, now, least=1 if name in pods else 0)
            if not pod.samples:
                del self._pods[name]

    def _trim(self, samples: deque[Sample], now: float, *, least: int) -> None:
        while len(samples) > least and now - samples[0].at > self._keep:
            # The sample that was current when the window began is needed too.
            if len(samples) > 1 and now - samples[1].at < self._keep:
                break
            samples.popleft()

    def _drop_gone(self, now: float) -> None:
        for name, pod in list(self._pods.items()):
            if pod.gone and now - pod.at > self._keep:
                del self._pods[name]
