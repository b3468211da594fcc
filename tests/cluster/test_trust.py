"""What a control plane keeps: its word on Ready, and a standby that acts when the leader is killed."""

from __future__ import annotations

import datetime
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.k8s import (
    Load,
    Namespace,
    container_backend,
    ledger_backend,
    ledger_code,
    versions,
    wait_for,
)

STANDBY_ACTS_S = 15.0
"""From the old leader's last renewal to the new one's first write, by the Lease and the apiserver: what a
busy test waits for its own tools is not in it."""


def test_wait_for_ready_is_never_satisfied_by_what_was_before(namespace: Namespace, load: Load) -> None:
    """Ready was True; after a change that cannot become ready, no `kubectl wait` comes back with success."""
    backend = ledger_backend("b", collector=load.port)
    namespace.apply(ledger_code(), backend)
    namespace.wait_ready("modelbackend", "b")
    for number in range(5):
        backend["spec"]["podTemplate"]["nodeSelector"] = {"nowhere.example/node": str(number)}
        namespace.apply(backend)
        command = ("-n", namespace.name, "wait", "--for=condition=Ready", "modelbackend/b", "--timeout=2s")
        done = namespace.cluster.kubectl(*command, check=False)
        assert done.returncode != 0, number
        assert "timed out" in done.stderr


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_standby_acts_within_seconds(
    namespace: Namespace, operator: Namespace, blow: signal.Signals
) -> None:
    """The leader dies without a word, or stands still: the other leads within 15 s, and writes.

    One that stood still and wakes has lost the Lease: it ends, and what was changed meanwhile stays as it is.
    """
    before = (operator.get("deployment", "penstock-operator") or {})["spec"]["replicas"]
    operator.kubectl("scale", "deployment", "penstock-operator", "--replicas=2")
    number = 0
    try:
        wait_for("a standby", lambda: len(_ready_pods(operator)) == 2, seconds=90)
        wait_for("a leader among them", lambda: _leader(operator) in _ready_pods(operator), seconds=30)
        name = _leader(operator)
        namespace.apply(container_backend("a", script="", replicas=0))
        wait_for("the leader to act", lambda: namespace.get("service", "a-backend"), seconds=60)
        number = _process_of(operator, name)
        os.kill(number, blow)
        last = _lease_time(operator, "renewTime")
        if blow == signal.SIGKILL:  # and no second life in the same pod, which would be faster still
            operator.kubectl("delete", "pod", name, "--grace-period=0", "--force")
        namespace.apply(container_backend("b", script="", replicas=0))
        service = wait_for("the standby to act", lambda: namespace.get("service", "b-backend"), seconds=60)
        assert _leader(operator) != name
        leads = (_lease_time(operator, "acquireTime") - last).total_seconds()
        acts = (_time(service["metadata"]["creationTimestamp"]) - last).total_seconds()
        assert acts <= STANDBY_ACTS_S, f"{acts:.1f} s, led after {leads:.1f} s"
        print(f"{blow.name}: led {leads:.1f} s after the last renewal, acted after {acts:.1f} s")
        if blow == signal.SIGSTOP:
            # What it knows is old, and what it will hear first when it wakes is not the last word.
            for size in (3, 5, 7):
                namespace.patch("modelbackend", "a", {"spec": {"batching": {"maxBatchSize": size}}})
                wait_for("the new leader to say so", lambda told=size: _told(namespace, told), seconds=30)
            before_it_wakes = _quiet(namespace)
            os.kill(number, signal.SIGCONT)
            log = wait_for("it to end", lambda: _ended_log(operator, name), seconds=60)
            assert _leader(operator) != name
            assert versions(namespace) == before_it_wakes
            assert "operator ends" in log
            assert "LeaseLost" in log
    finally:
        if blow == signal.SIGSTOP and number and Path(f"/proc/{number}").exists():
            os.kill(number, signal.SIGCONT)
        operator.kubectl("scale", "deployment", "penstock-operator", f"--replicas={before}")
        wait_for("the replicas as before", lambda: len(_ready_pods(operator)) == before, seconds=90)


def _lease_time(operator: Namespace, field: str) -> datetime.datetime:
    lease = operator.get("lease", "penstock-operator") or {}
    return _time(lease["spec"][field])


def _time(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)


def _told(namespace: Namespace, size: int) -> bool:
    """Whether the settings of backend `a` have this batch size."""
    record = namespace.get("configmap", "a-backend-settings") or {"data": {"settings.json": "{}"}}
    return f'"maxBatchSize":{size}' in record["data"]["settings.json"]


def _quiet(namespace: Namespace) -> dict[str, str]:
    """The versions of all objects once nobody writes any more."""
    seen: list[dict[str, str]] = []

    def quiet() -> bool:
        seen.append(versions(namespace))
        return len(seen) > 6 and all(one == seen[-1] for one in seen[-6:])

    wait_for("quiet", quiet, seconds=60, every=0.5)
    return seen[-1]


def _process_of(operator: Namespace, pod: str) -> int:
    """The process number, seen from this machine, of an operator in a pod."""
    uid = (operator.get("pod", pod) or {})["metadata"]["uid"]
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            groups, command = (folder / "cgroup").read_text(), (folder / "cmdline").read_text()
        except OSError:
            continue  # it has ended meanwhile
        if (uid in groups or uid.replace("-", "_") in groups) and "penstock_operator" in command:
            return int(folder.name)
    raise AssertionError(f"no process of pod {pod}")


def _ended_log(operator: Namespace, pod: str) -> str:
    """What a container said that has ended since; empty where none has."""
    return operator.kubectl("logs", pod, "--previous", check=False) if _restarts(operator, pod) else ""


def _restarts(operator: Namespace, pod: str) -> int:
    statuses = ((operator.get("pod", pod) or {}).get("status") or {}).get("containerStatuses") or []
    return sum(one["restartCount"] for one in statuses)


def _ready_pods(operator: Namespace) -> list[str]:
    return [
        pod["metadata"]["name"]
        for pod in operator.list("pods", "app.kubernetes.io/name=penstock-operator")
        if not pod["metadata"].get("deletionTimestamp")
        and {"type": "Ready", "status": "True"}.items() <= _ready_condition(pod).items()
    ]


def _ready_condition(pod: dict[str, Any]) -> dict[str, Any]:
    conditions = pod["status"].get("conditions") or []
    return next((one for one in conditions if one["type"] == "Ready"), {})


def _leader(operator: Namespace) -> str:
    return str((operator.get("lease", "penstock-operator") or {}).get("spec", {}).get("holderIdentity") or "")
