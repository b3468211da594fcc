"""Whether a resource is still there: for deletions that no watch has shown.

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
from penstock_operator.reconcile.context import Context
from penstock_operator.reconcile.relist import relist_kind


async def confirm_own(ctx: Context, stored: Obj) -> None:
    """Look whether a resource is still there; one whose status we have not written yet was seen just now.

    Args:
        ctx: the shared pieces.
        stored: the resource.

    Raises:
        Outdated: it is gone, or another one.
        ClusterError: the apiserver did not say.
    """
    if observed(stored):
        metadata = stored["metadata"]
        await confirm(ctx, kind_of(stored), metadata["namespace"], metadata["name"])


async def confirm(ctx: Context, kind: Kind, namespace: str, name: str | None = None) -> None:
    """Look whether resources are still there; those that are not leave the store.

    Args:
        ctx: the shared pieces.
        kind: whose.
        namespace: where.
        name: of one; None for all of the kind.

    Raises:
        Outdated: one is gone, or another one.
        ClusterError: the apiserver did not say.
    """
    relisted = await relist_kind(ctx.cluster, ctx.store, kind, ctx.changed, namespace=namespace, name=name)
    if relisted.dropped:
        ctx.log("gone without a word", kind=kind.kind, namespace=namespace, count=relisted.dropped)
        raise Outdated(f"{kind.kind} {namespace}/{name or '*'}")


def observed(stored: Obj) -> bool:
    """Whether we have written a status of this resource.

    Args:
        stored: a resource.
    """
    return ((stored.get("status") or {}).get("observedGeneration") or 0) > 0
