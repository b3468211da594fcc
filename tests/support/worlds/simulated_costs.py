"""Simulates batches of unequal items: the sidecar's own queue, cutter, forecast and admission.

`COST` is the product. `COUNT` is the same, but the sidecar does not see the costs. A number is the rule of
servers with a constant budget: requests in their order, as long as `n · max(c)` is at most that number; it
drops what would be late by the true time, which it alone knows.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
import random
from collections.abc import Callable
from typing import Any

from penstock_sidecar.admission.controller import AdmissionController
from penstock_sidecar.admission.slots import Slots
from penstock_sidecar.batching.batch import Batch
from penstock_sidecar.batching.cutter import Cutter
from penstock_sidecar.estimators.model_pace import ModelPace
from penstock_sidecar.queue.key import BatchKey
from penstock_sidecar.queue.queue import Queue
from penstock_sidecar.queue.request import Outcome, QueuedRequest, Slice
from penstock_wire.control.settings import Batching
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.http import Request
from penstock_wire.timers import TIMER_SLACK

COST, COUNT = "cost", "count"
KEY = BatchKey("POST", "/v1/embeddings", (), ())
REQUEST = Request(method="POST", target="/v1/embeddings", headers=(), body=b"")
WARM = 0.2
"""The share of a run before its figures count."""
MAX_LENGTH = 512
"""Longer texts are cut off, as encoders do."""

Lengths = Callable[[random.Random, float], int]
"""The length of an item; arguments: the source of chance, the share of the run that has passed."""


def _lognormal(draw: random.Random, _: float) -> int:
    return min(MAX_LENGTH, max(1, round(draw.lognormvariate(math.log(128), 1.0))))


def _bimodal(draw: random.Random, _: float) -> int:
    return round(draw.lognormvariate(math.log(2000 if draw.random() < 0.1 else 40), 0.2))


def _drifting(draw: random.Random, share: float) -> int:
    return max(1, round(draw.lognormvariate(math.log(64 * 16**share), 0.7)))


_order = [0]


def _adversarial(draw: random.Random, _: float) -> int:
    """Each batch in the order of arrival has one long item: padding at its worst."""
    _order[0] += 1
    return 4000 if _order[0] % 32 == 0 else 20


LENGTHS: dict[str, Lengths] = {
    "constant": lambda _, __: 128,
    "lognormal": _lognormal,
    "bimodal": _bimodal,
    "drifting": _drifting,
    "adversarial": _adversarial,
    "uncut": lambda draw, _: max(1, round(draw.lognormvariate(math.log(128), 1.0))),
}


@dataclasses.dataclass(kw_only=True, frozen=True)
class Case:
    """The case to simulate; times in seconds.

    Args:
        lengths: of the items.
        rate: arrivals a second (Poisson), or None for `callers` who ask again at once.
        base: of any batch; `cost` for each unit of its items' lengths, `padded` of the padded lengths.
        batching: of the policy.
        cut: length at which the model cuts texts off; None: it does not.
        cache: padded length that fits into the core's cache: longer batches take up to 1.6 times as long, as
            `bench.encoder` does. None: all are as fast.
        shares: callers are of so many senders.
        liars: the first so many of them claim that each text has a length of 10.
        charges: whether senders are charged for what batches took.
    """

    lengths: Lengths
    rate: float | None = None
    callers: int = 0
    seconds: float = 60.0
    base: float = 20e-3
    item: float = 0.0
    cost: float = 0.0
    padded: float = 20e-6
    square: float = 0.0
    jitter: float = 0.05
    size: int = 32
    items: int = 1
    objective: float | None = None
    cut: int | None = None
    cache: int | None = None
    batching: dict[str, Any] = dataclasses.field(default_factory=dict)
    shares: int = 0
    liars: int = 0
    charges: bool = True
    seed: int = 1

    def time(self, lengths: list[int]) -> float:
        """The true time of a batch."""
        lengths = lengths if self.cut is None else [min(length, self.cut) for length in lengths]
        n, longest = len(lengths), max(lengths)
        slower = 1.0
        if self.cache is not None and n * longest > self.cache:
            slower += min(0.6, 0.17 * math.log2(n * longest / self.cache))
        return (
            self.base
            + self.item * n
            + self.cost * sum(lengths)
            + self.padded * n * longest * slower
            + self.square * n * longest * longest * slower
        )


@dataclasses.dataclass
class Result:
    """What became of the requests after the warm-up: `answered` is latency, deadline and length of each."""

    seconds: float
    arrived: int = 0
    unserved: int = 0
    answered: list[tuple[float, int, bool]] = dataclasses.field(default_factory=list)
    batches: int = 0
    items: int = 0
    formula: str = ""
    errors: list[float] = dataclasses.field(default_factory=list)
    shares: dict[int, float] = dataclasses.field(default_factory=dict)

    @property
    def good(self) -> float:
        """Answers in time, a second."""
        return sum(good for _, _, good in self.answered) / self.seconds

    def p(self, share: float, *, shorter: float = math.inf, longer: float = 0.0) -> float:
        """A percentile of the latencies of items of some lengths."""
        times = sorted(t for t, length, _ in self.answered if longer <= length <= shorter)
        return times[min(len(times) - 1, int(share * len(times)))] if times else math.nan


class _Call(QueuedRequest):
    __slots__ = ("lengths", "owner")

    def finish(self, outcome: Outcome) -> None:
        raise AssertionError("outcomes are counted, not delivered")


class Simulation:
    """One run."""

    def __init__(self, case: Case, policy: str | int) -> None:
        self.case, self.policy, self.now = case, policy, 0.0
        _order[0] = 0
        objective = case.objective
        self.batching = Batching(
            max_batch_size=case.size,
            latency_objective_ms=None if objective is None else round(objective * 1000),
            **case.batching,
        )
        self._random = random.Random(case.seed)
        self.slots, self.pace, self.queue = Slots(), ModelPace(case.size), Queue()
        self.slots.count = self.batching.max_concurrent_batches
        self.pace.apply(limit=case.size, objective=objective, slots=self.slots.count)
        self.admission = AdmissionController(self.queue, self.slots, self.pace, self.batching)
        self.cutter = Cutter(
            queue=self.queue,
            slots=self.slots,
            pace=self.pace,
            runner=self,  # type: ignore[arg-type]  # starts batches, as it does
            outcomes=self,  # type: ignore[arg-type]  # settles, as it does
        )
        self.cutter.apply(self.batching)
        self._events: list[tuple[float, int, str, Any]] = []
        self._number = 0
        self.result = Result(case.seconds * (1.0 - WARM))

    def run(self) -> Result:
        """Simulate."""
        case = self.case
        for caller in range(case.callers):
            self._at(self._random.random() * 1e-3, "arrival", caller)
        if case.rate is not None:
            self._at(0.0, "arrival", -1)
        while self._events and self._events[0][0] <= case.seconds:
            self.now = self._events[0][0]
            while self._events and self._events[0][0] <= self.now:
                _, _, what, of = heapq.heappop(self._events)
                if what == "arrival":
                    self._arrive(of)
                elif what == "end":
                    self._end(of)
            self._look()
        self.result.formula = repr(self.pace.latency_model.formula(KEY.cls))
        return self.result

    def _at(self, when: float, what: str, of: Any = None) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, what, of))

    @property
    def _counts(self) -> bool:
        return self.now > WARM * self.case.seconds

    def _arrive(self, caller: int) -> None:
        now, case = self.now, self.case
        if case.rate is not None:
            self._at(now + self._random.expovariate(case.rate), "arrival", -1)
        lengths = [case.lengths(self._random, now / case.seconds) for _ in range(case.items)]
        deadline, expires = self.admission.deadlines(now, None)
        share = b"%d" % (caller % case.shares) if case.shares else b""
        items = [b"x" * (1 if self.policy == COUNT else length) for length in lengths]
        lies = case.liars > 0 and caller % case.shares < case.liars
        claimed = [10] * len(lengths) if lies else None
        work = _Call(KEY, REQUEST, b"", items, (), now, deadline, expires, 1, share, claimed)
        work.lengths, work.owner = lengths, caller
        self.result.arrived += self._counts
        try:
            if isinstance(self.policy, str):
                self.admission.admit(work)
        except PenstockError:
            self.result.unserved += self._counts
            self._ask_again(work, 0.05)
            return
        self.queue.add(work)
        self.cutter.arrived(work)

    def settle(self, work: QueuedRequest, outcome: Outcome) -> None:
        assert isinstance(work, _Call)
        if not work.done:
            work.done = True
            if work.queued:
                self.queue.leave(work)
            self.result.unserved += self._counts
            self._ask_again(work, 0.0)

    def _look(self) -> None:
        if not isinstance(self.policy, str):
            while self.slots.free and self.queue.items:
                self._cut_by_budget(self.policy)
            return
        again = self.cutter.fill(self.now + TIMER_SLACK)
        for when in (self.cutter.held_until, again, self.cutter.expire(self.now)):
            if when:
                self._at(max(when, self.now + 1e-4), "look")
        if self.slots.free:
            self.pace.wait_estimator.rest()

    def _cut_by_budget(self, budget: int) -> None:
        works: list[_Call] = []
        while (work := self.queue.first()) is not None:
            assert isinstance(work, _Call)
            lengths = [length for each in [*works, work] for length in each.lengths]
            if works and (len(lengths) > self.case.size or len(lengths) * max(lengths) > budget):
                break
            if self.queue.requests > 1 and self.now + 1.1 * self.case.time(lengths) > work.deadline:
                self.settle(work, PenstockError(Reason.DEADLINE, "late"))
                continue
            self.queue.leave(work)
            works.append(work)
        self.start([work.take(work.size) for work in works], sum(work.size for work in works), self.case.size)

    def start(self, parts: list[Slice], items: int, limit: int) -> Batch:
        """Send a batch to the model."""
        self.slots.busy += 1
        batch = Batch(parts, items, limit, self.now)
        lengths = [
            length for part in parts for length in part.work.lengths[part.start : part.start + part.size]
        ]
        seconds = self.case.time(lengths) * self._random.lognormvariate(0.0, self.case.jitter)
        if self._counts:
            self.result.batches += 1
            self.result.items += items
            if isinstance(self.policy, str):
                cost, longest = sum(p.cost for p in parts), max(p.longest for p in parts)
                formula = self.pace.latency_model.formula(KEY.cls)
                work = items if formula is None else formula.of(items, cost, longest)
                middle = self.pace.latency_model.middle(self.now, KEY.cls, work)
                if middle:
                    self.result.errors.append(abs(middle / self.case.time(lengths) - 1.0))
        self._at(self.now + seconds, "end", batch)
        return batch

    def _end(self, batch: Batch) -> None:
        now = self.now
        self.slots.busy -= 1
        if isinstance(self.policy, str):
            assert batch.turn is not None
            self.pace.wait_estimator.end(batch.turn, waiting=self.queue.items > 0)
            self.cutter.released(now, batch)
            cost, longest = sum(p.cost for p in batch.parts), max(p.longest for p in batch.parts)
            if self.policy == COUNT:
                cost = longest = 0
            if self.case.shares and self.case.charges:
                seconds = now - batch.began
                model = self.pace.latency_model
                self.queue.measured(batch.parts, model.beyond(KEY.cls, batch.items, seconds, cost, longest))
            if self.pace.succeeded(now, KEY.cls, batch.items, now - batch.began, cost, longest):
                self.admission.size_queue()
        for part in batch.parts:
            work = part.work
            assert isinstance(work, _Call)
            if self._counts:
                share = int(work.share or 0)
                self.result.shares[share] = self.result.shares.get(share, 0.0) + sum(
                    work.lengths[part.start : part.start + part.size]
                )
            if work.taken < work.size or work.done:
                continue
            if self._counts:
                good = now <= work.deadline + 1e-9
                self.result.answered.append((now - work.arrived, max(work.lengths), good))
            self._ask_again(work, 0.0)

    def _ask_again(self, work: _Call, after: float) -> None:
        if work.owner >= 0:
            self._at(self.now + after + self._random.expovariate(1e4), "arrival", work.owner)


def run(case: Case, policy: str | int = COST) -> Result:
    """Simulate a case (see `Simulation`)."""
    return Simulation(case, policy).run()


def capacity(case: Case, count: int = 20_000) -> tuple[float, float]:
    """Items a second without and with items sorted by length, in full batches, with none to wait for."""
    draw = random.Random(5)
    _order[0] = 0
    lengths = [case.lengths(draw, number / count) for number in range(count)]
    rates = []
    for some in (lengths, sorted(lengths)):
        batches = [some[at : at + case.size] for at in range(0, count, case.size)]
        rates.append(count / sum(map(case.time, batches)))
    return rates[0], rates[1]
