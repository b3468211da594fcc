"""Checks whether a resource still exists, for deletions that no watch has shown.

While a watch is stalled or cut, a deleted resource stays in the store. Its children then have an owner that
does not exist, so the garbage collector deletes each of them as soon as it is written; the deletion triggers
a reconcile, which writes the child again: a loop as fast as the two can go, until the next list. So before a
child is created, or gets an owner back, its owner is looked up; and if a status cannot be written because the
resource is not there, the resource is taken as deleted.
"""

from __future__ import annotations

from penstock_operator.errors import Outdated
from penstock_operator.kinds import Kind, kind_of
from penstock_operator.kube.cluster import Obj
from penstock_operator.reconcile.context import ReconcileContext
from penstock_operator.reconcile.relist import relist_kind


async def confirm_own(ctx: ReconcileContext, stored: Obj) -> None:
    """Check that a resource still exists; without a status of ours, it is new, so that needs no check.

    Raises:
        Outdated: it is gone, or replaced by another of its name.
        ClusterError: the apiserver did not answer.
    """
    if observed(stored):
        metadata = stored["metadata"]
        await confirm(ctx, kind_of(stored), metadata["namespace"], metadata["name"])


async def confirm(ctx: ReconcileContext, kind: Kind, namespace: str, name: str | None = None) -> None:
    """Check that resources still exist; drop those that do not from the store.

    Args:
        name: name of one resource; None for all of the kind.

    Raises:
        Outdated: one is gone, or replaced by another of its name.
        ClusterError: the apiserver did not answer.
    """
    relisted = await relist_kind(ctx.cluster, ctx.store, kind, ctx.changed, namespace=namespace, name=name)
    if relisted.dropped:
        ctx.log("gone without a word", kind=kind.kind, namespace=namespace, count=relisted.dropped)
        raise Outdated(f"{kind.kind} {namespace}/{name or '*'}")


def observed(stored: Obj) -> bool:
    """Whether we have written a status of this resource."""
    return ((stored.get("status") or {}).get("observedGeneration") or 0) > 0
