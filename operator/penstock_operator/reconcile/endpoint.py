"""A ModelEndpoint: its Service with its own port, and its status. Its router is `router`'s."""

from __future__ import annotations

from penstock_operator.api import ModelEndpoint
from penstock_operator.desired import names
from penstock_operator.desired import router as rendering
from penstock_operator.kinds import ENDPOINT, SERVICE
from penstock_operator.reconcile import parent_check, router
from penstock_operator.reconcile.children import apply_children, requeue_after
from penstock_operator.reconcile.context import Context, Problems
from penstock_operator.reconcile.parent import load_parent
from penstock_operator.reconcile.status_writer import write_status
from penstock_operator.status import EndpointObserved, endpoint_status
from penstock_operator.store import Key


async def reconcile(ctx: Context, key: Key) -> float | None:
    """Make the cluster what the endpoint asks for (see `backend.reconcile`).

    Args:
        ctx: the shared pieces.
        key: which endpoint.
    """
    loaded = await load_parent(ctx, key, ENDPOINT, ModelEndpoint)
    if loaded is None:
        return None
    parent, endpoint = loaded
    name, namespace = key.name, key.namespace
    service = Key(SERVICE.kind, namespace, names.endpoint(name))
    looked = {service: await ctx.applier.look(SERVICE, namespace, service.name)}
    port = ctx.view.ports(namespace).get(name)
    uid = endpoint.metadata.uid
    problems = Problems()
    if port is not None:
        problems = await apply_children(
            ctx,
            key,
            [rendering.endpoint_service(endpoint, port)],
            owners=(uid,),
            candidates=lambda: [child for child in ctx.store.owned(uid) if not router.is_shared(child)],
            looked=looked,
            confirm=lambda: parent_check.confirm_own(ctx, parent),
        )
    if problems.unpublished:
        return requeue_after(problems)
    plan = ctx.view.plan(namespace).endpoints.get(name)
    stored = ctx.store.get(ENDPOINT, namespace, name)
    if plan is None or stored is None:
        return requeue_after(problems)
    routers = router.observed(ctx, namespace)
    wait = ctx.settling_time(stored, routers.pods, routers.reports)
    if wait is not None:
        return requeue_after(problems) or wait
    backends = ctx.view.backends_seen(namespace)
    seen = EndpointObserved(
        plan=plan,
        router=routers,
        backends=backends.ready,
        without_service=backends.without_service,
        asleep=backends.asleep,
        port=port,
        taken=bool(problems.taken),
        refused=problems.refused,
    )
    await write_status(ctx, stored, endpoint_status(endpoint, seen, now=ctx.now()))
    return requeue_after(problems) or (router.LOOK_AGAIN if routers.unwritten else None)
