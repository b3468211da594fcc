"""Simulates holding a slot: the sidecar's own cutter before a simulated model, in discrete events.

Queue, cutter, hold policy, latency model and slots are the real ones; the loop around them is the
dispatcher's, without its transport. `HOLD` is the product, `EAGER` the same with holding off, and `ORACLE`
knows when each caller comes back. Nothing is refused on arrival: who is too late is dropped when a batch is
cut.
"""

from __future__ import annotations

import dataclasses
import heapq
import random
from collections.abc import Callable, Sequence
from typing import Any

from penstock_sidecar.admission.slots import Slots
from penstock_sidecar.batching.batch import Batch
from penstock_sidecar.batching.cutter import Cutter
from penstock_sidecar.estimators import hold_policy
from penstock_sidecar.estimators.model_pace import ModelPace
from penstock_sidecar.interfaces import Counts
from penstock_sidecar.queue.key import BatchKey
from penstock_sidecar.queue.queue import Queue
from penstock_sidecar.queue.request import Outcome, QueuedRequest, Slice
from penstock_wire.control.settings import Batching
from penstock_wire.http import Request
from penstock_wire.timers import TIMER_SLACK

EAGER, HOLD, ORACLE = "eager", "hold", "oracle"
KEY = BatchKey("POST", "/v1/models/m:predict", (), ())
REQUEST = Request(method="POST", target="/v1/models/m:predict", headers=(), body=b"")
WARM = 0.1
"""The share of a run before its figures count."""

Think = Callable[[random.Random], float]
"""Seconds between an answer and the caller's next request."""


def soon(least: float = 0.1e-3, mean: float = 0.08e-3) -> Think:
    """Callers who ask again as soon as they are answered: what the way takes, and an exponential part."""
    return lambda draw: least + draw.expovariate(1.0 / mean)


SOON = soon()


def thinking(mean: float) -> Think:
    """Callers who think, exponentially."""
    return lambda draw: draw.expovariate(1.0 / mean)


def poisson(
    rate: float, seconds: float, *, burst: int = 1, spread: float = 0.0, seed: int = 3
) -> list[float]:
    """Arrivals that depend on nothing: one by one, or bursts of so many within `spread` seconds."""
    draw, now, arrivals = random.Random(seed), 0.0, list[float]()
    while now < seconds:
        now += draw.expovariate(rate / burst)
        arrivals += [now + draw.random() * spread for _ in range(burst)]
    return sorted(arrivals)


@dataclasses.dataclass(kw_only=True, frozen=True)
class Case:
    """The case to simulate.

    Args:
        base: seconds that any batch takes, `item` for each item of it.
        beside: seconds of the sidecar's own work beside each batch.
        think: what lies between an answer and their next request.
        timeout: of each request, in seconds.
        pods: behind a router that chooses the one with the least load.
    """

    base: float = 1e-3
    item: float = 1e-5
    beside: float = 0.15e-3
    jitter: float = 0.0
    callers: int = 0
    think: Think = SOON
    arrivals: Sequence[float] = ()
    seconds: float = 2.0
    timeout: float = 30.0
    levels: tuple[int, ...] = (1,)
    keys: int = 1
    pods: int = 1
    batching: dict[str, Any] = dataclasses.field(default_factory=dict)
    seed: int = 1


@dataclasses.dataclass
class Result:
    """The result, without its first tenth; latencies in seconds, by priority."""

    seconds: float
    latencies: dict[int, list[float]] = dataclasses.field(default_factory=dict)
    calls: int = 0
    items: int = 0
    counts: Counts = dataclasses.field(default_factory=Counts)
    dropped: int = 0

    @property
    def all(self) -> list[float]:
        """All latencies, the shortest first."""
        return sorted(each for times in self.latencies.values() for each in times)

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.all) / self.seconds

    @property
    def per_call(self) -> float:
        """Items a call."""
        return self.items / max(1, self.calls)

    def percentile(self, share: float, level: int | None = None) -> float:
        """A percentile of the latencies, of all or of one priority."""
        times = self.all if level is None else sorted(self.latencies[level])
        return times[min(len(times) - 1, int(share * len(times)))]


class _Call(QueuedRequest):
    __slots__ = ("caller",)

    caller: int

    def finish(self, outcome: Outcome) -> None:
        raise AssertionError("nothing is too late here")


class Pod:
    """A pod's queue, slots and cutter; it is the cutter's runner and its listener."""

    def __init__(self, simulation: Simulation, batching: Batching) -> None:
        self._simulation = simulation
        self.slots, self.pace, self.queue = Slots(), ModelPace(batching.max_batch_size), Queue()
        objective = batching.latency_objective_ms
        self.pace.apply(
            limit=batching.max_batch_size, objective=None if objective is None else objective / 1000
        )
        self.slots.count = batching.max_concurrent_batches
        self.size = batching.max_batch_size
        self.due: list[float] = []
        self.ongoing = 0
        self.cutter = Cutter(
            queue=self.queue,
            slots=self.slots,
            pace=self.pace,
            runner=self,  # type: ignore[arg-type]  # starts batches, as it does
            outcomes=self,  # type: ignore[arg-type]  # settles, as it does
        )
        self.cutter.apply(batching)

    @property
    def load(self) -> int:
        """The load by which a router chooses."""
        return self.queue.items + self.ongoing

    def start(self, parts: list[Slice], items: int, limit: int) -> Batch:
        self.slots.busy += 1
        self.ongoing += items
        return self._simulation.start(self, parts, items, limit)

    def settle(self, work: QueuedRequest, outcome: Outcome) -> None:
        if not work.done:
            work.done = True
            if work.queued:
                self.queue.leave(work)
            self._simulation.dropped(work)

    def ended(self, now: float, batch: Batch) -> None:
        """The model has answered a batch."""
        self.due.remove(min(self.due))
        self.slots.busy -= 1
        self.ongoing -= batch.items
        assert batch.turn is not None
        self.pace.wait_estimator.end(batch.turn, waiting=self.queue.items > 0)
        self.cutter.released(now, batch)
        key = batch.parts[0].work.key
        self.pace.succeeded(now, key.cls, batch.items, now - batch.began)


