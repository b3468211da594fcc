"""Reconciles the router that namespaces share, and the EndpointSlices by which their Services lead to it.

A Service keeps its selector, whichever routers serve it: nodes send to the pods in all of its EndpointSlices,
and ours is one more, beside those that the EndpointSlice controller makes of a router of the namespace's own.
So a change from one to the other needs no moment at which the Service is led over: the new routers join, and
the old ones leave once the new ones have been there for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from penstock_operator.api import ModelEndpoint
from penstock_operator.api.defaults import is_dedicated
from penstock_operator.desired import labels, names, ports, tenant_settings
from penstock_operator.desired import router as rendering
from penstock_operator.desired.tenant_settings import TenantSettings
from penstock_operator.kinds import (
    CHILDREN,
    CONFIG_MAP,
    DEPLOYMENT,
    ENDPOINT,
    ENDPOINT_SLICE,
    POD,
    SERVICE,
    SPLIT,
)
from penstock_operator.kube.cluster import Obj
from penstock_operator.reconcile.children import apply_children, requeue_after
from penstock_operator.reconcile.context import Problems, ReconcileContext, Tenant
from penstock_operator.reports import SHARED
from penstock_operator.status import RouterObserved
from penstock_operator.status import pods as pods_status
from penstock_operator.store import ObjectKey, key_of
from penstock_wire.control import router_settings
from penstock_wire.control.report import RouterReport

KIND = "SharedRouter"
"""The name under which it is in the work queue; it is not a kind of the API."""

KEY = ObjectKey(KIND, "", names.SHARED_ROUTER)

ROUTER_KIND = "Router"
"""The name under which a namespace's own router is there; nor is this."""

LEAVES_SECONDS = 0.5
"""Seconds after which clients are sent away from where a Service leads no longer."""

LINGER_SECONDS = 10.0
"""Seconds for which former routers still serve what others serve by now: until all nodes have noticed."""

SMALL_BYTES = 128 * 1024
BOOT_SECONDS = 10.0
"""Seconds for which a ConfigMap with more than `SMALL_BYTES` of settings stays: routers get each change at
once with the answers to their reports, and need it only when they start while no operator answers."""

QUARANTINE_SECONDS = 60.0
"""Seconds for which a port that was given up is given to nobody else: a node may still lead there."""


def is_shared_router(child: Obj) -> bool:
    """Whether an object belongs to the router that namespaces share."""
    own = child["metadata"].get("labels") or {}
    return bool(own.get(labels.APP_NAME) == labels.APP_SHARED_ROUTER)


