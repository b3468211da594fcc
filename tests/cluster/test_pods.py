"""A backend's pods and status on real nodes: extended resources, rollout, suspend."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from devcluster.cluster import Cluster
from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.k8s import (
    MODEL_IMAGE,
    Load,
    Namespace,
    condition_of,
    container_backend,
    ledger_backend,
    ledger_code,
)

RESOURCE = "example.com/accelerator"

READS_WEIGHTS = """
import http.server
open("/data/weights").read()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
http.server.ThreadingHTTPServer(("0.0.0.0", 8080), Handler).serve_forever()
"""
"""A model that does not start without its weights."""


def patch_node(cluster: Cluster, name: str, operation: dict[str, Any]) -> None:
    """Change what a node says it has, as a device plugin's kubelet would."""
    paths = [f"/status/{part}/{RESOURCE.replace('/', '~1')}" for part in ("capacity", "allocatable")]
    operations = [{**operation, "path": path} for path in paths]
    cluster.kubectl(
        *("patch", "node", name, "--subresource=status", "--type=json", "-p", json.dumps(operations))
    )


@pytest.fixture
def one_accelerator(penstock: Cluster) -> Iterator[None]:
    """The cluster has one accelerator, on one node, for the time of the test."""
    nodes = json.loads(penstock.kubectl("get", "nodes", "-o", "json").stdout)["items"]
    name = nodes[0]["metadata"]["name"]
    patch_node(penstock, name, {"op": "add", "value": "1"})
    yield
    patch_node(penstock, name, {"op": "remove"})


def uids(namespace: Namespace) -> set[str]:
    """The uids of the backend's pods, those that end included."""
    return {pod["metadata"]["uid"] for pod in namespace.list("pods", "penstock.dev/backend=b")}


@pytest.mark.usefixtures("one_accelerator")
def test_a_model_that_needs_the_only_accelerator_rolls_in_place(namespace: Namespace, load: Load) -> None:
    """With a surge the next pod is unschedulable, and the status says so; without a surge it rolls."""
    backend = ledger_backend("b", collector=load.port)
    backend["spec"]["model"]["python"]["resources"] = {"limits": {RESOURCE: 1}}
    namespace.apply(ledger_code(), backend)
    namespace.wait_ready("modelbackend", "b")
    (pod,) = namespace.pods("b")
    asked = [container.get("resources", {}).get("limits", {}) for container in pod["spec"]["initContainers"]]
    assert not any(RESOURCE in limits for limits in asked)
    assert pod["spec"]["containers"][0]["resources"]["requests"][RESOURCE] == "1"

    namespace.patch("modelbackend", "b", {"spec": {"podTemplate": {"annotations": {"changed": "yes"}}}})
    condition = namespace.wait_object("modelbackend", "b", "Ready", "False", reason="Unschedulable")
    assert RESOURCE in condition_of(condition, "Ready")["message"]
    assert condition_of(condition, "Available")["status"] == "True"

    namespace.patch("modelbackend", "b", {"spec": {"rollout": {"maxSurge": 0, "maxUnavailable": 1}}})
    namespace.wait_ready("modelbackend", "b", seconds=240)
    wait_for("another pod in its place", lambda: pod["metadata"]["uid"] not in uids(namespace))


def test_a_suspended_backend_is_left_as_it_is_until_it_is_resumed(namespace: Namespace, load: Load) -> None:
    """A change that rolls waits, which Ready says, and is then carried out."""
    namespace.apply(ledger_code(), ledger_backend("b", collector=load.port))
    namespace.wait_ready("modelbackend", "b")
    before, deployment = uids(namespace), namespace.get("deployment", "b-backend") or {}
    change = {"suspend": True, "podTemplate": {"annotations": {"changed": "yes"}}}
    namespace.patch("modelbackend", "b", {"spec": change})
    namespace.wait_condition("modelbackend", "b", "Ready", "False", reason="Suspended")
    after = namespace.get("deployment", "b-backend") or {}
    assert after["metadata"]["generation"] == deployment["metadata"]["generation"]
    assert uids(namespace) == before
    namespace.patch("modelbackend", "b", {"spec": {"suspend": False}})
    wait_for("another pod", lambda: uids(namespace) and not uids(namespace) & before, seconds=240)
    namespace.wait_ready("modelbackend", "b")


def test_containers_before_and_beside_the_model(namespace: Namespace) -> None:
    """Weights are fetched before the model starts; all of it passes restricted Pod Security unasked."""
    mounts = [{"name": "data", "mountPath": "/data"}]
    common = {"image": MODEL_IMAGE, "imagePullPolicy": "Never", "volumeMounts": mounts}
    fetch = ["python", "-c", "open('/data/weights', 'w').close()"]
    beside = ["python", "-c", "import signal; signal.sigwait([signal.SIGTERM])"]
    backend = container_backend("b", script=READS_WEIGHTS, disruptionBudget={"minAvailable": 1})
    backend["spec"]["model"]["container"]["volumeMounts"] = mounts
    backend["spec"]["podTemplate"] = {
        "volumes": [{"name": "data", "emptyDir": {}}],
        "initContainers": [{"name": "fetch", "command": fetch, **common}],
        "containers": [{"name": "beside", "command": beside, **common}],
    }
    namespace.apply(backend)
    namespace.wait_ready("modelbackend", "b")
    (pod,) = namespace.pods("b")
    assert [container["name"] for container in pod["spec"]["initContainers"]] == ["penstock-sidecar", "fetch"]
    assert [container["name"] for container in pod["spec"]["containers"]] == ["model", "beside"]
    budget = namespace.get("poddisruptionbudget", "b-backend") or {}
    assert budget["spec"]["minAvailable"] == 1
    assert "maxUnavailable" not in budget["spec"]
