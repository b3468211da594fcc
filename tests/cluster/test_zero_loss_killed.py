"""`kill -9` and lost power: only what the killed process held is lost, and every caller gets an error."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from devcluster.cluster import Cluster
from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.k8s import Load, Namespace, endpoint
from tests.support.ledger.zero_loss import (
    ROUTERS,
    pod_on,
    pods_of,
    ready_pods,
    record,
    serve,
    totals,
    wait_settled,
)

RATE = 100.0
QUEUE, BATCH = 10_000, 32
KNOBS: dict[str, Any] = {
    "replicas": 2,
    "batching": {"maxBatchSize": BATCH, "maxQueuedItems": QUEUE},  # room for all: what is refused is not lost
    "init_kwargs": {"delay_ms": 200.0},
}
"""A model that is never idle at this rate, so that each pod has requests at any moment at which it may end;
and one pod alone bears all of it."""
TOLD_WITHIN = 1.0
"""Seconds from the kill, or from the first error of a lost node, within which every caller has its error."""


class Killing:
    """A run of the load during which something is killed.

    Args:
        kill: kills; it returns when that is done.
        results: where figures are written, and under which name.
    """

    def __init__(
        self,
        load: Load,
        url: str,
        *,
        kill: Callable[[], None],
        mended: Callable[[], None],
        results: tuple[str, str],
    ) -> None:
        load.start(url, rate=RATE)
        wait_for("some answers", lambda: load.mark("before")["answered"] >= RATE)
        load.mark("kill")
        self.begun = time.monotonic()
        kill()
        self.done = time.monotonic()
        load.mark("killed")
        mended()
        load.mark("after")
        self.summary = load.stop()
        self.errors: list[dict[str, Any]] = self.summary["errors"]
        self.open = {part["name"]: int(part["most_open"]) for part in self.summary["parts"]}
        """Requests that were open at once, in both pods: before, during and after the kill."""
        went_well = max(part["max_ms"] for part in self.summary["parts"]) / 1000
        self.slack = TOLD_WITHIN + went_well
        """A second, and as much as a request took that went well, where the machine is that busy."""
        first = min((error["at"] for error in self.errors), default=self.done)
        self.known = max(self.done, first)
        """When the kill was noticed: a router sends to a pod until it reads the end of its connection."""
        self.held = max(self.open[part] for part in (("kill",) if first <= self.done else ("kill", "killed")))
        """The killed process held some of the requests that the ledger had open then."""
        last = max((error["at"] for error in self.errors), default=self.done)
        print(
            f"{len(self.errors)} of {self.summary['sent']} lost, open at once {self.open}; "
            f"the first error {first - self.begun:.2f} s after the kill began, the last {last - first:.2f} s "
            f"later; others took up to {went_well:.2f} s"
        )

        figures = {
            "most_open": self.open,
            "kill_seconds": round(self.done - self.begun, 3),
            "first_error_seconds": round(first - self.begun, 3),
            "last_error_after_first_seconds": round(last - first, 3),
        }
        record(*results, asked={"rate": RATE, **KNOBS}, result=figures | totals(self.summary))

    def check(self, *, held: int) -> None:
        """Nothing twice, nothing without an answer, at most what was held, and each error an honest one.

        Args:
            held: so many requests could be lost; where none is, nothing was proved.
        """
        summary = self.summary
        names = ("mismatched", "lost", "duplicated", "unexecuted")
        wrong = {name: summary[name] for name in names if summary[name]}
        assert not wrong, f"{wrong}; {self.errors[:5]}"
        assert summary["ok"] + len(self.errors) == summary["sent"]
        assert self.errors, "nothing was under way in what was killed"
        assert len(self.errors) <= held, f"{len(self.errors)} errors, {held} were held; {self.errors[:5]}"
        for error in self.errors:
            problem = json.loads(error["body"])
            assert (problem["status"], problem["reason"]) == (502, "model_unreachable"), error
            assert problem["detail"], error
            assert problem["request_id"], error

    def check_times(self) -> None:
        """Requests after the kill was noticed are not lost; callers from before get errors at once."""
        for error in self.errors:
            assert error["sent"] <= self.known, (error, self.begun, self.done, self.known)
            assert error["at"] <= self.done + self.slack, (error, self.begun, self.done, self.slack)


def restarts(namespace: Namespace, pod: str, container: str) -> int:
    """The restarts of a container of a pod."""
    pod_object = next(each for each in pods_of(namespace) if each["metadata"]["name"] == pod)
    status = pod_object["status"]
    both = (*status["containerStatuses"], *status["initContainerStatuses"])
    return int(next(status["restartCount"] for status in both if status["name"] == container))


@pytest.mark.parametrize("container", ["penstock-sidecar", "model"])
def test_kill_9_in_a_pod_loses_at_most_what_it_held(
    namespace: Namespace, load: Load, container: str, request: pytest.FixtureRequest
) -> None:
    """A sidecar loses what it had queued and with the model, a model its batch; the rest is served."""
    url = serve(namespace, load, **KNOBS)

    def kill(pod: str) -> Killing:
        def mended() -> None:
            wait_for("the restart", lambda: restarts(namespace, pod, container) >= 1)
            wait_settled(namespace, 2)

        return Killing(
            load,
            url,
            kill=lambda: namespace.cluster.kill_container(namespace.name, pod, container),
            mended=mended,
            results=(request.config.getoption("--loss-results"), f"kill -9 of {container}"),
        )

    one, other = ready_pods(namespace)
    killing = kill(one)
    if not killing.errors:  # it was between two batches, which proves nothing
        killing = kill(other)
    # A model holds no more than its batch.
    killing.check(held=killing.held if container == "penstock-sidecar" else min(killing.held, BATCH))
    killing.check_times()


@pytest.mark.xdist_group("nodes")
def test_a_lost_node_loses_at_most_what_its_pod_held(
    second_node: Cluster, namespace: Namespace, load: Load, request: pytest.FixtureRequest
) -> None:
    """The router detects the silence and ends all requests to the node at once; the rest goes on."""
    # The router is on the first node: a client of a lost one is as lost as its own network makes it.
    second_node.kubectl("cordon", "node1")
    try:
        namespace.apply(endpoint("b", "b"))
        wait_settled(namespace, 1, ROUTERS)
    finally:
        second_node.kubectl("uncordon", "node1")
    url = serve(namespace, load, **KNOBS)
    pod_on(namespace, "node1")
    pod_on(namespace, "node0")

    def noted() -> None:
        """The ledger sees the pod's end in the answers: wait until the other pod has served for a while."""
        answered = load.mark("killed")["answered"]
        wait_for("answers without the node", lambda: load.mark("killed")["answered"] >= answered + 10 * RATE)

    killing = Killing(
        load,
        url,
        kill=lambda: second_node.lose_node("node1"),
        mended=noted,
        results=(request.config.getoption("--loss-results"), "loss of a node"),
    )
    second_node.remove_node("node1")
    # Until the silence is noticed, more is sent to it.
    killing.check(held=max(killing.open["kill"], killing.open["killed"]))
    first = min((error["at"] for error in killing.errors), default=0.0)
    for error in killing.errors:
        assert error["at"] <= first + killing.slack, (error, first, killing.slack)
        assert error["sent"] <= first, (error, first)
