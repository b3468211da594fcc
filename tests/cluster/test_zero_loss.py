"""The ledger under change: nothing lost, duplicated, mis-assigned or non-2xx, with no excluded window."""

from __future__ import annotations

from typing import Any

import pytest

from devcluster import images
from devcluster.cluster import Cluster
from tests.support.k8s import (
    MODEL_IMAGE,
    ROOT,
    Load,
    Namespace,
    assert_nothing_lost,
    endpoint,
    ledger_backend,
    ledger_code,
    wait_for,
)

RATE = 150.0
OTHER_IMAGE = "localhost/penstock/python-model:other"


def serve(namespace: Namespace, load: Load, **spec: object) -> str:
    """A ledger backend `b` behind an endpoint `b`, both Ready; the endpoint's URL."""
    namespace.apply(ledger_code(), ledger_backend("b", collector=load.port, **spec), endpoint("b", "b"))
    namespace.wait_ready("modelbackend", "b")
    namespace.wait_ready("modelendpoint", "b")
    return namespace.url("b")


def ready_pods(namespace: Namespace, backend: str) -> list[str]:
    """Names of a backend's pods that are Ready."""
    return [
        pod["metadata"]["name"]
        for pod in namespace.pods(backend)
        if any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
    ]


def test_replicas_follow_the_load_up_and_down_and_nothing_is_lost(namespace: Namespace, load: Load) -> None:
    """1 → 3 → 1 replicas by `targetLoad` under load; the reasons stand in `status.scaling`."""
    url = serve(
        namespace,
        load,
        init_kwargs={"delay_ms": 40.0, "delay_item_ms": 5.0},
        # What one pod cannot take while others start must have room to wait: 32 places, the default, are half
        # a second of its work, and on a busy machine a pod takes longer to start.
        batching={"maxBatchSize": 4, "maxQueuedItems": 1000},
        autoscaling={
            "minReplicas": 1,
            "maxReplicas": 3,
            "targetLoad": 2,
            "stableWindow": "6s",
            "downscaleDelay": "8s",
        },
    )
    load.start(url, rate=55)  # one pod takes 4 items in 60 ms: 67 a second, at a load of about 4
    wait_for("three ready pods", lambda: len(ready_pods(namespace, "b")) == 3, seconds=90)
    namespace.patch("modelbackend", "b", {"spec": {"autoscaling": {"targetLoad": 50}}})
    wait_for("one pod", lambda: len(namespace.list("pods", "penstock.dev/backend=b")) == 1, seconds=150)
    assert_nothing_lost(load.stop())

    def scalings() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = namespace.get("modelbackend", "b")["status"]["scaling"]
        return found

    wait_for("the newest change first in status.scaling", lambda: scalings()[0]["to"] == 1, seconds=30)
    scaling = scalings()
    assert max(one["to"] for one in scaling) == 3
    assert all(one["reason"] and one["inputs"] for one in scaling)


def test_a_deleted_pod_loses_nothing(namespace: Namespace, load: Load) -> None:
    """Every pod of a backend is deleted in turn under load."""
    url = serve(namespace, load, replicas=2, init_kwargs={"delay_ms": 5.0})
    load.start(url, rate=RATE)
    for name in ready_pods(namespace, "b"):
        namespace.kubectl("delete", "pod", name, "--wait=true", "--timeout=90s")
        wait_for("two ready pods again", lambda: len(ready_pods(namespace, "b")) == 2, seconds=60)
    assert_nothing_lost(load.stop())


def test_the_only_pod_deleted_loses_nothing(namespace: Namespace, load: Load) -> None:
    """With one replica, requests are held until its successor is ready."""
    url = serve(namespace, load, replicas=1, init_kwargs={"delay_ms": 2.0})
    load.start(url, rate=RATE)
    (name,) = ready_pods(namespace, "b")
    namespace.kubectl("delete", "pod", name, "--wait=true", "--timeout=90s")
    wait_for("a ready pod again", lambda: ready_pods(namespace, "b"), seconds=60)
    assert_nothing_lost(load.stop())


@pytest.mark.parametrize("what", ["image", "env"])
def test_a_rolling_change_loses_nothing(
    namespace: Namespace, load: Load, cluster: Cluster, what: str
) -> None:
    """A new image, or a changed variable, replaces every pod under load."""
    url = serve(namespace, load, replicas=2, init_kwargs={"delay_ms": 5.0})
    before = set(ready_pods(namespace, "b"))
    load.start(url, rate=RATE)
    changed = ledger_backend("b", collector=load.port, replicas=2, init_kwargs={"delay_ms": 5.0})
    python = changed["spec"]["model"]["python"]
    if what == "image":
        images.build(
            dockerfile=ROOT / "tests/support/other_image/Dockerfile",
            tag=OTHER_IMAGE,
            build_args={"BASE": MODEL_IMAGE},
        )
        cluster.load(OTHER_IMAGE)
        python["image"] = OTHER_IMAGE
    else:
        python["env"].append({"name": "CHANGED", "value": "yes"})
    namespace.apply(changed)

    def replaced() -> bool:
        everyone = {pod["metadata"]["name"] for pod in namespace.list("pods", "penstock.dev/backend=b")}
        return len(ready_pods(namespace, "b")) == 2 and not everyone & before

    wait_for("two new pods and no old one", replaced, seconds=150)
    assert_nothing_lost(load.stop())


def test_a_model_restarted_by_its_liveness_probe_does_not_leave_the_pod_draining(
    namespace: Namespace, load: Load
) -> None:
    """Kubelet calls preStop for a failed liveness probe too: once the model is back, the pod serves again."""
    spec = {
        "drain": {"propagationDelay": "1s", "timeout": "2s"},
    }
    backend = ledger_backend("b", collector=load.port, **spec)
    backend["spec"]["model"]["container"] = {
        "image": MODEL_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["python", "-m", "penstock.serve", "ledger_model:Ledger", "--port", "8080"],
        "env": backend["spec"]["model"].pop("python")["env"],
        "volumeMounts": [{"name": "code", "mountPath": "/code", "readOnly": True}],
        "livenessProbe": {
            "exec": {"command": ["python", "-c", "import os, sys; sys.exit(os.path.exists('/tmp/ill'))"]},
            "periodSeconds": 1,
            "failureThreshold": 2,
            "timeoutSeconds": 5,
        },
    }
    namespace.apply(ledger_code(), backend, endpoint("b", "b"))
    namespace.wait_ready("modelbackend", "b")
    namespace.wait_ready("modelendpoint", "b")
    (pod,) = namespace.pods("b")
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]

    script = "import os, time; open('/tmp/ill', 'w').close()"
    namespace.kubectl("exec", name, "-c", "model", "--", "python", "-c", script)

    def model(field: str) -> int:
        statuses = (namespace.get("pod", name) or {})["status"]["containerStatuses"]
        return int(next(status[field] for status in statuses if status["name"] == "model"))

    wait_for("the model's restart", lambda: model("restartCount") >= 1, seconds=60)
    namespace.kubectl("exec", name, "-c", "model", "--", "python", "-c", "import os; os.remove('/tmp/ill')")
    wait_for("the pod to be ready again", lambda: ready_pods(namespace, "b") == [name], seconds=90)
    (pod,) = namespace.pods("b")
    assert pod["metadata"]["uid"] == uid
    sidecar = pod["status"]["initContainerStatuses"][0]
    assert sidecar["restartCount"] == 0
    status, _, body = namespace.curl(namespace.url("b"), body='{"instances": [{"id": 7}]}')
    assert (status, '"id":7' in body.replace(" ", "")) == (200, True), body
