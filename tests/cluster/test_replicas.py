"""The one path of replicas: every scaler writes the ModelBackend's `/scale`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import yaml

from devcluster.network import FIRST
from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.external_metrics import GROUP
from tests.support.cluster.injected_app import GUIDE, LABEL, living, plain, rolled_out
from tests.support.cluster.k8s import (
    Load,
    Namespace,
    assert_nothing_lost,
    condition_of,
    endpoint,
    ledger_backend,
    ledger_code,
)
from tests.support.cluster.tls_app import running
from tests.support.pages.page import Page


def test_kubectl_scale_works_on_the_backend_and_spares_the_busy_pod(namespace: Namespace, load: Load) -> None:
    """It reaches the Deployment, and the status shows the pods; of three pods the one that works stays.

    That is the one that Kubernetes would take first: the youngest.
    """
    slow = {"delay_ms": 20_000}
    namespace.apply(ledger_code(), ledger_backend("b", collector=load.port, init_kwargs=slow))
    namespace.wait_ready("modelbackend", "b")
    for replicas in (2, 3):
        namespace.kubectl("scale", "modelbackend", "b", f"--replicas={replicas}")
        backend = wait_for(f"{replicas} replicas in status", lambda count=replicas: ready(namespace, count))  # type: ignore[misc]
    scale = namespace.kubectl("get", "modelbackend", "b", "--subresource=scale", "-o", "jsonpath={.status}")
    assert '"replicas":3' in scale
    assert "penstock.dev/backend=b" in scale
    youngest = max(
        namespace.pods("b"), key=lambda pod: (pod["metadata"]["creationTimestamp"], ready_since(pod))
    )
    with ThreadPoolExecutor(1) as threads:
        url = f"http://{youngest['status']['podIP']}:8012/predict"
        answer = threads.submit(namespace.curl, url, body='{"instances": [{"id": 1}]}')
        wait_for("its work to be reported", lambda: ongoing(namespace) == 1)
        namespace.kubectl("scale", "modelbackend", "b", "--replicas=2")
        wait_for("a pod to go", lambda: len(namespace.pods("b")) == 2)
        assert youngest["metadata"]["name"] in {pod["metadata"]["name"] for pod in namespace.pods("b")}
        assert answer.result()[0] == 200
    assert backend is not None
    namespace.kubectl("scale", "modelbackend", "b", "--replicas=0")
    wait_for("no pods", lambda: not namespace.list("pods", "penstock.dev/backend=b"), seconds=240)


def ready(namespace: Namespace, count: int) -> dict[str, Any] | None:
    """The backend where it has so many ready pods."""
    backend = namespace.get("modelbackend", "b")
    return backend if backend is not None and backend["status"].get("readyReplicas") == count else None


def ready_since(pod: dict[str, Any]) -> str:
    return str(condition_of(pod, "Ready").get("lastTransitionTime"))


def ongoing(namespace: Namespace) -> int:
    return int((namespace.get("modelbackend", "b") or {})["status"]["load"]["ongoing"])


@contextmanager
def metrics_of_the_operator(namespace: Namespace, operator: Namespace) -> Iterator[None]:
    """The cluster has an external metrics API, which reads the operator's port."""
    address = operator.get("service", "penstock-operator")
    assert address is not None
    url = f"http://{address['spec']['clusterIP']}:8015"
    with running(namespace.cluster, "external_metrics", url) as (port, _):
        service = {"ports": [{"port": 443, "targetPort": port, "protocol": "TCP"}]}
        group, version = GROUP.split("/")
        api = {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": f"{version}.{group}"},
            "spec": {
                "group": group, "version": version, "groupPriorityMinimum": 100, "versionPriority": 100,
                "insecureSkipTLSVerify": True, "service": {"name": "metrics", "namespace": namespace.name},
            },
        }  # fmt: skip
        namespace.apply(
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "metrics"}, "spec": service},
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {"name": "metrics", "labels": {"kubernetes.io/service-name": "metrics"}},
                "addressType": "IPv4",
                "ports": [{"port": port, "protocol": "TCP"}],
                "endpoints": [{"addresses": [FIRST.address]}],
            },
        )
        namespace.cluster.kubectl("apply", "-f", "-", input=json.dumps(api))
        try:
            available = "jsonpath={.status.conditions[?(@.type=='Available')].status}"
            get = ("get", "apiservice", api["metadata"]["name"], "-o", available)
            wait_for("the metrics API", lambda: namespace.cluster.kubectl(*get).stdout == "True")
            yield
        finally:
            # One that does not answer would keep namespaces from going.
            namespace.cluster.kubectl("delete", "apiservice", api["metadata"]["name"])


