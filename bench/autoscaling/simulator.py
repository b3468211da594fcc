"""A backend in simulated time: arrivals, pods that start, batch and refuse, an autoscaler.

Batches are cut when a slot falls free; their size, the forecasts and what is refused are decided by
the sidecar's own `ModelPace`. Its queue is a first-come, first-served line here, as it is for requests of one
class without priority. The autoscaler gets the reports in the operator's own `LoadWindow`.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from bench.autoscaling.traces import Trace
from penstock_operator.autoscaling import LoadWindow, PodLoad, RouterHolds
from penstock_sidecar.estimators.model_pace import ModelPace
from penstock_sidecar.estimators.wait_estimator import SlotCycle
from penstock_wire.control.report import (
    BackendTotals,
    EndpointReport,
    Fit,
    Items,
    RouterReport,
    SidecarReport,
    Totals,
)
from penstock_wire.control.settings import Batching
from penstock_wire.errors import Reason

_CLASS = "/predict"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model: a batch of W items takes a + b·W seconds, times noise.

    Args:
        a: seconds a batch of any size takes.
        b: seconds that each item adds.
        noise: standard deviation of the logarithm of what a batch takes.
        batching: its policy.
    """

    a: float = 0.10
    b: float = 0.02
    noise: float = 0.1
    batching: Batching = field(
        default_factory=lambda: Batching(
            max_batch_size=32, latency_objective_ms=1000, default_timeout_ms=30_000
        )
    )

    @property
    def objective(self) -> float:
        """Seconds within which an answer counts."""
        policy = self.batching
        milliseconds = policy.latency_objective_ms or policy.default_timeout_ms
        return milliseconds / 1000

    @property
    def most(self) -> float:
        """Items that one pod answers in a second at most, within the objective."""
        fits = (self.objective / 1.5 - self.a) / self.b
        size = max(1, min(self.batching.max_batch_size, int(fits)))
        return size / (self.a + self.b * size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What an autoscaler may see.

    Args:
        now: the time in seconds.
        current: how many replicas there are to be now.
        pods: what they reported.
        holds: what the router reported that it holds.
        inside: items that are held, wait or are with a model, on average since the last look.
        arrived: items that arrived since the last look.
        startup: seconds that pods took to start lately; 0 while that is not known.
    """

    now: float
    current: int
    pods: tuple[PodLoad, ...]
    holds: tuple[RouterHolds, ...]
    inside: float
    arrived: int
    startup: float = 0.0


class Policy(Protocol):
    """An autoscaler."""

    interval: float

    def look(self, seen: Seen) -> int:
        """How many replicas there are to be.

        Args:
            seen: what it may see.
        """
        ...


@dataclass(slots=True, kw_only=True)
class Result:
    """What came of one run.

    Args:
        arrived: items.
        missed: of these, answered after the objective, refused, or not answered at the end.
        replica_seconds: of pods that were there, starting ones included.
        changes: of the replicas.
        replicas: (seconds, replicas) after each look.
    """

    arrived: int = 0
    missed: int = 0
    replica_seconds: float = 0.0
    changes: int = 0
    replicas: list[tuple[float, int]] = field(default_factory=list)

    @property
    def miss_percent(self) -> float:
        """Percent of the items."""
        return 100.0 * self.missed / max(self.arrived, 1)

    def peak(self) -> int:
        """The most replicas."""
        return max(count for _, count in self.replicas)


class _Pod:
    """One pod: its line, its slots, its estimates and its counters."""

    def __init__(self, name: str, model: Model, ready_at: float) -> None:
        policy = model.batching
        self.name, self.model, self.ready_at = name, model, ready_at
        self.objective = model.objective
        self.slots = policy.max_concurrent_batches
        self.pace = ModelPace(policy.max_batch_size)
        self.pace.apply(limit=policy.max_batch_size, objective=model.objective)
        self.line: deque[float] = deque()
        self.running = self.ongoing = self.seq = self.came = 0
        self.arrived = self.full = self.late = self.batches = self.items = 0
        self.leaves = False

    @property
    def load(self) -> int:
        return len(self.line) + self.ongoing

    def admits(self, now: float, deadline: float) -> bool:
        """Whether the sidecar would take one more item; counts it."""
        self.arrived += 1
        free, pace = self.slots - self.running, self.pace
        room = self.model.batching.queue_limit(self.slots, pace.rate * self.objective)
        if len(self.line) >= room + free * pace.limit:
            self.full += 1
            return False
        finish = pace.wait_estimator.finish(
            now,
            _CLASS,
            pace.size(now, _CLASS),
            items=len(self.line),
            waiting=len(self.line) + 1,
            lines=1,
            free=free,
            slots=self.slots,
        )
        if finish is not None and now + finish > deadline:
            self.late += 1
            pace.wait_estimator.refused += 1
            return False
        self.came += 1
        return True

    def report(self, now: float) -> SidecarReport:
        self.seq += 1
        lines = self.pace.latency_model.lines(now)
        return SidecarReport(
            pod=self.name,
            uid=self.name,
            seq=self.seq,
            state="ready",
            items=Items(queued=len(self.line), ongoing=self.ongoing),
            totals=Totals(
                arrived=self.arrived,
                batches=self.batches,
                batch_items=self.items,
                refused={Reason.QUEUE_FULL.value: self.full, Reason.DEADLINE.value: self.late},
            ),
            fit={
                name: Fit(
                    a_ms=line.a * 1000, b_ms=line.b * 1000, n=line.n, items=line.items, spread=line.spread
                )
                for name, line in lines.items()
            },
            slots=self.slots,
        )


class Simulation:
    """One backend, one trace, one autoscaler.

    Args:
        trace: what arrives.
        model: how long batches take.
        policy: the autoscaler.
        seed: of chance.
        window: seconds of reports that the autoscaler sees at least.
    """

    def __init__(
        self, trace: Trace, model: Model, policy: Policy, *, seed: int = 1, window: float = 60.0
    ) -> None:
        self._trace, self._model, self._policy = trace, model, policy
        self._most, self._objective = model.most, model.objective
        # What arrives is the same with every autoscaler.
        self._seed = seed
        self._random, self._arrivals = random.Random(seed), random.Random(f"arrivals {seed}")
        self._window = LoadWindow(window)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = self._named = self._router_seq = 0
        self._inside = self._arrived = self._arrived_before = 0
        self._area = self._looked = 0.0
        self._held: deque[float] = deque()
        self._pods: list[_Pod] = []
        self._ready: list[_Pod] = []
        self._wanted = trace.replicas
        self.result = Result()

    def run(self) -> Result:
        """Run the whole trace."""
        for _ in range(self._trace.replicas):
            self._create(0.0, startup=0.0)
        self._at(0.5, self._report)
        self._at(self._policy.interval, self._look)
        events, begin = self._events, self._trace.before
        end = begin + self._trace.seconds
        now = arrival = 0.0
        while (at := min(arrival, events[0][0])) < end:
            self.result.replica_seconds += max(at - max(now, begin), 0.0) * len(self._pods)
            self._area += (at - now) * self._inside
            now = at
            if arrival <= events[0][0]:
                arrival = self._arrive(now)
            else:
                heapq.heappop(events)[2](now)
        left = [*self._held, *(arrived for pod in self._pods for arrived in pod.line)]
        self._miss(arrived for arrived in left if end - arrived > self._objective)
        return self.result

    def _miss(self, arrivals: Iterable[float]) -> None:
        """Count items that have missed the objective, by when they arrived."""
        self.result.missed += sum(arrived >= self._trace.before for arrived in arrivals)

    def _at(self, when: float, event: Callable[[float], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, event))

    # Requests

    def _arrive(self, now: float) -> float:
        """An item arrives; returns when the next one does."""
        self._arrived += 1
        self.result.arrived += now >= self._trace.before
        self._inside += 1
        self._place(now, now)
        return now + self._arrivals.expovariate(max(self._trace.load(now) * self._most, 0.01))

    def _place(self, now: float, arrived: float) -> None:
        """Give an item to the less loaded of two pods; the router holds it where there is none."""
        if not self._ready:
            self._held.append(arrived)
            return
        ready, chance = self._ready, self._random.random
        first, other = ready[int(chance() * len(ready))], ready[int(chance() * len(ready))]
        pod = first if first.load <= other.load else other
        # NB: one that was held has its time from when a pod has it, as an endpoint's timeout has it.
        if not pod.admits(now, now + self._objective):
            self._miss((arrived,))
            self._inside -= 1
            return
        pod.line.append(arrived)
        self._cut(pod, now)

    def _cut(self, pod: _Pod, now: float) -> None:
        while pod.line and pod.running < pod.slots:
            size, waiting = pod.pace.size(now, _CLASS), len(pod.line)
            batch = [pod.line.popleft() for _ in range(min(size, waiting))]
            turn = pod.pace.wait_estimator.begin(
                now, _CLASS, len(batch), possible=size, waited=waiting, came=pod.came
            )
            pod.came = 0
            pod.running, pod.ongoing = pod.running + 1, pod.ongoing + len(batch)
            pod.batches, pod.items = pod.batches + 1, pod.items + len(batch)
            model = self._model
            seconds = (model.a + model.b * len(batch)) * math.exp(self._random.gauss(0.0, model.noise))
            self._at(now + seconds, partial(self._answer, pod, batch, turn, seconds))

    def _answer(self, pod: _Pod, batch: list[float], turn: SlotCycle, seconds: float, now: float) -> None:
        pod.running, pod.ongoing = pod.running - 1, pod.ongoing - len(batch)
        self._inside -= len(batch)
        pod.pace.wait_estimator.end(turn, waiting=bool(pod.line))
        pod.pace.succeeded(now, _CLASS, len(batch), seconds)
        self._miss(arrived for arrived in batch if now - arrived > self._objective)
        self._cut(pod, now)
        if pod.leaves and not pod.load:
            self._gone(pod, now)

    # Pods

    def _create(self, now: float, startup: float) -> None:
        self._named += 1
        # The n-th pod takes as long with every autoscaler.
        chance = random.Random(f"start {self._seed} {self._named}")
        startup *= math.exp(chance.gauss(0.0, 0.1))
        pod = self._make(f"pod-{self._named:04}", now + startup)
        self._pods.append(pod)
        self._at(pod.ready_at, lambda at: self._become_ready(pod, at))

    def _make(self, name: str, ready_at: float) -> _Pod:
        return _Pod(name, self._model, ready_at)

    def _become_ready(self, pod: _Pod, now: float) -> None:
        if pod.leaves:
            return
        self._ready.append(pod)
        held, self._held = self._held, deque()
        for arrived in held:
            self._place(now, arrived)

    def _scale(self, wanted: int, now: float) -> None:
        staying = [pod for pod in self._pods if not pod.leaves]
        for _ in range(wanted - len(staying)):
            self._create(now, self._trace.startup)
        # Those that start go first, then the least busy.
        staying.sort(key=lambda pod: (pod in self._ready, pod.load))
        for pod in staying[: max(len(staying) - wanted, 0)]:
            pod.leaves = True
            if pod in self._ready:
                self._ready.remove(pod)
            if not pod.load:
                self._gone(pod, now)

    def _gone(self, pod: _Pod, now: float) -> None:
        self._pods.remove(pod)
        self._window.leave(pod.name, pod.name, now)

    # The operator

    def _report(self, now: float) -> None:
        for pod in self._pods:
            if pod.ready_at <= now:
                self._record(pod.report(now), now)
        self._router_seq += 1
        held = len(self._held)
        router = RouterReport(
            pod="router",
            uid="router",
            seq=self._router_seq,
            state="ready",
            endpoints={"model": EndpointReport(backends={"model": BackendTotals(held=held)})},
        )
        self._window.record_held(router, held, now)
        self._at(now + 1.0, self._report)

    def _record(self, report: SidecarReport, now: float) -> None:
        self._window.record(report, now)

    def _look(self, now: float) -> None:
        ready = {pod.name: pod in self._ready for pod in self._pods if not pod.leaves}
        seen = Seen(
            now=now,
            current=self._wanted,
            pods=self._window.view(ready, now),
            holds=self._window.holds(now),
            inside=self._area / (now - self._looked),
            arrived=self._arrived - self._arrived_before,
            startup=self._window.startup,
        )
        self._area, self._looked, self._arrived_before = 0.0, now, self._arrived
        wanted = self._policy.look(seen)
        if wanted != self._wanted:
            self.result.changes += now >= self._trace.before
            self._wanted = wanted
            self._scale(wanted, now)
        if now >= self._trace.before:
            self.result.replicas.append((now - self._trace.before, wanted))
        self._at(now + self._policy.interval, self._look)
