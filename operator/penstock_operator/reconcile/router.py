"""Reconciles the router of a namespace, which every endpoint owns, and endpoints' own routers.

A namespace that uses the shared router (`shared`) has none of its own, but its front door's Service.

When an endpoint changes from one to the other, the new routers start before the old ones end: the Service
leads to the new ones once all of them listen, and the old ones serve until nodes have noticed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from penstock_operator.api import ModelEndpoint
from penstock_operator.api.defaults import is_dedicated
from penstock_operator.desired import names, settings
from penstock_operator.desired import router as rendering
from penstock_operator.desired.labels import (
    APP_DEDICATED_ROUTER,
    APP_NAME,
    APP_ROUTER,
    ENDPOINT,
    MODE_OWN,
    MODE_SHARED,
    ROUTER_MODE,
)
from penstock_operator.kinds import CHILDREN, CONFIG_MAP, DEPLOYMENT, SERVICE
from penstock_operator.kinds import ENDPOINT as ENDPOINT_KIND
from penstock_operator.kinds import SPLIT as SPLIT_KIND
from penstock_operator.kube.cluster import Obj
from penstock_operator.reconcile import parent_check, shared
from penstock_operator.reconcile.children import apply_children, requeue_after
from penstock_operator.reconcile.context import Problems, ReconcileContext
from penstock_operator.reconcile.shared import LINGER_SECONDS, ROUTER_KIND
from penstock_operator.status import RouterObserved, router_ready
from penstock_operator.status import pods as pods_status
from penstock_operator.store import ObjectKey, key_of

LOOK_AGAIN = 1.0
"""Seconds after which a key that found the router's settings unmade is queued again: the router's own run
queues it after a change, but not after a change that was undone before."""


def router_key(namespace: str) -> ObjectKey:
    """Return the work queue's key for a namespace's router."""
    return ObjectKey(ROUTER_KIND, namespace, names.ROUTER)


async def reconcile(ctx: ReconcileContext, key: ObjectKey) -> float | None:
    """Bring a namespace's router to what its endpoints ask for (see `backend.reconcile`)."""
    namespace = key.namespace
    endpoints = ctx.view.endpoints(namespace)
    _log_unknown_mode(ctx, namespace, used=bool(endpoints))
    if not shared.part_is_current(ctx, namespace):
        ctx.memory.shared.stale.add(namespace)
        ctx.enqueue(shared.KEY, 0.0)
    if not endpoints:
        # The garbage collector deletes the router with its last owner.
        ctx.memory.router_problems.pop(namespace, None)
        ctx.memory.made.pop((namespace, names.ROUTER_SETTINGS), None)
        ctx.memory.shared.moved.pop(namespace, None)
        ctx.memory.shared.foreign.pop(namespace, None)
        return None
    uses_shared = ctx.view.uses_shared(namespace)
    away, leaves = _moved_away(ctx, namespace, endpoints) if uses_shared else (False, None)
    looked: dict[ObjectKey, Obj | None] = {}
    again: float | None = None
    versioned: settings.Versioned | None = None
    if away and not any(map(is_dedicated, endpoints)):
        ctx.memory.made.pop((namespace, names.ROUTER_SETTINGS), None)
        desired = [rendering.front_door(namespace, endpoints)]
    else:
        at = ObjectKey(CONFIG_MAP.kind, namespace, names.ROUTER_SETTINGS)
        looked[at] = await ctx.applier.look(CONFIG_MAP, namespace, names.ROUTER_SETTINGS)
        lingering, again = _lingering(ctx, namespace)
        versioned = _make(ctx, namespace, "", recorded=looked[at], lingering=lingering)
        desired = rendering.router_objects(
            namespace,
            endpoints,
            config=ctx.render,
            document=versioned.document,
            live=ctx.store.get(DEPLOYMENT, namespace, names.ROUTER),
            idle=away or (not lingering and not any(map(ctx.view.is_shared, endpoints))),
        )
    desired += shared.desired_slice(
        ctx, namespace, "", endpoints, wanted=uses_shared, others_serve=lambda: _serves(ctx, namespace, None)
    )
    again = leaves if again is None else again
    owners = [endpoint.metadata.uid for endpoint in endpoints]
    problems = await apply_children(
        ctx, key, desired, owners=owners, shared=True, candidates=lambda: _shared(ctx, namespace),
        looked=looked, confirm=lambda: _confirm(ctx, namespace),
    )  # fmt: skip
    shared.note_foreign(ctx, namespace, "", problems)
    before = ctx.memory.router_problems.get(namespace)
    ctx.memory.router_problems[namespace] = problems
    if problems != (before or Problems()):
        enqueue_senders(ctx, namespace)
    elif versioned is not None and versioned.changed:
        enqueue_senders(ctx, namespace, versioned.earlier[-1][1] if versioned.earlier else None)
    return requeue_after(problems) or again


