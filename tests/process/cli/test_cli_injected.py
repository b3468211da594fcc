"""`kubectl penstock status` of workloads whose pods ask for a sidecar by a label."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from penstock_cli import injected
from penstock_cli.commands import status, top

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def pod(name: str, *, sidecar: bool = True, ready: bool = True, policy: str = "small") -> dict[str, Any]:
    """A pod of the Deployment `fast` with a model on port 8080."""
    container = {
        "name": "penstock-sidecar",
        "args": ["--model", "http://127.0.0.1:8080", "--protocol", "instances"],
        "ports": [{"name": "web", "containerPort": 8012}],
    }
    owner = {"kind": "ReplicaSet", "name": "fast-7d4b9c", "controller": True}
    own = {"app": "fast", "pod-template-hash": "7d4b9c", "penstock.dev/inject": policy}
    return {
        "metadata": {"namespace": "n", "name": name, "labels": own, "ownerReferences": [owner]},
        "spec": {"initContainers": [container] if sidecar else []},
        "status": {"conditions": [{"type": "Ready", "status": str(ready)}]},
    }


def service(name: str, target: int | str, **selector: str) -> dict[str, Any]:
    """A Service with one port."""
    ports = [{"port": 80, "targetPort": target}]
    return {"metadata": {"namespace": "n", "name": name}, "spec": {"selector": selector, "ports": ports}}


def shown(pods: list[dict[str, Any]], services: list[dict[str, Any]], *policies: str) -> list[str]:
    """The overview of a namespace with these alone."""
    kinds: dict[str, list[dict[str, Any]]] = {
        "BatchPolicy": [{"metadata": {"namespace": "n", "name": name}} for name in policies]
    }
    found = injected.by_workload(pods)
    lines = status.overview(
        kinds, found, services, now=NOW, everywhere=False, all_conditions=False, width=200
    )
    return [" ".join(line.split()) for line in lines[1 + len(policies) :]]


def test_a_workload_that_gets_its_batches_is_one_line() -> None:
    """Services by name, of other pods and of other ports are as they should be."""
    services = [
        service("named", "web", app="fast"),
        service("others", 8080, app="slow"),
        service("metrics", 9090, app="fast"),
        service("bare", 8080),
    ]
    lines = shown([pod("a"), pod("b", ready=False)], services, "small")
    assert lines == ["Deployment/fast False Injected 1 of 2 ready, policy small -"]


def test_what_keeps_batches_from_a_workload_is_said() -> None:
    """The policy that is not there, the pods that are older than the label, the Service that leads past."""
    lines = shown([pod("a"), pod("b", sidecar=False)], [service("past", 8080, app="fast")], "large", "odd")
    assert lines[0] == "Deployment/fast True NotInjected 2 of 2 ready, policy small -"
    assert lines[1].startswith("there is no BatchPolicy small (there are: large, odd): its pods have the")
    assert lines[2].startswith("1 of its pods have no sidecar, such as b: they are older than the label")
    assert lines[3] == (
        "Service past leads past the sidecar: its targetPort is the number 8080; write the name web"
    )


def test_default_needs_no_policy_and_our_own_pods_do_not_count() -> None:
    """A pod that is going, has ended, or is rendered by Penstock is not listed."""
    ours, going, ended = pod("ours"), pod("going"), pod("ended")
    ours["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "penstock"
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    ended["status"]["phase"] = "Succeeded"
    assert shown([pod("a", policy="default"), ours, going, ended], []) == [
        "Deployment/fast True Injected 1 of 1 ready, policy default -"
    ]


def test_top_lists_a_workload_whose_policy_is_not_there_and_says_where_its_queues_would_be() -> None:
    """A policy that has no status yet needs no note, and pods without the sidecar are not listed."""
    own = pod("c", policy="large")
    own["metadata"]["ownerReferences"] = [{"kind": "StatefulSet", "name": "other", "controller": True}]
    large = {"metadata": {"namespace": "n", "name": "large"}}
    pods = [pod("a", policy="default"), pod("b", policy="default", sidecar=False), own]
    lines = top.page([], [large], pods, everywhere=True, width=200)
    assert [line.split()[:4] for line in lines[1:3]] == [
        ["n/Deployment/fast", "1", "-", "-"],
        ["n/StatefulSet/other", "1", "-", "-"],
    ]
    (note,) = lines[3:]
    assert note.startswith("n/Deployment/fast: its queues would stand in the status of BatchPolicy default, ")