class Simulation:
    """One run.

    Args:
        weight: how much the oracle counts a caller that misses a batch.
    """

    def __init__(self, case: Case, policy: str, *, weight: float = hold_policy.WEIGHT) -> None:
        self.case, self.policy, self.now = case, policy, 0.0
        self._weight = weight
        fields = {"batch_wait_timeout_ms": 0} if policy != HOLD else {}
        batching = Batching(**(case.batching | fields))
        self._random = random.Random(case.seed)
        self.pods = [Pod(self, batching) for _ in range(case.pods)]
        self._keys = [BatchKey("POST", f"/{number}", (), ()) for number in range(case.keys)]
        self._events: list[tuple[float, int, str, Any]] = []
        self._next: dict[int, float] = {}
        self._number = 0
        self.result = Result(case.seconds * (1.0 - WARM))
        for caller in range(case.callers):
            # Two cohorts to begin with.
            self._at(0.0 if caller % 2 else case.base, "arrival", caller)
        for moment in case.arrivals:
            self._at(moment, "arrival", -1)

    def run(self) -> Result:
        """Simulate."""
        while self._events and self._events[0][0] <= self.case.seconds:
            self.now = self._events[0][0]
            while self._events and self._events[0][0] <= self.now:
                _, _, what, of = heapq.heappop(self._events)
                if what == "arrival":
                    self._arrive(of)
                elif what == "end":
                    self._end(*of)
            for pod in self.pods:
                self._look(pod)
        counts = [pod.cutter.counts for pod in self.pods]
        self.result.counts = Counts(
            *[sum(values) for values in zip(*map(dataclasses.astuple, counts), strict=True)]
        )
        return self.result

    def _at(self, when: float, what: str, of: Any = None) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, what, of))

    def dropped(self, work: QueuedRequest) -> None:
        """A request would be answered too late; its caller asks again."""
        if self.now > WARM * self.case.seconds:
            self.result.dropped += 1
        assert isinstance(work, _Call)
        self._ask_again(work.caller)

    def _arrive(self, caller: int) -> None:
        now, case = self.now, self.case
        key = self._keys[max(0, caller) % len(self._keys)]
        level = case.levels[max(0, caller) % len(case.levels)]
        until = now + case.timeout
        work = _Call(key, REQUEST, b"", [b"1"], (), now, until, until, level)
        work.caller = caller
        self._next.pop(caller, None)
        # A router's choice: the pod that has least to do.
        pod = min(self.pods, key=lambda pod: (pod.load, self._random.random()))
        pod.queue.add(work)
        pod.cutter.arrived(work)

    def _look(self, pod: Pod) -> None:
        if self.policy == ORACLE and self._oracle_holds(pod):
            return
        again = pod.cutter.fill(self.now + TIMER_SLACK)
        held = pod.cutter.held_until
        if held:
            self._at(held, "look")
        if again is not None:
            self._at(again, "look")
        if pod.slots.free:
            pod.pace.wait_estimator.rest()

    def _oracle_holds(self, pod: Pod) -> bool:
        """The hold policy's own choice, with each return known."""
        waiting, free = pod.queue.requests, pod.slots.free
        if free != 1 or not waiting or waiting >= pod.size:
            return False
        service = self.case.base + self.case.item * waiting + self.case.beside
        saved = min([service, *(due - self.now for due in pod.due)])
        best, until = 0.0, self.now
        cost, came, before = 0.0, 0, self.now
        for back in sorted(self._next.values())[: pod.size - waiting]:
            if back - self.now > service:
                break
            cost += (waiting + came) * (back - before)
            came, before = came + 1, back
            if self._weight * saved * came - cost > best:
                best, until = self._weight * saved * came - cost, back
        if until > self.now:
            self._at(until, "look")
        return until > self.now

    def start(self, pod: Pod, parts: list[Slice], items: int, limit: int) -> Batch:
        """A pod sends a batch to its model."""
        case = self.case
        batch = Batch(parts, items, limit, self.now)
        seconds = case.base + case.item * items + case.beside
        if case.jitter:
            seconds *= self._random.lognormvariate(0.0, case.jitter)
        pod.due.append(self.now + seconds)
        self._at(self.now + seconds, "end", (pod, batch))
        if self.now > WARM * case.seconds:
            self.result.calls += 1
            self.result.items += items
        return batch

    def _end(self, pod: Pod, batch: Batch) -> None:
        now, case = self.now, self.case
        pod.ended(now, batch)
        for part in batch.parts:
            work = part.work
            assert isinstance(work, _Call)
            if now > WARM * case.seconds:
                self.result.latencies.setdefault(work.level, []).append(now - work.arrived)
            self._ask_again(work.caller)

    def _ask_again(self, caller: int) -> None:
        if caller >= 0:
            back = self._next[caller] = self.now + self.case.think(self._random)
            self._at(back, "arrival", caller)


def run(case: Case, policy: str = HOLD, *, weight: float = hold_policy.WEIGHT) -> Result:
    """Simulate a case (see `Simulation`)."""
    return Simulation(case, policy, weight=weight).run()
