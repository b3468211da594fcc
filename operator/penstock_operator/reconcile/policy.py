"""Reconciles a BatchPolicy: its status, and the settings of injected pods that name it.

Of backends it is a part of the settings. Injected pods have no resource but the policy, which can be missing:
then they keep its last settings, or have the defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock_operator import injected
from penstock_operator.api import BatchPolicy, ModelBackend
from penstock_operator.api.backendstatus import QueueLoad
from penstock_operator.desired import labels, names, objects, settings
from penstock_operator.desired.settings import Versioned
from penstock_operator.kinds import CONFIG_MAP, POLICY
from penstock_operator.kube.cluster import Obj
from penstock_operator.reconcile import parent_check
from penstock_operator.reconcile.children import apply_children, requeue_after
from penstock_operator.reconcile.context import Problems, ReconcileContext
from penstock_operator.reconcile.parent import load_parent
from penstock_operator.reconcile.status_writer import same_status, send_event, write_status
from penstock_operator.status import PolicyUse, artifact, load_moved, pods, policy_status
from penstock_operator.store import ObjectKey

DEFAULT = "default"
"""Name in the label that needs no policy."""


async def reconcile(ctx: ReconcileContext, key: ObjectKey) -> float | None:
    """Give injected pods their settings, and report how many pods apply the policy.

    Returns:
        Seconds after which to look again; None if only a change calls for it.

    Raises:
        ClusterError: a call failed that can succeed when tried again.
    """
    loaded = await load_parent(ctx, key, POLICY, BatchPolicy, forget=forget)
    there = ctx.view.injected_pods(key.namespace, key.name)
    problems = await _record(ctx, key, loaded, there)
    if loaded is None or problems.unpublished:
        return requeue_after(problems)
    stored, policy = loaded
    users = [
        backend for backend in ctx.view.backends(key.namespace) if backend.spec.batch_policy_ref == key.name
    ]
    workloads: dict[str, list[Obj]] = {}
    for pod in there:
        workloads.setdefault(injected.workload_of(pod), []).append(pod)
    all_pods = {user.name: ctx.view.backend_pods(key.namespace, user.name) for user in users} | workloads
    waits = [
        ctx.settling_time(stored, own, ctx.reports.of_backend(key.namespace, name))
        for name, own in all_pods.items()
    ]
    if any(waits):
        return max(wait for wait in waits if wait is not None)
    uses = [_use(ctx, policy, backend) for backend in sorted(users, key=lambda user: user.name)]
    last = ctx.memory.made.get((key.namespace, names.policy_settings(key.name)))
    injections = [_taken_up(ctx, key.namespace, name, own, last) for name, own in sorted(workloads.items())]
    turn, shown = ctx.memory.load_turns.take(key), {user.name: user.load for user in policy.status.workloads}
    fresh = {name: _load(ctx, policy, name) for name in workloads}
    there_are = ctx.view.policy_names(key.namespace)

    def status(loads: Mapping[str, QueueLoad | None]) -> Obj:
        loaded = [replace(use, load=loads.get(use.name) or fresh[use.name]) for use in injections]
        return policy_status(
            policy,
            uses,
            loaded,
            names=there_are,
            taken=problems.taken,
            refused=problems.refused,
            now=ctx.now(),
        )

    new = status(shown)
    news = any(_is_news(ctx, shown.get(name), load) for name, load in fresh.items())
    if news and (turn or not same_status(new, stored.get("status") or {})):
        # A status that is written anyway shows the load as well.
        new = status(fresh)
        ctx.memory.load_turns.forget(key)
    await write_status(ctx, stored, new)
    return requeue_after(problems)


def forget(ctx: ReconcileContext, key: ObjectKey) -> None:
    """Drop what was stored in memory of a deleted policy; its settings stay for pods that name it."""
    ctx.view.forget(key)
    ctx.memory.load_turns.forget(key)


def look_at_load(ctx: ReconcileContext, key: ObjectKey, workload: str) -> None:
    """Queue a policy for a turn to show the load of a workload that names it, if that has moved."""
    policy = ctx.view.policy(key.namespace, key.name)
    if policy is None:
        return
    shown = {user.name: user.load for user in policy.status.workloads}
    if _is_news(ctx, shown.get(workload), _load(ctx, policy, workload)):
        ctx.memory.load_turns.ask(key)


def _load(ctx: ReconcileContext, policy: BatchPolicy, workload: str) -> QueueLoad:
    window = ctx.reports.window(policy.namespace, workload)
    return window.load(ctx.clock.time(), policy.spec.max_batch_size)


def _is_news(ctx: ReconcileContext, old: QueueLoad | None, new: QueueLoad) -> bool:
    return (old is None or not ctx.load_settles()) and load_moved(old, new)


async def _record(
    ctx: ReconcileContext, key: ObjectKey, loaded: tuple[Obj, BatchPolicy] | None, there: Sequence[Obj]
) -> Problems:
    """Make the settings of injected pods, and the ConfigMap from which they start.

    The ConfigMap is made when a pod names the policy, and stays with the policy, so that pods start while the
    operator is away. Without a policy, it goes with the last of the pods.
    """
    at = (key.namespace, names.policy_settings(key.name))
    known = at in ctx.memory.made or ctx.store.get(CONFIG_MAP, *at) is not None
    live = await ctx.applier.look(CONFIG_MAP, *at) if there or known or loaded is None else None
    labelled = ((live or {}).get("metadata") or {}).get("labels") or {}
    ours = live if labelled.get(labels.POLICY) == key.name else None
    if not there and (loaded is None or ours is None):
        ctx.memory.made.pop(at, None)
        left = [ours] if ours is not None else []
        return await apply_children(ctx, key, [], owners=(), candidates=lambda: left, confirm=_nothing)
    made = ctx.memory.made.get(at)
    if loaded is None and made is None:
        # NB: pods start from it as well, so who wrote it gains nothing here.
        made = settings.recorded_version(ours, readable=True)
    if loaded is not None or made is None:
        policy = loaded[1] if loaded is not None else None
        if policy is None and key.name != DEFAULT:
            await _say_defaults(ctx, key, there)
        made = settings.next_version(
            settings.for_policy(policy), made=made, recorded=ours, status_version=0, reported=0
        )
    ctx.memory.made[at] = made
    owners = [loaded[1]] if loaded is not None else []
    metadata = objects.metadata(at[1], key.namespace, labels.of_policy(key.name), owners)
    return await apply_children(
        ctx, key, [settings.configmap(metadata, made.document, ctx.render.authorities)],
        owners=[owner.metadata.uid for owner in owners], shared=True, candidates=list,
        confirm=(lambda: parent_check.confirm_own(ctx, loaded[0])) if loaded is not None else _nothing,
    )  # fmt: skip


async def _say_defaults(ctx: ReconcileContext, key: ObjectKey, there: Sequence[Obj]) -> None:
    """Say at the first pods that name a policy that it is not there."""
    others = ", ".join(ctx.view.policy_names(key.namespace))
    note = f"there is no BatchPolicy {key.name} (there are: {others or 'none'}): until there is, the sidecar "
    for pod in there:
        await send_event(
            ctx, pod, action="Inject", reason="PolicyMissing", note=f"{note}has the defaults", warning=True
        )


async def _nothing() -> None:
    """Nothing has to be confirmed: there is no owner."""


def _use(ctx: ReconcileContext, policy: BatchPolicy, backend: ModelBackend) -> PolicyUse:
    namespace, name = backend.namespace, backend.name
    record = names.backend_settings(name)
    last = ctx.memory.made.get((namespace, record)) or settings.recorded_version(
        ctx.store.get(CONFIG_MAP, namespace, record)
    )
    wanted = settings.for_sidecar(backend, policy, artifact=artifact.demand(backend))
    if last is not None and wanted(last.version) != last.document:
        last = None
    return _taken_up(ctx, namespace, name, ctx.view.backend_pods(namespace, name), last)


def _taken_up(
    ctx: ReconcileContext, namespace: str, name: str, own: Sequence[Obj], last: Versioned | None
) -> PolicyUse:
    """Count the ready pods of a backend or workload, and of these the ones that report its last settings."""
    ready = {pods.name(pod) for pod in pods.ready(own)}
    applied = 0
    if last is not None:
        applied = sum(
            not settings.lacks(report, last.version, last.digest)
            for pod, report in ctx.reports.of_backend(namespace, name).items()
            if pod in ready
        )
    return PolicyUse(name=name, ready_pods=len(ready), applied_pods=applied)
