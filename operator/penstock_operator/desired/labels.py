"""Labels, annotations and owner references of rendered objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock_operator.api import Resource
from penstock_wire import contract

MANAGED_BY = contract.MANAGED_BY_LABEL
APP_NAME = contract.APP_LABEL
BACKEND = contract.BACKEND_LABEL
ENDPOINT = "penstock.dev/endpoint"
DESIRED_HASH = "penstock.dev/desired-hash"
"""Annotation of a child: hash of the desired object when it was last applied (see `objects.stamped`)."""

INJECT = "penstock.dev/inject"
"""Label of a pod of somebody else, to which the chart's admission policy adds a sidecar: its BatchPolicy."""

POLICY = "penstock.dev/policy"
"""Label of the ConfigMap from which such pods start: the policy's name."""

RENDERED = "penstock.dev/rendered"
"""Annotation of a backend's Deployment: its pod template as we last rendered it (see `template_pinning`)."""

WARMUP = "penstock.dev/warmup"
"""Annotation of a pod: its model's warm-up requests, which its sidecar reads as a file."""

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
"""Kubernetes' annotation of a pod: a ReplicaSet removes the ready pods of the lowest cost first."""

RELEASE = "penstock.dev/release"
"""Annotation of a TrafficSplit by which a user steers its release."""

ROUTER_MODE = "penstock.dev/router"
"""Label of a namespace: whether it has a router of its own or uses the shared one."""
MODE_SHARED, MODE_OWN = "shared", "own"

SLICE_SERVICE = "kubernetes.io/service-name"
SLICE_MANAGED_BY = "endpointslice.kubernetes.io/managed-by"

MANAGED = contract.MANAGED_BY
"""Value of MANAGED_BY; `MANAGED_BY=MANAGED` selects all children."""

APP_BACKEND = contract.BACKEND_APP
APP_ROUTER = contract.ROUTER_SERVICE
APP_DEDICATED_ROUTER = "penstock-dedicated-router"
"""APP_NAME of an endpoint's own routers, so that the selector of the namespace's router omits them."""
APP_SHARED_ROUTER = contract.SHARED_ROUTER
"""APP_NAME of the router that namespaces share."""
APP_OPERATOR = "penstock-operator"
"""APP_NAME of the operator's own pods, which the chart sets."""


def of_backend(name: str) -> dict[str, str]:
    """Labels of every object and pod of a backend."""
    return {MANAGED_BY: MANAGED, APP_NAME: APP_BACKEND, BACKEND: name}


def of_endpoint(name: str) -> dict[str, str]:
    """Labels of an endpoint's Service."""
    return {MANAGED_BY: MANAGED, APP_NAME: APP_ROUTER, ENDPOINT: name}


def of_router() -> dict[str, str]:
    """Labels of every object and pod of a namespace's router."""
    return {MANAGED_BY: MANAGED, APP_NAME: APP_ROUTER}


def of_dedicated_router(endpoint: str) -> dict[str, str]:
    """Labels of every object and pod of an endpoint's own router."""
    return {MANAGED_BY: MANAGED, **dedicated_router_selector(endpoint)}


def of_shared_router() -> dict[str, str]:
    """Labels of every object and pod of the router that namespaces share."""
    return {MANAGED_BY: MANAGED, APP_NAME: APP_SHARED_ROUTER}


def of_policy(name: str) -> dict[str, str]:
    """Labels of the ConfigMap from which injected pods that name a policy start."""
    return {MANAGED_BY: MANAGED, POLICY: name}


def backend_selector(name: str) -> dict[str, str]:
    """The labels that select a backend's pods; they never change, as a Deployment's selector is immutable."""
    return {APP_NAME: APP_BACKEND, BACKEND: name}


def backends_selector() -> dict[str, str]:
    """The labels that select the pods of all backends of a namespace."""
    return {MANAGED_BY: MANAGED, APP_NAME: APP_BACKEND}


def router_selector() -> dict[str, str]:
    """The labels that select a namespace's router pods."""
    return {APP_NAME: APP_ROUTER}


def dedicated_router_selector(endpoint: str) -> dict[str, str]:
    """The labels that select the pods of an endpoint's own router."""
    return {APP_NAME: APP_DEDICATED_ROUTER, ENDPOINT: endpoint}


def shared_router_selector() -> dict[str, str]:
    """The labels that select the pods of the router that namespaces share."""
    return {APP_NAME: APP_SHARED_ROUTER}


def selector_text(selector: dict[str, str]) -> str:
    """Format a selector as `status.selector` and kubectl do."""
    return ",".join(f"{key}={value}" for key, value in sorted(selector.items()))


def owner_references(owners: Sequence[Resource], *, controller: bool) -> list[dict[str, Any]]:
    """Make owner references to Penstock resources, sorted by name.

    Args:
        owners: the owners; the object is deleted with the last of them.
        controller: whether the (one) owner is the controller; shared objects have none.
    """
    return [
        {
            "apiVersion": owner.api_version,
            "kind": type(owner).__name__,
            "name": owner.name,
            "uid": owner.metadata.uid,
            "controller": controller,
            "blockOwnerDeletion": False,
        }
        for owner in sorted(owners, key=lambda owner: owner.name)
    ]
