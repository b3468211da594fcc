"""Reconciles the router that namespaces share, and the EndpointSlices by which their Services lead to it.

A Service keeps its selector, whichever routers serve it: nodes send to the pods in all of its EndpointSlices,
and ours is one more, beside those that the EndpointSlice controller makes of a router of the namespace's own.
So a change from one to the other needs no moment at which the Service is led over: the new routers join, and
the old ones leave once the new ones have been there for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from penstock_operator.api import ModelEndpoint
from penstock_operator.api.defaults import is_dedicated
from penstock_operator.desired import labels, names, ports, settings
from penstock_operator.desired import router as rendering
from penstock_operator.kinds import CHILDREN, CONFIG_MAP, DEPLOYMENT, ENDPOINT, ENDPOINT_SLICE, POD, SPLIT
from penstock_operator.kube.cluster import Obj
from penstock_operator.reconcile.children import apply_children, requeue_after
from penstock_operator.reconcile.context import Problems, ReconcileContext
from penstock_operator.reports import SHARED
from penstock_operator.status import RouterObserved
from penstock_operator.status import pods as pods_status
from penstock_operator.store import ObjectKey, key_of
from penstock_wire.control.report import RouterReport
from penstock_wire.control.router_settings import encode_tenants

KIND = "SharedRouter"
"""The name under which it is in the work queue; it is not a kind of the API."""

KEY = ObjectKey(KIND, "", names.SHARED_ROUTER)

ROUTER_KIND = "Router"
"""The name under which a namespace's own router is there; nor is this."""

LEAVES_SECONDS = 0.5
"""Seconds after which clients are sent away from where a Service leads no longer."""

LINGER_SECONDS = 10.0
"""Seconds for which former routers still serve what others serve by now: until all nodes have noticed."""