def _log_unknown_mode(ctx: ReconcileContext, namespace: str, *, used: bool) -> None:
    """Log once that a namespace's label is ignored."""
    known, asked = ctx.memory.shared.unknown_modes, ctx.view.unknown_router_mode(namespace)
    if asked is None or not used:
        known.pop(namespace, None)
    elif known.get(namespace) != asked:
        known[namespace] = asked
        ctx.log(
            "a namespace's label is ignored",
            level="warning",
            namespace=namespace,
            label=f"{ROUTER_MODE}={asked}",
            known=[MODE_SHARED, MODE_OWN],
        )


def _moved_away(
    ctx: ReconcileContext, namespace: str, endpoints: list[ModelEndpoint]
) -> tuple[bool, float | None]:
    """Whether a namespace that uses the shared router needs its own no longer; else after how many seconds.

    Its own serves until all Services of Penstock's have led to the shared one for a while.
    """
    live, moved = ctx.store.get(DEPLOYMENT, namespace, names.ROUTER), ctx.memory.shared.moved
    if live is None or not (live.get("spec") or {}).get("replicas"):
        moved.pop(namespace, None)
        return True, None
    here = {"", *[each.name for each in endpoints if not is_dedicated(each)]}
    here -= ctx.memory.shared.foreign.get(namespace, set())
    if not all(shared.leads_here(ctx, namespace, name) for name in here):
        moved.pop(namespace, None)
        return False, None
    left = moved.setdefault(namespace, ctx.clock.time()) + LINGER_SECONDS - ctx.clock.time()
    return (True, None) if left <= 0 else (False, left)


def _serves(ctx: ReconcileContext, namespace: str, endpoint: str | None, routers: str = "") -> bool:
    """Whether as many routers as are asked for are ready, and all of them listen.

    Args:
        endpoint: for it; None for the front door.
        routers: as `endpoint` of `observed`.
    """
    seen = observed(ctx, namespace, routers, of=endpoint or "")
    # NB: a stranger's front door leads to no routers of ours, and is not to keep endpoints where they are.
    seen = replace(seen, taken=[each for each in seen.taken if each != f"{SERVICE.kind}/{names.ROUTER}"])
    asked = ((seen.deployment or {}).get("spec") or {}).get("replicas") or 1
    return len(pods_status.ready(seen.pods)) >= asked and router_ready(endpoint, seen).status == "True"


def slice_of(ctx: ReconcileContext, endpoint: ModelEndpoint, service: Obj | None) -> list[Obj]:
    """Return the slice by which an endpoint's Service leads to the shared router, if it is to."""
    namespace, name = endpoint.namespace, endpoint.name
    dedicated = is_dedicated(endpoint)

    def others_serve() -> bool:
        return rendering.leads_to_dedicated(service) if dedicated else _serves(ctx, namespace, name)

    wanted = ctx.view.uses_shared(namespace) and not dedicated
    return shared.desired_slice(ctx, namespace, name, [endpoint], wanted=wanted, others_serve=others_serve)


