"""Refused work adds pods, and a target that no load can exceed is reported."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_operator.api import ModelBackend
from penstock_operator.api.batchpolicy import BatchPolicySpec
from penstock_operator.api.defaults import unreachable_target
from penstock_operator.autoscaling import LoadWindow, Recommendation, ScalerState, Target, recommend
from penstock_wire.control.report import Items, SidecarReport, Totals

TARGET = Target(min_replicas=1, max_replicas=4, target_load=1000, stable_window=60, downscale_delay=300)
HELD = 288
"""Items that a pod holds: what its queue lets wait, and what is in the model."""


class Overloaded:
    """A backend whose pods are full and refuse the rest of what is offered.

    Args:
        offered: items a second.
        capacity: items that a pod computes in a second.
    """

    def __init__(self, offered: int, *, capacity: int, reason: str = "queue_full") -> None:
        self.offered, self.capacity, self.reason = offered, capacity, reason
        self.window, self.state = LoadWindow(60), ScalerState()
        self.replicas = self.ready = 1
        self.now, self.refused = 1000, 0
        self.last: Recommendation | None = None

    def run(self, seconds: int, *, starting: int = 0) -> None:
        """Let time pass; new pods are ready after so many seconds."""
        due = self.now + starting
        for _ in range(seconds):
            self.now += 1
            if self.now >= due:
                self.ready = self.replicas
                due = self.now + starting
            over = max(0, self.offered - self.ready * self.capacity)
            self.refused += over // self.ready
            for index in range(self.ready):
                report = SidecarReport(
                    pod=f"p{index}",
                    uid=f"p{index}",
                    seq=self.now,
                    state="ready",
                    items=Items(queued=HELD if over else 10),
                    totals=Totals(refused={self.reason: self.refused}),
                )
                self.window.record(report, self.now)
            pods = {f"p{index}": index < self.ready for index in range(self.replicas)}
            view = self.window.view(pods, self.now)
            self.last, self.state = recommend(
                TARGET, current=self.replicas, pods=view, state=self.state, now=self.now
            )
            self.replicas = self.last.replicas


def test_refused_work_adds_pods_until_nothing_is_refused() -> None:
    """98 % refused, and a target that the load of a full pod never reaches: it used to stay at one pod."""
    backend = Overloaded(300, capacity=100)
    backend.run(60)
    assert backend.replicas == 3
    assert backend.last is not None
    assert backend.last.inputs.refused == 0
    backend.offered = 10_000
    backend.run(60)
    assert backend.replicas == 4
    assert (backend.last.verdict, backend.last.inputs.wanted) == ("Limited", 5)
    assert "a full queue refused" in backend.last.message


def test_the_next_pod_is_asked_for_when_the_last_one_is_ready() -> None:
    """Pods that start take nothing yet: as many as the limit allows would else be asked for at once."""
    backend = Overloaded(300, capacity=100)
    backend.run(20, starting=30)
    assert (backend.ready, backend.replicas) == (1, 2)


def test_it_goes_down_again_as_ever() -> None:
    backend = Overloaded(300, capacity=100)
    backend.run(60)
    backend.offered = 0
    backend.run(400)
    assert backend.replicas == 1


def test_refusals_for_a_deadline_add_no_pod() -> None:
    """A client may make its deadlines as short as it likes."""
    backend = Overloaded(300, capacity=100, reason="deadline")
    backend.run(60)
    assert backend.replicas == 1


@pytest.mark.parametrize(
    ("target", "policy", "model", "most"),
    [
        (287, {}, {}, None),
        (288, {"maxQueuedItems": 256}, {}, "288 items: 256 wait, 32 are in the model"),
        (10, {"maxBatchSize": 8, "maxQueuedItems": 2}, {}, "10 items: 2 wait, 8 are in the model"),
        (9, {"maxBatchSize": 8, "maxQueuedItems": 2}, {}, None),
        (18431, {"maxConcurrentBatches": 64}, {}, None),
        (
            18432,
            {"maxConcurrentBatches": 64, "maxQueuedItems": 16384},
            {},
            "18432 items: 16384 wait, 2048 are in the model",
        ),
        (10**6, {}, {"protocol": "none"}, None),
        (110, {"maxQueuedItems": 10}, {"protocol": "none"}, "110 items: 10 wait, 100 are in the model"),
    ],
)
def test_a_target_that_no_load_exceeds(
    target: int, policy: dict[str, Any], model: dict[str, Any], most: str | None
) -> None:
    spec = {"model": {"container": {"image": "i"}} | model, "autoscaling": {"targetLoad": target}}
    backend = ModelBackend.parse({"metadata": {"name": "b", "namespace": "n"}, "spec": spec})
    message = unreachable_target(backend, BatchPolicySpec.model_validate(policy))
    if most is None:
        assert message is None
    else:
        assert message == f"targetLoad is {target}, but a pod never has more than {most}; more are refused"
