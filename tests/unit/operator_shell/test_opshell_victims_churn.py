"""How often the least busy pods go, while the loads of all change between two reports."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from penstock_operator.desired.labels import DELETION_COST
from penstock_operator.kinds import BACKEND, DEPLOYMENT, POD
from tests.support.worlds.operator_harness import Harness, Obj, backend

STEP = 0.25
"""Seconds in which a quarter of the pods report."""
DECISIONS = 100


@dataclass(kw_only=True)
class Work:
    """What one pod has, in truth: when each of its requests ends."""

    made: int
    ends: list[float] = field(default_factory=list)


class Fleet:
    """The pods of a backend with requests of 20 s in the mean, and the ReplicaSet that takes them away."""

    def __init__(self, operator: Harness, draw: random.Random) -> None:
        self.operator, self._draw = operator, draw
        self.pods: dict[str, Work] = {}
        self._made = 0
        self._steps = 0

    def load(self, name: str) -> int:
        return len(self.pods[name].ends)

    async def scale(self, replicas: int) -> None:
        """Somebody writes `/scale`, the operator follows, and then the ReplicaSet does."""
        self.operator.cluster.scale(BACKEND, "n", "m", replicas)
        await self.operator.run()
        assert self.operator.cluster.find(DEPLOYMENT, "n", "m-backend")["spec"]["replicas"] == replicas
        for name in self._ranked()[: max(0, len(self.pods) - replicas)]:
            del self.pods[name]
            self.operator.cluster.remove(POD, "n", name)
        while len(self.pods) < replicas:
            self._make()
        await self.operator.run()

    def _ranked(self) -> list[str]:
        """As Kubernetes takes ready pods away: those of the lowest cost first, and the youngest of equals."""

        def rank(name: str) -> tuple[int, int]:
            annotations = self.operator.cluster.find(POD, "n", name)["metadata"].get("annotations") or {}
            return int(annotations.get(DELETION_COST, 0)), -self.pods[name].made

        return sorted(self.pods, key=rank)

    def _make(self) -> None:
        self._made += 1
        name = f"m-backend-{self._made}"
        template: Obj = self.operator.cluster.find(DEPLOYMENT, "n", "m-backend")["spec"]["template"]
        metadata = {"namespace": "n", "name": name, "labels": dict(template["metadata"]["labels"])}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": "one"}}
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        self.operator.cluster.user_applies(pod)
        self.operator.cluster.edit(POD, "n", name, lambda live: live.update(status=ready))
        self.pods[name] = Work(made=self._made)

    async def work(self, seconds: float, *, busy: float) -> None:
        """Requests end and come, for `busy` of them a pod in the mean; each pod reports once a second."""
        for _ in range(round(seconds / STEP)):
            self._steps += 1
            self.operator.clock.turn(STEP)
            now = self.operator.clock.time()
            for pod in self.pods.values():
                pod.ends = [end for end in pod.ends if end > now]
            for _ in range(_poisson(self._draw, busy * len(self.pods) * STEP / 20)):
                # As routers choose: of two pods the one that has less.
                two = [self._draw.choice(list(self.pods)) for _ in range(2)]
                self.pods[min(two, key=self.load)].ends.append(now + self._draw.expovariate(1 / 20))
            for name, pod in self.pods.items():
                if (pod.made + self._steps) % round(1 / STEP) == 0:
                    self.operator.report("m", name, version=1, load=self.load(name))
        await self.operator.run()


def _poisson(draw: random.Random, mean: float) -> int:
    count, at = 0, draw.expovariate(1.0)
    while at < mean:
        count, at = count + 1, at + draw.expovariate(1.0)
    return count


@pytest.mark.long
@pytest.mark.parametrize(("busy", "exactly"), [(1.0, 0.95), (4.0, 0.9), (16.0, 0.75)])
async def test_the_least_busy_pods_go_while_loads_change(busy: float, exactly: float) -> None:
    """By the last reports always. By the loads of the moment none that goes has two more than one that stays.

    That is so in 95 % of the decisions at least; how often the order is exact, depends on how many requests
    begin and end within the second since a report.
    """
    draw = random.Random(1)
    operator = await Harness().applied(backend(replicas=2))
    fleet, found = Fleet(operator, draw), Counter[str]()
    for _ in range(DECISIONS):
        replicas = draw.randint(2, 10)
        await fleet.scale(replicas)
        await fleet.work(draw.uniform(20, 40), busy=busy)
        reports = operator.ctx.reports.of_backend("n", "m")
        reported = {name: reports[name].items.queued for name in fleet.pods}
        actual = {name: fleet.load(name) for name in fleet.pods}
        await fleet.scale(draw.randint(1, replicas - 1))
        found["reported"] += _above(reported, fleet) <= 0
        found["one"] += _above(actual, fleet) <= 1
        found["exactly"] += _above(actual, fleet) <= 0
    assert found["reported"] == DECISIONS
    assert found["one"] >= 0.95 * DECISIONS
    assert found["exactly"] >= exactly * DECISIONS
    assert operator.errors == []


def _above(loads: dict[str, int], fleet: Fleet) -> int:
    """By how much the busiest pod that went is above the least busy that stayed."""
    gone = max(load for name, load in loads.items() if name not in fleet.pods)
    return gone - min(load for name, load in loads.items() if name in fleet.pods)
