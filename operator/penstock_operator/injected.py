"""Pods of somebody else that have our sidecar: the chart's admission policy adds it by a label of the pod.

The operator neither makes nor changes them. It sends them the settings of the BatchPolicy that they name,
takes their reports, and shows in the policy's status to which workloads they belong.
"""

from __future__ import annotations

from penstock_operator.desired import labels, names
from penstock_operator.kube.cluster import Obj

SELECTOR = f"{labels.INJECT},{labels.MANAGED_BY}!={labels.MANAGED}"
"""Selects these pods, and none that we render."""

_HASH = "pod-template-hash"
"""Label of a Deployment's pods, with which the name of their ReplicaSet ends."""


def policy_of(pod: Obj) -> str:
    """The policy that a pod names in its label; empty if it is not one of these pods."""
    own = pod["metadata"].get("labels") or {}
    return "" if own.get(labels.MANAGED_BY) == labels.MANAGED else own.get(labels.INJECT, "")


def has_sidecar(pod: Obj) -> bool:
    """Whether it was injected: an older pod, or one that cannot get a sidecar, has the label alone."""
    containers = (pod.get("spec") or {}).get("initContainers") or ()
    return any(container.get("name") == names.SIDECAR_CONTAINER for container in containers)


def workload_of(pod: Obj) -> str:
    """The workload of a pod, as ``Deployment/name``: with the slash, it cannot be the name of a backend."""
    metadata = pod["metadata"]
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller"):
            ending = "-" + (metadata.get("labels") or {}).get(_HASH, "-")
            if owner["kind"] == "ReplicaSet" and owner["name"].endswith(ending):
                return f"Deployment/{owner['name'].removesuffix(ending)}"
            return f"{owner['kind']}/{owner['name']}"
    return f"Pod/{metadata['name']}"


def is_workload(name: str) -> bool:
    """Whether reports under this name are of a workload, not of a backend."""
    return "/" in name