async def reconcile(ctx: ReconcileContext, key: ObjectKey) -> float | None:
    """Bring the shared router to what namespaces ask for (see `backend.reconcile`).

    It looks at those alone whose part may be another one by now, and at all after the operator's start.
    """
    if not ctx.everywhere:
        return None  # who else uses it is not seen here
    memory, now = ctx.memory.shared, ctx.clock.time()
    for namespace, ends in list(memory.left.items()):
        for name in [name for name, at in ends.items() if now - at >= LINGER_SECONDS]:
            del ends[name]
            memory.stale.add(namespace)
        if not ends:
            del memory.left[namespace]
    made = memory.made
    everybody = made is None
    looked_at = {*ctx.store.namespaces(ENDPOINT), *memory.stale} if made is None else memory.stale
    memory.stale = set()
    found = {name: tenant(ctx, name) for name in looked_at}
    if made is None and any(found.values()):
        made = tenant_settings.recorded(
            await ctx.applier.look(CONFIG_MAP, ctx.home, names.SHARED_ROUTER_SETTINGS)
        )
        memory.made, memory.ports = made, made.ports()
        memory.boot = (made.digest, made.document if made.digest else b"", float("-inf"))
        found.update(dict.fromkeys(made.parts.keys() - found.keys()))
    desired: list[Obj] = []
    news: frozenset[str] = frozenset()
    again: float | None = None
    unserved: list[str] = []
    if made is not None:
        _allocate(ctx, found)
        unserved = [name for name, each in found.items() if each is not None and _lacks_port(ctx, name, each)]
        memory.stale.update(unserved)
        before = {name: made.parts.get(name) for name in found}
        news = made.update(
            {name: _part(ctx, name, each) for name, each in found.items()},
            reported=ctx.reports.shared_version,
        )
        since = ctx.reports.shared_since
        for name in made.parts if everybody else news & made.parts.keys():
            since[name] = made.version
            memory.changed[name] = _changed(
                memory.changed.get(name, {}), before.get(name), made.parts[name], made.version
            )
        for name in news - made.parts.keys():
            since.pop(name, None)
            memory.changed.pop(name, None)
        if made.parts:
            document, again = _boot_document(ctx, made)
            live = ctx.store.get(DEPLOYMENT, ctx.home, names.SHARED_ROUTER)
            desired = rendering.shared_objects(ctx.home, config=ctx.render, document=document, live=live)
    problems = await _apply(ctx, key, desired)
    known, ctx.memory.router_problems[KEY] = ctx.memory.router_problems.get(KEY), problems
    pods = tuple((pods_status.name(pod), _address(pod)) for pod in _ready(ctx))
    everybody = everybody or problems != (known or Problems()) or pods != memory.pods
    memory.pods = pods
    _enqueue_users(ctx, news | (made.parts.keys() if everybody and made is not None else frozenset()))
    left = [stop + LINGER_SECONDS - now for each in memory.left.values() for stop in each.values()]
    retry = QUARANTINE_SECONDS if unserved else None
    waits = [each for each in (requeue_after(problems), again, retry, *left) if each is not None]
    return min(waits, default=None)


def _part(ctx: ReconcileContext, namespace: str, served: Tenant | None) -> bytes | None:
    """Return what the settings are to have for a namespace; None for nothing, also where it got no port."""
    at = ctx.memory.shared.ports.get(namespace, {})
    return None if served is None or "" not in at else ctx.view.tenant_part(namespace, served.leaving, at)


def _changed(known: Mapping[str, int], before: bytes | None, now: bytes, version: int) -> dict[str, int]:
    """Return the version of the settings that last changed an endpoint, for each endpoint of a part."""
    old = {} if before is None else router_settings.endpoints_of(before)
    new = router_settings.endpoints_of(now)
    return {
        name: known.get(name, version) if old.get(name) == each else version for name, each in new.items()
    }


def _boot_document(ctx: ReconcileContext, made: TenantSettings) -> tuple[bytes, float | None]:
    """Return the document for the ConfigMap, and the seconds after which it is to be another one."""
    memory, now = ctx.memory.shared, ctx.clock.time()
    name, document, at = memory.boot
    if name == made.digest:
        return document, None
    if len(document) > SMALL_BYTES and now - at < BOOT_SECONDS:
        return document, at + BOOT_SECONDS - now
    memory.boot = (made.digest, made.document, now)
    return made.document, None


async def _apply(ctx: ReconcileContext, key: ObjectKey, desired: list[Obj]) -> Problems:
    """Apply the shared router's objects, unless nothing has changed since they were right."""
    memory = ctx.memory.shared
    epochs = [ctx.store.epoch(kind, ctx.home) for kind in CHILDREN]
    state = (memory.boot[0], bool(desired), ctx.render, *epochs)
    if state == memory.looked:
        return Problems()
    memory.looked = None
    problems = await apply_children(
        ctx, key, desired, owners=(), shared=True, confirm=_nobody, candidates=lambda: _own(ctx)
    )
    if not problems.any and problems.failed is None:
        memory.looked = state
    return problems


async def _nobody() -> None:
    """Confirm nothing: no resource owns the shared router."""