async def reconcile_dedicated(
    ctx: ReconcileContext, parent: Obj, endpoint: ModelEndpoint, port: int, service: Obj | None
) -> Problems:
    """Bring an endpoint's own router to what the endpoint asks for, or remove it if it asks for none.

    It stays until the endpoint's Service no longer leads to it.
    """
    key, namespace, uid = key_of(parent), endpoint.namespace, endpoint.metadata.uid

    def own() -> list[Obj]:
        return [child for child in ctx.store.owned(uid) if is_dedicated_router(child)]

    wanted = is_dedicated(endpoint) or rendering.leads_to_dedicated(service)
    if not wanted and not own():
        forget_dedicated(ctx, key)
        return Problems()
    desired: list[Obj] = []
    changed = False
    looked: dict[ObjectKey, Obj | None] = {}
    if wanted:
        at = ObjectKey(CONFIG_MAP.kind, namespace, names.dedicated_router_settings(endpoint.name))
        looked[at] = await ctx.applier.look(CONFIG_MAP, namespace, at.name)
        versioned = _make(ctx, namespace, endpoint.name, recorded=looked[at])
        changed = versioned.changed
        desired = rendering.dedicated_objects(endpoint, port, config=ctx.render, document=versioned.document)
    problems = await apply_children(
        ctx, key, desired, owners=(uid,), candidates=own, looked=looked,
        confirm=lambda: parent_check.confirm_own(ctx, parent),
    )  # fmt: skip
    if changed or problems != (ctx.memory.router_problems.get(key) or Problems()):
        for split in ctx.view.splits(namespace):
            if split.spec.endpoint == endpoint.name:
                ctx.enqueue(ObjectKey(SPLIT_KIND.kind, namespace, split.name), 0.0)
    ctx.memory.router_problems[key] = problems
    return problems


def forget_dedicated(ctx: ReconcileContext, key: ObjectKey) -> None:
    """Drop what is in memory of an endpoint's own router."""
    ctx.memory.router_problems.pop(key, None)
    ctx.memory.made.pop((key.namespace, names.dedicated_router_settings(key.name)), None)


def _make(
    ctx: ReconcileContext,
    namespace: str,
    endpoint: str,
    *,
    recorded: Obj | None,
    lingering: frozenset[str] = frozenset(),
) -> settings.Versioned:
    """Make the settings that routers get from now on (`endpoint` as in `observed`)."""
    at = (namespace, names.dedicated_router_settings(endpoint) if endpoint else names.ROUTER_SETTINGS)
    last = ctx.memory.made.get(at)
    made = settings.next_version(
        ctx.view.router_document(namespace, endpoint, lingering=lingering),
        made=last,
        recorded=recorded,
        status_version=0,
        reported=ctx.reports.highest_version(ctx.reports.of_router(namespace, endpoint)),
    ).following(last)
    ctx.memory.made[at] = made
    return made


def leads_to_dedicated(ctx: ReconcileContext, endpoint: ModelEndpoint, live: Obj | None) -> bool:
    """Whether an endpoint's Service is to lead to its own router now.

    It keeps its present routers until the wanted ones serve: until as many as are asked for are ready, and
    all of them listen for the endpoint.
    """
    wanted, now = is_dedicated(endpoint), rendering.leads_to_dedicated(live)
    if live is None or now == wanted:
        return wanted
    if not wanted and ctx.view.uses_shared(endpoint.namespace):
        serves = shared.leads_here(ctx, endpoint.namespace, endpoint.name)
    else:
        serves = _serves(ctx, endpoint.namespace, endpoint.name, endpoint.name if wanted else "")
    if not serves:
        return now
    key = ObjectKey(ENDPOINT_KIND.kind, endpoint.namespace, endpoint.name)
    if wanted:
        ctx.memory.switched[key] = ctx.clock.time()
        ctx.enqueue(router_key(endpoint.namespace), LINGER_SECONDS)
    else:
        ctx.memory.switched.pop(key, None)
        ctx.enqueue(key, 0.0)  # its own routers go when its Service no longer leads there
    return wanted


def _lingering(ctx: ReconcileContext, namespace: str) -> tuple[frozenset[str], float | None]:
    """Return the endpoints whose Services led here until lately, and the seconds until the first one ends."""
    now = ctx.clock.time()
    ends = {key: at + LINGER_SECONDS for key, at in ctx.memory.switched.items() if key.namespace == namespace}
    for key in [key for key, end in ends.items() if end <= now]:
        del ctx.memory.switched[key], ends[key]
    return frozenset(key.name for key in ends), min(ends.values()) - now if ends else None


async def _confirm(ctx: ReconcileContext, namespace: str) -> None:
    """Check that all endpoints still exist, unless all are new: each of them owns the router."""
    if any(map(parent_check.observed, ctx.store.all(ENDPOINT_KIND, namespace))):
        await parent_check.confirm(ctx, ENDPOINT_KIND, namespace)