def test_an_hpa_follows_the_recommendation_to_zero_and_back_and_the_operator_writes_nothing(
    namespace: Namespace, operator: Namespace, load: Load
) -> None:
    """`mode: External`: 1 → 0 → 3 → 0. What comes while there is no pod is held, and none of it is lost."""
    scaling = {
        "mode": "External", "minReplicas": 0, "maxReplicas": 3, "targetLoad": 2, "stableWindow": "4s",
        "downscaleDelay": "2s", "scaleToZero": {"after": "10s"},
    }  # fmt: skip
    model = ledger_backend("b", collector=load.port, init_kwargs={"delay_ms": 400}, autoscaling=scaling)
    # Room for all that comes until a pod is ready, however long the machine takes to start it.
    namespace.apply(ledger_code(), model, endpoint("e", "b", coldStart={"maxPending": 20_000}))
    namespace.wait_ready("modelendpoint", "e")
    url = namespace.url("e")
    with metrics_of_the_operator(namespace, operator):
        namespace.apply(follower(namespace))
        an_hpa_follows_the_queues_of_injected_pods(namespace)
        asleep(namespace)
        load.start(url, rate=30)
        grown = wait_for("three ready replicas", lambda: ready(namespace, 3), seconds=240)
        assert condition_of(grown, "ScalingActive")["reason"] in ("External", "Limited")
        assert grown["status"]["recommendation"]["inputs"]["targetLoad"] == 2
        summary = load.stop()
        fallen = asleep(namespace)
    assert_nothing_lost(summary)
    assert fallen["status"]["desiredReplicas"] == 0
    assert condition_of(fallen, "Ready")["reason"] == "ScaledToZero"
    assert fallen["status"].get("scaling", []) == []
    assert "penstock-autoscaler" not in namespace.kubectl(
        "get", "modelbackend", "b", "-o", "json", "--show-managed-fields"
    )


def follower(namespace: Namespace) -> dict[str, Any]:
    """An HPA of backend `b` that follows the recommendation, 0 to 3 replicas."""
    selector = {"namespace": namespace.name, "backend": "b", "term": "recommended"}
    external = {
        "metric": {"name": "penstock_operator_backend_recommendation", "selector": {"matchLabels": selector}},
        "target": {"type": "AverageValue", "averageValue": "1"},
    }
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "b"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "penstock.dev/v1alpha1", "kind": "ModelBackend", "name": "b"},
            "minReplicas": 0,
            "maxReplicas": 3,
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
            "metrics": [{"type": "External", "external": external}],
        },
    }


def an_hpa_follows_the_queues_of_injected_pods(namespace: Namespace) -> None:
    """The guide's HPA of its Deployment: 1 → 2 while more waits than one pod should have, and back."""

    def pods(count: int) -> bool:
        return len(living(namespace)) == count and len(namespace.list("pods", "app=fast")) == count

    with Load(namespace) as load:
        code, deployment, service, policy = plain(load, delay_ms=400)
        deployment["spec"]["replicas"] = 1
        deployment["spec"]["template"]["metadata"]["labels"] |= LABEL
        policy["spec"] = {"maxBatchSize": 8, "latencyObjective": "30s"}
        namespace.apply(code, policy, deployment, service)
        rolled_out(namespace)
        text = Page.of(GUIDE).recipe("inject-hpa")
        hpa = yaml.safe_load(text.replace("namespace: models", f"namespace: {namespace.name}"))
        hpa["spec"] |= {"maxReplicas": 2, "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}}
        namespace.apply(hpa)
        load.start(namespace.url("fast"), rate=30)
        wait_for("a second pod by the HPA", lambda: pods(2))
        rolled_out(namespace)
        assert_nothing_lost(load.stop())
        wait_for("one pod by the HPA", lambda: pods(1), seconds=120)


def asleep(namespace: Namespace) -> dict[str, Any]:
    """Wait until the HPA has scaled the backend to 0, and its pods are gone; returns the backend."""

    def look() -> dict[str, Any] | None:
        backend = namespace.get("modelbackend", "b") or {"spec": {}, "status": {}}
        by_itself = namespace.condition("horizontalpodautoscaler", "b", "ScaledToZero").get("status")
        none = backend["spec"].get("replicas") == 0 and not namespace.list("pods", "penstock.dev/backend=b")
        settled = condition_of(backend, "Ready").get("reason") == "ScaledToZero"
        return backend if by_itself == "True" and none and settled else None

    return wait_for("the HPA to have scaled the backend to 0", look, seconds=240)