QUARANTINE_SECONDS = 60.0
"""Seconds for which a port that was given up is given to nobody else: a node may still lead there."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """What the shared router serves for a namespace.

    Args:
        served: names of endpoints.
        leaving: those of them that other routers serve by now.
    """

    namespace: str
    served: tuple[str, ...]
    leaving: tuple[str, ...]

    @property
    def keys(self) -> list[str]:
        """The keys of its ports."""
        return [f"{self.namespace}/{name}" for name in ("", *self.served)]


def is_shared_router(child: Obj) -> bool:
    """Whether an object belongs to the router that namespaces share."""
    own = child["metadata"].get("labels") or {}
    return bool(own.get(labels.APP_NAME) == labels.APP_SHARED_ROUTER)


async def reconcile(ctx: ReconcileContext, key: ObjectKey) -> float | None:
    """Bring the shared router to what all namespaces ask for (see `backend.reconcile`)."""
    memory, now = ctx.memory.shared, ctx.clock.time()
    for of in [of for of, at in memory.left.items() if now - at >= LINGER_SECONDS]:
        del memory.left[of]
    tenants = [each for name in ctx.store.namespaces(ENDPOINT) if (each := tenant(ctx, name)) is not None]
    _allocate(ctx, tenants)
    parts = {
        each.namespace: ctx.view.tenant_part(each.namespace, each.served, each.leaving, memory.ports)
        for each in tenants
    }
    at = ObjectKey(CONFIG_MAP.kind, ctx.home, names.SHARED_ROUTER_SETTINGS)
    looked = {at: await ctx.applier.look(CONFIG_MAP, ctx.home, at.name)} if tenants else {}
    desired: list[Obj] = []
    before, memory.parts = memory.parts, parts
    if tenants:
        made = settings.next_version(
            lambda version: encode_tenants(version, parts),
            made=ctx.memory.made.get((ctx.home, at.name)),
            recorded=looked[at],
            status_version=0,
            reported=ctx.reports.shared_version,
        )
        ctx.memory.made[ctx.home, at.name] = made
        live = ctx.store.get(DEPLOYMENT, ctx.home, names.SHARED_ROUTER)
        desired = rendering.shared_objects(ctx.home, config=ctx.render, document=made.document, live=live)
        since = ctx.reports.shared_since
        for name in since.keys() - parts.keys():
            del since[name]
        since.update({name: made.version for name, part in parts.items() if part != before.get(name)})
    problems = await apply_children(
        ctx, key, desired, owners=(), shared=True, looked=looked, confirm=_nobody,
        candidates=lambda: _own(ctx),
    )  # fmt: skip
    known, ctx.memory.router_problems[KEY] = ctx.memory.router_problems.get(KEY), problems
    pods = tuple((pods_status.name(pod), _address(pod)) for pod in _ready(ctx))
    everybody = problems != (known or Problems()) or pods != memory.pods
    memory.pods = pods
    _enqueue_users(ctx, [name for name in parts if everybody or parts[name] != before.get(name)])
    _enqueue_users(ctx, before.keys() - parts.keys())
    ends = [stop + LINGER_SECONDS for stop in memory.left.values()]
    return requeue_after(problems) or (min(ends) - now if ends else None)


async def _nobody() -> None:
    """Confirm nothing: no resource owns the shared router."""


def tenant(ctx: ReconcileContext, namespace: str) -> Tenant | None:
    """Return what the shared router is to serve for a namespace now; None for nothing."""
    endpoints = ctx.view.endpoints(namespace)
    uses, left = ctx.view.uses_shared(namespace), ctx.memory.shared.left
    asked = {each.name for each in endpoints if uses and not is_dedicated(each)}
    led = {each.name for each in endpoints if leads_here(ctx, namespace, each.name)}
    lingering = {each.name for each in endpoints if f"{namespace}/{each.name}" in left}
    served = asked | led | lingering
    door = (uses and bool(endpoints)) or leads_here(ctx, namespace, "") or f"{namespace}/" in left
    if not served and not door:
        return None
    return Tenant(namespace, tuple(sorted(served)), tuple(sorted(lingering - asked - led)))


def part_is_current(ctx: ReconcileContext, namespace: str) -> bool:
    """Whether the shared router's settings have of a namespace what they should have."""
    memory, now = ctx.memory.shared, tenant(ctx, namespace)
    part = memory.parts.get(namespace)
    if now is None or part is None:
        return now is None and part is None
    if not all(key in memory.ports for key in now.keys):
        return False
    return part == ctx.view.tenant_part(namespace, now.served, now.leaving, memory.ports)


def _allocate(ctx: ReconcileContext, tenants: Iterable[Tenant]) -> None:
    memory, now = ctx.memory.shared, ctx.clock.time()
    memory.freed = {port: at for port, at in memory.freed.items() if now - at < QUARANTINE_SECONDS}
    slices = [slice_ for slice_ in ctx.store.all(ENDPOINT_SLICE) if not is_shared_router(slice_)]
    wanted = [key for each in tenants for key in each.keys]
    before = memory.ports
    memory.ports = ports.allocate_shared(wanted, slices, before, memory.freed)
    kept = set(memory.ports.values())
    memory.freed.update({port: now for port in before.values() if port not in kept})


def _own(ctx: ReconcileContext) -> list[Obj]:
    return [
        child
        for kind in CHILDREN
        for name in (names.SHARED_ROUTER, names.SHARED_ROUTER_SETTINGS)
        if (child := ctx.store.get(kind, ctx.home, name)) is not None and is_shared_router(child)
    ]


def _pods(ctx: ReconcileContext) -> list[Obj]:
    return ctx.store.selected(POD, ctx.home, labels.APP_NAME, labels.APP_SHARED_ROUTER)


def _ready(ctx: ReconcileContext) -> list[Obj]:
    return [pod for pod in pods_status.ready(_pods(ctx)) if _address(pod)]


def _address(pod: Obj) -> str:
    return str((pod.get("status") or {}).get("podIP") or "")


