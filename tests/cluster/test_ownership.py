"""The owner of each field, by the API server; and the preview of a live cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import yaml

from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.k8s import Namespace, condition_of, container_backend, endpoint
from tests.support.ledger.fight import Fight

SERVES = """
import http.server
http.server.ThreadingHTTPServer(("0.0.0.0", 8080), http.server.SimpleHTTPRequestHandler).serve_forever()
"""


def managers(live: dict[str, Any]) -> dict[tuple[str, str], set[str]]:
    """The top-level fields that each manager owns, by manager and subresource."""
    return {
        (entry["manager"], entry.get("subresource", "")): set(entry["fieldsV1"])
        for entry in live["metadata"]["managedFields"]
    }


def shown(namespace: Namespace, kind: str, name: str) -> dict[str, Any]:
    """An object with its managed fields."""
    text = namespace.kubectl("get", kind, name, "--show-managed-fields", "-o", "yaml")
    document: dict[str, Any] = yaml.safe_load(text)
    return document


def apply_as_git(namespace: Namespace, backend: dict[str, Any]) -> None:
    """Apply as a GitOps controller does: server-side, under a name of its own."""
    namespace.kubectl(
        "apply", "--server-side", "--field-manager=git", "-f", "-", input=yaml.safe_dump(backend)
    )


def test_three_managers_and_replicas_that_leave_git(namespace: Namespace) -> None:
    """Objects, statuses and replicas have a manager each; replicas taken out of Git stay as they are.

    If a person scales beside the autoscaler, a condition says so.
    """
    scaling = {"minReplicas": 1, "maxReplicas": 4, "targetLoad": 8, "downscaleDelay": "1h"}
    backend = container_backend("b", script=SERVES, replicas=2, autoscaling=scaling)
    apply_as_git(namespace, backend)

    def scaler() -> set[str] | None:
        return managers(shown(namespace, "modelbackend", "b")).get(("penstock-autoscaler", "scale"))

    assert wait_for("the autoscaler to be an owner", scaler) == {"f:spec"}
    del backend["spec"]["replicas"]
    backend["spec"]["drain"] = {"propagationDelay": "7s"}
    apply_as_git(namespace, backend)
    assert (namespace.get("modelbackend", "b") or {})["spec"]["replicas"] == 2
    wait_for("the operator to have looked at that", lambda: "7s" in _sidecar(namespace))
    wait_for("and the status to report it", lambda: _told_generation(namespace))
    live = shown(namespace, "modelbackend", "b")
    assert live["spec"]["replicas"] == 2
    owners = managers(live)
    assert set(owners) == {("git", ""), ("penstock-status", "status"), ("penstock-autoscaler", "scale")}
    assert owners["penstock-status", "status"] == {"f:status"}
    of_replicas = [
        entry["manager"]
        for entry in live["metadata"]["managedFields"]
        if "f:replicas" in entry["fieldsV1"].get("f:spec", {})
    ]
    assert of_replicas == ["penstock-autoscaler"]
    deployment = shown(namespace, "deployment", "b-backend")
    assert deployment["spec"]["replicas"] == 2
    assert {name for name, subresource in managers(deployment) if not subresource} <= {
        "penstock",
        "kube-controller-manager",  # its revision, an annotation
    }
    for kind, name in (
        ("service", "b-backend"),
        ("configmap", "b-backend-settings"),
        ("serviceaccount", "b-backend"),
    ):
        assert {name for name, _ in managers(shown(namespace, kind, name))} == {"penstock"}, kind

    namespace.kubectl("scale", "modelbackend", "b", "--replicas=3")
    condition = namespace.wait_object("modelbackend", "b", "ScalingActive", "False", reason="ForeignScaler")
    assert "kubectl" in condition_of(condition, "ScalingActive")["message"]
    assert condition["spec"]["replicas"] == 3


@pytest.mark.xdist_group("fight")
def test_scalers_that_disagree_are_told(fight: Fight) -> None:
    """At once. They go on beside the tests that follow; `test_zero_loss_fight.py` has the end."""
    active = fight.namespace.condition("modelbackend", "b", "ScalingActive")
    assert (active["status"], active["reason"]) == ("False", "ForeignScaler")
    assert "writes the scale subresource too" in active["message"]


def test_a_preview_of_a_live_cluster_tells_what_would_be_written(
    namespace: Namespace, operator: Namespace
) -> None:
    """Nothing while all is as wanted; with another router image that Deployment alone; nothing is written."""
    namespace.apply(container_backend("b", script=SERVES, replicas=0), endpoint("e", "b"))
    wait_for("a router", lambda: namespace.get("deployment", "penstock-router"))
    wait_for("nothing to be left to write", lambda: preview(operator, namespace) == {})

    before = namespace.get("deployment", "penstock-router")
    wanted = preview(operator, namespace, "--router-image=example.com/router:next")
    (name,) = wanted
    assert name == ("Deployment", "penstock-router")
    (container,) = wanted[name]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "example.com/router:next"
    after = namespace.get("deployment", "penstock-router")
    assert (before or {})["spec"] == (after or {})["spec"]


def preview(operator: Namespace, namespace: Namespace, *flags: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The objects that an operator with the installed configuration would write, by kind and name."""
    pods = (operator.get("deployment", "penstock-operator") or {})["spec"]["template"]["spec"]
    variables = {
        variable["name"]: variable["value"]
        for variable in pods["containers"][0]["env"]
        if "value" in variable
    }
    login = (f"--kubeconfig={namespace.cluster.host_kubeconfig}", f"--operator-namespace={operator.name}")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "penstock_operator",
            "--dry-run",
            *login,
            f"--namespace={namespace.name}",
            *flags,
        ],
        env=dict(os.environ) | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    documents = [document for document in yaml.safe_load_all(done.stdout) if document]
    return {(document["kind"], document["metadata"]["name"]): document for document in documents}


def _sidecar(namespace: Namespace) -> list[str]:
    """The sidecar's arguments in the backend's Deployment; none before that is there."""
    deployment = namespace.get("deployment", "b-backend")
    if deployment is None:
        return []
    arguments: list[str] = deployment["spec"]["template"]["spec"]["initContainers"][0]["args"]
    return arguments


def _told_generation(namespace: Namespace) -> bool:
    """Whether the backend's status is of its generation."""
    live = namespace.get("modelbackend", "b") or {"metadata": {"generation": 0}}
    return bool((live.get("status") or {}).get("observedGeneration") == live["metadata"]["generation"])
