"""The router of a namespace: its shared objects, owned by every endpoint, and its settings."""

from __future__ import annotations

from penstock_operator.desired import names, settings
from penstock_operator.desired import router as rendering
from penstock_operator.desired.labels import APP_NAME, APP_ROUTER, ENDPOINT
from penstock_operator.kinds import CHILDREN, CONFIG_MAP, DEPLOYMENT
from penstock_operator.kinds import ENDPOINT as ENDPOINT_KIND
from penstock_operator.kinds import SPLIT as SPLIT_KIND
from penstock_operator.kube.cluster import Obj
from penstock_operator.reconcile import parent_check
from penstock_operator.reconcile.children import apply_children, requeue_after
from penstock_operator.reconcile.context import Context, Problems
from penstock_operator.status import RouterObserved
from penstock_operator.status import pods as pods_status
from penstock_operator.store import Key, key_of

KIND = "Router"
"""Not a kind of the API: the name under which a namespace's router is in the work queue."""

LOOK_AGAIN = 1.0
"""Seconds after which who found the router's settings unwritten looks again: the router's own run tells of a
write, but not of a change that was taken back before."""


def router_key(namespace: str) -> Key:
    """The work queue's key for a namespace's router.

    Args:
        namespace: where.
    """
    return Key(KIND, namespace, names.ROUTER)


async def reconcile(ctx: Context, key: Key) -> float | None:
    """Make a namespace's router what its endpoints ask for (see `backend.reconcile`).

    Args:
        ctx: the shared pieces.
        key: of the namespace.
    """
    namespace = key.namespace
    endpoints = ctx.view.endpoints(namespace)
    if not endpoints:
        # The garbage collector takes the router away with its last owner.
        ctx.memory.router_problems.pop(namespace, None)
        return None
    at = Key(CONFIG_MAP.kind, namespace, names.ROUTER_SETTINGS)
    looked = {at: await ctx.applier.look(CONFIG_MAP, namespace, names.ROUTER_SETTINGS)}
    versioned = settings.next_version(
        ctx.view.router_document(namespace),
        recorded=looked[at],
        status_version=0,
        reported=ctx.reports.highest_version(ctx.reports.of_router(namespace)),
    )
    desired = rendering.router_objects(namespace, endpoints, config=ctx.render, document=versioned.document)
    owners = [endpoint.metadata.uid for endpoint in endpoints]
    problems = await apply_children(
        ctx, key, desired, owners=owners, shared=True, candidates=lambda: _shared(ctx, namespace),
        looked=looked, confirm=lambda: _confirm(ctx, namespace),
    )  # fmt: skip
    before = ctx.memory.router_problems.get(namespace)
    ctx.memory.router_problems[namespace] = problems
    if versioned.changed or problems != (before or Problems()):
        tell(ctx, namespace)
    return requeue_after(problems)


async def _confirm(ctx: Context, namespace: str) -> None:
    """Look whether every endpoint that we know for long is still there: each of them owns the router."""
    if any(map(parent_check.observed, ctx.store.all(ENDPOINT_KIND, namespace))):
        await parent_check.confirm(ctx, ENDPOINT_KIND, namespace)


def tell(ctx: Context, namespace: str, seconds: float = 0.0) -> None:
    """Have every endpoint and split of a namespace look at its router again.

    Args:
        ctx: the shared pieces.
        namespace: where.
        seconds: when.
    """
    for kind in (ENDPOINT_KIND, SPLIT_KIND):
        for stored in ctx.store.all(kind, namespace):
            ctx.enqueue(key_of(stored), seconds)


def observed(ctx: Context, namespace: str) -> RouterObserved:
    """What is known of a namespace's router, for the statuses of its endpoints and splits.

    Args:
        ctx: the shared pieces.
        namespace: where.
    """
    problems = ctx.memory.router_problems.get(namespace) or Problems()
    pods = ctx.view.router_pods(namespace)
    recorded = settings.recorded_version(ctx.store.get(CONFIG_MAP, namespace, names.ROUTER_SETTINGS))
    return RouterObserved(
        deployment=ctx.store.get(DEPLOYMENT, namespace, names.ROUTER),
        pods=pods,
        reports=ctx.reports.of_router(namespace),
        settings_version=recorded.version if recorded is not None else 0,
        # NB: an endpoint or split may be looked at before the router, whose key its change has queued, too.
        unwritten=bool(pods_status.ready(pods)) and not ctx.view.router_written(namespace),
        taken=problems.taken,
        refused=problems.refused,
    )


def is_shared(child: Obj) -> bool:
    """Whether an object belongs to a namespace's router rather than to one endpoint.

    Args:
        child: an object with our label.
    """
    own = child["metadata"].get("labels") or {}
    return own.get(APP_NAME) == APP_ROUTER and ENDPOINT not in own


def _shared(ctx: Context, namespace: str) -> list[Obj]:
    return [
        child
        for kind in CHILDREN
        for name in (names.ROUTER, names.ROUTER_SETTINGS)
        if (child := ctx.store.get(kind, namespace, name)) is not None and is_shared(child)
    ]