def enqueue_senders(ctx: ReconcileContext, namespace: str, of: Collection[str] | None = None) -> None:
    """Queue endpoints of a namespace and their splits for another look at its router.

    Args:
        of: the endpoints; None for all.
    """
    for stored in ctx.store.all(ENDPOINT_KIND, namespace):
        if of is None or stored["metadata"]["name"] in of:
            ctx.enqueue(key_of(stored), 0.0)
    for stored in ctx.store.all(SPLIT_KIND, namespace):
        if of is None or (stored.get("spec") or {}).get("endpoint") in of:
            ctx.enqueue(key_of(stored), 0.0)


def enqueue_reported(ctx: ReconcileContext, namespace: str) -> None:
    """Queue those of whom routers have reported something new: of mere settings, those that these changed."""
    made = ctx.memory.made.get((namespace, names.ROUTER_SETTINGS))
    of: frozenset[str] = frozenset()
    for before in ctx.reports.take_settings_before(namespace):
        changed = None if made is None else made.changed_since(before)
        if changed is None:
            enqueue_senders(ctx, namespace)
            return
        of |= changed
    enqueue_senders(ctx, namespace, of)


def serving(ctx: ReconcileContext, namespace: str, endpoint: str) -> RouterObserved:
    """Return what is known of the router that serves an endpoint: its own, its namespace's or the shared one.

    Args:
        endpoint: its name; if there is no such endpoint, the namespace's router is meant.
    """
    resource = ctx.view.endpoint(namespace, endpoint)
    if resource is None or not is_dedicated(resource):
        own = ctx.store.get(DEPLOYMENT, namespace, names.ROUTER)
        has_own = bool(((own or {}).get("spec") or {}).get("replicas"))
        waits = ctx.view.uses_shared(namespace) and not has_own
        if waits or shared.leads_here(ctx, namespace, endpoint if resource is not None else ""):
            return shared.observed(ctx, namespace, endpoint)
    own_router = endpoint if resource is not None and is_dedicated(resource) else ""
    return observed(ctx, namespace, own_router, of=endpoint)


def observed(ctx: ReconcileContext, namespace: str, endpoint: str = "", *, of: str = "") -> RouterObserved:
    """Return what is known of a router, for the statuses of its endpoints and splits.

    Args:
        endpoint: that has the router for itself; empty for the namespace's.
        of: the endpoint for which it is observed; empty for all that it serves.
    """
    whose = ObjectKey(ENDPOINT_KIND.kind, namespace, endpoint) if endpoint else namespace
    problems = ctx.memory.router_problems.get(whose) or Problems()
    pods = ctx.view.router_pods(namespace, endpoint)
    name, record = names.ROUTER, names.ROUTER_SETTINGS
    if endpoint:
        name, record = names.dedicated_router(endpoint), names.dedicated_router_settings(endpoint)
    made = ctx.memory.made.get((namespace, record))
    lingering = frozenset() if endpoint else _lingering(ctx, namespace)[0]
    current = ctx.view.router_settings(made, namespace, endpoint, lingering=lingering)
    last = current or made
    return RouterObserved(
        deployment=ctx.store.get(DEPLOYMENT, namespace, name),
        pods=pods,
        reports=ctx.reports.of_router(namespace, endpoint),
        settings_version=last.version if last is not None else 0,
        settings_digest=last.digest if last is not None else "",
        alike=last.alike(of) if last is not None and of else (),
        # NB: an endpoint or split can run before the router, although its change queued that, too.
        unmade=bool(pods_status.ready(pods)) and current is None,
        taken=problems.taken,
        refused=problems.refused,
        sort="dedicated" if endpoint else "",
        unknown_mode=ctx.view.unknown_router_mode(namespace),
    )


def is_shared(child: Obj) -> bool:
    """Whether an object belongs to a namespace's router rather than to one endpoint."""
    own = child["metadata"].get("labels") or {}
    return own.get(APP_NAME) == APP_ROUTER and ENDPOINT not in own


def is_dedicated_router(child: Obj) -> bool:
    """Whether an object belongs to an endpoint's own router."""
    own = child["metadata"].get("labels") or {}
    return bool(own.get(APP_NAME) == APP_DEDICATED_ROUTER)


def _shared(ctx: ReconcileContext, namespace: str) -> list[Obj]:
    return [
        child
        for kind in CHILDREN
        for name in (names.ROUTER, names.ROUTER_SETTINGS, names.shared_slice(names.ROUTER))
        if (child := ctx.store.get(kind, namespace, name)) is not None and is_shared(child)
    ]
