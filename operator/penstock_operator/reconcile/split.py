"""A TrafficSplit: nothing is rendered for it alone; its weights are in the router's settings. Its status."""

from __future__ import annotations

from penstock_operator.api import ResourceError, TrafficSplit
from penstock_operator.kinds import SPLIT
from penstock_operator.reconcile import router
from penstock_operator.reconcile.context import Context
from penstock_operator.reconcile.status_writer import write_status
from penstock_operator.status import parse_failed, split_status
from penstock_operator.store import Key


async def reconcile(ctx: Context, key: Key) -> float | None:
    """Tell how the split stands (see `backend.reconcile`).

    Args:
        ctx: the shared pieces.
        key: which split.
    """
    stored = ctx.store.get(SPLIT, key.namespace, key.name)
    if stored is None:
        ctx.view.forget(key)
        return None
    try:
        split = ctx.view.read(stored)
    except ResourceError as error:
        await write_status(ctx, stored, parse_failed(stored, str(error), now=ctx.now()))
        return None
    if not isinstance(split, TrafficSplit) or split.deleting:
        return None
    plan = ctx.view.plan(key.namespace).splits.get(key.name)
    if plan is None:
        return None
    seen = router.observed(ctx, key.namespace)
    wait = ctx.unheard(stored, seen.pods, seen.reports)
    if wait is not None:
        return wait
    status = split_status(
        split,
        plan,
        seen,
        ctx.view.backends_seen(key.namespace).ready,
        now=ctx.now(),
    )
    await write_status(ctx, stored, status)
    return router.LOOK_AGAIN if seen.unwritten else None
