"""Reconciles a ModelBackend: its children, its settings, its status."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from penstock_operator.api import ModelBackend
from penstock_operator.api.backendstatus import LoadStatus, QueueLoad
from penstock_operator.api.defaults import unreachable_batch, unreachable_target
from penstock_operator.autoscaling import Recommendation, schedule
from penstock_operator.desired import backend as rendering
from penstock_operator.desired import deployment, names, settings
from penstock_operator.desired.drift import CHANGED, needs_write
from penstock_operator.desired.template_pinning import PinnedTemplate
from penstock_operator.kinds import BACKEND, CONFIG_MAP, DEPLOYMENT, POLICY, SERVICE_ACCOUNT
from penstock_operator.kube.cluster import Obj
from penstock_operator.reconcile import parent_check, victims
from penstock_operator.reconcile.children import apply_children, requeue_after
from penstock_operator.reconcile.context import Problems, ReconcileContext, Scaled, Settled
from penstock_operator.reconcile.parent import load_parent
from penstock_operator.reconcile.status_writer import same_status, write_status
from penstock_operator.status import (
    BackendObserved,
    artifact,
    backend_status,
    by_cost,
    load_moved,
    terms_moved,
    unreadable_status,
)
from penstock_operator.store import ObjectKey, key_of, owner_uids
from penstock_operator.traffic_window import REFUSALS
from penstock_wire.control.documents import digest


async def reconcile(ctx: ReconcileContext, key: ObjectKey) -> float | None:
    """Bring the cluster to what the backend asks for.

    Returns:
        Seconds after which to look again; None if only a change calls for it.

    Raises:
        ClusterError: a call failed that can succeed when tried again.
    """
    loaded = await load_parent(ctx, key, BACKEND, ModelBackend, unreadable=unreadable, forget=forget)
    if loaded is None:
        return None
    stored, backend = loaded
    looked: dict[ObjectKey, Obj | None] = {}
    for kind, name in ((CONFIG_MAP, names.backend_settings(key.name)), (DEPLOYMENT, names.backend(key.name))):
        looked[ObjectKey(kind.kind, key.namespace, name)] = await ctx.applier.look(kind, key.namespace, name)
    recorded = _own(
        looked[ObjectKey(CONFIG_MAP.kind, key.namespace, names.backend_settings(key.name))], stored
    )
    versioned = _settings(ctx, backend, recorded)
    live = _own(looked[ObjectKey(DEPLOYMENT.kind, key.namespace, names.backend(key.name))], stored)
    uid, problems = backend.metadata.uid, Problems()
    held: tuple[str, ...] = ()
    of = (uid, backend.metadata.generation, versioned.document, ctx.render)
    settled = ctx.memory.settled.get(key)
    # NB: not twice in a row: otherwise it would wait for as long as one change follows the other.
    may_wait = settled is not None and settled.of != of and not settled.status_waits
    if settled is None or settled.of != of or settled.children != _versions(ctx.store.owned(uid)):
        ctx.memory.settled.pop(key, None)
        pinned = deployment.pinned_template(
            backend, config=ctx.render, new_secret=ctx.draw_secret(), live=live
        )
        settled = Settled(of=of, children=0, upgrade_pending=pinned.upgrade_pending)
        if backend.spec.suspend:
            held = _held(ctx, backend, pinned, versioned, live=live)
        else:
            problems, children = await _write_children(ctx, backend, stored, versioned, pinned, looked)
            if problems.unpublished:
                return requeue_after(problems)
            # NB: of what a watch has brought meanwhile, nothing was compared.
            if not problems.any and children == _versions(ctx.store.owned(uid)):
                settled = replace(settled, children=children, status_waits=may_wait and ctx.hurried())
                ctx.memory.settled[key] = settled
                if settled.status_waits:
                    ctx.enqueue(key, 0.0)  # what users have changed is in effect first, then statuses follow
                    return None
    if settled.status_waits:
        ctx.memory.settled[key] = replace(settled, status_waits=False)
    wait = await _write_status(
        ctx, key, backend, versioned, problems, held, upgrade_pending=settled.upgrade_pending
    )
    again = requeue_after(problems)
    return wait if wait is not None else again


async def _write_children(
    ctx: ReconcileContext,
    backend: ModelBackend,
    stored: Obj,
    versioned: settings.Versioned,
    pinned: PinnedTemplate,
    looked: dict[ObjectKey, Obj | None],
) -> tuple[Problems, int]:
    """Bring the children to what the backend asks for; return their versions, too (see `_versions`)."""
    key = key_of(stored)
    live = _own(looked[ObjectKey(DEPLOYMENT.kind, key.namespace, names.backend(key.name))], stored)
    await victims.before_decrease(ctx, backend, live)
    found: dict[ObjectKey, Obj] = {}
    problems = await apply_children(
        ctx,
        key,
        rendering.backend_objects(backend, document=versioned.document, pinned=pinned, config=ctx.render),
        owners=(backend.metadata.uid,),
        candidates=lambda: _unused(ctx, backend),
        looked=looked,
        found=found,
        confirm=lambda: parent_check.confirm_own(ctx, stored),
    )
    return problems, _versions(found.values())


def _versions(children: Iterable[Obj]) -> int:
    """A number that says which versions of which children these are."""
    return hash(frozenset((key_of(child), child["metadata"].get("resourceVersion")) for child in children))


def unreadable(ctx: ReconcileContext, stored: Obj, error: str) -> dict[str, Any]:
    """Return the status of a backend that cannot be reconciled."""
    key = key_of(stored)
    live = _own(ctx.store.get(DEPLOYMENT, key.namespace, names.backend(key.name)), stored)
    return unreadable_status(stored, error, deployment=live, now=ctx.now())


def _own(child: Obj | None, backend: Obj) -> Obj | None:
    """Return a child if it is the backend's; not another owner's, or left of a deleted one of this name."""
    return child if child is not None and backend["metadata"].get("uid") in owner_uids(child) else None


def _unused(ctx: ReconcileContext, backend: ModelBackend) -> list[Obj]:
    """Return a backend's children, except for a ServiceAccount that one of its pods still uses.

    A pod without its ServiceAccount cannot report any more: its token is refused. The end of the last pod
    that uses it is an event of this backend, and then the account goes.
    """
    pods = ctx.view.backend_pods(backend.namespace, backend.name)
    named = {(pod.get("spec") or {}).get("serviceAccountName") for pod in pods}
    return [
        child
        for child in ctx.store.owned(backend.metadata.uid)
        if child["kind"] != SERVICE_ACCOUNT.kind or child["metadata"]["name"] not in named
    ]


def forget(ctx: ReconcileContext, key: ObjectKey) -> None:
    """Drop what was stored in memory of a deleted backend."""
    ctx.view.forget(key)
    ctx.memory.scaled.pop(key, None)
    ctx.memory.settled.pop(key, None)
    ctx.memory.made.pop((key.namespace, names.backend_settings(key.name)), None)
    ctx.memory.load_turns.forget(key)
    ctx.reports.forget_backend(key.namespace, key.name)


def _settings(ctx: ReconcileContext, backend: ModelBackend, recorded: Obj | None) -> settings.Versioned:
    """Return the document to send now. A backend without its policy, or suspended, keeps the last one."""
    at = (backend.namespace, names.backend_settings(backend.name))
    made, demanded = ctx.memory.made.get(at), artifact.demand(backend)
    make = settings.for_sidecar(backend, ctx.view.policy_of(backend), artifact=demanded)
    if ctx.view.lacks_policy(backend) or backend.spec.suspend:
        kept = made or settings.recorded_version(recorded)
        keep = settings.demanding(kept.document, demanded) if kept is not None else make
        if kept is not None and (kept is made or _is_kept(backend, kept, keep)):
            if keep(kept.version) == kept.document:
                ctx.memory.made[at] = kept
                return kept
            made, make = kept, keep
    reports = ctx.reports.of_backend(backend.namespace, backend.name)
    made = ctx.memory.made[at] = settings.next_version(
        make,
        made=made,
        recorded=recorded,
        status_version=backend.status.settings_version or 0,
        reported=ctx.reports.highest_version(reports),
    )
    return made


def _is_kept(backend: ModelBackend, recorded: settings.Versioned, make: settings.Maker) -> bool:
    """Whether the status has a ConfigMap's document, or this with the digest that was demanded meanwhile.

    Users may write the ConfigMap, but not the status. A status of an older operator has no digest.
    """
    shown = backend.status.settings_digest
    return shown in (None, recorded.digest) or shown == digest(make(backend.status.settings_version or 0))


def _held(
    ctx: ReconcileContext,
    backend: ModelBackend,
    pinned: PinnedTemplate,
    versioned: settings.Versioned,
    *,
    live: Obj | None,
) -> tuple[str, ...]:
    """Return what would change without the suspension. Drift does not count: it can be the reason for it."""
    held = []
    if live is not None and needs_write(deployment.deployment(backend, pinned), live) == CHANGED:
        held.append("pods")
    if not ctx.view.lacks_policy(backend):
        wanted = settings.for_sidecar(backend, ctx.view.policy_of(backend), artifact=artifact.demand(backend))
        if wanted(versioned.version) != versioned.document:
            held.append("settings")
    return tuple(held)


def _record_changed(ctx: ReconcileContext, backend: ModelBackend, versioned: settings.Versioned) -> bool:
    """Whether the ConfigMap has other settings than the pods get."""
    live = ctx.store.get(CONFIG_MAP, backend.namespace, names.backend_settings(backend.name))
    held = settings.recorded_version(live)
    return live is not None and (held is None or held.digest != versioned.digest)


def _unsure(backend: ModelBackend, recommendation: Recommendation | None) -> bool:
    """Whether the autoscaler has not looked yet, or has no metrics although the status says that it has."""
    if backend.spec.autoscaling is None or backend.spec.suspend:
        return False
    if recommendation is None:
        return True
    known = any(
        condition.type == "MetricsAvailable" and condition.status == "True"
        for condition in backend.status.conditions
    )
    return known and not recommendation.metrics_available


def look_at_load(ctx: ReconcileContext, key: ObjectKey) -> None:
    """Queue a backend for a turn to show its load, if that has moved."""
    backend = ctx.view.backend(key.namespace, key.name)
    if backend is None:
        return
    if _is_news(ctx, backend, key, _load(ctx, key, ctx.view.batching(backend).max_batch_size)):
        ctx.memory.load_turns.ask(key)


def _load(ctx: ReconcileContext, key: ObjectKey, max_batch_size: int) -> LoadStatus:
    queues = QueueLoad()
    if ctx.view.backend_pods(key.namespace, key.name):
        queues = ctx.reports.window(key.namespace, key.name).load(ctx.clock.time(), max_batch_size)
    requests, errors = ctx.reports.errors(key.namespace, key.name)
    refused = sum(count for reason, count in errors.items() if reason in REFUSALS)
    return LoadStatus(
        **vars(queues),
        requests_per_minute=requests,
        refused_per_minute=refused,
        failed_per_minute=sum(errors.values()) - refused,
        errors={reason: errors[reason] for reason in sorted(errors)},
        by_cost=by_cost(ctx.reports.of_backend(key.namespace, key.name).values()),
    )


def _schedule_note(ctx: ReconcileContext, backend: ModelBackend) -> str | None:
    scaling = backend.spec.autoscaling
    return schedule.problem(scaling.schedules, ctx.clock.now()) if scaling is not None else None


def _is_news(ctx: ReconcileContext, backend: ModelBackend, key: ObjectKey, load: LoadStatus) -> bool:
    """Whether load or terms have moved; False while they rest on the few reports of a new operator."""
    old = backend.status.load
    reporting = ctx.view.backend_pods(key.namespace, key.name)
    if old is not None and reporting and ctx.load_settles():
        return False
    scaled = ctx.memory.scaled.get(key) or Scaled()
    if artifact.artifact_moved(backend, ctx.reports.of_backend(key.namespace, key.name)):
        return True
    return load_moved(old, load) or terms_moved(backend.status.recommendation, scaled.recommendation)


def _without_progress(status: Obj) -> Obj:
    """A status without how many pods have the settings by now, as long as some have not."""
    conditions = [
        each | {"message": ""} if each.get("reason") == "Waiting" else each
        for each in status.get("conditions") or ()
    ]
    return status | {"conditions": conditions}


async def _write_status(
    ctx: ReconcileContext,
    key: ObjectKey,
    backend: ModelBackend,
    versioned: settings.Versioned,
    problems: Problems,
    held: Sequence[str],
    *,
    upgrade_pending: bool,
) -> float | None:
    """Write the status; if it is too early for that, return the seconds after which to look again."""
    namespace, name = key.namespace, key.name
    stored = ctx.store.get(BACKEND, namespace, name)
    if stored is None:
        return None
    scaled = ctx.memory.scaled.get(key) or Scaled()
    recommendation, unpublished = scaled.recommendation, tuple(scaled.unpublished)
    wait = ctx.settling_time(
        stored,
        ctx.view.backend_pods(namespace, name),
        ctx.reports.of_backend(namespace, name),
        unsure=_unsure(backend, recommendation),
    )
    if wait is not None:
        return wait
    spec = ctx.view.batching(backend)
    turn, fresh = ctx.memory.load_turns.take(key), _load(ctx, key, spec.max_batch_size)
    seen = BackendObserved(
        deployment=ctx.store.get(DEPLOYMENT, namespace, names.backend(name)),
        pods=ctx.view.backend_pods(namespace, name),
        reports=ctx.reports.of_backend(namespace, name),
        settings_version=versioned.version,
        settings_digest=versioned.digest,
        record_changed=backend.spec.suspend and _record_changed(ctx, backend, versioned),
        policy_missing=ctx.view.lacks_policy(backend),
        taken=problems.taken,
        refused=problems.refused,
        scale_refused=scaled.refused,
        used_by=ctx.view.plan(namespace).used_by.get(name, ()),
        load=backend.status.load or fresh,
        recommendation=recommendation if backend.spec.autoscaling is not None else None,
        scaled=unpublished,
        foreign_scaler=scaled.foreign.manager if scaled.foreign else None,
        foreign_applies=scaled.foreign is not None and scaled.foreign.applies,
        foreign_stands=scaled.foreign.stands if scaled.foreign else 0.0,
        batching_note=unreachable_batch(spec),
        target_note=unreachable_target(backend, spec),
        objective=spec.latency_objective,
        item_seconds=scaled.item_seconds,
        unreachable=scaled.unreachable,
        schedule_note=_schedule_note(ctx, backend),
        upgrade_pending=upgrade_pending,
        held=held,
    )
    status, old = backend_status(backend, seen, now=ctx.now()), stored.get("status") or {}
    differs = not same_status(status, old)
    if differs and not turn and same_status(_without_progress(status), _without_progress(old)):
        ctx.memory.load_turns.ask(key)  # otherwise each of a hundred pods would be a write
        return None
    news = _is_news(ctx, backend, key, fresh)
    if news and (turn or differs):
        # A status that is written anyway shows the load as well.
        status = backend_status(backend, replace(seen, load=fresh, terms=True), now=ctx.now())
        ctx.memory.load_turns.forget(key)
    elif news and not seen.pods:
        ctx.memory.load_turns.ask(key)  # without pods no report will
    written = await write_status(ctx, stored, status)
    # NB: changes by the autoscaler during the write stay for the next status.
    scaled.unpublished = [entry for entry in scaled.unpublished if entry not in unpublished]
    if written and status.get("artifact") != (stored.get("status") or {}).get("artifact"):
        ctx.enqueue(key, 0.0)  # the settings have its digest
    if written and backend.spec.batch_policy_ref:
        ctx.enqueue(ObjectKey(POLICY.kind, namespace, backend.spec.batch_policy_ref), 0.0)
    return None
