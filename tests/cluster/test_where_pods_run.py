"""The placement of a backend's pods on two nodes."""

from __future__ import annotations

import pytest

from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.k8s import Namespace, container_backend

WAITS = "import signal; signal.sigwait([signal.SIGTERM])"


@pytest.mark.xdist_group("nodes")
@pytest.mark.usefixtures("second_node")
def test_pods_spread_over_the_nodes_unless_told_otherwise(namespace: Namespace) -> None:
    """Of four pods each node has some; where one node is ruled out, the other has all: none waits."""
    # NB: the models need not serve: a pod has its node long before it is ready.
    packed = {"nodeSelector": {"kubernetes.io/hostname": "node1"}}
    namespace.apply(
        container_backend("spread", script=WAITS, replicas=4),
        container_backend("packed", script=WAITS, replicas=4, podTemplate=packed),
    )

    def nodes(backend: str) -> list[str]:
        placed = [pod["spec"].get("nodeName", "") for pod in namespace.pods(backend)]
        return sorted(placed) if len(placed) == 4 and all(placed) else []

    packed_on = wait_for("a node for each packed pod", lambda: nodes("packed"))
    assert packed_on == ["node1"] * 4
    assert len(set(wait_for("a node for each spread pod", lambda: nodes("spread")))) == 2
