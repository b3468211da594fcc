"""Deleting backends that are in use: refused where the installation says so, and harmless where not."""

from __future__ import annotations

from collections.abc import Iterator

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
    """Who uses a backend, as its status says."""
    found = (namespace.get("modelbackend", name) or {}).get("status") or {}
    return sorted(found.get("usedBy") or [])


@pytest.mark.usefixtures("protected")
def test_a_backend_in_use_is_not_deleted(namespace: Namespace) -> None:
    """Its users are named; one that nobody uses goes; the namespace's own deletion is let through."""
    for name in ("one", "two", "free"):
        namespace.apply(container_backend(name, script="", replicas=0))
    namespace.apply(endpoint("e", "one"), split("s", "e", {"one": 1, "two": 0}))
    wait_for("who uses two", lambda: used_by(namespace, "two") == ["TrafficSplit/s"])
    wait_for("who uses one", lambda: used_by(namespace, "one") == ["ModelEndpoint/e", "TrafficSplit/s"])

    def refused() -> str:
        # NB: an admission policy is in force a moment after it was stored.
        return delete(namespace, "modelbackend", "two", "--dry-run=server")

    told = wait_for("the policy to be in force", refused)
    assert "ModelBackend two is in use by TrafficSplit/s" in told
    told = delete(namespace, "modelbackend", "one")
    assert "ModelBackend one is in use by ModelEndpoint/e, TrafficSplit/s" in told
    assert "penstock-backends-in-use" in told
    everyone = delete(namespace, "modelbackend", "--all")
    assert "is in use by" in everyone
    assert {one["metadata"]["name"] for one in namespace.list("modelbackend")} == {"one", "two"}

    assert delete(namespace, "trafficsplit", "s") == ""
    wait_for("nobody to use two", lambda: used_by(namespace, "two") == [])
    assert delete(namespace, "modelbackend", "two") == ""
    assert "ModelEndpoint/e" in delete(namespace, "modelbackend", "one")
    gone = ("delete", "namespace", namespace.name, "--wait=true", "--timeout=240s")
    namespace.cluster.kubectl(*gone, timeout=270)


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
