"""Writes the status of a BatchPolicy, which has no objects of its own: it is part of backends' settings."""

from __future__ import annotations

from penstock_operator.api import BatchPolicy, ModelBackend
from penstock_operator.desired import names, settings
from penstock_operator.kinds import CONFIG_MAP, POLICY
from penstock_operator.reconcile.context import ReconcileContext
from penstock_operator.reconcile.parent import load_parent
from penstock_operator.reconcile.status_writer import write_status
from penstock_operator.status import PolicyUse, pods, policy_status
from penstock_operator.store import ObjectKey


async def reconcile(ctx: ReconcileContext, key: ObjectKey) -> float | None:
    """Report in the status how many pods apply the policy (see `backend.reconcile`)."""
    loaded = await load_parent(ctx, key, POLICY, BatchPolicy)
    if loaded is None:
        return None
    stored, policy = loaded
    users = [
        backend for backend in ctx.view.backends(key.namespace) if backend.spec.batch_policy_ref == key.name
    ]
    waits = [
        ctx.settling_time(
            stored,
            ctx.view.backend_pods(key.namespace, backend.name),
            ctx.reports.of_backend(key.namespace, backend.name),
        )
        for backend in users
    ]
    if any(waits):
        return max(wait for wait in waits if wait is not None)
    uses = [_use(ctx, policy, backend) for backend in users]
    await write_status(ctx, stored, policy_status(policy, uses, now=ctx.now()))
    return None


def _use(ctx: ReconcileContext, policy: BatchPolicy, backend: ModelBackend) -> PolicyUse:
    namespace, name = backend.namespace, backend.name
    ready = {pods.name(pod) for pod in pods.ready(ctx.view.backend_pods(namespace, name))}
    record = names.backend_settings(name)
    last = ctx.memory.made.get((namespace, record)) or settings.recorded_version(
        ctx.store.get(CONFIG_MAP, namespace, record)
    )
    applied = 0
    if last is not None and settings.for_sidecar(backend, policy)(last.version) == last.document:
        applied = sum(
            not settings.lacks(report, last.version, last.digest)
            for pod, report in ctx.reports.of_backend(namespace, name).items()
            if pod in ready
        )
    return PolicyUse(name=name, ready_pods=len(ready), applied_pods=applied)
