"""Reads EndpointSlices into addresses of pods. Pure.

Conditions mean what the API's documentation (discovery.k8s.io/v1) says: an unknown `ready` counts as ready,
an unknown `serving` as `ready`, an unknown `terminating` as not terminating. Only pods that are ready and not
terminating get requests. `publishNotReadyAddresses` makes `ready` always true, so `serving` is checked too.
The addresses of one endpoint are fungible: only the first is used.

A Service's name alone proves nothing: any user can create a Service `<name>-backend`. A slice belongs to a
backend if it carries the labels that the operator gives the backend's Service (the EndpointSlice controller
mirrors them), its Service has the backend's name, and it leads to the sidecar's port. It must be the
EndpointSlice controller's, which takes addresses from pods of the namespace alone; slices that are written by
hand, or mirrored from Endpoints, can have any. A user who may write EndpointSlices can claim to be that
controller, unless the chart's admission policy reserves our labels (docs/operations/secure.md).
"""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any

from penstock_wire import contract
from penstock_wire.contract import BACKEND_LABEL, SIDECAR_PORT

SERVICE_LABEL = "kubernetes.io/service-name"
OURS = {contract.MANAGED_BY_LABEL: contract.MANAGED_BY, contract.APP_LABEL: contract.BACKEND_APP}
"""The labels that the operator puts on every backend's Service, beside `BACKEND_LABEL`."""
BY_CONTROLLER = {"endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"}
"""The label of each slice that the EndpointSlice controller has made."""
_REQUIRED = OURS | BY_CONTROLLER
SELECTOR = ",".join([SERVICE_LABEL, BACKEND_LABEL, *(f"{key}={value}" for key, value in _REQUIRED.items())])
"""Selects the slices of all backends."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Address:
    """The address at which a pod's sidecar listens.

    Args:
        host: IP address or host name.
        port: its data port.
        pod: name of the pod; empty if unknown.
    """

    host: str
    port: int
    pod: str = ""


def backend_of(slice_: Mapping[str, Any]) -> str | None:
    """The backend whose Service a slice belongs to; None if it is not a slice of an operator's Service."""
    labels = (slice_.get("metadata") or {}).get("labels") or {}
    backend = labels.get(BACKEND_LABEL)
    if not backend or labels.get(SERVICE_LABEL) != contract.backend_service(str(backend)):
        return None
    return str(backend) if _REQUIRED.items() <= labels.items() else None


def _leads_to_sidecars(slice_: Mapping[str, Any]) -> bool:
    return any(
        port.get("port") == SIDECAR_PORT and (port.get("protocol") or "TCP") == "TCP"
        for port in slice_.get("ports") or ()
    )


def _gets_requests(conditions: Mapping[str, Any]) -> bool:
    ready = conditions.get("ready") is not False
    serving = conditions.get("serving")
    return ready and serving is not False and conditions.get("terminating") is not True


def ready_addresses(slice_: Mapping[str, Any]) -> list[tuple[str, Address]]:
    """The addresses of a slice that may get requests, each with the identity of its pod.

    A slice that does not lead to the sidecars' port has none: a server on another port is not a sidecar. Nor
    does an address that is not that of a pod in the slice's namespace.
    """
    if slice_.get("addressType") not in ("IPv4", "IPv6") or not _leads_to_sidecars(slice_):
        return []
    namespace = (slice_.get("metadata") or {}).get("namespace")
    pods = []
    for endpoint in slice_.get("endpoints") or ():
        addresses = endpoint.get("addresses") or ()
        if not addresses or not _gets_requests(endpoint.get("conditions") or {}):
            continue
        target = endpoint.get("targetRef") or {}
        if target.get("kind") != "Pod" or not target.get("name") or target.get("namespace") != namespace:
            continue
        pod = str(target["name"])
        address = Address(host=str(addresses[0]), port=SIDECAR_PORT, pod=pod)
        pods.append((str(target.get("uid") or pod), address))
    return pods


def merge(slices: Iterable[Mapping[str, Any]]) -> dict[str, tuple[Address, ...]]:
    """Merge all slices of a namespace into ready addresses by backend.

    A backend whose Service has slices but no ready pod has an empty entry; a backend without a Service from
    the operator has none. A pod in several slices (while it moves between them, or in two address families)
    counts once, IPv4 first.
    """
    backends: dict[str, dict[str, Address]] = {}
    for slice_ in slices:
        backend = backend_of(slice_)
        if backend is None:
            continue
        pods = backends.setdefault(backend, {})
        for identity, address in ready_addresses(slice_):
            held = pods.get(identity)
            if held is None or (":" in held.host and ":" not in address.host):
                pods[identity] = address
    return {name: tuple(sorted(pods.values())) for name, pods in backends.items()}


def parse_target(target: str) -> Address:
    """Parse `host:port` from settings (of a router without a cluster).

    Raises:
        ValueError: the text does not have that form.
    """
    if "://" in target:
        rest = target.partition("://")[2].partition("/")[0]
        raise ValueError(f"expected host:port such as {rest or '127.0.0.1:8012'}, found a URL: {target!r}")
    host, colon, port = target.rpartition(":")
    host = host.strip("[]")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"expected host:port such as 127.0.0.1:8012, found {target!r}")
    if ":" in host:
        ipaddress.IPv6Address(host)
    return Address(host=host, port=int(port))
