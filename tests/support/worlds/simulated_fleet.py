"""`python -m tests.support.worlds.simulated_fleet`: the autoscaler before pods that batch texts by cost.

Pods are the sidecar's own queue, cutter, forecast and admission; the operator's recommender gets their
reports as it does in a cluster. It is run twice: with what items cost in the reports, and without.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import random
from collections.abc import Callable
from typing import Any

from msgspec import UNSET, structs

from bench.autoscaling.policies import Penstock
from bench.autoscaling.simulator import Model, Result, Simulation
from bench.autoscaling.traces import Trace
from penstock_sidecar.admission.controller import AdmissionController
from penstock_sidecar.admission.slots import Slots
from penstock_sidecar.batching.batch import Batch
from penstock_sidecar.batching.cutter import Cutter
from penstock_sidecar.estimators.model_pace import ModelPace
from penstock_sidecar.queue.queue import Queue
from penstock_sidecar.queue.request import Outcome, QueuedRequest, Slice
from penstock_wire.control.report import Fit, Items, SidecarReport, Totals
from penstock_wire.control.settings import Batching
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.timers import TIMER_SLACK
from tests.support.worlds.simulated_costs import KEY, LENGTHS, REQUEST, Case, Lengths, capacity

SECONDS = 300.0
OBJECTIVE = 3.0
ENCODER = Case(lengths=lambda _, __: 1, base=80e-3, padded=80e-6)


def _bimodal(share_of_long: float) -> Callable[[random.Random], int]:
    def length(draw: random.Random) -> int:
        return round(draw.lognormvariate(math.log(2000 if draw.random() < share_of_long else 40), 0.2))

    return length


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scene:
    """What arrives.

    Args:
        trace: how much, in what one pod can do.
        lengths: of a text, at a time of the trace.
        most: items a second that one pod can do, about.
        target_load: `targetLoad`; None for an objective of 1.5 s.
    """

    trace: Trace
    lengths: Callable[[random.Random, float], int]
    most: float
    target_load: int | None = None


class _Call(QueuedRequest):
    __slots__ = ("length",)

    def finish(self, outcome: Outcome) -> None:
        raise AssertionError("outcomes are counted, not delivered")


class CostPod:
    """One pod, as `bench.autoscaling.simulator` has them."""

    def __init__(self, name: str, world: Fleet, ready_at: float) -> None:
        self.name, self._world, self.ready_at = name, world, ready_at
        policy = world.case.batching_policy
        self.leaves = False
        self.slots, self.queue = Slots(), Queue()
        self.slots.count = policy.max_concurrent_batches
        self.pace = ModelPace(policy.max_batch_size)
        objective = policy.latency_objective_ms
        self.pace.apply(
            limit=policy.max_batch_size,
            objective=None if objective is None else objective / 1000,
            slots=policy.max_concurrent_batches,
        )
        self.admission = AdmissionController(self.queue, self.slots, self.pace, policy)
        parts: Any = self  # it starts batches and settles requests, as runner and dispatcher do
        self.cutter = Cutter(queue=self.queue, slots=self.slots, pace=self.pace, runner=parts, outcomes=parts)
        self.cutter.apply(policy)
        self.batches: set[Batch] = set()
        self.seq = self.arrived = self.full = self.late = self.count = self.items = 0
        self.work = self._wake = 0.0

    @property
    def line(self) -> list[float]:
        """When those arrived that wait."""
        return [work.arrived for work in self.queue]

    @property
    def load(self) -> int:
        """Items that wait or are with the model."""
        return self.queue.items + sum(batch.items for batch in self.batches)

    @property
    def load_by_cost(self) -> float:
        """The same by what they cost."""
        load = self.pace.latency_model.load
        waiting = sum(load(KEY.cls, work.left, work.cost_left, work.longest) for work in self.queue)
        return waiting + sum(
            load(KEY.cls, part.size, part.cost, part.longest)
            for batch in self.batches
            for part in batch.parts
        )

    def take(self, now: float, length: int, arrived: float) -> None:
        """Admit a text, or refuse it."""
        deadline, expires = self.admission.deadlines(now, None)
        work = _Call(KEY, REQUEST, b"", [b"x" * length], (), now, deadline, expires)
        work.length = length
        self.arrived += 1
        self.work += self.pace.latency_model.load(KEY.cls, 1, length, length)
        try:
            self.admission.admit(work)
        except PenstockError as error:
            self.full += error.reason is Reason.QUEUE_FULL
            self.late += error.reason is not Reason.QUEUE_FULL
            self._world.ended(work, None)
            return
        self.queue.add(work)
        self.cutter.arrived(work)
        self.look(now)

    def settle(self, work: QueuedRequest, outcome: Outcome) -> None:
        """See `runner.BatchListener`."""
        if not work.done:
            work.done = True
            if work.queued:
                self.queue.leave(work)
            self.late += 1
            self._world.ended(work, None)

    def look(self, now: float) -> None:
        """Cut what can be cut."""
        again = self.cutter.fill(now + TIMER_SLACK)
        times = [when for when in (self.cutter.held_until, again, self.cutter.expire(now)) if when]
        if times and (self._wake <= now or min(times) < self._wake):
            self._wake = max(min(times), now + 1e-3)
            self._world.at(self._wake, self.look)
        if self.slots.free:
            self.pace.wait_estimator.rest()

    def start(self, parts: list[Slice], items: int, limit: int) -> Batch:
        """See `runner.BatchRunner.start`."""
        now = self._world.now
        self.slots.busy += 1
        batch = Batch(parts, items, limit, now)
        self.batches.add(batch)
        self.count, self.items = self.count + 1, self.items + items
        seconds = self._world.seconds([part.longest for part in parts])
        self._world.at(now + seconds, functools.partial(self._end, batch))
        return batch

    def _end(self, batch: Batch, now: float) -> None:
        self.slots.busy -= 1
        self.batches.discard(batch)
        assert batch.turn is not None
        self.pace.wait_estimator.end(batch.turn, waiting=self.queue.items > 0)
        self.cutter.released(now, batch)
        cost, longest = sum(part.cost for part in batch.parts), max(part.longest for part in batch.parts)
        if self.pace.succeeded(now, KEY.cls, batch.items, now - batch.began, cost, longest):
            self.admission.size_queue()
        for part in batch.parts:
            if not part.work.done:
                part.work.done = True
                self._world.ended(part.work, now)
        self.look(now)
        if self.leaves and not self.load:
            self._world.gone(self, now)

    def report(self, now: float) -> SidecarReport:
        """What it reports."""
        self.seq += 1
        by_cost = self.pace.latency_model.by_cost
        return SidecarReport(
            pod=self.name,
            uid=self.name,
            seq=self.seq,
            state="ready",
            items=Items(
                queued=self.queue.items,
                ongoing=sum(batch.items for batch in self.batches),
                work=self.load_by_cost if by_cost else UNSET,
            ),
            totals=Totals(
                arrived=self.arrived,
                arrived_work=self.work,
                batches=self.count,
                batch_items=self.items,
                refused={Reason.QUEUE_FULL.value: self.full, Reason.DEADLINE.value: self.late},
            ),
            fit={
                name: Fit(
                    a_ms=line.a * 1000, b_ms=line.b * 1000, n=line.n, items=line.items, spread=line.spread
                )
                for name, line in self.pace.latency_model.lines(now).items()
            },
            slots=self.slots.count,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoder:
    """The model, and how its requests are batched."""

    case: Case
    batching_policy: Batching

    @classmethod
    def of(cls, scene: Scene) -> Encoder:
        """The model of a scene."""
        objective = round(OBJECTIVE * 1000) if scene.target_load is None else None
        batching = Batching(max_batch_size=32, latency_objective_ms=objective, default_timeout_ms=30_000)
        return cls(case=ENCODER, batching_policy=batching)


class Fleet(Simulation):
    """A backend of such pods.

    Args:
        scene: what arrives.
        by_cost: whether the operator sees what items cost.
    """

    def __init__(self, scene: Scene, *, by_cost: bool, seed: int = 1) -> None:
        self.case = Encoder.of(scene)
        model = Model(batching=self.case.batching_policy)
        super().__init__(scene.trace, model, Penstock(model, target_load=scene.target_load), seed=seed)
        self._scene, self._by_cost = scene, by_cost
        self._most, self._objective = scene.most, OBJECTIVE
        self._lengths = random.Random(f"lengths {seed}")
        self.now = 0.0

    def at(self, when: float, event: Callable[[float], None]) -> None:
        """Have something happen."""

        def happens(now: float) -> None:
            self.now = now
            event(now)

        self._at(when, happens)

    def seconds(self, lengths: list[int]) -> float:
        """How long the model takes."""
        return self.case.case.time(lengths) * math.exp(self._random.gauss(0.0, 0.05))

    def ended(self, work: QueuedRequest, now: float | None) -> None:
        """Count an answer, or a refusal."""
        assert isinstance(work, _Call)
        self._inside -= 1
        if now is None or now - work.arrived > self._objective:
            self._miss((work.arrived,))

    def gone(self, pod: Any, now: float) -> None:
        """Remove a pod that is drained."""
        if pod in self._pods:
            self._gone(pod, now)

    def _place(self, now: float, arrived: float) -> None:
        self.now = now
        if not self._ready:
            self._held.append(arrived)
            return
        ready: list[Any] = list(self._ready)
        chance = self._random.random
        first, other = ready[int(chance() * len(ready))], ready[int(chance() * len(ready))]
        pod = first if first.load <= other.load else other
        pod.take(now, self._scene.lengths(self._lengths, now - self._scene.trace.before), arrived)

    def _make(self, name: str, ready_at: float) -> Any:
        return CostPod(name, self, ready_at)

    def _record(self, report: SidecarReport, now: float) -> None:
        if not self._by_cost:
            report = structs.replace(
                report,
                items=structs.replace(report.items, work=UNSET),
                totals=structs.replace(report.totals, arrived_work=UNSET),
            )
        super()._record(report, now)


def _mixed(at: float) -> float:
    return 0.02 if at < 150 else 0.2


def scenes() -> dict[str, Scene]:
    """By name."""

    def able(lengths: Lengths) -> float:
        return 0.7 * capacity(dataclasses.replace(ENCODER, lengths=lengths), 4000)[1]

    def scene(lengths: Lengths, pods: Callable[[float], float], most: float) -> Scene:
        trace = Trace(name="", seconds=SECONDS, pods=pods, replicas=4, before=100.0)
        return Scene(trace=trace, lengths=lengths, most=most)

    shapes = {"steady": _steady, "step": _step, "sine": _sine}
    found = {
        f"{name} {shape}": scene(functools.partial(_of, name), pods, able(LENGTHS[name]))
        for name in ("constant", "lognormal", "bimodal")
        for shape, pods in shapes.items()
    }
    found["long ones come"] = scene(_mix, _steady, able(lambda draw, _: _bimodal(0.05)(draw)))
    found["lengths grow"] = scene(_growing, lambda _: 2.0, able(LENGTHS["lognormal"]))
    return found


def _steady(_: float) -> float:
    return 3.0


def _step(at: float) -> float:
    return 0.7 if at < 100 else 5.0


def _sine(at: float) -> float:
    return 3.0 + 2.0 * math.sin(math.tau * at / 600)


def _of(name: str, draw: random.Random, at: float) -> int:
    return LENGTHS[name](draw, max(at, 0.0) / SECONDS)


def _mix(draw: random.Random, at: float) -> int:
    return _bimodal(_mixed(at))(draw)


def _growing(draw: random.Random, at: float) -> int:
    return LENGTHS["drifting"](draw, min(max(at - 100.0, 0.0) / 250.0, 1.0))


def run(scene: Scene, *, by_cost: bool, seed: int = 1) -> Result:
    """Simulate a scene."""
    return Fleet(scene, by_cost=by_cost, seed=seed).run()


def main() -> int:
    """Run from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.worlds.simulated_fleet", description=__doc__
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--target-load", type=int, default=None)
    parser.add_argument("scenes", nargs="*", help="parts of names; all where none is given")
    arguments = parser.parse_args()
    heads = ["scene", "missed by number, %", "by cost", "pod-seconds", "by cost", "changes", "by cost"]
    print(f"| {' | '.join(heads)} |\n{'| -- ' * len(heads)}|", flush=True)
    for name, scene in scenes().items():
        if arguments.scenes and not any(each in name for each in arguments.scenes):
            continue
        scene = dataclasses.replace(scene, target_load=arguments.target_load)
        seeds = range(1, arguments.seeds + 1)
        both = [[run(scene, by_cost=by_cost, seed=seed) for seed in seeds] for by_cost in (False, True)]
        measures: list[Callable[[Result], str]] = [
            lambda each: f"{each.miss_percent:.2f}",
            lambda each: f"{each.replica_seconds:.0f}",
            lambda each: f"{each.changes}",
        ]
        cells = [", ".join(measure(each) for each in some) for measure in measures for some in both]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