def tenant(ctx: ReconcileContext, namespace: str) -> Tenant | None:
    """Return what the shared router is to serve for a namespace now; None for nothing."""
    memory, store = ctx.memory.shared, ctx.store
    uses, left = ctx.view.uses_shared(namespace), memory.left.get(namespace, {})
    slices = store.epoch(ENDPOINT_SLICE, namespace)
    asks = uses and store.count(ENDPOINT, namespace) > 0
    if not asks and not left and not store.count(ENDPOINT_SLICE, namespace):
        memory.tenants.pop(namespace, None)
        return None
    # NB: with a thousand endpoints, each of them comes here, and writes a slice.
    state = (store.epoch(ENDPOINT, namespace), uses, tuple(left))
    known = memory.tenants.get(namespace)
    if known is None or known[0] != state or known[1] not in (None, slices):
        endpoints = ctx.view.endpoints(namespace)
        asked = {each.name for each in endpoints if uses and not is_dedicated(each)}
        others = [each.name for each in endpoints if each.name not in asked]
        led = {name for name in others if leads_here(ctx, namespace, name)}
        lingering = {each.name for each in endpoints if each.name in left}
        served = asked | led | lingering
        door = (uses and bool(endpoints)) or leads_here(ctx, namespace, "") or "" in left
        found = None
        if served or door:
            found = Tenant(namespace, tuple(sorted(served)), tuple(sorted(lingering - asked - led)))
        if known is not None and found == known[2]:
            found = known[2]  # its identity shows that nothing has changed
        # Where all endpoints ask for it, the slices do not matter.
        known = memory.tenants[namespace] = (state, None if asked and not others else slices, found)
    return known[2]


def part_is_current(ctx: ReconcileContext, namespace: str) -> bool:
    """Whether the shared router's settings have of a namespace what they should have."""
    memory, now = ctx.memory.shared, tenant(ctx, namespace)
    part = None if memory.made is None else memory.made.parts.get(namespace)
    if now is None or part is None:
        return now is None and part is None
    return memory.served.get(namespace) is now and part == _part(ctx, namespace, now)


def _lacks_port(ctx: ReconcileContext, namespace: str, served: Tenant) -> bool:
    """Whether there was no port left for something of a namespace."""
    return not {"", *served.served} <= ctx.memory.shared.ports.get(namespace, {}).keys()


def _allocate(ctx: ReconcileContext, found: Mapping[str, Tenant | None]) -> None:
    """Give ports to what is new, and take back those of what is gone."""
    memory, now = ctx.memory.shared, ctx.clock.time()
    memory.freed = {port: at for port, at in memory.freed.items() if now - at < QUARANTINE_SECONDS}
    slices: dict[str, Obj | None] = {}
    for namespace, each in found.items():
        before = memory.ports.get(namespace, {})
        wanted = () if each is None else ("", *each.served)
        for name in wanted:
            if name not in before:
                slices[f"{namespace}/{name}"] = live_slice(ctx, namespace, name)
        memory.freed.update({port: now for name, port in before.items() if name not in wanted})
    given: Mapping[str, int] = {}
    if slices:
        taken = {*memory.freed, *[port for own in memory.ports.values() for port in own.values()]}
        given = ports.allocate_shared(slices.keys(), slices, taken)
    if len(given) < len(slices):
        ctx.log("the shared router has no port left", level="error", without=len(slices) - len(given))
    for namespace, each in found.items():
        before = memory.ports.get(namespace, {})
        wanted = () if each is None else ("", *each.served)
        own = {
            name: port
            for name in wanted
            if (port := before.get(name) or given.get(f"{namespace}/{name}")) is not None
        }
        if own != before:
            memory.ports[namespace] = own
        if each is None:
            memory.ports.pop(namespace, None)
            memory.served.pop(namespace, None)
        else:
            memory.served[namespace] = each


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


def _address(pod: Obj, family: str = "") -> str:
    """Return an address of a pod: of a family, or its first one; empty if there is none."""
    status = pod.get("status") or {}
    every = [each.get("ip") for each in status.get("podIPs") or ()] or [status.get("podIP")]
    return next((each for each in every if each and family in ("", rendering.family_of(each))), "")


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


