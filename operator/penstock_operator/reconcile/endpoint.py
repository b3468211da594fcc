"""Reconciles a ModelEndpoint: its Service with its own port, and its status; `router` does its routers."""

from __future__ import annotations

from penstock_operator.api import ModelEndpoint
from penstock_operator.desired import names
from penstock_operator.desired import router as rendering
from penstock_operator.kinds import ENDPOINT, SERVICE
from penstock_operator.kube.cluster import Obj
from penstock_operator.reconcile import parent_check, router, shared
from penstock_operator.reconcile.children import apply_children, requeue_after
from penstock_operator.reconcile.context import Problems, ReconcileContext
from penstock_operator.reconcile.parent import forget, load_parent
from penstock_operator.reconcile.status_writer import write_status
from penstock_operator.status import EndpointObserved, endpoint_status
from penstock_operator.store import ObjectKey


async def reconcile(ctx: ReconcileContext, key: ObjectKey) -> float | None:
    """Bring the cluster to what the endpoint asks for (see `backend.reconcile`)."""
    loaded = await load_parent(ctx, key, ENDPOINT, ModelEndpoint, forget=_forget)
    if loaded is None:
        return None
    parent, endpoint = loaded
    name, namespace = key.name, key.namespace
    service = ObjectKey(SERVICE.kind, namespace, names.endpoint(name))
    looked = {service: await ctx.applier.look(SERVICE, namespace, service.name)}
    port = ctx.view.ports(namespace).get(name)
    uid = endpoint.metadata.uid
    problems = own = Problems()
    if port is not None:
        own = await router.reconcile_dedicated(ctx, parent, endpoint, port, looked[service])
        dedicated = router.leads_to_dedicated(ctx, endpoint, looked[service])
        problems = await apply_children(
            ctx,
            key,
            [
                rendering.endpoint_service(endpoint, port, dedicated=dedicated),
                *router.slice_of(ctx, endpoint, looked[service]),
            ],
            owners=(uid,),
            candidates=lambda: [child for child in ctx.store.owned(uid) if _is_own(child)],
            looked=looked,
            confirm=lambda: parent_check.confirm_own(ctx, parent),
        )
        shared.note_foreign(ctx, namespace, name, problems)
    for refusal in (problems, own):
        if refusal.unpublished:
            return requeue_after(refusal)
    plan = ctx.view.plan(namespace).endpoints.get(name)
    stored = ctx.store.get(ENDPOINT, namespace, name)
    if plan is None or stored is None:
        return requeue_after(problems) or requeue_after(own)
    routers = router.serving(ctx, namespace, name)
    wait = ctx.settling_time(stored, routers.pods, routers.reports)
    if wait is not None:
        return requeue_after(problems) or requeue_after(own) or wait
    backends = ctx.view.backends_seen(namespace)
    seen = EndpointObserved(
        plan=plan,
        router=routers,
        backends=backends.ready,
        without_service=backends.without_service,
        asleep=backends.asleep,
        default_timeouts=backends.default_timeouts,
        port=port,
        taken=problems.taken,
        refused=problems.refused,
    )
    await write_status(ctx, stored, endpoint_status(endpoint, seen, now=ctx.now()))
    again = router.LOOK_AGAIN if routers.unmade else None
    return requeue_after(problems) or requeue_after(own) or again


def _is_own(child: Obj) -> bool:
    """Whether an object that an endpoint owns is applied and pruned here, not by `router`."""
    return not router.is_shared(child) and not router.is_dedicated_router(child)


def _forget(ctx: ReconcileContext, key: ObjectKey) -> None:
    router.forget_dedicated(ctx, key)
    shared.note_foreign(ctx, key.namespace, key.name, Problems())
    ctx.memory.switched.pop(key, None)
    forget(ctx, key)
