"""What Penstock's processes agree on beside header fields, reasons and documents; each is written here alone.

The operator renders most of it, and routers, sidecars and models rely on it. Pods of two versions run beside
each other during an upgrade, so a value that changes must be understood in both spellings for a release.
Texts that cannot import (CEL rules, the chart) are held against these constants by `test_contract.py`.
"""

from __future__ import annotations

import re
from typing import Final

# -- ports ---------------------------------------------------------------------------------------------------

ROUTER_PORT: Final = 8000
"""A router's front door: its Service leads here."""
ROUTER_ADMIN_PORT: Final = 8001
"""A router's health and metrics, for the kubelet and Prometheus."""
SIDECAR_PORT: Final = 8012
"""A sidecar's requests: a backend's Service leads here, and a router sends here."""
SIDECAR_ADMIN_PORT: Final = 8013
"""A sidecar's health, metrics and drain, for the kubelet and Prometheus."""
OPERATOR_PORT: Final = 8015
"""The operator's health and metrics, and reports in plain text."""
REPORTS_PORT: Final = 8016
"""The operator's reports over TLS, from sidecars and routers."""
MODEL_PORT: Final = 8080
"""Where a model listens by default: the SDK's server, and the sidecar that sends to it."""

# -- names and labels ----------------------------------------------------------------------------------------

ROUTER_SERVICE: Final = "penstock-router"
"""A namespace's router: its Service, by which clients find it, and all else of it but its settings."""
BACKEND_SUFFIX: Final = "-backend"
"""A backend's Service is its name with this; a router believes no EndpointSlice of another Service."""

MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "penstock"
"""Value of `MANAGED_BY_LABEL` on each object that the operator renders."""
APP_LABEL: Final = "app.kubernetes.io/name"
BACKEND_APP: Final = "penstock-backend"
"""Value of `APP_LABEL` on each object of a backend; a router asks for slices that have it."""
BACKEND_LABEL: Final = "penstock.dev/backend"
"""Names the backend that an object belongs to; a router reads it from slices."""

# -- paths ---------------------------------------------------------------------------------------------------

OWN_PATHS: Final = "/-/"
"""Prefix of the paths that Penstock keeps for itself, on a router and on a model."""
RECONFIGURE_PATH: Final = f"{OWN_PATHS}reconfigure"
"""Where the SDK's server takes a userConfig, which the sidecar posts there for the operator."""
CANCEL_PATH: Final = f"{OWN_PATHS}cancel"
"""Where the sidecar reports clients that left to a model of the `envelope` protocol; it alone may do so:
routers and sidecars close the path to clients."""
LIVE_PATH: Final = "/livez"
"""On each admin port, for the kubelet: fails when the process must be restarted."""
READY_PATH: Final = "/readyz"
"""On each admin port, for the kubelet: answers 200 when requests may come."""
DRAIN_PATH: Final = "/drain"
"""On the sidecar's admin port, for the kubelet's preStop: answers when the sidecar has drained."""
REPORTS_PATH: Final = "/reports/"
"""On the operator, with `sidecar` or `router` behind it: where each of these POSTs its reports."""

# -- environment variables -----------------------------------------------------------------------------------

POD_ENV: Final = "PENSTOCK_POD"
"""From the operator's rendering to sidecar, router and SDK: name of the pod."""
POD_UID_ENV: Final = "PENSTOCK_POD_UID"
"""Likewise, to sidecar and router: uid of the pod, which its reports carry."""
NAMESPACE_ENV: Final = "PENSTOCK_NAMESPACE"
"""Likewise, to sidecar, router and model: namespace of the pod."""
BACKEND_ENV: Final = "PENSTOCK_BACKEND"
"""Likewise, to sidecar and model: name of the backend."""
DRAIN_SECRET_ENV: Final = "PENSTOCK_DRAIN_SECRET"  # noqa: S105 - a variable's name
"""Likewise, to the sidecar alone: what the kubelet's preStop sends in `x-penstock-drain`."""
RECONFIGURE_SECRET_ENV: Final = "PENSTOCK_RECONFIGURE_SECRET"  # noqa: S105 - a variable's name
"""Likewise, to sidecar and model: what a userConfig comes with in `x-penstock-reconfigure`."""
ENDPOINTS_ENV: Final = "PENSTOCK_ENDPOINTS"
"""Outside of a cluster, to the SDK's handles: where endpoints are, a JSON object of names and URLs. Where it
is set, an endpoint that is not in it does not exist."""

# -- rules ---------------------------------------------------------------------------------------------------

GRACE_BEYOND_DRAIN_S: Final = 30
"""A model pod's grace is propagation delay + drain timeout + so many seconds: the operator renders it, and
the sidecar plans its drain by it."""
REQUEST_ID: Final = re.compile(rb"[!-~]{1,128}")
"""An `x-request-id` that routers and sidecars keep: visible ASCII. They replace any other one."""


def backend_service(name: str) -> str:
    """Name of a backend's Service.

    Args:
        name: of the backend.
    """
    return f"{name}{BACKEND_SUFFIX}"
