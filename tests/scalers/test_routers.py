"""`router.autoscaling` by Kubernetes' own autoscaler and metrics-server, with no part of it played."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from devcluster import addons
from devcluster.cluster import Cluster
from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.k8s import (
    INSTALLED_IN,
    Load,
    Namespace,
    assert_nothing_lost,
    endpoint,
    is_going,
    ledger_backend,
    ledger_code,
)
from tests.support.cluster.release import upgrade
from tests.support.cluster.watched import watched

NAME = "penstock-shared-router"
PODS = f"app.kubernetes.io/name={NAME}"
LEAST, MOST = 2, 4
VALUES = {
    "router.mode": "Shared",
    "router.autoscaling.enabled": "true",
    "router.autoscaling.minReplicas": LEAST,
    "router.autoscaling.maxReplicas": MOST,
    # So little that a load which two cores carry beside a cluster is too much for two routers.
    "router.resources.requests.cpu": "30m",
}
BUSY, CALM = 200.0, 20.0


class Seen:
    """Looks at the routers, and prints what has changed since the last look."""

    def __init__(self, system: Namespace) -> None:
        self._system, self._began, self._last = system, time.monotonic(), ""

    def settled(self, count: int) -> bool:
        """Whether so many routers are ready, and no others are there."""
        system = self._system
        scaler = (system.get("hpa", NAME) or {}).get("status") or {}
        budget = (system.get("pdb", NAME) or {}).get("status") or {}
        pods = system.list("pods", PODS)
        ready = sum(_is_ready(pod) for pod in pods)
        going = sum(map(is_going, pods))
        used = [each["resource"]["current"].get("averageUtilization") for each in _metrics(scaler)]
        line = (
            f"HPA asks for {scaler.get('desiredReplicas')} at {used} %; pods {len(pods)}, {ready} ready, "
            f"{going} going; budget {budget.get('currentHealthy')} of {budget.get('expectedPods')}"
        )
        if line != self._last:
            print(f"{time.monotonic() - self._began:6.1f} s  {line}", flush=True)
            self._last = line
        agreed = count == scaler.get("desiredReplicas") == budget.get("expectedPods")
        return agreed and len(pods) == ready == count and not going


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _metrics(scaler: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in scaler.get("currentMetrics") or () if "resource" in each]


@pytest.mark.cluster
@pytest.mark.timeout(1800, func_only=True)  # beyond it the whole run ends: no bound of anything promised
def test_an_hpa_grows_and_shrinks_the_shared_routers_and_no_request_is_lost(
    cluster: Cluster, namespace: Namespace, load: Load, tmp_path: Path
) -> None:
    """By their CPU: 2 → 4 → 2, every request on a connection of its own, and the operator does not fight.

    The number of replicas never turns back on its way; the budget follows; routers that go drain.
    """
    addons.install(cluster, addons.METRICS_SERVER)
    system = Namespace(cluster, INSTALLED_IN)
    upgrade(cluster, *(word for name, value in VALUES.items() for word in ("--set", f"{name}={value}")))
    try:
        namespace.apply(
            ledger_code(), ledger_backend("m", collector=load.port, replicas=1), endpoint("e", "m")
        )
        namespace.wait_ready("modelendpoint", "e")
        url, seen = namespace.url("e"), Seen(system)
        wait_for("the autoscaler to see their CPU", lambda: _uses_cpu(system), seconds=240)
        with watched(system, NAME, tmp_path / "states.json", "deployment") as states:
            load.start(url, rate=BUSY, fresh=True)
            wait_for("the most routers", lambda: seen.settled(MOST), seconds=300)
            summaries = [load.stop()]
            print(f"{BUSY:g} a second: {summaries[0]['sent']} sent")
            load.start(url, rate=CALM, fresh=True)
            # Kubernetes takes pods away by the highest number that it wanted in the last five minutes.
            wait_for("the fewest routers", lambda: seen.settled(LEAST), seconds=900)
            summaries.append(load.stop())
            print(f"{CALM:g} a second: {summaries[1]['sent']} sent")
    finally:
        upgrade(cluster)
    for summary in summaries:
        assert_nothing_lost(summary)
    asked = [state["spec"]["replicas"] for state in states]
    distinct = [count for count, _ in itertools.groupby(asked)]
    print(f"{len(states)} states of the Deployment; replicas: {distinct}")
    top = distinct.index(MOST)
    assert distinct[: top + 1] == sorted(distinct[: top + 1])
    assert distinct[top:] == sorted(distinct[top:], reverse=True)


def _uses_cpu(system: Namespace) -> bool:
    status = (system.get("hpa", NAME) or {}).get("status") or {}
    return any("averageUtilization" in each["resource"]["current"] for each in _metrics(status))
