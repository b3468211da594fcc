"""The one path of replicas: every scaler writes the ModelBackend's `/scale`."""

from __future__ import annotations

from tests.support.cluster_waits import wait_for
from tests.support.k8s import Load, Namespace, ledger_backend, ledger_code


def test_kubectl_scale_works_on_the_backend(namespace: Namespace, load: Load) -> None:
    """`kubectl scale modelbackend` reaches the Deployment, and the status shows the pods."""
    namespace.apply(ledger_code(), ledger_backend("b", collector=load.port))
    namespace.wait_ready("modelbackend", "b")
    namespace.kubectl("scale", "modelbackend", "b", "--replicas=2")
    wait_for(
        "two replicas in status",
        lambda: namespace.get("modelbackend", "b")["status"].get("readyReplicas") == 2,
    )
    scale = namespace.kubectl("get", "modelbackend", "b", "--subresource=scale", "-o", "jsonpath={.status}")
    assert '"replicas":2' in scale
    assert "penstock.dev/backend=b" in scale
    namespace.kubectl("scale", "modelbackend", "b", "--replicas=0")
    wait_for("no pods", lambda: not namespace.list("pods", "penstock.dev/backend=b"), seconds=240)


def test_an_hpa_raises_the_backend_to_its_minimum(namespace: Namespace, load: Load) -> None:
    """A HorizontalPodAutoscaler that targets the ModelBackend scales it to minReplicas."""
    namespace.apply(ledger_code(), ledger_backend("b", collector=load.port))
    namespace.wait_ready("modelbackend", "b")
    namespace.apply(
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "b"},
            "spec": {
                "scaleTargetRef": {
                    "apiVersion": "penstock.dev/v1alpha1",
                    "kind": "ModelBackend",
                    "name": "b",
                },
                "minReplicas": 2,
                "maxReplicas": 3,
                "metrics": [
                    {
                        "type": "Resource",
                        "resource": {
                            "name": "cpu",
                            "target": {"type": "Utilization", "averageUtilization": 50},
                        },
                    }
                ],
            },
        }
    )
    wait_for(
        "two ready replicas",
        lambda: namespace.get("modelbackend", "b")["status"].get("readyReplicas") == 2,
        seconds=240,
    )
    assert namespace.get("deployment", "b-backend")["spec"]["replicas"] == 2
