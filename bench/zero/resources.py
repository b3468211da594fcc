"""The objects of `bench.zero`: a backend behind an endpoint of its own, for cycles side by side.

With KEDA, a ScaledObject for each, as docs/how-to/other-scalers.md has it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from devcluster import images

Obj = dict[str, Any]
NAMESPACE = "zero"
SYSTEM = "penstock-system"
GROUP = "/apis/penstock.dev/v1alpha1"
KEDA_GROUP = "/apis/keda.sh/v1alpha1"
MOST_REPLICAS = 2
MAX_PENDING = 500
TARGET_LOAD = 200
ZERO_AFTER = "10s"
"""The shortest that there is."""

_CODE = "model-code"


def code() -> Obj:
    """The ConfigMap with the model."""
    text = Path(__file__).with_name("model.py").read_text()
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": _CODE, "namespace": NAMESPACE},
        "data": {"model.py": text},
    }


def backend(name: str, *, collector: str, mode: str = "Builtin", objective: str = "") -> Obj:
    """A ModelBackend that goes to 0.

    Args:
        name: its name.
        collector: `HOST:PORT` that takes the model's records.
        mode: who writes its replicas, as `autoscaling.mode` has it.
        objective: `batching.latencyObjective`, which its replicas then follow; empty: `targetLoad`.
    """
    python = {
        "target": "model:Recorder",
        "image": images.image_name("python-model"),
        "imagePullPolicy": "Never",
        "env": [{"name": "PYTHONPATH", "value": "/code"}, {"name": "COLLECTOR", "value": collector}],
        "volumeMounts": [{"name": "code", "mountPath": "/code", "readOnly": True}],
    }
    autoscaling = {
        "mode": mode,
        "minReplicas": 0,
        "maxReplicas": MOST_REPLICAS,
        **({} if objective else {"targetLoad": TARGET_LOAD}),
        "stableWindow": "2s",
        "downscaleDelay": "1s",
        "scaleToZero": {"after": ZERO_AFTER},
    }
    return {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "ModelBackend",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "model": {"python": python},
            "podTemplate": {"volumes": [{"name": "code", "configMap": {"name": _CODE}}]},
            "batching": {"maxBatchSize": 32, **({"latencyObjective": objective} if objective else {})},
            "drain": {"propagationDelay": "1s", "timeout": "5s"},
            "autoscaling": autoscaling,
        },
    }


def endpoint(name: str) -> Obj:
    """The ModelEndpoint of a backend of the same name."""
    return {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "ModelEndpoint",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"backend": name, "coldStart": {"maxPending": MAX_PENDING, "timeout": "10m"}},
    }


def scaled_object(name: str, *, polling: int) -> Obj:
    """KEDA's object that makes it write what Penstock recommends.

    Args:
        name: of the backend.
        polling: seconds between two of KEDA's looks.
    """
    trigger = {
        "url": f"http://penstock-operator.{SYSTEM}:8015/recommendation/{NAMESPACE}/{name}",
        "valueLocation": "desiredReplicas",
        "targetValue": "1",
        "activationTargetValue": "0",
    }
    behavior = {"scaleDown": {"stabilizationWindowSeconds": 0}}
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "scaleTargetRef": {"apiVersion": "penstock.dev/v1alpha1", "kind": "ModelBackend", "name": name},
            "minReplicaCount": 0,
            "maxReplicaCount": MOST_REPLICAS,
            "pollingInterval": polling,
            "cooldownPeriod": 0,
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behavior}},
            "triggers": [{"type": "metrics-api", "metricType": "AverageValue", "metadata": trigger}],
        },
    }
