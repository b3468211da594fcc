"""Deleting backends that are in use: refused where the installation says so, and harmless where not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from devcluster.cluster import Cluster
from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.k8s import (
    Load,
    Namespace,
    assert_nothing_lost,
    container_backend,
    endpoint,
    ledger_backend,
    ledger_code,
    split,
)
from tests.support.cluster.release import upgrade


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


@pytest.mark.xdist_group("fight")
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


SERVES = """
import http.server
http.server.ThreadingHTTPServer(("0.0.0.0", 8080), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
SETTINGS = ("penstock-router-settings", "good-backend-settings")


def test_settings_that_a_stranger_writes_reach_no_pod(namespace: Namespace) -> None:
    """Users may not write the operator's objects; and where somebody may, the operator's word counts.

    The attack has the highest version, targets, and cannot be changed back. Neither the pods that run follow
    it, nor those that start after it, and the ConfigMaps are made anew.
    """
    user = "mallory"
    _grant(namespace, user, "", ["configmaps", "services", "endpoints"], ["*"])
    _grant(namespace, user, "discovery.k8s.io", ["endpointslices"], ["*"])
    _grant(namespace, user, "apps", ["deployments"], ["*"])
    _grant(namespace, user, "penstock.dev", ["modelendpoints"], ["*"])
    for name in ("good", "evil"):
        namespace.apply(container_backend(name, script=SERVES, batching={"maxBatchSize": 7}))
    namespace.apply(endpoint("e", "good"))
    for kind, name in (("modelbackend", "good"), ("modelbackend", "evil"), ("modelendpoint", "e")):
        namespace.wait_ready(kind, name)
    url = namespace.url("e", "/")

    def served_by() -> str:
        status, headers, text = namespace.curl(url)
        assert status == 200, text
        return headers["x-penstock-backend"]

    def as_user(*arguments: str, document: dict[str, Any] | None = None) -> str:
        text = None if document is None else json.dumps(document)
        words = ("-n", namespace.name, f"--as={user}", *arguments)
        done = namespace.cluster.kubectl(*words, input=text, check=False)
        return "" if done.returncode == 0 else str(done.stderr)

    def attack(name: str) -> str:
        live = namespace.get("configmap", name) or {}
        document = json.loads(live["data"]["settings.json"]) | {"version": 2**53 - 1}
        for each in document.get("endpoints", []):
            each["backends"] = [{"name": "evil", "weight": 1, "targets": []}]
        if "batching" in document:
            document["batching"]["maxBatchSize"] = 3
        return json.dumps({"data": {"settings.json": json.dumps(document)}, "immutable": True})

    # As a user: refused, whatever the object, and so is a slice or a Service with the operator's labels.
    wait_for("the right to be known", lambda: as_user("create", "configmap", "own") == "")
    for name in SETTINGS:
        for words in (("patch", "configmap", name, "-p", attack(name)), ("delete", "configmap", name)):
            assert f"{user} may not write ConfigMap {name}" in as_user(*words), words
    slice_ = namespace.list("endpointslices", "kubernetes.io/service-name=good-backend")[0]
    own = {"metadata": {"name": "own", "labels": slice_["metadata"]["labels"]}}
    assert "may not write EndpointSlice own" in as_user("create", "-f", "-", document=slice_ | own)
    service = {"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 80}]}}
    assert "may not write Service own" in as_user("create", "-f", "-", document=service | own)
    patch = json.dumps({"metadata": {"labels": {"app.kubernetes.io/managed-by": None}}})
    assert "may not write Service good-backend" in as_user("patch", "service", "good-backend", "-p", patch)
    image = ("set", "image", "deployment/evil-backend", "model=other")
    assert "may not write Deployment evil-backend" in as_user(*image)
    assert as_user("rollout", "restart", "deployment/evil-backend") == ""
    assert as_user("annotate", "service", "e", "cloud.example/controller=1") == ""
    assert served_by() == "good"

    # As an admin, whom the policy lets through.
    before = {name: (namespace.get("configmap", name) or {})["metadata"]["uid"] for name in SETTINGS}
    for name in SETTINGS:
        namespace.kubectl("patch", "configmap", name, "-p", attack(name))

    def anew(name: str) -> bool:
        live = namespace.get("configmap", name)
        return live is not None and live["metadata"]["uid"] != before[name] and not live.get("immutable")

    def right() -> bool:
        addresses = [pod["status"]["podIP"] for pod in namespace.pods("good")]
        settings = [namespace.curl(f"http://{address}:8013/settings")[2] for address in addresses]
        return all('"maxBatchSize":7' in text for text in settings) and served_by() == "good"

    for name in SETTINGS:
        wait_for(f"{name} to be made anew", lambda name=name: anew(name))
        assert right()
    # New pods on the same node, whose kubelet may still have the immutable ones.
    for name in ("penstock-router", "good-backend"):
        namespace.kubectl("rollout", "restart", f"deployment/{name}")
        namespace.kubectl("rollout", "status", f"deployment/{name}", "--timeout=200s")
        assert right()
    namespace.wait_condition("modelbackend", "good", "SettingsApplied")
    namespace.wait_ready("modelendpoint", "e")
    assert as_user("rollout", "pause", "deployment/good-backend") == ""

    def paused() -> bool:
        return bool((namespace.get("deployment", "good-backend") or {})["spec"].get("paused"))

    wait_for("the pause to end", lambda: not paused())
    namespace.kubectl("delete", "modelbackend", "evil", "--cascade=orphan")
    wait_for("an orphan to be deletable", lambda: as_user("delete", "deployment", "evil-backend") == "")
    assert as_user("delete", "modelendpoint", "e") == ""
    wait_for("what was made for it to be gone", lambda: namespace.get("service", "e") is None)


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
