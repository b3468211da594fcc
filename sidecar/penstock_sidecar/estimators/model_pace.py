"""The model's pace: how long batches take, their size, and when an answer would come."""

from __future__ import annotations

import math

from penstock_sidecar.estimators.latency_model import LatencyModel
from penstock_sidecar.estimators.throughput import Throughput
from penstock_sidecar.estimators.wait_estimator import WaitEstimator

SERVICE_SHARE = 1 / 1.5
"""Share of the objective that a batch may take: an arriving request first waits half a batch on average."""
_KEEP = 0.9
"""Factor by which a maximum decays with each further batch."""


class ModelPace:
    """All estimates of one model.

    Args:
        limit: maximum items of a batch, by the policy.

    Attributes:
        latency_model: how long a batch takes, by its items.
        wait_estimator: when an arriving request would be answered.
        throughput: means over the latest batches.
        limit: maximum items of a batch, by the policy.
        objective: seconds within which answers are wanted; None if the policy has no objective.
        service: the part of the objective that a batch may take, in seconds.
        usual: maximum items of a batch of the latest class.
        slow: seconds of a batch of the slowest class that ran lately.
        rate: items that one slot answers in a second, for the fastest recent class; 0 while unknown.
        epoch: changes with each batch that was learned from, and when all is forgotten.
    """

    __slots__ = (
        "epoch",
        "latency_model",
        "limit",
        "objective",
        "rate",
        "service",
        "slow",
        "throughput",
        "usual",
        "wait_estimator",
    )

    def __init__(self, limit: int) -> None:
        self.latency_model = LatencyModel()
        self.wait_estimator = WaitEstimator(self.latency_model)
        self.throughput = Throughput()
        self.limit = self.usual = limit
        self.objective: float | None = None
        self.service: float | None = None
        self.slow = 0.0
        self.rate = 0.0
        self.epoch = 0

    def apply(self, *, limit: int, objective: float | None, slots: int = 1) -> None:
        """Use another policy: the maximum items of a batch, the objective in seconds, batches at once."""
        self.latency_model.alone = slots == 1
        self.limit = limit
        self.objective = objective
        self.service = None if objective is None else objective * SERVICE_SHARE
        self.usual = min(self.usual, limit)

    def size(self, now: float, cls: str) -> int:
        """The maximum items of a batch of a class: the policy's limit, or fewer to keep the objective."""
        objective, service, limit = self.objective, self.service, self.limit
        formula = self.latency_model.formula(cls)
        if formula is not None and formula.thrifty < limit:
            limit = max(1, int(formula.thrifty))
        if objective is None or service is None:
            return limit
        return min(limit, self.latency_model.largest(now, cls, self.limit, service, objective))

    def work(self, now: float, cls: str) -> float:
        """The maximum work of a batch of a class whose items' costs count; see `work`."""
        objective, service = self.objective, self.service
        formula = self.latency_model.formula(cls)
        thrifty = math.inf if formula is None else formula.thrifty
        if objective is None or service is None:
            return thrifty
        return min(thrifty, self.latency_model.largest(now, cls, self.limit, service, objective))

    def succeeded(
        self, now: float, cls: str, items: int, seconds: float, cost: int = 0, longest: int = 0
    ) -> bool:
        """Learn from a batch that the model answered.

        Args:
            now: the time.
            cls: the batch's class.
            items: its items.
            seconds: the time it took.
            cost: the sum of its items' costs.
            longest: the largest of them.

        Returns:
            Whether `rate` is known.
        """
        self.epoch += 1
        self.throughput.observe(items, seconds)
        self.latency_model.observe(now, cls, items, seconds, cost, longest)
        self.usual = self.size(now, cls)
        service = self.latency_model.predict(now, cls, self.usual)
        slow = (service or 0.0) + self.wait_estimator.extra
        self.slow = max(_KEEP * self.slow, slow)
        if service is None or slow <= 0.0:
            return False
        self.rate = max(_KEEP * self.rate, self.usual / slow)
        return True

    def forget(self) -> None:
        """Forget how long batches take, since the model's process has ended."""
        self.epoch += 1
        self.latency_model.forget()
        self.rate = 0.0
