"""The Service of a backend: direct access to its sidecars; routers find the pods in its EndpointSlices."""

from __future__ import annotations

from penstock_operator.api import ModelBackend
from penstock_operator.desired import labels, names, objects, sidecar
from penstock_operator.desired.objects import Object

PORT = 80
"""The port of every rendered Service."""


def service(backend: ModelBackend) -> Object:
    """The Service of a backend."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": objects.metadata(
            names.backend(backend.name), backend.namespace, labels.of_backend(backend.name), [backend]
        ),
        "spec": spec(labels.backend_selector(backend.name), sidecar.DATA_PORT),
    }


def spec(selector: dict[str, str], target: int) -> Object:
    """The spec of a Service: from port 80 to a port of the selected pods."""
    port = {"name": "http", "port": PORT, "protocol": "TCP", "targetPort": target, "appProtocol": "http"}
    return {"type": "ClusterIP", "selector": selector, "ports": [port]}
