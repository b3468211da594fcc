"""Annotates the pods that are to go before replicas fall, whether an autoscaler or a person lowered them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from penstock_operator.api import ModelBackend
from penstock_operator.autoscaling.victims import Candidate, name_victims
from penstock_operator.desired import labels
from penstock_operator.errors import ClusterError, Conflict, NotFound
from penstock_operator.kinds import POD
from penstock_operator.kube.cluster import Obj
from penstock_operator.reconcile.context import ReconcileContext
from penstock_operator.status import pods as pods_status

AT_ONCE = 8
"""Pods that are annotated at the same time."""


async def before_decrease(ctx: ReconcileContext, backend: ModelBackend, live: Obj | None) -> None:
    """Annotate the least busy pods of a backend before its Deployment's replicas fall.

    If a pod cannot be annotated, replicas fall all the same, and Kubernetes chooses.
    """
    wanted = backend.spec.replicas
    if live is None or not 0 < wanted < (live.get("spec") or {}).get("replicas", 1):
        return
    living = pods_status.living(ctx.view.backend_pods(backend.namespace, backend.name))
    ready = {pods_status.name(pod): pod for pod in pods_status.ready(living)}
    reports = ctx.reports.of_backend(backend.namespace, backend.name)

    def load(name: str) -> float | None:
        report = reports.get(name)
        return None if report is None else report.items.load

    named = name_victims(
        [Candidate(name=name, load=load(name), cost=_cost(pod)) for name, pod in ready.items()],
        len(ready) - wanted,  # a ReplicaSet removes pods that are not ready first
    )
    writes = iter([(ready[name], value) for name, value in named.items()])
    await asyncio.gather(*(_write(ctx, writes) for _ in range(min(AT_ONCE, len(named)))))


async def _write(ctx: ReconcileContext, writes: Iterable[tuple[Obj, str | None]]) -> None:
    """Make writes that no parallel task has taken, up to the first failure that is not one pod's alone."""
    for pod, value in writes:
        metadata = pod["metadata"]
        try:
            live = await ctx.cluster.annotate(
                POD,
                metadata["namespace"],
                metadata["name"],
                {labels.DELETION_COST: value},
                uid=metadata["uid"],
            )
        except (NotFound, Conflict):
            continue  # it is gone already
        except ClusterError as error:
            ctx.log("victim not named", level="warning", pod=metadata["name"], error=error.message)
            return
        ctx.observer.wrote("annotate", POD.kind)
        ctx.store.put(live)


def _cost(pod: Obj) -> int:
    try:
        return int((pod["metadata"].get("annotations") or {}).get(labels.DELETION_COST, 0))
    except ValueError:
        return 0