def _enqueue_users(ctx: ReconcileContext, namespaces: Iterable[str]) -> None:
    """Queue all that has a slice, or shows in its status what it knows of the shared router."""
    for namespace in namespaces:
        ctx.enqueue(ObjectKey(ROUTER_KIND, namespace, names.ROUTER), 0.0)
        for kind in (ENDPOINT, SPLIT):
            for stored in ctx.store.all(kind, namespace):
                ctx.enqueue(key_of(stored), 0.0)


# -- slices ------------------------------------------------------------------------------------------------


def live_slice(ctx: ReconcileContext, namespace: str, endpoint: str) -> Obj | None:
    """Return the slice by which the Service of an endpoint, or of the front door (""), leads here."""
    service = names.endpoint(endpoint) if endpoint else names.ROUTER
    return ctx.store.get(ENDPOINT_SLICE, namespace, names.shared_slice(service))


def leads_here(ctx: ReconcileContext, namespace: str, endpoint: str) -> bool:
    """Whether a Service leads to the shared router."""
    return bool(rendering.slice_addresses(live_slice(ctx, namespace, endpoint)))


def desired_slice(
    ctx: ReconcileContext,
    namespace: str,
    endpoint: str,
    owners: Sequence[ModelEndpoint],
    *,
    wanted: bool,
    others_serve: Callable[[], bool],
) -> list[Obj]:
    """Return the slice of a Service, as a list of one or none.

    It has the ready pods that listen for the endpoint; it stays until other routers serve.

    Args:
        endpoint: the endpoint that the Service is of; empty for the front door.
    """
    live = live_slice(ctx, namespace, endpoint)
    key = f"{namespace}/{endpoint}"
    before = rendering.slice_addresses(live)
    if not wanted and (not before or others_serve()):
        if before and key not in ctx.memory.shared.left:
            ctx.memory.shared.left[key] = ctx.clock.time()
            ctx.enqueue(KEY, LEAVES_SECONDS)
        return []
    ctx.memory.shared.left.pop(key, None)
    recorded = ports.recorded_shared_port(live)
    port = ctx.memory.shared.ports.get(key, recorded)
    if port is None:
        return []
    if port != recorded:
        before = ()
    service = names.endpoint(endpoint) if endpoint else names.ROUTER
    found = _listening(ctx, namespace, endpoint, before)
    return [rendering.shared_slice(service, owners, endpoint=endpoint, port=port, addresses=found)]


def _listening(ctx: ReconcileContext, namespace: str, endpoint: str, before: Sequence[str]) -> list[str]:
    """Return the addresses of the pods that listen: those that say so, and those that did and are ready."""
    reports = ctx.reports.of_router(namespace, SHARED)
    since = ctx.reports.shared_since.get(namespace, 0)

    def listens(report: RouterReport | None) -> bool:
        if report is None or report.settings_version < since:
            return False
        if not endpoint:
            return report.door
        return endpoint in report.endpoints and report.endpoints[endpoint].listening

    return sorted(
        address
        for pod in _ready(ctx)
        if (address := _address(pod)) in before or listens(reports.get(pods_status.name(pod)))
    )


def observed(ctx: ReconcileContext, namespace: str) -> RouterObserved:
    """Return what is known of the shared router, for the statuses of a namespace's endpoints and splits."""
    problems = ctx.memory.router_problems.get(KEY) or Problems()
    pods = _pods(ctx)
    current = part_is_current(ctx, namespace)
    return RouterObserved(
        deployment=ctx.store.get(DEPLOYMENT, ctx.home, names.SHARED_ROUTER),
        pods=pods,
        reports=ctx.reports.of_router(namespace, SHARED),
        settings_version=ctx.reports.shared_since.get(namespace, 0),
        settings_digest="",
        unmade=bool(pods_status.ready(pods)) and not current,
        taken=problems.taken,
        refused=problems.refused,
    )
