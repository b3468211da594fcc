"""Who has set the replicas of a backend: the autoscaler, or somebody else through `/scale`."""

from __future__ import annotations

from penstock_operator.kube.cluster import SCALE_MANAGER, Obj
from penstock_operator.store import owners_of_replicas


def owns_replicas(stored: Obj) -> bool:
    """Whether the autoscaler is an owner of ``spec.replicas`` already.

    Args:
        stored: the backend.
    """
    return any(entry.get("manager") == SCALE_MANAGER for entry in owners_of_replicas(stored))


def foreign_scaler(stored: Obj) -> str | None:
    """The manager that owns ``spec.replicas`` through ``/scale`` where the autoscaler does not.

    Args:
        stored: the backend.
    """
    if owns_replicas(stored):
        return None
    for entry in owners_of_replicas(stored):
        if entry.get("subresource") == "scale":
            return str(entry.get("manager") or "unknown")
    return None