def note_foreign(ctx: ReconcileContext, namespace: str, endpoint: str, problems: Problems) -> None:
    """Remember whether a Service is somebody else's (`endpoint` as in `desired_slice`)."""
    known = ctx.memory.shared.foreign
    service = names.endpoint(endpoint) if endpoint else names.ROUTER
    foreign = f"{SERVICE.kind}/{service}" in problems.taken
    if foreign == (endpoint in known.get(namespace, ())):
        return
    if foreign:
        known.setdefault(namespace, set()).add(endpoint)
    else:
        known[namespace].discard(endpoint)
        if not known[namespace]:
            del known[namespace]
    ctx.enqueue(ObjectKey(ROUTER_KIND, namespace, names.ROUTER), 0.0)


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
    memory = ctx.memory.shared
    before = rendering.slice_addresses(live)
    if not wanted and (not before or others_serve()):
        if before and endpoint not in memory.left.get(namespace, {}):
            memory.left.setdefault(namespace, {})[endpoint] = ctx.clock.time()
            memory.stale.add(namespace)
            ctx.enqueue(KEY, LEAVES_SECONDS)
        return []
    memory.left.get(namespace, {}).pop(endpoint, None)
    recorded = ports.recorded_shared_port(live)
    port = memory.ports.get(namespace, {}).get(endpoint, recorded)
    if port is None:
        return []
    if port != recorded:
        before = ()
    service = names.endpoint(endpoint) if endpoint else names.ROUTER
    spec = (ctx.store.get(SERVICE, namespace, service) or {}).get("spec") or {}
    family = next(iter(spec.get("ipFamilies") or ()), "")
    found = _listening(ctx, namespace, endpoint, before, family)
    family = family or rendering.family_of(next(iter(found), ""))
    return [
        rendering.shared_slice(
            service, owners, endpoint=endpoint, port=port, pods=found, home=ctx.home, family=family
        )
    ]


def _listening(
    ctx: ReconcileContext, namespace: str, endpoint: str, before: Sequence[str], family: str
) -> dict[str, str]:
    """Return the pods that listen, by address: those that say so, and those that did and are ready.

    Args:
        family: of the addresses; empty if the Service is not there yet.
    """
    reports = ctx.reports.of_router(namespace, SHARED)
    since = ctx.reports.shared_since.get(namespace, 0)

    def listens(report: RouterReport | None) -> bool:
        if report is None or report.settings_version < since:
            return False
        if not endpoint:
            return report.door
        return endpoint in report.endpoints and report.endpoints[endpoint].listening

    found = {
        address: pods_status.name(pod)
        for pod in _ready(ctx)
        if (address := _address(pod, family))
        and (address in before or listens(reports.get(pods_status.name(pod))))
    }
    return dict(sorted(found.items()))


def observed(ctx: ReconcileContext, namespace: str, endpoint: str) -> RouterObserved:
    """Return what is known of the shared router, for the statuses of an endpoint and its splits."""
    problems = ctx.memory.router_problems.get(KEY) or Problems()
    door = ctx.memory.router_problems.get(namespace) or Problems()
    pods = _pods(ctx)
    current = part_is_current(ctx, namespace)
    since = ctx.reports.shared_since.get(namespace, 0)
    return RouterObserved(
        deployment=ctx.store.get(DEPLOYMENT, ctx.home, names.SHARED_ROUTER),
        pods=pods,
        reports=ctx.reports.of_router(namespace, SHARED),
        settings_version=ctx.memory.shared.changed.get(namespace, {}).get(endpoint, since),
        settings_digest="",
        unmade=bool(pods_status.ready(pods)) and not current,
        taken=problems.taken,
        refused=problems.refused,
        sort="shared",
        home=ctx.home,
        door_taken=door.taken,
        door_refused=door.refused,
        unknown_mode=ctx.view.unknown_router_mode(namespace),
    )
