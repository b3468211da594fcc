"""The sidecar's decisions against a simulated model, in discrete events: minutes of load in a second.

Queue, service curve and forecast are the real ones; the loop around them is the dispatcher's, without its
transport, and no slot is held (`simulated_holding` has that). A batch takes what the model's formula says,
times a jitter. What the sidecar, the network and a busy machine take is a time between the end of a batch and
the next cut in its slot, and stalls now and then.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
import random
from collections.abc import Callable
from typing import Literal

from penstock_sidecar.estimators import latency_model, wait_estimator
from penstock_sidecar.queue import queue
from penstock_sidecar.queue.key import BatchKey
from penstock_sidecar.queue.request import Outcome, QueuedRequest
from penstock_wire.http import Request

KEY = BatchKey("POST", "/v1/models/m:predict", (), ())
REQUEST = Request(method="POST", target="/v1/models/m:predict", headers=(), body=b"")
SERVICE_SHARE = 1 / 1.5

Model = Callable[[float, int], float]
"""Seconds that a batch takes: of the time at which it begins, and of its items."""


def affine(base: float, item: float) -> Model:
    """A model that takes `base` and `item` for each item, in seconds."""
    return lambda _, items: base + item * items


class Asked(QueuedRequest):
    """A request of the simulation; `client` is who asked, where each waits for its answer."""

    __slots__ = ("client",)

    def finish(self, outcome: Outcome) -> None:
        raise AssertionError("outcomes are counted, not delivered")


@dataclasses.dataclass(kw_only=True)
class Case:
    """The case to simulate.

    Args:
        rate: arrivals a second (Poisson), or None where `clients` ask again as soon as they are answered.
        think: seconds between an answer and the client's next request, in the mean (exponential).
        objective: `latencyObjective` in seconds.
        timeout: the client's, in seconds; None = the objective.
        drop: `window` (ours), `none`, or `shrink`: batches so small that the oldest keeps its deadline.
        admit: whether arrivals are refused that cannot be served in time.
        run_head: the second guard: a free slot runs the last that waits.
        jitter: standard deviation of the logarithm of a batch's time.
        ours: seconds from the model's answer to the next cut in its slot, in the mean (exponential).
        stalls: share of these times that are longer by `stall`, as on a machine that others use, too.
        stall: seconds.
    """

    model: Model
    seconds: float
    rate: float | None = None
    clients: int = 0
    think: float = 1e-4
    size: int = 32
    slots: int = 1
    objective: float | None = None
    timeout: float = 30.0
    drop: Literal["window", "none", "shrink"] = "window"
    admit: bool = True
    expiring: bool = True
    run_head: bool = True
    jitter: float = 0.0
    ours: float = 0.0
    stalls: float = 0.0
    stall: float = 0.0
    seed: int = 1


@dataclasses.dataclass
class Result:
    """Requests, by what became of them; `good` were answered within their deadline."""

    arrived: int = 0
    good: int = 0
    late: int = 0
    full: int = 0
    refused: int = 0
    dropped: int = 0
    batches: int = 0
    items: int = 0
    latencies: list[float] = dataclasses.field(default_factory=list)

    @property
    def served(self) -> float:
        """Share of the requests that were answered in time."""
        return self.good / max(1, self.arrived)

    @property
    def on_arrival(self) -> float:
        """Share of the unserved requests that were refused on arrival."""
        return (self.refused + self.full) / max(1, self.refused + self.full + self.dropped + self.late)


class Simulation:
    """One run; see `run`."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.now = 0.0
        self.result = Result()
        self._random = random.Random(case.seed)
        self._queue = queue.Queue()
        self._latency_model = (
            latency_model.LatencyModel() if case.expiring else latency_model.LatencyModel(math.inf)
        )
        self._limits = queue.Limits(size=case.size, bytes=1 << 30)
        self._wait_estimator = wait_estimator.WaitEstimator(self._latency_model)
        # Batches with the model, then those whose answers the sidecar deals out, their slots still taken.
        self._running: list[tuple[float, int, wait_estimator.SlotCycle, list[Asked]]] = []
        self._dealt: list[tuple[float, int, wait_estimator.SlotCycle]] = []
        self._arrivals: list[tuple[float, int]] = []
        self._count = self._came = 0

    def run(self) -> Result:
        """Simulate until the load has ended and all is answered."""
        case = self.case
        if case.rate is None:
            self._arrivals = [(self._random.random() * 1e-3, client) for client in range(case.clients)]
            heapq.heapify(self._arrivals)
        else:
            self._arrivals = [(self._random.expovariate(case.rate), 0)]
        again: float | None = None
        while True:
            moments = [
                moment
                for moment in (
                    self._arrivals[0][0] if self._arrivals else None,
                    self._running[0][0] if self._running else None,
                    self._dealt[0][0] if self._dealt else None,
                    again,
                )
                if moment is not None
            ]
            if not moments:
                return self.result
            self.now = max(self.now, min(moments))
            while self._running and self._running[0][0] <= self.now:
                self._end()
            while self._dealt and self._dealt[0][0] <= self.now:
                self._wait_estimator.end(heapq.heappop(self._dealt)[2], waiting=self._queue.items > 0)
            while self._arrivals and self._arrivals[0][0] <= self.now:
                self._arrive()
            again = self._turn()

    def _arrive(self) -> None:
        case, now = self.case, self.now
        arrived, client = heapq.heappop(self._arrivals)
        if arrived > case.seconds:
            return
        if case.rate is not None:
            heapq.heappush(self._arrivals, (arrived + self._random.expovariate(case.rate), 0))
        self.result.arrived += 1
        useful = case.timeout if case.objective is None else min(case.objective, case.timeout)
        work = Asked(KEY, REQUEST, b"", [b"1"], (), now, now + useful, now + case.timeout)
        work.client = client
        if self._queue.items >= 8 * case.size * case.slots + case.size * self._free():
            self.result.full += 1
            self._ask_again(work)
        elif case.admit and self._too_late(work):
            self.result.refused += 1
            self._wait_estimator.refused += work.size
            self._ask_again(work)
        else:
            self._came += work.size
            self._queue.add(work)

    def _ask_again(self, work: Asked) -> None:
        if self.case.rate is None:
            think = self._random.expovariate(1.0 / self.case.think)
            heapq.heappush(self._arrivals, (self.now + think, work.client))

    def _free(self) -> int:
        return self.case.slots - len(self._running) - len(self._dealt)

    def _too_late(self, work: Asked) -> bool:
        free = self._free()
        if free and not self._queue.items:
            return False
        items, lines = self._queue.ahead(work)
        finish = self._wait_estimator.finish(
            self.now,
            KEY.cls,
            self._size(),
            items=items + work.size - 1,
            waiting=self._queue.items + work.size,
            lines=lines,
            free=free,
            slots=self.case.slots,
        )
        return finish is not None and self.now + finish > work.deadline

    def _size(self) -> int:
        objective = self.case.objective
        if objective is None:
            return self.case.size
        return self._latency_model.largest(
            self.now, KEY.cls, self.case.size, SERVICE_SHARE * objective, objective
        )

    def _turn(self) -> float | None:
        again: float | None = None
        while self._queue.items and self._free() > 0:
            key = self._queue.choose(self.now)
            assert key is not None
            self._cut(key)
        if self._free() > 0:
            self._wait_estimator.rest()
        while (first := self._queue.first()) is not None and first.deadline <= self.now:
            if first.expires > self.now and (self.case.drop != "window" or self._queue.requests == 1):
                break
            self._drop(first)
        if first is not None and first.deadline > self.now:
            again = first.deadline if again is None else min(again, first.deadline)
        return again

    def _drop(self, work: QueuedRequest) -> None:
        self._queue.leave(work)
        self.result.dropped += 1
        assert isinstance(work, Asked)
        self._ask_again(work)

    def _finish(self, items: int) -> float:
        return self.now + (self._latency_model.predict(self.now, KEY.cls, items) or 0.0)

    def _cut(self, key: BatchKey) -> None:
        case = self.case
        size = self._size()
        if case.drop == "shrink" and (head := self._queue.first()) is not None:
            size = min(
                size, self._latency_model.largest(self.now, key.cls, case.size, head.deadline - self.now)
            )
        limits = dataclasses.replace(self._limits, size=size)
        dropped: list[QueuedRequest] = []
        waited = self._queue.items
        parts = self._queue.cut(key, limits, self._finish if case.drop == "window" else None, dropped)
        works = [part.work for part in parts if isinstance(part.work, Asked)]
        if case.drop == "window" and not case.run_head:
            doom = self._finish(len(works))
            dropped += [work for work in works if work.deadline < doom]
            works = [work for work in works if work.deadline >= doom]
        for work in dropped:
            self._drop(work)
        if not works:
            return
        seconds = case.model(self.now, len(works))
        if case.jitter:
            seconds *= self._random.lognormvariate(0.0, case.jitter)
        self._count += 1
        turn = self._wait_estimator.begin(
            self.now, key.cls, len(works), possible=size, waited=waited, came=self._came
        )
        self._came = 0
        heapq.heappush(self._running, (self.now + seconds, self._count, turn, works))
        self.result.batches += 1
        self.result.items += len(works)

    def _end(self) -> None:
        case = self.case
        _, count, turn, works = heapq.heappop(self._running)
        self._latency_model.observe(self.now, KEY.cls, len(works), self.now - turn.began)
        ours = self._random.expovariate(1.0 / case.ours) if case.ours else 0.0
        if case.stalls and self._random.random() < case.stalls:
            ours += case.stall
        heapq.heappush(self._dealt, (self.now + ours, count, turn))
        for work in works:
            if self.now <= work.deadline + 1e-9:
                self.result.good += 1
            else:
                self.result.late += 1
            self.result.latencies.append(self.now - work.arrived)
            self._ask_again(work)


def run(case: Case) -> Result:
    """Simulate a case."""
    return Simulation(case).run()
