"""One function for the name of each rendered object; nothing else spells these names."""

from __future__ import annotations

from penstock_wire import contract

ROUTER = contract.ROUTER_SERVICE
"""Deployment, Service, ServiceAccount and all else of a namespace's router, but its settings."""

ROUTER_SETTINGS = "penstock-router-settings"
"""ConfigMap of a namespace's router."""

SETTINGS_KEY = "settings.json"
"""The key of a settings ConfigMap that holds the document."""

AUTHORITIES_KEY = "ca.crt"
"""The key beside it: who may sign the operator's certificate."""

MODEL_CONTAINER = "model"
SIDECAR_CONTAINER = "penstock-sidecar"
ROUTER_CONTAINER = "router"


def backend(name: str) -> str:
    """Deployment, Service, ServiceAccount and all else of a backend, but its settings."""
    return contract.backend_service(name)


def backend_settings(name: str) -> str:
    """ConfigMap of a backend."""
    return f"{name}-backend-settings"


def dedicated_router(endpoint: str) -> str:
    """Deployment and all else of an endpoint's own router, but its settings."""
    return f"{endpoint}-dedicated-router"


def dedicated_router_settings(endpoint: str) -> str:
    """ConfigMap of an endpoint's own router."""
    return f"{endpoint}-dedicated-router-settings"


def endpoint(name: str) -> str:
    """Service of an endpoint."""
    return name
