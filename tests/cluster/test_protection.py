"""Deleting backends that are in use: refused where the installation says so, and harmless where not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from devcluster.cluster import Cluster
from tests.support.cluster_waits import wait_for
from tests.support.k8s import (
    Load,
    Namespace,
    assert_nothing_lost,
    container_backend,
    endpoint,
    ledger_backend,
    ledger_code,
    split,
)
from tests.support.release import upgrade


@pytest.fixture
def protected(penstock: Cluster) -> Iterator[None]:
    """The release refuses to delete backends in use, for the time of the test."""
    upgrade(penstock, "--set", "protection.backendsInUse=true")
    yield
    upgrade(penstock)


def delete(namespace: Namespace, *what: str) -> str:
    """Delete, and return what kubectl said of it; empty where it was done."""
    done = namespace.cluster.kubectl("-n", namespace.name, "delete", *what, "--timeout=60s", check=False)
    return "" if done.returncode == 0 else str(done.stderr)


def used_by(namespace: Namespace, name: str) -> list[str]:
    """The users of a backend, by its status."""
    status = (namespace.get("modelbackend", name) or {}).get("status") or {}
    return sorted(status.get("usedBy") or [])


@pytest.mark.usefixtures("protected")
def test_a_backend_in_use_is_not_deleted(namespace: Namespace) -> None:
    """Its users are named; an unused backend can be deleted; so can the whole namespace."""
    for name in ("one", "two", "free"):
        namespace.apply(container_backend(name, script="", replicas=0))
    namespace.apply(endpoint("e", "one"), split("s", "e", {"one": 1, "two": 0}))
    wait_for("who uses two", lambda: used_by(namespace, "two") == ["TrafficSplit/s"])
    wait_for("who uses one", lambda: used_by(namespace, "one") == ["ModelEndpoint/e", "TrafficSplit/s"])

    def refused() -> str:
        # NB: an admission policy is in force a moment after it was stored.
        return delete(namespace, "modelbackend", "two", "--dry-run=server")

    refusal = wait_for("the policy to be in force", refused)
    assert "ModelBackend two is in use by TrafficSplit/s" in refusal
    refusal = delete(namespace, "modelbackend", "one")
    assert "ModelBackend one is in use by ModelEndpoint/e, TrafficSplit/s" in refusal
    assert "penstock-backends-in-use" in refusal
    everyone = delete(namespace, "modelbackend", "--all")
    assert "is in use by" in everyone
    assert {backend["metadata"]["name"] for backend in namespace.list("modelbackend")} == {"one", "two"}

    assert delete(namespace, "trafficsplit", "s") == ""
    wait_for("two to be unused", lambda: used_by(namespace, "two") == [])
    assert delete(namespace, "modelbackend", "two") == ""
    assert "ModelEndpoint/e" in delete(namespace, "modelbackend", "one")
    gone = ("delete", "namespace", namespace.name, "--wait=true", "--timeout=240s")
    namespace.cluster.kubectl(*gone, timeout=270)


def test_who_may_not_create_pods_writes_no_backend(namespace: Namespace) -> None:
    """Whoever writes a ModelBackend runs pods. Labels, scale and deletion are not asked about."""
    user, cluster = "somebody", namespace.cluster
    verbs = ["get", "list", "watch", "create", "update", "patch", "delete"]
    _grant(namespace, user, "penstock.dev", ["modelbackends", "modelbackends/scale"], verbs)

    def as_user(*arguments: str, document: dict[str, Any] | None = None) -> str:
        """Do something as that user; returns what was said of it, empty where it was done."""
        words = ("-n", namespace.name, f"--as={user}", *arguments)
        text = None if document is None else json.dumps(document)
        done = cluster.kubectl(*words, input=text, check=False)
        return "" if done.returncode == 0 else str(done.stderr)

    backend = container_backend("b", script="", replicas=0)

    def refused() -> str:
        # NB: a right takes effect a moment after it was granted.
        said = as_user("create", "-f", "-", document=backend)
        return said if "penstock-backend-writers" in said else ""

    refusal = wait_for("the policy's refusal", refused)
    assert f"a ModelBackend runs pods: {user} may not write one" in refusal
    assert f"create pods in namespace {namespace.name}" in refusal
    assert namespace.get("modelbackend", "b") is None

    namespace.apply(backend)
    namespace.wait_condition("modelbackend", "b", "Available", "False")
    assert as_user("label", "modelbackend", "b", "team=a") == ""
    assert as_user("scale", "modelbackend", "b", "--replicas=0") == ""
    changed = ("patch", "modelbackend", "b", "--type=merge", "-p")
    assert "penstock-backend-writers" in as_user(*changed, '{"spec":{"model":{"container":{"image":"x"}}}}')
    assert "penstock-backend-writers" in as_user(*changed, '{"spec":{"replicas":1}}')
    _grant(namespace, user, "", ["pods"], ["create"])
    wait_for("the right to be known", lambda: as_user(*changed, '{"spec":{"suspend":true}}') == "")
    assert as_user("create", "-f", "-", document=container_backend("c", script="", replicas=0)) == ""
    assert as_user("delete", "modelbackend", "b", "c") == ""


def _grant(namespace: Namespace, user: str, group: str, resources: list[str], verbs: list[str]) -> None:
    """Give a user a right in a namespace."""
    rbac, name = "rbac.authorization.k8s.io", f"{user}-{resources[0]}"
    rule = {"apiGroups": [group], "resources": resources, "verbs": verbs}
    subject = {"apiGroup": rbac, "kind": "User", "name": user}
    role = {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": {"name": name}, "rules": [rule]}
    binding = {
        "apiVersion": f"{rbac}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": name},
        "subjects": [subject],
    }
    namespace.apply(role, binding)


def test_deleting_what_is_in_use_loses_nothing_while_another_serves(namespace: Namespace, load: Load) -> None:
    """Without the protection: a split's backend goes under load, then the split; the other one serves on."""
    namespace.apply(
        ledger_code(),
        ledger_backend("one", collector=load.port),
        ledger_backend("two", collector=load.port),
        endpoint("e", "two"),
        split("s", "e", {"one": 50, "two": 50}),
    )
    for name in ("one", "two"):
        namespace.wait_ready("modelbackend", name)
    namespace.wait_ready("trafficsplit", "s")
    namespace.wait_ready("modelendpoint", "e")
    load.start(namespace.url("e"), rate=100)
    assert delete(namespace, "modelbackend", "one") == ""
    namespace.wait_condition("trafficsplit", "s", "Ready", "False", reason="BackendMissing")
    namespace.wait_condition("modelendpoint", "e", "BackendsReady", "False", reason="BackendMissing")
    wait_for(
        "its pods to be gone", lambda: not namespace.list("pods", "penstock.dev/backend=one"), seconds=240
    )
    assert delete(namespace, "trafficsplit", "s") == ""
    # NB: two statuses, each of which is written by itself.
    wait_for("the endpoint alone to use two", lambda: used_by(namespace, "two") == ["ModelEndpoint/e"])
    namespace.wait_ready("modelendpoint", "e")
    assert_nothing_lost(load.stop())
