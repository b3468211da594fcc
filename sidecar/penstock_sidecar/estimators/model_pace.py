"""What is known of the model's pace: how long batches take, their size, when an answer would come."""

from __future__ import annotations

from penstock_sidecar.estimators.latency_model import LatencyModel
from penstock_sidecar.estimators.throughput import Throughput
from penstock_sidecar.estimators.wait_estimator import WaitEstimator

SERVICE_SHARE = 1 / 1.5
"""Share of the objective that a batch may take: one that arrives waits half a batch's time on average."""
_KEEP = 0.9
"""What is left of an extreme with each further batch."""


class ModelPace:
    """All estimates of one model.

    Args:
        limit: items of a batch at most, by the policy.

    Attributes:
        latency_model: how long a batch of so many items takes.
        wait_estimator: when an arriving request would be answered.
        throughput: means over the latest batches.
        limit: items of a batch at most, by the policy.
        objective: seconds within which answers are wanted; None where any time will do.
        service: the part of the objective that a batch may take, in seconds.
        usual: items of a batch of the latest class at most.
        slow: seconds that a batch takes at most, of the classes that ran lately.
        rate: items that one slot answers in a second, of the fastest class that ran lately; 0 while unknown.
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

    def apply(self, *, limit: int, objective: float | None) -> None:
        """Obey another policy: items of a batch at most, and the objective in seconds."""
        self.limit = limit
        self.objective = objective
        self.service = None if objective is None else objective * SERVICE_SHARE
        self.usual = min(self.usual, limit)

    def size(self, now: float, cls: str) -> int:
        """Items of a batch of a class at most: the policy's, or fewer where that keeps the objective."""
        objective, service = self.objective, self.service
        if objective is None or service is None:
            return self.limit
        return self.latency_model.largest(now, cls, self.limit, service, objective)

    def succeeded(self, now: float, cls: str, items: int, seconds: float) -> bool:
        """Take in a batch that the model answered.

        Args:
            now: the time.
            cls: the batch's class.
            items: its items.
            seconds: what it took.

        Returns:
            Whether `rate` is known.
        """
        self.epoch += 1
        self.throughput.observe(items, seconds)
        self.latency_model.observe(now, cls, items, seconds)
        self.usual = self.size(now, cls)
        service = self.latency_model.predict(now, cls, self.usual)
        slow = (service or 0.0) + self.wait_estimator.extra
        self.slow = max(_KEEP * self.slow, slow)
        if service is None or slow <= 0.0:
            return False
        self.rate = max(_KEEP * self.rate, self.usual / slow)
        return True

    def forget(self) -> None:
        """Forget how long batches take: the model's process has ended."""
        self.epoch += 1
        self.latency_model.forget()
        self.rate = 0.0
