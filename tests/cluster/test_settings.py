"""Hot settings: a changed policy is in effect within two seconds, without a restart."""

from __future__ import annotations

import time

from tests.support.k8s import Load, Namespace, endpoint, ledger_backend, ledger_code, wait_for


def test_a_policy_change_takes_effect_without_a_restart(namespace: Namespace, load: Load) -> None:
    """Two seconds after `kubectl apply` of a BatchPolicy every sidecar reports it; no pod is replaced."""
    policy = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "BatchPolicy",
        "metadata": {"name": "small"},
        "spec": {"maxBatchSize": 2},
    }
    namespace.apply(
        ledger_code(),
        policy,
        ledger_backend("hot", collector=load.port, batchPolicyRef="small", replicas=2),
        endpoint("hot", "hot"),
    )
    namespace.wait_ready("modelbackend", "hot")
    namespace.wait_ready("modelendpoint", "hot")
    before = namespace.wait_condition("modelbackend", "hot", "SettingsApplied")
    version = namespace.get("modelbackend", "hot")["status"]["settingsVersion"]
    pods = {pod["metadata"]["uid"] for pod in namespace.pods("hot")}
    addresses = [pod["status"]["podIP"] for pod in namespace.pods("hot")]

    policy["spec"]["maxBatchSize"] = 17
    namespace.apply(policy)
    applied = time.monotonic()

    def in_effect() -> bool:
        return all('"maxBatchSize":17' in namespace.curl(f"http://{ip}:8013/settings")[2] for ip in addresses)

    wait_for("both sidecars to obey the new policy", in_effect, seconds=30, every=0.1)
    took = time.monotonic() - applied
    assert took <= 2.0, f"in effect after {took:.2f} s"

    after = namespace.wait_condition("modelbackend", "hot", "SettingsApplied", seconds=60)
    assert namespace.get("modelbackend", "hot")["status"]["settingsVersion"] > version, (before, after)
    assert {pod["metadata"]["uid"] for pod in namespace.pods("hot")} == pods
    restarts = [
        status["restartCount"]
        for pod in namespace.pods("hot")
        for status in pod["status"]["containerStatuses"] + pod["status"]["initContainerStatuses"]
    ]
    assert set(restarts) == {0}
