"""Constants that Penstock's processes share, beside header fields, reasons and documents; defined only here.

The operator renders most of them; routers, sidecars and models rely on them. Pods of two versions run side by
side during an upgrade, so a changed value must be understood in both spellings for a release.
`test_contract.py` compares texts that cannot import (CEL rules, the chart) with these constants.
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
ARTIFACT_PORT: Final = 8014
"""A sidecar's files of an artifact, for pods of the same backend."""
OPERATOR_PORT: Final = 8015
"""The operator's health and metrics, and reports in plain text."""
REPORTS_PORT: Final = 8016
"""The operator's reports over TLS, from sidecars and routers."""
MODEL_PORT: Final = 8080
"""A model's default port: the SDK's server listens on it, and the sidecar sends to it."""

# -- names and labels ----------------------------------------------------------------------------------------

ROUTER_SERVICE: Final = "penstock-router"
"""Name of a namespace's router: of its Service, which clients use, and of all else of it but its settings."""
SHARED_ROUTER: Final = "penstock-shared-router"
"""Name of the router that namespaces share, with which its pods' names begin; also its `APP_LABEL`."""
SHARED_SUFFIX: Final = "-shared-router"
"""Suffix of the EndpointSlice by which a Service leads to that router, after the Service's name."""
BACKEND_SUFFIX: Final = "-backend"
"""Suffix of a backend's Service after its name; a router ignores EndpointSlices of other Services."""

MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "penstock"
"""Value of `MANAGED_BY_LABEL` on each object that the operator renders."""
APP_LABEL: Final = "app.kubernetes.io/name"
BACKEND_APP: Final = "penstock-backend"
"""Value of `APP_LABEL` on each object of a backend; a router watches slices with it."""
BACKEND_LABEL: Final = "penstock.dev/backend"
"""Name of the backend that an object belongs to; a router reads it from slices."""

# -- paths ---------------------------------------------------------------------------------------------------

OWN_PATHS: Final = "/-/"
"""Prefix of the paths that Penstock reserves, on a router and on a model."""
RECONFIGURE_PATH: Final = f"{OWN_PATHS}reconfigure"
"""Path of the SDK's server for a userConfig, which the sidecar posts there for the operator."""
LIVE_PATH: Final = "/livez"
"""On each admin port, for the kubelet: fails when the process must be restarted."""
READY_PATH: Final = "/readyz"
"""On each admin port, for the kubelet: answers 200 when requests can come."""
DRAIN_PATH: Final = "/drain"
"""On the sidecar's admin port, for the kubelet's preStop: answers when the sidecar has drained."""
REPORTS_PATH: Final = "/reports/"
"""On the operator, followed by `sidecar` or `router`: the path to which each of these POSTs its reports."""

# -- code that is not in an image ----------------------------------------------------------------------------

CODE_KEY: Final = "code.zip"
"""Key of a ConfigMap of code that holds the archive."""
CODE_FOLDER: Final = "/penstock/code"
"""Where a model container finds that code; its first step fills the folder."""

# -- files of a model that are not in an image ---------------------------------------------------------------

ARTIFACT_FOLDER: Final = "/penstock/artifact"
"""Where a sidecar and the first step that fills it find the volume of a model's artifact."""
ADVICE_PATH: Final = "/artifact"
"""On the sidecar's admin port, for the first step of its own pod: answers an `ArtifactAdvice`."""

# -- environment variables -----------------------------------------------------------------------------------

POD_ENV: Final = "PENSTOCK_POD"
"""Set by the operator for sidecar, router and SDK: name of the pod."""
POD_UID_ENV: Final = "PENSTOCK_POD_UID"
"""Likewise, for sidecar and router: uid of the pod, which is in its reports."""
NAMESPACE_ENV: Final = "PENSTOCK_NAMESPACE"
"""Likewise, for sidecar, router and model: namespace of the pod."""
BACKEND_ENV: Final = "PENSTOCK_BACKEND"
"""Likewise, for sidecar and model: name of the backend."""
DRAIN_SECRET_ENV: Final = "PENSTOCK_DRAIN_SECRET"  # noqa: S105 - a variable's name
"""Likewise, for the sidecar alone: the value that the kubelet's preStop sends in `x-penstock-drain`."""
RECONFIGURE_SECRET_ENV: Final = "PENSTOCK_RECONFIGURE_SECRET"  # noqa: S105 - a variable's name
"""Likewise, for sidecar and model: the value of `x-penstock-reconfigure` that accompanies a userConfig."""
CODE_ENV: Final = "PENSTOCK_CODE"
"""Likewise, for a model whose code is not in its image: `CODE_FOLDER`."""
STORAGE_LIMIT_ENV: Final = "PENSTOCK_STORAGE_LIMIT"
"""Likewise, for the first step of an artifact: bytes that the model's container may keep on its node."""
LOCAL_ONLY_ENV: Final = "PENSTOCK_LOCAL_ONLY"
"""Set by `penstock run`: all ports refuse other sites' pages and names (`http.server.local_clients`)."""
ENDPOINTS_ENV: Final = "PENSTOCK_ENDPOINTS"
"""Outside of a cluster, for the SDK's handles: a JSON object of endpoints' names and URLs. If it is set, an
endpoint that is not in it does not exist."""

# -- rules ---------------------------------------------------------------------------------------------------

GRACE_BEYOND_DRAIN_S: Final = 30
"""A model pod's grace is propagation delay + drain timeout + this many seconds: the operator renders it, and
the sidecar plans its drain by it."""
REQUEST_ID: Final = re.compile(rb"[!-~]{1,128}")
"""An `x-request-id` that routers and sidecars keep: visible ASCII. They replace any other."""
COST_PATH: Final = r"^\$(\.[A-Za-z0-9_-]+)*$"
"""The form of the path to an item's cost."""


def backend_service(name: str) -> str:
    """Return the name of a backend's Service.

    Args:
        name: name of the backend.
    """
    return f"{name}{BACKEND_SUFFIX}"
