"""One function for the name of each rendered object; nothing else spells these names."""

from __future__ import annotations

from penstock_wire import contract
from penstock_wire.control.settings_source import PACKED

ROUTER = contract.ROUTER_SERVICE
"""Name of all objects of a namespace's router, except its settings."""

ROUTER_SETTINGS = "penstock-router-settings"
"""Name of the ConfigMap of a namespace's router."""

SHARED_ROUTER = contract.SHARED_ROUTER
"""Name of all objects of the router that namespaces share, except its settings."""

SHARED_ROUTER_SETTINGS = "penstock-shared-router-settings"
"""Name of its ConfigMap."""

SETTINGS_KEY = "settings.json"
"""The key of a settings ConfigMap that holds the document."""

PACKED_SETTINGS_KEY = f"{SETTINGS_KEY}{PACKED}"
"""The key that holds a large document instead, compressed."""

AUTHORITIES_KEY = "ca.crt"
"""The key that holds the authorities which may sign the operator's certificate."""

MODEL_CONTAINER = "model"
SIDECAR_CONTAINER = "penstock-sidecar"
ROUTER_CONTAINER = "router"


def backend(name: str) -> str:
    """Return the name of all objects of a backend, except its settings."""
    return contract.backend_service(name)


def backend_settings(name: str) -> str:
    """Return the name of a backend's ConfigMap."""
    return f"{name}-backend-settings"


def policy_settings(name: str) -> str:
    """Return the name of the ConfigMap from which injected pods that name a policy start."""
    return f"{name}-batching"


def dedicated_router(endpoint: str) -> str:
    """Return the name of all objects of an endpoint's own router, except its settings."""
    return f"{endpoint}-dedicated-router"


def dedicated_router_settings(endpoint: str) -> str:
    """Return the name of the ConfigMap of an endpoint's own router."""
    return f"{endpoint}-dedicated-router-settings"


def shared_slice(service: str) -> str:
    """Return the name of the EndpointSlice by which a Service leads to the shared router."""
    return f"{service}{contract.SHARED_SUFFIX}"


def endpoint(name: str) -> str:
    """Return the name of an endpoint's Service."""
    return name
