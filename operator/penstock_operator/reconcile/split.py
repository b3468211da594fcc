"""Writes the status of a TrafficSplit, which has no objects of its own: routers get its weights as settings.

If it has a strategy, each look takes its release further (see `release`).
"""

from __future__ import annotations

from penstock_operator.api import TrafficSplit
from penstock_operator.errors import Conflict
from penstock_operator.kinds import SPLIT
from penstock_operator.reconcile import release, router
from penstock_operator.reconcile.context import ReconcileContext
from penstock_operator.reconcile.parent import forget, load_parent
from penstock_operator.reconcile.status_writer import write_status
from penstock_operator.releases import machine
from penstock_operator.status import split_status
from penstock_operator.store import ObjectKey


async def reconcile(ctx: ReconcileContext, key: ObjectKey) -> float | None:
    """Take the split's release further, and write its status (see `backend.reconcile`)."""
    loaded = await load_parent(ctx, key, SPLIT, TrafficSplit, forget=_forget)
    if loaded is None:
        return None
    stored, split = loaded
    plan = ctx.view.plan(key.namespace).splits.get(key.name)
    if plan is None:
        return None
    seen = router.serving(ctx, key.namespace, split.spec.endpoint)
    wait = ctx.settling_time(stored, seen.pods, seen.reports)
    if wait is not None:
        return wait
    looked = release.look(ctx, split, plan, seen)
    status = split_status(
        split,
        plan,
        seen,
        ctx.view.backends_seen(key.namespace).ready,
        now=ctx.now(),
        served=ctx.reports.served(key.namespace, split.spec.endpoint),
        release=looked.release,
        faults=looked.faults,
    )
    events = [(event.reason, event.message) for event in looked.events]
    try:
        # NB: a release goes on from its status: an operator with a stalled watch must not set it back.
        if await write_status(ctx, stored, status, reported=events, unchanged=looked.release is not None):
            await release.taken(ctx, stored, split, looked)
    except Conflict:
        return machine.AT_ONCE
    waits = [looked.again] if looked.again is not None else []
    return min([*waits, router.LOOK_AGAIN] if seen.unmade else waits, default=None)


def _forget(ctx: ReconcileContext, key: ObjectKey) -> None:
    release.forget(ctx, key)
    forget(ctx, key)
