"""Pods that start where others use up every processor: what serves goes on by its requests of CPU."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.support.cluster.k8s import MODEL_IMAGE, Load, Namespace, assert_nothing_lost
from tests.support.ledger.zero_loss import BACKEND, ROUTERS, pods_of, serve, wait_settled

HOGS = 2 * (os.cpu_count() or 1)
HOG = "app=hog"
RATE = 100.0
"""Requests a second: less than what the CPU that one pod requests is enough for."""


def hogs() -> dict[str, Any]:
    """Ordinary pods, two busy loops a core, that request most of what the pods of the test leave."""
    container = {
        "name": "hog",
        "image": MODEL_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["python", "-c", "while True: pass"],
        "resources": {"requests": {"cpu": "150m"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    labels = {"app": "hog"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "hog"},
        "spec": {
            "replicas": HOGS,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
            },
        },
    }


def ready_since(namespace: Namespace) -> dict[str, tuple[str, int]]:
    """Since when each router and each pod of the backend is Ready without a break, and its restarts."""
    since = {}
    for pod in [*pods_of(namespace, ROUTERS), *pods_of(namespace, BACKEND)]:
        status = pod["status"]
        (ready,) = (condition for condition in status["conditions"] if condition["type"] == "Ready")
        containers = [*status["containerStatuses"], *status.get("initContainerStatuses", [])]
        restarts = sum(container["restartCount"] for container in containers)
        since[pod["metadata"]["name"]] = (f"{ready['status']} {ready['lastTransitionTime']}", restarts)
    return since


@pytest.mark.undisturbed
def test_pods_that_start_on_a_full_node_take_nothing_from_those_that_serve(
    namespace: Namespace, load: Load
) -> None:
    """1 → 5 → 1 pods, each with a second of computing before it serves, beside two busy loops a core.

    No request is refused, lost or answered wrongly. No router and no pod that serves leaves its Service or is
    started again, however late it answers its probes. Each has a request of CPU: router and sidecar
    theirs by default, the model its own.
    """
    requests = {"requests": {"cpu": "100m"}}
    model = {"delay_ms": 2.0, "load_cpu_ms": 1000.0}
    url = serve(namespace, load, replicas=1, init_kwargs=model, resources=requests)
    namespace.apply(hogs())
    wait_settled(namespace, HOGS, HOG)
    served = ready_since(namespace)

    load.start(url, rate=RATE)
    namespace.patch("modelbackend", "b", {"spec": {"replicas": 5}})
    wait_settled(namespace, 5)
    times = ready_since(namespace)
    namespace.patch("modelbackend", "b", {"spec": {"replicas": 1}})
    wait_settled(namespace, 1)
    summary = load.stop()

    assert_nothing_lost(summary)
    assert {name: times.get(name) for name in served} == served
