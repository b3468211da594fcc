"""The status of a BatchPolicy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock_operator.api import BatchPolicy, Condition
from penstock_operator.api.backendstatus import QueueLoad
from penstock_operator.api.batchpolicy import BatchPolicyStatus, PolicyUser, PolicyWorkload
from penstock_operator.api.defaults import unreachable_batch
from penstock_operator.status import conditions
from penstock_operator.status.conditions import condition
from penstock_operator.status.refusals import Refusal

_LISTED = 100
"""Policies of a namespace up to which the status of each has the names of all: n policies, n² names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyUse:
    """The progress of one backend, or of one workload with injected sidecars, in taking up a policy.

    Args:
        applied_pods: those of them that reported the version of the settings made from the current policy.
        load: of a workload; a backend has its own in its status.
    """

    name: str
    ready_pods: int
    applied_pods: int
    load: QueueLoad | None = None


def policy_status(
    policy: BatchPolicy,
    uses: Sequence[PolicyUse],
    injections: Sequence[PolicyUse] = (),
    *,
    names: Sequence[str] = (),
    taken: Sequence[str] = (),
    refused: Refusal | None = None,
    now: str,
) -> dict[str, Any]:
    """Make the whole status of a policy (see `backend.backend_status`).

    Args:
        uses: of backends, by name.
        injections: of workloads with injected sidecars, by name.
        names: of the namespace's policies.
        taken: as ``ConfigMap/NAME`` if somebody else's object has the name of that with their settings.
        refused: why the apiserver refused that.
    """
    old, generation = policy.status, policy.metadata.generation
    both = (*uses, *injections)
    behind = [use for use in both if use.applied_pods < use.ready_pods]
    ready = _ready(policy, both, behind)
    if taken:
        text = f"{taken[0]} is not Penstock's: rename it; injected pods start from an object of that name"
        ready = condition("Ready", "False", "NameTaken", text)
    elif refused is not None:
        ready = condition("Ready", "False", refused.reason, refused.message)
    status_conditions = [ready, *conditions.flags(ready, reconciling=bool(behind), stalled=False)]
    return BatchPolicyStatus(
        observed_generation=generation,
        backends=_users(uses, old.backends, generation),
        workloads=tuple(
            PolicyWorkload(**dict(user), load=use.load)
            for user, use in zip(_users(injections, old.workloads, generation), injections, strict=True)
        ),
        policies=tuple(names) if len(names) <= _LISTED else None,
    ).document() | {
        "conditions": conditions.merge(old.conditions, status_conditions, generation=generation, now=now)
    }


def _users(uses: Sequence[PolicyUse], old: Sequence[PolicyUser], generation: int) -> tuple[PolicyUser, ...]:
    before = {user.name: user.applied_generation for user in old}
    return tuple(
        PolicyUser(
            name=use.name,
            applied_generation=generation if _taken_up(use) else before.get(use.name),
            pods=use.applied_pods,
        )
        for use in uses
    )


def _taken_up(use: PolicyUse) -> bool:
    return use.ready_pods > 0 and use.applied_pods >= use.ready_pods


def _ready(policy: BatchPolicy, uses: Sequence[PolicyUse], behind: Sequence[PolicyUse]) -> Condition:
    if behind:
        applied, all_pods = sum(use.applied_pods for use in uses), sum(use.ready_pods for use in uses)
        text = f"{applied} of {all_pods} ready pods; behind: {conditions.some(use.name for use in behind)}"
        return condition("Ready", "False", "Applying", text)
    note = unreachable_batch(policy.spec)
    if note is not None:
        return condition("Ready", "True", "BatchUnreachable", note)
    if not uses:
        return condition("Ready", "True", "Unused", "no ModelBackend and no pod names it")
    return condition("Ready", "True", "Applied")
