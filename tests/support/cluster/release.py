"""The release that all tests on the cluster share: upgraded, in force, and what its operator shows."""

from __future__ import annotations

from typing import Any

from devcluster.cluster import Cluster
from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.k8s import CHART, INSTALLED_IN, RELEASE, VALUES, Namespace, is_going

OPERATOR_PODS = "app.kubernetes.io/name=penstock-operator"


TAKE_BACK = "--force-conflicts"
"""Of helm: what was changed by hand is the release's again, as its manager."""


def upgrade(cluster: Cluster, *arguments: str, chart: str = CHART) -> None:
    """Install or upgrade the release that all tests share, and wait until it is in force."""
    cluster.helm(
        *("upgrade", "--install", RELEASE, chart, "-n", INSTALLED_IN, "--create-namespace", *VALUES),
        *(*arguments, "--wait", "--timeout", "240s"),
    )
    wait_in_force(cluster)


def wait_in_force(cluster: Cluster) -> None:
    """Wait until the operator's pods are those of its Deployment alone, and one leads and has the Service.

    A standby is Ready: without this the pods of the release before may still act, by its values.
    """
    system = Namespace(cluster, INSTALLED_IN)

    def in_force() -> bool:
        deployment = system.get("deployment", "penstock-operator")
        pods, lease = system.list("pods", OPERATOR_PODS), operator_lease(cluster)
        leads_to = system.get("endpointslice", "penstock-operator")
        if deployment is None or not lease or leads_to is None:
            return False
        count, status = deployment["spec"]["replicas"], deployment.get("status") or {}
        taken_up = status.get("observedGeneration") == deployment["metadata"]["generation"]
        of_it_alone = len(pods) == count == status.get("updatedReplicas") == status.get("readyReplicas")
        leader = [pod for pod in pods if pod["metadata"]["name"] == lease["holder"]]
        addresses = [address for each in leads_to.get("endpoints") or () for address in each["addresses"]]
        led = bool(leader) and addresses == [leader[0]["status"].get("podIP")]
        return taken_up and of_it_alone and led and not any(map(is_going, pods))

    wait_for("the release to be in force", in_force, seconds=240)


def operator_lease(cluster: Cluster) -> dict[str, Any]:
    """The spec of the operator's Lease, with its pod's name as `holder`; empty without one."""
    lease = Namespace(cluster, "kube-system").get("lease", "penstock-installation")
    spec: dict[str, Any] = (lease or {}).get("spec") or {}
    return spec and spec | {"holder": spec.get("holderIdentity", "").rpartition("/")[2]}


def operator_metric(operator: Namespace, name: str) -> float:
    """Sum of a metric of the operator over its labels; 0 before its first sample."""
    return sum(value for series, value in operator_metrics(operator).items() if series.startswith(name))


def operator_metrics(operator: Namespace) -> dict[str, float]:
    """All metrics of the operator that leads, by series."""
    pod = leading_pod(operator)
    status, _, text = operator.curl(f"http://{pod['status']['podIP']}:8015/metrics")
    assert status == 200, text
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line and line[0] != "#"]
    return {series: float(value) for series, value in lines}


def operator_idle(operator: Namespace) -> bool:
    """Whether the operator's queues are empty: no key waits, none is being reconciled."""
    metrics = operator_metrics(operator)
    names = ("workqueue_depth", "workqueue_unfinished_work_seconds")
    return "penstock_operator_leader" in metrics and not any(
        value for series, value in metrics.items() if series.startswith(names)
    )


def leading_pod(operator: Namespace) -> dict[str, Any]:
    """Wait for the leading pod of the operator that stays; other pods may come and go."""

    def leads() -> dict[str, Any] | None:
        holder = operator_lease(operator.cluster).get("holder")
        pods = [pod for pod in operator.list("pods", OPERATOR_PODS) if not is_going(pod)]
        return next((pod for pod in pods if pod["metadata"]["name"] == holder), None)

    return wait_for("an operator that leads", leads)
