"""A ModelEndpoint: its Service with its own port, and its status. Its router is `router`'s."""

from __future__ import annotations

from penstock_operator.api import ModelEndpoint, ResourceError
from penstock_operator.desired import names
from penstock_operator.desired import router as rendering
from penstock_operator.kinds import ENDPOINT, SERVICE
from penstock_operator.reconcile import parent_check, router
from penstock_operator.reconcile.context import Context, Problems, outcome
from penstock_operator.reconcile.status_writer import write_status
from penstock_operator.status import EndpointObserved, endpoint_status, parse_failed
from penstock_operator.store import Key


async def reconcile(ctx: Context, key: Key) -> float | None:
    """Make the cluster what the endpoint asks for (see `backend.reconcile`).

    Args:
        ctx: the shared pieces.
        key: which endpoint.
    """
    stored = ctx.store.get(ENDPOINT, key.namespace, key.name)
    if stored is None:
        ctx.view.forget(key)
        return None
    try:
        endpoint = ctx.view.read(stored)
    except ResourceError as error:
        await write_status(ctx, stored, parse_failed(stored, str(error), now=ctx.now()))
        return None
    if not isinstance(endpoint, ModelEndpoint) or endpoint.deleting:
        return None
    name, namespace = key.name, key.namespace
    service = Key(SERVICE.kind, namespace, names.endpoint(name))
    looked = {service: await ctx.applier.look(SERVICE, namespace, service.name)}
    port = ctx.view.ports(namespace).get(name)
    uid = endpoint.metadata.uid
    problems, known = Problems(), stored
    if port is not None:
        problems = await ctx.settle(
            key,
            [rendering.endpoint_service(endpoint, port)],
            owners=(uid,),
            candidates=lambda: [child for child in ctx.store.owned(uid) if not router.is_shared(child)],
            looked=looked,
            confirm=lambda: parent_check.confirm_own(ctx, known),
        )
    if problems.untold:
        return outcome(problems)
    plan = ctx.view.plan(namespace).endpoints.get(name)
    stored = ctx.store.get(ENDPOINT, namespace, name)
    if plan is None or stored is None:
        return outcome(problems)
    routers = router.observed(ctx, namespace)
    wait = ctx.unheard(stored, routers.pods, routers.reports)
    if wait is not None:
        return outcome(problems) or wait
    backends = ctx.view.backends_seen(namespace)
    seen = EndpointObserved(
        plan=plan,
        router=routers,
        backends=backends.ready,
        without_service=backends.without_service,
        port=port,
        taken=bool(problems.taken),
        refused=problems.refused,
    )
    await write_status(ctx, stored, endpoint_status(endpoint, seen, now=ctx.now()))
    return outcome(problems) or (router.LOOK_AGAIN if routers.unwritten else None)
