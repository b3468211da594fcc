"""The objects of the control plane's bench: our resources, and nodes that exist only in the API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Obj = dict[str, Any]
GROUP = "/apis/penstock.dev/v1alpha1"
PODS_A_NODE = 250


def namespaces(count: int, prefix: str = "bench") -> list[str]:
    """The names of the namespaces that everything is spread over."""
    return [f"{prefix}-{number:03}" for number in range(count)]


def namespace(name: str) -> Obj:
    """A Namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def node(number: int) -> Obj:
    """A node that kwok keeps Ready; no kubelet stands behind it."""
    name = f"fake-{number:03}"
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {"kubernetes.io/hostname": name, "type": "fake"},
        },
        "status": {
            size: {"cpu": "256", "memory": "1Ti", "pods": str(PODS_A_NODE)}
            for size in ("allocatable", "capacity")
        },
    }


def backend(name: str, namespace: str) -> Obj:
    """A backend as people write them: a container, its resources, a few batching knobs."""
    return {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "ModelBackend",
        "metadata": {"name": name, "namespace": namespace, "labels": {"team": "bench"}},
        "spec": {
            "model": {
                "container": {
                    "image": "example.invalid/model:1",
                    "env": [{"name": "MODEL", "value": name}, {"name": "LEVEL", "value": "1"}],
                    "resources": {
                        "requests": {"cpu": "100m", "memory": "64Mi"},
                        "limits": {"memory": "128Mi"},
                    },
                }
            },
            "batching": {"maxBatchSize": 16, "maxConcurrentBatches": 2},
        },
    }


def endpoint(name: str, namespace: str, backend: str) -> Obj:
    """An endpoint that leads to a backend."""
    return {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "ModelEndpoint",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"backend": backend},
    }


def resources(backends: int, endpoints: int, where: list[str]) -> Iterator[tuple[str, Obj]]:
    """All our resources, each with the path that it is posted to; endpoint i leads to backend i."""
    for number in range(backends):
        at = where[number % len(where)]
        yield f"{GROUP}/namespaces/{at}/modelbackends", backend(f"model-{number:04}", at)
    for number in range(endpoints):
        at = where[number % len(where)]
        yield (
            f"{GROUP}/namespaces/{at}/modelendpoints",
            endpoint(f"endpoint-{number:04}", at, f"model-{number:04}"),
        )
